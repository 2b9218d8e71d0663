"""Dropout with masks that are cheap on each device.

Drawing random bits is most of the cost, so each value uses eight. On a CPU they are a
quarter of a hashed word. On a TPU they come from the chip's own generator, because hashing
took a quarter of a BASE step on v6e. On a GPU they come from Philox, which makes four words
for about what hashing one costs (docs/log.md). All draw from the same distribution, but the
same key gives different masks. On TPUs and GPUs the masks also depend on how many devices
share the batch.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import PartitionSpec

_LEVELS = 256


def keep_mask(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """True with probability 1 - ``rate``, for each element on its own."""
    return jax.lax.platform_dependent(
        key,
        cpu=lambda key: mask_from_bytes(key, rate, shape),
        tpu=lambda key: mask_from_generator(key, rate, shape),
        default=lambda key: mask_from_philox(key, rate, shape),
    )


def mask_from_words(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """:func:`keep_mask` from 32 bits for each value: exact to 2**-32."""
    threshold = np.uint32(min(round(rate * 2**32), 2**32 - 1))
    return jax.random.bits(key, shape, jnp.uint32) >= threshold


def mask_from_bytes(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """:func:`keep_mask` from one byte for each value, four of a hashed word."""
    # The compiler's threefry is one loop over the words; jax.random's on a CPU is a
    # rolled loop over its rounds, which writes and reads all words at each.
    data = jax.random.key_data(key)
    seed = jnp.pad(data, (0, 4 - data.size))
    return _kept(_bytes(seed, shape, jax.lax.RandomAlgorithm.RNG_THREE_FRY), key, rate)


def mask_from_philox(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """:func:`keep_mask` from one byte for each value, four of a word of Philox's."""

    def draw(seed: jax.Array, own: tuple[int, ...]) -> jax.Array:
        return _bytes(seed, own, jax.lax.RandomAlgorithm.RNG_PHILOX)

    return _by_device(draw, key, rate, shape)


def mask_from_generator(
    key: jax.Array, rate: float, shape: tuple[int, ...]
) -> jax.Array:
    """:func:`keep_mask` from one byte for each value, of the device's own generator.

    Of four axes, attention's, the last two are drawn in the order in which a TPU lays
    scores out; otherwise the bytes would be transposed.
    """

    def draw(seed: jax.Array, own: tuple[int, ...]) -> jax.Array:
        if len(own) != 4:
            return jax.lax.rng_bit_generator(seed, own, jnp.uint8)[1]
        B, N, Q, L = own
        return jnp.swapaxes(
            jax.lax.rng_bit_generator(seed, (B, N, L, Q), jnp.uint8)[1], 2, 3
        )

    return _by_device(draw, key, rate, shape)


def _by_device(
    draw: Callable[[jax.Array, tuple[int, ...]], jax.Array],
    key: jax.Array,
    rate: float,
    shape: tuple[int, ...],
) -> jax.Array:
    """:func:`keep_mask` from the bytes that ``draw`` gives for a seed and a shape.

    Under a mesh each device draws its rows, because the compiler would have it draw all.
    Rows that the devices do not divide take hashed words, which can be split anyhow.
    """
    mesh, axes = jax.sharding.get_abstract_mesh(), ("replica", "data")
    parts = 1 if mesh.empty else math.prod(mesh.shape[axis] for axis in axes)
    rows, *rest = shape
    if rows % parts:
        return mask_from_words(key, rate, shape)

    def own_rows(seed: jax.Array) -> jax.Array:
        if parts > 1:
            seed += jax.lax.axis_index(axes).astype(seed.dtype)
        return draw(seed, (rows // parts, *rest))

    if parts > 1:
        own_rows = jax.shard_map(
            own_rows,
            in_specs=PartitionSpec(),
            out_specs=PartitionSpec(axes),
            check_vma=False,
        )
    # Four words, of which a key of threefry has two.
    seed = jnp.resize(jax.random.key_data(key), 4)
    return _kept(own_rows(seed), key, rate)


def _bytes(
    seed: jax.Array, shape: tuple[int, ...], algorithm: jax.lax.RandomAlgorithm
) -> jax.Array:
    """Random bytes, uint8 of ``shape``, four of a word.

    Drawn in two dimensions, because on a CPU four take as long to compile as the rest of a
    layer. Rows stay a dimension of their own, because a mesh splits them.
    """
    rows, *rest = shape
    width = math.prod(rest)
    size = rows, -(-width // 4)
    _, words = jax.lax.rng_bit_generator(seed, size, algorithm=algorithm)
    bytes_ = jax.lax.bitcast_convert_type(words, jnp.uint8).reshape(rows, -1)
    return bytes_[:, :width].reshape(shape)


def _kept(bytes_: jax.Array, key: jax.Array, rate: float) -> jax.Array:
    """Whether each byte reaches a threshold.

    Few rates are multiples of 1/256, so each call chooses one of the two nearest
    thresholds at random, from the bits of the key. Over all keys every element is dropped
    with probability ``rate``, to 2**-32.
    """
    low = math.floor(rate * _LEVELS)
    share = np.uint32((rate * _LEVELS - low) * 2**32)
    threshold = low + (jax.random.key_data(key)[-1] < share).astype(jnp.int32)
    return bytes_.astype(jnp.int32) >= threshold


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
