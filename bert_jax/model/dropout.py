"""Dropout that spends eight random bits a value.

A quarter of the bits that jax.random.bernoulli draws, and their arithmetic is most of
what dropout costs on a CPU.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

_LEVELS = 256


def keep_mask(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """True with probability 1 - ``rate``, for each element on its own.

    A byte is compared with a threshold. Few rates are multiples of 1/256, so the
    threshold is one of two neighbours, chosen once a call by a word of the key, itself
    as random as what is drawn with it: over keys, every element is dropped with exactly
    ``rate`` (to 2**-32).
    """
    low = math.floor(rate * _LEVELS)
    share = np.uint32((rate * _LEVELS - low) * 2**32)
    above = jax.random.key_data(key)[-1] < share
    threshold = low + above.astype(jnp.uint32)
    *rows, width = shape
    # Bytes of a word lie side by side along the last dimension in four runs: no shuffle.
    words = jax.random.bits(key, (*rows, -(-width // 4)), jnp.uint32)
    bytes_ = jnp.concatenate([(words >> shift) & 0xFF for shift in (0, 8, 16, 24)], -1)
    return bytes_[..., :width] >= threshold


def dropout(x: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    """Zero with probability ``rate``, otherwise x / (1 - rate)."""
    return jnp.where(keep_mask(key, rate, x.shape), x / (1 - rate), 0)


class Dropout(nn.Module):
    """:func:`dropout` with the "dropout" rng, unless ``deterministic``."""

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        if deterministic or not self.rate:
            return x
        return dropout(x, self.rate, self.make_rng("dropout"))
