"""Optimizers: the paper's Adam (optimization.py) and others; the learning rate."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec

from bert_jax.errors import UserError
from bert_jax.model.parameters import (
    is_encoder_kernel,
    is_stacked,
    stacked_layers,
)
from bert_jax.parallel.mesh import AXES
from bert_jax.parallel.sharding import path_name
from bert_jax.training.config import OptimizerConfig

MUON_MOMENTUM = 0.95  # of its authors (Jordan, 2024)


@flax.struct.dataclass
class Schedule:
    """The learning rate over the steps of a run; float32 scalars.

    The schedule is an argument of the step, so runs whose schedules have the same shape
    share their programs. shape: the setting optimizer.schedule, which is not an array.
    """

    peak: jax.Array
    warmup_steps: jax.Array
    total_steps: jax.Array
    decay_steps: jax.Array
    final_rate: jax.Array
    shape: str = flax.struct.field(pytree_node=False)


def make_schedule(config: OptimizerConfig, total_steps: int) -> Schedule:
    """The schedule of a run of ``total_steps``, on the host.

    Raises UserError if the warmup and the decay have more steps than the run.
    """
    warmup, decay = config.warmup_steps, config.decay_steps
    if not warmup:
        warmup = int(total_steps * config.warmup)
    if decay and warmup + decay > total_steps:
        actual = f"{warmup} steps of warmup and optimizer.decay_steps={decay}"
        raise UserError(f"{actual} together exceed the {total_steps} steps")
    numbers = config.learning_rate, warmup, total_steps, decay, config.final_rate
    return Schedule(*np.float32(numbers), shape=config.schedule)


def learning_rate(schedule: Schedule, step: jax.Array | int) -> jax.Array:
    """The learning rate of step number ``step``, from 0. With warmup, step 0 has rate 0.

    A linear warmup to the peak is followed by a linear decay, as in the paper. The decay is
    counted from step 0, so the rate drops a little at the end of warmup. The other shapes
    stay at the peak until their decay.
    """
    step = jnp.asarray(step, jnp.float32)
    if schedule.shape == "linear":
        decayed = 1 - jnp.minimum(step / schedule.total_steps, 1.0)
    else:
        decayed = _stable_then_decayed(schedule, step)
    warming = step / jnp.maximum(schedule.warmup_steps, 1)
    factor = jnp.where(step < schedule.warmup_steps, warming, decayed)
    return schedule.peak * factor


def _stable_then_decayed(schedule: Schedule, step: jax.Array) -> jax.Array:
    """The share of the peak: 1, and in the last ``decay_steps`` down to final_rate."""
    first = schedule.total_steps - schedule.decay_steps
    done = (step - first) / jnp.maximum(schedule.decay_steps, 1)
    done = jnp.clip(done, 0.0, 1.0)
    if schedule.shape == "wsd_sqrt":
        done = jnp.sqrt(done)
    return 1 - (1 - schedule.final_rate) * done


def without_schedule(config: OptimizerConfig) -> OptimizerConfig:
    """The settings with a fixed schedule, which no program depends on.

    Runs that differ only in the schedule share their programs, because the schedule is an
    argument of the step.
    """
    return dataclasses.replace(
        config,
        learning_rate=1.0,
        warmup_steps=0,
        warmup=0.0,
        schedule="linear",
        decay_steps=0,
        final_rate=0.0,
    )


def bert_optimizer(
    config: OptimizerConfig, frozen: str = ""
) -> optax.GradientTransformation:
    """Clip by global norm, Adam, decoupled weight decay, for LAMB the trust ratio.

    Muon, with its authors' momentum of 0.95, replaces Adam for the kernels of the encoder.
    StableAdamW replaces Adam and the weight decay. The step multiplies the updates by minus
    the learning rate.

    frozen: pattern of the names of parameters that get no update, see :func:`by_layer`;
      none by default. They have no moments, except in a stack with trained layers.
    config.layer_decay: factor of the whole update, weight decay included, from each layer
      to the layer below.

    Two calls whose arguments differ only in the schedule return the same object, which
    identifies the compiled programs.
    """
    return _optimizer(without_schedule(config), frozen)


@functools.lru_cache(maxsize=8)
def _optimizer(config: OptimizerConfig, frozen: str) -> optax.GradientTransformation:
    clip = clip_by_global_norm(config.clip_norm)
    if config.name == "stable_adamw":
        chain = optax.chain(clip, stable_adamw(config))
    else:
        chain = optax.chain(clip, *_moments_and_decay(config))

    def part(path: tuple[Any, ...], leaf: Any) -> str:
        return "frozen" if is_frozen(frozen, path, leaf).all() else "trained"

    if frozen:
        parts = {"trained": chain, "frozen": optax.set_to_zero()}
        labels = functools.partial(jax.tree.map_with_path, part)
        chain = optax.partition(parts, labels)
    if not frozen and config.layer_decay == 1:
        return chain

    def update(grads: Any, state: Any, params: Any = None):
        updates, state = chain.update(grads, state, params)
        return scale_layers(updates, config.layer_decay, frozen), state

    # The state has the same form as without layer_decay.
    return optax.GradientTransformation(chain.init, update)


def _moments_and_decay(
    config: OptimizerConfig,
) -> list[optax.GradientTransformation]:
    """The parts of Adam, LAMB and Muon that follow the clipping."""
    adam = scale_by_uncorrected_adam
    if config.bias_correction:
        adam = optax.scale_by_adam
    moments = adam(config.beta1, config.beta2, config.epsilon)
    if config.name == "muon":
        moments = optax.partition({True: scale_by_muon(), False: moments}, muon_mask)
    decay = optax.add_decayed_weights(config.weight_decay, mask=decay_mask)
    if config.name == "lamb":
        return [moments, decay, scale_by_trust_ratio()]
    return [moments, decay]


def by_layer(
    path: tuple[Any, ...], leaf: Any, value: Callable[[str], Any]
) -> np.ndarray:
    """``value`` of a parameter's name, or of the name of each layer stacked in it.

    A layer has the same name in both forms of a model, such as
    bert/encoder/layer_0/attention/query/kernel, so a pattern does not depend on the form.
    The result can be multiplied by the parameter.
    """
    name, rows = path_name(path), math.prod(leaf.shape[:1])
    names = [name]
    for part in name.split("/"):
        layers = stacked_layers(part, rows)
        if layers:
            names = [name.replace(f"/{part}/", f"/layer_{i}/") for i in layers]
    return np.array([value(x) for x in names]).reshape(-1, *(1,) * (leaf.ndim - 1))


def is_frozen(frozen: str, path: tuple[Any, ...], leaf: Any) -> np.ndarray:
    """Whether the pattern ``frozen``, empty for none, matches; see :func:`by_layer`."""
    return by_layer(path, leaf, lambda x: bool(frozen and re.search(frozen, x)))


def stop_frozen(frozen: str, params: Any) -> Any:
    """Parameters whose gradient is 0 where ``frozen`` matches.

    The backward pass does not compute gradients of a parameter that is frozen as a whole.
    """

    def stop(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        matches = is_frozen(frozen, path, leaf)
        if not matches.any():
            return leaf
        stopped = jax.lax.stop_gradient(leaf)
        return stopped if matches.all() else jnp.where(matches, stopped, leaf)

    return jax.tree.map_with_path(stop, params)


def scale_layers(updates: Any, decay: float, frozen: str = "") -> Any:
    """Updates times a power of ``decay``, and 0 for frozen layers of a stack.

    With n layers, the power is n - i for layer i, n + 1 for the embeddings, and 0 for all
    parameters above the layers (as in BEiT, Bao et al., 2021).
    """

    def depth(name: str) -> int:  # embeddings 0, layer i has i + 1, all others -1
        if name.startswith("bert/embeddings"):
            return 0
        match = re.match(r"bert/encoder/layer_(\d+)", name)
        if match is None:
            return -1
        return int(match[1]) + 1

    def scale(path: tuple[Any, ...], update: jax.Array, depths: np.ndarray):
        if decay != 1 and depths.min() >= 0:
            update *= np.float32(decay ** (top + 1 - depths))
        stays = is_frozen(frozen, path, update)
        mixed = stays.any() and not stays.all()
        return jnp.where(stays, 0.0, update) if mixed else update

    depths = jax.tree.map_with_path(lambda *leaf: by_layer(*leaf, depth), updates)
    top = max(int(leaf.max()) for leaf in jax.tree.leaves(depths))
    return jax.tree.map_with_path(scale, updates, depths)


def clip_by_global_norm(limit: float) -> optax.GradientTransformation:
    """Gradients times limit / norm if the norm of all gradients is over ``limit``.

    One factor for all gradients, as in tf.clip_by_global_norm. optax divides each number,
    which on a CPU writes every gradient once more: the optimizer takes twice as long.
    """

    def clip(grads: Any, params: Any = None) -> Any:
        del params
        factor = jnp.minimum(1.0, limit / optax.tree.norm(grads))
        return jax.tree.map(lambda grad: grad * factor, grads)

    return optax.stateless(clip)


def scale_by_uncorrected_adam(
    beta1: float, beta2: float, epsilon: float
) -> optax.GradientTransformation:
    """Adam without bias correction: m / (sqrt(v) + epsilon)."""

    def update(grads: Any, state: optax.ScaleByAdamState, params: Any = None):
        del params
        mu = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state.mu, grads)
        nu = jax.tree.map(
            lambda v, g: beta2 * v + (1 - beta2) * jnp.square(g), state.nu, grads
        )
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mu, nu)
        return updates, optax.ScaleByAdamState(count=state.count + 1, mu=mu, nu=nu)

    return optax.GradientTransformation(optax.scale_by_adam().init, update)


def stable_adamw(config: OptimizerConfig) -> optax.GradientTransformation:
    """StableAdamW: Adam with bias correction and weight decay, and clipped updates.

    The whole update of a parameter is divided by the root mean square of gradient /
    max(sqrt(v), epsilon), if it is above 1. It is far above 1 if the second moment v is too
    small for a gradient that suddenly grew. Each layer of a scanned encoder has its own
    divisor.
    """
    adam = optax.scale_by_adam(config.beta1, config.beta2, config.epsilon)

    def decayed(
        path: tuple[Any, ...], update: jax.Array, param: jax.Array
    ) -> jax.Array:
        if not _decays(path):
            return update
        return update + config.weight_decay * param

    def clip(
        path: tuple[Any, ...], update: jax.Array, grad: jax.Array, v: jax.Array
    ) -> jax.Array:
        ratio = jnp.square(grad) / jnp.maximum(v, config.epsilon**2)
        rms = jnp.sqrt(jnp.mean(ratio, _axes_of_layer(path, grad), keepdims=True))
        return update / jnp.maximum(rms, 1.0)

    def update(grads: Any, state: optax.ScaleByAdamState, params: Any = None):
        updates, state = adam.update(grads, state, params)
        updates = jax.tree.map_with_path(decayed, updates, params)
        v = optax.tree.bias_correction(state.nu, config.beta2, state.count)
        return jax.tree.map_with_path(clip, updates, grads, v), state

    return optax.GradientTransformation(adam.init, update)


def _axes_of_layer(path: tuple[Any, ...], param: jax.Array) -> tuple[int, ...]:
    """The axes of a parameter, without the axis of the layers if they are stacked."""
    return tuple(range(int(is_stacked(path)), param.ndim))


def scale_by_trust_ratio() -> optax.GradientTransformation:
    """LAMB's update: the update of a kernel or embedding gets the norm of its parameters.

    Each layer of a scanned encoder has its own ratio. As in the authors' code, updates of
    LayerNorm and biases, which do not decay, are not changed.
    """

    def scale(path: tuple[Any, ...], update: jax.Array, param: jax.Array) -> jax.Array:
        if not _decays(path):
            return update
        axes = _axes_of_layer(path, param)
        size = jnp.sqrt(jnp.sum(jnp.square(param), axes, keepdims=True))
        step = jnp.sqrt(jnp.sum(jnp.square(update), axes, keepdims=True))
        known = (size > 0) & (step > 0)
        return update * jnp.where(known, size / jnp.where(known, step, 1.0), 1.0)

    return optax.stateless(functools.partial(jax.tree.map_with_path, scale))


def scale_by_muon() -> optax.GradientTransformation:
    """Muon's update: the averaged gradient of a kernel, with singular values near 1.

    The average has Nesterov's momentum, and is corrected for its start at 0 as in Adam.

    The update is multiplied by 0.2 and the root of the kernel's larger side. Its numbers
    are then as large as Adam's, so that Adam's learning rates can be used (Liu et al.,
    2025, section 2.2).
    """

    def update(grads: Any, state: optax.contrib.MuonState, params: Any = None):
        del params
        count = state.count + 1
        averages = optax.tree.update_moment(grads, state.mu, MUON_MOMENTUM, 1)
        ahead = jax.tree.map(
            lambda average, grad: MUON_MOMENTUM * average + (1 - MUON_MOMENTUM) * grad,
            optax.tree.bias_correction(averages, MUON_MOMENTUM, count + 1),
            optax.tree.bias_correction(grads, MUON_MOMENTUM, count),
        )
        matrices = jax.tree.map_with_path(_as_matrices, ahead)
        leaves, tree = jax.tree.flatten(matrices)
        updates = jax.tree.unflatten(tree, _muon_updates(leaves))
        updates = jax.tree.map(lambda x, y: x.reshape(y.shape), updates, grads)
        return updates, state._replace(count=count, mu=averages)

    return optax.GradientTransformation(optax.contrib.scale_by_muon().init, update)


def _as_matrices(path: tuple[Any, ...], kernel: jax.Array) -> jax.Array:
    """A kernel as matrices (layers, inputs, outputs); 1 layer if it is not stacked.

    Kernels of attention have two axes, heads and their size, for one side of a matrix.
    """
    names = [part.key for part in path]
    first = int(is_stacked(path))
    split = kernel.ndim - 1 if names[-2] == "output" else first + 1
    inputs = math.prod(kernel.shape[first:split])
    outputs = math.prod(kernel.shape[split:])
    return kernel.reshape(-1, inputs, outputs)


def _muon_updates(kernels: list[jax.Array]) -> list[jax.Array]:
    """The update of each kernel, as (layers, inputs, outputs).

    Several devices divide the matrices. Otherwise each device would compute all matrices,
    which for BASE takes a third of a training step on 16 chips.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return [_orthogonal(kernel) for kernel in kernels]
    numbers_of_shape: dict[tuple[int, int], list[int]] = {}
    for number, kernel in enumerate(kernels):
        shape = min(kernel.shape[1:]), max(kernel.shape[1:])
        numbers_of_shape.setdefault(shape, []).append(number)
    updates = list(kernels)
    for numbers in numbers_of_shape.values():
        wide = [_wide(kernels[number]) for number in numbers]
        stack = _divided(_orthogonal, jnp.concatenate(wide), mesh.size)
        ends = np.cumsum([len(kernel) for kernel in wide])
        for number, update in zip(numbers, jnp.split(stack, ends[:-1]), strict=True):
            is_turned = update.shape != kernels[number].shape
            updates[number] = jnp.swapaxes(update, 1, 2) if is_turned else update
    return updates


def _wide(kernel: jax.Array) -> jax.Array:
    """Matrices (layers, rows, columns), transposed if they have more rows than columns."""
    _, rows, columns = kernel.shape
    return jnp.swapaxes(kernel, 1, 2) if rows > columns else kernel


def _divided(
    function: Callable[[jax.Array], jax.Array], stack: jax.Array, devices: int
) -> jax.Array:
    """``function`` of a stack, computed by each device for its share of the first axis."""
    whole, share = PartitionSpec(), PartitionSpec(AXES)
    count = len(stack)
    padding = -count % devices  # each device has the same number of matrices
    padded = jnp.pad(stack, ((0, padding), (0, 0), (0, 0)))
    # Without the two constraints the compiler permutes and sums slices of the kernels.
    padded = jax.lax.with_sharding_constraint(padded, whole)
    divided = jax.shard_map(function, in_specs=share, out_specs=share)
    result = jax.lax.with_sharding_constraint(divided(padded), whole)
    return result[:count]


def _orthogonal(matrices: jax.Array) -> jax.Array:
    """Matrices (layers, rows, columns) with singular values near 1, times Adam's scale."""
    # With a momentum of 0 the average is the gradient itself.
    muon = optax.contrib.scale_by_muon(
        beta=0.0, weight_dimension_numbers=optax.contrib.MuonDimensionNumbers(1, 2)
    )
    updates, _ = muon.update(matrices, muon.init(matrices))
    return updates * (0.2 * max(matrices.shape[1:]) ** 0.5)


def muon_mask(params: Any) -> Any:
    """True for the kernels of the encoder, which are matrices between hidden vectors."""
    return jax.tree.map_with_path(lambda path, _: is_encoder_kernel(path), params)


def _decays(path: tuple[Any, ...]) -> bool:
    return path[-1].key in ("kernel", "embedding")


def decay_mask(params: Any) -> Any:
    """True where weight decay applies: kernels and embeddings, not LayerNorm and biases."""
    return jax.tree_util.tree_map_with_path(lambda path, _: _decays(path), params)
