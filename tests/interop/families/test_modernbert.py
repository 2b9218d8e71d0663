"""ModernBERT, Nomic and GTE: config.json, windows and packed rows."""

import dataclasses
import functools
import json
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bert_jax
from bert_jax.errors import UserError
from bert_jax.interop.config_json import (
    config_from_dict,
    config_to_dict,
    exported_config,
)
from bert_jax.interop.huggingface import read_huggingface, save_huggingface
from bert_jax.model.bert import BertModel
from bert_jax.model.config import ComputeConfig
from bert_jax.model.tokens import Tokens

# The values of answerdotai/ModernBERT-base with an effect, as transformers 4 wrote them.
FLAT = {
    "model_type": "modernbert",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_pooling": "mean",
    "embedding_dropout": 0.0,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "hidden_activation": "gelu",
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 1152,
    "local_attention": 128,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "norm_bias": False,
    "norm_eps": 1e-05,
    "num_attention_heads": 12,
    "num_hidden_layers": 22,
    "vocab_size": 50368,
}
# The same in transformers 5.
FULL, SLIDING = "full_attention", "sliding_attention"
NESTED = {
    **FLAT,
    "layer_types": [FULL if i % 3 == 0 else SLIDING for i in range(22)],
    "rope_parameters": {
        FULL: {"rope_theta": 160000.0, "rope_type": "default"},
        SLIDING: {"rope_theta": 10000.0, "rope_type": "default"},
    },
}
for _key in ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"):
    del NESTED[_key]


@pytest.fixture(scope="module")
def folder(golden):
    return golden / "families"


def test_both_forms_of_config_json_are_read_and_written():
    config = config_from_dict(FLAT)
    assert config_from_dict(NESTED) == config
    assert (config.window, config.global_every, config.pooling) == (64, 3, "mean")
    assert (config.rope_theta, config.local_rope_theta) == (160_000.0, 10_000.0)
    assert (config.positions, config.gated, config.pooler) == (
        *("rotary", True),
        "transform",
    )
    written = config_to_dict(config)
    assert (FLAT | NESTED).items() <= written.items()
    assert config_from_dict(written) == config
    # transformers 5 writes the keys of version 4 that it read, but uses its own keys.
    assert config_from_dict(written | {"global_attn_every_n_layers": 7}) == config
    sizes = {key: FLAT[key] for key in FLAT if key.startswith("num_")}
    sizes |= {"hidden_size": 768, "vocab_size": 50368, "intermediate_size": 1152}
    # Class defaults of transformers, whose pooling is cls.
    defaults = config_from_dict(sizes | {"model_type": "modernbert"})
    assert defaults == config_from_dict(FLAT | {"classifier_pooling": "cls"})


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"global_rope_theta": 10_000.0}, {"rope_theta": 1e4, "local_rope_theta": 0}),
        ({"local_rope_theta": None}, {"local_rope_theta": 0.0}),
        ({"global_attn_every_n_layers": 1}, {"window": 0, "global_every": 1}),
        ({"layer_types": [FULL] * 22}, {"window": 0, "global_every": 1}),
        ({"layer_types": [SLIDING] * 22}, {"window": 64, "global_every": 0}),
        ({"layer_types": [FULL] + [SLIDING] * 21}, {"window": 64, "global_every": 22}),
        ({"local_attention": 10}, {"window": 5}),
        ({"mlp_bias": True}, {"feed_forward_bias": "all"}),
        ({"norm_bias": True, "classifier_bias": True}, {"norm_bias": True}),
    ],
)
def test_other_values_are_read_and_written_back(changes, fields):
    config = config_from_dict(FLAT | changes)
    assert {name: getattr(config, name) for name in fields} == fields
    assert config_from_dict(json.loads(json.dumps(config_to_dict(config)))) == config


def test_a_modernbert_is_exported_as_one():
    """Even if its layers name one base twice, and with any deviation of new kernels."""
    config = config_from_dict(FLAT)
    for changes in (
        {"model_type": "bert"},
        {"scaled_init": True},
        {"rope_theta": 500.0, "local_rope_theta": 500.0},
        {"window": 0, "global_every": 1, "local_rope_theta": 0.0},
    ):
        changed = dataclasses.replace(config, **changes)
        exported = exported_config(changed, "pretraining", ["mlm"])
        assert exported.model_type == "modernbert"
    for changes in (
        {"type_vocab_size": 2},
        {"gated": False},
        {"embedding_norm": False},
        {"feed_forward_bias": "down"},
        {"causal": True},
    ):
        changed = dataclasses.replace(config, **changes)
        assert exported_config(changed, "pretraining", ["mlm"]) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"local_attention": 1}, "local_attention=1, expected at least 2"),
        (
            {"classifier_pooling": "max"},
            "classifier_pooling='max', expected cls or mean",
        ),
        (
            {"classifier_activation": "relu"},
            "classifier_activation='relu', but hidden_activation='gelu'; both must be the",
        ),
        (
            {"layer_types": [SLIDING, FULL] * 11},
            r"layer_types=\[.*; expected 22 layers: full_attention in layer 0 and in every",
        ),
        ({"layer_types": [FULL]}, "layer_types=.*; expected 22 layers"),
        ({"layer_types": 3}, "layer_types=3; expected 22"),
        (
            {"rope_parameters": {FULL: {"rope_type": "yarn"}}},
            "rope_parameters.full_attention.rope_type='yarn'; expected 'default'",
        ),
        ({"rope_parameters": {SLIDING: 3}}, "rope_parameters.sliding_attention=3, exp"),
        ({"rope_parameters": [1]}, r"rope_parameters=\[1\], expected an object"),
        (
            {"rope_scaling": {"type": "linear"}},
            "rope_scaling.rope_type='linear'; expec",
        ),
        ({"global_rope_theta": "1"}, "global_rope_theta='1', expected a number"),
        ({"mlp_bias": 1}, "mlp_bias=1, expected true or false"),
        (
            {"architectures": ["ModernBertForMaskedLM"], "decoder_bias": False},
            "decoder_bias=False, expected true",
        ),
    ],
)
def test_a_model_that_would_be_computed_differently_is_refused(changes, message):
    with pytest.raises(UserError, match=message) as error:
        config_from_dict(FLAT | changes)
    assert "\n" not in str(error.value)


# nomic-ai/nomic-embed-text-v1.5, whose files have the keys of GPT-2.
NOMIC = {
    "model_type": "nomic_bert",
    "activation_function": "swiglu",
    "attn_pdrop": 0.0,
    "layer_norm_epsilon": 1e-12,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "n_embd": 48,
    "n_head": 4,
    "n_inner": 72,
    "n_layer": 3,
    "n_positions": 96,
    "prenorm": False,
    "qkv_proj_bias": False,
    "resid_pdrop": 0.0,
    "rotary_emb_base": 2000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_scaling_factor": None,
    "type_vocab_size": 2,
    "vocab_size": 128,
}


def test_nomic_is_read_with_the_keys_of_the_hub_and_of_transformers():
    old = config_from_dict(NOMIC)
    assert (old.hidden_size, old.num_layers, old.num_heads) == (48, 3, 4)
    assert (old.intermediate_size, old.max_positions, old.rope_theta) == (72, 96, 2000)
    new = config_to_dict(old)
    assert new.keys().isdisjoint({"n_embd", "rotary_emb_base"})
    assert config_from_dict(new) == old
    assert config_from_dict(NOMIC | new | {"hidden_size": 24}).hidden_size == 24
    defaults = config_from_dict({"model_type": "nomic_bert"})  # the class defaults
    assert (defaults.vocab_size, defaults.num_layers) == (30528, 12)
    assert (defaults.rope_theta, defaults.max_positions) == (1000.0, 2048)
    for rope in ({}, {"rope_parameters": {"rope_theta": 300.0}}):
        assert config_from_dict(NOMIC | rope | {"qkv_proj_bias": True}).attention_bias
        assert not config_from_dict(NOMIC | rope).attention_bias
    assert not config_from_dict(NOMIC | {"qkv_proj_bias": None}).attention_bias
    scaled = config_from_dict(NOMIC | {"rope_scaling": {"type": "ntk", "factor": 2.0}})
    assert scaled.rope_theta == 2 * 2000
    assert scaled.rope_factor == pytest.approx(2 ** (2 / 12))  # heads of 12
    for key, value in (
        ("prenorm", True),
        ("rotary_emb_fraction", 0.5),
        ("moe_every_n_layers", 2),
        ("rotary_scaling_factor", 2.0),
        ("activation_function", "gelu"),
    ):
        with pytest.raises(UserError, match=rf"{key}={value!r}, expected"):
            config_from_dict(NOMIC | {key: value})


GTE = {
    "model_type": "gte",
    "vocab_size": 128,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 72,
}
NTK_OF_4 = {"type": "ntk", "factor": 4.0**4}  # with heads of 8: 4^(4 * 2 / 8) = 4


def test_gte_is_read_with_and_without_token_types():
    config = config_from_dict(GTE)
    assert (config.rope_theta, config.type_vocab_size) == (160_000.0, 1)
    assert (config.max_positions, config.attention_dropout) == (8192, 0.0)
    flat = config_from_dict(GTE | {"rope_theta": 500, "type_vocab_size": 0})
    assert (flat.rope_theta, flat.type_vocab_size) == (500.0, 0)
    assert config_from_dict(config_to_dict(flat)) == flat


def test_scaled_rotary_positions_are_read_and_written():
    """In both forms of transformers and in Alibaba-NLP/new-impl's, with heads of 12."""
    linear = {"rope_type": "linear", "rope_theta": 300, "factor": 4}
    ntk = {"factor": 8.0, "type": "ntk", "mixed_b": None}
    for changes, theta, factor in (
        ({"rope_parameters": linear}, 300, 4),
        ({"rope_theta": 300, "rope_scaling": {"type": "linear", "factor": 4}}, 300, 4),
        ({"rope_theta": 20000, "rope_scaling": ntk}, 160_000, 8 ** (2 / 12)),
        ({"rope_theta": 20000, "rope_scaling": None}, 20000, 1),
    ):
        config = config_from_dict(GTE | changes)
        assert (config.rope_theta, config.rope_factor) == (theta, factor)
        values = config_to_dict(config)
        assert config_from_dict(values) == config
        assert values.keys().isdisjoint({"rope_factor", "rope_scaling"})
        assert (values["rope_parameters"]["rope_type"] == "linear") == (factor != 1)
    for changes, message in (
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "expected rope_type def",
        ),
        ({"rope_scaling": {"type": "ntk"}}, "expected a factor with rope_type ntk"),
        ({"rope_scaling": ntk | {"mixed_b": 0.625}}, "'mixed_b': 0.625}; expected"),
        ({"position_embedding_type": "absolute"}, "='absolute', expected 'rope'"),
        ({"layer_norm_type": "rms_norm"}, "='rms_norm', expected 'layer_norm'"),
        ({"logn_attention_scale": True}, "logn_attention_scale=True, expected False"),
    ):
        with pytest.raises(UserError, match=message):
            config_from_dict(GTE | changes)


def test_files_of_alibaba_are_read_as_gte(folder, tmp_path):
    """Other names of tensors and classes, and other defaults of missing values."""
    two = {"architectures": ["NewModel", "NewForTokenClassification"]}
    scaled = {"rope_theta": 300.0 / 256, "rope_scaling": NTK_OF_4}
    for name, prefix, changes in (
        ("gte_mlm", "new.", {}),
        ("gte_sequence", "new.", {}),
        ("gte_sequence", "", {}),
        ("gte_none", "new.", two),
        ("gte_scaled_none", "new.", scaled),
    ):
        expected = read_huggingface(folder / name)
        values = json.loads((folder / name / "config.json").read_text())
        values["model_type"] = "new"
        values["architectures"] = [values["architectures"][0].replace("Gte", "New")]
        del values["rope_parameters"]
        values |= {"rope_theta": 160_000.0, "position_embedding_type": "rope"} | changes
        tensors = {}
        for key, array in load_file(folder / name / "model.safetensors").items():
            if not key.startswith(("classifier", "lm_head")):
                key = f"{prefix}{key.removeprefix('gte.')}"
            tensors[key] = array
        path = tmp_path / f"{name}{prefix}"
        path.mkdir()
        save_file(tensors, path / "model.safetensors")
        (path / "config.json").write_text(json.dumps(values))
        read = read_huggingface(path)
        assert (read.config, read.head) == (expected.config, expected.head)
        jax.tree.map(np.testing.assert_array_equal, read.params, expected.params)
        assert not read.missing
        assert not read.unexpected
        values["model_type"] = "gte"  # with the tensors of Alibaba, as in transformers
        (path / "config.json").write_text(json.dumps(values))
        jax.tree.map(
            np.testing.assert_array_equal, read_huggingface(path).params, read.params
        )
    defaults = config_from_dict(GTE | {"model_type": "new"})
    assert (defaults.rope_theta, defaults.max_positions) == (10_000.0, 2048)


@pytest.mark.parametrize("implementation", ["plain", "xla"])
def test_a_sequence_may_start_anywhere_in_a_row(folder, implementation):
    """The window of 4 tokens on either side ends at the sequence's own tokens."""
    checkpoint = read_huggingface(folder / "modernbert_none")
    assert checkpoint.config.window == 4
    random = np.random.default_rng(0)
    ids_L = random.integers(5, 41, 12).astype(np.int32)
    rows, length = 11, 12 + 11 + 5
    input_ids = random.integers(5, 41, (rows, length)).astype(np.int32)
    segment_ids = np.zeros((rows, length), np.int32)
    starts = np.zeros((rows, 3), np.int32)
    for row in range(rows):
        first, after = row + 1, row + 13
        input_ids[row, first:after] = ids_L
        segment_ids[row, :first] = 1
        segment_ids[row, first:after] = 2
        segment_ids[row, after : after + 3] = 3
        starts[row] = 0, first, after
    model = BertModel(checkpoint.config, ComputeConfig(attention_impl=implementation))
    apply = functools.partial(
        model.apply, deterministic=True, pool=False, method="encode"
    )
    variables = {"params": checkpoint.params["bert"]}
    packed = Tokens(input_ids, input_ids * 0, segment_ids, starts)
    alone = Tokens.of_mask(ids_L[None], ids_L[None] * 0, np.ones((1, 12), np.int32))
    with jax.default_matmul_precision("highest"):
        found = apply(variables, packed).sequence_BLD
        expected = apply(variables, alone).sequence_BLD[0]
    for row in range(rows):
        x_LD = found[row, row + 1 : row + 13]
        np.testing.assert_allclose(x_LD, expected, rtol=0, atol=1e-5)


def test_longer_texts_need_no_new_parameters(folder):
    short = bert_jax.load(folder / "modernbert_none")
    long = bert_jax.load(folder / "modernbert_none", max_positions=40)
    assert (short.config.max_positions, long.config.max_positions) == (15, 40)
    jax.tree.map(np.testing.assert_array_equal, short.params, long.params)


def test_copies_and_buffers_are_read_and_wrong_tensors_named(folder, tmp_path):
    """A copy of the tied table, buffers, and a Wqkv that does not fit."""
    copy = shutil.copytree(folder / "modernbert_mlm", tmp_path / "copy")
    tensors = load_file(copy / "model.safetensors")
    more = {
        "decoder.weight": tensors["model.embeddings.tok_embeddings.weight"],
        "model.layers.0.attn.rotary_emb.inv_freq": np.ones(4, np.float32),
    }
    save_file(tensors | more, copy / "model.safetensors")
    read, expected = read_huggingface(copy), read_huggingface(folder / "modernbert_mlm")
    assert (read.missing, read.unexpected) == ((), ())
    jax.tree.map(np.testing.assert_array_equal, read.params, expected.params)
    name = "model.layers.1.attn.Wqkv.weight"
    save_file(tensors | {name: tensors[name][:71]}, copy / "model.safetensors")
    message = r"attn.value.weight is \(23, 24\), expected \(24, 24\)"
    with pytest.raises(UserError, match=message):
        read_huggingface(copy)
    del tensors[name]
    save_file(tensors, copy / "model.safetensors")
    with pytest.raises(UserError, match=r"lack 3 of .* tensors of the encoder"):
        read_huggingface(copy)


def test_the_first_layer_has_no_norm_before_its_attention(folder, tmp_path):
    checkpoint = read_huggingface(folder / "modernbert_mlm")
    layers = checkpoint.params["bert"]["encoder"]
    assert "attention_norm" not in layers["layer_0"]
    assert "attention_norm" in layers["layer_1"]
    save_huggingface(tmp_path / "out", checkpoint)
    names = load_file(tmp_path / "out/model.safetensors").keys()
    assert "model.layers.0.attn_norm.weight" not in names
    assert "model.layers.1.attn_norm.weight" in names
