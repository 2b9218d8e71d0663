import dataclasses
from functools import partial

import jax
import numpy as np
import pytest
from flax import traverse_util

from bert_jax.errors import UserError
from bert_jax.interop.checkpoint import initial_shapes, parameter_shapes
from bert_jax.interop.config_json import read_config
from bert_jax.interop.families.bert import BERT
from bert_jax.interop.names import HEADS, from_params, guess_head, to_params
from bert_jax.interop.tensorflow import huggingface_names, read_checkpoint
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig, FeatureConfig
from bert_jax.model.parameters import with_scan
from bert_jax.objectives.networks import make_model, pretraining_class
from bert_jax.parallel.sharding import array_shapes

# All sizes differ, so a transposed or mislabelled dimension never fits.
ODD = BertConfig(
    vocab_size=31,
    hidden_size=12,
    num_layers=3,
    num_heads=3,
    intermediate_size=20,
    max_positions=17,
    type_vocab_size=5,
)


def shapes(config):
    ids = np.zeros((1, 4), np.int32)
    init = partial(BertForPreTraining(config).init, deterministic=True)
    return jax.eval_shape(init, jax.random.key(0), ids, ids, ids, ids[:, :1])["params"]


def random_params(config, head):
    """The tree of a model with this head; classifiers have seven outputs."""
    rng = np.random.default_rng(0)
    tree = shapes(config)
    if head != "pretraining":
        tree = {"bert": tree["bert"]}
    for part in HEADS[head]:
        if part in ("classifier", "qa_outputs"):
            outputs = 7 if part == "classifier" else 2
            kernel = jax.ShapeDtypeStruct((config.hidden_size, outputs), np.float32)
            bias = jax.ShapeDtypeStruct((outputs,), np.float32)
            tree[part] = {"kernel": kernel, "bias": bias}
    tree = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), tree)
    tree["bert"]["embeddings"]["word"]["embedding"][config.vocab_size :] = 0
    return tree


@pytest.fixture(scope="module")
def config(golden):
    return read_config(golden / "google_bert/bert_config.json")


@pytest.fixture(scope="module")
def variables(golden):
    return read_checkpoint(golden / "google_bert/bert_model.ckpt")


@pytest.fixture(scope="module")
def tensors(variables):
    return huggingface_names(variables)


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("head", HEADS)
def test_params_survive_a_round_trip_bit_for_bit(head, scan_layers):
    params = with_scan(random_params(ODD, head), scan_layers)
    tensors = from_params(params, ODD)
    back = to_params(tensors, ODD, head=head)
    assert (back.missing, back.unexpected) == ((), ())
    restored = with_scan(back.params, scan_layers)
    assert jax.tree.structure(restored) == jax.tree.structure(params)
    for ours, again in zip(
        jax.tree.leaves(params), jax.tree.leaves(restored), strict=True
    ):
        np.testing.assert_array_equal(ours, again)
        assert again.dtype == np.float32


def test_each_parameter_of_the_model_has_its_own_name():
    flat = traverse_util.flatten_dict(shapes(ODD), sep="/")
    parameters = parameter_shapes(ODD, outputs=7)
    assert {name: leaf.shape for name, leaf in flat.items()}.items() <= (
        parameters.items()
    )
    assert len(parameters) == 5 + 3 * 16 + 2 + 5 + 3 * 2
    assert len({*map(BERT.name_of, parameters)}) == len(parameters)


@pytest.mark.parametrize("encoder", ["transformer", "lstm"])
def test_parameter_shapes_equal_the_initialised_shapes(encoder):
    config = dataclasses.replace(ODD, encoder=encoder)
    for pooled, model in (
        (True, make_model(config, "sequence", 7, FeatureConfig())),
        (False, make_model(config, "token", 7, FeatureConfig())),
        (True, make_model(config, "span", 2, FeatureConfig())),
        (True, pretraining_class(config)(config)),
    ):
        initial = array_shapes(initial_shapes(model))
        computed = parameter_shapes(config, 7, pooled=pooled)
        assert initial.items() <= computed.items()


def test_each_variable_of_google_has_its_tensor(variables, tensors):
    """Kernels are transposed, and no value changes."""
    theirs = {n: a for n, a in variables.items() if "adam_" not in n and "/" in n}
    assert len(tensors) == len(theirs) == 5 + 2 * 16 + 9
    for theirs, ours in {
        "bert/embeddings/token_type_embeddings": "embeddings.token_type_embeddings.weight",
        "bert/encoder/layer_1/attention/self/key/kernel": "1.attention.self.key.weight",
        "bert/encoder/layer_1/output/LayerNorm/gamma": "1.output.LayerNorm.weight",
        "bert/encoder/layer_1/output/LayerNorm/beta": "1.output.LayerNorm.bias",
        "cls/predictions/output_bias": "cls.predictions.bias",
        "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    }.items():
        (tensor,) = (array for name, array in tensors.items() if name.endswith(ours))
        expected = variables[theirs]
        expected = expected.T if theirs.endswith("kernel") else expected
        np.testing.assert_array_equal(tensor, expected, strict=True)
    named = huggingface_names({"cls/squad/output_bias": 1, "output_weights": 2})
    assert named == {"qa_outputs.bias": 1, "classifier.weight": 2}


def test_variables_of_other_optimizers_are_skipped(variables, tensors):
    """Slots of LAMB and tf.train.AdamOptimizer, and variables without a scope."""
    slots = {
        f"{n}/{slot}": a for n, a in variables.items() for slot in ("Adam", "lamb_m")
    }
    scalars = dict.fromkeys(("beta1_power", "loss_scale"), np.float32(0.9))
    named = huggingface_names(variables | slots | scalars)
    assert named.keys() - tensors.keys() == {"beta1_power.weight", "loss_scale.weight"}
    assert guess_head(named) == "pretraining"


def test_heads_are_slices_of_the_original_columns(variables, tensors, config):
    """Our head n equals columns n H to (n + 1) H of Google's (D, N H) kernel."""
    params = to_params(tensors, config, head="none").params
    layer = params["bert"]["encoder"]["layer_1"]["attention"]
    google = "bert/encoder/layer_1/attention"
    H = config.head_size
    for head in range(config.num_heads):
        part = slice(head * H, (head + 1) * H)
        np.testing.assert_array_equal(
            layer["key"]["kernel"][:, head],
            variables[f"{google}/self/key/kernel"][:, part],
        )
        np.testing.assert_array_equal(
            layer["value"]["bias"][head], variables[f"{google}/self/value/bias"][part]
        )
        np.testing.assert_array_equal(
            layer["output"]["kernel"][head],
            variables[f"{google}/output/dense/kernel"][part],
        )


def test_the_error_has_the_missing_tensor(tensors, config):
    changed = dict(tensors)
    del changed["bert.encoder.layer.1.output.LayerNorm.bias"]
    with pytest.raises(
        UserError,
        match=r"lack 1 of 37 tensors of the encoder .bert.encoder.layer.1.output.La",
    ):
        to_params(changed, config, head="none")
    other = {f"roberta.{name}": value for name, value in tensors.items()}
    with pytest.raises(
        UserError, match=r"expected a bert \(model_type of config.json,"
    ):
        to_params(other, config, head="none")
    with pytest.raises(UserError, match=r"lack 16 .*\((\S+, ){4}\S+ and 11 more\)"):
        three = dataclasses.replace(config, num_layers=3)
        to_params(tensors, three, head="none")


def test_the_error_of_a_wrong_shape_has_the_expected_shape(tensors, config):
    changed = dict(tensors)
    changed["bert.pooler.dense.weight"] = np.zeros((64, 32), np.float32)
    with pytest.raises(UserError) as caught:
        to_params(changed, config, head="none")
    assert "bert.pooler.dense.weight is (64, 32), expected (64, 64)" in str(
        caught.value
    )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "bias", [np.zeros(5, np.float32), np.zeros((), np.float32)], ids=["5", "scalar"]
)
def test_a_classifier_whose_bias_does_not_fit_is_refused(bias):
    tensors = from_params(random_params(ODD, "sequence"), ODD)
    tensors["classifier.bias"] = bias
    with pytest.raises(UserError, match=r"classifier.weight is \(7, 12\), expected"):
        to_params(tensors, ODD, head="sequence")


def test_integers_are_refused_as_weights():
    tensors = from_params(random_params(ODD, "none"), ODD)
    name = "bert.encoder.layer.1.output.dense.weight"
    tensors[name] = tensors[name].astype(np.int8)
    with pytest.raises(UserError, match=rf"{name} is of int8, expected floats"):
        to_params(tensors, ODD, head="none")


def test_an_incomplete_head_is_not_read():
    """The absent tensors of a head are missing, its other tensors unexpected."""
    tensors = from_params(random_params(ODD, "pretraining"), ODD)
    del tensors["cls.predictions.transform.LayerNorm.bias"]
    read = to_params(tensors, ODD, head="pretraining")
    assert sorted(read.params) == ["bert", "nsp"]
    assert read.missing == ("cls.predictions.transform.LayerNorm.bias",)
    assert len(read.unexpected) == 4
    assert all(name.startswith("cls.predictions.") for name in read.unexpected)


def test_tensors_of_another_head_are_unexpected(tensors, config):
    read = to_params(tensors, config, head="none")
    assert list(read.params) == ["bert"]
    assert len(read.unexpected) == 7
    assert read.missing == ()


def test_only_expected_parts_are_missing():
    tensors = from_params(random_params(ODD, "none"), ODD)
    del tensors["bert.pooler.dense.weight"], tensors["bert.pooler.dense.bias"]
    assert len(to_params(tensors, ODD, head="sequence").missing) == 4
    for head, expected, part in (
        ("token", None, "classifier"),
        ("span", None, "qa_outputs"),
        ("sequence", ["classifier"], "classifier"),
    ):
        read = to_params(tensors, ODD, head=head, expected=expected)
        assert read.missing == (f"{part}.bias", f"{part}.weight")
        assert "pooler" not in read.params["bert"]


def test_tensor_names_decide_the_head():
    heads = {h: guess_head(from_params(random_params(ODD, h), ODD)) for h in HEADS}
    same_tensors = {"token": "sequence", "choice": "sequence"}
    assert heads == {head: same_tensors.get(head, head) for head in HEADS}
    for name in ("cls.seq_relationship.weight", "cls.predictions.bias"):
        assert guess_head({name}) == "pretraining"


@pytest.mark.parametrize(
    "name",
    [
        "3.output.dense.weight",  # a fourth layer
        "0.crossattention.self.query.weight",
        "0.attention.self.distance_embedding.weight",  # relative positions
    ],
)
def test_tensors_of_another_encoder_are_refused(name):
    tensors = from_params(random_params(ODD, "none"), ODD)
    tensors[f"bert.encoder.layer.{name}"] = np.zeros(2, np.float32)
    with pytest.raises(UserError, match=rf"the config: bert\S+{name} is unknown"):
        to_params(tensors, ODD, head="none")
