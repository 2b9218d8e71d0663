"""Batches for the training loop: phases, host slices and a Grain iterator."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import SupportsIndex

import grain
import numpy as np

from bert_jax.data.examples import ExampleConfig, ExampleSource
from bert_jax.data.packing import HostRows, Packing, all_rows, take_rows
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

    steps: int = setting(doc="steps of training", least=1)
    batch_size: int = setting(doc="sequences of a step, over all devices", least=1)
    sequence_length: int = setting(
        doc="tokens of a sequence, [CLS] and two [SEP] included"
    )
    max_predictions: int = setting(doc="masked tokens of a sequence, at most", least=1)


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

    Global batch t of a phase holds the samples t * batch_size, t * batch_size + 1, ...
    whichever host draws them, so the order does not depend on the number of hosts.

    packing: with 0, each pair has a row. Otherwise pairs share rows (see Packing.pack),
    whose number is a multiple of ``packing``. Every host computes the lengths of all pairs
    of the batch, and so the row of each, but draws only the pairs of its own rows.
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
            own = take_rows(np.arange(phase.batch_size), self._rows(phase.batch_size))
            return source.draw_samples(first + own)
        packing = self._packings[number]
        rows, count = packing.rows(source.lengths(first, phase.batch_size))
        own = take_rows(np.arange(count), self._rows(count))
        pairs = np.flatnonzero(np.isin(rows, own))
        batch = source.draw_samples(first + pairs)
        places = np.searchsorted(own, rows[pairs])
        return packing.pack(batch, places, len(own), self._pad_id)


def training_iterator(
    batches: TrainingBatches, *, first: int = 0, threads: int, prefetch: int
) -> Iterator[dict[str, np.ndarray]]:
    """Batch ``first`` and on, drawn ahead in threads.

    A batch is a function of its number, so the number of steps done is the position in
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
    own = take_rows(np.arange(phase.batch_size), rows(phase.batch_size))
    for step in range(phase.steps):
        yield source.draw_samples(step * phase.batch_size + own)
