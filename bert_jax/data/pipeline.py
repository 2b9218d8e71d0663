"""Batches for the training loop: phases, rows of a process, and prefetching."""

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import SupportsIndex, TypeVar

import numpy as np

from bert_jax.data.examples import ExampleConfig, ExampleSource
from bert_jax.data.mixture import Mixture, Text
from bert_jax.data.packing import HostRows, Packing, row_limits
from bert_jax.data.phases import Phase, RandomStream
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import StalledError

T = TypeVar("T")

_EVAL_STREAM = 255  # stream of random numbers. A training phase uses its own number
_SAMPLE = 4096  # number of pairs from which the numbers of packed rows are chosen


def split_documents(documents: int, holdout: float) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the training documents and of the held-out documents, both ascending.

    holdout: share of the documents, in [0, 1). The result depends only on the arguments, so
    all runs on a store hold out the same documents. At least one document is for training.
    If ``holdout`` is not 0 and there are two or more documents, at least one is held out.
    """
    held = round(documents * holdout)
    if holdout > 0:
        held = min(max(held, 1), documents - 1)
    order = np.random.Generator(np.random.Philox(key=0)).permutation(documents)
    return np.sort(order[held:]), np.sort(order[:held])


@dataclasses.dataclass(eq=False)
class TrainingBatches:
    """Item t has this host's rows of global batch t, through all phases.

    Global batch t of a phase has the samples t * batch_size, t * batch_size + 1, ... on any
    number of hosts.

    texts: prepared texts of the examples. Several texts are mixed by their weights.
    packing: 0: each pair has its own row. Otherwise pairs share rows (see Packing.pack),
    and the number of rows is a multiple of ``packing``. Every host computes the lengths of
    all pairs of the batch, and from them the row of each pair, but makes only the pairs of
    its own rows. stream: random stream of the first phase. sources: the examples of each
    phase.
    """

    texts: Sequence[Text]
    vocabulary: Tokenizer
    phases: Sequence[Phase]
    config: ExampleConfig
    _: dataclasses.KW_ONLY
    seed: int
    rows: HostRows = np.arange
    packing: int = 0
    stream: int = 0

    def __post_init__(self):
        self._ends = np.cumsum([phase.steps for phase in self.phases])
        self.sources: list[ExampleSource | Mixture] = []
        self._packings: list[Packing] = []
        for number, phase in enumerate(self.phases):
            source = self._source(number)
            self.sources.append(source)
            if self.packing:
                packing = Packing.of(
                    source.lengths(range(_SAMPLE)),
                    phase.batch_size,
                    phase.sequence_length,
                    mask_rate=phase.mask_rates(self.config.mask_rate).largest,
                    multiple=self.packing,
                    single_sentences=self.config.single_sentences,
                )
                self._packings.append(packing)

    def _source(self, number: int) -> ExampleSource | Mixture:
        """The examples of phase ``number``."""
        phase, sources = self.phases[number], []
        for i, text in enumerate(self.texts):
            source = ExampleSource(
                text.store,
                self.vocabulary,
                self.config,
                sequence_length=phase.sequence_length,
                max_predictions=phase.places(self.config.mask_rate),
                seed=self.seed + (i << 32),  # texts have different random numbers
                stream=self.stream + number,
                documents=text.documents,
            )
            sources.append(source)
        if len(sources) == 1:
            return sources[0]
        weights = [text.weight for text in self.texts]
        return Mixture(sources, weights, self._random(number))

    def _random(self, number: int) -> RandomStream:
        """The random numbers of phase ``number`` that do not depend on a text."""
        length = self.phases[number].sequence_length
        return RandomStream(self.seed, self.stream + number, length)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, item: SupportsIndex) -> dict[str, np.ndarray]:
        step = int(item)
        number = int(np.searchsorted(self._ends, step, "right"))
        phase = self.phases[number]
        first = (step - int(self._ends[number]) + phase.steps) * phase.batch_size
        batch = self._batch(number, first)
        if phase.causal:
            return without_masks(batch)
        return batch

    def _batch(self, number: int, first: int) -> dict[str, np.ndarray]:
        """The batch of phase ``number`` with masks. first: number of its first sample."""
        phase = self.phases[number]
        if not self.packing:
            return self._draw(number, first + self.rows(phase.batch_size))
        packing = self._packings[number]
        lengths = self.sources[number].lengths(range(first, first + phase.batch_size))
        rows = packing.rows(lengths)
        rows = [rows[row] for row in self.rows(len(rows))]  # of this process
        pairs = np.sort(np.fromiter(itertools.chain(*rows), np.int64))
        members = [np.searchsorted(pairs, row) for row in rows]
        batch = self._draw(number, first + pairs)
        return packing.pack(batch, members, self.vocabulary.pad_id)

    def _draw(self, number: int, samples: np.ndarray) -> dict[str, np.ndarray]:
        """Samples of phase ``number``, with the mask rates of the phase."""
        rates = self.phases[number].mask_rates(self.config.mask_rate)
        rates_B = rates.of(samples, self._random(number))
        return self.sources[number].draw(samples, rates_B)


def without_masks(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The batch of a left-to-right phase: the original tokens, and no predictions."""
    rows, places = np.nonzero(batch["mlm_weights"])
    positions = batch["mlm_positions"][rows, places]
    input_ids_BL = batch["input_ids"].copy()
    input_ids_BL[rows, positions] = batch["mlm_ids"][rows, places]
    kept = {name: x for name, x in batch.items() if not name.startswith("mlm_")}
    return kept | {"input_ids": input_ids_BL}


def largest_batch(
    phase: Phase, config: ExampleConfig, *, packs: bool
) -> dict[str, np.ndarray]:
    """Zeros in the shapes of a batch of TrainingBatches, which need no memory.

    packs: whether pairs share rows. The batch then has a row for each pair, which is the
    largest possible number. A run has fewer rows, depending on the text.
    """
    B, L, M = phase.batch_size, phase.sequence_length, phase.places(config.mask_rate)
    tokens = ("input_ids", "token_type_ids", "attention_mask")
    predictions = ("mlm_positions", "mlm_ids", "mlm_weights")
    if phase.causal:
        predictions = ()
    if packs:
        rate = phase.mask_rates(config.mask_rate).largest
        pairs, M = row_limits(L, rate, config.single_sentences)
        shapes = dict.fromkeys((*tokens, "segment_ids"), (B, L))
        shapes |= dict.fromkeys(("nsp_labels", "starts", "nsp_weights"), (B, pairs))
    else:
        shapes = dict.fromkeys(tokens, (B, L)) | {"nsp_labels": (B,)}
    shapes |= dict.fromkeys(predictions, (B, M))
    batch = {}
    for name, shape in shapes.items():
        dtype = np.float32 if name.endswith("_weights") else np.int32
        batch[name] = np.broadcast_to(np.zeros((), dtype), shape)
    return batch


def eval_batches(
    training: TrainingBatches, phase: Phase, held_out: Sequence[Text], mask_rate: float
) -> TrainingBatches:
    """``phase.steps`` batches of held-out documents, with a row for each pair.

    held_out: the texts of ``training`` with their held-out documents.
    The batches differ from ``training`` in documents and mask rate. If there are too few
    examples, they repeat with other pairs and masks.
    """
    phase = with_mask_rate(phase, training.config.mask_rate, mask_rate)
    changes = {"texts": held_out, "seed": 0, "stream": _EVAL_STREAM}
    return dataclasses.replace(training, phases=(phase,), packing=0, **changes)


def with_mask_rate(phase: Phase, default: float, mask_rate: float) -> Phase:
    """The phase with the same mask rate for all sequences of all steps.

    default: the rate of training if the phase has none of its own. If the phase sets
    max_predictions, it is raised for a rate above the phase's own. Otherwise it follows
    from ``mask_rate`` alone, so that the random numbers of an evaluation do not depend on
    the mask rate of training.
    """
    fixed = dataclasses.replace(
        phase, mask_rate=mask_rate, last_mask_rate=0.0, mask_rate_spread=0.0
    )
    if not phase.max_predictions or mask_rate <= phase.mask_rates(default).largest:
        return fixed
    most = max(phase.max_predictions, fixed.predictions(mask_rate))
    return dataclasses.replace(fixed, max_predictions=most)


def drawn_ahead(
    batches: Sequence[T],
    *,
    first: int = 0,
    threads: int = 1,
    prefetch: int = 1,
    timeout: float = 0,
) -> Iterator[T]:
    """Yields the batches from number ``first`` on, which threads prefetch.

    A batch is a function of its number, so the number of finished steps is the position in
    the data, for any number of hosts. prefetch: number of batches in advance. timeout:
    seconds to wait for a batch before StalledError; 0: no limit.
    """
    pool = ThreadPoolExecutor(threads, "batches")
    futures: collections.deque = collections.deque()
    try:
        for number in range(first, len(batches)):
            futures.append(pool.submit(batches.__getitem__, number))
            if len(futures) > prefetch:
                yield futures.popleft().result(timeout or None)
        while futures:
            yield futures.popleft().result(timeout or None)
    except TimeoutError as error:
        raise StalledError(
            f"no batch for {timeout:g} s: a data thread is stuck; start the run again, or "
            "raise data_timeout if the disk is slow"
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
