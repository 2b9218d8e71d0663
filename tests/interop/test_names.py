import dataclasses
from functools import partial

import jax
import numpy as np
import pytest
from flax import traverse_util

from bert_jax.errors import UserError
from bert_jax.interop.names import from_tensorflow, parameters, to_tensorflow
from bert_jax.interop.tensorflow_checkpoint import read_checkpoint
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig
from bert_jax.model.encoder import stack_layers

# Every size differs, so that no transposed or mislabelled dimension can fit.
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


@pytest.fixture(scope="module")
def config(golden):
    return BertConfig.from_json(golden / "google_bert/bert_config.json")


@pytest.fixture(scope="module")
def variables(golden):
    return read_checkpoint(golden / "google_bert/bert_model.ckpt")


@pytest.mark.parametrize("scan_layers", [False, True])
def test_params_survive_the_round_trip_bit_for_bit(scan_layers):
    config = dataclasses.replace(ODD, scan_layers=scan_layers)
    leaves, treedef = jax.tree.flatten(shapes(config))
    rng = np.random.default_rng(0)
    leaves = [rng.normal(size=leaf.shape).astype(np.float32) for leaf in leaves]
    params = jax.tree.unflatten(treedef, leaves)
    back = from_tensorflow(to_tensorflow(params, config), config)
    assert jax.tree.structure(back) == treedef
    for ours, again in zip(leaves, jax.tree.leaves(back), strict=True):
        np.testing.assert_array_equal(ours, again)
        assert again.dtype == np.float32


def test_variables_survive_the_round_trip_bit_for_bit(variables, config):
    back = to_tensorflow(from_tensorflow(variables, config), config)
    weights = {name for name in variables if "adam_" not in name} - {"global_step"}
    assert set(back) == weights
    assert len(back) == 5 + 2 * 16 + 9
    for name in weights:
        np.testing.assert_array_equal(back[name], variables[name], strict=True)


def test_scanned_layers_are_the_same_layers_stacked(variables, config):
    loop = from_tensorflow(variables, config)
    scan = from_tensorflow(variables, dataclasses.replace(config, scan_layers=True))
    stacked = stack_layers(loop["bert"]["encoder"])
    jax.tree.map(np.testing.assert_array_equal, scan["bert"]["encoder"], stacked)


def test_the_table_holds_each_parameter_of_the_model_once():
    flat = traverse_util.flatten_dict(shapes(ODD), sep="/")
    table = parameters(ODD.num_layers)
    assert sorted(row.ours for row in table) == sorted(flat)
    assert len({row.google for row in table}) == len(table)


def test_heads_are_slices_of_the_original_columns(variables, config):
    """Head n of ours is columns n H to (n + 1) H of Google's (D, N H) kernel."""
    layer = from_tensorflow(variables, config)["bert"]["encoder"]["layer_1"][
        "attention"
    ]
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


def test_a_user_error_lists_all_that_does_not_fit(variables, config):
    changed = dict(variables)
    del changed["bert/pooler/dense/bias"]
    changed["output_weights"] = np.zeros((3, 64), np.float32)
    changed["bert/pooler/dense/kernel"] = np.zeros((64, 32), np.float32)
    with pytest.raises(UserError) as caught:
        from_tensorflow(changed, config)
    message = str(caught.value)
    assert "missing: bert/pooler/dense/bias;" in message
    assert "unexpected: output_weights;" in message
    assert "bert/pooler/dense/kernel is (64, 32), the config gives (64, 64)" in message
    assert "\n" not in message


def test_a_long_list_is_cut(variables, config):
    with pytest.raises(UserError, match=r"missing: (\S+, ){4}\S+ and 11 more;"):
        from_tensorflow(variables, dataclasses.replace(config, num_layers=3))
    with pytest.raises(UserError, match=r"unexpected: (\S+, ){4}\S+ and 11 more;"):
        from_tensorflow(variables, dataclasses.replace(config, num_layers=1))
