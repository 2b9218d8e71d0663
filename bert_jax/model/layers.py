"""Dense layers, tables, LayerNorm, activations and dropout."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.nn.initializers import Initializer

from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.device import (
    activation_dtype,
    drawn_by_rows,
    is_plain,
    on_one_cpu,
)
from bert_jax.model.kernels import dropout as byte_masks
from bert_jax.model.kernels import products

# Vaswani et al. scale word vectors to the size of the sinusoids, whereas here the sinusoids
# are scaled to the size of new word vectors.
SINUSOID_SCALE = 0.02


def kernel_init(config: BertConfig, is_output: bool = False) -> Initializer:
    """A normal distribution cut at two standard deviations (create_initializer).

    As in modeling.py it is not rescaled, so the standard deviation is 0.88 times
    initializer_range. For an output, config.scaled_init divides it by the root of the
    number of residual sums, as in GPT-2 (Radford et al., 2019, section 2.3) and ModernBERT.
    Equal deviations return the same function.
    """
    deviation = config.initializer_range
    if is_output and config.scaled_init:
        deviation /= (2 * config.num_layers) ** 0.5
    return _truncated_normal(deviation)


_truncated_normal = functools.cache(jax.nn.initializers.truncated_normal)


def for_product(parameter: jax.Array, compute: ComputeConfig) -> jax.Array:
    """Casts a float32 parameter to the dtype in which devices sum its gradient.

    The gradient of the result has the dtype of the result. The cast changes no product,
    because a product rounds both factors to the dtype of the activations anyway.
    """
    if compute.float32_gradients:
        return parameter
    return parameter.astype(activation_dtype(compute.dtype))


def split(x: jax.Array, letters: str) -> jax.Array:
    """Splits ``x`` over devices by the rule of each of its dimensions.

    letters: shape letters of ``x``, such as "BLD". parallel/sharding.py has a rule for each
    letter. Without a mesh ``x`` is returned unchanged.
    """
    return nn.with_logical_constraint(x, tuple(letters))


def product(compute: ComputeConfig, dtype: jnp.dtype) -> Callable[..., jax.Array]:
    """jax.lax.dot_general with results of ``dtype``.

    A single CPU device computes it in another form. With compute.float32_gradients a
    gradient has another dtype than its factor.
    """
    function = jax.lax.dot_general
    if on_one_cpu() or compute.float32_gradients:
        function = products.dot_general
    return functools.partial(function, preferred_element_type=dtype)


class DenseGeneral(nn.DenseGeneral):
    """nn.DenseGeneral that adds the bias, and sums its gradient, in float32.

    result_dtype: dtype of the result.
    """

    result_dtype: jnp.dtype = jnp.float32

    def __call__(self, x: jax.Array) -> jax.Array:
        return super().__call__(x).astype(self.result_dtype)


def dense(
    config: BertConfig,
    compute: ComputeConfig,
    features: int | tuple[int, ...],
    axis: int | tuple[int, ...] = -1,
    name: str | None = None,
    *,
    is_head: bool = False,
    is_output: bool = False,
    has_bias: bool = True,
) -> nn.DenseGeneral:
    """A dense layer, whose product is computed in the compute dtype.

    features: dimensions of the result, which replace the dimensions ``axis`` of the input.
    The kernel has all these dimensions, so a mesh can split attention's kernels by heads.
    is_head: whether the result is an output of the model. It is then float32 with every
    compute dtype, because logits that are rounded to bfloat16 tie.
    is_output: see :func:`kernel_init`.
    """
    dtype = activation_dtype(compute.dtype)
    result_dtype = jnp.float32 if is_head else dtype

    def cast(x, kernel, bias, *, dtype):
        return x.astype(dtype), for_product(kernel, compute), bias

    return DenseGeneral(
        features,
        axis,
        use_bias=has_bias,
        dtype=dtype,
        result_dtype=result_dtype,
        kernel_init=kernel_init(config, is_output),
        promote_dtype=cast,
        dot_general_cls=lambda: product(compute, result_dtype),
        name=name,
    )


def table(config: BertConfig, size: int, rows: int | None = None) -> nn.Embed:
    """A float32 vector for each of ``size`` ids. If size is 1, all ids share the vector.

    Vectors are looked up in float32 and cast later. The gradient of a lookup adds one
    vector for each occurrence of an id, and in bfloat16 the sum stops growing after a few
    hundred vectors.

    rows: number of rows if more than ``size``. The additional rows are initialised to 0.
    """

    def init(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
        vectors = kernel_init(config)(key, (size, shape[1]), dtype)
        return jnp.pad(vectors, ((0, shape[0] - size), (0, 0)))

    return nn.Embed(rows or size, config.hidden_size, embedding_init=init)


def sinusoids(config: BertConfig) -> np.ndarray:
    """float32 (positions, D): sin(p / 10000^(2i/D)) and the cosine, alternating."""
    D = config.hidden_size
    rates = 10_000.0 ** (-np.arange(0, D, 2) / D)
    angles = np.arange(config.position_rows)[:, None] * rates
    table = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    return np.float32(SINUSOID_SCALE * table.reshape(len(angles), -1)[:, :D])


def rotary_rates(size: int, theta: float, factor: float) -> np.ndarray:
    """The angles of position 1 for heads of a size: float32 theta^(-2i / size) / factor.

    Each step is rounded to float32, as in torch, with which most models were trained. With
    rates that are rounded once, angles at position 8,000 would differ by 1e-4. The powers
    are float64 before, because NumPy's float32 powers depend on the processor.
    """
    exponents = np.arange(0, size, 2, dtype=np.float32) / size
    powers = np.power(float(np.float32(theta)), exponents.astype(np.float64))
    return 1 / powers.astype(np.float32) / np.float32(factor)


def rotated(
    x_BLNH: jax.Array, positions_BL: jax.Array, theta: float, factor: float = 1.0
) -> jax.Array:
    """Vectors of heads, rotated by their positions (Su et al., 2021, section 3.2.2).

    The numbers i and i + H / 2 of a vector are a point, which is rotated by the angle
    position / (factor theta^(2i / H)). So the product of a query and a key depends on the
    distance of their tokens. Angles and products are float32. R is H / 2 points.
    """
    rates = rotary_rates(x_BLNH.shape[-1], theta, factor)[None, None, None]
    angles_BL1R = positions_BL[:, :, None, None].astype(jnp.float32) * rates
    cos, sin = jnp.cos(angles_BL1R), jnp.sin(angles_BL1R)
    first, second = jnp.split(x_BLNH.astype(jnp.float32), 2, axis=-1)
    halves = first * cos - second * sin, second * cos + first * sin
    return jnp.concatenate(halves, axis=-1).astype(x_BLNH.dtype)


def layer_norm(
    config: BertConfig, compute: ComputeConfig, name: str | None = None
) -> nn.LayerNorm:
    """LayerNorm over D. Flax computes its statistics in float32.

    The variance is the mean of (x - mean)^2, as in modeling.py. The faster form of Flax,
    the mean of x^2 minus the square of the mean, loses digits if the mean is large.
    """
    return nn.LayerNorm(
        epsilon=config.layer_norm_epsilon,
        dtype=activation_dtype(compute.dtype),
        use_bias=config.norm_bias,
        use_fast_variance=False,
        name=name,
    )


def unchanged(x: jax.Array) -> jax.Array:
    """Returns ``x``, in place of a part that a model does not have."""
    return x


def gelu(x: jax.Array) -> jax.Array:
    """GELU with erf, as in modeling.py. jax.nn.gelu uses erfc, which is slower."""
    return x * (0.5 * (1.0 + jax.lax.erf(x * math.sqrt(0.5))))


# The activations after the pooler, by BertConfig.pooler.
POOLER_ACTIVATIONS = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "gelu": gelu,
    "transform": functools.partial(jnp.asarray, dtype=jnp.float32),
    "none": unchanged,
}


def activation(config: BertConfig) -> Callable[[jax.Array], jax.Array]:
    """The nonlinearity of the feed-forward layers and of the MLM head.

    It is computed in float32 and rounded to the dtype of its argument. In bfloat16 the sum
    1 + erf(x) of a negative x would lose most of its digits. The backward pass of bfloat16
    keeps only the argument, because arrays of float32 would double the memory.
    """
    function = {
        "gelu": gelu,
        "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
        "relu": jax.nn.relu,
        "silu": jax.nn.silu,
    }[config.activation]

    def rounded(x: jax.Array) -> jax.Array:
        return function(x.astype(jnp.float32)).astype(x.dtype)

    def apply(x: jax.Array) -> jax.Array:
        if x.dtype == jnp.float32:
            return function(x)
        return jax.checkpoint(rounded)(x)

    return apply


def keep_mask(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """True with probability 1 - ``rate``, independently for each element.

    The generator of the device (JAX's rbg) draws the random numbers. With a mesh each
    device draws its own rows.
    """

    def draw(seed: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        key = jax.random.wrap_key_data(seed, impl="rbg")
        return jax.random.bernoulli(key, 1 - rate, shape)

    return drawn_by_rows(draw, key, shape)


def drop(
    x: jax.Array, rate: float, key: jax.Array, implementation: str = "auto"
) -> jax.Array:
    """Dropout: zero with probability ``rate``, otherwise x / (1 - rate).

    implementation: see ComputeConfig.dropout_impl.
    """
    keep = mask_function(implementation)(key, rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0)


def mask_function(implementation: str) -> Callable[..., jax.Array]:
    """The function :func:`keep_mask`, or its form with 8 bits a value.

    implementation: see ComputeConfig.dropout_impl.
    """
    if is_plain(implementation):
        return keep_mask
    return byte_masks.keep_mask


class Dropout(nn.Module):
    """:func:`drop` with the "dropout" rng, unless ``deterministic``."""

    rate: float
    implementation: str = "auto"

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        if deterministic or not self.rate:
            return x
        return drop(x, self.rate, self.make_rng("dropout"), self.implementation)
