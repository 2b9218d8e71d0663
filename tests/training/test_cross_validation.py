"""Cross-validation from Python: scores and answers of folds, resumed runs, errors."""

import datetime
import json
import shutil

import numpy as np
import pytest

import bert_jax
from bert_jax.errors import UserError
from bert_jax.training import finetune as tuning

SETTINGS = dict(
    epochs=2,
    batch_size=6,
    learning_rate=1e-2,
    bias_correction=True,
    buckets=1,
    checkpoint_every=1000,
    model=dict(hidden_dropout=0.0, attention_dropout=0.0),
)


def clued_rows(count):
    """Rows with one of two clues among six words, and the label of the clue."""
    random = np.random.default_rng(0)
    for i in range(count):
        words = [f"w{number}" for number in random.integers(40, size=6)]
        words[random.integers(6)] = ("bad", "good")[i % 2]
        yield {"text": " ".join(words), "label": ("no", "yes")[i % 2]}


def test_skipped_rows_of_a_cross_validation_are_refused_before_a_fold():
    rows = []
    for i in range(6):
        answers = {"text": ["sea"], "answer_start": [4 if i else 0]}
        rows.append(
            dict(id=str(i), question="what", context="the sea", answers=answers)
        )
    task = bert_jax.tasks.squad(bad_answers="skip")
    with pytest.raises(UserError, match="rows of train are skipped; remove them"):
        bert_jax.cross_validate(task, init_from="absent", train=rows, folds=2)


def test_cross_validation_answers_each_row_once_and_resumes(
    checkpoint_dir, tmp_path, monkeypatch
):
    """The last row is the only one of its class, and is in no fold."""
    rows = [*clued_rows(14), {"text": "w1 so so", "label": "perhaps"}]
    for number, row in enumerate(rows):
        row["id"] = datetime.date(2026, 1, 1 + number)  # JSON has no dates
    arguments = dict(init_from=checkpoint_dir, train=rows, folds=3, seed=4)
    arguments |= dict(workdir=tmp_path / "run", log=[].append)
    arguments |= SETTINGS | {"epochs": 2, "batch_size": 6}
    task = bert_jax.tasks.classification(max_length=24)

    def share(gold, predicted):
        share = 100 * np.mean(np.array(gold) == np.array(predicted))
        return {"share": share, f"rows {len(gold)}": 1.0}  # not in all folds

    result = bert_jax.cross_validate(task, metrics=share, **arguments)
    assert len(result.scores) == 3 and result.answers[14] is None
    folds = task.with_rows(train=rows).fold_numbers(3, seed=4)
    assert sorted(number for fold in folds for number in fold) == [*range(14)]
    for fold, scores in zip(folds, result.scores, strict=True):
        right = [result.answers[i]["label"] == rows[i]["label"] for i in fold]
        assert 100 * np.mean(right) == pytest.approx(scores["accuracy"])
        assert scores["share"] == pytest.approx(scores["accuracy"])
    assert {len(fold) for fold in folds} == {4, 5}
    assert result.mean["rows 4"] == result.mean["rows 5"] == 1
    values = [scores["accuracy"] for scores in result.scores]
    assert result.mean["accuracy"] == pytest.approx(np.mean(values))
    assert result.deviation["accuracy"] == pytest.approx(np.std(values, ddof=1))
    assert {*result.answers[0]} >= {"label", "probability"}
    assert result.answers[1]["id"] == "2026-01-02"
    assert "3 folds of 15 rows, in " in repr(result) and "label" not in repr(result)

    # Finished folds are scored with the metrics of this call.
    def size(gold, predicted):
        return {"size": float(len(gold))}

    other = bert_jax.cross_validate(task, metrics=size, **arguments)
    own = {"share", "rows 4", "rows 5"}
    for fold, scores, before in zip(folds, other.scores, result.scores, strict=True):
        kept = {name: before[name] for name in before.keys() - own}
        assert scores == kept | {"size": len(fold)}
    # The same call runs only what is missing, and gives the same result.
    ran, train = [], tuning.finetune
    monkeypatch.setattr(
        tuning, "finetune", lambda *a, **k: ran.append(a[0]) or train(*a, **k)
    )
    shutil.rmtree(next((tmp_path / "run/sweep").glob("*-fold1")))
    assert bert_jax.cross_validate(task, metrics=share, **arguments) == result
    assert len(ran) == 1
    # Folds that started with other parameters are not compared.
    shutil.rmtree(next((tmp_path / "run/sweep").glob("*-fold1")))
    (config,) = (tmp_path / "run/sweep").glob("*-fold0/config.json")
    settings = json.loads(config.read_text())
    config.write_text(json.dumps(settings | {"start": settings["start"] + 1}))
    with pytest.raises(UserError, match=r"checksum of init_from: .* use another"):
        bert_jax.cross_validate(task, metrics=share, **arguments)
    other = arguments | {"train": rows[1:], "metrics": share}
    with pytest.raises(UserError, match="a run with other settings"):
        bert_jax.cross_validate(task, **other)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({}, "no training rows; give train=rows"),
        ({"train": [("a", "b")] * 4, "folds": 1}, "the number of folds is 1, expected"),
        (
            {"train": [("a", "b"), ("c", "d")] * 2, "folds": 9},
            "^folds=9, but train has 4 rows; expected at most one fold for each row",
        ),
        ({"dev": []}, "dev is not an argument of cross_validate"),
        ({"max_length": 9}, r"of cross_validate, but of the task: .*max_length=9\)"),
    ],
)
def test_a_wrong_argument_of_cross_validation_is_one_line(
    arguments, message, checkpoint_dir, tmp_path
):
    task = bert_jax.tasks.classification(max_length=24)
    arguments |= dict(init_from=checkpoint_dir, workdir=tmp_path, log=[].append)
    with pytest.raises(UserError, match=message):
        bert_jax.cross_validate(task, **arguments)
