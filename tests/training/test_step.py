import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.data.packing import Packing
from bert_jax.errors import UserError
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import ComputeConfig, FeatureConfig
from bert_jax.objectives.causal import Causal
from bert_jax.objectives.electra import Electra, ReplacedTokens
from bert_jax.objectives.heads import HEADS
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.objectives.networks import make_model
from bert_jax.objectives.objective import PretrainingObjective
from bert_jax.objectives.two_way import TwoWay, TwoWayForPreTraining
from bert_jax.parallel.mesh import MeshConfig, make_mesh, put_batch, traced_on
from bert_jax.parallel.sharding import arrays_by_path
from bert_jax.training.optimizer import OptimizerConfig, bert_optimizer, make_schedule
from bert_jax.training.state import (
    RESERVED_SUMS,
    TrainState,
    abstract_state,
    init_state,
)
from bert_jax.training.step import (
    _sums_by_rows,
    apply_gradients,
    compile_step,
    gradients,
)

SETTINGS = OptimizerConfig(learning_rate=1e-2, warmup_steps=2)
OPTIMIZER = bert_optimizer(SETTINGS)
SCHEDULE = make_schedule(SETTINGS, 100)


def new_state(
    objective, mesh, *, fsdp=False, optimizer=SETTINGS, average=0.0, **settings
):
    optimizer, options = bert_optimizer(optimizer), {"fsdp": fsdp}
    abstract = abstract_state(
        objective, optimizer, mesh, average=average > 0, **options
    )
    return init_state(objective, optimizer, abstract, **({"seed": 1} | settings))


def compiled(
    objective, mesh, *, fsdp=False, optimizer=SETTINGS, average=0.0, **settings
):
    shape, options = bert_optimizer(optimizer), {"fsdp": fsdp, "average": average > 0}
    abstract = abstract_state(objective, shape, mesh, **options)
    settings |= {"log_every": 2, "average": average}
    return compile_step(objective, optimizer, abstract, **settings)


@pytest.fixture(scope="module")
def small_model_config(small_model_config):
    """A single layer, since each layer costs compile time."""
    return dataclasses.replace(small_model_config, num_layers=1)


@pytest.fixture(scope="module")
def run(small_model_config, make_batch):
    """A function that trains three steps on a mesh: final state and sums of each step."""
    model = BertForPreTraining(small_model_config)

    @functools.cache
    def three_steps(
        mesh_config,
        devices=8,
        next_sentence=True,
        optimizer=SETTINGS,
        average=0.0,
        z_loss=0.0,
        **settings,
    ):
        objective = MlmNsp(model, next_sentence, z_loss=z_loss)
        mesh = make_mesh(mesh_config, jax.devices()[:devices])
        shared = dict(fsdp=mesh_config.fsdp, optimizer=optimizer, average=average)
        state = new_state(objective, mesh, **shared)
        step = compiled(objective, mesh, **shared, **settings)
        sums = []
        for number in range(3):
            state, out = step(state, put_batch(make_batch(number), mesh), SCHEDULE)
            sums.append(jax.device_get(out))
        return jax.device_get(state.replace(key=jax.random.key_data(state.key))), sums

    return three_steps


@pytest.mark.parametrize(
    ("mesh", "settings"),
    [
        (MeshConfig(data=4, model=2, fsdp=True), {}),
        (MeshConfig(2, 2, 2), {"accumulation": 2}),
        pytest.param(MeshConfig(), {}, marks=pytest.mark.long),
    ],
)
def test_one_device_equals_eight_with_dropout(run, mesh, settings, max_difference):
    """Equal keys, masks and global means. Only the order of float32 sums differs.

    Without fsdp each device adds up the gradients of its own rows.
    """
    single, single_sums = run(MeshConfig(), devices=1, **settings)
    eight, eight_sums = run(mesh, **settings)
    assert max_difference(single_sums, eight_sums) < 1e-4  # sums of 16 x 4 losses
    assert max_difference(single.params, eight.params) < 2e-5
    assert np.array_equal(single.key, eight.key)


@pytest.mark.long
@pytest.mark.parametrize("mesh", [MeshConfig(data=4, model=2, fsdp=True), MeshConfig()])
def test_one_device_equals_eight_with_the_recipes_of_2025(run, mesh, max_difference):
    """StableAdamW, an average of the parameters, and z-loss."""
    recipe = {
        "optimizer": dataclasses.replace(SETTINGS, name="stable_adamw", beta2=0.98),
        "average": 0.6,
        "z_loss": 0.01,
    }
    single, single_sums = run(MeshConfig(), devices=1, **recipe)
    eight, eight_sums = run(mesh, **recipe)
    assert max_difference(single_sums, eight_sums) < 1e-4
    assert max_difference(single.params, eight.params) < 2e-5
    assert max_difference(single.average, eight.average) < 2e-5
    assert max_difference(single.average, single.params) > 1e-3


def test_an_average_is_split_as_its_parameters(small_model_config):
    objective = MlmNsp(BertForPreTraining(small_model_config))
    mesh = make_mesh(MeshConfig(data=4, model=2, fsdp=True))
    state = abstract_state(objective, OPTIMIZER, mesh, fsdp=True, average=True)
    places, expected = (
        [leaf.sharding.spec for leaf in jax.tree.leaves(tree)]
        for tree in (state.average, state.params)
    )
    assert places == expected and any("data" in place for place in places)
    plain = abstract_state(objective, OPTIMIZER, mesh, fsdp=True)
    assert not any("average" in name for name in arrays_by_path(plain))


def test_a_skipped_batch_does_not_change_the_average():
    params, average = {"kernel": jnp.ones((2, 3))}, {"kernel": jnp.full((2, 3), 5.0)}
    sums = dict.fromkeys(("step_loss", "steps"), jnp.float32(1))
    zeros = dict.fromkeys((*sums, "grad_norm", "skipped"), jnp.float32(0))
    key, step = jax.random.key(0), jnp.int32(4)
    state = TrainState(step, params, OPTIMIZER.init(params), key, zeros, average)
    options = dict(optimizer=OPTIMIZER, log_every=9, largest_norm=1.0, average=0.75)

    def average_after(grad):
        grads = {"kernel": jnp.full((2, 3), grad)}
        return apply_gradients(state, grads, sums, SCHEDULE, **options)[0]

    assert (average_after(1e6).average["kernel"] == 5).all()
    used = average_after(1e-3)
    expected = 0.75 * 5 + 0.25 * np.float64(used.params["kernel"])
    np.testing.assert_allclose(used.average["kernel"], expected, rtol=1e-6)
    assert (np.abs(used.params["kernel"] - 1) > 1e-3).all()


# Objectives by name. The test above has the steps of MlmNsp in float32.
OBJECTIVES = {
    "masked": lambda *of: MlmNsp(BertForPreTraining(*of)),
    "causal": lambda *of: Causal(BertForPreTraining(*of)),
    "electra": lambda *of: ReplacedTokens(Electra(*of)),
    "two_way": lambda *of: TwoWay(TwoWayForPreTraining(*of)),
    "sequence": lambda *of: _head("sequence", *of),
    "token": lambda *of: _head("token", *of),
}
OPTIONS = {
    "causal": {"causal": True},
    "two_way": {"encoder": "lstm", "positions": "none"},
}


def _head(name, config, compute):
    return HEADS[name](make_model(config, name, 3, FeatureConfig(), compute))


@pytest.fixture(scope="module")
def gradients_on(small_model_config, make_batch, random_params):
    """A function of (kind, dtype, devices): gradients of two microbatches, by path."""

    def compute(kind, dtype, devices):
        config = dataclasses.replace(small_model_config, **OPTIONS.get(kind, {}))
        objective = OBJECTIVES[kind](config, ComputeConfig(dtype=dtype))
        mesh = make_mesh(MeshConfig(), jax.devices()[:devices])
        batch = make_batch(3)
        rows, length = batch["input_ids"].shape
        labels = np.arange(rows * length, dtype=np.int32).reshape(rows, length) % 3
        batch |= {"labels": labels, "label": labels[:, :1]}
        batch["weights"] = np.ones((rows, 1), np.float32)
        batch["weights"][:3] = 0.0  # the first device has no sequence with a weight
        function = functools.partial(
            gradients,
            objective=objective,
            accumulation=2,
            by_rows=objective.adds_rows and devices > 1,
        )
        compiled = jax.jit(traced_on(mesh, function))
        params = random_params(jax.eval_shape(objective.init, jax.random.key(0)))
        state = new_state(objective, mesh, initial_params=params)
        grads, _ = compiled(state, put_batch(batch, mesh))
        return {path: np.asarray(g) for path, g in arrays_by_path(grads).items()}

    return compute


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("causal", "bfloat16"),
        *(
            pytest.param(kind, dtype, marks=pytest.mark.long)
            for kind, dtype in itertools.product(OBJECTIVES, ("float32", "bfloat16"))
            if (kind, dtype) != ("causal", "bfloat16")
        ),
    ],
)
def test_eight_devices_have_the_gradients_of_one(kind, dtype, gradients_on):
    """With dropout, up to the rounding of sums. A row is a sixteenth of the batch."""
    one, eight = gradients_on(kind, dtype, 1), gradients_on(kind, dtype, 8)
    allowed = {"float32": 1e-5, "bfloat16": 0.03}[dtype]
    for path, grad in one.items():
        # A bias of the keys shifts all scores of a query equally, which softmax ignores.
        if "key/bias" not in path:
            difference = np.linalg.norm(eight[path] - grad)
            assert difference <= allowed * np.linalg.norm(grad), path


@pytest.mark.long
def test_muon_on_one_device_equals_eight_that_share_its_matrices(run, max_difference):
    muon = dataclasses.replace(SETTINGS, name="muon")
    single, _ = run(MeshConfig(), devices=1, optimizer=muon)
    eight, _ = run(MeshConfig(data=4, model=2, fsdp=True), optimizer=muon)
    adam, _ = run(MeshConfig(), devices=1)
    assert max_difference(single.params, eight.params) < 2e-5
    assert max_difference(single.params, adam.params) > 1e-3


def test_fsdp_shares_the_memory_of_parameters_and_moments(
    small_model_config, random_params
):
    """Bytes per device of eight: the complete word table and shares of other matrices."""
    config = dataclasses.replace(
        small_model_config, hidden_size=32, intermediate_size=128, num_layers=1
    )
    objective = MlmNsp(BertForPreTraining(config))
    mesh = make_mesh(MeshConfig(data=8))
    params = random_params(jax.eval_shape(objective.init, jax.random.key(0)))

    def device_bytes(fsdp):
        state = new_state(objective, mesh, fsdp=fsdp, initial_params=params)
        trees = (state.params, state.opt_state)
        shards = [leaf.addressable_shards[0].data for leaf in jax.tree.leaves(trees)]
        return sum(shard.nbytes for shard in shards)

    matrices = 4 * 32 * 32 + 2 * 32 * 128 + 2 * 32 * 32 + 32 * 2
    saved = 3 * 4 * matrices * 7 // 8  # parameters and two moments, float32
    assert device_bytes(False) - device_bytes(True) == saved


def test_runs_that_differ_in_the_schedule_share_their_programs(
    small_model_config, monkeypatch
):
    """The shapes, the initialisation and the step. Seeds and parameters may also differ."""
    objective, mesh = (
        MlmNsp(BertForPreTraining(small_model_config)),
        make_mesh(MeshConfig()),
    )
    abstract = abstract_state(objective, OPTIMIZER, mesh)
    faster = dataclasses.replace(
        SETTINGS, learning_rate=0.5, warmup_steps=0, warmup=0.5
    )
    again = MlmNsp(BertForPreTraining(dataclasses.replace(small_model_config)))
    assert abstract_state(again, bert_optimizer(faster), mesh) is abstract
    first = new_state(objective, mesh)
    with monkeypatch.context() as patch:
        patch.setattr(MlmNsp, "init", lambda *_: pytest.fail("traced again"))
        other = new_state(again, mesh, optimizer=faster, seed=2)
    kernels = [state.params["nsp"]["kernel"] for state in (first, other)]
    assert not np.array_equal(*kernels)
    assert compile_step(objective, SETTINGS, abstract) is compile_step(
        again, faster, abstract
    )
    lamb = dataclasses.replace(SETTINGS, name="lamb")
    assert compile_step(objective, SETTINGS, abstract) is not compile_step(
        objective, lamb, abstract
    )


FACTOR = 1.0


@dataclasses.dataclass(frozen=True)
class Scaled(PretrainingObjective):
    """An objective with a constant of its module, and a field that has no hash."""

    sizes: list
    sum_names = ("loss", "weight")

    def init(self, key):
        return {"scale": jnp.full(self.sizes, FACTOR)}

    def weights(self, batch):
        return {"loss": jnp.float32(1)}

    def sums(self, params, batch, key):
        return {"loss": FACTOR * params["scale"].sum(), "weight": jnp.float32(1)}


def test_each_run_of_a_users_objective_compiles_its_own_programs(monkeypatch):
    """Equality does not compare constants of the module, which the user may change."""
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    batch = {"attention_mask": jnp.ones((1, 4), jnp.int32)}
    losses = []
    for factor in (1.0, 10.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        step = compiled(Scaled([3]), mesh)
        _, sums = step(new_state(Scaled([3]), mesh), batch, SCHEDULE)
        losses.append(float(sums["loss"]))
    assert losses == [3.0, 300.0]


@pytest.mark.parametrize("name", RESERVED_SUMS)
def test_a_sum_with_the_name_of_a_sum_of_every_run_is_refused(name):
    class Counting(Scaled):
        sum_names = ("loss", name)

    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    with pytest.raises(UserError, match=f"has the sums {name}, which"):
        abstract_state(Counting([3]), OPTIMIZER, mesh)


@pytest.mark.parametrize(
    ("axes", "expected"),
    [(None, True), ("model", True), ("data", False), (("data", "model"), False)],
)
def test_devices_sum_their_own_rows_unless_data_divides_a_parameter(axes, expected):
    class Adding(Scaled):
        adds_rows = True

    mesh = make_mesh(MeshConfig(data=4, model=2))
    state = new_state(Adding([8]), make_mesh(MeshConfig(), jax.devices()[:1]))
    whole = NamedSharding(mesh, PartitionSpec())
    shardings = jax.tree.map(lambda leaf: whole, state)
    place = NamedSharding(mesh, PartitionSpec(None, axes))
    shardings = shardings.replace(params={"bias": whole, "kernel": place})
    assert _sums_by_rows(Adding([8]), shardings) == expected
    assert not _sums_by_rows(Scaled([8]), shardings)


def test_the_state_starts_with_the_parameters_of_a_checkpoint(
    small_model_config, max_difference
):
    """Other parameters are initialised as without it. No donated memory is shared."""
    objective, mesh = (
        MlmNsp(BertForPreTraining(small_model_config)),
        make_mesh(MeshConfig()),
    )
    plain = new_state(objective, mesh)
    other = jax.device_get(new_state(objective, mesh, seed=2).params)
    loaded = {"bert": other["bert"]}
    kept = jax.tree.map(np.copy, loaded)
    state = new_state(objective, mesh, initial_params=loaded)
    assert max_difference(state.params["bert"], other["bert"]) == 0
    assert max_difference(state.params["nsp"], plain.params["nsp"]) == 0
    assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(
        lambda x: x.sharding, plain
    )
    shift = jax.jit(lambda x: jax.tree.map(lambda y: y + 1, x), donate_argnums=0)
    shift(state.params)
    assert max_difference(loaded, kept) == 0


@pytest.fixture(scope="module")
def one_update(small_model_config, make_batch):
    """A function that returns the parameters and sums of a step without dropout."""
    config = dataclasses.replace(
        small_model_config, hidden_dropout=0.0, attention_dropout=0.0
    )
    objective = MlmNsp(BertForPreTraining(config))
    mesh = make_mesh(MeshConfig(data=1), jax.devices()[:1])

    @functools.cache
    def update(accumulation=1, packed=False):
        batch = make_batch(0)
        if packed:
            packing = Packing((16,), 4, length=16, max_pairs=2, max_predictions=8)
            rows = packing.rows(batch["attention_mask"].sum(axis=1))
            batch = packing.pack(batch, rows, pad_id=0)
            assert batch["nsp_weights"].sum(axis=1).max() == 2
        state = new_state(objective, mesh)
        # After step 0, whose learning rate is 0.
        state = state.replace(step=jnp.int32(1))
        step = compiled(objective, mesh, accumulation=accumulation)
        state, sums = step(state, put_batch(batch, mesh), SCHEDULE)
        # Packed rows compute another number of tokens.
        return state.params, {k: v for k, v in sums.items() if k != "computed_tokens"}

    return update


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"accumulation": 4}, marks=pytest.mark.long),
        pytest.param({"packed": True}, marks=pytest.mark.long),
        {"packed": True, "accumulation": 4},
    ],
)
def test_accumulation_and_packing_change_nothing_but_the_dropout_masks(
    one_update, max_difference, settings
):
    """Without dropout the update equals one of the whole batch with one pair a row."""
    params, sums = one_update()
    other_params, other_sums = one_update(**settings)
    assert max_difference(sums, other_sums) < 2e-4
    assert max_difference(params, other_params) < 1e-5


def test_sums_restart_at_zero_after_each_report(run):
    state, sums = run(MeshConfig(), devices=1)
    assert [float(s["steps"]) for s in sums] == [1.0, 2.0, 1.0]
    tokens = [float(s["tokens"] / s["computed_tokens"]) for s in sums]
    assert all(0.5 < share < 1 for share in tokens)
    assert state.sums["steps"] == 1.0
    assert state.step == 3


def test_three_steps_change_all_parameters(run, small_model_config):
    objective = MlmNsp(BertForPreTraining(small_model_config))
    fresh = new_state(objective, make_mesh(MeshConfig()))
    state, _ = run(MeshConfig(), devices=1)
    moves = arrays_by_path(
        jax.tree.map(lambda a, b: np.abs(a - b).max(), state.params, fresh.params)
    )
    # A bias of the keys shifts all scores of a query equally, which softmax ignores.
    moves = {name: move for name, move in moves.items() if "key/bias" not in name}
    assert min(moves.values()) > 1e-4, moves


def test_without_next_sentence_its_head_has_no_gradient(run):
    with_nsp, _ = run(MeshConfig(), devices=1)
    without, _ = run(MeshConfig(), devices=1, next_sentence=False)
    moments = arrays_by_path(without.opt_state).items()
    nsp = [moment for name, moment in moments if "nsp" in name]
    assert nsp
    assert all(np.all(leaf == 0) for leaf in nsp)
    words = [
        s.params["bert"]["embeddings"]["word"]["embedding"] for s in (with_nsp, without)
    ]
    assert not np.array_equal(*words)


class KeyDraws:
    """An objective whose loss is a random number from the key of the microbatch."""

    sum_names = ("loss", "square")
    rules = ()
    frozen = ""

    def init(self, key):
        del key
        return {"scale": jnp.ones(())}

    def weights(self, batch):
        del batch
        return {"loss": jnp.ones(())}

    def sums(self, params, batch, key):
        del batch
        draw = params["scale"] * jax.random.uniform(key)
        return {"loss": draw, "square": draw**2}


def test_each_microbatch_and_each_step_has_its_own_key():
    objective = KeyDraws()
    state = new_state(objective, make_mesh(MeshConfig(), jax.devices()[:1]))
    batch = {"attention_mask": jnp.ones((8, 4), jnp.int32)}
    run = jax.jit(functools.partial(gradients, objective=objective, accumulation=4))
    totals = []
    for step in range(2):
        _, sums = run(state.replace(step=jnp.int32(step)), batch)
        # The variance of four equal draws would be 0.
        assert sums["square"] / 4 - (sums["loss"] / 4) ** 2 > 1e-3
        totals.append(float(sums["loss"]))
    assert abs(totals[0] - totals[1]) > 1e-3
