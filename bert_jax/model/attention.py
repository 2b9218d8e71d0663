"""Bidirectional multi-head self-attention (paper, section 3; modeling.py)."""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.model.config import BertConfig
from bert_jax.model.dropout import keep_mask
from bert_jax.model.layers import FlatDense, kernel_init

# Added to the score of a masked key, as the original does. Finite, so that a row whose
# keys are all padding gives a mean instead of NaN.
MASKED_SCORE = -10000.0


def attend(
    q_BQNH: jax.Array,
    k_BLNH: jax.Array,
    v_BLNH: jax.Array,
    attention_mask_BL: jax.Array,
    *,
    query_numbers_BQ: jax.Array | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> jax.Array:
    """Each query's mean of the values, weighted by softmax(q k / sqrt(H)): (B, Q, N, H).

    attention_mask_BL: 0 where a key is padding. In packed rows it numbers the sequences;
    with query_numbers_BQ a query reads the keys that have its number. Dropout falls on
    the probabilities, for each head and position on its own. Scores and softmax are
    float32.
    """
    if query_numbers_BQ is None:
        read_BQL = attention_mask_BL[:, None, :] != 0
    else:
        read_BQL = attention_mask_BL[:, None, :] == query_numbers_BQ[:, :, None]
    bias_BQL = jnp.where(read_BQL, 0.0, MASKED_SCORE)  # (B, 1, L) or (B, Q, L)
    if not dropout_rate or dropout_key is None:
        return _attend(q_BQNH, k_BLNH, v_BLNH, bias_BQL, None, 0.0)
    B, Q, N, _ = q_BQNH.shape
    keep_BNQL = keep_mask(dropout_key, dropout_rate, (B, N, Q, k_BLNH.shape[1]))
    return _attend(q_BQNH, k_BLNH, v_BLNH, bias_BQL, keep_BNQL, dropout_rate)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(
    q_BQNH: jax.Array,
    k_BLNH: jax.Array,
    v_BLNH: jax.Array,
    bias_BQL: jax.Array,
    keep_BNQL: jax.Array | None,
    rate: float,
) -> jax.Array:
    """:func:`attend` with a gradient by hand, which reads one large array, not three."""
    return _forward(q_BQNH, k_BLNH, v_BLNH, bias_BQL, keep_BNQL, rate)[0]


def _forward(q_BQNH, k_BLNH, v_BLNH, bias_BQL, keep_BNQL, rate):
    """The output, and what the gradient needs.

    The weights exp(score - the row's maximum) are divided by their sum after the product
    with the values. Those that dropout takes are kept with a minus sign: the gradient
    reads weights and mask out of the same array.
    """
    scores_BNQL = _scores(q_BQNH, k_BLNH, bias_BQL)
    top_BNQ1 = jnp.max(scores_BNQL, axis=-1, keepdims=True)
    # To a TPU the product again is cheaper than to write float32 scores and read them.
    scores_BNQL = jax.lax.platform_dependent(
        tpu=lambda: _scores(jax.lax.optimization_barrier(q_BQNH), k_BLNH, bias_BQL),
        default=lambda: scores_BNQL,
    )
    weights_BNQL = jnp.exp(scores_BNQL - top_BNQ1)
    total_BQN1 = jnp.moveaxis(jnp.sum(weights_BNQL, axis=-1, keepdims=True), 1, 2)
    if keep_BNQL is not None:
        weights_BNQL = jnp.where(keep_BNQL, weights_BNQL, -weights_BNQL)
    signed_BNQL = weights_BNQL.astype(v_BLNH.dtype)
    context_BQNH = jnp.einsum(
        "BNQK,BKNH->BQNH",
        jnp.maximum(signed_BNQL, 0),
        v_BLNH,
        preferred_element_type=jnp.float32,
    )
    context_BQNH = (context_BQNH / (total_BQN1 * (1 - rate))).astype(v_BLNH.dtype)
    kept = q_BQNH, k_BLNH, v_BLNH, signed_BNQL, total_BQN1, context_BQNH
    return context_BQNH, kept


def _backward(rate, kept, grad_BQNH):
    """Gradients of queries, keys and values; bias and mask have none."""
    q_BQNH, k_BLNH, v_BLNH, signed_BNQL, total_BQN1, context_BQNH = kept
    dtype = v_BLNH.dtype
    grad_BQNH = grad_BQNH.astype(jnp.float32) / total_BQN1
    # What comes through the sum is the same for all weights of a row.
    through_sum_BQN = -jnp.sum(grad_BQNH * context_BQNH.astype(jnp.float32), axis=-1)
    grad_BQNH = (grad_BQNH / (1 - rate)).astype(dtype)
    grad_v_BLNH = jnp.einsum("BNQK,BQNH->BKNH", jnp.maximum(signed_BNQL, 0), grad_BQNH)
    grad_BNQL = jnp.einsum(
        "BQNH,BKNH->BNQK", grad_BQNH, v_BLNH, preferred_element_type=jnp.float32
    )
    grad_BNQL = jnp.where(signed_BNQL > 0, grad_BNQL, 0.0)
    grad_BNQL += jnp.moveaxis(through_sum_BQN, 1, 2)[..., None]
    grad_BNQL *= jnp.abs(signed_BNQL).astype(jnp.float32) * _scale(q_BQNH)
    grad_BNQL = grad_BNQL.astype(dtype)
    grad_q_BQNH = jnp.einsum("BNQK,BKNH->BQNH", grad_BNQL, k_BLNH)
    grad_k_BLNH = jnp.einsum("BNQK,BQNH->BKNH", grad_BNQL, q_BQNH)
    return grad_q_BQNH, grad_k_BLNH, grad_v_BLNH, None, None


_attend.defvjp(_forward, _backward)


def _scores(q_BQNH: jax.Array, k_BLNH: jax.Array, bias_BQL: jax.Array) -> jax.Array:
    """Scores q k / sqrt(H), float32, with ``bias_BQL``: (B, N, Q, L)."""
    scores_BNQL = jnp.einsum(
        "BQNH,BKNH->BNQK", q_BQNH, k_BLNH, preferred_element_type=jnp.float32
    )
    return scores_BNQL * _scale(q_BQNH) + bias_BQL[:, None]


def _scale(q_BQNH: jax.Array) -> float:
    return q_BQNH.shape[-1] ** -0.5


class SelfAttention(nn.Module):
    """Projects to queries, keys and values, attends, projects back."""

    config: BertConfig

    @nn.compact
    def __call__(
        self,
        x_BQD: jax.Array,
        x_BLD: jax.Array,
        attention_mask_BL: jax.Array,
        query_numbers_BQ: jax.Array | None,
        deterministic: bool,
    ) -> jax.Array:
        """What the positions ``x_BQD`` read in ``x_BLD``, of which they are some or all.

        attention_mask_BL and query_numbers_BQ: see attend().
        """
        config = self.config

        def project(name: str, x_BLD: jax.Array) -> jax.Array:
            # (D, N, H) kernels: a mesh splits them by heads.
            return FlatDense(
                (config.num_heads, config.head_size),
                dtype=jnp.dtype(config.dtype),
                kernel_init=kernel_init(config),
                name=name,
            )(x_BLD)

        use_dropout = config.attention_dropout > 0 and not deterministic
        context_BQNH = attend(
            project("query", x_BQD),
            project("key", x_BLD),
            project("value", x_BLD),
            attention_mask_BL,
            query_numbers_BQ=query_numbers_BQ,
            dropout_rate=config.attention_dropout,
            dropout_key=self.make_rng("dropout") if use_dropout else None,
        )
        return FlatDense(
            config.hidden_size,
            axis=(-2, -1),
            dtype=jnp.dtype(config.dtype),
            kernel_init=kernel_init(config),
            name="output",
        )(context_BQNH)
