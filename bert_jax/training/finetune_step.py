"""One fine-tuning update and one evaluation batch, as pure functions."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding

from bert_jax.objectives.heads import forward, loss_sum, loss_weight
from bert_jax.parallel.mesh import traced_on
from bert_jax.parallel.sharding import tree_shardings
from bert_jax.training.step import summed_gradients

Batch = dict[str, jax.Array]


@flax.struct.dataclass
class FineTuneState:
    """step: int32, updates done. key: the run's PRNG key, folded with the step."""

    step: jax.Array
    params: Any
    opt_state: Any
    key: jax.Array


def gradients(
    state: FineTuneState,
    batch: Batch,
    *,
    model: nn.Module,
    head: str,
    accumulation: int,
) -> tuple[Any, dict[str, jax.Array]]:
    """Of the mean loss of the global batch; and its {"loss_sum", "weight"}."""
    weight = loss_weight(head, batch)

    def loss_fn(params: Any, part: Batch, key: jax.Array):
        total = loss_sum(head, forward(model, params, part, key), part)
        return total / jnp.maximum(weight, 1.0), total

    key = jax.random.fold_in(state.key, state.step)
    (_, total), grads = summed_gradients(
        loss_fn, state.params, batch, key, accumulation
    )
    return grads, {"loss_sum": total, "weight": weight}


def apply_gradients(
    state: FineTuneState,
    grads: Any,
    rate: jax.Array,
    *,
    optimizer: optax.GradientTransformation,
) -> tuple[FineTuneState, jax.Array]:
    """One update with learning rate ``rate``, an argument so that a sweep compiles once.

    Returns the new state and the norm of the gradients.
    """
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    updates = jax.tree.map(lambda u: -rate * u, updates)
    new_state = state.replace(
        step=state.step + 1,
        params=optax.apply_updates(state.params, updates),
        opt_state=opt_state,
    )
    return new_state, optax.tree.norm(grads)


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a state lies on the devices: its tree and the sharding of each leaf."""

    tree: Any
    shardings: tuple[NamedSharding, ...]

    @classmethod
    def of(cls, state: FineTuneState) -> "Layout":
        """The layout of a state's arrays."""
        leaves, tree = jax.tree.flatten(state)
        return cls(tree, tuple(leaf.sharding for leaf in leaves))


def init_state(
    params: Any,
    optimizer: optax.GradientTransformation,
    key: jax.Array,
    mesh: Mesh,
    *,
    fsdp: bool = False,
) -> FineTuneState:
    """The state before the first update, laid out on ``mesh`` by the sharding rules.

    It shares no memory with the arguments, as the update takes the state's.
    """

    def make(params: Any, key: jax.Array) -> FineTuneState:
        return FineTuneState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=optimizer.init(params),
            key=key,
        )

    shardings = tree_shardings(jax.eval_shape(make, params, key), mesh, fsdp=fsdp)
    return jax.jit(make, out_shardings=shardings)(params, key)


@dataclasses.dataclass(frozen=True)
class TrainStep:
    """The compiled update: a backward pass for each shape, one optimizer for all.

    The optimizer is a fifth of what there would be to compile for each shape.
    """

    backward: Callable
    update: Callable

    def __call__(
        self, state: FineTuneState, batch: Batch, rate: Any
    ) -> tuple[FineTuneState, dict[str, jax.Array]]:
        """The new state, the old one donated; loss_sum, weight and grad_norm."""
        grads, sums = self.backward(state, batch)
        state, norm = self.update(state, grads, rate)
        return state, sums | {"grad_norm": norm}


def jit_train_step(
    layout: Layout, *, optimizer: optax.GradientTransformation, **settings: Any
) -> TrainStep:
    """Compiles gradients(), which ``settings`` are for, and apply_gradients().

    The new state has the ``layout`` of the old one to the letter: a sharding that the
    compiler chose, though it is the same, would compile each shape a second time.
    """
    shardings = jax.tree.unflatten(layout.tree, layout.shardings)
    backward = jax.jit(
        traced_on(shardings.step.mesh, functools.partial(gradients, **settings)),
        out_shardings=(shardings.params, None),
    )
    update = jax.jit(
        functools.partial(apply_gradients, optimizer=optimizer),
        donate_argnums=0,
        out_shardings=(shardings, None),
    )
    return TrainStep(backward, update)
