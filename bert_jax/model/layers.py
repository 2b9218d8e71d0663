"""What every module shares: initialisation, dense layers, LayerNorm, activations."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.nn.initializers import Initializer

from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.kernels.products import dot_general


def kernel_init(config: BertConfig) -> Initializer:
    """Normal of deviation initializer_range, redrawn beyond two of them, not rescaled.

    modeling.py, create_initializer: the cut leaves a deviation of 0.88 of the nominal.
    """
    return jax.nn.initializers.truncated_normal(config.initializer_range)


def first_rows(init: Initializer, rows: int) -> Initializer:
    """``init`` for the first ``rows`` of a matrix, zero for the others."""

    def padded(key: jax.Array, shape: tuple[int, ...], *args) -> jax.Array:
        values = init(key, (rows, *shape[1:]), *args)
        return jnp.pad(values, ((0, shape[0] - rows), (0, 0)))

    return padded


class FlatDense(nn.DenseGeneral):
    """nn.DenseGeneral over the last dimensions, rows and positions taken as one.

    So are the sums of the bias's gradient; see products.py for the rest.
    """

    dot_general: Callable[..., jax.Array] = dot_general

    def __call__(self, x: jax.Array) -> jax.Array:
        contracted = 1 if isinstance(self.axis, int) else len(self.axis)
        rows, inputs = x.shape[:-contracted], x.shape[-contracted:]
        y = super().__call__(x.reshape(-1, *inputs))
        return y.reshape(*rows, *y.shape[1:])


def dense(
    config: BertConfig, compute: ComputeConfig, features: int, name: str | None
) -> nn.Module:
    """A dense layer over the last dimension."""
    return FlatDense(
        features,
        dtype=jnp.dtype(compute.dtype),
        kernel_init=kernel_init(config),
        name=name,
    )


def layer_norm(
    config: BertConfig, compute: ComputeConfig, name: str | None
) -> nn.LayerNorm:
    """LayerNorm over D; Flax takes its statistics in float32 whatever the dtype."""
    return nn.LayerNorm(
        epsilon=config.layer_norm_epsilon, dtype=jnp.dtype(compute.dtype), name=name
    )


def activation(config: BertConfig) -> Callable[[jax.Array], jax.Array]:
    """The feed-forward nonlinearity, also of the MLM head."""
    return {
        # As modeling.py has it; jax.nn.gelu goes through erfc, which costs a CPU more.
        "gelu": lambda x: x * (0.5 * (1.0 + jax.lax.erf(x * math.sqrt(0.5)))),
        "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
        "relu": jax.nn.relu,
    }[config.activation]
