import copy
import math

import pytest

from bert_jax.errors import UserError
from bert_jax.settings import to_dict
from bert_jax.training.config import resume_differences, train_config


@pytest.fixture
def settings():
    return {
        "model": {
            "vocab_size": 100,
            "hidden_size": 8,
            "num_layers": 1,
            "num_heads": 2,
            "intermediate_size": 16,
            "max_positions": 32,
        },
        "data": {"path": "somewhere"},
        "optimizer": {"learning_rate": 1, "warmup_steps": 2},
        "phases": (
            {
                "steps": 10,
                "sequence_length": 16,
                "batch_size": 8,
                "max_predictions": 3,
            },
            {
                "steps": 5,
                "sequence_length": 32,
                "batch_size": 8,
                "max_predictions": 5,
            },
        ),
    }


def test_one_schedule_runs_through_all_phases(settings):
    config = train_config(settings)
    assert config.total_steps == 15
    assert config.optimizer.learning_rate == 1.0  # an int where a float is due


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model.hiden_size", 8, r"did you mean model\.hidden_size\?"),
        ("model.hidden_size", "8", "expected a value of type int"),
        ("model.hidden_size", 8.0, "expected a value of type int"),
        ("data.examples", 3, "expected a group of settings"),
        ("data.corpus", "x", "expected a tuple"),
        ("phases", (), "phases is empty"),
        ("log_every", 0, "expected at least 1"),
        (
            "data.holdout",
            1.5,
            "holdout=1.5, expected at least 0 and below 1",
        ),
        (
            "data.examples.masking",
            "word",
            "masking='word', expected one of token, whole",
        ),
        (
            "phases",
            (dict(steps=1, batch_size=8, sequence_length=4, max_predictions=1),),
            r"phases\[0\]\.sequence_length=4, expected at least 5",
        ),
        ("accumulation", 0, "accumulation=0, expected at least 1"),
        ("seed", 1 << 32, "seed=4294967296, expected at least 0 and below 4294967296"),
        ("data.threads", -1, r"data\.threads=-1, expected at least 1"),
        ("data.prefetch", -2, r"data\.prefetch=-2, expected at least 1"),
        (
            "optimizer.beta2",
            1,
            r"optimizer\.beta2=1.0, expected at least 0 and below 1",
        ),
        (
            "optimizer.clip_norm",
            0,
            r"clip_norm=0.0, expected at most inf and above 0",
        ),
        (
            "optimizer.learning_rate",
            math.inf,
            r"learning_rate=inf, expected below inf",
        ),
        ("optimizer.epsilon", math.nan, r"epsilon=nan, expected above 0"),
        ("data.examples.max_ngram", 0, r"max_ngram=0, expected at least 1"),
        ("data.examples.mask_share", -5, r"expected at least 0 and at most 1"),
        ("data.examples.random_share", -0.5, r"expected at least 0 and at most 1"),
        ("data.examples.short_sequence_rate", -1, r"expected at least 0 and at most 1"),
        (
            "data.examples.short_sequence_rate",
            1.1,
            r"expected at least 0 and at most 1",
        ),
        ("data.vocabulary_size", 0, r"vocabulary_size=0, expected at least 1"),
        (
            "log_every",
            10**20,
            r"log_every=1\d+, expected below 2147483648",
        ),
        (
            "phases",
            (dict(steps=10**20, batch_size=8, sequence_length=9, max_predictions=1),),
            r"phases\[0\]\.steps=1\d+, expected below 2147483648",
        ),
        ("optimizer.total_steps", 3, "sum of the phases' steps"),
        ("model.max_positions", 16, r"phases\[1\]\.sequence_length=32 is over"),
        ("phase.steps", 1, "phase is not a setting; did you mean phases"),
    ],
)
def test_a_wrong_setting_is_named_in_one_line(settings, name, value, message):
    *parents, leaf = name.split(".")
    group = settings
    for parent in parents:
        group = group.setdefault(parent, {})
    group[leaf] = value
    with pytest.raises(UserError, match=message) as error:
        train_config(settings)
    assert "\n" not in str(error.value)


def test_a_missing_setting_is_named(settings):
    del settings["optimizer"]["learning_rate"]
    with pytest.raises(UserError, match=r"optimizer\.learning_rate is missing"):
        train_config(settings)


def test_resuming_compares_model_and_data(settings):
    old = to_dict(train_config(settings))
    assert resume_differences(old, old) == []
    settings["model"]["num_layers"] = 2
    settings["model"]["dtype"] = "bfloat16"
    settings["seed"] = 3
    settings["log_every"] = 7
    new = to_dict(train_config(settings))
    assert resume_differences(old, new) == [
        "seed: 0 -> 3",
        "model.num_layers: 1 -> 2",
    ]


def test_a_setting_that_is_younger_than_the_run_had_its_default(settings):
    new = to_dict(train_config(settings)) | {"text": {"tokens": 3}}
    old = copy.deepcopy(new)
    del old["data"]["examples"]["max_ngram"], old["compute"], old["init_from"]
    old["model"]["scan_layers"] = False  # where it was before the group "compute"
    assert resume_differences(old, new) == []
    settings["data"]["examples"] = {"max_ngram": 2}
    assert resume_differences(old, to_dict(train_config(settings))) == [
        "data.examples.max_ngram: 3 -> 2",
        "text: {'tokens': 3} -> None",
    ]


def test_steps_may_be_added_to_the_last_phase_alone(settings):
    old = to_dict(train_config(settings))
    settings["phases"][1]["steps"] = 50
    assert resume_differences(old, to_dict(train_config(settings))) == []
    settings["phases"][0]["steps"] = 11
    assert resume_differences(old, to_dict(train_config(settings))) == [
        "phases[0].steps: 10 -> 11, but a run can only get more steps, in its last phase"
    ]
    settings["phases"][0]["steps"], settings["phases"][1]["steps"] = 10, 1
    (found,) = resume_differences(old, to_dict(train_config(settings)))
    assert found.endswith(" -> 1, but a run can only get more steps, in its last phase")
