"""Scores of answers, by hand."""

import numpy as np
import pytest

from bert_jax.tasks.squad_scores import (
    exact_match,
    f1,
    normalise_answer,
    scores_v1,
    scores_v2,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat's\nhat!", "cats hat"),
        ("a theatre, an anthem", "theatre anthem"),
        ("U.S.-based", "usbased"),
        ("the", ""),
        ("“The” 5–4", "“ ” 5–4"),  # punctuation beyond ASCII stays
    ],
)
def test_normalise_answer(text, expected):
    assert normalise_answer(text) == expected


@pytest.mark.parametrize(
    ("answer", "right", "exact", "expected"),
    [
        ("the Denver Broncos", ["Denver Broncos!"], 1, 1),
        ("Denver", ["Denver Broncos"], 0, 2 / 3),  # precision 1, recall 1/2
        ("a b b c", ["b b d e f"], 0, 2 * (2 / 3) * (2 / 5) / (2 / 3 + 2 / 5)),
        ("x", ["y", "x z", "x"], 1, 1),
        ("x", ["y", "x z"], 0, 2 / 3),
        ("", ["x"], 0, 0),
    ],
)
def test_hand_computed_scores(answer, right, exact, expected):
    assert exact_match(answer, right) == exact
    assert f1(answer, right) == pytest.approx(expected, rel=1e-12)
    assert f1(answer, right, True) == pytest.approx(expected, rel=1e-12)


def test_answers_without_words():
    # evaluate-v1.1.py finds nothing shared; to evaluate-v2.0.py both are no answer.
    assert exact_match("the", ["a"]) == 1
    assert f1("the", ["a"]) == 0 and f1("the", ["a"], True) == 1


def test_scores_v1_are_percent():
    scores = scores_v1(["x", "x", "q"], [["x"], ["x z"], ["y"]])
    assert scores["exact_match"] == pytest.approx(100 / 3)
    assert scores["f1"] == pytest.approx(100 * (1 + 2 / 3) / 3)


def test_scores_v2_by_hand():
    # Questions: answered rightly; wrongly left empty; rightly left empty; answered
    # although there is no answer (its only right one, "the", has no words).
    scores = scores_v2(
        answers=["x", "", "", "v"],
        best_spans=["x", "y z", "u", "v"],
        null_odds=[-5.0, 1.0, 2.0, -1.0],
        right=[["x"], ["z"], [], ["the"]],
    )
    assert scores == pytest.approx(
        {
            "exact_match": 50,
            "f1": 50,
            "HasAns_exact": 50,
            "HasAns_f1": 50,
            "NoAns_exact": 50,
            "NoAns_f1": 50,
            # With the first alone: right three times of four.
            "best_exact": 75,
            "best_exact_threshold": -5,
            # Up to 1.0: 1 + 2/3 + 1 + 0 is less than 3.
            "best_f1": 75,
            "best_f1_threshold": -5,
        }
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_best_threshold_is_the_best_of_all(seed):
    rng = np.random.default_rng(seed)
    n = 40
    right = [["x y"] if rng.random() < 0.6 else [] for _ in range(n)]
    spans = rng.choice(["x y", "x", "q"], n).tolist()
    odds = rng.integers(-4, 5, n).astype(float)  # many are equal
    tuned = scores_v2([""] * n, spans, odds, right)

    def at(threshold):
        answers = [
            s if o <= threshold else "" for s, o in zip(spans, odds, strict=True)
        ]
        return scores_v2(answers, spans, odds, right)

    thresholds = np.arange(-6, 6) + 0.5
    for best, measure in (("best_exact", "exact_match"), ("best_f1", "f1")):
        highest = max(at(threshold)[measure] for threshold in thresholds)
        assert tuned[best] == pytest.approx(highest, abs=1e-9)
        reached = at(tuned[f"{best}_threshold"])[measure]
        assert reached == pytest.approx(highest, abs=1e-9)


def test_never_to_answer_may_be_best():
    scores = scores_v2(["q"], ["q"], [-3.0], [[]])
    assert scores["f1"] == 0 and scores["best_f1"] == 100
    assert scores["best_f1_threshold"] < -3.0
    assert "HasAns_f1" not in scores


def test_no_question_without_answer():
    scores = scores_v2(["q"], ["q"], [-3.0], [["q"]])
    assert scores["best_f1"] == scores["HasAns_f1"] == 100
    assert "NoAns_f1" not in scores
