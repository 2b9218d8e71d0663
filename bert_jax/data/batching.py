"""Batches of sequences of many lengths, in few shapes and with little padding.

Several sequences share a row. There are few shapes, because each shape needs a program of
its own, which takes as long to compile as a few dozen steps. The examples of a step depend
only on the data, the seed, the epoch and the settings; how they are packed into rows also
depends on the devices.
"""

import bisect
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from bert_jax.data.packing import HostRows, Rows, best_fit, lay_out, placed, round_up

IGNORED = -1  # a label that neither the loss nor a metric counts

MULTIPLE = 8  # row lengths are multiples of this number of tokens, for accelerators
# Minimum number of steps that another shape must save in each epoch, because compiling it
# takes as long as a few dozen steps.
WORTH = 8
SAMPLE = 128  # number of batches of a length class from which its shape is chosen
SAMPLE_EPOCHS = 8  # maximum number of epochs that are sorted for this sample
# The row length at which attention, whose time grows with the square of the length, takes
# as long as the rest of a step. Measured: 840 and 940 for all-MiniLM-L6-v2 with heads for
# tokens and sequences on two CPU cores. The value is larger for wider models.
EVEN_LENGTH = 1200

# Row lengths for inference. In shorter rows attention wastes less time on pairs of
# sequences that do not attend to each other. SHORT is used if one row of this length has
# room for all sequences.
LENGTHS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144)
SHORT = 16
SLOT = 4  # a row has one slot for this many tokens. The shortest sequence has three

# Numbers of the sequences in each row of a batch, and the arrays of the batch.
RowBatch = tuple[list[list[int]], dict[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Features:
    """Tokenised sequences of examples. An example may have several (windows, choices).

    input_ids, token_type_ids: int32 (L_i,) of each sequence i, with [CLS] and [SEP].
    example: int32 (n,), the number of each sequence's example, ascending.
    targets: arrays for the loss, with one entry for each of n sequences. Empty without
      labels.
      head "sequence": "label" int32 (n,) of class ids, or float32 (n,) for regression.
      head "token": "labels", a list of int32 (L_i,). IGNORED for tokens without a label.
      head "choice": "label" int32 (examples,), the right choice of each example.
      head "span": "start" and "end", int32 (n,), positions in the sequence.
    choices: number of choices of an example (head "choice"). The sequences of an example
      are adjacent, so n = examples * choices. 1 for other heads.
    extra: values that the task needs to decode the outputs, one entry for each sequence.
    truncated: number of examples whose text was truncated.
    hidden: float32 (L_i, W) of each sequence, from a frozen encoder.
    inputs: additional inputs of the model in inference, with one value for each sequence,
      (n,). In a batch their shape is (R, S).
    """

    input_ids: list[np.ndarray]
    token_type_ids: list[np.ndarray]
    example: np.ndarray
    targets: dict[str, Any] = dataclasses.field(default_factory=dict)
    choices: int = 1
    extra: list[Any] = dataclasses.field(default_factory=list)
    truncated: int = 0
    hidden: Sequence[np.ndarray] | None = None
    inputs: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def lengths_UC(self) -> np.ndarray:
        """Number of tokens of each sequence, (U, choices).

        U is the number of units. A unit is a sequence, or all choices of an example.
        """
        lengths = np.fromiter(map(len, self.input_ids), np.int64)
        return lengths.reshape(-1, self.choices)


class Shape(NamedTuple):
    """``rows`` of ``length`` tokens, each with room for ``slots`` sequences."""

    rows: int
    length: int
    slots: int

    @property
    def cost(self) -> float:
        """Estimated time of a step, relative to other shapes."""
        return self.rows * self.length * (1 + self.length / EVEN_LENGTH)


@dataclasses.dataclass(eq=False)
class EpochBatches:
    """Item t has this process's rows of the batch of step t, through all epochs.

    features: the training examples. batch_size: units of a step, see Features.lengths_UC.
    One batch of an epoch, at any place, may be smaller. buckets: maximum number of length
    classes. All units of a batch are from one class, and each class has its own shape.
    limit: number of positions of the model, which limits the length of rows. multiple:
    divides the number of rows of a batch. accumulation: number of parts of a step. Part i
    has the rows i, i + accumulation, ..., and all choices of its units. rows: function that
    returns the rows of a global batch on this process's devices.

    For R rows of S slots an item has: "input_ids", "token_type_ids", "attention_mask"
    int32 (R, L); "segment_ids" (R, L), 1, 2, ... for the tokens of a row's first, second,
    ... sequence and 0 for padding; "starts" (R, S), the first position of each sequence.
    Without choices it has "weights" float32 (R, S), 0 for an empty slot, and targets (R, S,
    ...), or (R, L) for tokens. With choices, for U units, it has "weights" (U,), targets
    (U, ...), and "slots" int32 (U, choices): the slot of each choice in its part, row by
    row. Features with hidden add "hidden" (R, L, W).
    """

    features: Features
    _: dataclasses.KW_ONLY
    batch_size: int
    epochs: int
    seed: int
    pad_id: int
    buckets: int
    limit: int
    multiple: int = 1
    accumulation: int = 1
    rows: HostRows = np.arange

    def __post_init__(self):
        # Divides the rows of a part. All parts of a step have the same number of rows.
        parts = self.accumulation
        self._multiple = math.lcm(self.multiple, parts) // parts
        weights = np.ones(len(self.features.example), np.float32)
        targets = {"weights": weights} | self.features.targets
        self._weighted = dataclasses.replace(self.features, targets=targets)
        self._sizes_U = self.features.lengths_UC.sum(axis=1)
        self._classes = length_classes(self._sizes_U, self.batch_size, self.buckets)
        # At the end of an epoch, threads may need the orders of two epochs.
        self._order = functools.lru_cache(maxsize=2)(self._shuffled)
        self.shapes = self._choose_shapes()

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps of an epoch, the smaller batch included."""
        return -(-len(self._sizes_U) // self.batch_size)

    def __len__(self) -> int:
        return self.steps_per_epoch * self.epochs

    def __getitem__(self, step: SupportsIndex) -> dict[str, np.ndarray]:
        epoch, number = divmod(int(step), self.steps_per_epoch)
        if not 0 <= epoch < self.epochs:
            raise IndexError(f"step {step} of {len(self)}")
        arrays = self._arrays(self._order(epoch)[number])
        return {name: v[self.rows(len(v))] for name, v in arrays.items()}

    def _shuffled(self, epoch: int) -> list[np.ndarray]:
        """The units of each batch of an epoch."""
        batches = list(itertools.chain(*self._sorted(self.seed, epoch)))
        random = np.random.default_rng((self.seed, epoch, 1))
        return [batches[i] for i in random.permutation(len(batches))]

    def _sorted(self, seed: int, epoch: int) -> list[list[np.ndarray]]:
        """The units of an epoch's batches for each class, and of the last, smaller batch.

        The units of a class are sorted by length and cut into ``batch_size`` groups. Each
        batch has one unit of every group, so all batches have similar numbers of tokens
        and rows.
        """
        random = np.random.default_rng((seed, epoch))
        order = random.permutation(len(self._sizes_U))
        full = sum(self._classes) * self.batch_size
        order, rest = order[:full], order[full:]
        order = order[np.argsort(-self._sizes_U[order], kind="stable")]
        batches: list[list[np.ndarray]] = []
        for units in np.split(order, np.cumsum(self._classes)[:-1] * self.batch_size):
            strata = units.reshape(self.batch_size, -1)
            if strata.size:
                batches.append(list(random.permuted(strata, axis=1).T))
        if len(rest):
            batches.append([rest])
        return batches

    def _choose_shapes(self) -> tuple[Shape, ...]:
        """The cheapest shape for each class, ordered by cost.

        The sample of batches does not depend on the seed of the run, so the runs of a sweep
        share their compiled programs.
        """
        lengths_UC = self.features.lengths_UC
        samples: list[list[np.ndarray]] = [[] for _ in self._classes]
        longest = [0] * len(samples)
        epochs = math.ceil(SAMPLE / max(min(self._classes), 1))
        for epoch in range(min(epochs, SAMPLE_EPOCHS)):
            of_classes = self._sorted(0, epoch)[: len(samples)]
            for number, batches in enumerate(of_classes):
                most = int(lengths_UC[np.concatenate(batches)].max())
                longest[number] = max(longest[number], most)
                samples[number] += batches[: SAMPLE - len(samples[number])]
        # The first class must have room for any unit.
        longest[0] = int(lengths_UC.max())
        shapes = {*map(self._cheapest, samples, longest)}
        return tuple(sorted(shapes, key=lambda shape: shape.cost))

    def _cheapest(self, sample: list[np.ndarray], longest: int) -> Shape:
        """The cheapest shape for all batches of ``sample``.

        longest: maximum number of tokens of a sequence. Rows are at most twice as long.
        """
        steps = list(map(self._split, sample))
        mean = self.features.lengths_UC[np.concatenate(sample)].mean()
        most = max(map(len, itertools.chain(*steps))) * self.features.choices
        first = round_up(longest, MULTIPLE)
        lengths = np.arange(first, 2 * first + 1, MULTIPLE)
        candidates = []
        for length in np.unique(np.minimum(lengths, self.limit)).tolist():
            # Twice the average number of sequences in a row, because best fit puts the
            # short sequences into the last rows. Each slot costs the last layer one more
            # position.
            slots = min(most, math.ceil(2 * length / mean))
            rows = max(self._fit(step, length, slots)[1] for step in steps)
            candidates.append(Shape(rows, length, slots))
        return min(candidates, key=lambda shape: shape.cost)

    def _split(self, units: np.ndarray) -> list[np.ndarray]:
        """The units of each part."""
        return [units[part :: self.accumulation] for part in range(self.accumulation)]

    def _fit(
        self, parts: list[np.ndarray], length: int, slots: int
    ) -> tuple[list[list[list[int]]], int]:
        """The rows of each part of a step, and the number of rows of the step.

        The sequences of a part are numbered unit by unit.
        """
        rows = []
        for units in parts:
            lengths = self.features.lengths_UC[units].ravel()
            rows.append(best_fit(lengths, length, slots))
        count = round_up(max(map(len, rows)), self._multiple)
        return rows, count * self.accumulation

    def _arrays(self, units: np.ndarray) -> dict[str, np.ndarray]:
        """The arrays of a step, of all processes."""
        parts = self._split(units)
        longest = self.features.lengths_UC[units].max()
        for shape in self.shapes:
            if shape.length >= longest:
                chosen = shape
                rows, count = self._fit(parts, shape.length, shape.slots)
                if count <= shape.rows:
                    break
        # A batch may need more rows than all batches of the sample.
        count = max(count, chosen.rows)
        chosen = chosen._replace(rows=count // self.accumulation)  # of a part
        arrays = list(map(self._fill, parts, itertools.repeat(chosen), rows))
        step = {}
        for name in arrays[0]:
            array = np.stack([part[name] for part in arrays], axis=1)
            step[name] = array.reshape(-1, *array.shape[2:])
        return step

    def _fill(
        self, units: np.ndarray, shape: Shape, rows: list[list[int]]
    ) -> dict[str, np.ndarray]:
        """The arrays of a part. rows: numbers, within the part, of each row's sequences."""
        features, C = self._weighted, self.features.choices
        sequences = (units[:, None] * C + np.arange(C)).ravel()
        in_rows = [sequences[members] for members in rows]
        arrays = packed_rows(features, in_rows, shape, self.pad_id)
        if C > 1:
            slots = np.zeros(len(sequences), np.int32)
            for r, members in enumerate(rows):
                slots[members] = r * shape.slots + np.arange(len(members))
            U = round_up(-(-self.batch_size // self.accumulation), self._multiple)
            arrays["slots"] = placed((U, C), np.s_[: len(units)], slots.reshape(-1, C))
            for name, array in features.targets.items():
                full, used = (U, *array.shape[1:]), np.s_[: len(units)]
                arrays[name] = placed(full, used, array[units], dtype=array.dtype)
        return arrays


def length_classes(sizes_U: np.ndarray, batch_size: int, most: int) -> list[int]:
    """The number of full batches in each length class, the longest class first.

    Each split of a class is where it saves the most padding in rows of one unit each, until
    there are ``most`` classes, or the next split would save fewer than WORTH steps in an
    epoch. The classes depend only on the data.
    """
    full = len(sizes_U) // batch_size
    if not full:
        return [0]
    longest = np.sort(sizes_U)[::-1][: full * batch_size : batch_size]  # of each batch
    longest = round_up(longest, MULTIPLE)
    # The end and the width of each batch's class.
    ends, widths = np.full(full, full), np.full(full, longest[0])
    for _ in range(most - 1):
        saved = (widths - longest) * (ends - np.arange(full))
        cut = int(saved.argmax())
        if saved[cut] < WORTH * widths.mean():
            break
        widths[cut : ends[cut]] = longest[cut]
        before = ends[:cut]
        before[before == ends[cut]] = cut
    return np.unique(ends, return_counts=True)[1].tolist()


def packed_rows(
    features: Features, rows: Rows, shape: Shape, pad_id: int
) -> dict[str, np.ndarray]:
    """The arrays of the given rows. rows: numbers of the sequences in each row.

    "input_ids", "token_type_ids", "attention_mask", "segment_ids", "starts", "hidden" and
    targets as in EpochBatches, but without targets of choices; inputs (R, S).
    """
    arrays, places = lay_out(features.lengths_UC.ravel(), rows, shape)
    used_RL, slots_RS = arrays["attention_mask"] > 0, arrays["starts"]
    values = {
        "input_ids": features.input_ids,
        "token_type_ids": features.token_type_ids,
        **features.inputs,
        **features.targets,
    }
    if features.hidden is not None:
        values["hidden"] = features.hidden
    padding = {"input_ids": pad_id, "token_type_ids": 0, "hidden": 0}
    for name, value in values.items():
        if not isinstance(value, np.ndarray):  # an array for each sequence
            none = value[0][:0]  # a part of a small batch may have no sequence
            flat = np.concatenate([none, *map(value.__getitem__, places.sequences)])
            full, empty = (*used_RL.shape, *flat.shape[1:]), padding.get(name, IGNORED)
            arrays[name] = placed(full, used_RL, flat, empty, flat.dtype)
        elif features.choices == 1:
            value, where = value[places.sequences], (places.rows, places.slots)
            full = (*slots_RS.shape, *value.shape[1:])
            arrays[name] = placed(full, where, value, dtype=value.dtype)
    return arrays


def inference_batches(
    features: Features,
    *,
    batch_size: int,
    limit: int,
    pad_id: int,
    multiple: int = 1,
) -> Iterator[RowBatch]:
    """Every sequence of ``features`` once, none longer than ``limit``, the longest first.

    For the arrays, which have no targets, see packed_rows(). batch_size: number of rows of
    LENGTHS[0] tokens. Batches of longer rows have fewer rows and about as many tokens. The
    number of rows of a small batch is rounded up to a power of two. multiple: divides the
    number of rows.
    """
    features = dataclasses.replace(features, targets={})
    lengths = features.lengths_UC.ravel()
    bounds = [0, *LENGTHS[: bisect.bisect_left(LENGTHS, limit)], limit]
    if lengths.sum() <= SHORT <= limit:
        bounds = [0, SHORT]
    left = np.arange(len(lengths))
    for shorter, length in reversed([*itertools.pairwise(bounds)]):
        slots = max(length // SLOT, 1)
        rows = []
        placed_here: list[int] = []
        for row in best_fit(lengths[left], length, slots):
            # Shorter sequences fill only rows that longer sequences need.
            if lengths[left[row[0]]] > shorter:
                rows.append(left[row].tolist())
                placed_here += row
        if not rows:
            continue
        left = np.delete(left, placed_here)
        count = max(batch_size * LENGTHS[0] // length, 1)
        count = round_up(min(count, 1 << (len(rows) - 1).bit_length()), multiple)
        for first in range(0, len(rows), count):
            part = rows[first : first + count]
            yield part, packed_rows(features, part, Shape(count, length, slots), pad_id)
