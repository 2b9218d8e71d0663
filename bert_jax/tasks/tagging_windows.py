"""Windows of words that fit a sequence: over long sentences, and into their document.

All functions take ``offsets``: int (words + 1,), ascending; word i has the tokens
offsets[i] to offsets[i + 1], at least one and at most ``capacity``, the tokens of a
sequence. A window is a (start, stop) of words.
"""

import itertools
from collections.abc import Sequence

import numpy as np

Window = tuple[int, int]


def cut(offsets: np.ndarray, words: Window, capacity: int, stride: int) -> list[Window]:
    """Windows that cover words: one if they fit, else one every ``stride`` tokens.

    stride: 1 to capacity tokens, rounded down to whole words, but one word at least.
    """
    start, end = words
    windows = []
    while True:
        stop = min(end, _last_stop(offsets, start, capacity))
        windows.append((start, stop))
        if stop == end:
            return windows
        step = np.searchsorted(offsets, offsets[start] + stride, "right") - 1
        start = max(int(step), start + 1)


def documents(numbers: Sequence[int], sentences: list[Window]) -> list[Window]:
    """The words of the document around each sentence; equal numbers in a row are one."""
    around = []
    for _, group in itertools.groupby(range(len(numbers)), numbers.__getitem__):
        members = list(group)
        window = sentences[members[0]][0], sentences[members[-1]][1]
        around += [window] * len(members)
    return around


def widen(
    offsets: np.ndarray, window: Window, document: Window, capacity: int
) -> Window:
    """A window with as many words of its document around it as fit, half on each side.

    Where the document ends on one side, the other has the rest.
    """
    (start, stop), (low, high) = window, document
    room = capacity - (offsets[stop] - offsets[start])
    after = offsets[high] - offsets[stop]
    before = max(room // 2, room - after)
    start = max(low, int(np.searchsorted(offsets, offsets[start] - before)))
    stop = min(high, _last_stop(offsets, start, capacity))
    # What the end of the document, or a long word there, left free.
    start = max(low, int(np.searchsorted(offsets, offsets[stop] - capacity)))
    return start, stop


def owners(offsets: np.ndarray, words: Window, windows: list[Window]) -> np.ndarray:
    """The window that gives each word its prediction: int (words,), from 0.

    It is the one where the shorter of the word's two contexts, in tokens, is longest; of
    equals the one where both together are longest, then the first.
    """
    first, last = words
    best = np.full((last - first, 2), -1)
    owner = np.full(last - first, -1)
    for i, (start, stop) in enumerate(windows):
        own = np.arange(max(start, first), min(stop, last))
        left = offsets[own] - offsets[start]
        right = offsets[stop] - offsets[own + 1]
        context = np.stack([np.minimum(left, right), left + right], axis=1)
        old = best[own - first]
        better = (context[:, 0] > old[:, 0]) | (
            (context[:, 0] == old[:, 0]) & (context[:, 1] > old[:, 1])
        )
        taken = own[better] - first
        best[taken], owner[taken] = context[better], i
    return owner


def _last_stop(offsets: np.ndarray, start: int, capacity: int) -> int:
    """Where the longest window from ``start`` ends."""
    return int(np.searchsorted(offsets, offsets[start] + capacity, "right")) - 1
