"""Batches for the training loop: phases, host slices and a Grain iterator."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import SupportsIndex

import grain
import numpy as np

from bert_jax.data.examples import ExampleConfig, ExampleSource, Sentences, Vocabulary
from bert_jax.errors import UserError

# Streams of random numbers: a training phase's number, or this.
_EVAL_STREAM = 255


@dataclasses.dataclass(frozen=True)
class Phase:
    """``steps`` updates at one global batch size, sequence length and mask budget."""

    steps: int
    batch_size: int
    sequence_length: int
    max_predictions: int


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

    Global batch t of a phase holds its samples t * batch_size and on; host h of H takes
    the h-th of H equal runs of rows, so the global order does not depend on H.
    """

    def __init__(
        self,
        store: Sentences,
        vocabulary: Vocabulary,
        phases: Sequence[Phase],
        config: ExampleConfig,
        *,
        seed: int,
        documents: np.ndarray,
        process_index: int,
        process_count: int,
    ):
        for phase in phases:
            if phase.batch_size % process_count:
                raise UserError(
                    f"batch_size={phase.batch_size} is not a multiple of the "
                    f"{process_count} hosts; set --config.phases[0].batch_size"
                )
        self._phases = phases
        self._ends = np.cumsum([phase.steps for phase in phases])
        self._process = process_index, process_count
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

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, item: SupportsIndex) -> dict[str, np.ndarray]:
        step = int(item)
        number = int(np.searchsorted(self._ends, step, "right"))
        phase = self._phases[number]
        step -= int(self._ends[number]) - phase.steps
        index, count = self._process
        rows = phase.batch_size // count
        first = step * phase.batch_size + index * rows
        return self._sources[number].draw(first, rows)


def training_iterator(
    batches: TrainingBatches, *, threads: int, prefetch: int
) -> grain.DatasetIterator:
    """Draws batches ahead in threads; its state is the position, and checkpoints."""
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch)
    return iter(grain.MapDataset.source(batches).to_iter_dataset(options))


def eval_batches(
    store: Sentences,
    vocabulary: Vocabulary,
    phase: Phase,
    config: ExampleConfig,
    *,
    documents: np.ndarray,
    process_index: int,
    process_count: int,
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
    rows = phase.batch_size // process_count
    for step in range(phase.steps):
        yield source.draw(step * phase.batch_size + process_index * rows, rows)
