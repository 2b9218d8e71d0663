"""The shapes of packed batches: row lengths and numbers of rows.

Shapes are compiled, so they must be few; they are chosen on a sample of batches.
"""

import dataclasses
import math

import numpy as np

from bert_jax.data.bin_packing import fewest_rows, round_up
from bert_jax.tasks.batches import GRANULE, WORTH
from bert_jax.tasks.even_batches import even_batches, exchanged

SAMPLE = 50  # batches that the shapes are chosen on
SLACK = 0.01  # of their tokens: what rows that are well chosen leave empty
FRAMES = 8  # row lengths that are tried for each kind of batch
MENDABLE = 1 / 3  # of a sample's batches fit a shape that exchanges may make common
# The row length at which attention's part of a step, which grows with the square of it,
# is as long as the rest: 840 and 940 for all-MiniLM-L6-v2 (forward and backward, a token's
# and a sequence's head, two CPU cores); by the count of operations more for wider models.
EVEN_LENGTH = 1200


@dataclasses.dataclass(frozen=True)
class Shape:
    """rows of ``length`` tokens with at most ``slots`` sequences each."""

    rows: int
    length: int
    slots: int

    @property
    def cost(self) -> float:
        """Time of a step, relative to that of other shapes."""
        return self.rows * self.length * (1 + self.length / EVEN_LENGTH)

    def fits(self, lengths: np.ndarray) -> bool:
        """Whether sequences of these lengths find room."""
        if lengths.max(initial=0) > self.length:
            return False
        if lengths.sum() > self.rows * self.length:
            return False
        return len(fewest_rows(lengths, self.length, self.slots)) <= self.rows


def packed_shapes(
    lengths_UC: np.ndarray, batch_size: int, most: int, limit: int, multiple: int
) -> tuple[Shape, ...]:
    """At most ``most`` shapes, found one by one on a sample of even_batches().

    One fits every batch of the sample and the longest sequence; there are more while each
    is worth its compilation. The commonest comes first: the sample is exchanged() for the
    shape that is then the cheapest. The sample does not depend on a run's seed: the runs
    of a sweep share what they compile.
    """
    random = np.random.default_rng(0)
    sample: list[np.ndarray] = []
    while len(sample) < SAMPLE:
        sample += even_batches(lengths_UC.sum(axis=1), batch_size, random)
    del sample[SAMPLE:]

    def lengths_of(batches: list[np.ndarray]) -> list[np.ndarray]:
        return [lengths_UC[units].ravel() for units in batches]

    frames = _frames(lengths_UC.ravel(), lengths_of(sample), limit, multiple)
    candidates, costs = _candidates(lengths_of(sample), frames, multiple)
    sample = _exchanged_for_the_best(sample, lengths_UC, candidates, costs, random)
    candidates, costs = _candidates(lengths_of(sample), frames, multiple)
    worth = WORTH * batch_size / len(lengths_UC)
    # Frames ascend, and numbers of rows within each: the last candidate fits everything.
    chosen = _cheapest(costs, most, worth)
    held = np.bincount(costs[chosen].argmin(axis=0), minlength=len(chosen))
    return tuple(candidates[chosen[i]] for i in np.argsort(-held, kind="stable"))


def _candidates(
    sample: list[np.ndarray], frames: list[tuple[int, int]], multiple: int
) -> tuple[list[Shape], np.ndarray]:
    """Shapes that some batches fit; the cost of each for each, infinite if it does not."""
    longest = np.array([lengths.max() for lengths in sample])
    candidates, costs = [], []
    for length, slots in frames:
        inside = longest <= length
        needed = np.full(len(sample), np.inf)
        for i in np.flatnonzero(inside):
            rows = len(fewest_rows(sample[i], length, slots))
            needed[i] = round_up(rows, multiple)
        for rows in np.unique(needed[inside]).astype(int).tolist():
            shape = Shape(rows, length, slots)
            candidates.append(shape)
            costs.append(np.where(needed <= rows, shape.cost, np.inf))
    return candidates, np.array(costs)


def _exchanged_for_the_best(
    sample: list[np.ndarray],
    lengths_UC: np.ndarray,
    candidates: list[Shape],
    costs: np.ndarray,
    random: np.random.Generator,
) -> list[np.ndarray]:
    """The sample exchanged() for the shape that makes it the cheapest.

    What does not fit a shape is taken to cost as much as the cheapest that fits all.
    """
    finite = np.isfinite(costs)
    otherwise = best = costs[finite.all(axis=1)].min()
    kept = sample
    for i in np.argsort([shape.cost for shape in candidates], kind="stable"):
        shape = candidates[i]
        if shape.cost >= best:
            break
        if finite[i].mean() < MENDABLE:
            continue
        tried = exchanged(sample, lengths_UC, shape.fits, random)
        share = np.mean([shape.fits(lengths_UC[units].ravel()) for units in tried])
        cost = share * shape.cost + (1 - share) * otherwise
        if cost < best:
            best, kept = cost, tried
    return kept


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
    tokens = max(int(batch.sum()) for batch in sample)

    def expected(length: int) -> float:
        rows = math.ceil((1 + SLACK) * tokens / length)
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
