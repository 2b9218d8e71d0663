"""Bidirectional multi-head self-attention (paper, section 3; modeling.py)."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.model.config import BertConfig
from bert_jax.model.dropout import dropout
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
    scale = q_BQNH.shape[-1] ** -0.5
    scores_BNQL = jnp.einsum(
        "BQNH,BKNH->BNQK", q_BQNH, k_BLNH, preferred_element_type=jnp.float32
    )
    if query_numbers_BQ is None:
        read_BQL = attention_mask_BL[:, None, :] != 0
    else:
        read_BQL = attention_mask_BL[:, None, :] == query_numbers_BQ[:, :, None]
    bias_BQL = jnp.where(read_BQL, 0.0, MASKED_SCORE)
    scores_BNQL = scores_BNQL * scale + bias_BQL[:, None]
    probs_BNQL = jax.nn.softmax(scores_BNQL).astype(v_BLNH.dtype)
    if dropout_rate and dropout_key is not None:
        probs_BNQL = dropout(probs_BNQL, dropout_rate, dropout_key)
    return jnp.einsum("BNQK,BKNH->BQNH", probs_BNQL, v_BLNH)


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
