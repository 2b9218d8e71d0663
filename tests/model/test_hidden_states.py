import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.bert import BertModel
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.encoder import Layer, stack_layers
from bert_jax.model.hidden_states import hidden_states

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_layers=3,
    num_heads=2,
    intermediate_size=32,
    max_positions=12,
    initializer_range=0.3,
)
B, L = 2, 10


@pytest.fixture(scope="module")
def inputs():
    random = np.random.default_rng(0)
    mask = np.ones((B, L), np.int32)
    mask[1, 6:] = 0
    segments = np.zeros((B, L), np.int32)
    segments[:, 4:] = 1
    return random.integers(0, 50, (B, L), dtype=np.int32), segments, mask


@pytest.fixture(scope="module")
def params(inputs):
    model = BertModel(CONFIG)
    init = jax.jit(functools.partial(model.init, deterministic=True))
    return init(jax.random.key(1), *inputs)["params"]


@pytest.fixture(scope="module")
def states(params, inputs):
    return run(ComputeConfig(), params, inputs)


def run(compute, params, inputs):
    return jax.jit(functools.partial(hidden_states, CONFIG, compute))(params, *inputs)


def test_the_last_is_what_the_model_gives(params, inputs, states):
    output = BertModel(CONFIG).apply({"params": params}, *inputs, deterministic=True)
    assert [x.shape for x in states.layers] == [(B, L, 16)] * 4
    np.testing.assert_allclose(states.layers[-1], output.sequence_BLD, atol=1e-5)
    np.testing.assert_allclose(states.pooled, output.pooled_BD, atol=1e-5)


def test_each_is_its_layer_of_the_one_before(params, inputs, states):
    for i in range(CONFIG.num_layers):
        layer = {"params": params["encoder"][f"layer_{i}"]}
        given = Layer(CONFIG, ComputeConfig(), True).apply(
            layer, states.layers[i], inputs[2]
        )
        np.testing.assert_allclose(states.layers[i + 1], given, atol=1e-5)


@pytest.mark.parametrize("remat", [False, True])
def test_scanned_layers_give_the_same(params, inputs, states, remat):
    compute = ComputeConfig(scan_layers=True, remat=remat)
    scanned = params | {"encoder": stack_layers(params["encoder"])}
    others = run(compute, scanned, inputs)
    assert len(others.layers) == 4
    for ours, other in zip(states.layers, others.layers, strict=True):
        np.testing.assert_allclose(ours, other, atol=1e-5)
    np.testing.assert_allclose(states.pooled, others.pooled, atol=1e-5)


def test_parameters_without_a_pooler(params, inputs, states):
    bare = {name: value for name, value in params.items() if name != "pooler"}
    without = run(ComputeConfig(), bare, inputs)
    assert without.pooled is None
    np.testing.assert_allclose(without.layers[-1], states.layers[-1], atol=1e-5)


def test_sequences_side_by_side_are_as_if_alone(params, inputs):
    """Of a row of 12: five tokens, six, and one of padding."""
    ids, segments, _ = inputs
    mask = (np.arange(L) < np.array([[5], [6]])).astype(np.int32)
    alone = run(ComputeConfig(), params, (ids, segments, mask))
    row = [np.zeros((1, 12), np.int32) for _ in range(3)]
    for array, values in zip(row, (ids, segments, mask * [[1], [2]]), strict=True):
        array[0, :11] = [*values[0, :5], *values[1, :6]]
    ids, types, numbers = row
    starts = np.array([[0, 5]], np.int32)
    inputs = ids, types, np.sign(numbers), numbers, starts
    packed = run(ComputeConfig(), params, inputs)
    for one, two in zip(alone.layers, packed.layers, strict=True):
        np.testing.assert_allclose(two[0, :5], one[0, :5], atol=1e-5)
        np.testing.assert_allclose(two[0, 5:11], one[1, :6], atol=1e-5)
    np.testing.assert_allclose(packed.pooled[0], alone.pooled, atol=1e-5)


def test_half_precision_comes_out_in_single(params, inputs, states):
    compute = ComputeConfig(dtype="bfloat16", remat=True)
    half = run(compute, params, inputs)
    assert {x.dtype for x in [*half.layers, half.pooled]} == {jnp.dtype("float32")}
    np.testing.assert_allclose(half.layers[-1], states.layers[-1], atol=0.2)
    assert not np.array_equal(half.layers[-1], states.layers[-1])


def test_only_what_is_looked_at_is_computed(params, inputs):
    def flops(layer):
        def chosen(params, *arrays):
            return hidden_states(CONFIG, ComputeConfig(), params, *arrays).layers[layer]

        compiled = jax.jit(chosen).lower(params, *inputs).compile()
        return compiled.cost_analysis()["flops"]

    assert flops(0) < 0.1 * flops(1)
    assert flops(1) < 0.4 * flops(3)
