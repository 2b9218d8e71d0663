"""Scores of SQuAD in percent, as evaluate-v1.1.py and evaluate-v2.0.py compute them."""

import functools
import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_answer(text: str) -> str:
    """The text in lower case, without punctuation, articles and extra spaces."""
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(answer: str, right: Sequence[str]) -> float:
    """1 if the answer is one of the right answers, else 0."""
    return float(normalise_answer(answer) in map(normalise_answer, right))


def f1(answer: str, right: Sequence[str], empty_is_answer: bool = False) -> float:
    """F1 of the words that the answer shares with the best right answer, 0 to 1.

    empty_is_answer: whether two answers without words are equal (SQuAD 2.0).
    """
    return max(_f1(answer, text, empty_is_answer) for text in right)


def _f1(answer: str, right: str, empty_is_answer: bool) -> float:
    words = normalise_answer(answer).split()
    right_words = normalise_answer(right).split()
    if empty_is_answer and not (words and right_words):
        return float(words == right_words)
    shared = (Counter(words) & Counter(right_words)).total()
    if not shared:
        return 0.0
    return 2 * shared / (len(words) + len(right_words))


def scores_v1(answers: Sequence[str], right: list[list[str]]) -> dict[str, float]:
    """Means in percent over all questions: "exact_match" and "f1"."""
    exact = _percent([*map(exact_match, answers, right)])
    return {"exact_match": exact, "f1": _percent([*map(f1, answers, right)])}


def scores_v2(
    answers: Sequence[str],
    best_spans: Sequence[str],
    null_odds: Sequence[float],
    right: Sequence[Sequence[str]],
) -> dict[str, float]:
    """Scores of SQuAD 2.0 in percent, under the names of evaluate-v2.0.py, and our own.

    answers: final answers; "" if the model finds no answer. best_spans: the best answers
    that are not empty. null_odds: odds that a question has no answer. right: the answers of
    the data set; an empty list for a question without an answer.

    "exact" and "f1": scores of the final answers over all questions. "HasAns_exact",
    "HasAns_f1", "NoAns_exact" and "NoAns_f1": over the questions with and without an
    answer in the data set.

    "best_exact", "best_exact_thresh", "best_f1" and "best_f1_thresh": the scores that the
    script reports with ``--na-prob-file null_odds.json``. The script leaves the questions
    with the highest odds empty, and keeps the final answers of all others.

    "tuned_exact", "tuned_exact_threshold", "tuned_f1" and "tuned_f1_threshold" are not
    in the script. A question with odds up to the threshold gets its best span, and all
    other questions are left empty. Scores are the highest that any threshold reaches.
    """
    # The script ignores right answers without words, such as "the". A question that has
    # no other right answer still counts as a question with an answer.
    texts = [[*filter(normalise_answer, row)] or [""] for row in right]
    has_answer = np.array([bool(row) for row in right])
    answered = np.array([bool(answer) for answer in answers])
    odds = np.asarray(null_odds, np.float64)
    order = np.argsort(odds, kind="stable")
    thresholds, group = np.unique(odds, return_inverse=True)
    f1_v2 = functools.partial(f1, empty_is_answer=True)
    scores = {}
    for name, measure in (("exact", exact_match), ("f1", f1_v2)):
        of_answers = np.array([*map(measure, answers, texts)])
        scores[name] = _percent(of_answers)
        for part, chosen in (("HasAns", has_answer), ("NoAns", ~has_answer)):
            if chosen.any():
                scores[f"{part}_{name}"] = _percent(of_answers[chosen])
        gain = np.where(has_answer, of_answers, -1.0 * answered)[order]
        best, threshold = _best((~has_answer).sum(), gain, [0.0, *odds[order]])
        scores[f"best_{name}"] = 100.0 * best / len(answers)
        scores[f"best_{name}_thresh"] = threshold
        of_spans = np.array([*map(measure, best_spans, texts)])
        empty = np.array([measure("", row) for row in texts])
        # Questions with equal odds are answered together or not at all.
        gain = np.bincount(group, of_spans - empty)
        best, threshold = _best(empty.sum(), gain, [thresholds[0] - 1.0, *thresholds])
        scores[f"tuned_{name}"] = 100.0 * best / len(answers)
        scores[f"tuned_{name}_threshold"] = threshold
    return scores


def _best(
    start: float, gain: Sequence[float], thresholds: Sequence[float]
) -> tuple[float, float]:
    """The highest score, and the first threshold that reaches it.

    start: the score of the first threshold. gain: the change at each further threshold.
    """
    reached = np.cumsum([start, *gain])
    best = int(reached.argmax())
    return float(reached[best]), float(thresholds[best])


def _percent(values: Sequence[float]) -> float:
    return 100.0 * float(np.mean(values))
