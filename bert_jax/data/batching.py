"""Batches of sequences of many lengths, in few shapes and with little padding.

Several sequences share a row. The compiler runs once for each shape and takes as long as
some tens of steps, so there are few shapes. Which examples a step sees depends on the
data, the seed, the epoch and the settings alone. How they are laid out depends on the
devices too.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from bert_jax.data.packing import (
    HostRows,
    all_rows,
    best_fit,
    round_up,
    take_rows,
)

IGNORED = -1  # a label that neither the loss nor a metric counts

MULTIPLE = 8  # row lengths are multiples of it, in tokens, which accelerators prefer
# A further shape must save this many steps an epoch: compiling it takes as long as that
# many steps for each epoch of a usual run.
WORTH = 8
SAMPLE = (
    128  # batches of each class of lengths, on which the shape of the class is chosen
)
# The row length at which attention, whose time grows with the square of the length, takes
# as long as the rest of a step. Measured: 840 and 940 for all-MiniLM-L6-v2 with heads for
# tokens and sequences on two CPU cores; wider models have more by their operations.
EVEN_LENGTH = 1200

# Row lengths for inference. In a shorter row attention computes less between sequences that
# do not see each other. SHORT is used where one such row holds all sequences.
LENGTHS = (32, 64, 96, 128, 192, 256, 384, 512)
SHORT = 16
SLOT = (
    4  # a row may hold a sequence for every 4 tokens; the shortest sequence has three
)


@dataclasses.dataclass(frozen=True)
class Features:
    """Tokenised sequences of examples; an example may give several (windows, choices).

    input_ids, token_type_ids: a sequence's int32 arrays, [CLS] and [SEP] included, each of
      its own length (L_i,).
    row: int32 (n,), the example that a sequence was made of; ascending.
    targets: what the loss needs, one entry a sequence; empty without labels.
      head "sequence": "label" int32 (n,) of class ids, or float32 (n,) for regression.
      head "token": "labels", a list of int32 (L_i,), IGNORED where nothing counts.
      head "choice": "label" int32 (examples,), the right choice of each example.
      head "span": "start" and "end", int32 (n,), positions within the sequence.
    choices: sequences of one example that compete (head "choice"; then n = examples *
      choices, an example's side by side); 1 otherwise.
    extra: whatever the task needs again to decode the outputs, one entry a sequence.
    truncated: examples of which not all text is seen.
    """

    input_ids: list[np.ndarray]
    token_type_ids: list[np.ndarray]
    row: np.ndarray
    targets: dict[str, Any] = dataclasses.field(default_factory=dict)
    choices: int = 1
    extra: list[Any] = dataclasses.field(default_factory=list)
    truncated: int = 0

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
        """Time of a step, relative to that of other shapes."""
        return self.rows * self.length * (1 + self.length / EVEN_LENGTH)


class EpochBatches:
    """Item t is this process's rows of the batch of step t, from 0, through all epochs.

    features: what is trained on. batch_size: units of a step, see Features.lengths_UC. One
    batch of an epoch may be smaller; it comes anywhere in the epoch. buckets: the most
    classes of lengths; a batch has units of one class, and each class has its own shape.
    limit: positions that the model has; no row is longer. multiple: the number of rows of
    a batch is a multiple of it. accumulation: parts of a step. Part i has the rows i, i +
    accumulation, ..., and all choices of its units. hidden: float32 (L_i, W) of each
    sequence, from a frozen encoder; each sequence then has its own row. rows: which rows
    of a global batch this process's devices hold.

    An item has for R rows of S slots: "input_ids", "token_type_ids", "attention_mask"
    int32 (R, L); "segment_ids" (R, L), 1, 2, ... for the tokens of a row's first, second,
    ... sequence and 0 for padding; "starts" (R, S), where each begins. Of sequences that
    stand alone, "weights" float32 (R, S), 0 for a slot that is empty, and targets (R, S,
    ...), or (R, L) of tokens. Of choices, for U units, "weights" (U,), targets (U, ...),
    and "slots" int32 (U, choices): which slot of its part, row by row, holds each. With
    ``hidden`` "hidden" (R, L, W), and neither "segment_ids" nor "starts".
    """

    def __init__(
        self,
        features: Features,
        *,
        batch_size: int,
        epochs: int,
        seed: int,
        pad_id: int,
        buckets: int,
        limit: int,
        multiple: int = 1,
        accumulation: int = 1,
        hidden: Sequence[np.ndarray] | None = None,
        rows: HostRows = all_rows,
    ):
        self._features, self._pad_id, self._hidden = features, pad_id, hidden
        self._batch_size, self._epochs, self._seed = batch_size, epochs, seed
        self._rows, self._parts = rows, accumulation
        # Of a part's rows; the parts of a step have as many each.
        self._multiple = math.lcm(multiple, accumulation) // accumulation
        self._sizes_U = features.lengths_UC.sum(axis=1)
        self._classes = length_classes(self._sizes_U, batch_size, buckets)
        # Threads ask for batches at the same time, of two epochs at an epoch's end.
        self.order = functools.lru_cache(maxsize=2)(self._order)
        self.shapes = self._choose_shapes(limit)

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch, the last partial batch included."""
        return -(-len(self._sizes_U) // self._batch_size)

    def __len__(self) -> int:
        return self.steps_per_epoch * self._epochs

    def __getitem__(self, step: SupportsIndex) -> dict[str, np.ndarray]:
        epoch, number = divmod(int(step), self.steps_per_epoch)
        if not 0 <= epoch < self._epochs:
            raise IndexError(f"step {step} of {len(self)}")
        arrays = self._arrays(self.order(epoch)[number])
        return {k: take_rows(v, self._rows(len(v))) for k, v in arrays.items()}

    def _sorted(self, seed: int, epoch: int) -> list[np.ndarray]:
        return sorted_batches(
            self._sizes_U, self._classes, self._batch_size, seed, epoch
        )

    def _order(self, epoch: int) -> list[np.ndarray]:
        batches = self._sorted(self._seed, epoch)
        random = np.random.default_rng((self._seed, epoch, 1))
        return [batches[i] for i in random.permutation(len(batches))]

    def _split(self, units: np.ndarray) -> list[np.ndarray]:
        """The units of each part."""
        return [units[part :: self._parts] for part in range(self._parts)]

    def _place(self, units: np.ndarray, length: int, slots: int) -> list[list[int]]:
        """Rows for a part's sequences, numbered unit by unit."""
        lengths = self._features.lengths_UC[units].ravel()
        return best_fit(lengths, length, slots)

    def _choose_shapes(self, limit: int) -> tuple[Shape, ...]:
        """The cheapest shape for each class, ordered by cost.

        The sample of batches does not depend on the seed of the run, so that all runs of a
        sweep share what they compile.
        """
        lengths_UC = self._features.lengths_UC
        samples: list[list[np.ndarray]] = [[] for _ in self._classes]
        epoch = 0
        while min(map(len, samples)) < SAMPLE:
            batches = iter(self._sorted(0, epoch))
            for sample, count in zip(samples, self._classes, strict=True):
                sample += itertools.islice(batches, max(count, 1))
            epoch += 1
        # The first class must hold any unit.
        longest = [max(lengths_UC[units].max() for units in s) for s in samples]
        longest[0] = lengths_UC.max()
        shapes = {
            self._cheapest(sample[:SAMPLE], int(length), limit)
            for sample, length in zip(samples, longest, strict=True)
        }
        return tuple(sorted(shapes, key=lambda shape: shape.cost))

    def _cheapest(self, sample: list[np.ndarray], longest: int, limit: int) -> Shape:
        """The cheapest shape that all of ``sample`` fit, at most twice ``longest`` wide."""
        first = round_up(longest, MULTIPLE)
        lengths = {min(n, limit) for n in range(first, 2 * first + 1, MULTIPLE)}
        if self._hidden is not None:
            lengths = {min(first, limit)}
        parts = [part for units in sample for part in self._split(units)]
        mean = np.mean([self._features.lengths_UC[part].mean() for part in parts])
        most = max(map(len, parts)) * self._features.choices
        candidates = []
        for length in sorted(lengths):
            # Twice as many as an average row holds: best fit places short sequences last,
            # many to a row. Each costs the last layer one more position.
            slots = min(most, math.ceil(2 * length / mean))
            if self._hidden is not None:
                slots = 1
            needed = max(len(self._place(part, length, slots)) for part in parts)
            rows = round_up(needed, self._multiple) * self._parts
            candidates.append(Shape(rows, length, slots))
        return min(candidates, key=lambda shape: shape.cost)

    def _arrays(self, units: np.ndarray) -> dict[str, np.ndarray]:
        """The arrays of a step, of all processes."""
        groups = self._split(units)
        longest = self._features.lengths_UC[units].max()
        for shape in self.shapes:
            if shape.length < longest:
                continue
            places = [self._place(part, shape.length, shape.slots) for part in groups]
            needed = max(map(len, places)) * self._parts
            if needed <= shape.rows:
                break
        else:  # more rows than any of SAMPLE batches needed: a shape of its own
            rows = round_up(needed // self._parts, self._multiple) * self._parts
            shape = shape._replace(rows=rows)
        shape = shape._replace(rows=shape.rows // self._parts)
        filled = [
            self._fill(part, shape, rows)
            for part, rows in zip(groups, places, strict=True)
        ]
        together = {name: np.stack([a[name] for a in filled], 1) for name in filled[0]}
        return {k: v.reshape(-1, *v.shape[2:]) for k, v in together.items()}

    def _fill(
        self, units: np.ndarray, shape: Shape, rows: list[list[int]]
    ) -> dict[str, np.ndarray]:
        """The arrays of a part. rows: the numbers, within the part, of its sequences."""
        features, C = self._features, self._features.choices
        R, S = shape.rows, shape.slots
        sequences = (units[:, None] * C + np.arange(C)).ravel()
        in_rows = [sequences[members] for members in rows]
        arrays = packed_rows(features, in_rows, shape, self._pad_id, self._hidden)
        if self._hidden is not None:
            del arrays["segment_ids"], arrays["starts"]
        slots = np.zeros(len(sequences), np.int32)
        for r, members in enumerate(rows):
            slots[members] = r * S + np.arange(len(members))
        if C == 1:
            size, where, shape_of_all = R * S, slots, (R, S)
        else:
            most = -(-self._batch_size // self._parts)
            size = round_up(most, self._multiple)
            where, shape_of_all = np.arange(len(units)), (size,)
            arrays["slots"] = np.zeros((size, C), np.int32)
            arrays["slots"][: len(units)] = slots.reshape(-1, C)
        values = {"weights": np.ones(len(features.row), np.float32)} | features.targets
        for name in values.keys() - arrays.keys():
            array = np.zeros((size, *values[name].shape[1:]), values[name].dtype)
            array[where] = values[name][units]
            arrays[name] = array.reshape(*shape_of_all, *array.shape[1:])
        return arrays


def length_classes(sizes_U: np.ndarray, batch_size: int, most: int) -> tuple[int, ...]:
    """The number of full batches in each class of lengths, the longest class first.

    Dynamic programming finds the classes with the least padding in rows of one unit each.
    There are at most ``most`` classes, and each further one saves WORTH steps an epoch.
    The classes depend on the data alone.
    """
    full = len(sizes_U) // batch_size
    longest = np.sort(sizes_U)[::-1][: full * batch_size : batch_size]
    rounded = round_up(longest, MULTIPLE)
    sizes, counts = np.unique(rounded, return_counts=True)
    if not full:
        return (0,)
    # cost[j]: of covering the sizes before j; with one more class in each round.
    total = np.concatenate([[0], np.cumsum(counts)])
    cost = np.where(np.arange(len(sizes) + 1) == 0, 0, np.inf)
    choices: list[np.ndarray] = []
    for _ in range(min(most, len(sizes))):
        # The last class, up to sizes[j-1], covers the sizes from i on.
        candidates = cost[:, None] + np.concatenate([[0], sizes]) * (
            total[None, :] - total[:, None]
        )
        candidates[np.tril_indices(len(cost))] = np.inf
        candidates[0, 0] = 0
        saved = cost[-1] - candidates[:, -1].min()
        if choices and saved < WORTH * cost[-1] / full:
            break
        choices.append(candidates.argmin(axis=0))
        cost = candidates.min(axis=0)
    end, ends = len(sizes), []
    for choice in reversed(choices):
        ends.append(end)
        end = choice[end]
    return tuple(np.diff(total[[end, *ends[::-1]]])[::-1].tolist())


def sorted_batches(
    sizes_U: np.ndarray,
    classes: Sequence[int],
    batch_size: int,
    seed: int,
    epoch: int,
) -> list[np.ndarray]:
    """The units of an epoch's batches, class by class, then those of the partial batch.

    The units of a class are sorted by length and cut into ``batch_size`` groups. Each
    batch has one unit of every group, so that all batches have about as many tokens and
    need about as many rows.
    """
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(len(sizes_U))
    full = sum(classes) * batch_size
    order, rest = order[:full], order[full:]
    order = order[np.argsort(-sizes_U[order], kind="stable")]
    batches: list[np.ndarray] = []
    for units in np.split(order, np.cumsum(classes)[:-1] * batch_size):
        strata = units.reshape(batch_size, -1)
        batches += list(random.permuted(strata, axis=1).T)
    return [*batches, rest] if len(rest) else batches


def packed_rows(
    features: Features,
    rows: Sequence[Sequence[int]],
    shape: Shape,
    pad_id: int,
    hidden: Sequence[np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """The arrays of packed rows. rows: the numbers of the sequences in each row.

    "input_ids", "token_type_ids", "attention_mask", "segment_ids", "starts", "hidden" and
    targets of tokens as EpochBatches has them.
    """
    R, L, S = shape
    tokens = {k: v for k, v in features.targets.items() if isinstance(v, list)}
    arrays = {
        "input_ids": np.full((R, L), pad_id, np.int32),
        "token_type_ids": np.zeros((R, L), np.int32),
        "attention_mask": np.zeros((R, L), np.int32),
        "segment_ids": np.zeros((R, L), np.int32),
        "starts": np.zeros((R, S), np.int32),
    }
    if hidden is not None:
        arrays["hidden"] = np.zeros((R, L, hidden[0].shape[1]), np.float32)
    arrays |= {name: np.full((R, L), IGNORED, np.int32) for name in tokens}
    for r, row in enumerate(rows):
        end = 0
        for s, sequence in enumerate(row):
            ids = features.input_ids[sequence]
            place = np.s_[r, end : end + len(ids)]
            arrays["input_ids"][place] = ids
            arrays["token_type_ids"][place] = features.token_type_ids[sequence]
            arrays["attention_mask"][place] = 1
            arrays["segment_ids"][place] = s + 1
            arrays["starts"][r, s] = end
            if hidden is not None:
                arrays["hidden"][place] = hidden[sequence]
            for name, target in tokens.items():
                arrays[name][place] = target[sequence]
            end += len(ids)
    return arrays


class RowBatch(NamedTuple):
    """R rows of L tokens. rows: the numbers of the sequences in each, in order.

    arrays: "input_ids", ... as packed_rows() makes them, without targets.
    """

    rows: list[list[int]]
    arrays: dict[str, np.ndarray]


def inference_batches(
    features: Features,
    *,
    batch_size: int,
    limit: int,
    pad_id: int,
    multiple: int = 1,
    hidden: Sequence[np.ndarray] | None = None,
    packed: bool = True,
    per_sequence: Mapping[str, np.ndarray] | None = None,
) -> Iterator[RowBatch]:
    """Every sequence of ``features`` once, none longer than ``limit``, the longest first.

    batch_size: rows of LENGTHS[0] tokens; of longer rows a batch has fewer, with about as
    many tokens. A batch of fewer rows is padded to a power of two. multiple: the number of
    rows is a multiple of it. packed: whether sequences share rows; if not, each has its own
    and there are no "segment_ids" and "starts". per_sequence: further arrays (n,) with a
    value for each sequence, which a batch has as (R, S).
    """
    inputs = dataclasses.replace(features, targets={})
    lengths = features.lengths_UC.ravel()
    for length, rows in rows_by_length(lengths, limit, packed):
        count = max(batch_size * LENGTHS[0] // length, 1)
        count = round_up(min(count, 1 << (len(rows) - 1).bit_length()), multiple)
        for first in range(0, len(rows), count):
            part = rows[first : first + count]
            shape = Shape(count, length, _slots(length, packed))
            arrays = packed_rows(inputs, part, shape, pad_id, hidden)
            if not packed:
                del arrays["segment_ids"], arrays["starts"]
            for name, values in (per_sequence or {}).items():
                arrays[name] = np.zeros((count, shape.slots), values.dtype)
                for r, row in enumerate(part):
                    arrays[name][r, : len(row)] = values[row]
            yield RowBatch(part, arrays)


def rows_by_length(
    lengths: np.ndarray, limit: int, packed: bool = True
) -> Iterator[tuple[int, list[list[int]]]]:
    """Row lengths, the longest first, and the sequences of each row."""
    choices = [*(n for n in LENGTHS if n < limit), limit]
    if lengths.sum() <= SHORT <= limit:
        choices = [SHORT]
    left = np.arange(len(lengths))
    for shorter, length in zip([0, *choices][-2::-1], choices[::-1], strict=True):
        rows = best_fit(lengths[left], length, _slots(length, packed))
        # Shorter sequences fill the rows that are needed for longer ones, and no others.
        rows = [row for row in rows if lengths[left[row[0]]] > shorter]
        if rows:
            yield length, [left[row].tolist() for row in rows]
            left = np.delete(left, np.concatenate(rows))


def _slots(length: int, packed: bool) -> int:
    return max(length // SLOT, 1) if packed else 1
