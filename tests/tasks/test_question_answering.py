"""SQuAD 1.1 and 2.0: files, predictions, scores."""

import json
import string
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.tasks.question_answering import Squad, SquadConfig
from bert_jax.tasks.squad_scores import (
    exact_match,
    f1,
    normalise_answer,
    scores_v1,
    scores_v2,
)
from bert_jax.tasks.task import Task

REAL = Path(__file__).parents[3] / "shared" / "data" / "squad" / "dev-v1.1.json"
CONTEXT = "The whale, white as snow, swam to São Tomé's coast (in 1851). " * 3


@pytest.fixture(scope="module")
def uncased(golden):
    return load_tokenizer(golden / "tokenizer" / "uncased_vocab.txt")


@pytest.fixture
def folder(tmp_path):
    """Three articles in one file; the last question has no answer."""

    def question(name, text):
        answers = [{"text": text, "answer_start": CONTEXT.index(text)}] if text else []
        return {
            "id": name,
            "question": f"What is {name}?",
            "answers": answers,
            "is_impossible": not text,
        }

    texts = ["whale", "white as snow", "São Tomé", "1851", "São Tomé's coast", ""]
    entries = [question(f"q{i}", text) for i, text in enumerate(texts)]
    data = [
        {"title": "t", "paragraphs": [{"context": CONTEXT, "qas": entries[i : i + 2]}]}
        for i in (0, 2, 4)
    ]
    (tmp_path / "all.json").write_text(json.dumps({"data": data}))
    return tmp_path


def one_hot(features):
    outputs = []
    for ids, *places in zip(
        features.input_ids, *features.targets.values(), strict=True
    ):
        outputs.append(np.zeros((len(ids), 2), np.float32))
        outputs[-1][places, [0, 1]] = 9
    return outputs


def task_of(folder, **settings):
    defaults = dict(
        dir=str(folder),
        train="all.json",
        dev="all.json",
        train_articles=":2",
        version_2=True,
        max_length=48,
        stride=16,
        max_question_length=12,
    )
    return Squad(SquadConfig(**{**defaults, **settings}))


def test_it_is_a_task(folder):
    task = task_of(folder)
    assert isinstance(task, Task) and task.outputs == 2 and task.head == "span"
    assert task.source.eval_splits == ("dev",) and task.source.predict_splits == ()
    tested = task_of(folder, test="all.json")
    assert tested.source.predict_splits == ("test",)
    assert len(tested.read("test")) == len(task.read("dev"))


@pytest.mark.parametrize("version_2", [False, True])
def test_right_logits_give_right_answers(folder, uncased, version_2):
    task = task_of(folder, version_2=version_2, dev_articles="" if version_2 else ":2")
    assert [row.id for row in task.read("train")] == ["q0", "q1", "q2", "q3"]
    rows = task.read("dev")
    features = task.encode(rows, uncased)
    assert len(features.row) > 2 * len(rows) and features.truncated == 0
    predictions = task.decode(rows, features, one_hot(features))
    for row, prediction in zip(rows, predictions, strict=True):
        assert prediction["id"] == row.id
        if row.impossible:
            assert prediction["answer"] == "" and prediction["null_odds"] > 0
        else:
            text, start = row.answers[0]
            assert prediction["answer"] == text
            assert (prediction["start"], prediction["end"]) == (
                start,
                start + len(text),
            )
        assert prediction["probability"] > 0.9
    scores = task.score(rows, predictions)
    exact = scores["exact" if version_2 else "exact_match"]
    assert exact == scores[task.main_metric] == 100
    if version_2:
        assert scores["best_f1"] == scores["tuned_f1"] == 100
        assert scores["best_exact"] == scores["HasAns_f1"] == scores["NoAns_f1"] == 100
    json.dumps(predictions)


def test_the_tuned_threshold_does_what_it_promises(folder, uncased):
    task = task_of(folder)
    rows = task.read("dev")
    features = task.encode(rows, uncased)
    rng = np.random.default_rng(3)
    outputs = [o + rng.normal(0, 4, o.shape) for o in one_hot(features)]
    scores = task.score(rows, task.decode(rows, features, outputs))
    for name, reached in (("tuned_f1", "f1"), ("tuned_exact", "exact")):
        tuned = task_of(folder, null_threshold=scores[f"{name}_threshold"])
        again = tuned.score(rows, tuned.decode(rows, features, outputs))
        assert again[reached] == pytest.approx(scores[name], abs=1e-9)
        assert again[name] == scores[name] >= scores[reached]
    # What predict builds the task from.
    tuned = task.tuned(scores)
    assert tuned.saved_config().null_threshold == scores["tuned_f1_threshold"]
    assert task_of(folder, version_2=False).tuned({}).config.null_threshold == 0


@pytest.mark.parametrize("version_2", [False, True])
def test_files_in_the_official_form(folder, uncased, version_2):
    task = task_of(folder, version_2=version_2)
    rows = task.read("train")
    features = task.encode(rows, uncased)
    predictions = task.decode(rows, features, one_hot(features))
    paths = task.write(rows, predictions, "dev", folder / "out")
    contents = {path.name: json.loads(path.read_text()) for path in paths}
    expected = {"q0": "whale", "q1": "white as snow", "q2": "São Tomé", "q3": "1851"}
    assert contents["predictions.json"] == expected
    nbest = contents["nbest_predictions.json"]["q1"]
    assert len(nbest) in (20, 21)
    assert set(nbest[0]) == {"text", "probability", "start_logit", "end_logit"}
    assert ("null_odds.json" in contents) == version_2
    if version_2:
        assert contents["null_odds.json"]["q1"] == predictions[1]["null_odds"]


def test_answers_from_the_command_line(parse, uncased):
    task = Squad(SquadConfig())
    rows = parse(task, ["Who?\tThe whale.", "Where?\tAt sea."], "-")
    features = task.encode(rows, uncased)
    assert features.targets == {}
    outputs = [np.zeros((len(ids), 2), np.float32) for ids in features.input_ids]
    predictions = task.decode(rows, features, outputs)
    assert [p["id"] for p in predictions] == ["1", "2"]
    assert predictions[0]["answer"] in "The whale."


def test_a_question_without_answer_needs_version_2(folder):
    with pytest.raises(UserError, match=r"q5 has no answer.*version_2=True"):
        task_of(folder, version_2=False).read("dev")


def test_official_names_are_the_default(tmp_path):
    for version_2, name in ((False, "train-v1.1.json"), (True, "train-v2.0.json")):
        task = Squad(SquadConfig(dir=str(tmp_path), version_2=version_2))
        with pytest.raises(UserError, match=name):
            task.read("train")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(stride=0), "data.stride=0, expected at least 1"),
        (dict(n_best=0), "data.n_best=0, expected at least 1"),
        (dict(bad_answers="keep"), "data.bad_answers='keep', expected one of refuse"),
    ],
)
def test_settings_that_cannot_be(folder, settings, message):
    with pytest.raises(UserError, match=message):
        task_of(folder, **settings)


@pytest.mark.skipif(not REAL.is_file(), reason="needs SQuAD's dev-v1.1.json")
def test_the_labels_of_real_questions_decode_to_their_answers(uncased):
    task = Squad(SquadConfig(dir=str(REAL.parent), dev_articles="30:36"))
    rows = task.read("dev")
    features = task.encode(rows, uncased)
    assert len(features.row) > len(rows) > 800 and features.truncated == 0
    predictions = task.decode(rows, features, one_hot(features))
    # Whatever differs is an answer that starts or ends within a token.
    for row, prediction in zip(rows, predictions, strict=True):
        assert row.answers[0][0] in prediction["answer"]
    assert task.score(rows, predictions)["exact_match"] > 99.5


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
    # although there is no answer.
    scores = scores_v2(
        answers=["x", "", "", "v"],
        best_spans=["x", "y z", "u", "v"],
        null_odds=[-5.0, 1.0, 2.0, -1.0],
        right=[["x"], ["z"], [], []],
    )
    assert scores == pytest.approx(
        {
            "exact": 50,
            "f1": 50,
            "HasAns_exact": 50,
            "HasAns_f1": 50,
            "NoAns_exact": 50,
            "NoAns_f1": 50,
            # With the first alone: right three times of four.
            "best_exact": 75,
            "best_exact_thresh": -5,
            "best_f1": 75,
            "best_f1_thresh": -5,
            "tuned_exact": 75,
            "tuned_exact_threshold": -5,
            # Up to 1.0: 1 + 2/3 + 1 + 0 is less than 3.
            "tuned_f1": 75,
            "tuned_f1_threshold": -5,
        }
    )


def test_the_official_threshold_keeps_the_final_answers():
    # Both best spans are right, but the second question is left empty at the end.
    scores = scores_v2(["x", ""], ["x", "z"], [-1.0, 1.0], [["x"], ["z"]])
    assert scores["best_exact"] == scores["best_f1"] == 50
    assert scores["best_exact_thresh"] == scores["best_f1_thresh"] == -1
    assert scores["tuned_exact"] == scores["tuned_f1"] == 100
    assert scores["tuned_exact_threshold"] == scores["tuned_f1_threshold"] == 1


def test_a_right_answer_without_words_is_an_answer_that_is_empty():
    scores = scores_v2(["", "v"], ["u", "v"], [2.0, -1.0], [["the"], ["the"]])
    assert scores["HasAns_exact"] == scores["HasAns_f1"] == 50
    assert "NoAns_exact" not in scores
    # No question counts as empty from the start: the script adds the first at odds 2.
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (50, 2)
    assert (scores["tuned_exact"], scores["tuned_exact_threshold"]) == (100, -2)


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

    found, n = {}, len(preds)
    for name, measure in (("exact", exact_of), ("f1", f1_of)):
        raw = {}
        for q, answer in preds.items():
            rights = [text for text in gold[q] if words(text)] or [""]
            raw[q] = max(measure(right, answer) for right in rights)
        found[name] = 100 * sum(raw.values()) / n
        for part, has in (("HasAns", True), ("NoAns", False)):
            of = [raw[q] for q in preds if bool(gold[q]) == has]
            if of:
                found[f"{part}_{name}"] = 100 * sum(of) / len(of)
        now = best = sum(not texts for texts in gold.values())
        threshold = 0.0
        for q in sorted(odds, key=odds.get):
            now += raw[q] if gold[q] else -1 if preds[q] else 0
            if now > best:
                best, threshold = now, odds[q]
        found |= {f"best_{name}": 100 * best / n, f"best_{name}_thresh": threshold}
    return found


@pytest.mark.parametrize("seed", range(50))
def test_scores_v2_are_those_of_another_implementation(seed):
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


@pytest.mark.parametrize("seed", range(20))
def test_the_best_threshold_is_the_best_of_all(seed):
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


def test_never_to_answer_may_be_best():
    scores = scores_v2(["q"], ["q"], [-3.0], [[]])
    assert scores["f1"] == 0 and scores["best_f1"] == scores["tuned_f1"] == 100
    assert scores["best_f1_thresh"] == 0 and scores["tuned_f1_threshold"] < -3.0
    assert "HasAns_f1" not in scores


def test_no_question_without_answer():
    scores = scores_v2(["q"], ["q"], [-3.0], [["q"]])
    assert scores["best_f1"] == scores["HasAns_f1"] == 100
    assert "NoAns_f1" not in scores
