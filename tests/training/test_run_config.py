import copy
import math

import jax
import numpy as np
import pandas
import pytest

from bert_jax.errors import UserError
from bert_jax.files import write_json
from bert_jax.settings import to_dict
from bert_jax.tasks.multiple_choice import MultipleChoiceConfig
from bert_jax.tasks.question_answering import SquadConfig
from bert_jax.training.config import finetune_config, train_config
from bert_jax.training.owner import NO_EFFECT, changed_settings, check_owner, shown

MODEL = dict(
    vocab_size=100,
    hidden_size=8,
    num_layers=1,
    num_heads=2,
    intermediate_size=16,
    max_positions=32,
)
PHASE = dict(batch_size=8, max_predictions=3)
FINE_TUNING = dict(family="classification", data=dict(task="mrpc"))


@pytest.fixture
def settings():
    return {
        "model": dict(MODEL),
        "data": {"path": "somewhere"},
        "optimizer": {"learning_rate": 1, "warmup_steps": 2},
        "phases": (
            dict(steps=10, sequence_length=16, **PHASE),
            dict(steps=5, sequence_length=32, **PHASE),
        ),
    }


def test_one_schedule_has_the_steps_of_all_phases(settings):
    config = train_config(settings)
    assert config.total_steps == 15
    assert config.optimizer.learning_rate == 1.0  # an int is read as a float


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"class_weights": "balance"},
            "class_weights='balance', expected balanced, or",
        ),
        *(
            (
                {"class_weights": weights},
                r"^class_weights=.*, expected .* of at least 0",
            )
            for weights in ({"a": -1}, {"a": np.inf}, [1, 2.5], "{'a': ", "[1]", 3)
        ),
    ],
)
def test_inconsistent_settings_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        finetune_config(FINE_TUNING | {"init_from": "a"} | changes)


def test_class_weights_are_numbers_by_label():
    """The command line sets a string if a config file has "balanced"."""
    expected = {"a": 1.0, "3": 2.5}
    series = pandas.Series([1, 2.5], index=["a", 3])
    for weights in ({"a": np.float32(1), 3: 2.5}, "{'a': 1, '3': 2.5}", series):
        config = finetune_config(FINE_TUNING | {"class_weights": weights})
        assert config.class_weights == expected
        assert finetune_config(to_dict(config)) == config


def one(**changes):
    return (dict(steps=1, sequence_length=9, **PHASE) | changes,)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model.hiden_size", 8, r"did you mean model\.hidden_size\?"),
        ("model.hidden_size", "8", "expected a value of type int"),
        ("data.examples", 3, "expected a group of settings"),
        ("phases", one(sequence_length=4), r"sequence_length=4, expected at least 5"),
        (
            "phases",
            one(steps=10**20),
            r"\[0\]\.steps=1\d+, expected .* below 2147483648",
        ),
        ("phase.steps", 1, "phase is not a setting; did you mean phases"),
        ("data.examples.masking", "word", "masking='word', expected one of token, wh"),
        ("seed", 1 << 32, "seed=4294967296, expected at least 0 and below 4294967296"),
        ("optimizer.clip_norm", 0, r"clip_norm=0.0, expected at most inf and above 0"),
        (
            "optimizer.learning_rate",
            math.inf,
            r"learning_rate=inf, expected .* below inf",
        ),
        ("optimizer.epsilon", math.nan, r"epsilon=nan, expected above 0"),
        (
            "phases",
            one(mask_rate_spread=0.2),
            r"spread=0\.2 gives mask rates from -0\.05 to 0\.35, expected 0 to 1",
        ),
        (
            "phases",
            one(last_mask_rate=0.9, mask_rate_spread=0.11),
            r"gives mask rates from 0\.04 to 1\.01, expected 0 to 1",
        ),
        (
            "phases",
            one(sequence_length=20, last_mask_rate=0.3),
            r"\[0\]\.max_predictions=3, expected at least 6 for a mask rate of 0\.3",
        ),
        ("phases", (), "^phases is empty; give at least one"),
        ("data.weights", (1, -2), r"data\.weights=\(1\.0, -2\.0\), expected above 0"),
        ("data.weights", (1, math.nan), r"data\.weights=.*nan\), expected above 0"),
        ("model.max_positions", 16, r"phases\[1\]\.sequence_length=32, expected at"),
    ],
)
def test_a_wrong_setting_is_a_one_line_error(settings, name, value, message):
    *parents, leaf = name.split(".")
    group = settings
    for parent in parents:
        group = group.setdefault(parent, {})
    group[leaf] = value
    with pytest.raises(UserError, match=message) as error:
        train_config(settings)
    assert "\n" not in str(error.value)


def test_a_phase_has_places_for_its_largest_mask_rate(settings):
    """Without rates of its own a phase may mask less, as in the original."""
    sizes = {"steps": 4, "batch_size": 8, "sequence_length": 32}
    rates = {"mask_rate": 0.3, "last_mask_rate": 0.1, "mask_rate_spread": 0.1}
    settings["phases"] = (sizes, sizes | rates, sizes | {"last_mask_rate": 0.25})
    config = train_config(settings)
    assert [phase.places(0.15) for phase in config.phases] == [5, 13, 8]
    assert config.phases[0].mask_rate == 0  # follows data.examples.mask_rate
    assert train_config(to_dict(config)) == config
    fewer = train_config(settings | {"phases": (sizes | {"max_predictions": 2},)})
    assert fewer.phases[0].places(0.15) == 2


def test_the_vocabulary_that_is_trained_has_the_size_of_the_model(settings):
    """model.vocab_size and data.vocabulary_size are one number; either may be given."""

    def sizes(data, **changes):
        config = train_config(settings | {"data": data} | changes)
        return config.model.vocab_size, config.data.vocabulary_size

    corpus = {"corpus": ("a.txt",)}
    assert sizes(corpus) == (100, 100)
    assert sizes(corpus | {"vocabulary_size": 300}) == (100, 300)  # refused later
    assert sizes(corpus, init_from="somewhere") == (100, 30_522)  # nothing is trained
    assert sizes({"path": "text"}) == (100, 30_522)
    model = {name: MODEL[name] for name in MODEL if name != "vocab_size"}
    assert sizes(corpus | {"vocabulary_size": 300}, model=model) == (300, 300)
    assert sizes(corpus, model=model) == (30_522, 30_522)


def test_seeds_have_32_bits(settings):
    largest = (1 << 32) - 1
    assert train_config(settings | {"seed": largest}).seed == largest
    jax.random.key(largest)


def test_a_missing_setting_is_a_one_line_error(settings):
    del settings["optimizer"]["learning_rate"]
    with pytest.raises(UserError, match=r"optimizer\.learning_rate is missing"):
        train_config(settings)


def found(old, new, free=()):
    return shown(changed_settings(old, new, free))


def test_all_changes_of_settings_are_found(settings):
    old = to_dict(train_config(settings))
    assert found(old, old) == ""
    settings["model"] |= {"num_layers": 2}
    settings["phases"][1]["steps"] = 50
    settings |= {"seed": 3, "log_every": 7, "eval_batches": 7, "mesh": {"fsdp": True}}
    new = to_dict(train_config(settings))
    others = "seed: 0 -> 3; log_every: 100 -> 7; mesh.fsdp: False -> True"
    scored = (
        "seed: 0 -> 3; model.num_layers: 1 -> 2; phases[1].steps: 5 -> 50; "
        "eval_batches: 100 -> 7"
    )
    assert found(old, new, NO_EFFECT) == scored
    everything = {*others.split("; "), *scored.split("; ")}
    assert set(found(old, new).split("; ")) == everything


def test_a_checkpoint_with_other_weights_in_its_place_is_a_change():
    old = to_dict(finetune_config(FINE_TUNING | {"init_from": "m"})) | {"start": 1}
    assert found(old, old) == ""
    assert found(old, old | {"start": 2}) == "checksum of init_from: 1 -> 2"
    moved = old | {"init_from": "n"}
    assert found(old, moved) == ""
    assert found(old, moved | {"start": 2}) == "init_from: 'm' -> 'n'"
    # A run of 0.2 has no checksum. No place is not the current folder.
    of_0_2 = {name: value for name, value in old.items() if name != "start"}
    assert found(of_0_2, old) == ""
    assert found(old | {"init_from": ""}, of_0_2 | {"init_from": "."}) != ""


def test_a_setting_newer_than_the_run_has_its_default(settings):
    new = to_dict(train_config(settings)) | {"text": {"tokens": 3}}
    old = copy.deepcopy(new)
    del old["data"]["examples"]["max_ngram"], old["compute"], old["init_from"]
    assert found(old, new) == ""
    settings["data"]["examples"] = {"max_ngram": 2}
    new = to_dict(train_config(settings)) | {"text": {"tokens": 4}}
    expected = "text.tokens: 3 -> 4; data.examples.max_ngram: 3 -> 2"
    assert sorted(found(old, new).split("; ")) == sorted(expected.split("; "))
    new = to_dict(finetune_config(FINE_TUNING))
    old = copy.deepcopy(new)
    del old["compute"], old["optimizer"]["name"], old["data"]["stride"]
    assert found(old, new) == ""
    old["seed"] = 3
    assert found(old, new) == "seed: 3 -> 0"


def test_a_run_loses_at_most_a_tenth_of_its_steps(settings):
    """And at most 10,000 steps, or 500 of a fine-tuning."""
    pretraining, tuning = train_config(settings), finetune_config(FINE_TUNING)
    for steps, expected, tuned in (
        (1, 1, 1),
        (19, 1, 1),
        (99, 9, 9),
        (6_000, 600, 500),
        (1_000_000, 10_000, 500),
    ):
        assert pretraining.steps_between_saves(steps) == expected
        assert tuning.steps_between_saves(steps) == tuned
    config = train_config(settings | {"checkpoint_every": 700})
    assert config.steps_between_saves(1000) == 700


def test_a_run_may_be_resumed_with_another_checkpoint_every(settings):
    """Version 0.2.0 wrote its default, 10,000."""
    old = to_dict(train_config(settings)) | {"checkpoint_every": 10_000}
    assert found(old, to_dict(train_config(settings))) == ""


def test_a_number_of_masks_that_follows_from_the_mask_rate_is_no_change(settings):
    """0.2.0's pretrain wrote it into config.json: five of 32 tokens."""
    phase = dict(steps=4, batch_size=4, sequence_length=32)

    def config(most=0, mask_rate=0.15, **changes):
        examples = {"mask_rate": mask_rate}
        own = {"data": {"path": "somewhere", "examples": examples}}
        own["phases"] = [phase | {"max_predictions": most}]
        return to_dict(train_config(settings | own | changes))

    assert found(config(5), config()) == found(config(), config(5)) == ""
    same = config(10, 0.3, eval_mask_rate=0.3), config(0, 0.3, eval_mask_rate=0.3)
    assert found(*same) == ""
    assert found(config(4), config()) == "phases[0].max_predictions: 4 -> 0"
    # Evaluations of 15% have the masks of ten places, or of five.
    change = found(config(10, 0.3), config(0, 0.3))
    assert change == "phases[0].max_predictions: 10 -> 0"


def test_prompts_are_no_change(settings):
    """They are filled in after the last step."""
    old = to_dict(train_config(settings | {"prompts": ["the [MASK]"]}))
    assert found(old, to_dict(train_config(settings))) == ""


def test_a_workdir_of_the_other_training_is_refused(settings, tmp_path):
    pretraining = to_dict(train_config(settings))
    tuning = to_dict(finetune_config(FINE_TUNING))
    for old, new, kind in (
        (pretraining, tuning, "pretraining"),
        (tuning, pretraining, "fine-tuning"),
    ):
        write_json(tmp_path / "config.json", old)
        message = f"config.json: the config of a {kind}; use another workdir"
        with pytest.raises(UserError, match=message):
            check_owner(tmp_path, new)


def test_values_of_the_data_count_if_both_versions_have_them(settings):
    """Version 0.2.0 has no text.content. A config has neither text nor rows."""
    plain = to_dict(train_config(settings))
    old = plain | {"text": {"tokens": 3}, "rows": 5}
    new = plain | {"text": {"tokens": 3, "content": "a"}}
    assert found(old, new) == found(new, old) == found(plain, new) == ""
    assert found(old, new | {"rows": 6}) == "rows: 5 -> 6"
    other = plain | {"text": {"tokens": 3, "content": "b"}}
    assert found(new, other) == "text.content: 'a' -> 'b'"


def test_a_text_at_another_place_is_the_same_by_its_content(settings):
    settings["data"] = {"path": "here"}
    old = to_dict(train_config(settings)) | {"text": {"tokens": 3, "content": "a"}}
    new = copy.deepcopy(old)
    new["data"]["path"] = "there"
    assert found(old, new) == ""
    for text in ({"tokens": 3}, {"tokens": 3, "content": "b"}):
        for free in ((), NO_EFFECT):
            assert "data.path: 'here' -> 'there'" in found(
                old, new | {"text": text}, free
            )
    del new["text"]
    assert found(old, new, NO_EFFECT) == "data.path: 'here' -> 'there'"


def test_a_mixture_at_other_places_is_the_same_by_its_content(settings):
    settings["data"] = {"mixture": ("here", "b"), "weights": (1, 2)}
    old = to_dict(train_config(settings)) | {"text": {"tokens": 3, "content": "a b"}}
    new = copy.deepcopy(old)
    new["data"]["mixture"] = ["there", "b"]
    assert found(old, new) == ""
    other = new | {"text": {"tokens": 3, "content": "a c"}}
    assert "data.mixture: ['here', 'b'] -> ['there', 'b']" in found(old, other)
    new["data"]["weights"] = [2.0, 1.0]
    assert found(old, new) == "data.weights: [1.0, 2.0] -> [2.0, 1.0]"


def test_the_defaults_of_fine_tuning_follow_the_paper():
    """Appendix A.3: batch 16 or 32; 5e-5, 3e-5, 2e-5; 3 or 4 epochs; dropout 0.1."""
    config = finetune_config(FINE_TUNING)
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
        FINE_TUNING | {"optimizer": {"warmup": 0}, "sweep": {"seeds": [4]}}
    )
    assert (changed.optimizer.warmup, changed.sweep.seeds) == (0.0, (4,))


@pytest.mark.parametrize(
    ("name", "value", "default"),
    [
        ("activation", "gelu_tanh", None),
        ("initializer_range", 0.03, None),
        ("hidden_dropout", 0.0, 0.1),
        ("attention_dropout", 0.0, 0.1),
    ],
)
def test_settings_of_the_checkpoint_change_only_if_they_are_given(name, value, default):
    assert finetune_config(FINE_TUNING).model.changes().get(name) == default
    config = finetune_config(FINE_TUNING | {"model": {name: value}})
    assert config.model.changes()[name] == value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "tagger"}, "family='tagger', expected one of classification"),
        ({"batchsize": 3}, "batchsize is not a setting; did you mean"),
        ({"data": {"tsk": "mrpc"}}, "did you mean data.task?"),
        ({"features": {"dropout": 1.0}}, "features.dropout=1.0, expected at least 0"),
        ({"optimizer": {"learning_rate": 0}}, "optimizer.learning_rate=0.0, expected"),
    ],
)
def test_a_wrong_setting_of_fine_tuning_is_a_one_line_error(changes, message):
    with pytest.raises(UserError) as error:
        finetune_config(FINE_TUNING | changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_config_of_the_other_training_is_refused_by_its_kind(settings):
    """Not with a list of all settings, which the user did not write."""
    for data in ({"task": "sst2"}, {}):
        with pytest.raises(UserError, match=r"^family='classification' .* pretraining"):
            train_config({"family": "classification", "data": data})
    with pytest.raises(
        UserError, match=r"^phases .* fine-tuning config, such as table"
    ):
        finetune_config(settings)
