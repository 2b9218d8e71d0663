"""Sequences of one text or two: [CLS] A [SEP] or [CLS] A [SEP] B [SEP]."""

import numpy as np

from bert_jax.data.tokenizer import Tokenizer


def pair_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """How much is left of two texts when the longer one loses a token until both fit.

    Of two equally long ones the second loses (run_classifier.py, _truncate_seq_pair).
    """
    excess = first + second - room
    if excess <= 0:
        return first, second
    # First the longer one alone, down to the other's length; then in turns.
    alone = min(excess, abs(first - second))
    if first > second:
        first -= alone
    else:
        second -= alone
    excess -= alone
    return first - excess // 2, second - (excess - excess // 2)


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


def windows(ids: np.ndarray, length: int, stride: int) -> list[np.ndarray]:
    """Tokens 0 to length, stride to stride + length, ...; the last reaches the end."""
    count = 1 + max(0, -(-(len(ids) - length) // stride))
    return [ids[i * stride : i * stride + length] for i in range(count)]


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
