import math

import numpy as np
import pytest

from bert_jax.tasks.squad_format import Question
from bert_jax.tasks.squad_windows import Window, answer_question

CONTEXT = "aa bb cc dd ee"
OFFSET = 2


def row(context=CONTEXT):
    return Question("q7", "?", context, "", (), None, "here")


def window(first=0, stop=5, best=None):
    places = np.arange(first, stop, dtype=np.int32)
    best = np.ones(len(places), bool) if best is None else np.array(best, bool)
    return Window(OFFSET, places * 3, places * 3 + 2, best)


def logits(start, end, cls=(0.0, 0.0)):
    """Rows: [CLS], the question, the context and [SEP]; elsewhere high, to be ignored."""
    context = np.stack([start, end], axis=1)
    return np.concatenate([[cls], [(99, 99)], context, [(99, 99)]]).astype(np.float32)


def answer(
    windows, outputs, longest=30, n_best=20, null_threshold=None, context=CONTEXT
):
    return answer_question(
        row(context),
        windows,
        outputs,
        max_answer_length=longest,
        n_best=n_best,
        null_threshold=null_threshold,
    )


def test_the_best_span_and_its_probability():
    result = answer([window()], [logits([0, 5, 0, 3, 0], [0, 0, 4, 0, 0])], n_best=3)
    assert result["answer"] == "bb cc" == CONTEXT[result["start"] : result["end"]]
    assert result["id"] == "q7" and "null_odds" not in result
    # Sums: bb cc 9; then bb, bb cc dd, bb cc dd ee 5, of which the earlier ones count.
    assert [entry["text"] for entry in result["nbest"]] == ["bb cc", "bb", "bb cc dd"]
    probability = math.exp(9) / (math.exp(9) + 2 * math.exp(5))
    assert result["probability"] == pytest.approx(probability, rel=1e-12)
    assert result["probability"] == result["nbest"][0]["probability"]
    assert sum(e["probability"] for e in result["nbest"]) == pytest.approx(1)
    first = result["nbest"][0]
    assert (first["start_logit"], first["end_logit"]) == (5.0, 4.0)


def test_the_end_is_not_before_the_start_nor_too_far():
    scores = logits([0, 0, 0, 0, 9], [9, 0, 0, 0, 0])
    assert answer([window()], [scores])["answer"] in ("aa", "ee")
    scores = logits([9, 0, 0, 0, 0], [0, 0, 1, 2, 3])
    for longest, expected in [(5, "aa bb cc dd ee"), (4, "aa bb cc dd"), (1, "aa")]:
        assert answer([window()], [scores], longest)["answer"] == expected


def test_all_spans_against_a_search_of_all():
    rng = np.random.default_rng(0)
    for _ in range(30):
        start, end = rng.normal(size=(2, 5))
        result = answer([window()], [logits(start, end)], longest=3, n_best=4)
        spans = {
            CONTEXT[i * 3 : j * 3 + 2]: start[i] + end[j]
            for i in range(5)
            for j in range(i, min(i + 3, 5))
        }
        best = sorted(spans, key=spans.get, reverse=True)[:4]
        assert [entry["text"] for entry in result["nbest"]] == best


def test_a_start_counts_in_its_best_window_only():
    windows = [window(0, 3, [1, 1, 0]), window(2, 5, [1, 1, 1])]
    left = logits([0, 0, 9], [0, 0, 9])
    right = logits([1, 0, 0], [2, 0, 0])
    result = answer(windows, [left, right])
    # The 18 of cc in the left window is not its own; aa cc and bb cc may end there.
    assert result["nbest"][0] == pytest.approx(
        {**result["nbest"][0], "text": "aa bb cc", "start_logit": 0, "end_logit": 9}
    )
    entry = next(e for e in result["nbest"] if e["text"] == "cc")
    assert (entry["start_logit"], entry["end_logit"]) == (1.0, 2.0)


def test_a_text_is_listed_once():
    scores = logits([3, 0, 0, 0, 2], [3, 0, 0, 0, 2])
    result = answer([window()], [scores], context="aa bb cc dd aa", longest=1)
    texts = [entry["text"] for entry in result["nbest"]]
    assert sorted(texts) == ["aa", "bb", "cc", "dd"]
    assert (result["start"], result["end"]) == (0, 2)


@pytest.mark.parametrize(
    ("threshold", "expected"), [(-2.5, ""), (-2.0, "bb"), (0.0, "bb")]
)
def test_null_odds(threshold, expected):
    # Best span 3 + 4 = 7; null: the smaller of 6 + 0.5 and 2 + 3, so odds of -2.
    windows = [window(0, 3, [1, 1, 0]), window(2, 5)]
    outputs = [
        logits([0, 3, 0], [0, 4, 0], cls=(6.0, 0.5)),
        logits([0, 0, 0], [0, 0, 0], cls=(2.0, 3.0)),
    ]
    result = answer(windows, outputs, null_threshold=threshold, n_best=3)
    assert result["null_odds"] == -2.0
    assert result["answer"] == expected
    assert (result["start"], result["end"]) == ((3, 5) if expected else (None, None))
    # Sums: bb 7, null 5, then bb cc 3 + 0 (aa bb has 0 + 4).
    assert [e["text"] for e in result["nbest"]] == ["bb", "", "aa bb"]
    total = math.exp(7) + math.exp(5) + math.exp(4)
    part = math.exp(7 if expected else 5)
    assert result["probability"] == pytest.approx(part / total, rel=1e-12)


def test_the_empty_answer_stays_in_sight():
    scores = logits([5, 5, 5, 5, 5], [5, 5, 5, 5, 5], cls=(-5.0, -5.0))
    result = answer([window()], [scores], null_threshold=0.0, n_best=3)
    assert [bool(e["text"]) for e in result["nbest"]] == [True, True, True, False]
    assert result["null_odds"] == -20.0
    # Even of one, the best answer and the empty one are both listed.
    scores = logits([1, 0, 0, 0, 0], [0, 0, 0, 0, 0], cls=(5.0, 5.0))
    result = answer([window()], [scores], null_threshold=99.0, n_best=1)
    assert [e["text"] for e in result["nbest"]] == ["", "aa"]
    assert result["answer"] == "aa" and result["probability"] < 0.001


@pytest.mark.parametrize("null_threshold", [None, 0.0])
@pytest.mark.parametrize("empty", [True, False])
def test_no_span_is_an_empty_answer(null_threshold, empty):
    # A context without tokens, and a model that diverged.
    view = window(0, 0) if empty else window()
    scores = logits([], []) if empty else np.full((8, 2), np.nan, np.float32)
    result = answer([view], [scores], null_threshold=null_threshold)
    assert (result["answer"], result["start"], result["end"]) == ("", None, None)
    assert [e["text"] for e in result["nbest"]] == (
        [] if null_threshold is None else [""]
    )
