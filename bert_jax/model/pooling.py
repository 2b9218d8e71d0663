"""A vector of each sequence of a row, from those of its tokens."""

import jax
import jax.numpy as jnp

from bert_jax.model.encoder import take_positions


def sequence_ends(
    attention_mask_BL: jax.Array,
    segment_ids_BL: jax.Array | None = None,
    starts_BS: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Where each sequence of a row begins and ends, (B, S) both; see BertModel."""
    ids_BL = segment_ids_BL
    if ids_BL is None:  # a row is a sequence
        ids_BL, starts_BS = attention_mask_BL, jnp.zeros_like(attention_mask_BL[:, :1])
    numbers_S = jnp.arange(1, starts_BS.shape[1] + 1)
    own_BSL = ids_BL[:, None] == numbers_S[None, :, None]
    return starts_BS, starts_BS + jnp.maximum(jnp.sum(own_BSL, axis=-1) - 1, 0)


def mean_tokens(x_BLD: jax.Array, ids_BL: jax.Array, S: int) -> jax.Array:
    """The mean of each sequence's vectors, float32 (B, S, D), [CLS] and [SEP] included.

    ids_BL: the sequence that a token belongs to, from 1 (0 is padding). A row may hold
    fewer than S; the others have zeros.
    """
    own_BLS = jax.nn.one_hot(ids_BL - 1, S)
    sums_BSD = jnp.einsum(
        "BLD,BLS->BSD",
        x_BLD.astype(jnp.float32),
        own_BLS,
        precision=jax.lax.Precision.HIGHEST,
    )
    return sums_BSD / jnp.maximum(own_BLS.sum(axis=1), 1)[..., None]


def last_states(
    x_BLF: jax.Array, firsts_BS: jax.Array, lasts_BS: jax.Array
) -> jax.Array:
    """What each direction has at the end of a sequence, side by side: (B, S, F).

    x_BLF: forward states, then backward ones, which end at a sequence's first token.
    """
    forward, backward = jnp.split(x_BLF, 2, axis=-1)
    ends = take_positions(forward, lasts_BS), take_positions(backward, firsts_BS)
    return jnp.concatenate(ends, axis=-1)


def pool_tokens(
    pooling: str,
    x_BLD: jax.Array,
    attention_mask_BL: jax.Array,
    segment_ids_BL: jax.Array | None = None,
    starts_BS: jax.Array | None = None,
) -> jax.Array:
    """A vector of each sequence, (B, S, D): the "mean" of its tokens, or its "cls"."""
    firsts_BS, _ = sequence_ends(attention_mask_BL, segment_ids_BL, starts_BS)
    if pooling == "cls":
        return take_positions(x_BLD, firsts_BS)
    ids_BL = attention_mask_BL if segment_ids_BL is None else segment_ids_BL
    return mean_tokens(x_BLD, ids_BL, firsts_BS.shape[1])


def normalized(x_BSD: jax.Array) -> jax.Array:
    """Vectors scaled to length 1; one of zeros, as of an empty slot, stays as it is."""
    squares = jnp.sum(jnp.square(x_BSD), axis=-1, keepdims=True)
    # The gradient of a norm is not defined at 0.
    return x_BSD * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))
