"""SQuAD 1.1 and 2.0: files, predictions, scores."""

import json

import numpy as np
import pytest

from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.tasks.question_answering import Squad, SquadConfig
from bert_jax.tasks.task import saved_config, tuned, write_answers

CONTEXT = "The whale, white as snow, swam to São Tomé's coast (in 1851). " * 3


@pytest.fixture(scope="module")
def uncased(golden):
    return load_tokenizer(golden / "tokenizer" / "uncased_vocab.txt")


@pytest.fixture
def folder(tmp_path):
    """Three articles in one file. The last question has no answer."""

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


@pytest.mark.parametrize("split", ["train", "dev"])
def test_articles_of_a_table_are_refused(tmp_path, split):
    """A table has no articles, so train and dev would have the same rows."""
    (tmp_path / "all.csv").write_text("question,context,answers\nwhat,the sea,sea\n")
    files = dict(train="all.csv", dev="all.csv", train_articles="")
    task = task_of(tmp_path, **files | {f"{split}_articles": "0:1"})
    with pytest.raises(
        UserError, match=f"data.{split}_articles=0:1 needs SQuAD's JSON"
    ):
        task.read(split)


@pytest.mark.parametrize("version_2", [False, True])
def test_right_logits_give_right_answers(folder, uncased, version_2):
    task = task_of(folder, version_2=version_2, dev_articles="" if version_2 else ":2")
    assert [row.id for row in task.read("train")] == ["q0", "q1", "q2", "q3"]
    rows = task.read("dev")
    features = task.encode(rows, uncased)
    assert len(features.example) > 2 * len(rows) and features.truncated == 0
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


def test_the_tuned_threshold_has_its_reported_score(folder, uncased):
    task = task_of(folder)
    rows = task.read("dev")
    features = task.encode(rows, uncased)
    rng = np.random.default_rng(3)
    outputs = [o + rng.normal(0, 4, o.shape) for o in one_hot(features)]
    scores = task.score(rows, task.decode(rows, features, outputs))
    for name, reached in (("tuned_f1", "f1"), ("tuned_exact", "exact")):
        best = task_of(folder, null_threshold=scores[f"{name}_threshold"])
        again = best.score(rows, best.decode(rows, features, outputs))
        assert again[reached] == pytest.approx(scores[name], abs=1e-9)
        assert again[name] == scores[name] >= scores[reached]
    # predict builds the task from these settings.
    best = tuned(task, scores | {"tuned_f1_threshold": 1.25})
    assert saved_config(best).null_threshold == 1.25
    assert tuned(task_of(folder, version_2=False), {}).config.null_threshold == 0


@pytest.mark.parametrize("version_2", [False, True])
def test_predictions_are_written_in_the_official_form(folder, uncased, version_2):
    task = task_of(folder, version_2=version_2)
    rows = task.read("train")
    features = task.encode(rows, uncased)
    predictions = task.decode(rows, features, one_hot(features))
    paths = write_answers(task, rows, predictions, "dev", folder / "out")
    contents = {path.name: json.loads(path.read_text()) for path in paths}
    expected = {"q0": "whale", "q1": "white as snow", "q2": "São Tomé", "q3": "1851"}
    assert contents["predictions.json"] == expected
    nbest = contents["nbest_predictions.json"]["q1"]
    assert len(nbest) in (20, 21)
    assert set(nbest[0]) == {"text", "probability", "start_logit", "end_logit"}
    assert ("null_odds.json" in contents) == version_2
    if version_2:
        assert contents["null_odds.json"]["q1"] == predictions[1]["null_odds"]


@pytest.mark.parametrize("bad_answers", ["refuse", "skip"])
def test_a_question_without_answer_needs_version_2(folder, bad_answers):
    with pytest.raises(UserError, match=r"q5 has no answer.*version_2=True"):
        task_of(folder, version_2=False, bad_answers=bad_answers).read("dev")


def test_files_are_found_by_their_official_names(tmp_path, folder):
    for version_2, name in ((False, "train-v1.1.json"), (True, "train-v2.0.json")):
        task = Squad(SquadConfig(dir=str(tmp_path / "none"), version_2=version_2))
        with pytest.raises(UserError, match=name):
            task.read("train")


def test_a_test_file_is_scored_if_it_has_answers(folder):
    task = task_of(folder, test="all.json")
    assert task.splits.scored == ("dev", "test")
    questions = json.loads((folder / "all.json").read_text())
    for article in questions["data"]:
        for question in article["paragraphs"][0]["qas"]:
            del question["is_impossible"]
            question["answers"] = []
    (folder / "test.json").write_text(json.dumps(questions))
    task = task_of(folder, test="test.json")
    assert task.splits.scored == ("dev",)
    assert task.splits.predicted == ("test",)
    assert [row.answers for row in task.read("test")] == [()] * 6
