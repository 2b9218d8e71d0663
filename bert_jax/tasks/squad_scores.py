"""Scores of answers in percent, as the official evaluations of SQuAD give them.

evaluate-v1.1.py and evaluate-v2.0.py.
"""

import functools
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_answer(text: str) -> str:
    """Lower case, without punctuation, articles and spaces that say nothing."""
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(answer: str, right: Sequence[str]) -> float:
    """1 where the answer is one of the right ones, else 0."""
    return float(normalise_answer(answer) in map(normalise_answer, right))


def f1(answer: str, right: Sequence[str], empty_is_answer: bool = False) -> float:
    """F1 of the words that an answer shares with a right one, the best of them: 0 to 1.

    empty_is_answer: where one of two has no words, 1 if both have none (SQuAD 2.0);
    otherwise 0 (SQuAD 1.1).
    """
    return max(_f1(answer, one, empty_is_answer) for one in right)


def _f1(answer: str, right: str, empty_is_answer: bool) -> float:
    words, right_words = (normalise_answer(text).split() for text in (answer, right))
    if empty_is_answer and not (words and right_words):
        return float(words == right_words)
    shared = (Counter(words) & Counter(right_words)).total()
    return 2 * shared / (len(words) + len(right_words)) if shared else 0.0


def scores_v1(answers: Sequence[str], right: Sequence[Sequence[str]]) -> dict:
    """Means in percent over all questions: "exact_match" and "f1"."""
    measures = {"exact_match": exact_match, "f1": f1}
    return {name: _percent(map(x, answers, right)) for name, x in measures.items()}


def scores_v2(
    answers: Sequence[str],
    best_spans: Sequence[str],
    null_odds: Sequence[float],
    right: Sequence[Sequence[str]],
) -> dict[str, float]:
    """Means in percent, of all questions and of those with and without an answer.

    answers: "" where the model says that there is none. best_spans, null_odds: the best
    answer that is not empty, and the odds against it. right: no text where there is no
    answer.

    "best_exact" and "best_f1" are the highest scores that any threshold on the odds
    gives: a question is answered with its best span where its odds are at most
    "best_exact_threshold" or "best_f1_threshold".
    """
    # A right answer without words, such as "the", is none.
    right = [[text for text in texts if normalise_answer(text)] for texts in right]
    texts = [one or [""] for one in right]
    has_answer = np.array([bool(one) for one in right])
    f1_v2 = functools.partial(f1, empty_is_answer=True)
    scores = {}
    for name, measure in (("exact", exact_match), ("f1", f1_v2)):
        of_answers = np.array(list(map(measure, answers, texts)))
        total = "exact_match" if name == "exact" else name
        scores[total] = _percent(of_answers)
        for part, chosen in (("HasAns", has_answer), ("NoAns", ~has_answer)):
            if chosen.any():
                scores[f"{part}_{name}"] = _percent(of_answers[chosen])
        of_spans = np.array(list(map(measure, best_spans, texts)))
        gain = np.where(has_answer, of_spans, of_spans - 1.0)
        best, threshold = _best_threshold(gain, np.asarray(null_odds, np.float64))
        scores[f"best_{name}"] = 100.0 * (best + (~has_answer).sum()) / len(answers)
        scores[f"best_{name}_threshold"] = threshold
    return scores


def _best_threshold(gain: np.ndarray, odds: np.ndarray) -> tuple[float, float]:
    """The most that can be gained, and the threshold that gains it.

    gain: float (n,), what answering a question adds to the score of leaving it empty.
    """
    order = np.argsort(odds, kind="stable")
    gained = np.cumsum(gain[order])
    # Questions of the same odds are answered together or not at all.
    whole = np.append(np.diff(odds[order]) > 0, True)
    gained[~whole] = -np.inf
    best = int(gained.argmax())
    if gained[best] <= 0:
        return 0.0, float(odds.min()) - 1.0  # answer none
    return float(gained[best]), float(odds[order][best])


def _percent(values: Iterable[float]) -> float:
    return 100.0 * float(np.mean(list(values)))
