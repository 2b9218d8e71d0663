"""Scores of SQuAD are equal to the scores of the official scripts."""

import string
from collections import Counter

import numpy as np
import pytest

from bert_jax.tasks.squad_scores import (
    exact_match,
    f1,
    normalise_answer,
    scores_v1,
    scores_v2,
)


def test_answers_are_normalised_like_the_official_scripts():
    texts = [
        "The  Cat's\nhat!",
        "a theatre, an anthem",
        "U.S.-based",
        "the",
        "“The” 5–4",
        # Punctuation goes first, so these words have no article.
        *("10 a.m.", "A-level", "the-end"),
    ]
    normalised = ["cats hat", "theatre anthem", "usbased", "", "“ ” 5–4"]
    normalised += ["10 am", "alevel", "theend"]
    assert [*map(normalise_answer, texts)] == normalised


@pytest.mark.parametrize(
    ("answer", "right", "exact", "expected"),
    [
        ("the Denver Broncos", ["Denver Broncos!"], 1, 1),
        ("Denver", ["Denver Broncos"], 0, 2 / 3),  # precision 1, recall 1/2
        ("a b b c", ["b b d e f"], 0, 2 * (2 / 3) * (2 / 5) / (2 / 3 + 2 / 5)),
        ("x", ["y", "x z", "x"], 1, 1),
        ("", ["x"], 0, 0),
    ],
)
def test_scores_equal_a_computation_by_hand(answer, right, exact, expected):
    assert exact_match(answer, right) == exact
    assert f1(answer, right) == pytest.approx(expected, rel=1e-12)
    assert f1(answer, right, True) == pytest.approx(expected, rel=1e-12)


def test_scores_of_version_1_equal_the_official_script():
    # evaluate-v1.1.py finds no common words; for evaluate-v2.0.py both mean no answer.
    assert exact_match("the", ["a"]) == 1
    assert f1("the", ["a"]) == 0 and f1("the", ["a"], True) == 1
    scores = scores_v1(["x", "x", "q"], [["x"], ["x z"], ["y"]])
    assert scores["exact_match"] == pytest.approx(100 / 3)
    assert scores["f1"] == pytest.approx(100 * (1 + 2 / 3) / 3)


def evaluate_v2(preds, odds, gold):
    """The scores of evaluate-v2.0.py, written from its definitions."""

    def words(text):
        text = "".join(c for c in text.lower() if c not in string.punctuation)
        return [word for word in text.split() if word not in ("a", "an", "the")]

    def f1_of(right, answer):
        right, answer = words(right), words(answer)
        if not right or not answer:
            return int(right == answer)
        same = sum((Counter(right) & Counter(answer)).values())
        if not same:
            return 0
        precision, recall = same / len(answer), same / len(right)
        return 2 * precision * recall / (precision + recall)

    def exact_of(right, answer):
        return int(words(right) == words(answer))

    by_question, n = {}, len(preds)
    for name, measure in (("exact", exact_of), ("f1", f1_of)):
        raw = {}
        for q, answer in preds.items():
            rights = [text for text in gold[q] if words(text)] or [""]
            raw[q] = max(measure(right, answer) for right in rights)
        by_question[name] = 100 * sum(raw.values()) / n
        for part, has in (("HasAns", True), ("NoAns", False)):
            of = [raw[q] for q in preds if bool(gold[q]) == has]
            if of:
                by_question[f"{part}_{name}"] = 100 * sum(of) / len(of)
        now = best = sum(not texts for texts in gold.values())
        threshold = 0.0
        for q in sorted(odds, key=odds.get):
            now += raw[q] if gold[q] else -1 if preds[q] else 0
            if now > best:
                best, threshold = now, odds[q]
        by_question |= {
            f"best_{name}": 100 * best / n,
            f"best_{name}_thresh": threshold,
        }
    return by_question


def seeds(short, most):
    """All seeds up to ``most``. Seeds after the first ones are marked long."""
    return [
        pytest.param(i, marks=[pytest.mark.long] * (i >= short)) for i in range(most)
    ]


@pytest.mark.parametrize("seed", seeds(10, 30))
def test_scores_v2_equal_another_implementation(seed):
    rng = np.random.default_rng(seed)
    texts = np.array(["x y", "The X!", "x", "the", "an a", "q r", "q, q"])
    n = int(rng.integers(1, 30))
    spans = rng.choice(texts, n).tolist()
    answers = [span if rng.random() < 0.6 else "" for span in spans]
    right = [rng.choice(texts, rng.integers(0, 3)).tolist() for _ in range(n)]
    odds = (rng.integers(-4, 5, n) / 2).tolist()  # many are equal
    expected = evaluate_v2(*(dict(enumerate(x)) for x in (answers, odds, right)))
    scores = scores_v2(answers, spans, odds, right)
    official = {k: v for k, v in scores.items() if not k.startswith("tuned")}
    assert official == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("seed", seeds(3, 5))
def test_the_best_threshold_equals_an_exhaustive_search(seed):
    rng = np.random.default_rng(seed)
    n = 40
    right = [["x y"] if rng.random() < 0.6 else [] for _ in range(n)]
    right[:3] = [["the"]] * 3
    spans = rng.choice(["x y", "x", "q"], n).tolist()
    odds = rng.integers(-4, 5, n).astype(float)  # many are equal
    tuned = scores_v2([""] * n, spans, odds, right)

    def at(threshold):
        answers = [
            s if o <= threshold else "" for s, o in zip(spans, odds, strict=True)
        ]
        return scores_v2(answers, spans, odds, right)

    thresholds = np.arange(-6, 6) + 0.5
    for best, measure in (("tuned_exact", "exact"), ("tuned_f1", "f1")):
        highest = max(at(threshold)[measure] for threshold in thresholds)
        assert tuned[best] == pytest.approx(highest, abs=1e-9)
        reached = at(tuned[f"{best}_threshold"])[measure]
        assert reached == pytest.approx(highest, abs=1e-9)
