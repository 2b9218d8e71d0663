"""Several labels at once: losses, scores, rows, and a run."""

import csv
import dataclasses
import json
import math
import re

import jax
import numpy as np
import pandas
import pytest
from sklearn.metrics import f1_score

import bert_jax
from bert_jax.errors import UserError
from bert_jax.inference.evaluation import Part
from bert_jax.inference.lines import write_answers
from bert_jax.interop.load import load
from bert_jax.objectives.heads import Classification
from bert_jax.tasks.splits import read_records
from bert_jax.tasks.task import all_scores
from bert_jax.tasks.text_classification import MultiLabel, MultiLabelConfig
from bert_jax.training.config import finetune_config
from bert_jax.training.sweep import run_one

LABELS = ("a", "b", "c")


def task(**settings):
    return MultiLabel(MultiLabelConfig(**{"labels": LABELS} | settings))


def labelled(task, values):
    """The row with these values and a label."""
    form = task.form
    ((where, values),) = read_records(
        [("here", values)], form, labelled=True, label=True
    )
    return task.row(where, values, True)


def test_own_metrics_cannot_change_answers():
    multi_label = task()
    row = labelled(multi_label, ("text", ["a", "c"]))
    answers = [{"labels": ["a", "b"]}]

    def metrics(gold, predicted):
        same = len({*gold[0]} & {*predicted[0]})
        gold[0].clear(), predicted[0].clear()
        return {"same": same}

    multi_label.own_metrics = metrics
    assert all_scores(multi_label, [row], answers)["same"] == 1
    assert answers == [{"labels": ["a", "b"]}] and row.label == ("a", "c")


def test_own_metrics_that_are_nan_give_a_warning(caplog):
    multi_label = task()
    row = labelled(multi_label, ("text", ["a"]))
    multi_label.own_metrics = lambda *_: {"x": math.nan, "y": 1}
    scores = all_scores(multi_label, [row], [{"labels": ["a"]}])
    assert math.isnan(scores["x"]) and scores["y"] == 1
    assert "metrics returned NaN for x; a NaN is never the best score" in caplog.text


def test_the_loss_equals_transformers(golden):
    """BCEWithLogitsLoss of all outputs, from tests/golden/torch/make.py."""
    theirs = np.load(golden / "torch" / "losses.npz")
    batch = {"label": theirs["labels"]}
    actual = jax.jit(Classification(None).losses)(theirs["logits"], batch)
    np.testing.assert_allclose(actual.mean(), theirs["multi_label"], rtol=1e-6)


@pytest.mark.parametrize(
    "labels, value, expected",
    [
        ("abc", "a, c", "ac"),
        ("abc", "", ""),
        ("abc", ["b"], "b"),
        ("abc", '["a", "c"]', "ac"),
        ("abc", "['a', 'c']", "ac"),  # pandas writes a list in this form
        ("abc", "['a' 'c']", "ac"),  # and an array of numpy in this form
        ("abc", "('a', 'c')", "ac"),
        ("abc", "{'b'}", "b"),
        ("abc", "set()", ""),
        ("abc", "[]", ""),
        ("abc", "array(['a', 'c'], dtype=object)", "ac"),
        ("abc", "Index(['a', 'c'], dtype='object')", "ac"),
        ("abc", "[1 0 1]", "ac"),
        ("abc", "[0. 1. 0.]", "b"),
        ("abc", "(1, 0, 1)", "ac"),
        ("abc", "a", "a"),
        ("a😂", '["\\ud83d\\ude02"]', "😂"),  # as json.dumps writes a list
        ("abc", "[True, False, False]", "a"),
        ("abc", "[true, false, true]", "ac"),
        ("é😀", '["\\u00e9", "\\ud83d\\ude00"]', "é😀"),
        ("abc", [], ""),
        ("abc", [1.0, 0.0, 1.0], "ac"),
        ("abc", [0.0, 0.0, 0.0], ""),
        ("abc", [True, False, False], "a"),
        ("abc", [0, 1, 1], "bc"),
        ("123", ["1", "3"], "13"),
        (("(none)", "x"), "(none)", ("(none)",)),
        (("[b] x", "c", "{d}"), "[b] x, {d}", ("[b] x", "{d}")),
    ],
)
def test_labels_are_lists_or_a_cell(labels, value, expected):
    row = labelled(task(labels=tuple(labels)), {"text": "good", "label": value})
    assert row.label == tuple(expected)


@pytest.mark.parametrize(
    "labels, values, message",
    [
        ("abc", {"labels": "a,d"}, "label 'd' is not in the label set a"),
        ("abc", {}, "no column 'label' or 'labels'"),
        *[
            ("abc", {"label": x}, "the labels are")
            for x in ([2, 0], [2, 0, 1], [2, "a"], 1, [1, 0])
        ],
        *[("01", {"label": x}, "the labels are") for x in ([0, 1], [0.0, 1.0])],
    ],
)
def test_wrong_labels_are_refused(labels, values, message):
    multi_label = task(labels=tuple(labels))
    with pytest.raises(UserError, match=f"^here: {message}"):
        labelled(multi_label, {"text": "good"} | values)


@pytest.mark.parametrize(
    "cell",
    ["[a, c]", "(a, c)", "{a, c}", "[a, c", "['a'", "['a', 'b' 'c']", "[0 1 ... 1]"],
)
def test_a_cell_that_is_no_list_is_refused(cell, tmp_path):
    """Its parts would become labels, such as "[a"."""
    path = tmp_path / "train.csv"
    with path.open("w") as file:
        csv.writer(file).writerows([("text", "labels"), ("good", "a"), ("bad", cell)])
    problem = (
        rf"train\.csv:3: column 'labels' starts like a list, .*: {re.escape(cell)}; "
    )
    with pytest.raises(UserError, match=problem):
        task().with_rows(train=path)
    config = MultiLabelConfig(dir=str(tmp_path))
    with pytest.raises(UserError, match=problem):
        _ = MultiLabel(config).labels


@pytest.mark.parametrize("vector", [[0.0, 1.0], [False, True], [0, 1, 1], [1, 1]])
def test_vectors_of_labels_need_their_names(vector):
    """Hugging Face's models use vectors, but 0.0 and 1.0 are not label names."""
    rows = [("good", vector), ("bad", vector[::-1])]
    with pytest.raises(UserError, match=r"^train, row 0: the labels are \["):
        _ = MultiLabel(MultiLabelConfig()).with_rows(train=rows).labels


def test_scores_equal_scikit_learn(vocabulary):
    random = np.random.default_rng(0)
    truth, logits = random.random((40, 3)) < 0.4, random.normal(size=(40, 3))
    multi_label, rows = task(), []
    for i, row in enumerate(truth):
        label = [name for name, has in zip(LABELS, row, strict=True) if has]
        rows.append(multi_label.row(str(i), {"text": "good", "label": label}, True))
    features = multi_label.encode(rows, vocabulary)
    np.testing.assert_array_equal(features.targets["label"], truth)
    answers = multi_label.decode(rows, features, list(logits))
    predicted = logits >= 0  # a probability of a half
    scores = multi_label.score(rows, answers)
    for kind in ("micro", "macro"):
        expected = 100 * f1_score(truth, predicted, average=kind)
        assert scores[f"f1_{kind}"] == pytest.approx(expected)
    assert scores["exact_match"] == 100 * np.mean((truth == predicted).all(axis=1))
    assert answers[0]["probabilities"]["a"] == pytest.approx(
        1 / (1 + np.exp(-logits[0, 0]))
    )
    strict = task(threshold=0.9).decode(rows, features, list(logits))
    assert sum(len(a["labels"]) for a in strict) < predicted.sum()
    pairs = zip(rows, answers, strict=True)
    errors = [e for pair in pairs for e in multi_label.outcomes(*pair) if not e.right]
    assert len(errors) == 40 - (truth == predicted).all(axis=1).sum()
    assert all(error.confidence >= 0.5 for error in errors)


def test_predicted_labels_in_a_table_are_read_back(tmp_path):
    labels = ["a, b", "(none)", "it's"]
    answers = [{"text": "(good)", "labels": x} for x in (labels, labels[1:2], [])]
    path = tmp_path / "dev.csv"
    write_answers([Part(None, answers)], str(path), "csv")
    rows = task(labels=tuple(labels)).with_rows(dev=path).read("dev")
    assert [list(row.label) for row in rows] == [x["labels"] for x in answers]
    assert rows[0].text == "(good)"


def test_a_probability_at_the_threshold_is_a_label(vocabulary):
    multi_label = task(threshold=0.5)
    rows = [multi_label.row("here", {"text": "good"}, False)]
    features = multi_label.encode(rows, vocabulary)
    logits = np.array([0, -1e-6, 1e-6])  # the probability of 0 is exactly a half
    (answer,) = multi_label.decode(rows, features, [logits])
    assert answer["labels"] == ["a", "c"]


def test_a_run_learns_predicts_and_is_saved_for_transformers(settings, tmp_path):
    config = finetune_config(settings("multi_label", epochs=8))
    results = run_one(config, tmp_path, [].append)
    assert results["main_metric"] == "f1_micro"
    assert results["scores"]["dev"]["exact_match"] > 90
    written = json.loads((tmp_path / "best" / "config.json").read_text())
    assert written["problem_type"] == "multi_label_classification"
    assert written["architectures"] == ["BertForSequenceClassification"]
    texts = ["sea good ship bad", "sea ship", "sea bad ship"]
    answers = bert_jax.load(tmp_path).predict(texts)
    assert [sorted(a["labels"]) for a in answers] == [["no", "yes"], [], ["no"]]
    # Without our notes the head decides the family, as in folders of other tools.
    del written["bert_jax"]
    (tmp_path / "best" / "config.json").write_text(json.dumps(written))
    assert load(tmp_path).labels == ("no", "yes")
    model = bert_jax.load(tmp_path)
    assert model.predict("sea good ship")["labels"] == ["yes"]
    rows = [("it is good", ["yes"]), ("it is", []), ("bad and good", "no,yes")]
    assert model.evaluate(rows)["exact_match"] == 100


@pytest.mark.parametrize("seed", range(10))
def test_a_label_of_one_row_trains_for_every_seed(seed):
    """As in a long tail of labels, where a few are only in dev."""
    rows = [(f"text {i}", ["common", f"t{i % 40}"]) for i in range(60)]
    held_out = bert_jax.tasks.multi_label().with_rows(
        train=rows, held_out=0.2, seed=seed
    )
    folds = bert_jax.tasks.multi_label().with_rows(train=rows).folds(5, seed)
    for task in (held_out, *folds):
        assert len(task.labels) == 41
        read = [row for split in ("train", "dev") for row in task.read(split)]
        assert len(read) == 60


def test_one_label_that_a_text_has_or_not():
    rows = [("a bad film", ["toxic"]), ("a good film", [])] * 8
    task = bert_jax.tasks.multi_label().with_rows(train=rows)
    assert (task.labels, task.outputs) == (("toxic",), 1)
    assert [row.label for row in task.read("train")][:2] == [("toxic",), ()]


ONE_HOT = [
    {"text": "pasta", "food": 1, "service": 0},
    {"text": "a kind waiter", "food": "0", "service": True},
    {"text": "both", "food": 1.0, "service": "1.0"},
    {"text": "none", "food": "False", "service": "0"},
]


@pytest.mark.parametrize(
    "label", [["food", "service"], "food,service", "food, service"]
)
@pytest.mark.parametrize("form", ["rows", "columns", "csv"])
def test_columns_of_zero_and_one_are_labels(label, form, tmp_path):
    train = ONE_HOT
    if form == "columns":
        train = {name: [row[name] for row in ONE_HOT] for name in ONE_HOT[0]}
    elif form == "csv":
        train = tmp_path / "train.csv"
        cells = [",".join(map(str, row.values())) for row in ONE_HOT]
        train.write_text("\n".join(["text,food,service", *cells]))
    multi_label = bert_jax.tasks.multi_label(label=label)
    test = [{"text": "new"}, {"text": "newer"}]
    read = multi_label.with_rows(train=train, dev=[("so", [0, 1])], test=test)
    assert read.labels == ("food", "service")
    labels = [("food",), ("service",), ("food", "service"), ()]
    assert [row.label for row in read.read("train")] == labels
    assert read.read("dev")[0].label == ("service",)
    assert read.splits.predicted == ("test",)
    # A saved model has its labels beside the names of the columns.
    config = dataclasses.replace(read.config, labels=read.labels)
    assert MultiLabel(config).with_rows(dev=train).read("dev")[0].label == ("food",)


def test_wrong_columns_of_zero_and_one_are_refused():
    multi_label = bert_jax.tasks.multi_label(label=["food", "service"])
    for change, message in (
        ({"food": 2}, "^train, row 0: 'food' is 2, expected 0 or 1"),
        ({"food": None}, '^train, row 0: "food" is missing'),
    ):
        with pytest.raises(UserError, match=message):
            multi_label.with_rows(train=[ONE_HOT[0] | change]).read("train")
    with pytest.raises(
        UserError, match="no column 'service'; the columns are text, fo"
    ):
        multi_label.with_rows(train=[{"text": "a", "food": 1}]).read("train")
    with pytest.raises(UserError, match="leave labels out"):
        bert_jax.tasks.multi_label(label=["food", "service"], labels=["x"])


@pytest.mark.parametrize("label", [["food", "food"], "food,", "food,service,food"])
def test_columns_of_labels_are_different(label):
    with pytest.raises(UserError, match="expected a different column for each label"):
        bert_jax.tasks.multi_label(label=label)


def test_a_separator_is_a_text():
    with pytest.raises(UserError, match=r"data\.separator is empty"):
        bert_jax.tasks.multi_label(separator="")


def test_labels_may_be_a_set_or_missing():
    frame = pandas.DataFrame({"text": ["a", "b", "c"]})
    frame["label"] = [{"y", "x"}, float("nan"), None]
    rows = bert_jax.tasks.multi_label().with_rows(train=frame).read("train")
    assert [row.label for row in rows] == [("x", "y"), (), ()]


def test_a_label_in_the_settings_may_look_like_a_list():
    labels = ("[1, 2]", "[a", "b]")
    task = bert_jax.tasks.multi_label(labels=labels)
    rows = [("x", "[1, 2]"), ("y", '["[a", "b]"]'), {"text": "z", "label": "[1, 2]"}]
    read = task.with_rows(train=rows).read("train")
    assert [row.label for row in read] == [labels[:1], labels[1:], labels[:1]]
