"""A training step, as pure functions of (state, batch)."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.model.config import ComputeConfig
from bert_jax.model.device import platform
from bert_jax.model.layers import for_product
from bert_jax.model.parameters import is_encoder_kernel
from bert_jax.objectives.objective import (
    Batch,
    Objective,
    Params,
    cached_by_objective,
    microbatches,
    summed,
)
from bert_jax.parallel.mesh import batch_divisor, summed_over_devices, traced_on
from bert_jax.training.optimizer import (
    OptimizerConfig,
    Schedule,
    bert_optimizer,
    learning_rate,
    stop_frozen,
    without_schedule,
)
from bert_jax.training.state import TrainState

Sums = dict[str, jax.Array]


def gradients(
    state: TrainState,
    batch: Batch,
    *,
    objective: Objective,
    accumulation: int,
    by_rows: bool = False,
) -> tuple[Params, Sums]:
    """Gradients of the loss of a batch, and the sums that metrics are computed from.

    accumulation: number of microbatches. Each loss is a sum over the batch, divided by its
    weight, such as the number of masked tokens. The weight is counted over the global
    batch, so devices and microbatches do not change the loss.
    by_rows: whether each device adds up the gradients of its own rows, and the devices
    then exchange each gradient once; see :func:`_sums_by_rows`. Otherwise the compiler
    divides the arrays of the whole batch.
    """

    def sum_gradients(batch: Batch, params: Params, weights: Sums, key: jax.Array):
        def loss_fn(params: Params, part: Batch, key: jax.Array):
            sums = objective.sums(stop_frozen(objective.frozen, params), part, key)
            return sum(sums[name] / weight for name, weight in weights.items()), sums

        return _summed_gradients(loss_fn, params, batch, key, accumulation)

    def sum_rounded(*args: Any):
        result, grads = sum_gradients(*args)
        return result, in_product_dtype(grads, objective.model.compute)

    weights = objective.weights(batch)
    key = jax.random.fold_in(state.key, state.step)
    inputs = batch, state.params, weights, key
    if by_rows:
        (loss, sums), grads = summed_over_devices(sum_rounded)(*inputs)
        grads = jax.tree.map(lambda grad: grad.astype(jnp.float32), grads)
    else:
        (loss, sums), grads = sum_gradients(*inputs)
    tokens = batch["attention_mask"]
    return grads, sums | {
        "steps": jnp.ones((), jnp.float32),
        "step_loss": loss,
        "tokens": jnp.sum(tokens.astype(jnp.float32)),
        "computed_tokens": jnp.float32(tokens.size),
    }


def in_product_dtype(grads: Any, compute: ComputeConfig) -> Any:
    """Casts the gradients of the encoder's kernels with :func:`for_product`.

    All other gradients are returned unchanged. They are a fifth of BERT BASE, mostly for
    the word table, which is looked up in float32.

    On CPUs nothing changes, because XLA aborts if it compiles a bfloat16 sum of devices.
    """
    if platform() == "cpu":
        return grads

    def cast(path: tuple[Any, ...], grad: jax.Array) -> jax.Array:
        if not is_encoder_kernel(path):
            return grad
        return for_product(grad, compute)

    return jax.tree.map_with_path(cast, grads)


def apply_gradients(
    state: TrainState,
    grads: Params,
    sums: Sums,
    schedule: Schedule,
    *,
    optimizer: optax.GradientTransformation,
    log_every: int,
    largest_norm: float | None = None,
    average: float = 0.0,
) -> tuple[TrainState, Sums]:
    """One optimizer update (run_pretraining.py, optimization.py).

    Returns the new state, and the sums of all steps since the last report, with
    "last_skipped": 1 if this batch was skipped, otherwise 0. Every ``log_every`` steps the
    sums of the new state start again at 0.
    largest_norm: a batch is skipped if its gradient norm is larger, or if its loss or
    gradients are not finite. A skipped batch changes no parameters. Its sums are 0, except
    "skipped".
    average: decay rate of the average of the parameters; 0: the state has no average.
    """
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    rate = learning_rate(schedule, state.step)
    updates = jax.tree.map(lambda update: -rate * update, updates)
    norm = optax.tree.norm(grads)
    sums = sums | {"grad_norm": norm, "skipped": jnp.zeros((), jnp.float32)}
    params = optax.apply_updates(state.params, updates)
    averaged = None
    if average:
        averaged = optax.incremental_update(params, state.average, 1 - average)
    if largest_norm is not None:
        is_finite = jnp.isfinite(norm) & jnp.isfinite(sums["step_loss"])
        used = is_finite & (norm <= largest_norm)
        select = functools.partial(jnp.where, used)
        new = params, opt_state, averaged
        old = state.params, state.opt_state, state.average
        params, opt_state, averaged = jax.tree.map(select, new, old)
        sums = {name: select(value, 0.0) for name, value in sums.items()}
        sums["skipped"] = 1 - used.astype(jnp.float32)
    last_skipped = sums["skipped"]
    sums = jax.tree.map(jnp.add, state.sums, sums)
    step = state.step + 1
    report = step % log_every == 0
    new_state = TrainState(
        step=step,
        params=params,
        opt_state=opt_state,
        key=state.key,
        sums=jax.tree.map(lambda x: jnp.where(report, 0.0, x), sums),
        average=averaged,
    )
    return new_state, sums | {"last_skipped": last_skipped}


def compile_step(
    objective: Objective,
    optimizer: OptimizerConfig,
    abstract: TrainState,
    *,
    accumulation: int = 1,
    log_every: int = 1,
    average: float = 0.0,
) -> Callable[[TrainState, Batch, Schedule], tuple[TrainState, Sums]]:
    """The compiled step: (state, batch, schedule) to (new state, sums).

    abstract: shapes and shardings of the state. A sharding is the layout of an array on the
      devices. The new state has the shardings of the old state, and reuses its memory: the
      caller must not use the old state again.
    average: decay rate of the average of the parameters, if the state has one.

    Two calls with equal arguments return the same program, so a sweep compiles once; see
    :func:`cached_by_objective`.
    """
    optimizer = without_schedule(optimizer)
    leaves, tree = jax.tree.flatten(jax.tree.map(lambda leaf: leaf.sharding, abstract))
    numbers = accumulation, log_every, average
    return _compiled(objective, optimizer, tree, tuple(leaves), *numbers)


@cached_by_objective
def _compiled(
    objective: Objective,
    optimizer: OptimizerConfig,
    tree: Any,
    leaves: tuple[Any, ...],
    accumulation: int,
    log_every: int,
    average: float,
) -> Callable[[TrainState, Batch, Schedule], tuple[TrainState, Sums]]:
    transformation = bert_optimizer(optimizer, objective.frozen)
    shardings = jax.tree.unflatten(tree, leaves)
    by_rows = _sums_by_rows(objective, shardings)

    def train_step(state: TrainState, batch: Batch, schedule: Schedule):
        grads, sums = gradients(
            state,
            batch,
            objective=objective,
            accumulation=accumulation,
            by_rows=by_rows,
        )
        return apply_gradients(
            state,
            grads,
            sums,
            schedule,
            optimizer=transformation,
            log_every=log_every,
            largest_norm=optimizer.largest_norm,
            average=average,
        )

    # The shardings of the new state are fixed. Otherwise jit compiles a second time in step
    # two, because it does not know that the compiler chose the same shardings.
    return jax.jit(
        traced_on(shardings.step.mesh, train_step),
        donate_argnums=0,
        out_shardings=(shardings, None),
    )


def _sums_by_rows(objective: Objective, shardings: TrainState) -> bool:
    """Whether devices can add up the gradients of their own rows.

    The objective must add up rows, and each device must have all parameters, apart from a
    division over the axis model. With fsdp it does not.
    """
    if batch_divisor(shardings.step.mesh) == 1:
        return False
    # An objective of version 0.2 has no base class, and so no attribute ``adds_rows``.
    if not getattr(objective, "adds_rows", False):
        return False
    for place in jax.tree.leaves(shardings.params):
        for axes in place.spec:  # the name of an axis, several names, or None
            if axes == "data" or (isinstance(axes, tuple) and "data" in axes):
                return False
    return True


def _summed_gradients(
    loss_fn: Callable, params: Params, batch: Batch, key: jax.Array, parts: int
) -> tuple[tuple[jax.Array, Sums], Params]:
    """Loss, sums and gradients of a batch, added up over its microbatches.

    Returns ((loss, sums), gradients). Microbatch i has the rows i, i + parts, ... and its
    own key. The microbatches run one after another.
    """
    grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
    if parts == 1:
        return grad_fn(params, batch, key)

    def of_part(inputs):
        part, number = inputs
        return grad_fn(params, part, jax.random.fold_in(key, number))

    return summed(of_part, (microbatches(batch, parts), jnp.arange(parts)))
