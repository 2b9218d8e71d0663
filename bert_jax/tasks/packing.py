"""Random batches with hardly any padding: several sequences side by side in a row.

Batches are drawn at random; then a few units are exchanged between them, so that all have
about as many pieces and fill as many rows. Shapes are compiled, so they must be few: row
lengths and numbers of rows are chosen on a sample of batches.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from bert_jax.data.row_packing import best_fit, round_up
from bert_jax.tasks.batches import GRANULE, WORTH, choice_lengths
from bert_jax.tasks.task import IGNORED, Features

EVEN = 0.01  # batches differ by no more than this share of their pieces, if they can
SAMPLE = 50  # batches that the shapes are chosen on
SLACK = 0.04  # of their pieces: what rows that are well chosen leave empty
FRAMES = 6  # row lengths that are tried for each kind of batch
# The row length at which attention's part of a step, which grows with the square of it,
# is as long as the rest (all-MiniLM-L6-v2, forward and backward, two CPU cores).
EVEN_LENGTH = 500


@dataclasses.dataclass(frozen=True)
class Shape:
    """rows of ``length`` pieces with at most ``slots`` sequences each."""

    rows: int
    length: int
    slots: int

    @property
    def cost(self) -> float:
        """Time of a step, relative to that of other shapes."""
        return self.rows * self.length * (1 + self.length / EVEN_LENGTH)


@dataclasses.dataclass(frozen=True)
class PackedBatches:
    """The training batches of a run.

    parts: microbatches, packed each for itself. shapes: those that most microbatches fit.
    multiple: what the number of a microbatch's rows is one of.
    """

    features: Features
    batch_size: int
    pad_id: int
    parts: int
    multiple: int
    shapes: tuple[Shape, ...]

    @classmethod
    def of(
        cls,
        features: Features,
        batch_size: int,
        pad_id: int,
        *,
        most: int,
        limit: int,
        parts: int = 1,
        multiple: int = 1,
    ) -> "PackedBatches":
        """With at most ``most`` shapes, of rows no longer than ``limit``."""
        lengths_UC = choice_lengths(features)
        shapes = packed_shapes(lengths_UC, batch_size // parts, most, limit, multiple)
        return cls(features, batch_size, pad_id, parts, multiple, shapes)

    def epoch(self, seed: int, epoch: int) -> list[np.ndarray]:
        """The units of each batch: even_batches(), a pure function of its arguments."""
        random = np.random.default_rng((seed, epoch))
        sizes = choice_lengths(self.features).sum(axis=1)
        parts = even_batches(sizes, self.batch_size // self.parts, random)
        return [
            np.concatenate(parts[first : first + self.parts])
            for first in range(0, len(parts), self.parts)
        ]

    def arrays(self, units: np.ndarray) -> dict[str, np.ndarray]:
        """What the step takes, for R rows of S slots.

        "input_ids", "segment_ids" (R, L); "attention_mask" (R, L), 1, 2, ... for the
        pieces of a row's first, second, ... sequence and 0 for padding; "starts" (R, S),
        where each begins. Of sequences that stand alone, "weights" float32 (R, S), 0 for a
        slot that is empty, and targets (R, S, ...), or (R, L) of pieces. Of choices, for
        U units, "weights" (U,), targets (U, ...), and "slots" int32 (U, choices): which of
        a microbatch's slots, row by row, holds each.
        """
        size = self.batch_size // self.parts
        groups = [units[part * size : (part + 1) * size] for part in range(self.parts)]
        shape, places = self._place(groups)
        filled = [
            self._fill(group, shape, rows)
            for group, rows in zip(groups, places, strict=True)
        ]
        # Part i of the step has the rows i, i + parts, ...
        together = {name: np.stack([a[name] for a in filled], 1) for name in filled[0]}
        return {k: v.reshape(-1, *v.shape[2:]) for k, v in together.items()}

    def _place(self, groups: list[np.ndarray]) -> tuple[Shape, list[list[list[int]]]]:
        """The cheapest shape that all fit, or one of their own; and the rows of each."""
        lengths = [choice_lengths(self.features, units).ravel() for units in groups]
        longest = max(group.max(initial=0) for group in lengths)
        candidates = []
        for length, slots in {(s.length, s.slots) for s in self.shapes}:
            if length < longest:
                continue
            places = [best_fit(group, length, slots) for group in lengths]
            needed = max(map(len, places))
            fitting = [
                s for s in self.shapes if s.length == length and s.rows >= needed
            ]
            shape = min(
                fitting,
                key=lambda s: s.rows,
                default=Shape(round_up(needed, self.multiple), length, slots),
            )
            candidates.append((not fitting, shape.cost, shape, places))
        return min(candidates, key=lambda c: c[:2])[2:]

    def _fill(
        self, units: np.ndarray, shape: Shape, rows: list[list[int]]
    ) -> dict[str, np.ndarray]:
        """The arrays of a microbatch; ``rows``: of its sequences, by their numbers."""
        features, C = self.features, self.features.choices
        R, S = shape.rows, shape.slots
        sequences = (units[:, None] * C + np.arange(C)).ravel()
        in_rows = [sequences[members] for members in rows]
        arrays = filled_rows(features, in_rows, shape, self.pad_id)
        slots = np.zeros(len(sequences), np.int32)
        for r, members in enumerate(rows):
            slots[members] = r * S + np.arange(len(members))
        if C == 1:
            size, where, shape_of_all = R * S, slots, (R, S)
        else:
            size = round_up(self.batch_size // self.parts, self.multiple)
            where, shape_of_all = np.arange(len(units)), (size,)
            arrays["slots"] = np.zeros((size, C), np.int32)
            arrays["slots"][: len(units)] = slots.reshape(-1, C)
        values = {"weights": np.ones(len(features.row), np.float32)} | features.targets
        for name in values.keys() - arrays.keys():
            array = np.zeros((size, *values[name].shape[1:]), values[name].dtype)
            array[where] = values[name][units]
            arrays[name] = array.reshape(*shape_of_all, *array.shape[1:])
        return arrays


def filled_rows(
    features: Features, rows: Sequence[Sequence[int]], shape: Shape, pad_id: int
) -> dict[str, np.ndarray]:
    """Sequences side by side; ``rows``: those of each row, by their numbers.

    "input_ids", "segment_ids", "attention_mask", "starts", and targets of pieces as
    PackedBatches.arrays() has them.
    """
    R, L, S = shape.rows, shape.length, shape.slots
    pieces = {k: v for k, v in features.targets.items() if isinstance(v, list)}
    arrays = {
        "input_ids": np.full((R, L), pad_id, np.int32),
        "segment_ids": np.zeros((R, L), np.int32),
        "attention_mask": np.zeros((R, L), np.int32),
        "starts": np.zeros((R, S), np.int32),
    }
    arrays |= {name: np.full((R, L), IGNORED, np.int32) for name in pieces}
    for r, row in enumerate(rows):
        end = 0
        for s, sequence in enumerate(row):
            ids = features.input_ids[sequence]
            place = np.s_[r, end : end + len(ids)]
            arrays["input_ids"][place] = ids
            arrays["segment_ids"][place] = features.segment_ids[sequence]
            arrays["attention_mask"][place] = s + 1
            arrays["starts"][r, s] = end
            for name, target in pieces.items():
                arrays[name][place] = target[sequence]
            end += len(ids)
    return arrays


def even_batches(
    lengths_U: np.ndarray, batch_size: int, random: np.random.Generator
) -> list[np.ndarray]:
    """The units in batches at random, all with about as many pieces.

    As long as the longest and the shortest batch differ by more than 1% and it helps,
    they exchange the two units that bring them closest to each other. The last batch may
    be partial and stays as it was drawn.
    """
    order = random.permutation(len(lengths_U))
    full = len(order) // batch_size
    batches = order[: full * batch_size].reshape(full, batch_size)
    sizes = lengths_U[batches]
    totals = sizes.sum(axis=1)
    while full and np.ptp(totals) > EVEN * totals.mean():
        high, low = totals.argmax(), totals.argmin()
        more = sizes[high][:, None] - sizes[low]  # what each exchange would move
        gap = totals[high] - totals[low]
        i, j = np.unravel_index(np.abs(2 * more - gap).argmin(), more.shape)
        if not 0 < more[i, j] < gap:
            break
        for array in (batches, sizes):
            array[high, i], array[low, j] = array[low, j], array[high, i]
        totals[high] -= more[i, j]
        totals[low] += more[i, j]
    rest = order[full * batch_size :]
    return [*batches, rest] if len(rest) else [*batches]


def packed_shapes(
    lengths_UC: np.ndarray, batch_size: int, most: int, limit: int, multiple: int
) -> tuple[Shape, ...]:
    """At most ``most`` shapes, found one by one on a sample of even_batches().

    The first fits every batch of the sample and the longest sequence; there are more while
    each is worth its compilation. The sample does not depend on a run's seed: the runs of
    a sweep share what they compile.
    """
    random = np.random.default_rng(0)
    batches: list[np.ndarray] = []
    while len(batches) < SAMPLE:
        batches += even_batches(lengths_UC.sum(axis=1), batch_size, random)
    sample = [lengths_UC[units].ravel() for units in batches[:SAMPLE]]
    longest = np.array([lengths.max() for lengths in sample])
    candidates, fits = [], []
    for length, slots in _frames(lengths_UC.ravel(), sample, limit, multiple):
        inside = longest <= length
        needed = np.full(SAMPLE, np.inf)
        for i in np.flatnonzero(inside):
            needed[i] = round_up(len(best_fit(sample[i], length, slots)), multiple)
        for rows in np.unique(needed[inside]).astype(int).tolist():
            candidates.append(Shape(rows, length, slots))
            fits.append(needed <= rows)
    costs = np.array([[shape.cost] for shape in candidates])
    costs = np.where(fits, costs, np.inf)  # (candidates, SAMPLE)
    # Frames ascend, and numbers of rows within each: the last candidate fits everything.
    worth = WORTH * batch_size / len(lengths_UC)
    return tuple(candidates[i] for i in _cheapest(costs, most, worth))


def _cheapest(costs: np.ndarray, most: int, worth: float) -> list[int]:
    """Rows of ``costs`` with small minima in its columns: the last, and ``most`` in all.

    A further one must save the share ``worth`` of the minima's sum.
    """

    def total(chosen: list[int]) -> float:
        return costs[chosen].min(axis=0).sum()

    def with_best(chosen: list[int]) -> list[int]:
        now = costs[chosen].min(axis=0)
        return [*chosen, int(np.minimum(costs, now).sum(axis=1).argmin())]

    chosen = [len(costs) - 1]
    while len(chosen) < most:
        more = with_best(chosen)
        # What was best before this one came may have a better in its place now.
        for old in chosen[1:]:
            more = with_best([i for i in more if i != old])
        if total(more) > (1 - worth) * total(chosen):
            break
        chosen = more
    return chosen


def _frames(
    lengths: np.ndarray, sample: list[np.ndarray], limit: int, multiple: int
) -> list[tuple[int, int]]:
    """Row lengths that are worth a try, ascending, the last one for any sequence; slots.

    From a batch's longest sequence to three times as much, those whose rows should cost
    least.
    """
    pieces = max(int(batch.sum()) for batch in sample)

    def expected(length: int) -> float:
        rows = math.ceil((1 + SLACK) * pieces / length)
        return Shape(round_up(rows, multiple), length, 0).cost

    def rounded(length: float) -> int:
        return min(int(round_up(math.ceil(length), GRANULE)), limit)

    chosen = {rounded(lengths.max())}
    for end in np.quantile([batch.max() for batch in sample], [0, 0.25, 0.5, 0.75, 1]):
        tried = {rounded(n) for n in range(int(end), int(3 * end) + 1, GRANULE)}
        chosen.update(sorted(tried, key=expected)[:FRAMES])
    # Twice as many slots as an average row fills. Short sequences come last and many to a
    # row, but each slot costs the last layer a position.
    most = max(map(len, sample))
    return [
        (length, min(most, math.ceil(2 * length / lengths.mean())))
        for length in sorted(chosen)
    ]
