"""Filling in blanks: what a pretrained model predicts at [MASK]."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError


def fill_mask(
    model: nn.Module,
    params: Any,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    length: int,
    top: int = 3,
) -> list[list[list[tuple[str, float]]]]:
    """For each text and each [MASK] in it the ``top`` (token, probability) pairs.

    ``length``: tokens that a text is padded to, [CLS] and [SEP] counted. Raises
    UserError for a text without [MASK], or too long.
    """
    B = len(texts)
    rows = [tokenizer.encode(text, allow_mask=True) for text in texts]
    masks = [np.flatnonzero(row == tokenizer.mask_id) + 1 for row in rows]
    for text, row, positions in zip(texts, rows, masks, strict=True):
        if not len(positions):
            raise UserError(
                f"no [MASK] in {text!r}; put [MASK] where a token is missing"
            )
        if len(row) + 2 > length:
            raise UserError(f"{text!r} has {len(row)} tokens, at most {length - 2} fit")
    input_ids_BL = np.full((B, length), tokenizer.pad_id, np.int32)
    attention_mask_BL = np.zeros((B, length), np.int32)
    positions_BM = np.zeros((B, max(len(m) for m in masks)), np.int32)
    for i, (row, positions) in enumerate(zip(rows, masks, strict=True)):
        ids = [tokenizer.cls_id, *row, tokenizer.sep_id]
        input_ids_BL[i, : len(ids)] = ids
        attention_mask_BL[i, : len(ids)] = 1
        positions_BM[i, : len(positions)] = positions
    probabilities, ids = jax.device_get(
        _compiled(model, top)(params, input_ids_BL, attention_mask_BL, positions_BM)
    )
    return [
        [
            [
                (tokenizer.tokens[token], float(p))
                for token, p in zip(ids[i, m], probabilities[i, m], strict=True)
            ]
            for m in range(len(masks[i]))
        ]
        for i in range(B)
    ]


@functools.cache
def _compiled(model: nn.Module, top: int) -> Callable:
    """One function for all calls, so that each shape compiles once."""
    return jax.jit(functools.partial(_top_tokens, model=model, top=top))


def _top_tokens(
    params: Any,
    input_ids_BL: jax.Array,
    attention_mask_BL: jax.Array,
    positions_BM: jax.Array,
    *,
    model: nn.Module,
    top: int,
) -> tuple[jax.Array, jax.Array]:
    output = model.apply(
        {"params": params},
        input_ids_BL,
        jnp.zeros_like(input_ids_BL),
        attention_mask_BL,
        positions_BM,
        deterministic=True,
    )
    return jax.lax.top_k(jax.nn.softmax(output.mlm_logits_BMV), top)
