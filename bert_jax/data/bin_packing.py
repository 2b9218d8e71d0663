"""Sequences into few rows: bin packing."""

import bisect

import numpy as np


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
