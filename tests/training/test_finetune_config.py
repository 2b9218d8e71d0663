import copy

import pytest

from bert_jax.errors import UserError
from bert_jax.settings import to_dict
from bert_jax.tasks.multiple_choice import MultipleChoiceConfig
from bert_jax.tasks.question_answering import SquadConfig
from bert_jax.training.config import finetune_config, resume_differences

SETTINGS = dict(family="classification", data=dict(task="mrpc"))


def test_the_defaults_are_the_papers():
    """Appendix A.3: batch 16 or 32; 5e-5, 3e-5, 2e-5; 3 or 4 epochs; dropout 0.1."""
    config = finetune_config(SETTINGS)
    assert (config.batch_size, config.epochs) == (32, 3)
    assert config.optimizer.learning_rate in config.sweep.learning_rate
    assert (config.model.hidden_dropout, config.model.attention_dropout) == (0.1, 0.1)
    assert (config.optimizer.warmup, config.optimizer.weight_decay) == (0.1, 0.01)
    assert not config.optimizer.bias_correction
    assert config.sweep.batch_size == (16, 32)
    assert config.sweep.learning_rate == (5e-5, 3e-5, 2e-5)
    assert config.sweep.epochs == (3, 4)


def test_settings_become_the_config_of_their_family():
    squad = finetune_config(dict(family="question_answering", data=dict(stride=64)))
    assert squad.data == SquadConfig(stride=64)
    choice = dict(family="multiple_choice", data=dict(task="swag"))
    assert finetune_config(choice).data == MultipleChoiceConfig("swag")
    changed = finetune_config(
        SETTINGS | {"optimizer": {"warmup": 0}, "sweep": {"seeds": [4]}}
    )
    assert (changed.optimizer.warmup, changed.sweep.seeds) == (0.0, (4,))


@pytest.mark.parametrize(
    ("name", "value"), [("activation", "gelu_tanh"), ("initializer_range", 0.03)]
)
def test_what_is_not_given_is_the_checkpoints(name, value):
    assert name not in finetune_config(SETTINGS).model.changes()
    given = finetune_config(SETTINGS | {"model": {name: value}})
    assert given.model.changes()[name] == value


def test_no_dropout_is_a_choice():
    given = finetune_config(SETTINGS | {"model": {"hidden_dropout": 0.0}})
    assert given.model.changes()["hidden_dropout"] == 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"family": "tagger"},
            "family='tagger', expected one of classification",
        ),
        ({"family": None}, "family=None, expected one of classification, "),
        ({"batchsize": 3}, "batchsize is not a setting; did you mean"),
        ({"data": {"tsk": "mrpc"}}, "did you mean data.task?"),
        ({"data": 3}, "data=3, expected a group of settings"),
        ({"epochs": "three"}, "epochs='three', expected a value of type int"),
        ({"epochs": 0}, "epochs=0, expected at least 1"),
        ({"buckets": 0}, "buckets=0, expected at least 1"),
        ({"train_rows": -1}, "train_rows=-1, expected at least 0"),
        ({"seed": -1}, "seed=-1, expected at least 0"),
        ({"features": {"width": 0}}, "features.width=0, expected at least 1"),
        ({"features": {"lstm_layers": 0}}, "features.lstm_layers=0, expected at le"),
        ({"features": {"dropout": 1.0}}, "features.dropout=1.0, expected at least 0"),
        (
            {"model": {"initializer_range": -0.1}},
            "model.initializer_range=-0.1, expected at least 0",
        ),
        ({"accumulation": 3}, "batch_size=32 is not a multiple of accumulation=3"),
        (
            {"optimizer": {"warmup": 1}},
            "optimizer.warmup=1.0, expected at least 0 and below 1",
        ),
        ({"optimizer": {"learning_rate": 0}}, "optimizer.learning_rate=0.0, expected"),
        (
            {"optimizer": {"learning_rate": float("nan")}},
            "optimizer.learning_rate=nan, expected",
        ),
        ({"sweep": {"seeds": []}}, "sweep.seeds is empty, expected one value at least"),
    ],
)
def test_a_wrong_setting_is_one_line(changes, message):
    with pytest.raises(UserError) as error:
        finetune_config(SETTINGS | changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_setting_that_is_younger_than_the_run_had_its_default():
    new = to_dict(finetune_config(SETTINGS))
    old = copy.deepcopy(new)
    del old["compute"], old["optimizer"]["name"], old["data"]["stride"]
    old["model"]["dtype"] = "float32"  # where it was before the group "compute"
    assert resume_differences(old, new) == []
    old["seed"] = 3
    assert resume_differences(old, new) == ["seed: 3 -> 0"]
