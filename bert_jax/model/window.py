"""Attention to a window of tokens, in blocks.

Its time and memory grow with the length times the window, not with the square of the
length. With a mask, attention would compute all scores and discard most.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from bert_jax.model.tokens import Tokens, in_reach

# The number of queries of a block is a multiple of this number. With a window of 64, the
# arrays of a block of 128 queries and 256 keys fill the tiles of a TPU.
QUERIES = 128


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

    A row is cut into blocks of C tokens, at least twice the window. The keys of a block are
    its own tokens, and ``window`` tokens before and after it. ``attend`` computes each
    block as a row of its own, with C queries and K = C + 2 * window keys.

    attend: function of queries, keys, values and attends_BQL, such as bert.attend_plain.
    """
    B, L, N, H = q_BLNH.shape  # R is the number of blocks of all rows
    C = -(-2 * window // QUERIES) * QUERIES
    K = C + 2 * window
    if L <= K:  # blocks would have as many scores as the row
        return attend(q_BLNH, k_BLNH, v_BLNH, tokens.attends(None, causal, window))
    fill = -L % C
    q_BLNH, k_BLNH, v_BLNH = (
        jnp.pad(x, ((0, 0), (0, fill), (0, 0), (0, 0)))
        for x in (q_BLNH, k_BLNH, v_BLNH)
    )
    query_ids_BL = jnp.pad(tokens.query_ids, ((0, 0), (0, fill)), constant_values=1)
    key_ids_BL = jnp.pad(tokens.segment_ids, ((0, 0), (0, fill)))
    query_ids_RC = query_ids_BL.reshape(-1, C)
    # Places outside of a row have the id of padding, 0.
    key_ids_RK = keys_of_blocks(key_ids_BL, C, window)
    same_RCK = query_ids_RC[:, :, None] == key_ids_RK[:, None, :]
    places_K, places_C = jnp.arange(K) - window, jnp.arange(C)
    distance_CK = places_K[None, :] - places_C[:, None]
    reach_CK = in_reach(distance_CK, causal, window)
    out_RCNH = attend(
        q_BLNH.reshape(-1, C, N, H),
        keys_of_blocks(k_BLNH, C, window),
        keys_of_blocks(v_BLNH, C, window),
        same_RCK & reach_CK[None],
    )
    return out_RCNH.reshape(B, L + fill, N, H)[:, :L]


def keys_of_blocks(x_BL: jax.Array, C: int, window: int) -> jax.Array:
    """Blocks of ``C`` places with ``window`` places before and after each.

    x_BL: (B, L, ...). L must be a multiple of C. Places outside of a row are 0. The result
    is (B * L / C, C + 2 * window, ...).
    """
    rest = x_BL.shape[2:]
    padding = [(0, 0), (window, C - window)] + [(0, 0)] * len(rest)
    blocks = jnp.pad(x_BL, padding).reshape(len(x_BL), -1, C, *rest)
    parts = [blocks[:, :-1], blocks[:, 1:, : 2 * window]]
    keys = jnp.concatenate(parts, axis=2)
    return keys.reshape(-1, C + 2 * window, *rest)
