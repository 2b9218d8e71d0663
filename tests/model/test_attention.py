"""The gradient of attention, which is written by hand, against that of plain formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.attention import MASKED_SCORE, attend
from bert_jax.model.dropout import keep_mask

KEY = jax.random.key(5)


def plain(q, k, v, mask, dropout_rate=0.0, dropout_key=None):
    """As in modeling.py: scores, softmax, dropout, mean of the values; float32."""
    scores = jnp.einsum("BQNH,BKNH->BNQK", q, k) / np.sqrt(q.shape[-1])
    bias = jnp.where(mask == 0, MASKED_SCORE, 0.0)
    probs = jax.nn.softmax(scores + bias[:, None, None, :])
    if dropout_rate:
        keep = keep_mask(dropout_key, dropout_rate, probs.shape)
        probs = jnp.where(keep, probs / (1 - dropout_rate), 0.0)
    return jnp.einsum("BNQK,BKNH->BQNH", probs, v)


def inputs(queries=12):
    """Queries, keys, values, an output's gradient; rows without, with and all padding."""
    rng = np.random.default_rng(0)
    B, L, N, H = 3, 12, 2, 8
    shapes = ((B, queries, N, H), (B, L, N, H), (B, L, N, H), (B, queries, N, H))
    arrays = [np.float32(rng.normal(size=shape)) for shape in shapes]
    mask = np.int32(np.arange(L) < np.array([[L], [7], [0]]))
    return *arrays, mask


def output_and_gradients(function, q, k, v, grad, mask, **options):
    out, vjp = jax.vjp(lambda *qkv: function(*qkv, mask, **options), q, k, v)
    return [np.float32(x) for x in (out, *vjp(grad.astype(out.dtype)))]


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("queries", [12, 5])
def test_output_and_gradients_are_those_of_the_plain_formulas(rate, queries):
    options = {"dropout_rate": rate, "dropout_key": KEY} if rate else {}
    ours = output_and_gradients(attend, *inputs(queries), **options)
    theirs = output_and_gradients(plain, *inputs(queries), **options)
    for got, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=5e-6)


def test_bfloat16_rounds_a_few_times_and_no_more():
    """Root mean square errors of output and gradients, in units of 2**-9.

    A single rounding to nearest of numbers of any size makes about 0.6 of it.
    """
    exact_inputs = [jnp.asarray(x, jnp.bfloat16) for x in inputs()[:4]]
    mask = inputs()[4]
    exact = output_and_gradients(
        plain, *(x.astype(jnp.float32) for x in exact_inputs), mask
    )
    rough = output_and_gradients(attend, *exact_inputs, mask)
    for ours, theirs in zip(rough, exact, strict=True):
        error = np.sqrt(np.mean((ours - theirs) ** 2) / np.mean(theirs**2))
        assert 0.3 < error * 2**9 < 4
