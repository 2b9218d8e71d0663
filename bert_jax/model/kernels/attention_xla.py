"""Attention with its own gradient, for all devices, with dropout."""

import functools

import jax
import jax.numpy as jnp

from bert_jax.model.config import MASKED_SCORE
from bert_jax.model.device import platform
from bert_jax.model.kernels.products import einsum, swapaxes
from bert_jax.model.layers import mask_function


def attend_xla(
    q_BQNH: jax.Array,
    k_BLNH: jax.Array,
    v_BLNH: jax.Array,
    attends_BQL: jax.Array,
    *,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    dropout_impl: str = "auto",
) -> jax.Array:
    """See bert.attend_plain."""
    bias_BQL = jnp.where(attends_BQL, 0.0, MASKED_SCORE)
    if not dropout_rate or dropout_key is None:
        return _attend(q_BQNH, k_BLNH, v_BLNH, bias_BQL, None, 0.0)
    B, Q, N, _ = q_BQNH.shape
    mask = mask_function(dropout_impl)
    keep_BNQL = mask(dropout_key, dropout_rate, (B, N, Q, k_BLNH.shape[1]))
    return _attend(q_BQNH, k_BLNH, v_BLNH, bias_BQL, keep_BNQL, dropout_rate)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(q_BQNH, k_BLNH, v_BLNH, bias_BQL, keep_BNQL, rate):
    """:func:`attend_xla`. Its gradient reads one large array instead of three."""
    return _forward(q_BQNH, k_BLNH, v_BLNH, bias_BQL, keep_BNQL, rate)[0]


def _forward(q_BQNH, k_BLNH, v_BLNH, bias_BQL, keep_BNQL, rate):
    """The output, and the arrays that the gradient needs.

    The weights exp(score - maximum of the row) are divided by their sum after the product
    with the values. Dropped weights are stored with a minus sign, so the gradient reads
    the weights and the dropout mask from one array.
    """
    scores_BNQL = _scores(q_BQNH, k_BLNH, bias_BQL)
    top_BNQ1 = jnp.max(scores_BNQL, axis=-1, keepdims=True)
    weights_BNQL = jnp.exp(scores_BNQL - top_BNQ1)
    total_BNQ1 = jnp.sum(weights_BNQL, axis=-1, keepdims=True)
    if rate:
        weights_BNQL = jnp.where(_written(keep_BNQL), weights_BNQL, -weights_BNQL)
    signed_BNQL = _written(weights_BNQL.astype(v_BLNH.dtype))
    context_BNQH = einsum(
        "BNQK,BKNH->BNQH", _after_dropout(signed_BNQL, rate), v_BLNH, jnp.float32
    )
    context_BNQH = (context_BNQH / (total_BNQ1 * (1 - rate))).astype(v_BLNH.dtype)
    context_BQNH = swapaxes(context_BNQH, 1, 2)
    total_BQN1 = jnp.swapaxes(total_BNQ1, 1, 2)
    kept = q_BQNH, k_BLNH, v_BLNH, signed_BNQL, total_BQN1, context_BQNH
    return context_BQNH, kept


def _backward(rate, kept, grad_BQNH):
    """Gradients of queries, keys and values. Bias and mask have no gradient."""
    q_BQNH, k_BLNH, v_BLNH, signed_BNQL, total_BQN1, context_BQNH = kept
    dtype = v_BLNH.dtype
    grad_BQNH = grad_BQNH.astype(jnp.float32) / total_BQN1
    # The gradient through the sum is the same for all weights of a row.
    through_sum_BQN = -jnp.sum(grad_BQNH * context_BQNH.astype(jnp.float32), axis=-1)
    grad_BQNH = (grad_BQNH / (1 - rate)).astype(dtype)
    grad_v_BLNH = einsum(
        "BNQK,BQNH->BKNH", _after_dropout(signed_BNQL, rate), grad_BQNH
    )
    grad_BNQL = einsum("BQNH,BKNH->BNQK", grad_BQNH, v_BLNH, jnp.float32)
    if rate:
        grad_BNQL = jnp.where(signed_BNQL > 0, grad_BNQL, 0.0)
    grad_BNQL += jnp.moveaxis(through_sum_BQN, 1, 2)[..., None]
    grad_BNQL *= jnp.abs(signed_BNQL).astype(jnp.float32)
    grad_BNQL = grad_BNQL.astype(dtype)
    grad_q_BQNH = einsum("BNQK,BKNH->BQNH", grad_BNQL, k_BLNH) * _scale(q_BQNH)
    grad_k_BLNH = einsum("BNQK,BQNH->BKNH", grad_BNQL, q_BQNH) * _scale(q_BQNH)
    return grad_q_BQNH, grad_k_BLNH, grad_v_BLNH, None, None


_attend.defvjp(_forward, _backward)


def _scores(q_BQNH: jax.Array, k_BLNH: jax.Array, bias_BQL: jax.Array) -> jax.Array:
    """Scores q k / sqrt(H), float32, with ``bias_BQL``: (B, N, Q, L)."""
    # Scaling the queries is exact for heads of 64 and faster than scaling the scores.
    scores_BNQL = einsum(
        "BQNH,BKNH->BNQK", q_BQNH * _scale(q_BQNH), k_BLNH, jnp.float32
    )
    return _written(scores_BNQL) + bias_BQL[:, None]


def _written(x_BNQL: jax.Array) -> jax.Array:
    """``x``, which a GPU writes to memory before anything reads it.

    Without this barrier XLA does three things that cost more (bytes in benchmarks/LOG.md):
    it adds the bias within the product, from a float32 array as large as the scores; it
    computes the mask within the softmax, which becomes two fusions; and it keeps the
    float32 scores and the mask, from which the gradient computes the signed weights again.
    """
    return jax.lax.optimization_barrier(x_BNQL) if platform() == "gpu" else x_BNQL


def _after_dropout(signed_BNQL: jax.Array, rate: float) -> jax.Array:
    """The weights, with 0 for dropped weights."""
    return jnp.maximum(signed_BNQL, 0) if rate else signed_BNQL


def _scale(q_BQNH: jax.Array) -> float:
    return q_BQNH.shape[-1] ** -0.5
