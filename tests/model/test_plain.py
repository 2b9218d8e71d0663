"""The plain forms, which GPUs and TPUs use: what they execute, and what they keep."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.examples import ExampleConfig
from bert_jax.model import device
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.objectives.mlm_nsp import pretraining

CONFIG = BertConfig(96, 32, 2, 4, 64, max_positions=16)
ROWS, LENGTH, MASKED = 4, 16, 3


@pytest.fixture(autouse=True)
def as_on_accelerators(monkeypatch):
    """Traces the functions that a GPU or a TPU traces."""
    monkeypatch.setattr(device, "platform", lambda: "tpu")


def batch():
    random = np.random.default_rng(0)
    ids = random.integers(5, 96, (ROWS, LENGTH), np.int32)
    places = random.integers(0, LENGTH, (ROWS, MASKED), np.int32)
    return {
        "input_ids": ids,
        "token_type_ids": np.int32(ids > 50),
        "attention_mask": np.ones_like(ids),
        "mlm_positions": places,
        "mlm_ids": np.take_along_axis(ids, places, axis=1),
        "mlm_weights": np.ones((ROWS, MASKED), np.float32),
        "nsp_labels": np.array([0, 1, 1, 0], np.int32),
    }


@functools.cache
def loss_of(**compute):
    """The loss as a function of parameters and dropout key, and parameters."""
    objective = pretraining(CONFIG, ComputeConfig(**compute), ExampleConfig())

    def loss(params, key):
        sums = objective.sums(params, batch(), key)
        return sums["mlm_loss"] + sums["nsp_loss"]

    return loss, jax.jit(objective.init)(jax.random.key(0))


def test_the_default_has_no_gradient_or_kernel_of_our_own():
    """The traced step contains no custom rules except in JAX's own functions."""
    loss, params = loss_of(dtype="bfloat16")
    text = str(jax.make_jaxpr(loss)(params, jax.random.key(1)))
    assert "custom_vjp" not in text and "pallas" not in text
    assert "optimization_barrier" not in text
    names = set(re.findall(r"custom_jvp_call\[\s*name=(\w+)", text))
    assert names <= {"relu", "silu", "logsumexp", "_one_hot"}


def test_forward_mode_works_in_bfloat16_with_dropout():
    """A directional derivative equals the gradient's product with the direction."""
    loss, params = loss_of(dtype="bfloat16")
    keys = jax.random.split(jax.random.key(2), len(jax.tree.leaves(params)))
    direction = jax.tree.unflatten(
        jax.tree.structure(params),
        [
            jax.random.normal(key, leaf.shape)
            for key, leaf in zip(keys, jax.tree.leaves(params), strict=True)
        ],
    )
    loss = functools.partial(loss, key=jax.random.key(1))
    _, slope = jax.jit(lambda p, v: jax.jvp(loss, (p,), (v,)))(params, direction)
    grads = jax.jit(jax.grad(loss))(params)
    dots = jax.tree.map(lambda a, b: jnp.vdot(np.float32(a), b), grads, direction)
    assert float(slope) == pytest.approx(float(sum(jax.tree.leaves(dots))), rel=0.05)


def products(remat):
    """Number of products in the gradient, which a policy may compute twice."""
    loss, params = loss_of(dtype="bfloat16", remat=remat)
    return str(jax.make_jaxpr(jax.grad(loss))(params, None)).count("dot_general[")


def test_a_policy_keeps_the_products_with_kernels():
    """A layer has six products with kernels, and two of attention."""
    none, dots, full = map(products, ("none", "dots", "full"))
    # "dots" computes the scores and the values of attention again, "full" all products.
    assert dots - none in (2, 4)
    assert full - none >= 2 * 6


def test_the_plain_loss_equals_the_loss_of_a_cpu(monkeypatch):
    """Without dropout. The gradients are equal as well."""
    plain, params = loss_of(dtype="float32")
    value, grads = jax.jit(jax.value_and_grad(plain))(params, None)
    monkeypatch.setattr(device, "platform", lambda: "cpu")
    of_cpu, again = jax.jit(jax.value_and_grad(plain))(params, None)
    np.testing.assert_allclose(value, of_cpu, rtol=1e-6)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=0, atol=2e-6), grads, again
    )
