"""Sequences of one text or two, cut to a length or into windows.

[CLS] A [SEP] or [CLS] A [SEP] B [SEP]. A window is a (start, stop) of words or tokens.
"""

import numpy as np

from bert_jax.data.tokenizer import Tokenizer

Window = tuple[int, int]


def join(
    tokenizer: Tokenizer, first: np.ndarray, second: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """input_ids and token_type_ids, int32 (L,); segment 1 is B and the [SEP] after it."""
    cls, sep = [tokenizer.cls_id], [tokenizer.sep_id]
    parts = [cls, first, sep] if second is None else [cls, first, sep, second, sep]
    input_ids = np.concatenate(parts).astype(np.int32)
    token_type_ids = np.zeros(len(input_ids), np.int32)
    if second is not None:
        token_type_ids[len(first) + 2 :] = 1
    return input_ids, token_type_ids


def pair_lengths(
    first: np.ndarray, second: np.ndarray, room: int
) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of A and B after the longer text lost one token at a time until both fit.

    If both are equally long, B loses a token (truncate_seq_pair of the original). first,
    second: lengths, arrays or integers.
    """
    excess = np.maximum(first + second - room, 0)
    # First only the longer text, down to the other's length; then both in turns.
    alone = np.minimum(np.abs(first - second), excess)
    first_cut = np.where(first > second, alone, 0) + (excess - alone) // 2
    return first - first_cut, second - (excess - first_cut)


def cut(ids: np.ndarray, length: int, kind: str, head: int) -> np.ndarray:
    """``length`` tokens of a text.

    kind: "head", the first ones; "tail", the last; "head_tail", the first ``head`` and
    the rest from the end (Sun et al. 2019, How to Fine-Tune BERT for Text
    Classification, section 5.3.1).
    """
    if len(ids) <= length:
        return ids
    start = {"head": length, "tail": 0, "head_tail": min(head, length)}[kind]
    return np.concatenate([ids[:start], ids[len(ids) - (length - start) :]])


def windows(
    offsets: np.ndarray, words: Window, capacity: int, stride: int
) -> list[Window]:
    """Windows that cover words: one if they fit, else one every ``stride`` tokens.

    offsets: int (all words + 1,); word i has the tokens offsets[i] to offsets[i + 1], at
    least one and at most ``capacity``, the tokens of a window. stride: at least 1, at
    most ``capacity`` is used, rounded down to whole words, but one word at least.
    """
    start, end = words
    found = []
    while True:
        stop = min(end, last_stop(offsets, start, capacity))
        found.append((start, stop))
        if stop == end:
            return found
        ahead = offsets[start] + min(stride, capacity)
        start = max(int(np.searchsorted(offsets, ahead, "right")) - 1, start + 1)


def token_windows(tokens: int, capacity: int, stride: int) -> list[Window]:
    """The :func:`windows` over so many tokens."""
    return windows(np.arange(tokens + 1), (0, tokens), capacity, stride)


def owners(offsets: np.ndarray, words: Window, windows: list[Window]) -> np.ndarray:
    """The window with the most context around each word: int (words,), from 0.

    It is the one where the shorter of the word's two contexts, in tokens, is longest; of
    equals the one where both together are longest, then the first (run_squad.py,
    _check_is_max_context).
    """
    first, last = words
    best, owner = np.full(last - first, -1), np.full(last - first, -1)
    for i, (start, stop) in enumerate(windows):
        own = np.arange(max(start, first), min(stop, last))
        left = offsets[own] - offsets[start]
        right = offsets[stop] - offsets[own + 1]
        # The sum counts only if the shorter contexts are equal.
        context = np.minimum(left, right) * 2 * offsets[-1] + left + right
        better = context > best[own - first]
        taken = own[better] - first
        best[taken], owner[taken] = context[better], i
    return owner


def last_stop(offsets: np.ndarray, start: int, capacity: int) -> int:
    """The stop of the longest window that starts at ``start``."""
    return int(np.searchsorted(offsets, offsets[start] + capacity, "right")) - 1
