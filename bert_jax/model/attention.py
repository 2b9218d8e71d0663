"""The formula of multi-head attention (paper, section 3; modeling.py)."""

import jax
import jax.numpy as jnp

from bert_jax.model.config import MASKED_SCORE
from bert_jax.model.layers import drop


def attend_plain(
    q_BQNH: jax.Array,
    k_BLNH: jax.Array,
    v_BLNH: jax.Array,
    attends_BQL: jax.Array,
    *,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    dropout_impl: str = "auto",
) -> jax.Array:
    """softmax(q k / sqrt(H)) v over the keys to which a query attends: (B, Q, N, H).

    attends_BQL: bool, whether a query attends to a key. dropout_key: key for dropout of the
    probabilities. None: no dropout. dropout_impl: see ComputeConfig. Scores and softmax are
    float32.
    """
    probs_BNQL = probabilities(q_BQNH, k_BLNH, attends_BQL)
    if dropout_key is not None:
        probs_BNQL = drop(probs_BNQL, dropout_rate, dropout_key, dropout_impl)
    return jnp.einsum("BNQL,BLNH->BQNH", probs_BNQL.astype(v_BLNH.dtype), v_BLNH)


def probabilities(
    q_BQNH: jax.Array, k_BLNH: jax.Array, attends_BQL: jax.Array
) -> jax.Array:
    """The softmax of :func:`attend_plain`, float32 (B, N, Q, L)."""
    scores_BNQL = jnp.einsum(
        "BQNH,BLNH->BNQL", q_BQNH, k_BLNH, preferred_element_type=jnp.float32
    )
    bias_BQL = jnp.where(attends_BQL, 0.0, MASKED_SCORE)
    return jax.nn.softmax(scores_BNQL / q_BQNH.shape[-1] ** 0.5 + bias_BQL[:, None])
