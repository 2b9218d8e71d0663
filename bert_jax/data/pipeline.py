"""Batches for the training loop: phases, host slices and a Grain iterator."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import SupportsIndex

import grain
import numpy as np

from bert_jax.data.examples import ExampleConfig, ExampleSource
from bert_jax.data.packing import HostRows, Packing, all_rows
from bert_jax.data.store import TokenStore
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.settings import setting

# Streams of random numbers: a training phase's number, or this.
_EVAL_STREAM = 255
_SAMPLE = 4096  # pairs whose lengths the shape of packed rows is chosen on


@dataclasses.dataclass(frozen=True)
class Phase:
    """Steps at one batch size and sequence length; all phases share one schedule."""

    steps: int = setting(doc="steps of training")
    batch_size: int = setting(doc="sequences of a step, over all devices")
    sequence_length: int = setting(
        doc="tokens of a sequence, [CLS] and two [SEP] included"
    )
    max_predictions: int = setting(doc="masked tokens of a sequence, at most")


def split_documents(documents: int, holdout: float) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the training and of the held-out documents, both ascending.

    The choice depends on nothing but the two arguments, so that every run on a store
    holds out the same documents. At least one document stays in training, and one is
    held out where ``holdout`` > 0 and there are two.
    """
    if not 0 <= holdout < 1:
        raise UserError(
            f"holdout={holdout}, expected a share in [0, 1); set --config.data.holdout"
        )
    held = round(documents * holdout)
    if holdout > 0:
        held = min(max(held, 1), documents - 1)
    order = np.random.Generator(np.random.Philox(key=0)).permutation(documents)
    return np.sort(order[held:]), np.sort(order[:held])


class TrainingBatches:
    """Item t is this host's rows of global batch t, through all phases.

    Global batch t of a phase holds its samples t * batch_size and on, whichever host
    draws them: the order does not depend on the number of hosts.

    packing: pairs lie side by side in fewer rows, see Packing.pack; the number of rows is
    a multiple of it; 0: a row each. Every host knows the length of each pair of the batch
    and so which row it lies in, but reads and draws those of its own rows alone.
    """

    def __init__(
        self,
        store: TokenStore,
        vocabulary: Tokenizer,
        phases: Sequence[Phase],
        config: ExampleConfig,
        *,
        seed: int,
        documents: np.ndarray,
        rows: HostRows = all_rows,
        packing: int = 0,
    ):
        self._phases = phases
        self._ends = np.cumsum([phase.steps for phase in phases])
        self._rows = rows
        self._pad_id = vocabulary.pad_id
        self._sources = [
            ExampleSource(
                store,
                vocabulary,
                config,
                sequence_length=phase.sequence_length,
                max_predictions=phase.max_predictions,
                seed=seed,
                stream=number,
                documents=documents,
            )
            for number, phase in enumerate(phases)
        ]
        self._packings = [
            Packing.of(
                source.lengths(0, _SAMPLE),
                phase.batch_size,
                phase.sequence_length,
                mask_rate=config.mask_rate,
                multiple=packing,
            )
            for source, phase in zip(self._sources, phases, strict=True)
            if packing
        ]

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, item: SupportsIndex) -> dict[str, np.ndarray]:
        step = int(item)
        number = int(np.searchsorted(self._ends, step, "right"))
        phase = self._phases[number]
        step -= int(self._ends[number]) - phase.steps
        first, source = step * phase.batch_size, self._sources[number]
        if not self._packings:
            own = _numbers(self._rows(phase.batch_size))
            return source.draw_samples(first + own)
        packing = self._packings[number]
        rows, count = packing.rows(source.lengths(first, phase.batch_size))
        own = _numbers(self._rows(count))
        pairs = np.flatnonzero(np.isin(rows, own))
        batch = source.draw_samples(first + pairs)
        places = np.searchsorted(own, rows[pairs])
        return packing.pack(batch, places, len(own), self._pad_id)


def _numbers(runs: Sequence[range]) -> np.ndarray:
    return np.concatenate([np.arange(run.start, run.stop) for run in runs])


def training_iterator(
    batches: TrainingBatches, *, first: int = 0, threads: int, prefetch: int
) -> Iterator[dict[str, np.ndarray]]:
    """Batch ``first`` and on, drawn ahead in threads.

    A batch is a function of its number, so the number of updates done is the place in
    the data, for any number of hosts.
    """
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch)
    rest = grain.MapDataset.source(batches)[first:]
    return iter(rest.to_iter_dataset(options))


def eval_batches(
    store: TokenStore,
    vocabulary: Tokenizer,
    phase: Phase,
    config: ExampleConfig,
    *,
    documents: np.ndarray,
    rows: HostRows = all_rows,
) -> Iterator[dict[str, np.ndarray]]:
    """The same ``phase.steps`` batches of held-out documents each time it is called.

    Where the documents give fewer examples, they come again with other pairs and masks.
    """
    source = ExampleSource(
        store,
        vocabulary,
        config,
        sequence_length=phase.sequence_length,
        max_predictions=phase.max_predictions,
        seed=0,
        stream=_EVAL_STREAM,
        documents=documents,
    )
    own = _numbers(rows(phase.batch_size))
    for step in range(phase.steps):
        yield source.draw_samples(step * phase.batch_size + own)
