"""Dropout masks of 8 random bits a value: ComputeConfig.dropout_impl="bytes".

Random bits are most of the cost, so each value uses only eight bits. A CPU hashes words,
and each value uses a quarter of one. A TPU uses the chip's generator, because hashing took
a quarter of a BASE step on v6e. A GPU uses Philox, which makes four words in about the time
of hashing one (benchmarks/LOG.md). The distribution is the same on all devices, but the
same key gives different masks. On TPUs and GPUs the masks also depend on the number of
devices that share the batch.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.model.device import drawn_by_rows, drawn_for_all_rows

_LEVELS = 256


def keep_mask(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """True with probability 1 - ``rate``, independently for each element."""
    return jax.lax.platform_dependent(
        key,
        cpu=lambda key: mask_from_bytes(key, rate, shape),
        tpu=lambda key: mask_from_generator(key, rate, shape),
        default=lambda key: mask_from_philox(key, rate, shape),
    )


def mask_from_bytes(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """:func:`keep_mask` from one byte for each value, four from each hashed word."""
    # The compiler's threefry is one loop over the words. On a CPU, jax.random's threefry is
    # a loop over its rounds, which reads and writes all words in each round.
    data = jax.random.key_data(key)
    seed = jnp.pad(data, (0, 4 - data.size))

    def draw(shape: tuple[int, ...]) -> jax.Array:
        return _bytes(seed, shape, jax.lax.RandomAlgorithm.RNG_THREE_FRY)

    return _kept(drawn_for_all_rows(draw, shape), key, rate)


def mask_from_philox(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """:func:`keep_mask` from one byte for each value, four from each word of Philox."""

    def draw(seed: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return _bytes(seed, shape, jax.lax.RandomAlgorithm.RNG_PHILOX)

    return _kept(drawn_by_rows(draw, key, shape), key, rate)


def mask_from_generator(
    key: jax.Array, rate: float, shape: tuple[int, ...]
) -> jax.Array:
    """:func:`keep_mask` from one byte for each value, from the device's generator.

    Scores of attention have four axes. The last two are drawn in the order of a TPU's
    layout of scores, because otherwise the bytes would be transposed.
    """

    def draw(seed: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        if len(shape) != 4:
            return jax.lax.rng_bit_generator(seed, shape, jnp.uint8)[1]
        B, N, Q, L = shape
        return jnp.swapaxes(
            jax.lax.rng_bit_generator(seed, (B, N, L, Q), jnp.uint8)[1], 2, 3
        )

    return _kept(drawn_by_rows(draw, key, shape), key, rate)


def _bytes(
    seed: jax.Array, shape: tuple[int, ...], algorithm: jax.lax.RandomAlgorithm
) -> jax.Array:
    """Random bytes, uint8 of ``shape``, four from each word.

    They are drawn in two dimensions, because four dimensions take as long to compile on a
    CPU as the rest of a layer. Rows remain a dimension, because a mesh splits rows.
    """
    rows, *rest = shape
    width = math.prod(rest)
    size = rows, -(-width // 4)
    _, words = jax.lax.rng_bit_generator(seed, size, algorithm=algorithm)
    bytes_ = jax.lax.bitcast_convert_type(words, jnp.uint8).reshape(rows, -1)
    return bytes_[:, :width].reshape(shape)


def _kept(bytes_: jax.Array, key: jax.Array, rate: float) -> jax.Array:
    """Whether each byte reaches a threshold.

    Few rates are multiples of 1/256, so the bits of the key choose one of the two nearest
    thresholds at random. Over all keys every element is dropped with probability ``rate``,
    up to 2**-32.
    """
    low = math.floor(rate * _LEVELS)
    share = np.uint32((rate * _LEVELS - low) * 2**32)
    threshold = low + (jax.random.key_data(key)[-1] < share).astype(jnp.int32)
    return bytes_.astype(jnp.int32) >= threshold
