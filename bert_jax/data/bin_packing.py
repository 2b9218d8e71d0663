"""Sequences into as few rows as they can: bin packing, by two rules."""

import bisect
import itertools
import math
from collections.abc import Sequence

import numpy as np

# Sequences up to which rows are searched for: the time grows with the square of their
# number (0.8 ms for 64), and of more best_fit() leaves a hundredth to gain.
FEW = 64


def round_up(number, multiple: int):
    """The least multiple that is not below ``number``, an int or an array of them."""
    return -(-number // multiple) * multiple


def best_fit(lengths: np.ndarray, length: int, slots: int) -> list[list[int]]:
    """The examples of each row: longest first, each where it leaves the least space."""
    full: list[list[int]] = []
    # Rows with space, by it: ascending (space, number); and their members by number.
    spaces: list[tuple[int, int]] = []
    for example in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[example])
        place = bisect.bisect_left(spaces, (size, 0))
        if place < len(spaces):
            space, number = spaces.pop(place)
        else:
            space, number = length, len(full)
            full.append([])
        full[number].append(example)
        if len(full[number]) < slots:
            bisect.insort(spaces, (space - size, number))
    return full


def fewest_rows(lengths: np.ndarray, length: int, slots: int) -> list[list[int]]:
    """The rows of best_fit(), or of fullest_rows() where those are fewer.

    Of more than FEW sequences always the first.
    """
    rows = best_fit(lengths, length, slots)
    if len(lengths) > FEW or len(rows) == math.ceil(lengths.sum() / length):
        return rows
    return min(rows, fullest_rows(lengths, length, slots), key=len)


def fullest_rows(lengths: np.ndarray, length: int, slots: int) -> list[list[int]]:
    """Row by row: the longest example left, and those that leave least space beside it.

    Minimum bin slack (Gupta and Ho, 1999), with the longest in each row from the start
    (Fleszar and Hindi, 2002); each row's search is exact.
    """
    left = np.argsort(-lengths, kind="stable").tolist()
    rows = []
    while left:
        first, *others = left
        sizes = lengths[others].tolist()
        chosen = _fullest(sizes, length - int(lengths[first]), slots - 1)
        row = [first, *(others[i] for i in chosen)]
        rows.append(row)
        left = [example for example in left if example not in row]
    return rows


def _fullest(sizes: Sequence[int], space: int, most: int) -> list[int]:
    """Which of ``sizes``, ``most`` at most, fill ``space`` best: their numbers."""
    within = (1 << space + 1) - 1
    sums = [1] + [0] * most  # bit s of the c-th: some c of the sizes so far make s
    before = []
    for size in sizes:
        before.append(sums)
        if size <= space:
            grown = [
                fewer << size & within | as_many
                for fewer, as_many in itertools.pairwise(sums)
            ]
            sums = [1, *grown]
        if any(made >> space for made in sums):
            break
    count = max(range(most + 1), key=lambda c: sums[c].bit_length())
    total = sums[count].bit_length() - 1
    chosen = []
    for i in reversed(range(len(before))):
        if not before[i][count] >> total & 1:  # not made without it
            chosen.append(i)
            total -= sizes[i]
            count -= 1
    return chosen
