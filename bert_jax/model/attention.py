"""Bidirectional multi-head self-attention (paper, section 3; modeling.py)."""

import functools
import logging

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.model.config import MASKED_SCORE, BertConfig, ComputeConfig
from bert_jax.model.kernels import attention_fused
from bert_jax.model.kernels.attention_xla import attend_xla, attends_to
from bert_jax.model.kernels.dropout import drop
from bert_jax.model.layers import Dense

_logger = logging.getLogger(__name__)


def attend_plain(
    q_BQNH: jax.Array,
    k_BLNH: jax.Array,
    v_BLNH: jax.Array,
    query_ids_BQ: jax.Array,
    key_ids_BL: jax.Array,
    positions_BQ: jax.Array | None = None,
    *,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> jax.Array:
    """softmax(q k / sqrt(H)) v: (B, Q, N, H).

    A query attends to the keys that have its id. ``query_ids_BQ`` may be (B, 1), one id
    for all queries of a row. With ``positions_BQ``, the queries' places in the row, it
    attends to none of the keys after it (left-to-right models). Dropout is applied to the
    probabilities; without ``dropout_key`` there is none. Scores and softmax are float32.
    """
    probs_BNQL = probabilities(q_BQNH, k_BLNH, query_ids_BQ, key_ids_BL, positions_BQ)
    if dropout_key is not None:
        probs_BNQL = drop(probs_BNQL, dropout_rate, dropout_key)
    return jnp.einsum("BNQL,BLNH->BQNH", probs_BNQL.astype(v_BLNH.dtype), v_BLNH)


def probabilities(
    q_BQNH: jax.Array,
    k_BLNH: jax.Array,
    query_ids_BQ: jax.Array,
    key_ids_BL: jax.Array,
    positions_BQ: jax.Array | None = None,
) -> jax.Array:
    """softmax(q k / sqrt(H)) over the keys a query attends to: float32 (B, N, Q, L)."""
    scores_BNQL = jnp.einsum(
        "BQNH,BLNH->BNQL", q_BQNH, k_BLNH, preferred_element_type=jnp.float32
    )
    attends_BQL = attends_to(query_ids_BQ, key_ids_BL, positions_BQ)
    bias_BQL = jnp.where(attends_BQL, 0.0, MASKED_SCORE)
    return jax.nn.softmax(scores_BNQL / q_BQNH.shape[-1] ** 0.5 + bias_BQL[:, None])


_IMPLEMENTATIONS = {
    "plain": attend_plain,
    "xla": attend_xla,
    "splash": attention_fused.attend_splash,
    "cudnn": attention_fused.attend_cudnn,
}


def attend(
    q_BQNH: jax.Array,
    k_BLNH: jax.Array,
    v_BLNH: jax.Array,
    query_ids_BQ: jax.Array,
    key_ids_BL: jax.Array,
    positions_BQ: jax.Array | None = None,
    *,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    implementation: str = "auto",
    required: bool = True,
) -> jax.Array:
    """:func:`attend_plain`, computed by the fastest implementation that fits.

    implementation: see ComputeConfig.attention_impl. required: see choose_attention. All
    return the numbers of the plain formula, up to the order of sums and the rounding to
    the dtype of the values.
    """
    length = k_BLNH.shape[1]
    rate = dropout_rate if dropout_key is not None else 0.0
    chosen = attention_fused.choose_attention(
        implementation,
        length=length,
        dtype=v_BLNH.dtype.name,
        dropout_rate=rate,
        causal=positions_BQ is not None,
        required=required,
    )
    _log_once(chosen, length, rate)
    dropout = {"dropout_rate": rate, "dropout_key": dropout_key} if rate else {}
    return _IMPLEMENTATIONS[chosen](
        q_BQNH, k_BLNH, v_BLNH, query_ids_BQ, key_ids_BL, positions_BQ, **dropout
    )


@functools.cache
def _log_once(chosen: str, length: int, dropout_rate: float) -> None:
    _logger.info(
        "attention over %d positions, dropout %g: %s", length, dropout_rate, chosen
    )


class SelfAttention(nn.Module):
    """Projects to queries, keys and values, attends, projects back."""

    config: BertConfig
    compute: ComputeConfig

    @nn.compact
    def __call__(
        self,
        x_BQD: jax.Array,
        x_BLD: jax.Array,
        query_ids_BQ: jax.Array,
        key_ids_BL: jax.Array,
        positions_BQ: jax.Array | None = None,
        *,
        deterministic: bool,
    ) -> jax.Array:
        """Attention of the tokens ``x_BQD`` to ``x_BLD``: (B, Q, D).

        query_ids_BQ, key_ids_BL, positions_BQ: see attend_plain. Where the collection
        "attention" is mutable, it keeps the probabilities without dropout, (B, N, Q, L).
        """
        config, compute = self.config, self.compute
        heads = (config.num_heads, config.head_size)
        q_BQNH = Dense(config, compute, heads, name="query")(x_BQD)
        k_BLNH = Dense(config, compute, heads, name="key")(x_BLD)
        v_BLNH = Dense(config, compute, heads, name="value")(x_BLD)
        output = Dense(
            config, compute, (config.hidden_size,), contracted=2, name="output"
        )
        use_dropout = config.attention_dropout > 0 and not deterministic
        attention = functools.partial(
            attend,
            implementation=compute.attention_impl,
            # Training computes as its config says. Inference may run elsewhere.
            required=not deterministic,
        )
        if (
            self.is_initializing()
        ):  # on a few tokens, which are not worth a line of the log
            attention = attend_plain
        elif self.is_mutable_collection("attention"):
            probs_BNQL = probabilities(
                q_BQNH, k_BLNH, query_ids_BQ, key_ids_BL, positions_BQ
            )
            self.sow("attention", "probabilities", probs_BNQL)
        context_BQNH = attention(
            q_BQNH,
            k_BLNH,
            v_BLNH,
            query_ids_BQ,
            key_ids_BL,
            positions_BQ,
            dropout_rate=config.attention_dropout,
            dropout_key=self.make_rng("dropout") if use_dropout else None,
        )
        return output(context_BQNH)
