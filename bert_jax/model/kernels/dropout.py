"""Dropout with masks as cheap as the hardware makes them.

On a CPU drawing bits is most of what dropout costs, so a value takes eight of them. On a
TPU bytes are what costs: a BASE step of 0.144 s would take 0.425 s with them (the
compiler's estimates for v2:4x4), so a value takes a word. The same key gives other masks
there, of the same distribution.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

_LEVELS = 256


def keep_mask(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """True with probability 1 - ``rate``, for each element on its own."""
    return jax.lax.platform_dependent(
        key,
        cpu=lambda key: mask_from_bytes(key, rate, shape),
        default=lambda key: mask_from_words(key, rate, shape),
    )


def mask_from_words(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """As :func:`keep_mask`, a word a value: exact to 2**-32."""
    threshold = np.uint32(min(round(rate * 2**32), 2**32 - 1))
    return jax.random.bits(key, shape, jnp.uint32) >= threshold


def mask_from_bytes(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """As :func:`keep_mask`, a byte a value.

    A byte is compared with a threshold. Few rates are multiples of 1/256, so the
    threshold is one of two neighbours, chosen once a call by a word of the key, itself
    as random as what is drawn with it: over keys, every element is dropped with exactly
    ``rate`` (to 2**-32).
    """
    low = math.floor(rate * _LEVELS)
    share = np.uint32((rate * _LEVELS - low) * 2**32)
    threshold = low + (jax.random.key_data(key)[-1] < share).astype(jnp.int32)
    # Two dimensions, whatever the shape: the HLO that counts the elements of four takes
    # as long to compile as the rest of a layer. Rows stay apart, as a mesh splits them.
    rows, *rest = shape
    width = math.prod(rest)
    # The compiler's threefry is one loop over the words; jax.random's on a CPU is a
    # rolled loop over its rounds, which writes and reads all words at each.
    data = jax.random.key_data(key)
    _, words = jax.lax.rng_bit_generator(
        jnp.pad(data, (0, 4 - data.size)),
        (rows, -(-width // 4)),
        algorithm=jax.lax.RandomAlgorithm.RNG_THREE_FRY,
    )
    bytes_ = jax.lax.bitcast_convert_type(words, jnp.uint8).reshape(rows, -1)
    return bytes_[:, :width].reshape(shape).astype(jnp.int32) >= threshold


def drop(x: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    """Zero with probability ``rate``, otherwise x / (1 - rate)."""
    return jnp.where(keep_mask(key, rate, x.shape), x / (1 - rate), 0)


class Dropout(nn.Module):
    """:func:`drop` with the "dropout" rng, unless ``deterministic``."""

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        if deterministic or not self.rate:
            return x
        return drop(x, self.rate, self.make_rng("dropout"))
