import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.layers import activation, layer_norm

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=48,
    num_layers=1,
    num_heads=3,
    intermediate_size=20,
    layer_norm_epsilon=1e-6,
)


def exact_gelu(x):
    """The formula with erf in float64."""
    return x * 0.5 * np.array([math.erfc(-value / math.sqrt(2)) for value in x])


def exact_gelu_tanh(x):
    """The formula with tanh in float64."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return x / (1 + np.exp(-2 * inner))


@pytest.mark.parametrize(
    ("name", "exact", "first"),
    [("gelu", exact_gelu, -5), ("gelu_tanh", exact_gelu_tanh, -4)],
)
def test_the_tail_of_gelu_is_exact_in_bfloat16(name, exact, first):
    """Values and gradients are within one rounding of float64, which is 0.4%.

    Below ``first`` even float32 loses the digits of values of 1e-6, as in modeling.py.
    """
    function = activation(dataclasses.replace(CONFIG, activation=name))
    x = jnp.linspace(first, -1, 801).astype(jnp.bfloat16)
    x64 = np.float64(x)
    expected = exact(x64)
    actual = jax.jit(function)(x)
    assert actual.dtype == jnp.bfloat16
    error = np.abs(np.float64(actual) / expected - 1)
    assert error.mean() < 0.01
    assert error[x64 > -4].max() < 0.005
    slope = (exact(x64 + 1e-4) - exact(x64 - 1e-4)) / 2e-4
    gradient = np.float64(jax.jit(jax.vmap(jax.grad(function)))(x))
    np.testing.assert_allclose(gradient, slope, rtol=0.005, atol=2e-5)


def test_gelu_in_float32_is_the_original_formula():
    """The program has no conversion, so it gives the same bits as before."""

    def formula(x):
        return x * (0.5 * (1.0 + jax.lax.erf(x * math.sqrt(0.5))))

    x = jnp.linspace(-6, 6, 301)
    programs = [
        str(jax.make_jaxpr(function)(x)) for function in (activation(CONFIG), formula)
    ]
    assert programs[0] == programs[1]


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_the_backward_pass_of_gelu_keeps_only_a_bfloat16_argument(name):
    function = activation(dataclasses.replace(CONFIG, activation=name))
    x = jnp.linspace(-3, 3, 301).astype(jnp.bfloat16)
    _, backward = jax.vjp(function, x)
    kept = [leaf.nbytes for leaf in jax.tree.leaves(backward)]
    assert sum(kept) == x.nbytes


@pytest.mark.parametrize("mean", [0.0, 30.0, 300.0])
def test_layer_norm_is_exact_for_a_large_mean(mean):
    """The mean of x^2 minus the square of the mean has errors of 0.0005 and 0.04."""
    x = np.float32(mean + np.random.default_rng(0).standard_normal((40, 48)))
    norm = layer_norm(CONFIG, ComputeConfig())
    params = {"scale": jnp.full(48, 1.5), "bias": jnp.full(48, -0.5)}
    actual = jax.jit(norm.apply)({"params": params}, x)
    x64 = np.float64(x)
    centered = x64 - x64.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(np.mean(centered**2, axis=-1, keepdims=True) + 1e-6)
    expected = 1.5 * centered / deviation - 0.5
    assert np.abs(actual - expected).max() < 3e-7 * max(mean, 3)
