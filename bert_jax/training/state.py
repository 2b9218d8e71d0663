"""The train state: everything that a checkpoint must hold to go on exactly."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import Mesh

from bert_jax.parallel.sharding import tree_shardings


@flax.struct.dataclass
class TrainState:
    """Arrays only; the model and the optimizer are arguments of the step.

    step: int32, updates done. params: float32. opt_state: of the optax optimizer.
    key: the run's typed PRNG key, folded with the step for dropout.
    sums: float32 metric sums since the last report (see step.METRICS), kept here so
    that a resumed run reports the same means as an uninterrupted one.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    key: jax.Array
    sums: dict[str, jax.Array]


def init_params(model: nn.Module, key: jax.Array) -> Any:
    """float32 parameters; their shapes depend on the model's config alone."""
    tokens_BL = jnp.zeros((1, 8), jnp.int32)
    positions_BM = jnp.zeros((1, 2), jnp.int32)
    variables = model.init(
        key, tokens_BL, tokens_BL, tokens_BL + 1, positions_BM, deterministic=True
    )
    return variables["params"]


def make_state(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    key: jax.Array,
    metrics: tuple[str, ...],
) -> TrainState:
    """A fresh state; trace it with ``jax.eval_shape`` or jit it with shardings."""
    init_key, run_key = jax.random.split(key)
    params = init_params(model, init_key)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=optimizer.init(params),
        key=run_key,
        sums={name: jnp.zeros((), jnp.float32) for name in metrics},
    )


def abstract_state(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    metrics: tuple[str, ...],
    *,
    fsdp: bool = False,
) -> TrainState:
    """Shapes, dtypes and shardings of the state: what a checkpoint is restored to."""
    shapes = jax.eval_shape(
        lambda key: make_state(model, optimizer, key, metrics), jax.random.key(0)
    )
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=sharding
        ),
        shapes,
        tree_shardings(shapes, mesh, fsdp=fsdp),
    )


def init_state(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    metrics: tuple[str, ...],
    seed: int,
    *,
    fsdp: bool = False,
) -> TrainState:
    """Initialises each shard where it lies: nothing exists unsharded at any time."""
    abstract = abstract_state(model, optimizer, mesh, metrics, fsdp=fsdp)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    init = jax.jit(
        lambda key: make_state(model, optimizer, key, metrics), out_shardings=shardings
    )
    return init(jax.random.key(seed))
