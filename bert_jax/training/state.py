"""The train state: everything that a run needs to resume exactly."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh

from bert_jax.errors import UserError, listed
from bert_jax.objectives.objective import Objective, Params, cached_by_objective
from bert_jax.parallel.sharding import tree_shardings

# Sums that the engine adds to the objective's: steps since the last report, their losses
# and gradient norms, tokens without and with padding, and skipped batches. A skipped batch
# is in no other sum.
STEP_SUMS = ("steps", "step_loss", "grad_norm", "tokens", "computed_tokens", "skipped")
RESERVED_SUMS = (*STEP_SUMS, "last_skipped")


@flax.struct.dataclass
class TrainState:
    """Arrays only; the objective and the optimizer are arguments of the step.

    step: int32, number of steps done.
    params: float32.
    opt_state: state of the optax optimizer.
    key: typed PRNG key of the run. Dropout folds it with the step.
    sums: float32 sums since the last report. They are in the state so that a resumed run
      reports the same means as an uninterrupted run.
    average: moving average of the parameters over the steps, float32. None without one.
    """

    step: jax.Array
    params: Params
    opt_state: Any
    key: jax.Array
    sums: dict[str, jax.Array]
    average: Params | None = None

    def completed(self, abstract: "TrainState") -> "TrainState":
        """The state with all sums and the average that ``abstract`` has.

        The checkpoint of a run with other settings may lack them. New sums start at 0, and
        a new average as a copy of the parameters.
        """
        sums = dict(self.sums)
        for name in abstract.sums.keys() - sums.keys():
            place = abstract.sums[name].sharding
            sums[name] = jax.device_put(np.zeros((), np.float32), place)
        average = self.average
        if average is None and abstract.average is not None:
            places = jax.tree.map(lambda leaf: leaf.sharding, abstract.average)
            average = jax.jit(_copies, out_shardings=places)(self.params)
        return self.replace(sums=sums, average=average)

    def without_sums(self, names: Iterable[str]) -> "TrainState":
        """The state in which the sums ``names`` are 0."""
        zero = np.zeros((), np.float32)
        sums = dict(self.sums)
        for name in names:
            sums[name] = jax.device_put(zero, sums[name].sharding)
        return self.replace(sums=sums)


@cached_by_objective
def abstract_state(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    fsdp: bool = False,
    average: bool = False,
) -> TrainState:
    """Shapes, dtypes and shardings of the state. average: whether it has an average.

    Two calls with equal arguments return the same object; see :func:`cached_by_objective`.
    Raises UserError if a sum of the objective has a name of RESERVED_SUMS.
    """
    if taken := {*objective.sum_names} & {*RESERVED_SUMS}:
        actual = f"the objective has the sums {listed(sorted(taken))}"
        raise UserError(f"{actual}, which are reserved names; give them other names")
    shapes = jax.eval_shape(
        lambda key: _make_state(objective, optimizer, average, key, {}),
        jax.random.key(0),
    )
    shardings = tree_shardings(shapes, mesh, fsdp=fsdp, more=objective.rules)
    return jax.tree.map(lambda x, place: x.update(sharding=place), shapes, shardings)


def init_state(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    abstract: TrainState,
    seed: int,
    initial_params: Params | None = None,
) -> TrainState:
    """A new state. Each device initialises its own shards.

    abstract: see :func:`abstract_state`.
    initial_params: parameters from a checkpoint, on the host, for any part of the model.
    All other parameters are randomly initialised. Parameters that the model does not have
    are ignored.

    Runs with equal objectives, optimizers and shardings share a program, so a sweep
    compiles once; see :func:`cached_by_objective`.
    """
    places = flatten_dict(abstract.params)
    flat = {
        name: jax.device_put(array, places[name].sharding)
        for name, array in flatten_dict(initial_params or {}).items()
        if name in places
    }
    leaves, tree = jax.tree.flatten(jax.tree.map(lambda leaf: leaf.sharding, abstract))
    average = abstract.average is not None
    init = _compiled_init(objective, optimizer, average, tree, tuple(leaves))
    return init(jax.random.key(seed), flat)


@cached_by_objective
def _compiled_init(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    average: bool,
    tree: Any,
    leaves: tuple[Any, ...],
) -> Callable[[jax.Array, Mapping[tuple[str, ...], jax.Array]], TrainState]:
    return jax.jit(
        functools.partial(_make_state, objective, optimizer, average),
        out_shardings=jax.tree.unflatten(tree, leaves),
    )


def _copies(params: Params) -> Params:
    """Copies, because a step donates the memory of each array of the state."""
    return jax.tree.map(jnp.copy, params)


def new_parameters(abstract: TrainState, initial_params: Params) -> list[str]:
    """The parts of the model, such as bert/pooler, that ``initial_params`` lacks."""
    missing = flatten_dict(abstract.params).keys() - flatten_dict(initial_params).keys()
    parts = set()
    for first, *rest in missing:
        part = first
        if first == "bert":
            part = f"bert/{rest[0]}"
        parts.add(part)
    return sorted(parts)


def _make_state(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    average: bool,
    key: jax.Array,
    initial: Mapping[tuple[str, ...], jax.Array],
) -> TrainState:
    init_key, run_key = jax.random.split(key)
    params = {
        name: initial.get(name, array)
        for name, array in flatten_dict(objective.init(init_key)).items()
    }
    params = unflatten_dict(params)
    names = (*objective.sum_names, *STEP_SUMS)
    averaged = None
    if average:
        averaged = _copies(params)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=optimizer.init(params),
        key=run_key,
        sums={name: jnp.zeros((), jnp.float32) for name in names},
        average=averaged,
    )
