import dataclasses
import json

import pytest

from bert_jax.errors import UserError
from bert_jax.interop.config_json import (
    OWN,
    config_from_dict,
    config_to_dict,
    exported_config,
    read_config,
    with_remat,
)
from bert_jax.model.config import BertConfig
from tests.conftest import MODERNBERT

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

# bert_config.json of Google's uncased BASE.
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


def test_googles_config_file_gives_base():
    assert config_from_dict(GOOGLE_BASE) == BertConfig.base()


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu"])
def test_a_config_survives_json(tmp_path, activation):
    config = dataclasses.replace(SMALL, activation=activation)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_to_dict(config)))
    assert read_config(path) == config


@pytest.mark.parametrize(
    "changes",
    [
        dict(positions="rotary", rope_theta=300.0),
        dict(positions="rotary", rope_factor=3.0),
        dict(pre_norm=True, embedding_norm=True),
        dict(norm_bias=False),
        dict(attention_bias=False),
        dict(gated=True),
        dict(feed_forward_bias="down"),
        dict(pooler="transform"),
        dict(head_bias=False),
    ],
)
def test_an_option_that_bert_lacks_is_kept_in_our_form(changes):
    """No class of transformers that would leave the option out is chosen."""
    config = dataclasses.replace(SMALL, **changes)
    written = config_to_dict(config, model_type="bert")
    assert config_from_dict(written | {"model_type": OWN}) == config
    exported = exported_config(config, "sequence", {"pooler", "classifier"})
    if exported is not None:
        assert config_from_dict(config_to_dict(exported)) == exported
        assert exported.model_type not in ("bert", "megatron-bert", "roberta")


@pytest.mark.parametrize(
    ("head", "output"), [("token", "classifier"), ("span", "qa_outputs")]
)
def test_a_class_with_a_transform_below_its_outputs_needs_one(head, output):
    """transformers would initialise the transform at random."""
    transformed = dataclasses.replace(SMALL, **MODERNBERT)
    plain = dataclasses.replace(transformed, pooler="tanh")
    assert exported_config(plain, head, {output}) is None
    exported = exported_config(transformed, head, {"pooler", output})
    assert exported.model_type == "modernbert"


def test_the_initialisation_does_not_decide_about_the_class():
    config = dataclasses.replace(SMALL, scaled_init=True)
    assert exported_config(config, "sequence", {"pooler", "classifier"}) == config
    assert config_from_dict(config_to_dict(config)) == config


def test_our_config_json_contains_googles_values():
    written = config_to_dict(config_from_dict(GOOGLE_BASE))
    assert GOOGLE_BASE.items() <= written.items()
    assert written["layer_norm_eps"] == 1e-12


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("gelu", "gelu gelu_python"),
        ("gelu_tanh", "gelu_new gelu_fast gelu_accurate"),
        ("gelu_tanh", "gelu_python_tanh gelu_pytorch_tanh"),
        ("silu", "silu swish"),
        ("relu", "relu"),
    ],
)
def test_activation_names_are_translated(ours, theirs):
    for name in theirs.split():
        assert config_from_dict(GOOGLE_BASE | {"hidden_act": name}).activation == ours


def test_missing_sizes_are_listed():
    values = {k: v for k, v in GOOGLE_BASE.items() if k[0] not in "vi"}
    with pytest.raises(UserError, match="must have vocab_size, intermediate_size"):
        config_from_dict(values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(hidden_act="mish"),
            "hidden_act='mish', expected one of gelu, gelu_python, gelu_new",
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


def test_a_config_of_another_architecture_is_refused():
    """These config.json have the names of BERT's settings, but the models differ."""
    for model_type in ("deberta-v2", "mpnet", "modernbert-decoder", "albert"):
        message = f"model_type='{model_type}' cannot be read; expected bert, .*roberta"
        with pytest.raises(UserError, match=message):
            config_from_dict(GOOGLE_BASE | {"model_type": model_type})


def test_a_decoder_is_a_causal_model():
    """As in transformers' BertLMHeadModel."""
    assert not config_from_dict(GOOGLE_BASE).causal
    config = config_from_dict(GOOGLE_BASE | {"is_decoder": True})
    assert config.causal
    assert config_to_dict(config)["is_decoder"] is True


@pytest.mark.parametrize(("old", "new"), [(True, "full"), (False, "none")])
def test_remat_of_older_versions_is_read(old, new):
    settings = {"model": {"num_layers": 2}, "compute": {"dtype": "float32"}}
    compute = {"dtype": "float32", "remat": old}
    expected = settings | {"compute": compute | {"remat": new}}
    assert with_remat(settings | {"compute": compute}) == expected
    assert with_remat(settings) == settings
    assert with_remat({}) == {}
