"""What every module shares: initialisation, dense layers, LayerNorm, activations."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.nn.initializers import Initializer

from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.kernels.products import add_bias, product


def kernel_init(config: BertConfig) -> Initializer:
    """Normal of deviation initializer_range, redrawn beyond two of them, not rescaled.

    modeling.py, create_initializer: the cut leaves a deviation of 0.88 of the nominal.
    """
    return jax.nn.initializers.truncated_normal(config.initializer_range)


def for_product(parameter: jax.Array, compute: ComputeConfig) -> jax.Array:
    """A float32 parameter as a product takes it, which decides its gradient's dtype.

    A product rounds its factors to the dtype of the activations. It gives the gradient
    of a parameter in the dtype that the parameter came in, and in that dtype gradients
    are summed over devices.
    """
    return parameter if compute.float32_gradients else parameter.astype(compute.dtype)


class Dense(nn.Module):
    """x times kernel, plus bias.

    features: the dimensions that take the place of the last ``contracted`` ones of x. The
    kernel is (*contracted, *features): a mesh splits those of attention by heads.
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
        # Rows and positions are one dimension, in the product and in the bias's gradient.
        y = product(
            x.astype(self.compute.dtype).reshape(-1, *inputs),
            for_product(kernel, self.compute),
            axes,
        )
        y = add_bias(y, for_product(bias, self.compute))
        return y.reshape(*rows, *self.features)

    def _kernel_init(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        matrix = math.prod(shape[: self.contracted]), math.prod(self.features)
        return kernel_init(self.config)(key, matrix).reshape(shape)


def embedding(
    config: BertConfig, compute: ComputeConfig, rows: int, used: int | None = None
) -> nn.Embed:
    """A table of ``rows`` vectors; those from ``used`` on are padding, and start as 0."""

    def init(key: jax.Array, shape: tuple[int, int], dtype: jnp.dtype) -> jax.Array:
        values = kernel_init(config)(key, (used or rows, shape[1]), dtype)
        return jnp.pad(values, ((0, rows - len(values)), (0, 0)))

    return nn.Embed(
        rows,
        config.hidden_size,
        dtype=jnp.float32 if compute.float32_gradients else jnp.dtype(compute.dtype),
        embedding_init=init,
    )


def layer_norm(
    config: BertConfig, compute: ComputeConfig, name: str | None = None
) -> nn.LayerNorm:
    """LayerNorm over D; Flax takes its statistics in float32 whatever the dtype."""
    return nn.LayerNorm(
        epsilon=config.layer_norm_epsilon, dtype=jnp.dtype(compute.dtype), name=name
    )


def activation(config: BertConfig) -> Callable[[jax.Array], jax.Array]:
    """The nonlinearity of the feed-forward layers and of the MLM head."""
    return {
        # As modeling.py has it. jax.nn.gelu goes through erfc, which takes longer.
        "gelu": lambda x: x * (0.5 * (1.0 + jax.lax.erf(x * math.sqrt(0.5)))),
        "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
        "relu": jax.nn.relu,
    }[config.activation]
