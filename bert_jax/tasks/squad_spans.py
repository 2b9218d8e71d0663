"""From logits to the answers of one question: the n best spans of all its windows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.tasks.squad_format import Question
from bert_jax.tasks.squad_windows import Window

# Spans of one window that compete, for each that is wanted: some have the same text.
_SPARE = 4


def answer_question(
    row: Question,
    windows: Sequence[Window],
    logits: Sequence[np.ndarray],
    *,
    max_answer_length: int,
    n_best: int,
    null_threshold: float | None,
) -> dict[str, Any]:
    """The answer to a question, and those that come next.

    logits: float (L, 2) of each window, start and end. Every span of at most
    ``max_answer_length`` tokens whose first token is in its best window competes, with
    the sum of its two logits. (The original looks at pairs of the ``n_best`` starts and
    ends of each window, of which none may be a span.)
    null_threshold: that no answer exists competes too, with the sum at [CLS] in the
    window where it is smallest; it wins where that sum exceeds the best span's by more
    than this. None where every question has an answer.

    Returns "id"; "answer", the context's characters from "start" to "end", or "" and
    None; its "probability" among "nbest", a list of texts that differ with "text",
    "probability", "start_logit" and "end_logit", best first, the empty one among them
    where it competes; and "null_odds", by how much its sum exceeds the best span's.
    """
    spans = _best_spans(row.context, windows, logits, max_answer_length, n_best)
    entries = spans
    result = {
        "id": row.id,
        "answer": "",
        "probability": 0.0,
        "start": None,
        "end": None,
    }
    answer = spans[0] if spans else None
    if null_threshold is not None:
        at_cls = np.array([window_logits[0] for window_logits in logits], np.float64)
        start_logit, end_logit = at_cls[at_cls.sum(axis=1).argmin()].tolist()
        null = ("", start_logit, end_logit, None, None)
        odds = start_logit + end_logit - (sum(answer[1:3]) if answer else 0.0)
        result["null_odds"] = odds
        if answer is None or odds > null_threshold:
            answer = null
        # It stays in sight, behind the others if need be.
        better = sum(sum(span[1:3]) >= start_logit + end_logit for span in spans)
        better = min(better, n_best)
        entries = [*spans[:better], null, *spans[better : max(n_best - 1, 1)]]
    probabilities = _softmax(np.array([sum(entry[1:3]) for entry in entries]))
    result["nbest"] = [
        {"text": text, "probability": p, "start_logit": start, "end_logit": end}
        for (text, start, end, _, _), p in zip(entries, probabilities, strict=True)
    ]
    if answer is not None:
        result["answer"], _, _, result["start"], result["end"] = answer
        result["probability"] = probabilities[entries.index(answer)]
    return result


def _best_spans(
    context: str,
    windows: Sequence[Window],
    logits: Sequence[np.ndarray],
    longest: int,
    count: int,
) -> list[tuple[str, float, float, int | None, int | None]]:
    """(text, start logit, end logit, first character, stop) of the best spans."""
    found = []
    for k, (window, window_logits) in enumerate(zip(windows, logits, strict=True)):
        found.append((k, *_window_spans(window, window_logits, longest, count)))
    owner = np.concatenate([np.full(len(sums), k) for k, sums, *_ in found])
    sums, first, last = (
        np.concatenate([spans[i] for spans in found]) for i in (1, 2, 3)
    )
    spans: list[tuple[str, float, float, int | None, int | None]] = []
    seen = set()
    for i in np.argsort(-sums, kind="stable").tolist():
        window, window_logits = windows[owner[i]], logits[owner[i]]
        start, stop = int(window.starts[first[i]]), int(window.ends[last[i]])
        text = context[start:stop]
        if text in seen:
            continue
        seen.add(text)
        start_logit = float(window_logits[window.offset + first[i], 0])
        end_logit = float(window_logits[window.offset + last[i], 1])
        spans.append((text, start_logit, end_logit, start, stop))
        if len(spans) == count:
            break
    return spans


def _window_spans(
    window: Window, logits: np.ndarray, longest: int, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums of logits, first and last context token of a window's best spans."""
    length = len(window.starts)
    context = logits[window.offset : window.offset + length].astype(np.float64)
    starts = np.flatnonzero(window.best)
    ends = np.concatenate([context[:, 1], np.full(longest - 1, -np.inf)])
    # Row i, column j: the span from token starts[i] on that has j + 1 tokens.
    places = starts[:, None] + np.arange(longest)[None]
    sums = (context[starts, 0][:, None] + ends[places]).ravel()
    chosen = np.arange(len(sums))
    if len(sums) > _SPARE * count:
        chosen = np.sort(np.argpartition(-sums, _SPARE * count)[: _SPARE * count])
    # Not past the window's end, and not what a diverged model says.
    chosen = chosen[np.isfinite(sums[chosen])]
    first = starts[chosen // longest]
    return sums[chosen], first, first + chosen % longest


def _softmax(sums: np.ndarray) -> list[float]:
    weights = np.exp(sums - sums.max(initial=-np.inf))
    return (weights / weights.sum()).tolist()
