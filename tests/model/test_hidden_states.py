import functools

import jax
import numpy as np
import pytest

from bert_jax.model.bert import BertModel, PostNormBlock
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.parameters import stack_layers
from bert_jax.model.tokens import Tokens

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


def run(compute, params, inputs, **options):
    apply = functools.partial(
        BertModel(CONFIG, compute).apply, deterministic=True, hidden_states=True
    )
    return jax.jit(
        lambda params, *arrays: apply({"params": params}, *arrays, **options)
    )(params, *inputs)


def test_the_last_state_is_the_models_output(params, inputs, states):
    apply = functools.partial(BertModel(CONFIG).apply, deterministic=True)
    output = jax.jit(apply)({"params": params}, *inputs)
    assert output.hidden_states == []
    assert [x.shape for x in states.hidden_states] == [(B, L, 16)] * 4
    np.testing.assert_allclose(states.hidden_states[-1], output.sequence_BLD, atol=1e-5)
    np.testing.assert_allclose(states.pooled_BD, output.pooled_BD, atol=1e-5)


def test_each_state_is_its_layers_output_for_the_state_before(params, inputs, states):
    tokens = Tokens.of_mask(*inputs)
    apply = jax.jit(PostNormBlock(CONFIG, ComputeConfig(), True).apply)
    for i in range(CONFIG.num_layers):
        layer = {"params": params["encoder"][f"layer_{i}"]}
        output = apply(layer, states.hidden_states[i], tokens)
        np.testing.assert_allclose(states.hidden_states[i + 1], output, atol=1e-5)


@pytest.mark.parametrize("remat", ["none", "full"])
def test_scanned_layers_have_the_same_states(params, inputs, states, remat):
    compute = ComputeConfig(scan_layers=True, remat=remat)
    scanned = params | {"encoder": stack_layers(params["encoder"])}
    scanned_states = run(compute, scanned, inputs)
    assert len(scanned_states.hidden_states) == 4
    for ours, other in zip(
        states.hidden_states, scanned_states.hidden_states, strict=True
    ):
        np.testing.assert_allclose(ours, other, atol=1e-5)
    np.testing.assert_allclose(states.pooled_BD, scanned_states.pooled_BD, atol=1e-5)
