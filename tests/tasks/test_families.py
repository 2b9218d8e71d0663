"""A new task and a new family are added, and run."""

import inspect

import pytest

import bert_jax
from bert_jax.errors import UserError
from bert_jax.inference.model import load
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.model.config import BertConfig
from bert_jax.tasks.data_sets import DATA_SETS, DataSet
from bert_jax.tasks.families import FAMILIES, task_of_head
from bert_jax.tasks.task import saved_config
from bert_jax.training.config import finetune_config
from bert_jax.training.sweep import run_one
from examples.clue import Clue

# A new task on an existing head.
MOODS = DataSet(
    columns={"text_a": ("text",), "label": ("label",)},
    files={"train": ("train.csv",), "dev": ("dev.csv",)},
    labels=("no", "1"),
    metrics=("f1_macro", "accuracy"),
)


def run(settings, workdir, lines):
    results = run_one(finetune_config(settings), workdir, lines.append)
    dev = results["scores"]["dev"]
    return dev[results["main_metric"]], load(workdir)


def test_a_head_of_two_numbers_is_refused():
    """It is not a classifier, although its config has names of labels, as a
    classifier's.
    """
    head = Checkpoint(
        config=BertConfig(30, 12, 1, 3, 20),
        params={},
        tokenizer=None,
        head="sequence",
        labels=("x", "y"),
        problem_type="regression",
        source="huggingface",
    )
    with pytest.raises(
        UserError, match="the regression head has 2 outputs; expected one"
    ):
        task_of_head(head)


def test_a_new_task_trains_on_an_existing_head(monkeypatch, tmp_path):
    monkeypatch.setitem(DATA_SETS["classification"], "moods", MOODS)
    for split in ("train", "dev"):
        (tmp_path / f"{split}.csv").write_text("text,label\ngood,1\nbad,no\n")
    settings = {"task": "moods", "dir": str(tmp_path)}
    config = finetune_config(
        {"family": "classification", "init_from": "x", "data": settings}
    )
    task = FAMILIES["classification"](config.data)
    assert [row.label for row in task.read("train")] == ["1", "no"]
    assert (task.main_metric, task.splits.scored) == ("f1_macro", ("dev",))


def test_a_new_family_trains_and_predicts(settings, monkeypatch, tmp_path):
    monkeypatch.setitem(FAMILIES, "clue", Clue)
    config = settings("classification")
    data = {"dir": config["data"]["dir"], "max_length": 24}
    lines = []
    score, model = run(config | {"family": "clue", "data": data}, tmp_path, lines)
    assert not [line for line in lines if "labels:" in line]  # without golds
    files = [path.name for path in (tmp_path / "predictions").iterdir()]
    assert {*files} == {
        "dev.json",
        "test.json",
    }  # without outcomes no errors are written
    assert score > 90
    assert model.extra["family"] == "clue"
    texts = ["the good man and the ship", "a bad dog"]
    assert [answer["clue"] for answer in model.predict(texts)] == ["good", "bad"]
    with pytest.raises(UserError, match="row 1 is empty"):
        model.predict(["good", ""])


@pytest.mark.parametrize("family", ["classification", "multi_label", "tagging"])
def test_a_label_that_occurs_twice_is_refused(family):
    """A saved model with such labels could not be loaded."""
    with pytest.raises(UserError, match=r"data\.labels=.* must have each label once"):
        getattr(bert_jax.tasks, family)(labels=("x", "y", "x"))


def test_labels_need_no_setting():
    """As in a family with fixed labels."""
    family = FAMILIES["multiple_choice"]
    task = family(family.config_class(task="swag"))
    task.labels = ("a", "b")
    assert saved_config(task) == task.config


FUNCTIONS = [getattr(bert_jax.tasks, name) for name in bert_jax.tasks.__all__]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_the_arguments_are_the_settings_of_the_family(function):
    signature = inspect.signature(function)
    task = function(
        *{"glue": ["rte"], "sick": ["entailment"]}.get(function.__name__, [])
    )
    settings = {name: p for name, p in signature.parameters.items() if name != "name"}
    assert {"dir", "max_length"} <= {*settings} <= {*vars(task.config)}
    assert {"task"} >= {*vars(task.config)} - {*settings}
    assert signature.return_annotation is type(task)
    for name, parameter in settings.items():
        assert parameter.kind is parameter.KEYWORD_ONLY
        assert parameter.default == getattr(task.config, name), name
        assert parameter.annotation is not parameter.empty
        assert f"{name}: " in function.__doc__


def test_names_and_settings_are_checked():
    assert dir(bert_jax.tasks) == sorted(bert_jax.tasks.__all__)
    pairs = bert_jax.tasks.pairs(text_b="reply", max_length=32, labels=["no", "yes"])
    assert (pairs.config.text_a, pairs.config.text_b) == ("", "reply")
    assert pairs.labels == ("no", "yes")
    assert bert_jax.tasks.sick("relatedness").config.task == "sick_relatedness"
    with pytest.raises(
        UserError, match=r"data.max_lenght .* did you mean data.max_length"
    ):
        bert_jax.tasks.classification(max_lenght=12)
    with pytest.raises(AttributeError, match="no attribute 'classify'"):
        bert_jax.tasks.classify()
