"""Attention to a window of tokens, in blocks.

Its time and memory grow with the length times the window, not with the square of the
length. Masks of the whole square would compute all scores, and discard most of them.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from bert_jax.model.tokens import Tokens, in_reach

# The number of queries of a block is a multiple of this number.
QUERIES = 64


def attend_in_blocks(
    attend: Callable[..., jax.Array],
    q_BLNH: jax.Array,
    k_BLNH: jax.Array,
    v_BLNH: jax.Array,
    tokens: Tokens,
    *,
    window: int,
    causal: bool = False,
) -> jax.Array:
    """``attend`` to the ``window`` tokens on either side of a token: (B, L, N, H).

    A row is cut into blocks of C tokens, at least as many as ``window``. So the keys of a
    query are in its own block and in the blocks before and after it. ``attend`` computes
    each block as a row of its own, with C queries and 3 C keys.

    attend: function of queries, keys, values and attends_BQL, such as bert.attend_plain.
    """
    B, L, N, H = q_BLNH.shape  # R is the number of blocks of all rows, and K is 3 C
    C = -(-window // QUERIES) * QUERIES
    if L <= 3 * C:  # blocks would have as many scores as the row
        return attend(q_BLNH, k_BLNH, v_BLNH, tokens.attends(None, causal, window))
    fill = -L % C
    q_BLNH, k_BLNH, v_BLNH = (
        jnp.pad(x, ((0, 0), (0, fill), (0, 0), (0, 0)))
        for x in (q_BLNH, k_BLNH, v_BLNH)
    )
    query_ids_BL = jnp.pad(tokens.query_ids, ((0, 0), (0, fill)), constant_values=1)
    key_ids_BL = jnp.pad(tokens.segment_ids, ((0, 0), (0, fill)))
    query_ids_RC = query_ids_BL.reshape(-1, C)
    key_ids_RK = with_neighbours(key_ids_BL, C)  # 0, as of padding, outside of the row
    same_RCK = query_ids_RC[:, :, None] == key_ids_RK[:, None, :]
    places_K, places_C = jnp.arange(3 * C) - C, jnp.arange(C)
    distance_CK = places_K[None, :] - places_C[:, None]
    reach_CK = in_reach(distance_CK, causal, window)
    out_RCNH = attend(
        q_BLNH.reshape(-1, C, N, H),
        with_neighbours(k_BLNH, C),
        with_neighbours(v_BLNH, C),
        same_RCK & reach_CK[None],
    )
    return out_RCNH.reshape(B, L + fill, N, H)[:, :L]


def with_neighbours(x_BL: jax.Array, C: int) -> jax.Array:
    """Blocks of ``C`` places, each with the blocks before and after it, or zeros.

    x_BL: (B, L, ...). L must be a multiple of C. The result is (B * L / C, 3 C, ...).
    """
    rest = x_BL.shape[2:]
    blocks = x_BL.reshape(len(x_BL), -1, C, *rest)
    padding = [(0, 0), (1, 1)] + [(0, 0)] * (blocks.ndim - 2)
    blocks = jnp.pad(blocks, padding)
    three = [blocks[:, :-2], blocks[:, 1:-1], blocks[:, 2:]]
    return jnp.concatenate(three, axis=2).reshape(-1, 3 * C, *rest)
