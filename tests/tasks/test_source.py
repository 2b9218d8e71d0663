"""Sources of rows: a data set of a hub, and rows in place of files."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

import bert_jax
from bert_jax.errors import UserError
from bert_jax.tasks import source

SPLITS = {
    "train": [{"text": "good", "label": 1}, {"text": "bad", "label": 0}],
    "validation": [{"text": "good", "sentence": "good", "label": 1}],
    "test": [{"text": "so so", "label": -1}],
}


class Split(list):
    """What this package uses of a split of the datasets library."""

    features = {  # noqa: RUF012
        "text": SimpleNamespace(dtype="string"),
        "label": SimpleNamespace(names=["neg", "pos"]),
    }


@pytest.fixture
def hub(monkeypatch):
    """A datasets library with one data set; the calls of load_dataset."""
    calls = []

    def load_dataset(*names, split):
        calls.append((*names, split))
        return Split(SPLITS[split])

    module = ModuleType("datasets")
    module.load_dataset = load_dataset
    module.get_dataset_split_names = lambda *names: list(SPLITS)
    monkeypatch.setitem(sys.modules, "datasets", module)
    source._hub_splits.cache_clear()
    yield calls
    source._hub_splits.cache_clear()


def test_a_data_set_of_the_hub(hub):
    task = bert_jax.tasks.classification(dir="hf:org/reviews:english")
    assert task.labels == ("neg", "pos")
    assert (task.source.eval_splits, task.source.predict_splits) == (
        ("dev",),
        ("test",),
    )
    rows = [row for split in ("train", "dev", "test") for row in task.read(split)]
    assert [row.label for row in rows] == ["pos", "neg", "pos", None]
    assert rows[1].where == "hf:org/reviews:english:train, row 1"
    assert ("org/reviews", "english", "validation") in hub
    task.source.check()


def test_classes_have_the_names_of_their_data_set(hub):
    """Unless the task has other names for them, by number."""
    train = Split(SPLITS["train"])
    task = bert_jax.tasks.classification().with_rows(train=train)
    assert task.labels == ("neg", "pos")
    assert [row.label for row in task.read("train")] == ["pos", "neg"]
    turned = bert_jax.tasks.classification(labels=("pos", "neg"))
    rows = turned.with_rows(train=train).read("train")
    assert [row.label for row in rows] == ["pos", "neg"]
    other = bert_jax.tasks.classification(labels=("bad", "good"))
    rows = other.with_rows(train=train).read("train")
    assert [row.label for row in rows] == ["good", "bad"]
    glue = bert_jax.tasks.glue("sst2", dir="hf:nyu-mll/glue:sst2")
    assert [row.label for row in glue.read("dev")] == ["1"]


def test_tags_have_the_names_of_their_data_set():
    data = Split([{"tokens": ["in", "Rome"], "ner_tags": [0, 1]}])
    tags = SimpleNamespace(feature=SimpleNamespace(names=["O", "B-LOC"]))
    data.features = {"tokens": SimpleNamespace(), "ner_tags": tags}
    (row,) = bert_jax.tasks.tagging().with_rows(train=data).read("train")
    assert row.tags == ("O", "B-LOC")


def test_a_hub_needs_its_library_and_a_split(hub, monkeypatch):
    monkeypatch.delitem(SPLITS, "validation")
    task = bert_jax.tasks.classification(dir="hf:org/reviews")
    with pytest.raises(UserError, match="has no split validation; it has train, test"):
        task.read("dev")
    monkeypatch.setitem(sys.modules, "datasets", None)
    source._hub_splits.cache_clear()
    with pytest.raises(
        UserError, match=r"^hf:org/reviews needs .*pip install datasets"
    ):
        task.read("train")


def test_rows_stand_in_for_files():
    rows = [("good", "x"), ("bad", "y"), ("so so", "x")]
    task = bert_jax.tasks.classification()
    given = task.with_rows(train=rows, dev=rows[:1], test=["new"])
    assert given.source.eval_splits == ("dev",)
    assert given.source.predict_splits == ("test",)
    assert given.config.dir.startswith("rows:")
    assert given.config == task.with_rows(train=rows, dev=rows[:1], test=["new"]).config
    assert given.config != task.with_rows(train=rows[1:], dev=rows[:1]).config
    with pytest.raises(
        UserError, match="there are no rows of train; give them, or the l"
    ):
        _ = task.with_rows(dev=rows).labels
    held_out = task.with_rows(train=rows, held_out=0.34)
    found = [row.text_a for split in ("train", "dev") for row in held_out.read(split)]
    assert sorted(found) == sorted(text for text, _ in rows) and len(found) == 3
