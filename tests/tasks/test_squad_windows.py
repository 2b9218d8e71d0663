"""Windows over contexts, and answers from the windows' logits."""

import math
import random
import tracemalloc

import numpy as np
import pytest

from bert_jax.data.token_offsets import Tokens
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.tasks.question_answering import Question, Squad, SquadConfig, Window
from bert_jax.tasks.task import Features


@pytest.fixture(scope="module")
def uncased(golden):
    return load_tokenizer(golden / "tokenizer" / "uncased_vocab.txt")


@pytest.fixture(scope="module")
def words(golden):
    text = (golden / "pretraining_data" / "moby_dick_sentences.txt").read_text()
    return [*text.split()[:3000], "São", "£20,980", "Ōtaki's", "(1895–1943)", "東京"]


def question(context, text=None, *, asked="Who?", impossible=None):
    answers = () if text is None else ((text, context.index(text)),)
    return Question("q", asked, context, "here", answers, impossible)


def windows(rows, tokenizer):
    task = Squad(SquadConfig(max_length=40, stride=8, max_question_length=8))
    return task.encode(rows, tokenizer)


@pytest.mark.parametrize("seed", range(2))
def test_answers_are_recovered_from_their_labels(uncased, words, seed):
    generator = random.Random(seed)
    rows, golds = [], []
    for _ in range(200):
        chosen = generator.choices(words, k=generator.randint(1, 90))
        spaces = generator.choices([" ", "  ", "\n"], k=len(chosen))
        context = "".join(w + s for w, s in zip(chosen, spaces, strict=True))
        first = generator.randrange(len(chosen))
        stop = min(len(chosen), first + generator.randint(1, 4))
        start = sum(
            len(w) + len(s) for w, s in zip(chosen[:first], spaces, strict=False)
        )
        parts = zip(chosen[first:stop], spaces[first:stop], strict=True)
        gold = "".join(w + s for w, s in parts)
        gold = gold.rstrip()
        rows.append(Question("", "Who is it?", context, "", ((gold, start),)))
        golds.append(gold)
    features = windows(rows, uncased)
    start, end = features.targets["start"], features.targets["end"]
    answered = set()
    for i, (row, window) in enumerate(
        zip(features.example, features.extra, strict=True)
    ):
        ids = features.input_ids[i]
        assert len(ids) == window.offset + window.stop - window.first + 1 <= 40
        types = np.arange(len(ids)) >= window.offset
        np.testing.assert_array_equal(features.token_type_ids[i], types)
        if start[i] == 0:
            assert end[i] == 0
            continue
        answered.add(int(row))
        first = window.tokens.starts[window.first + start[i] - window.offset]
        stop = window.tokens.ends[window.first + end[i] - window.offset]
        assert first == rows[row].answers[0][1]
        assert rows[row].context[first:stop] == golds[row]
        gold_ids = uncased.encode(golds[row])
        np.testing.assert_array_equal(ids[start[i] : end[i] + 1], gold_ids)
    # Windows of 31 tokens, 8 apart, contain every answer of at most 24 tokens.
    lengths = [len(uncased.encode(gold)) for gold in golds]
    assert answered >= {i for i, length in enumerate(lengths) if length <= 24}
    assert len(answered) > 190


def test_answers_are_recovered_under_another_template(golden):
    """A pair of RoBERTa's kind has four special tokens, and type 0 everywhere."""
    bpe = load_tokenizer(golden / "templates/byte_level")
    context = "The cat's bee sat on a mat. \u4e2d\u6587 the bee, a cat and the mat"
    rows = [
        question(context, text) for text in ("bee sat", "mat.", "\u4e2d\u6587", "The")
    ]
    features = windows(rows, bpe)
    start, end = features.targets["start"], features.targets["end"]
    found = set()
    places = zip(features.example, features.extra, features.input_ids, strict=True)
    for i, (row, window, ids) in enumerate(places):
        before = bpe.build(bpe.encode("Who?"), bpe.encode(""))[0][:-1]
        assert ids[: window.offset].tolist() == before.tolist()
        assert len(ids) == window.offset + window.stop - window.first + 1 <= 40
        assert not features.token_type_ids[i].any()
        if start[i]:
            first = window.tokens.starts[window.first + start[i] - window.offset]
            stop = window.tokens.ends[window.first + end[i] - window.offset]
            assert context[first:stop] == rows[row].answers[0][0]
            found.add(int(row))
    assert found == {0, 1, 2, 3}


def test_windows_start_one_stride_after_another(uncased):
    rows = [question("sea " * 60, "sea")]
    config = SquadConfig(max_length=24, stride=8)
    features = Squad(config).encode(rows, uncased)
    # A window has 24 tokens without [CLS], "who", "?" and twice [SEP].
    windows = [(window.first, window.stop) for window in features.extra]
    assert windows == [(start, min(start + 19, 60)) for start in range(0, 56, 8)]


def test_an_answer_within_a_token_is_the_token(uncased):
    rows = [question('the "Japanese" imports', "Japan")]
    features = windows(rows, uncased)
    (start,), (end,) = features.targets["start"], features.targets["end"]
    token = uncased.tokens[features.input_ids[0][start]]
    assert (start, end) == (6, 6) and token == "japanese"  # [CLS] who ? [SEP] the "


def test_a_token_is_scored_in_the_window_with_the_most_context(uncased):
    context = " ".join("abcdefghijklmnopqrstuvwxyz")
    config = SquadConfig(max_length=16, stride=3, max_answer_length=1, n_best=99)
    task, rows = Squad(config), [question(context)]
    features = task.encode(rows, uncased)
    assert len(features.extra) > 5
    outputs = [
        np.full((len(ids), 2), k, np.float32)
        for k, ids in enumerate(features.input_ids)
    ]
    (result,) = task.decode(rows, features, outputs)
    start_logits = {entry["text"]: entry["start_logit"] for entry in result["nbest"]}
    for i, letter in enumerate(context.split()):
        sides = {
            k: min(i - window.first, window.stop - 1 - i)
            + 0.01 * (window.stop - window.first)
            for k, window in enumerate(features.extra)
            if window.first <= i < window.stop
        }
        assert start_logits.pop(letter) == max(sides, key=sides.get)
    assert not start_logits


def test_long_questions_are_cut_and_empty_contexts_have_a_window(uncased):
    rows = [question("a b", asked="who " * 9), question("a b", asked="who " * 8)]
    features = windows(rows, uncased)
    assert features.truncated == 1
    assert [window.offset for window in features.extra] == [10, 10]
    np.testing.assert_array_equal(features.input_ids[0], features.input_ids[1])
    # A question uses at most half of a window, for every setting.
    short = Squad(SquadConfig(max_length=16, stride=1)).encode(rows, uncased)
    assert {window.offset for window in short.extra} == {8}
    # A context of control characters has one empty window.
    features = windows([question("\u200b", "\u200b", asked="what")], uncased)
    assert len(features.input_ids) == 1 and features.extra[0].stop == 0
    assert features.targets["start"].tolist() == [0]
    assert windows([], uncased).input_ids == []


def test_a_long_context_needs_memory_linear_in_its_length(uncased):
    """An array of windows by tokens would have 16 million numbers."""
    task = Squad(SquadConfig(max_length=32, max_question_length=8))
    rows = [question("the sea . " * 7_000)]
    tracemalloc.start()
    features = task.encode(rows, uncased)
    outputs = [np.zeros((len(ids), 2), np.float32) for ids in features.input_ids]
    task.decode(rows, features, outputs)
    assert len(outputs) > 500 and tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


def test_targets_need_a_label_in_every_row(uncased):
    right = question("the sea", "sea", asked="what")
    impossible = question("the sea", asked="what", impossible=True)
    features = windows([right, impossible], uncased)
    np.testing.assert_array_equal(features.targets["start"], [4, 0])
    np.testing.assert_array_equal(features.targets["end"], [4, 0])
    assert windows([right, question("the sea")], uncased).targets == {}


CONTEXT = "aa bb cc dd ee"
OFFSET = 2


def window(first=0, stop=5):
    places = np.arange(5, dtype=np.int32)
    return Window(OFFSET, Tokens(places, places * 3, places * 3 + 2), first, stop)


def logits(start, end, cls=(0.0, 0.0)):
    """Rows: [CLS], the question, the context, [SEP]. Ignored positions are high."""
    context = np.stack([start, end], axis=1)
    return np.concatenate([[cls], [(99, 99)], context, [(99, 99)]]).astype(np.float32)


def answer(
    windows, outputs, longest=30, n_best=20, null_threshold=None, context=CONTEXT
):
    config = SquadConfig(
        max_answer_length=longest,
        n_best=n_best,
        version_2=null_threshold is not None,
        null_threshold=null_threshold or 0.0,
    )
    features = Features([], [], np.zeros(len(windows), np.int32), extra=windows)
    row = Question("q7", "?", context, "here")
    (result,) = Squad(config).decode([row], features, outputs)
    return result


def test_the_best_span_has_the_best_sum_and_its_probability():
    result = answer([window()], [logits([0, 5, 0, 3, 0], [0, 0, 4, 0, 0])], n_best=3)
    assert result["answer"] == "bb cc" == CONTEXT[result["start"] : result["end"]]
    assert result["id"] == "q7" and "null_odds" not in result
    # Sums: bb cc 9; then bb, bb cc dd and bb cc dd ee 5, where earlier spans win.
    assert [entry["text"] for entry in result["nbest"]] == ["bb cc", "bb", "bb cc dd"]
    probability = math.exp(9) / (math.exp(9) + 2 * math.exp(5))
    assert result["probability"] == pytest.approx(probability, rel=1e-12)
    assert result["probability"] == result["nbest"][0]["probability"]
    assert sum(e["probability"] for e in result["nbest"]) == pytest.approx(1)
    first = result["nbest"][0]
    assert (first["start_logit"], first["end_logit"]) == (5.0, 4.0)


def test_spans_equal_an_exhaustive_search():
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


def test_a_text_is_listed_once():
    scores = logits([3, 0, 0, 0, 2], [3, 0, 0, 0, 2])
    result = answer([window()], [scores], context="aa bb cc dd aa", longest=1)
    texts = [entry["text"] for entry in result["nbest"]]
    assert sorted(texts) == ["aa", "bb", "cc", "dd"]
    assert (result["start"], result["end"]) == (0, 2)


@pytest.mark.parametrize(
    ("threshold", "expected"), [(-2.5, ""), (-2.0, "bb"), (0.0, "bb")]
)
def test_null_odds_decide_the_empty_answer(threshold, expected):
    # The best span is 3 + 4 = 7. Null is min(6 + 0.5, 2 + 3) = 5, so the odds are -2.
    windows = [window(0, 3), window(1, 5)]
    outputs = [
        logits([0, 3, 0], [0, 4, 0], cls=(6.0, 0.5)),
        logits([0, 0, 0, 0], [0, 0, 0, 0], cls=(2.0, 3.0)),
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


def test_the_empty_answer_is_always_listed():
    scores = logits([5, 5, 5, 5, 5], [5, 5, 5, 5, 5], cls=(-5.0, -5.0))
    result = answer([window()], [scores], null_threshold=0.0, n_best=3)
    assert [bool(e["text"]) for e in result["nbest"]] == [True, True, True, False]
    assert result["null_odds"] == -20.0
    # A list of one answer still has the best and the empty answer.
    scores = logits([1, 0, 0, 0, 0], [0, 0, 0, 0, 0], cls=(5.0, 5.0))
    result = answer([window()], [scores], null_threshold=99.0, n_best=1)
    assert [e["text"] for e in result["nbest"]] == ["", "aa"]
    assert result["answer"] == "aa" and result["probability"] < 0.001


@pytest.mark.parametrize("null_threshold", [None, 0.0])
@pytest.mark.parametrize("empty", [True, False])
def test_no_span_is_an_empty_answer(null_threshold, empty):
    # A context without tokens, or a model that diverged.
    view = window(0, 0) if empty else window()
    scores = logits([], []) if empty else np.full((8, 2), np.nan, np.float32)
    result = answer([view], [scores], null_threshold=null_threshold)
    assert (result["answer"], result["start"], result["end"]) == ("", None, None)
    assert [e["text"] for e in result["nbest"]] == (
        [] if null_threshold is None else [""]
    )
