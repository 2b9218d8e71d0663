"""Questions and their contexts as windows of tokens, after the original run_squad.py."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.tasks.offsets import Tokens, encode_with_offsets
from bert_jax.tasks.sequences import join
from bert_jax.tasks.squad_format import Question
from bert_jax.tasks.task import Features


@dataclasses.dataclass(frozen=True)
class Window:
    """What decoding needs of one window of a context.

    offset: where the context starts within the sequence. starts, ends: int32 (T,), the
    characters [start, end) of the window's context tokens. best: bool (T,), whether no
    other window of the question has more context around the token.
    """

    offset: int
    starts: np.ndarray
    ends: np.ndarray
    best: np.ndarray


def window_ranges(tokens: int, room: int, stride: int) -> np.ndarray:
    """First and stop of the windows over a context: int (n, 2).

    room: tokens that a window holds. Windows begin ``stride`` apart, or ``room`` where
    that is less, so that nothing is left out; the last one ends with the context.
    """
    step = min(stride, room)
    count = 1 + max(0, -(-(tokens - room) // step))
    first = np.arange(count) * step
    return np.stack([first, np.minimum(first + room, tokens)], axis=1)


def best_windows(ranges: np.ndarray) -> np.ndarray:
    """The window, for each token of a context, that has most context around it: int (T,).

    That is the smaller of the tokens to its left and right; the longer window where they
    are equal, then the first.
    """
    first, stop = ranges[:, :1], ranges[:, 1:]
    place = np.arange(ranges[-1, 1])[None]
    context = np.minimum(place - first, stop - 1 - place)
    inside = (place >= first) & (place < stop)
    return np.where(inside, context + 0.01 * (stop - first), -1.0).argmax(axis=0)


def answer_tokens(tokens: Tokens, text: str, start: int) -> tuple[int, int] | None:
    """First and last token of the answer at a character; None where it has no tokens.

    The tokens that hold a character of the answer: what the original looks for by
    comparing tokens of the answer with those around its place.
    """
    first = int(np.searchsorted(tokens.ends, start, side="right"))
    last = int(np.searchsorted(tokens.starts, start + len(text), side="left")) - 1
    return (first, last) if first <= last else None


def build_windows(
    rows: Sequence[Question],
    tokenizer: Tokenizer,
    *,
    max_length: int,
    stride: int,
    max_question_length: int,
    training: bool,
) -> Features:
    """The windows of all questions, in order: [CLS] question [SEP] context [SEP].

    Targets, where every row is labelled: the first answer's first and last token, or
    [CLS] (0) for both where the window does not hold all of it. extra: a Window each,
    unless ``training``. truncated: questions of more than ``max_question_length`` tokens.
    """
    contexts = list(dict.fromkeys(row.context for row in rows))
    encoded = encode_with_offsets(contexts, tokenizer)
    encoded = dict(zip(contexts, encoded, strict=True))
    questions = tokenizer.encode_batch([row.question for row in rows])
    features = Features(
        input_ids=[],
        token_type_ids=[],
        row=np.zeros(0, np.int32),
        truncated=sum(len(ids) > max_question_length for ids in questions),
    )
    labelled = all(row.labelled for row in rows)
    row_of, labels = [], []
    for i, (row, ids) in enumerate(zip(rows, questions, strict=True)):
        question = ids[:max_question_length]
        tokens = encoded[row.context]
        offset = len(question) + 2
        room = max_length - offset - 1
        ranges = window_ranges(len(tokens.ids), room, stride)
        answer = None
        if labelled and row.answers:
            answer = answer_tokens(tokens, *row.answers[0])
        best = None if training else best_windows(ranges)
        for k, (first, stop) in enumerate(ranges.tolist()):
            sequence, segments = join(tokenizer, question, tokens.ids[first:stop])
            features.input_ids.append(sequence)
            features.token_type_ids.append(segments)
            row_of.append(i)
            inside = answer is not None and first <= answer[0] and answer[1] < stop
            shift = offset - first
            labels.append((answer[0] + shift, answer[1] + shift) if inside else (0, 0))
            if best is not None:
                features.extra.append(
                    Window(
                        offset=offset,
                        starts=tokens.starts[first:stop],
                        ends=tokens.ends[first:stop],
                        best=best[first:stop] == k,
                    )
                )
    targets = {}
    if labelled:
        start, end = np.array(labels, np.int32).reshape(-1, 2).T
        targets = {"start": start, "end": end}
    return dataclasses.replace(
        features, row=np.array(row_of, np.int32), targets=targets
    )
