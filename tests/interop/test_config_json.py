import dataclasses
import json

import pytest

from bert_jax.errors import UserError
from bert_jax.interop.config_json import (
    config_from_dict,
    config_to_dict,
    read_config,
    with_compute,
)
from bert_jax.model.config import BertConfig

SMALL = BertConfig(
    vocab_size=100,
    hidden_size=24,
    num_layers=3,
    num_heads=2,
    intermediate_size=40,
    max_positions=32,
    type_vocab_size=4,
    hidden_dropout=0.2,
    attention_dropout=0.3,
    activation="gelu_tanh",
    layer_norm_epsilon=1e-6,
    initializer_range=0.03,
)

# The file that comes with Google's uncased BASE.
GOOGLE_BASE = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}


def test_googles_file_is_base():
    assert config_from_dict(GOOGLE_BASE) == BertConfig.base()


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_json_and_back(tmp_path, activation):
    config = dataclasses.replace(SMALL, activation=activation)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_to_dict(config)))
    assert read_config(path) == config


def test_googles_file_survives_in_what_we_write():
    written = config_to_dict(config_from_dict(GOOGLE_BASE))
    assert GOOGLE_BASE.items() <= written.items()
    assert written["layer_norm_eps"] == 1e-12


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("gelu", "gelu"),
        ("gelu_new", "gelu_tanh"),
        ("gelu_pytorch_tanh", "gelu_tanh"),
        ("relu", "relu"),
    ],
)
def test_names_of_activations(theirs, ours):
    values = GOOGLE_BASE | {"hidden_act": theirs}
    assert config_from_dict(values).activation == ours


def test_missing_sizes_are_listed():
    values = {k: v for k, v in GOOGLE_BASE.items() if k[0] not in "vi"}
    with pytest.raises(UserError, match="needs vocab_size, intermediate_size"):
        config_from_dict(values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(hidden_act="swish"),
            "hidden_act='swish', expected one of gelu, gelu_new",
        ),
        (
            dict(num_attention_heads=5),
            "hidden_size=768 is not a multiple of num_heads=5",
        ),
        (dict(num_attention_heads=0), "num_heads=0"),
        (dict(vocab_size="30522"), "vocab_size='30522'"),
        (dict(num_hidden_layers=-1), "num_layers=-1"),
        (dict(hidden_dropout_prob=1.0), r"hidden_dropout=1\.0"),
        (dict(attention_probs_dropout_prob=-0.1), r"attention_dropout=-0\.1"),
    ],
)
def test_bad_values_are_user_errors(changes, message):
    with pytest.raises(UserError, match=message) as caught:
        config_from_dict(GOOGLE_BASE | changes)
    assert "\n" not in str(caught.value)


def test_refuses_models_that_only_look_like_bert():
    """RoBERTa's config.json has BERT's names and another model."""
    with pytest.raises(UserError, match="model_type='roberta'"):
        config_from_dict(GOOGLE_BASE | {"model_type": "roberta"})


def test_a_decoder_is_a_causal_model():
    """transformers' BertLMHeadModel."""
    assert not config_from_dict(GOOGLE_BASE).causal
    config = config_from_dict(GOOGLE_BASE | {"is_decoder": True})
    assert config.causal
    assert config_to_dict(config)["is_decoder"] is True


def test_settings_that_say_how_to_compute_have_a_group_of_their_own():
    """Workdirs and config files older than the group "compute" keep them in "model"."""
    old = {"model": {"num_layers": 2, "dtype": "bfloat16", "remat": True}, "seed": 1}
    new = {
        "model": {"num_layers": 2},
        "compute": {"dtype": "bfloat16", "remat": True},
        "seed": 1,
    }
    assert with_compute(old) == with_compute(new) == new
    # The command line changes the group "compute" of an older config file.
    changed = with_compute(old | {"compute": {"dtype": "float32"}})
    assert changed["compute"] == {"dtype": "float32", "remat": True}
    assert with_compute({"seed": 1}) == {"seed": 1}
