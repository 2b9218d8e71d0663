"""Bidirectional multi-head self-attention (paper, section 3; modeling.py)."""

import functools
import logging

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.model.config import MASKED_SCORE, BertConfig, ComputeConfig
from bert_jax.model.kernels import attention_fused
from bert_jax.model.kernels.attention_xla import attend_xla
from bert_jax.model.kernels.dropout import drop
from bert_jax.model.layers import dense
from bert_jax.model.tokens import Tokens, take_positions

_logger = logging.getLogger(__name__)


def attend_plain(
    q_BQNH: jax.Array,
    k_BLNH: jax.Array,
    v_BLNH: jax.Array,
    attends_BQL: jax.Array,
    *,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> jax.Array:
    """softmax(q k / sqrt(H)) v over the keys that a query attends to: (B, Q, N, H).

    Dropout is applied to the probabilities; without ``dropout_key`` there is none. Scores
    and softmax are float32.
    """
    probs_BNQL = probabilities(q_BQNH, k_BLNH, attends_BQL)
    if dropout_key is not None:
        probs_BNQL = drop(probs_BNQL, dropout_rate, dropout_key)
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


def attend(
    q_BQNH: jax.Array,
    k_BLNH: jax.Array,
    v_BLNH: jax.Array,
    tokens: Tokens,
    positions_BQ: jax.Array | None = None,
    *,
    causal: bool = False,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    implementation: str = "auto",
    required: bool = True,
) -> jax.Array:
    """:func:`attend_plain` of the tokens at some positions to all tokens of their row.

    implementation: see ComputeConfig.attention_impl; required: see choose_attention. All
    return the numbers of the plain formula, up to the order of sums and the rounding to
    the dtype of the values.
    """
    rate = dropout_rate if dropout_key is not None else 0.0
    chosen = attention_fused.choose_attention(
        implementation,
        length=k_BLNH.shape[1],
        dtype=v_BLNH.dtype.name,
        dropout_rate=rate,
        causal=causal,
        required=required,
    )
    if implementation != "plain":  # as parameters are initialised
        _log_once(chosen, k_BLNH.shape[1], rate)
    if chosen == "splash":
        query_ids_BQ = take_positions(tokens.query_ids, positions_BQ)
        return attention_fused.attend_splash(
            q_BQNH, k_BLNH, v_BLNH, query_ids_BQ, tokens.segment_ids
        )
    attends_BQL = tokens.attends(positions_BQ, causal)
    if chosen == "cudnn":
        return attention_fused.attend_cudnn(q_BQNH, k_BLNH, v_BLNH, attends_BQL)
    function = attend_plain if chosen == "plain" else attend_xla
    dropout = {"dropout_rate": rate, "dropout_key": dropout_key} if rate else {}
    return function(q_BQNH, k_BLNH, v_BLNH, attends_BQL, **dropout)


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
        x_BLD: jax.Array,
        tokens: Tokens,
        positions_BQ: jax.Array | None = None,
        *,
        deterministic: bool,
    ) -> jax.Array:
        """Attention of the tokens at ``positions_BQ``, None for all: (B, Q, D).

        Where the collection "attention" is mutable, it keeps the probabilities without
        dropout, (B, N, Q, L).
        """
        config, compute = self.config, self.compute
        heads = (config.num_heads, config.head_size)
        x_BQD = take_positions(x_BLD, positions_BQ)
        q_BQNH = dense(config, compute, heads, name="query")(x_BQD)
        k_BLNH = dense(config, compute, heads, name="key")(x_BLD)
        v_BLNH = dense(config, compute, heads, name="value")(x_BLD)
        if self.is_mutable_collection("attention") and not self.is_initializing():
            attends_BQL = tokens.attends(positions_BQ, config.causal)
            probs_BNQL = probabilities(q_BQNH, k_BLNH, attends_BQL)
            self.sow("attention", "probabilities", probs_BNQL)
        use_dropout = config.attention_dropout > 0 and not deterministic
        context_BQNH = attend(
            q_BQNH,
            k_BLNH,
            v_BLNH,
            tokens,
            positions_BQ,
            causal=config.causal,
            dropout_rate=config.attention_dropout,
            dropout_key=self.make_rng("dropout") if use_dropout else None,
            # Parameters are initialised on a few tokens, which suit no kernel.
            implementation="plain"
            if self.is_initializing()
            else compute.attention_impl,
            # Training computes as its config says. Inference may run elsewhere.
            required=not deterministic,
        )
        D = config.hidden_size
        return dense(config, compute, D, axis=(-2, -1), name="output")(context_BQNH)
