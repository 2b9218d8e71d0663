"""Chooses how attention is computed on a device."""

import functools
import logging

import jax

from bert_jax.model.kernels import attention_fused
from bert_jax.model.kernels.attention_xla import attend_xla
from bert_jax.model.tokens import Tokens, take_positions
from bert_jax.model.window import attend_in_blocks

_logger = logging.getLogger(__name__)


def attend(
    q_BQNH: jax.Array,
    k_BLNH: jax.Array,
    v_BLNH: jax.Array,
    tokens: Tokens,
    positions_BQ: jax.Array | None = None,
    *,
    causal: bool = False,
    window: int = 0,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    dropout_impl: str = "auto",
    implementation: str = "auto",
    required: bool = True,
) -> jax.Array:
    """Attention by a faster form, for settings that device.is_plain does not accept.

    q_BQNH: the queries at ``positions_BQ``, None for all positions. window: see
    LayerPattern. A window needs the queries at all positions. dropout_impl, implementation:
    see ComputeConfig. required: see choose_attention. All implementations return the
    numbers of the plain formula, up to the order of sums and the rounding to the dtype of
    the values.
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
    _logger.debug("attention over %d positions: %s", k_BLNH.shape[1], chosen)
    if chosen == "splash":
        query_ids_BQ = take_positions(tokens.query_ids, positions_BQ)
        return attention_fused.attend_splash(
            *(q_BQNH, k_BLNH, v_BLNH, query_ids_BQ, tokens.segment_ids), window=window
        )
    if chosen == "cudnn":
        form = attention_fused.attend_cudnn
    else:
        form = functools.partial(
            attend_xla,
            dropout_rate=rate,
            dropout_key=dropout_key,
            dropout_impl=dropout_impl,
        )
    if window:
        reach = {"window": window, "causal": causal}
        return attend_in_blocks(form, q_BQNH, k_BLNH, v_BLNH, tokens, **reach)
    return form(q_BQNH, k_BLNH, v_BLNH, tokens.attends(positions_BQ, causal))
