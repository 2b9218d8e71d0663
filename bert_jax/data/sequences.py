"""One text or two texts, cut to a length or into windows.

A window is a (start, stop) of words or tokens. ``Tokenizer.build`` adds the special tokens.
"""

from collections.abc import Sequence

import numpy as np

Window = tuple[int, int]


def fit(
    texts: Sequence[np.ndarray], room: int, kind: str = "head", head: int = 0
) -> list[np.ndarray]:
    """One text or two texts, cut to ``room`` tokens together.

    In a pair the longer text loses tokens first; see pair_lengths. kind, head: see cut. In
    a pair each text gets the share of ``head`` that it gets of ``room``, at least a token.
    """
    lengths = [len(text) for text in texts]
    if sum(lengths) <= room:
        return list(texts)
    kept = [room]
    if len(texts) == 2:
        kept = [int(length) for length in pair_lengths(*lengths, room)]
    parts = []
    for text, length in zip(texts, kept, strict=True):
        own_head = max(head * length // max(room, 1), 1)
        parts.append(cut(text, length, kind, own_head))
    return parts


def pair_lengths(
    first: np.ndarray, second: np.ndarray, room: int
) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of A and B if the longer text loses one token at a time until both fit.

    If both texts have the same length, B loses a token (truncate_seq_pair of the original).
    first, second: lengths, arrays or integers.
    """
    excess = np.maximum(first + second - room, 0)
    # First the longer text is cut to the length of the other text, then both in turns.
    alone = np.minimum(np.abs(first - second), excess)
    first_cut = np.where(first > second, alone, 0) + (excess - alone) // 2
    return first - first_cut, second - (excess - first_cut)


def cut(ids: np.ndarray, length: int, kind: str, head: int) -> np.ndarray:
    """``length`` tokens of a text.

    kind: "head" for the first tokens, "tail" for the last tokens, "head_tail" for the first
    ``head`` tokens and the others from the end (Sun et al. 2019, How to Fine-Tune BERT for
    Text Classification, section 5.3.1).
    """
    if len(ids) <= length:
        return ids
    start = {"head": length, "tail": 0, "head_tail": min(head, length)}[kind]
    return np.concatenate([ids[:start], ids[len(ids) - (length - start) :]])


def windows(
    offsets: np.ndarray, words: Window, capacity: int, stride: int
) -> list[Window]:
    """Windows that cover ``words``, with a window every ``stride`` tokens.

    offsets: int (all words + 1,). Word i has the tokens offsets[i] to offsets[i + 1], at
    least one and at most ``capacity``. capacity: maximum number of tokens of a window.
    stride: at least 1. Each window starts min(stride, capacity) tokens after the one before
    it, rounded down to whole words, but at least one word.
    """
    start, end = words
    parts = []
    while True:
        stop = min(end, last_stop(offsets, start, capacity))
        parts.append((start, stop))
        if stop == end:
            return parts
        ahead = offsets[start] + min(stride, capacity)
        start = max(int(np.searchsorted(offsets, ahead, "right")) - 1, start + 1)


def token_windows(tokens: int, capacity: int, stride: int) -> list[Window]:
    """The :func:`windows` over ``tokens`` tokens."""
    return windows(np.arange(tokens + 1), (0, tokens), capacity, stride)


def owners(offsets: np.ndarray, words: Window, windows: list[Window]) -> np.ndarray:
    """The window with the most context around each word: int (words,), from 0.

    A word has a context on each side, counted in tokens. The score of a window is its
    shorter context plus 0.01 for each of its tokens. If several windows have the highest
    score, the word belongs to the first one (run_squad.py, _check_is_max_context).
    """
    first, last = words
    best = np.full(last - first, -1.0)
    owner = np.full(last - first, -1)
    for i, (start, stop) in enumerate(windows):
        inside = np.arange(max(start, first), min(stop, last))
        left = offsets[inside] - offsets[start]
        right = offsets[stop] - offsets[inside + 1]
        context = np.minimum(left, right) + 0.01 * (offsets[stop] - offsets[start])
        better = context > best[inside - first]
        changed = inside[better] - first
        best[changed], owner[changed] = context[better], i
    return owner


def last_stop(offsets: np.ndarray, start: int, capacity: int) -> int:
    """The stop of the longest window that starts at ``start``."""
    return int(np.searchsorted(offsets, offsets[start] + capacity, "right")) - 1
