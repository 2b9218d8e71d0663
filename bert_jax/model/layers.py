"""What every module shares: initialisation, dense layers, LayerNorm, activations."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.nn.initializers import Initializer

from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.kernels.device import activation_dtype
from bert_jax.model.kernels.products import product


def kernel_init(config: BertConfig) -> Initializer:
    """A normal distribution cut at two standard deviations (create_initializer).

    As in modeling.py it is not rescaled: the cut leaves 0.88 of initializer_range.
    """
    return jax.nn.initializers.truncated_normal(config.initializer_range)


def for_product(parameter: jax.Array, compute: ComputeConfig) -> jax.Array:
    """Casts a float32 parameter to the dtype that its gradient is to have.

    A product computes in the dtype of the activations whatever the parameter's dtype is.
    The gradient has the parameter's dtype, in which devices then sum it.
    """
    if compute.float32_gradients:
        return parameter
    return parameter.astype(activation_dtype(compute.dtype))


def split(x: jax.Array, letters: str) -> jax.Array:
    """``x``, split over devices by the rule of each of its dimensions.

    letters: shape letters of ``x``, such as "BLD". parallel/sharding.py has the rules.
    Without a mesh the result is ``x``.
    """
    return nn.with_logical_constraint(x, tuple(letters))


class Dense(nn.Module):
    """x times kernel, plus bias.

    features: the dimensions that replace the last ``contracted`` dimensions of x. The
    kernel keeps both apart, so that a mesh can split attention's kernels by heads.
    """

    config: BertConfig
    compute: ComputeConfig
    features: tuple[int, ...]
    contracted: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        rows, inputs = x.shape[: -self.contracted], x.shape[-self.contracted :]
        kernel = self.param("kernel", self._kernel_init, (*inputs, *self.features))
        bias = self.param("bias", nn.initializers.zeros, self.features)
        axes = tuple(range(1, 1 + self.contracted)), tuple(range(self.contracted))
        dtype = activation_dtype(self.compute.dtype)
        # Rows and positions are one dimension, in the product and in the bias's gradient.
        y = product(
            x.astype(dtype).reshape(-1, *inputs),
            for_product(kernel, self.compute),
            axes,
        )
        # In float32, so that the bias's gradient is a float32 sum over all rows.
        y = (y.astype(jnp.float32) + bias[None]).astype(dtype)
        return y.reshape(*rows, *self.features)

    def _kernel_init(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        matrix = math.prod(shape[: self.contracted]), math.prod(self.features)
        return kernel_init(self.config)(key, matrix).reshape(shape)


class Embed(nn.Module):
    """A table of one vector for each of ``size`` ids, and its transpose.

    rows: of the table, if more than ``size``. The rest is padding and starts as 0.
    """

    config: BertConfig
    compute: ComputeConfig
    size: int
    rows: int | None = None

    def setup(self):
        self.embedding = self.param("embedding", self._init)

    def __call__(self, ids: jax.Array) -> jax.Array:
        """The vectors of ``ids``: float32 (..., D).

        The gradient of a lookup adds up one vector for each occurrence of an id. In
        bfloat16 such a sum stops growing after a few hundred vectors.
        """
        return jnp.take(self.embedding, ids, axis=0)

    def attend(self, x_BMD: jax.Array) -> jax.Array:
        """The products of ``x_BMD`` with all vectors: float32 (B, M, rows)."""
        table_WD = for_product(self.embedding, self.compute)
        return product(x_BMD, table_WD, ((2,), (1,)), jnp.float32)

    def _init(self, key: jax.Array) -> jax.Array:
        shape = self.size, self.config.hidden_size
        padding = (self.rows or self.size) - self.size
        return jnp.pad(kernel_init(self.config)(key, shape), ((0, padding), (0, 0)))


def layer_norm(
    config: BertConfig, compute: ComputeConfig, name: str | None = None
) -> nn.LayerNorm:
    """LayerNorm over D; Flax takes its statistics in float32 whatever the dtype."""
    return nn.LayerNorm(
        epsilon=config.layer_norm_epsilon,
        dtype=activation_dtype(compute.dtype),
        name=name,
    )


def activation(config: BertConfig) -> Callable[[jax.Array], jax.Array]:
    """The nonlinearity of the feed-forward layers and of the MLM head."""
    return {
        # As modeling.py has it. jax.nn.gelu goes through erfc, which takes longer.
        "gelu": lambda x: x * (0.5 * (1.0 + jax.lax.erf(x * math.sqrt(0.5)))),
        "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
        "relu": jax.nn.relu,
    }[config.activation]
