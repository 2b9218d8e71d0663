"""Splits of rows: files, data sets of a hub and rows from Python."""

import decimal
import enum
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas
import pytest

import bert_jax
from bert_jax.errors import UserError
from bert_jax.tasks import splits
from bert_jax.tasks.splits import Splits, check_splits, share_of_rows
from bert_jax.tasks.task import with_columns

SPLITS = {
    "train": [{"text": "good", "label": 1}, {"text": "bad", "label": 0}],
    "validation": [{"text": "good", "sentence": "good", "label": 1}],
    "test": [{"text": "so so", "label": -1}],
}


class Featured(list):
    """Rows with features, as a data set has them."""

    features = {"label": SimpleNamespace(names=["x", "y"])}  # noqa: RUF012


class Split(list):
    """The used part of a split of the datasets library."""

    features = {  # noqa: RUF012
        "text": SimpleNamespace(dtype="string"),
        "label": SimpleNamespace(names=["neg", "pos"]),
    }


@pytest.fixture
def hub(monkeypatch):
    """Installs a datasets library with one data set; returns the load_dataset calls."""
    calls = []

    def load_dataset(*names, split):
        calls.append((*names, split))
        return Split(SPLITS[split.partition("[")[0]])

    module = ModuleType("datasets")
    module.load_dataset = load_dataset
    module.get_dataset_split_names = lambda *names: list(SPLITS)
    monkeypatch.setitem(sys.modules, "datasets", module)
    splits.read_hub.cache_clear()
    yield calls
    splits.read_hub.cache_clear()


def test_a_data_set_of_the_hub_is_read(hub):
    task = bert_jax.tasks.classification(dir="hf:org/reviews:english")
    assert task.labels == ("neg", "pos")
    assert (task.splits.scored, task.splits.predicted) == (("dev",), ("test",))
    rows = [row for split in ("train", "dev", "test") for row in task.read(split)]
    assert [row.label for row in rows] == ["pos", "neg", "pos", None]
    assert rows[1].where == "hf:org/reviews:english:train, row 1"
    assert ("org/reviews", "english", "validation") in hub
    part = bert_jax.tasks.classification(dir="hf:org/reviews", train="train[:50%]")
    assert len(part.read("train")) == 2 and ("org/reviews", "train[:50%]") in hub
    check_splits(task.config, task.form)


HUB = {
    "squad": {
        "question": "Where?",
        "context": "the sea",
        "answers": {"text": ["sea"], "answer_start": [4]},
    },
    "choices": {
        "sent1": "A cat.",
        "sent2": "It",
        "label": 1,
        **{f"ending{i}": word for i, word in enumerate(["ran", "sat", "ate", "is"])},
    },
    "tagging": {"tokens": ["in", "Rome"], "ner_tags": [0, 1]},
}


@pytest.mark.parametrize("family", HUB)
def test_every_family_reads_the_hub(family, hub, monkeypatch):
    tags = SimpleNamespace(feature=SimpleNamespace(names=["O", "B-LOC"]))
    monkeypatch.setattr(Split, "features", {"tokens": None, "ner_tags": tags})
    for split in SPLITS:
        monkeypatch.setitem(SPLITS, split, [HUB[family]])
    settings = {"task": "swag"} if family == "choices" else {}
    task = getattr(bert_jax.tasks, family)(dir="hf:org/own", **settings)
    (row,) = task.read("train")
    rows_of_family = {
        "squad": lambda: row.answers == (("sea", 4),),
        "choices": lambda: (
            (row.choices[row.label], row.context) == ("It sat", "A cat.")
        ),
        "tagging": lambda: row.tags == ("O", "B-LOC"),
    }
    assert rows_of_family[family]()


def test_classes_have_the_names_of_their_data_set(hub):
    """They are matched with a task's labels by name, ignoring order and case."""
    train = Split(SPLITS["train"])
    task = bert_jax.tasks.classification().with_rows(train=train)
    assert task.labels == ("neg", "pos")
    assert [row.label for row in task.read("train")] == ["pos", "neg"]
    turned = bert_jax.tasks.classification(labels=("pos", "neg"))
    rows = turned.with_rows(train=train).read("train")
    assert [row.label for row in rows] == ["pos", "neg"]
    upper = bert_jax.tasks.classification(labels=("POS", "NEG", "MIXED"))
    rows = upper.with_rows(train=train).read("train")
    assert [row.label for row in rows] == ["POS", "NEG"]
    other = bert_jax.tasks.classification(labels=("bad", "good"))
    with pytest.raises(
        UserError, match="classes are neg, pos, the labels of the task b"
    ):
        other.with_rows(train=train)
    glue = bert_jax.tasks.glue("sst2", dir="hf:nyu-mll/glue:sst2")
    assert [row.label for row in glue.read("dev")] == ["1"]


@pytest.mark.parametrize("name", ["features", "dataset_info"])
def test_a_frame_may_have_a_column_with_the_name_of_an_attribute(name):
    frame = pandas.DataFrame({"text": ["good", "bad"], "label": ["b", "a"], name: 1})
    task = bert_jax.tasks.classification().with_rows(train=frame)
    assert [row.label for row in task.read("train")] == ["b", "a"]


def test_rows_of_another_library_may_have_an_attribute_features():
    """It declares classes only if it is a mapping, as in a data set of Hugging Face."""

    class Rows(list):
        features = ("text", "label")

    rows = Rows([{"text": "good", "label": "b"}, {"text": "bad", "label": "a"}])
    task = bert_jax.tasks.classification().with_rows(train=rows)
    assert [row.label for row in task.read("train")] == ["b", "a"]


def test_labels_that_are_no_class_are_refused():
    data = Split(
        [{"text": "good", "label": 1, "topic": 2}, {"text": "so", "label": -1}]
    )
    data.features = Split.features | {"topic": SimpleNamespace(names=["a", "b", "c"])}
    task = bert_jax.tasks.classification(labels=("neg", "pos")).with_rows(train=data)
    first, second = (values for _, values in task.splits.rows["train"])
    assert first == {"text": "good", "label": "pos"}
    assert second["label"] is None
    with pytest.raises(UserError, match='train, row 1: "label" is missing'):
        task.read("train")


@pytest.mark.parametrize(
    "name, content",
    [
        ("test.csv", "text,label\nso so,-1\nwell,-1\n"),
        ("test.tsv", "text\tlabel\nso so\t-1\nwell\t-1\n"),
        (
            "test.jsonl",
            '{"text": "so so", "label": -1}\n{"text": "well", "label": null}\n',
        ),
    ],
)
def test_a_test_split_of_labels_minus_one_is_predicted(name, content, tmp_path):
    """As in GLUE's test splits on Hugging Face's hub."""
    path = tmp_path / name
    path.write_text(content)
    (tmp_path / "train.csv").write_text("text,label\ngood,1\nbad,0\n")
    from_files = bert_jax.tasks.classification(dir=str(tmp_path))
    train = tmp_path / "train.csv"
    for task in (from_files, from_files.with_rows(train=train, dev=train, test=path)):
        assert task.splits.scored == ("dev",)
        assert task.splits.predicted == ("test",)
        assert [row.label for row in task.read("test")] == [None, None]


def test_a_hub_needs_its_library_and_a_split(hub, monkeypatch):
    monkeypatch.delitem(SPLITS, "validation")
    task = bert_jax.tasks.classification(dir="hf:org/reviews")
    with pytest.raises(UserError, match=r"has no split validation; it has train, test"):
        task.read("dev")
    monkeypatch.setitem(sys.modules, "datasets", None)
    splits.read_hub.cache_clear()
    task = bert_jax.tasks.classification(dir="hf:org/reviews")
    with pytest.raises(
        UserError, match=r"^hf:org/reviews needs .*pip install datasets"
    ):
        task.read("train")


def test_rows_replace_files():
    rows = [("good", "x"), ("bad", "y"), ("so so", "x")]
    task = bert_jax.tasks.classification()
    of_rows = task.with_rows(train=rows, dev=rows[:1], test=["new"])
    assert of_rows.splits.scored == ("dev",)
    assert of_rows.splits.predicted == ("test",)
    assert of_rows.config.dir.startswith("rows:")
    assert (
        of_rows.config == task.with_rows(train=rows, dev=rows[:1], test=["new"]).config
    )
    assert of_rows.config != task.with_rows(train=rows[1:], dev=rows[:1]).config
    with pytest.raises(
        UserError, match="the task has no train rows; give train=rows, or the l"
    ):
        _ = task.with_rows(dev=rows).labels
    # The first split picks the checkpoint, so it is never the test split.
    for other in ({"dev": rows}, {"held_out": 0.34}):
        of_rows = task.with_rows(train=rows, test=rows, **other)
        assert of_rows.splits.scored == ("dev", "test")
    held_out = task.with_rows(train=rows, held_out=0.34)
    texts = [row.text_a for split in ("train", "dev") for row in held_out.read(split)]
    assert sorted(texts) == sorted(text for text, _ in rows) and len(texts) == 3
    splits_of_seeds = {
        task.with_rows(train=rows, held_out=0.34, seed=i).config.dir for i in range(9)
    }
    assert (
        len(splits_of_seeds) == 2
    )  # each row of x is dev with some seed, and y is always in train
    signs = [("bad", "-1")] * 5 + [("good", "1")]  # -1 can be a class
    assert len(task.with_rows(train=signs, held_out=0.1).read("dev")) == 1


@pytest.mark.parametrize(("share", "most"), [(0.1, 1), (0.34, 1), (0.5, 1), (0.9, 3)])
def test_each_class_keeps_its_share_of_dev(share, most):
    """With a share of 0.9 the large classes replace the kept rows of small classes."""
    sizes = {"a": 61, "b": 24, "c": 10, "d": 2, "e": 2, "f": 1}
    classes = np.random.default_rng(0).permutation(
        np.repeat([*sizes], [*sizes.values()])
    )
    draws = [share_of_rows(classes.tolist(), share, seed) for seed in range(20)]
    for dev in draws:
        assert len(dev) == round(share * 100)
        for name, size in sizes.items():
            count = sum(classes[row] == name for row in dev)
            assert count < size and abs(count - share * size) < most
    assert draws[0] == share_of_rows(classes.tolist(), share, 0)
    # Without classes dev is the start of a permutation, which can contain any row.
    assert share_of_rows([None] * 100, share, 3) == {
        *np.random.default_rng(3).permutation(100)[: round(share * 100)].tolist()
    }
    assert share_of_rows(["a", "b"], share, 0) == set()


def test_a_share_of_the_files_rows_is_held_out(tmp_path):
    lines = [f"text {i},{'ab'[i % 2]}" for i in range(20)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *lines]), "utf-8")
    task = bert_jax.tasks.classification(dir=str(tmp_path), dev=0.3)
    check_splits(task.config, task.form)
    rows = {name: task.splits.rows[name] for name in ("train", "dev")}
    texts = {name: {row["text"] for _, row in rows[name]} for name in rows}
    assert (len(rows["train"]), len(rows["dev"])) == (14, 6)
    assert texts["train"] | texts["dev"] == {f"text {i}" for i in range(20)}
    assert sorted(row["label"] for _, row in rows["dev"]) == list("aaabbb")
    # An evaluation of the finished run scores the same rows, and reads no others.
    scored = splits.read_splits(task.config, task.form, leave_out=("train",))
    assert scored.rows == {"dev": rows["dev"]}
    with pytest.raises(UserError, match=r"0.3 holds out rows that no fold would have"):
        task.folds(2)


@pytest.mark.parametrize("dev", ["0", "1.0", "-0.1", "nan", "20"])
def test_a_number_that_is_no_share_of_rows_is_refused(dev, tmp_path):
    (tmp_path / "train.csv").write_text("text,label\na,b\n", "utf-8")
    task = bert_jax.tasks.classification(dir=str(tmp_path), dev=dev)
    with pytest.raises(UserError, match=f"data.dev={dev}, expected a share"):
        check_splits(task.config, task.form)


def test_a_share_is_refused_where_dev_has_other_names(tmp_path):
    (tmp_path / "train.tsv").write_text("")
    task = bert_jax.tasks.glue("mnli", dir=str(tmp_path), dev="0.2")
    with pytest.raises(UserError, match="has its own train, dev_matched"):
        check_splits(task.config, task.form)


@pytest.mark.parametrize(
    ("task", "row", "columns", "texts"),
    [
        (
            bert_jax.tasks.squad(),
            {"q": "who?", "c": "a man", "answers": ["a man"]},
            ("q", "c"),
            {"question": "who?", "context": "a man"},
        ),
        (
            bert_jax.tasks.multi_label(label=("x", "y")),
            {"review": "so so", "x": 1, "y": 0},
            ("review",),
            {"text_a": "so so"},
        ),
        (
            bert_jax.tasks.sentence_vectors(),
            {"left": "a man", "right": "a boy", "label": 0.5},
            ("left", "right"),
            {"text_a": "a man", "text_b": "a boy"},
        ),
        (
            bert_jax.tasks.choices(task="swag"),
            {"start": "He", "sent2": "", "label": 1}
            | {f"ending{i}": f"text {i}" for i in range(4)},
            ("start",),
            {"context": "He", "label": 1},
        ),
    ],
)
def test_columns_of_texts_leave_the_column_of_the_label(task, row, columns, texts):
    (parsed,) = with_columns(task, columns).with_rows(dev=[row]).read("dev")
    assert {name: getattr(parsed, name) for name in texts} == texts


def test_two_files_of_a_split_are_refused(tmp_path):
    for name in ("train.csv", "train.jsonl", "dev.csv"):
        (tmp_path / name).write_text("text,label\na,b\n", "utf-8")
    task = bert_jax.tasks.classification(dir=str(tmp_path))
    with pytest.raises(UserError, match=r"has train.csv, train.jsonl; set data.train"):
        check_splits(task.config, task.form)
    check_splits(task.changed(train="train.csv").config, task.form)


def test_each_row_is_dev_in_one_fold():
    rows = [(f"text {i}", "abbcccccc"[i % 9]) for i in range(90)] + [("text", "d")]
    task = bert_jax.tasks.classification().with_rows(train=rows, test=rows)
    folds = task.folds(4, seed=1)
    assert [fold.config.dir for fold in folds] == [
        fold.config.dir for fold in task.folds(4, seed=1)
    ]
    assert folds[0].config != task.folds(4, seed=2)[0].config
    dev = [row.where for fold in folds for row in fold.read("dev")]
    assert sorted(dev) == sorted(row.where for row in task.read("train")[:-1])
    counts = {"a": 10, "b": 20, "c": 60}
    for fold in folds:
        assert fold.splits.scored == ("dev",) and fold.labels == (*"abcd",)
        train, dev = ([row.label for row in fold.read(s)] for s in ("train", "dev"))
        assert len(train) + len(dev) == 91 and "d" in train
        assert all(abs(dev.count(x) - n / 4) < 1 for x, n in counts.items())
    numbers = bert_jax.tasks.classification(regression=True)
    numbers = numbers.with_rows(train=[(f"text {i}", i) for i in range(7)])
    assert sorted(len(fold.read("dev")) for fold in numbers.folds(3)) == [2, 2, 3]
    with pytest.raises(UserError, match=r"^folds=8, but train has 7 rows; expected at"):
        numbers.folds(8)
    with pytest.raises(
        UserError, match="the number of folds is 1, expected at least 2"
    ):
        numbers.folds(1)
    with pytest.raises(
        UserError, match="too few rows to hold some out for dev, because"
    ):
        task.with_rows(train=[("a", "x"), ("b", "y")], held_out=0.1)


@pytest.mark.parametrize("data", [{"text": "a"}, ("a", "b"), "a.csv"])
def test_a_single_row_is_refused_as_a_split(data):
    """A dictionary with a text is one row. A string is a text."""
    rows = [("a", "0"), ("b", "1")]
    for split in ("train", "dev", "test"):
        splits = {"train": rows, "dev": rows} | {split: data}
        with pytest.raises(
            UserError, match=rf"^{split} is a .*one row; expected a list"
        ):
            bert_jax.tasks.classification().with_rows(**splits)


def test_an_empty_cell_of_a_table_is_a_missing_label(tmp_path):
    """The words NA and NaN can be texts."""
    (tmp_path / "train.csv").write_text("text,label\nNA,nan\nNaN,NA\n")
    (tmp_path / "dev.csv").write_text("text,label\na,NA\n")
    (tmp_path / "test.csv").write_text("text,label\na,\nb,\n")
    task = bert_jax.tasks.classification(dir=str(tmp_path))
    assert task.labels == ("NA", "nan")
    assert [row.text_a for row in task.read("train")] == ["NA", "NaN"]
    assert (task.splits.scored, task.splits.predicted) == (("dev",), ("test",))
    assert [row.label for row in task.read("test")] == [None, None]


class L(str, enum.Enum):  # noqa: UP042  not a StrEnum, which is its own text
    GOOD = "good"
    BAD = "bad"


def test_members_of_an_enum_and_decimals_are_labels():
    task = bert_jax.tasks.classification()
    rows = [("a", L.GOOD), ("b", L.BAD), (L.GOOD, L.GOOD)] * 3
    task = task.with_rows(train=rows)
    assert task.labels == ("bad", "good") and task.read("train")[2].text_a == "good"
    rows = [("a", decimal.Decimal("2")), ("b", decimal.Decimal("10"))] * 3
    task = bert_jax.tasks.classification().with_rows(train=rows)
    assert task.labels == ("2", "10")


def test_rows_of_tuples_may_have_features():
    task = bert_jax.tasks.classification(labels=("x", "y"))
    rows = task.with_rows(dev=Featured([("a", "y")])).read("dev")
    assert [row.label for row in rows] == ["y"]


@pytest.mark.parametrize("family", ["choices", "regression", "vectors"])
def test_classes_of_a_data_set_stay_numbers_for_a_family_of_numbers(family):
    texts = {"text": "c", "text_a": "c", "text_b": "d"}
    task = {
        "choices": bert_jax.tasks.choices(),
        "regression": bert_jax.tasks.classification(regression=True),
        "vectors": bert_jax.tasks.sentence_vectors(),
    }[family]
    row = texts | {"context": "c", "choices": ["d", "e"], "label": 1}
    task = task.with_rows(train=Featured([row]), dev=Featured([row]))
    assert [row.label for row in task.read("dev")] == [1]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"dev": [("a", "x")], "held_out": 0.5}, "held_out=0.5 chooses rows of train"),
        ({"train": [("a", "x")], "held_out": 2}, "held_out=2, expected a share"),
        ({"train": [("a", "x")], "held_out": -1}, "held_out=-1, expected a share"),
        ({"train": [("a", "x")], "seed": "a"}, "seed='a', expected a whole number"),
        ({"train": {1: ["a"], "1": ["b", "c"]}}, "column '1' occurs twice"),
    ],
)
def test_wrong_arguments_of_rows_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        bert_jax.tasks.classification().with_rows(**changes)


@pytest.mark.parametrize("count, seed", [(2.5, 0), ("3", 0), (3, "a"), (3, -1)])
def test_wrong_arguments_of_folds_are_refused(count, seed):
    task = bert_jax.tasks.classification().with_rows(train=[("a", "x")] * 9)
    with pytest.raises(UserError, match="expected"):
        task.folds(count, seed)


def test_a_set_in_a_row_has_one_checksum():
    values = {"label": frozenset("abcdef")}
    same = {"label": {*"fedcba"}}
    checksums = [Splits({"train": [("", x)]}).checksum for x in (values, same)]
    in_order = {"label": [*"abcdef"]}
    checksums.append(Splits({"train": [("", in_order)]}).checksum)
    assert len({*checksums}) == 1


def test_a_label_has_one_column_in_all_rows():
    rows = [{"text": "a", "label": "x"}, {"text": "b", "labels": "y"}]
    message = (
        "^train, row 1: column label or labels is labels here and label in earlier"
    )
    with pytest.raises(UserError, match=message):
        bert_jax.tasks.multi_label().with_rows(train=rows)
