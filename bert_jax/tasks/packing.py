"""Random batches with hardly any padding: several sequences side by side in a row.

Batches are drawn at random; then a few units are exchanged between them, so that all have
about as many pieces and fill as many rows. Shapes are compiled, so they must be few: row
lengths and numbers of rows are chosen on a sample of batches.
"""

import dataclasses
import math

import numpy as np

from bert_jax.data.row_packing import round_up
from bert_jax.tasks.batches import GRANULE, choice_lengths, unit_lengths
from bert_jax.tasks.task import IGNORED, Features

EVEN = 0.01  # batches differ by no more than this share of their pieces, if they can
SAMPLE = 50  # batches that the shapes are chosen on
SLACK = 0.04  # of their pieces: what rows that are well chosen leave empty
FRAMES = 6  # row lengths that are tried for each kind of batch
WORTHWHILE = 0.98  # a further shape must bring the cost below this share of it
# The row length at which attention's part of a step, which grows with the square of it,
# is as long as the rest (all-MiniLM-L6-v2, forward and backward, two CPU cores).
EVEN_LENGTH = 500


@dataclasses.dataclass(frozen=True)
class Shape:
    """rows of ``length`` pieces with at most ``slots`` units each."""

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

    shapes: those that most batches fit. multiple: what the number of rows is one of.
    """

    features: Features
    batch_size: int
    pad_id: int
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
        multiple: int = 1,
    ) -> "PackedBatches":
        """With at most ``most`` shapes, of rows no longer than ``limit``."""
        lengths_UC = choice_lengths(features)
        shapes = packed_shapes(lengths_UC, batch_size, most, limit, multiple)
        return cls(features, batch_size, pad_id, multiple, shapes)

    def epoch(self, seed: int, epoch: int) -> list[np.ndarray]:
        """The units of each batch: even_batches(), a pure function of its arguments."""
        random = np.random.default_rng((seed, epoch))
        return even_batches(unit_lengths(self.features), self.batch_size, random)

    def arrays(self, units: np.ndarray) -> dict[str, np.ndarray]:
        """What the step takes, for R rows of S slots.

        "input_ids", "segment_ids" (R, L) or (R, choices, L); "attention_mask" of the same
        shape, 1, 2, ... for the pieces of a row's first, second, ... sequence and 0 for
        padding; "starts" (R, S) or (R, choices, S), where each begins; "weights" float32
        (R, S), 0 for a slot that is empty; targets (R, S, ...), or (R, L) of pieces.
        """
        lengths_UC = choice_lengths(self.features, units)
        shape, rows = self._place(lengths_UC)
        return _fill(self.features, units, shape, rows, self.pad_id)

    def _place(self, lengths_UC: np.ndarray) -> tuple[Shape, list[list[int]]]:
        """The cheapest shape that the units fit, or one of their own; and their rows."""
        longest = lengths_UC.max()
        candidates = []
        for length, slots in {(s.length, s.slots) for s in self.shapes}:
            if length < longest:
                continue
            rows = first_fit(lengths_UC, length, slots)
            fitting = [
                s for s in self.shapes if s.length == length and s.rows >= len(rows)
            ]
            shape = min(
                fitting,
                key=lambda s: s.rows,
                default=Shape(round_up(len(rows), self.multiple), length, slots),
            )
            candidates.append((not fitting, shape.cost, shape, rows))
        return min(candidates, key=lambda c: c[:2])[2:]


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


def first_fit(lengths_UC: np.ndarray, length: int, slots: int) -> list[list[int]]:
    """The units of each row: longest first, each in the first row where it fits.

    A unit's choices lie one below the other, each in a row of ``length`` of its own.
    """
    rows: list[list[int]] = []
    used: list[list[int]] = []
    for unit in np.argsort(-lengths_UC.max(axis=1), kind="stable").tolist():
        sizes = lengths_UC[unit].tolist()
        for units, filled in zip(rows, used, strict=True):
            if len(units) < slots and all(
                a + b <= length for a, b in zip(filled, sizes, strict=True)
            ):
                break
        else:
            units, filled = [], [0] * len(sizes)
            rows.append(units)
            used.append(filled)
        units.append(unit)
        filled[:] = [a + b for a, b in zip(filled, sizes, strict=True)]
    return rows


def packed_shapes(
    lengths_UC: np.ndarray, batch_size: int, most: int, limit: int, multiple: int
) -> tuple[Shape, ...]:
    """At most ``most`` shapes, found one by one on a sample of even_batches().

    The first fits every batch of the sample and the longest unit; the next is the one
    that saves most, while that is worth its compilation. The sample does not depend on
    a run's seed: the runs of a sweep share what they compile.
    """
    random = np.random.default_rng(0)
    batches = []
    while len(batches) < SAMPLE:
        batches += even_batches(lengths_UC.max(axis=1), batch_size, random)
    sample = [lengths_UC[units] for units in batches[:SAMPLE]]
    frames = _frames(lengths_UC, sample, batch_size, limit, multiple)
    longest = np.array([batch.max() for batch in sample])
    candidates, fits = [], []
    for length, slots in frames:
        inside = longest <= length
        needed = np.full(SAMPLE, np.inf)
        for i in np.flatnonzero(inside):
            needed[i] = round_up(len(first_fit(sample[i], length, slots)), multiple)
        for rows in np.unique(needed[inside]).astype(int).tolist():
            candidates.append(Shape(rows, length, slots))
            fits.append(needed <= rows)
    costs = np.array([[shape.cost] for shape in candidates])
    costs = np.where(fits, costs, np.inf)  # (candidates, SAMPLE)
    # Frames ascend, and numbers of rows within each: the last candidate fits everything.
    chosen = [len(candidates) - 1]
    while len(chosen) < most:
        now = costs[chosen].min(axis=0)
        totals = np.minimum(costs, now).sum(axis=1)
        if totals.min() > WORTHWHILE * now.sum():
            break
        chosen.append(int(totals.argmin()))
    return tuple(candidates[i] for i in chosen)


def _frames(
    lengths_UC: np.ndarray,
    sample: list[np.ndarray],
    batch_size: int,
    limit: int,
    multiple: int,
) -> list[tuple[int, int]]:
    """Row lengths that are worth a try, ascending, the last one for any unit; their slots.

    From a batch's longest sequence to three times as much, those whose rows should cost
    least.
    """
    # Twice as many slots as an average row fills. Short sequences come last and many
    # to a row, but each slot costs the last layer a position.
    mean = lengths_UC.max(axis=1).mean()
    pieces = max(int(batch.sum(axis=0).max()) for batch in sample)

    def expected(length: int) -> float:
        rows = math.ceil((1 + SLACK) * pieces / length)
        return Shape(round_up(rows, multiple), length, 0).cost

    def rounded(length: float) -> int:
        return min(int(round_up(math.ceil(length), GRANULE)), limit)

    top = rounded(lengths_UC.max())
    lengths = {top}
    for end in np.quantile([batch.max() for batch in sample], [0, 0.25, 0.5, 0.75, 1]):
        tried = {rounded(n) for n in range(int(end), int(3 * end) + 1, GRANULE)}
        lengths.update(sorted(tried, key=expected)[:FRAMES])
    return [
        (length, min(batch_size, math.ceil(2 * length / mean)))
        for length in sorted(lengths)
    ]


def _fill(
    features: Features,
    units: np.ndarray,
    shape: Shape,
    rows: list[list[int]],
    pad_id: int,
) -> dict[str, np.ndarray]:
    """The arrays of a batch whose row r holds ``units[i]`` for the i in ``rows[r]``."""
    C, R, L, S = features.choices, shape.rows, shape.length, shape.slots
    arrays = {
        "input_ids": np.full((R, C, L), pad_id, np.int32),
        "segment_ids": np.zeros((R, C, L), np.int32),
        "attention_mask": np.zeros((R, C, L), np.int32),
        "starts": np.zeros((R, C, S), np.int32),
        "weights": np.zeros((R, S), np.float32),
    }
    for name, target in features.targets.items():
        if isinstance(target, list):
            arrays[name] = np.full((R, L), IGNORED, np.int32)
        else:
            arrays[name] = np.zeros((R, S, *target.shape[1:]), target.dtype)
    for r, members in enumerate(rows):
        ends = [0] * C
        for s, unit in enumerate(units[members]):
            arrays["weights"][r, s] = 1
            for c in range(C):
                ids = features.input_ids[unit * C + c]
                piece = np.s_[r, c, ends[c] : ends[c] + len(ids)]
                arrays["input_ids"][piece] = ids
                arrays["segment_ids"][piece] = features.segment_ids[unit * C + c]
                arrays["attention_mask"][piece] = s + 1
                arrays["starts"][r, c, s] = ends[c]
                ends[c] += len(ids)
            for name, target in features.targets.items():
                if isinstance(target, list):
                    arrays[name][r, ends[0] - len(target[unit]) : ends[0]] = target[
                        unit
                    ]
                else:
                    arrays[name][r, s] = target[unit]
    if C == 1:
        for name in ("input_ids", "segment_ids", "attention_mask", "starts"):
            arrays[name] = arrays[name][:, 0]
    return arrays
