import datetime
import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest

import bert_jax
from bert_jax.errors import UserError
from bert_jax.tasks.data_sets import CORRELATIONS
from bert_jax.tasks.families import saved_task, task_of_head
from bert_jax.tasks.scores import scores
from bert_jax.tasks.task import found, objects_of, warnings, write_answers
from bert_jax.tasks.text_classification import (
    Classification,
    ClassificationConfig,
    MultiLabel,
)


@pytest.fixture
def make(tmp_path):
    """A function that makes a table task from the contents of files by name."""

    def make(files, **settings):
        for name, content in files.items():
            (tmp_path / name).write_text(content)
        settings = dict(task="table", dir=str(tmp_path)) | settings
        return Classification(ClassificationConfig(**settings))

    return make


def letters(tokenizer, features):
    """Sequences as strings: one character a token, [CLS] as <, [SEP] as >."""
    text = ["".join(tokenizer.tokens[i] for i in ids) for ids in features.input_ids]
    return [t.replace("[CLS]", "<").replace("[SEP]", ">") for t in text]


def segments(features):
    return ["".join(map(str, ids)) for ids in features.token_type_ids]


def splits(task):
    return task.splits.scored, task.splits.predicted


TRAIN = "text,label\na b,good\nc,bad\nd,good\n"


def test_table_reads_splits_labels_and_targets(make, tokenizer):
    task = make({"train.csv": TRAIN, "dev.csv": "id,text,label\n7,a,bad\n"})
    assert (task.labels, task.outputs) == (("bad", "good"), 2)
    assert (task.main_metric, splits(task)) == ("accuracy", (("dev",), ()))
    rows = task.read("train")
    features = task.encode(rows, tokenizer)
    assert letters(tokenizer, features) == ["<ab>", "<c>", "<d>"]
    assert segments(features) == ["0000", "000", "000"]
    np.testing.assert_array_equal(features.targets["label"], [1, 0, 1])
    assert features.targets["label"].dtype == np.int32
    assert {ids.dtype for ids in features.input_ids} == {np.dtype(np.int32)}
    np.testing.assert_array_equal(features.example, [0, 1, 2])
    assert task.read("dev")[0].id == "7"


def test_a_tables_test_split_is_scored_if_it_has_labels(make):
    files = {"train.csv": TRAIN, "dev.csv": TRAIN, "test.csv": "text,label\na,good\n"}
    task = make(files)
    assert splits(task) == (("dev", "test"), ())
    assert task.read("test")[0].label == "good"
    task = make(files | {"test.csv": "text\na\n"})
    assert splits(task) == (("dev",), ("test",))
    assert task.read("test")[0].label is None


def test_a_class_may_be_given_by_its_number_unless_names_are_numbers(make, caplog):
    dev = '{"text": "a", "label": 0}\n{"text": "b", "label": 1}\n'
    task = make({"dev.jsonl": dev}, labels=("poor", "fine"))
    assert [row.label for row in task.read("dev")] == ["poor", "fine"]
    assert caplog.messages == ["labels 0, 1 are read as poor, fine, by position"]
    for names in (("1", "2", "3"), ("-1", "1"), ("0.5", "1.5")):
        with pytest.raises(UserError, match=r"dev\.jsonl:1: label '0' is not in the"):
            make({"dev.jsonl": dev}, labels=names).read("dev")


def test_pairs_are_read_from_chosen_columns_and_files(make, tokenizer):
    names = dict(train="t.tsv", text_a="left", text_b="right", label="class")
    task = make({"t.tsv": 'left\tright\tclass\n"a\tb c\tx\nd\te\ty\n'}, **names)
    rows = task.read("train")
    fields = [(row.text_a, row.text_b, row.label) for row in rows]
    assert fields == [('"a', "b c", "x"), ("d", "e", "y")]
    features = task.encode(rows[1:], tokenizer)
    assert letters(tokenizer, features) == ["<d>e>"]
    assert segments(features) == ["00011"]


def test_regression_reads_numbers(make, tokenizer):
    task = make({"train.csv": "text,label\na,1.5\nb,-2\n"}, regression=True)
    assert (task.labels, task.outputs, task.main_metric) == ((), 1, "pearson")
    rows = task.read("train")
    features = task.encode(rows, tokenizer)
    np.testing.assert_array_equal(features.targets["label"], [1.5, -2])
    assert features.targets["label"].dtype == np.float32
    outputs = [np.float32([0.25]), np.float32([3])]
    assert task.decode(rows, features, outputs) == [{"value": 0.25}, {"value": 3}]


@pytest.mark.parametrize(
    "files, settings, message",
    [
        (
            {"dev.csv": "text,label\na,maybe\n"},
            {"labels": ["bad", "good"]},
            r"dev\.csv:2: label 'maybe' is not in the label set bad, good$",
        ),
        (
            {"dev.csv": "text,label\na,0.5\n"},
            {"labels": [*"abcdefghijkl"]},
            "the label set a, .* j and 2 more; regression=True learns numbers",
        ),
        (
            {"dev.csv": "text,label\na, \n"},
            {},
            r"dev\.csv:2: the label is empty; fill it in or drop the row",
        ),
        ({"dev.csv": "text\na\n"}, {}, r"dev\.csv:2: no column 'label'; .* are text"),
        ({"dev.csv": "text,label\n ,bad\n"}, {}, r"dev\.csv:2: the text is empty"),
        (
            {
                "train.csv": "text,b,label\nx,y,x\n",
                "dev.csv": "text,b,label\na, ,bad\n",
            },
            {"text_b": "b", "labels": ("bad", "x")},
            r"dev\.csv:2: the text is empty",
        ),
        (
            {"dev.csv": "text,label\na,b\n"},
            {"regression": True},
            r"dev\.csv:2: label 'b'; expected a number",
        ),
        (
            {"dev.csv": "text,label\na,nan\n"},
            {"regression": True},
            r"dev\.csv:2: label 'nan'; expected a number",
        ),
        ({}, {}, r"has no dev\.csv, dev\.csv\.gz, .*data\.dir"),
        ({}, {"dir": __file__}, r"classification\.py has no .* \(it is a file\); set"),
        ({}, {"dir": ""}, r"^the current folder has no dev\.csv"),
        ({}, {"dev": "valid.csv"}, r"has no valid\.csv \(it has train\.csv\); set"),
    ],
)
def test_bad_rows_of_a_table_are_refused(make, files, settings, message):
    task = make({"train.csv": TRAIN, **files}, **settings)
    with pytest.raises(UserError, match=message):
        task.read("dev")


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"task": "colla"}, "data.task='colla', expected one of cola, sst2"),
        ({"truncation": "middle"}, "data.truncation='middle', expected .*windows"),
        ({"truncation": "windows", "text_b": "b"}, "windows is for single texts"),
        ({"truncation": "windows", "task": "mrpc"}, "windows is for single texts"),
        ({"stride": 0}, "data.stride=0, expected at least 1"),
        (
            {"truncation": "head_tail", "head_tokens": 126},
            "head_tokens=126, expected 1 to 125",
        ),
        ({"max_length": 4, "text_b": "b"}, "data.max_length=4, expected at least 5"),
    ],
)
def test_conflicting_settings_are_refused(make, settings, message):
    with pytest.raises(UserError, match=message):
        make({}, **settings)


TEXT = "a b c d e f g h i j"


@pytest.mark.parametrize(
    "settings, expected, truncated",
    [
        ({}, ["<abcdef>"], 1),
        ({"truncation": "tail"}, ["<efghij>"], 1),
        ({"truncation": "head_tail", "head_tokens": 2}, ["<abghij>"], 1),
        ({"truncation": "head_tail"}, ["<afghij>"], 1),  # a quarter is the head
        ({"truncation": "windows", "stride": 3}, ["<abcdef>", "<defghi>", "<ghij>"], 0),
        ({"truncation": "windows", "stride": 99}, ["<abcdef>", "<ghij>"], 0),
        ({"truncation": "windows", "stride": 4}, ["<abcdef>", "<efghij>"], 0),
        ({"max_length": 12, "truncation": "windows"}, ["<abcdefghij>"], 0),
        ({"max_length": 12, "truncation": "tail"}, ["<abcdefghij>"], 0),
    ],
)
def test_single_texts_are_truncated_by_the_setting(
    parse, make, tokenizer, settings, expected, truncated
):
    task = make({}, **({"max_length": 8, "stride": 2} | settings))
    rows = parse(task, [TEXT, "x"], "input")
    features = task.encode(rows, tokenizer)
    assert letters(tokenizer, features) == [*expected, "<x>"]
    np.testing.assert_array_equal(features.example, [0] * len(expected) + [1])
    assert features.truncated == truncated
    assert features.targets == {}


@pytest.mark.parametrize(
    "first, second, truncation, expected",
    [
        ("a b", "c d e f g h", "head", "<ab>cde>"),
        ("a b c d e f", "g h", "head", "<abc>gh>"),
        ("a b c d", "e f g h", "head", "<abc>ef>"),
        ("a b", "c d e f g h", "tail", "<ab>fgh>"),
        ("a b c d e f", "g h i j k l", "tail", "<def>kl>"),
        ("a b c d e f", "g h i j k l", "head_tail", "<aef>gl>"),
        ("a", "g h i j k l", "head_tail", "<a>gjkl>"),
        ("a b", "c d e", "head", "<ab>cde>"),
    ],
)
def test_pairs_are_truncated_by_the_setting(
    parse, make, tokenizer, first, second, truncation, expected
):
    task = make(
        {},
        text_b="b",
        max_length=8,
        truncation=truncation,
        head_tokens=1,
        labels=("x",),
    )
    rows = parse(task, [f"{first}\t{second}"], "input")
    features = task.encode(rows, tokenizer)
    assert letters(tokenizer, features) == [expected]
    tokens = len(first.split()) + len(second.split())
    assert features.truncated == (tokens > 8 - 3)


def test_windows_train_with_the_label_of_their_row_and_predict_its_mean(
    make, tokenizer
):
    task = make(
        {"train.csv": f"text,label\na,good\n{TEXT},bad\nb,good\n"},
        truncation="windows",
        stride=4,
        max_length=8,
    )
    rows = task.read("train")
    features = task.encode(rows, tokenizer)
    np.testing.assert_array_equal(features.example, [0, 1, 1, 2])
    np.testing.assert_array_equal(features.targets["label"], [1, 0, 0, 1])
    outputs = [np.float32(x) for x in ([0, 0], [4, 0], [0, 2], [0, 1])]
    answers = task.decode(rows, features, outputs)
    assert [answer["label"] for answer in answers] == ["bad", "bad", "good"]
    expected = 1 / (1 + math.exp(-1))  # the mean of the row's logits is [2, 1]
    assert answers[1]["probability"] == pytest.approx(expected, abs=1e-15)
    assert answers[1]["probabilities"] == {
        "bad": pytest.approx(expected),
        "good": pytest.approx(1 - expected),
    }
    assert task.score(rows, answers) == {
        "accuracy": pytest.approx(200 / 3),
        "f1_macro": pytest.approx(200 / 3),
    }


def test_rows_to_predict_are_parsed(parse, make):
    task = make({}, text_a="left", text_b="right", labels=("x", "y"))
    objects = {"text_a": "d", "text_b": "e", "id": 5}, {"text_a": "", "text_b": " "}
    parsed = parse(task, ["a b\tc\r\n", *objects], "in")
    assert [(row.text_a, row.text_b, row.id, row.where) for row in parsed] == [
        ("a b", "c", None, "in:1"),
        ("d", "e", 5, "in:2"),
        ("", " ", None, "in:3"),
    ]
    (row,) = parse(task, [{"right": "g", "left": "f"}])
    assert (row.text_a, row.text_b) == ("f", "g")
    single = make({}, labels=("x", "y"))
    parsed = parse(single, ["\n", "a"]) + parse(single, [{"text": "b"}])
    assert [(row.text_a, row.text_b, row.label) for row in parsed] == [
        *(("", None, None), ("a", None, None), ("b", None, None))
    ]


def test_predictions_are_written_as_tables(make, tmp_path):
    """Each label and each id stays in one cell."""
    content = [
        {"text": "a", "label": "x\ty", "id": "1\n2"},
        {"text": "b", "label": "z"},
    ]
    dev = "".join(json.dumps(row) + "\n" for row in content)
    task = make({"dev.jsonl": dev}, labels=("x\ty", "z"))
    answers = [
        {"label": "x\ty", "probability": 0.75, "probabilities": {}},
        {"label": "z", "probability": 0.5, "probabilities": {}},
    ]
    (path,) = write_answers(task, task.read("dev"), answers, "test", tmp_path / "out")
    assert path == tmp_path / "out" / "test_predictions.tsv"
    assert path.read_text() == ("index\tprediction\n1\\n2\tx\\ty\n1\tz\n")


def test_scores_equal_a_computation_by_hand():
    truth, predicted = [1, 1, 1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 1, 1]
    # 2 true positives, 1 false negative, 2 false positives, 3 true negatives.
    actual = scores(("accuracy", "f1", "f1_macro", "matthews"), truth, predicted)
    f1, other = 2 * 2 / (2 * 2 + 1 + 2), 2 * 3 / (2 * 3 + 1 + 2)
    matthews = (2 * 3 - 2 * 1) / math.sqrt(4 * 3 * 5 * 4)
    expected = [62.5, 100 * f1, 50 * (f1 + other), 100 * matthews]
    assert list(actual.values()) == pytest.approx(expected)
    actual = scores(CORRELATIONS, [1, 2, 3, 4], [1, 3, 2, 10])
    x, y = np.array([-1.5, -0.5, 0.5, 1.5]), np.array([-3, -1, -2, 6])
    pearson = 100 * x @ y / math.sqrt((x @ x) * (y @ y))
    spearman = 100 * (1 - 6 * 2 / (4 * 15))  # ranks 1 3 2 4
    expected = [pearson, spearman, (pearson + spearman) / 2]
    assert list(actual.values()) == pytest.approx(expected)
    # The errors are 0, 1, 1 and 6, in units of the label.
    actual = scores(("rmse", "mae"), [1, 2, 3, 4], [1, 3, 2, 10])
    assert actual == pytest.approx({"rmse": math.sqrt(38 / 4), "mae": 2})
    assert scores(("rmse", "mae"), [7], [4]) == {"rmse": 3, "mae": 3}


def test_undefined_scores_are_zero():
    for predicted in ([2, 2, 2], [2, 2 + 1e-15, 2]):
        actual = scores(CORRELATIONS, [1, 2, 3], predicted)
        assert all(abs(score) < 1e-9 for score in actual.values())
    assert scores(CORRELATIONS, [1], [1]) == dict.fromkeys(CORRELATIONS, 0)
    names = ("f1", "f1_macro", "matthews")
    assert scores(names, [0, 0], [0, 0]) == {"f1": 0, "f1_macro": 100, "matthews": 0}


@pytest.mark.parametrize(
    "settings, label, warned",
    [
        ({"labels": ("x", "y")}, "x", True),
        ({"labels": ("x", "y")}, None, False),
        ({"regression": True}, 2.5, True),
    ],
)
def test_truncated_rows_and_a_single_label_are_warned_about(
    tokenizer, settings, label, warned
):
    """The first rows of a file may have one label because the file is sorted."""
    task = bert_jax.tasks.classification(max_length=6, **settings)
    for long in (1, 2):
        texts = ["a b c d e"] * long + ["a b c d"] * (10 - long)
        rows = [(text, label or "xy"[i % 2]) for i, text in enumerate(texts)]
        rows = task.with_rows(train=rows).read("train")
        messages = warnings(task, rows, task.encode(rows, tokenizer))
        assert ("20% of the rows are longer than max_length=6" in str(messages)) == (
            long > 1
        )
        assert ("rows have the same label" in str(messages)) == warned


@pytest.mark.parametrize("form", ["rows", "a.jsonl"])
def test_no_other_column_replaces_a_missing_value(form, tmp_path):
    task = bert_jax.tasks.classification(text_a="review", label="topic")
    row = {"review": "a film", "topic": "x", "text": "zz", "label": "other"}
    good = [row, row | {"topic": "y"}]

    def read(rows):
        if form == "rows":
            return task.with_rows(train=rows, dev=good).read("train")
        path = tmp_path / form
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return task.with_rows(train=path, dev=good).read("train")

    assert [row.label for row in read(good)] == ["x", "y"]
    for name in ("review", "topic"):
        with pytest.raises(UserError, match=f'"{name}" is missing'):
            read([*good, row | {name: None}])
        absent = {key: value for key, value in row.items() if key != name}
        for rows in ([*good, absent], [absent, *good]):
            message = (
                f"column .*{name}.* in all rows|no column '{name}'; the columns are"
            )
            with pytest.raises(UserError, match=message):
                read(rows)


@pytest.mark.parametrize("label", [datetime.date(2020, 1, 1), 1.5])
def test_a_label_is_a_text_or_a_whole_number(label):
    good, make = [("a", "x"), ("b", "y")], bert_jax.tasks.classification
    bad = [*good, ("c", label)]
    for split in ("train", "dev"):
        task = make().with_rows(**{"train": good, "dev": good, split: bad})
        with pytest.raises(
            UserError,
            match=rf"^{split}, row 2: the label is .*; expected a text or a wh",
        ):
            task.read(split)


def test_ratings_of_whole_numbers_are_classes(make):
    """pandas writes whole numbers in a column with a missing value as 0.0 and 1.0."""
    files = {"train.csv": "text,label\na,1.0\nb,10.0\nc,2.0\n"}
    files["dev.jsonl"] = '{"text": "a", "label": 2}\n{"text": "a", "label": 10.0}\n'
    task = make(files)
    assert task.labels == ("1", "2", "10")
    assert [row.label for row in task.read("train")] == ["1", "10", "2"]
    assert [row.label for row in task.read("dev")] == ["2", "10"]


def test_labels_with_decimals_are_numbers_or_texts(make):
    files = {"train.csv": "text,label\na,1.0\nb,0.0\n"}
    assert make(files, regression=True).read("train")[0].label == 1.0
    assert make(files, labels=("0.0", "1.0")).read("train")[0].label == "1.0"
    versions = {"train.csv": "text,label\na,1.0\nb,1.5\n"}
    assert make(versions).labels == ("1.0", "1.5")
    licences = {"train.csv": "text,label\na,GPL-2.0\nb,GPL-3.0\n"}
    assert make(licences).labels == ("GPL-2.0", "GPL-3.0")


def test_swapped_columns_are_refused():
    task = bert_jax.tasks.classification()
    rows = [(f"text {i}", "xy"[i % 2]) for i in range(21)]
    assert task.with_rows(train=rows).labels == ("x", "y")
    swapped = [(label, text) for text, label in rows]
    with pytest.raises(UserError, match=r"^train: 21 rows with 21 .* swapped"):
        _ = task.with_rows(train=swapped).labels
    # Twenty rows may have one class each, or more rows if the labels are given.
    assert len(task.with_rows(train=swapped[:20]).labels) == 20
    named = bert_jax.tasks.classification(labels=[text for text, _ in rows])
    assert len(named.with_rows(train=swapped).read("train")) == 21
    # Rows of several labels may have more labels than rows.
    several = [(f"text {i}", [f"x{i}", f"x{i + 1}"]) for i in range(21)]
    assert len(bert_jax.tasks.multi_label().with_rows(train=several).labels) == 22


def test_a_head_of_another_tool_reads_texts_or_pairs():
    config = SimpleNamespace(max_positions=64)
    head = SimpleNamespace(head="sequence", labels=("x", "y"), config=config)
    head.problem_type = head.tokenizer = None
    task = task_of_head(head)
    assert type(task) is Classification
    for rows in ([("a", "x"), ("b", "y")], [("a", "b", "x")]):
        rows_of_dev = task.with_rows(dev=rows).read("dev")
        second = None if len(rows) > 1 else "b"
        first = rows_of_dev[0]
        assert (first.text_a, first.text_b, first.label) == ("a", second, "x")
    head.problem_type = "multi_label_classification"
    task = task_of_head(head)
    assert (type(task), task.labels) == (MultiLabel, ("x", "y"))
    head.problem_type = "regression"
    with pytest.raises(UserError, match="expected one number for each text"):
        task_of_head(head)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        (range(12), [str(i) for i in range(12)]),
        ([10, -1, 2, 0], ["-1", "0", "2", "10"]),
        (["10", "9", "011"], ["9", "10", "011"]),
        (["10", "9", "x"], ["10", "9", "x"]),
        (["02", "1", "2"], ["1", "02", "2"]),
        (["10.5", "9.5"], ["10.5", "9.5"]),
        (["\u0663", "2"], ["2", "\u0663"]),  # a digit of another script is a name
        ([True, False], ["False", "True"]),
    ],
)
def test_whole_numbers_are_in_the_order_of_numbers(values, labels, make):
    rows = [("a text", value) for value in values]
    of_rows = bert_jax.tasks.classification().with_rows(train=rows)
    cells = "".join(f"a text,{value}\n" for value in values)
    of_file = make({"train.csv": f"text,label\n{cells}"})
    for task in (of_rows, of_file):
        assert task.labels == tuple(labels)
        assert [row.label for row in task.read("train")] == [*map(str, values)]


def test_a_label_that_only_dev_has_is_kept(make):
    task = make({"train.csv": TRAIN, "dev.csv": "text,label\na,maybe\n"})
    assert task.labels == ("bad", "good", "maybe")
    assert task.read("dev")[0].label == "maybe"
    task = make({"test.csv": "text,label\na,never\n"})
    with pytest.raises(UserError, match="'never' is not in the label set bad, good, m"):
        task.read("test")


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"text_a": "titel"}, "titel"), ({"label": "starz"}, "starz")],
)
def test_a_column_that_a_user_names_must_exist(settings, name):
    rows = [
        {"title": "x", "text": "good", "label": "a", "stars": "1"},
        {"title": "y", "text": "bad", "label": "b", "stars": "2"},
    ]
    message = f"no column '{name}'; the columns are title, text, label, stars"
    for split in ("train", "dev"):
        with pytest.raises(UserError, match=message):
            bert_jax.tasks.classification(**settings).with_rows(**{split: rows})
    right = bert_jax.tasks.classification(text_a="title", label="stars")
    read = right.with_rows(train=rows).read("train")
    assert [(row.text_a, row.label) for row in read] == [("x", "1"), ("y", "2")]
    # A usual name counts if the user names none.
    usual = bert_jax.tasks.classification().with_rows(train=rows).read("train")
    assert [(row.text_a, row.label) for row in usual] == [("good", "a"), ("bad", "b")]


def test_a_row_to_predict_may_have_a_usual_name_and_the_log_has_it(caplog):
    task = bert_jax.tasks.classification(text_a="review", labels=("a", "b"))
    rows = [(f"row {i}", {"text": text}) for i, text in enumerate(["good", "bad"])]
    assert [row.text_a for row in objects_of(task, rows)] == ["good", "bad"]
    assert caplog.messages == ["row 0: no column 'review'; 'text' is read"]
    rows = [("row 0", {"other": "good"})]
    with pytest.raises(
        UserError, match="row 0: no column 'review' or 'text'; the columns are o"
    ):
        [*objects_of(task, rows)]


@pytest.mark.parametrize("seed", range(5))
def test_labels_do_not_depend_on_the_rows_for_dev(seed):
    """Labels are decided before rows are chosen for dev, for folds as well."""
    rows = [(f"text {i}", f"l{i % 7}") for i in range(21)]
    task = bert_jax.tasks.classification()
    expected = tuple(f"l{i}" for i in range(7))
    assert task.with_rows(train=rows, held_out=0.5, seed=seed).labels == expected
    folds = task.with_rows(train=rows).folds(3, seed)
    assert {fold.labels for fold in folds} == {expected}


def test_a_table_without_rows_is_named(make):
    with pytest.raises(
        UserError, match=r"train\.csv has no rows; expected at least one"
    ):
        _ = make({"train.csv": "text,label\n"}).labels
    with pytest.raises(UserError, match=r"^train has no rows; expected rows with a"):
        _ = bert_jax.tasks.classification().with_rows(train=[]).labels


@pytest.mark.parametrize(
    "train, dev, labels, read",
    [
        (["neg", "pos"], [1, 0], ("neg", "pos"), ["pos", "neg"]),
        (["neg", "pos"], ["1", "other"], ("neg", "pos", "other"), ["pos", "other"]),
        ([True, False], ["true", " FALSE"], ("False", "True"), ["True", "False"]),
        (["1.0", "none", "2.0"], ["1", "2"], ("1.0", "2.0", "none"), ["1.0", "2.0"]),
        (["1.0", "2.0"], ["3.0", "2"], ("1", "2", "3"), ["3", "2"]),
        (["US", "us"], ["us", "US"], ("US", "us"), ["us", "US"]),
    ],
)
def test_labels_of_dev_are_matched_with_those_of_train(train, dev, labels, read):
    def rows(values):
        return [{"text": "a", "label": value} for value in values]

    task = bert_jax.tasks.classification()
    task = task.with_rows(train=rows(train * 9), dev=rows(dev))
    assert task.labels == labels
    assert [row.label for row in task.read("dev")] == read
    assert found(task, ("dev",)) == {*read}


def test_two_spellings_in_train_give_one_warning(caplog):
    rows = [("a", "Good"), ("b", "good "), ("c", "bad")] * 9
    assert bert_jax.tasks.classification().with_rows(train=rows).labels == (
        "Good",
        "bad",
        "good ",
    )
    (line,) = [x.getMessage() for x in caplog.records if "different" in x.getMessage()]
    assert "'Good' and 'good '" in line


@pytest.mark.parametrize(
    ("name", "settings", "missing"),
    [
        ("pairs", {"text_a": "text"}, "text"),
        ("glue", {"name": "mrpc", "text_a": "text"}, "text"),
        ("glue", {"name": "mrpc", "text_b": "text_b"}, "text_b"),
        ("glue", {"name": "sst2", "label": "label"}, "label"),
        ("sentence_vectors", {"text_a": "text"}, "text"),
        ("multi_label", {"label": "label"}, "label"),
    ],
)
def test_a_named_column_has_no_other_name_even_if_the_name_is_usual(
    name, settings, missing
):
    row = {"text_a": "a", "#1 String": "a", "#2 String": "b", "sentence": "c"}
    row |= {"Quality": 1, "labels": "x"}
    if missing != "text":
        row["text"] = "d"
    if name == "sentence_vectors":
        row["text_b"] = "b"
    if missing == "label":
        message = "no column 'label'; .*, or set label of the task"
    else:
        row["label"] = 1
        key = next(key for key in settings if key != "name")
        message = f"no column '{missing}'; .*, or set {key} of the task"
    with pytest.raises(UserError, match=message):
        getattr(bert_jax.tasks, name)(**settings).with_rows(train=[row])


def test_a_model_of_0_2_has_usual_columns_where_it_saved_a_default():
    """0.2 saved "text" and "label" as defaults; a model of 0.3 saves its version."""
    data = {"task": "mrpc", "text_a": "text", "text_b": "", "label": "label"}
    saved = {"family": "classification", "data": data}
    row = {"sentence1": "a", "#2 String": "b", "Quality": "1"}
    read = saved_task(saved).with_rows(dev=[row]).read("dev")
    assert [(row.texts, row.label) for row in read] == [(("a", "b"), "1")]
    with pytest.raises(UserError, match="no column 'text'"):
        saved_task(saved | {"version": "0.3.0"}).with_rows(dev=[row])
    named = saved | {"data": data | {"text_a": "first"}}
    with pytest.raises(UserError, match="no column 'first'"):
        saved_task(named).with_rows(dev=[row])
    table = {"task": "table", "text_a": "text_a", "text_b": "text_b"}
    pairs = saved_task(saved | {"data": table})
    read = pairs.with_rows(train=[{"text": "a", "text_b": "b", "label": "x"}] * 2)
    assert read.splits.rows["train"][0][1]["text_b"] == "b"
    vectors = {"task": "stsb", "text_a": "text_a", "text_b": "text_b"}
    task = saved_task({"family": "sentence_vectors", "data": vectors})
    rows = [{"sentence1": "a", "sentence2": "b", "score": 3.5}]
    assert task.with_rows(dev=rows).read("dev")[0].texts == ("a", "b")


def test_changed_labels_are_the_labels():
    task = bert_jax.tasks.classification().with_rows(train=[("a", "x"), ("b", "y")] * 2)
    assert task.labels == ("x", "y")
    changed = task.changed(labels=("z", "y", "x"))
    assert (changed.labels, changed.outputs) == (("z", "y", "x"), 3)
    assert changed.read("train") == task.read("train")
    assert task.changed(max_length=9).labels == ("x", "y")
    tags = bert_jax.tasks.tagging().with_rows(train=[("a b", "B-X O")])
    assert (tags.scheme, len(tags.labels)) == ("iob2", 3)
    assert tags.changed(scheme="plain").labels == ("B-X", "O")


def test_labels_of_sick_have_any_case():
    rows = [("a", "b", "entailment"), ("a", "c", "Neutral")]
    task = bert_jax.tasks.sick("entailment").with_rows(train=rows)
    assert [row.label for row in task.read("train")] == ["ENTAILMENT", "NEUTRAL"]


@pytest.mark.parametrize(
    ("train", "dev", "shown"),
    [
        ([0, 1], ["neg", "pos"], r"no label of dev \(neg, pos\) is a label of train"),
        (
            ["yes", "no"],
            [True, False],
            r"\(True, False\) is a label of train \(no, yes\)",
        ),
    ],
)
def test_a_dev_with_other_labels_is_refused(train, dev, shown):
    """Its score would always be 0."""
    rows = {
        "train": list(zip("ab", train, strict=True)),
        "dev": [("c", x) for x in dev],
    }
    with pytest.raises(UserError, match=shown):
        _ = bert_jax.tasks.classification().with_rows(**rows).labels


def test_plus_signs_and_truth_are_the_same_labels_in_dev():
    signs = bert_jax.tasks.classification().with_rows(
        train=[("a", "+1"), ("b", "-1")], dev=[("c", 1), ("d", -1)]
    )
    assert signs.labels == ("-1", "+1")
    assert [row.label for row in signs.read("dev")] == ["+1", "-1"]
    truth = bert_jax.tasks.classification().with_rows(
        train=[("a", 1), ("b", 0)], dev=[("c", True), ("d", False)]
    )
    assert truth.labels == ("0", "1")
    assert [row.label for row in truth.read("dev")] == ["1", "0"]


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        (
            ["caf\u00e9", "cafe\u0301"],
            "'cafe\u0301' and 'caf\u00e9' are different classes",
        ),
        (["x", "x\u200b"], r"'x' and 'x\\u200b' are different classes"),
        ([True, 0, 1], "'True' and '1' are different classes"),
        (["x", "y", "x;y"], "label 'x;y' is a class of its own; .*separator=';'"),
    ],
)
def test_labels_that_look_the_same_give_a_warning(labels, shown, caplog):
    rows = [(f"text {i}", label) for i, label in enumerate([*labels, "other"])]
    assert len(bert_jax.tasks.classification().with_rows(train=rows).labels) == len(
        rows
    )
    assert re.search(shown, caplog.text)


@pytest.mark.parametrize(
    "columns",
    [
        {"text_a": "x", "label": "x"},
        {"text_a": "label"},
        {"text_a": "x", "text_b": "x"},
        {"text_b": "text"},
    ],
)
def test_a_column_is_not_read_twice(columns):
    row = {"x": "a", "text": "b", "label": "c"}
    with pytest.raises(
        UserError, match=r"is read as text_a and as (label|text_b); name"
    ):
        bert_jax.tasks.classification(**columns).with_rows(train=[row, row]).read(
            "train"
        )


def test_a_number_beyond_float32_is_refused():
    rows = [("a", 1e39), ("b", 2)]
    with pytest.raises(
        UserError, match=r"row 0: label 1e[+]39; expected a number of float32"
    ):
        bert_jax.tasks.classification(regression=True).with_rows(train=rows).read(
            "train"
        )


def test_predicted_numbers_keep_their_digits():
    rows = [("a", 1e-4), ("b", 2e-4)]
    task = bert_jax.tasks.classification(regression=True).with_rows(dev=rows)
    files = task.export(task.read("dev"), [{"value": 0.00012345}] * 2, "test")
    assert all("0.00012345" in text for text in files.values()) and files
