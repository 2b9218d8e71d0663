"""Batches of sequences of many lengths, in few shapes and with little padding.

Several sequences share a row. The compiler runs once for each shape and takes as long as
some tens of steps, so there are few shapes. The examples of a step depend only on the data,
the seed, the epoch and the settings. Their rows also depend on the devices.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from bert_jax.data.packing import HostRows, Rows, best_fit, lay_out, placed, round_up

IGNORED = -1  # a label that neither the loss nor a metric counts

MULTIPLE = 8  # row lengths are multiples of it, in tokens, which accelerators prefer
# A further shape must save this many steps an epoch: compiling it takes as long as that
# many steps for each epoch of a usual run.
WORTH = 8
SAMPLE = 128  # batches of each class of lengths, on which the class's shape is chosen
# The row length at which attention, whose time grows with the square of the length, takes
# as long as the rest of a step. Measured: 840 and 940 for all-MiniLM-L6-v2 with heads for
# tokens and sequences on two CPU cores; wider models have more by their operations.
EVEN_LENGTH = 1200

# Row lengths for inference. In a shorter row attention computes less between sequences that
# do not see each other. SHORT is used where one such row holds all sequences.
LENGTHS = (32, 64, 96, 128, 192, 256, 384, 512)
SHORT = 16
SLOT = 4  # a row may hold a sequence for so many tokens; the shortest one has three

# The numbers of the sequences in each row of a batch, and its arrays.
RowBatch = tuple[list[list[int]], dict[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Features:
    """Tokenised sequences of examples. An example may have several (windows, choices).

    input_ids, token_type_ids: int32 (L_i,) of each sequence i, with [CLS] and [SEP].
    row: int32 (n,), the number of the example that each sequence belongs to; ascending.
    targets: arrays that the loss needs, with one entry for each of n sequences; empty
      without labels.
      head "sequence": "label" int32 (n,) of class ids, or float32 (n,) for regression.
      head "token": "labels", a list of int32 (L_i,); IGNORED for tokens without a label.
      head "choice": "label" int32 (examples,), the right choice of each example.
      head "span": "start" and "end", int32 (n,), positions in the sequence.
    choices: number of sequences of one example that compete (head "choice"), which are next
      to each other: n = examples * choices. 1 for other heads.
    extra: values that the task needs to decode the outputs, one entry for each sequence.
    truncated: number of examples with text that was cut off.
    hidden: float32 (L_i, W) of each sequence, from a frozen encoder.
    inputs: arrays (n,) of further inputs of the model in inference, one value for each
      sequence. A batch has them as (R, S).
    """

    input_ids: list[np.ndarray]
    token_type_ids: list[np.ndarray]
    row: np.ndarray
    targets: dict[str, Any] = dataclasses.field(default_factory=dict)
    choices: int = 1
    extra: list[Any] = dataclasses.field(default_factory=list)
    truncated: int = 0
    hidden: Sequence[np.ndarray] | None = None
    inputs: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def lengths_UC(self) -> np.ndarray:
        """Tokens of each sequence, (U, choices).

        U counts what cannot be divided: a sequence, or all choices of an example.
        """
        lengths = [len(ids) for ids in self.input_ids]
        return np.array(lengths, np.int64).reshape(-1, self.choices)


class Shape(NamedTuple):
    """``rows`` of ``length`` tokens, each with room for ``slots`` sequences."""

    rows: int
    length: int
    slots: int

    @property
    def cost(self) -> float:
        """Time of a step, relative to steps of other shapes."""
        return self.rows * self.length * (1 + self.length / EVEN_LENGTH)


@dataclasses.dataclass(eq=False)
class EpochBatches:
    """Item t is this process's rows of the batch of step t, from 0, through all epochs.

    features: the training examples. batch_size: units of a step, see Features.lengths_UC.
    One batch of an epoch, at any place, may be smaller. buckets: maximum number of length
    classes. A batch has units of one class, and each class has its own shape. limit:
    number of positions of the model, which limits the length of rows. multiple: divides the
    number of rows of a batch. accumulation: number of parts of a step. Part i has the rows
    i, i + accumulation, ..., and all choices of its units. rows: rows of a global batch on
    this process's devices. packed: whether sequences share rows.

    An item has for R rows of S slots: "input_ids", "token_type_ids", "attention_mask"
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
    packed: bool = True

    def __post_init__(self):
        # Divides the rows of a part; all parts of a step have the same number of rows.
        parts = self.accumulation
        self._multiple = math.lcm(self.multiple, parts) // parts
        weights = np.ones(len(self.features.row), np.float32)
        targets = {"weights": weights} | self.features.targets
        self._weighted = dataclasses.replace(self.features, targets=targets)
        self._sizes_U = self.features.lengths_UC.sum(axis=1)
        self._classes = length_classes(self._sizes_U, self.batch_size, self.buckets)
        # Threads ask for batches at the same time, of two epochs at an epoch's end.
        self._order = functools.lru_cache(maxsize=2)(self._shuffled)
        self.shapes = self._choose_shapes()

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch, the last partial batch included."""
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
        """The units of an epoch's batches, for each class, and of the last batch.

        The units of a class are sorted by length and cut into ``batch_size`` groups. Each
        batch has one unit of every group, so that all batches have about as many tokens
        and need about as many rows.
        """
        random = np.random.default_rng((seed, epoch))
        order = random.permutation(len(self._sizes_U))
        full = sum(self._classes) * self.batch_size
        order, rest = order[:full], order[full:]
        order = order[np.argsort(-self._sizes_U[order], kind="stable")]
        batches: list[list[np.ndarray]] = []
        for units in np.split(order, np.cumsum(self._classes)[:-1] * self.batch_size):
            strata = units.reshape(self.batch_size, -1)
            batches.append(list(random.permuted(strata, axis=1).T))
        batches.append([rest] if len(rest) else [])
        return [batch for batch in batches if batch]

    def _place(self, units: np.ndarray, length: int, slots: int) -> list[list[int]]:
        """Rows for a part's sequences, numbered unit by unit."""
        return best_fit(self.features.lengths_UC[units].ravel(), length, slots)

    def _choose_shapes(self) -> tuple[Shape, ...]:
        """The cheapest shape for each class, ordered by cost.

        The sample of batches does not depend on the seed of the run, so that all runs of a
        sweep share what they compile.
        """
        epochs = -(-SAMPLE // max(min(self._classes), 1))
        drawn = [self._sorted(0, epoch) for epoch in range(epochs)]
        lengths_UC, shapes = self.features.lengths_UC, set()
        for number in range(len(self._classes)):
            sample = list(itertools.chain(*(batches[number] for batches in drawn)))
            # The first class must hold any unit.
            units = np.concatenate(sample) if number else slice(None)
            shapes.add(self._cheapest(sample[:SAMPLE], int(lengths_UC[units].max())))
        return tuple(sorted(shapes, key=lambda shape: shape.cost))

    def _cheapest(self, sample: list[np.ndarray], longest: int) -> Shape:
        """The cheapest shape that all of ``sample`` fit, at most twice ``longest`` wide."""
        first = round_up(longest, MULTIPLE)
        widest = 2 * first if self.packed else first
        lengths = {min(n, self.limit) for n in range(first, widest + 1, MULTIPLE)}
        parts = [part for units in sample for part in self._split(units)]
        mean = np.mean([self.features.lengths_UC[part].mean() for part in parts])
        most = max(map(len, parts)) * self.features.choices if self.packed else 1
        candidates = []
        for length in sorted(lengths):
            # Twice as many as an average row holds: best fit places short sequences last,
            # many to a row. Each costs the last layer one more position.
            slots = min(most, math.ceil(2 * length / mean))
            needed = max(len(self._place(part, length, slots)) for part in parts)
            rows = round_up(needed, self._multiple) * self.accumulation
            candidates.append(Shape(rows, length, slots))
        return min(candidates, key=lambda shape: shape.cost)

    def _split(self, units: np.ndarray) -> list[np.ndarray]:
        """The units of each part."""
        return [units[part :: self.accumulation] for part in range(self.accumulation)]

    def _arrays(self, units: np.ndarray) -> dict[str, np.ndarray]:
        """The arrays of a step, of all processes."""
        groups = self._split(units)
        longest = self.features.lengths_UC[units].max()
        for shape in self.shapes:
            if shape.length < longest:
                continue
            chosen = shape
            places = [self._place(part, shape.length, shape.slots) for part in groups]
            needed = round_up(max(map(len, places)), self._multiple)
            if needed * self.accumulation <= shape.rows:
                needed = shape.rows // self.accumulation
                break
        # Without a break: more rows than any of SAMPLE batches needed.
        chosen = chosen._replace(rows=needed)
        filled = [
            self._fill(part, chosen, rows)
            for part, rows in zip(groups, places, strict=True)
        ]
        together = {name: np.stack([a[name] for a in filled], 1) for name in filled[0]}
        return {k: v.reshape(-1, *v.shape[2:]) for k, v in together.items()}

    def _fill(
        self, units: np.ndarray, shape: Shape, rows: list[list[int]]
    ) -> dict[str, np.ndarray]:
        """The arrays of a part. rows: the numbers, within the part, of its sequences."""
        features, C = self._weighted, self.features.choices
        sequences = (units[:, None] * C + np.arange(C)).ravel()
        in_rows = [sequences[members] for members in rows]
        arrays = packed_rows(features, in_rows, shape, self.pad_id)
        if C > 1:
            slots = np.zeros(len(sequences), np.int32)
            for r, members in enumerate(rows):
                slots[members] = r * shape.slots + np.arange(len(members))
            U = round_up(-(-self.batch_size // self.accumulation), self._multiple)
            values = {name: own[units] for name, own in features.targets.items()}
            values["slots"] = slots.reshape(-1, C)
            for name, own in values.items():
                full = (U, *own.shape[1:])
                arrays[name] = placed(full, np.s_[: len(units)], own, dtype=own.dtype)
        return arrays


def length_classes(sizes_U: np.ndarray, batch_size: int, most: int) -> list[int]:
    """The number of full batches in each class of lengths, the longest class first.

    A class is cut where this saves the most padding in rows of one unit each, until there
    are ``most`` classes or the next one saves less than WORTH steps an epoch. The classes
    depend on the data alone.
    """
    full = len(sizes_U) // batch_size
    if not full:
        return [0]
    longest = np.sort(sizes_U)[::-1][: full * batch_size : batch_size]  # of each batch
    longest = round_up(longest, MULTIPLE)
    ends, widths = np.full(full, full), np.full(full, longest[0])  # of each one's class
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
    """The arrays of some rows. rows: the numbers of the sequences in each row.

    "input_ids", "token_type_ids", "attention_mask", "segment_ids", "starts", "hidden" and
    targets as EpochBatches has them, but no targets of choices; inputs (R, S).
    """
    arrays, places = lay_out(features.lengths_UC.ravel(), rows, shape)
    used_RL, slots_RS = arrays["attention_mask"] > 0, arrays["starts"]
    values = {
        "input_ids": features.input_ids,
        "token_type_ids": features.token_type_ids,
        **({} if features.hidden is None else {"hidden": features.hidden}),
        **features.inputs,
        **features.targets,
    }
    padding = {"input_ids": pad_id, "token_type_ids": 0, "hidden": 0}
    for name, own in values.items():
        if not isinstance(own, np.ndarray):  # an array for each sequence
            none = own[0][:0]  # a part of a small batch may have no sequence
            flat = np.concatenate([none, *(own[i] for i in places.sequences)])
            full, empty = (*used_RL.shape, *flat.shape[1:]), padding.get(name, IGNORED)
            arrays[name] = placed(full, used_RL, flat, empty, flat.dtype)
        elif features.choices == 1:
            full, where = (*slots_RS.shape, *own.shape[1:]), (places.rows, places.slots)
            arrays[name] = placed(full, where, own[places.sequences], dtype=own.dtype)
    return arrays


def inference_batches(
    features: Features,
    *,
    batch_size: int,
    limit: int,
    pad_id: int,
    multiple: int = 1,
    packed: bool = True,
) -> Iterator[RowBatch]:
    """Every sequence of ``features`` once, none longer than ``limit``, the longest first.

    packed_rows() makes the arrays, without targets. batch_size: rows of LENGTHS[0] tokens;
    of longer rows a batch has fewer, with about as many tokens. A batch of fewer
    rows is padded to a power of two. multiple: the number of rows is a multiple of it.
    packed: whether sequences share rows.
    """
    features = dataclasses.replace(features, targets={})
    lengths = features.lengths_UC.ravel()
    choices = [*(n for n in LENGTHS if n < limit), limit]
    if lengths.sum() <= SHORT <= limit:
        choices = [SHORT]
    left = np.arange(len(lengths))
    for shorter, length in zip([0, *choices][-2::-1], choices[::-1], strict=True):
        slots = max(length // SLOT, 1) if packed else 1
        fitted = best_fit(lengths[left], length, slots)
        # Shorter sequences fill the rows that are needed for longer ones, and no others.
        fitted = [row for row in fitted if lengths[left[row[0]]] > shorter]
        if not fitted:
            continue
        rows = [left[row].tolist() for row in fitted]
        left = np.delete(left, np.concatenate(fitted))
        count = max(batch_size * LENGTHS[0] // length, 1)
        count = round_up(min(count, 1 << (len(rows) - 1).bit_length()), multiple)
        for first in range(0, len(rows), count):
            part = rows[first : first + count]
            yield part, packed_rows(features, part, Shape(count, length, slots), pad_id)
