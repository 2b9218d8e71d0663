import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.row_packing import Packing
from bert_jax.model.bert import BertForPreTraining
from bert_jax.parallel.mesh import MeshConfig, make_mesh, put_batch
from bert_jax.training.optimizer import OptimizerConfig, bert_optimizer
from bert_jax.training.state import abstract_state, init_state
from bert_jax.training.step import METRICS, eval_step, means, train_step

OPTIMIZER = bert_optimizer(
    OptimizerConfig(learning_rate=1e-2, warmup_steps=2, total_steps=100)
)


@pytest.fixture(scope="module")
def run(small_model_config, make_batch):
    """Three updates on a mesh: final state and the sums after each update."""
    model = BertForPreTraining(small_model_config)

    @functools.cache
    def three_steps(mesh_config, devices=8, accumulation=1, next_sentence=True):
        mesh = make_mesh(mesh_config, jax.devices()[:devices])
        fsdp = mesh_config.fsdp
        state = init_state(model, OPTIMIZER, mesh, METRICS, seed=1, fsdp=fsdp)
        shardings = jax.tree.map(
            lambda leaf: leaf.sharding,
            abstract_state(model, OPTIMIZER, mesh, METRICS, fsdp=fsdp),
        )
        step = jax.jit(
            functools.partial(
                train_step,
                model=model,
                optimizer=OPTIMIZER,
                next_sentence=next_sentence,
                accumulation=accumulation,
                log_every=2,
            ),
            donate_argnums=0,
            out_shardings=(shardings, None),
        )
        sums = []
        for number in range(3):
            state, out = step(state, put_batch(make_batch(number), mesh))
            sums.append(jax.device_get(out))
        return jax.device_get(state.replace(key=jax.random.key_data(state.key))), sums

    return three_steps


@pytest.mark.parametrize(
    "mesh",
    [MeshConfig(), MeshConfig(data=4, model=2, fsdp=True), MeshConfig(2, 2, 2)],
)
def test_one_device_equals_eight_with_dropout(run, mesh, max_difference):
    """Same keys, same masks, global means: float32 sums in another order apart."""
    one, one_sums = run(MeshConfig(), devices=1)
    eight, eight_sums = run(mesh)
    assert max_difference(one_sums, eight_sums) < 1e-4  # sums of 16 x 4 losses
    assert max_difference(one.params, eight.params) < 2e-5
    assert np.array_equal(one.key, eight.key)


def test_fsdp_shares_the_memory_of_parameters_and_moments(small_model_config):
    """Bytes on each of eight devices: the word table whole, the other matrices shared."""
    config = dataclasses.replace(
        small_model_config, hidden_size=32, intermediate_size=128, num_layers=1
    )
    model, mesh = BertForPreTraining(config), make_mesh(MeshConfig(data=8))

    def device_bytes(fsdp):
        state = init_state(model, OPTIMIZER, mesh, METRICS, seed=1, fsdp=fsdp)
        trees = (state.params, state.opt_state)
        shards = [leaf.addressable_shards[0].data for leaf in jax.tree.leaves(trees)]
        return sum(shard.nbytes for shard in shards)

    matrices = 4 * 32 * 32 + 2 * 32 * 128 + 2 * 32 * 32 + 32 * 2
    spared = 3 * 4 * matrices * 7 // 8  # parameters and two moments, float32
    assert device_bytes(False) - device_bytes(True) == spared


@pytest.fixture(scope="module")
def one_update(small_model_config, make_batch):
    """A function: the parameters after an update without dropout, and its sums."""
    config = dataclasses.replace(
        small_model_config, hidden_dropout=0.0, attention_dropout=0.0
    )
    model = BertForPreTraining(config)
    mesh = make_mesh(MeshConfig(data=1), jax.devices()[:1])

    @functools.cache
    def update(accumulation=1, packed=False):
        batch = make_batch(0)
        if packed:
            packing = Packing((16,), 4, length=16, max_pairs=2, max_predictions=8)
            rows = packing.rows(batch["attention_mask"].sum(axis=1))
            batch = packing.pack(batch, *rows, pad_id=0)
            assert batch["nsp_weights"].sum(axis=1).max() == 2
        state = init_state(model, OPTIMIZER, mesh, METRICS, seed=1)
        # Past step 0, whose rate is 0.
        state = state.replace(step=jnp.int32(1), opt_state=_advance(state.opt_state))
        state, sums = jax.jit(
            functools.partial(
                train_step,
                model=model,
                optimizer=OPTIMIZER,
                next_sentence=True,
                accumulation=accumulation,
                log_every=2,
            )
        )(state, put_batch(batch, mesh))
        return state.params, sums

    return update


@pytest.mark.parametrize(
    "settings",
    [{"accumulation": 4}, {"packed": True}, {"packed": True, "accumulation": 4}],
)
def test_accumulation_and_packing_change_nothing_but_the_dropout_masks(
    one_update, max_difference, settings
):
    """Without dropout the update is that of the whole batch, a pair a row."""
    params, sums = one_update()
    other_params, other_sums = one_update(**settings)
    assert max_difference(sums, other_sums) < 2e-4
    assert max_difference(params, other_params) < 1e-5


def _advance(opt_state):
    """Counters (the int32 leaves) moved by one."""
    return jax.tree.map(
        lambda leaf: leaf + 1 if leaf.dtype == jnp.int32 else leaf, opt_state
    )


def test_sums_start_anew_after_each_report(run):
    state, sums = run(MeshConfig())
    assert [float(s["steps"]) for s in sums] == [1.0, 2.0, 1.0]
    assert state.sums["steps"] == 1.0
    assert state.step == 3


def test_the_first_update_has_rate_zero_and_later_ones_move_all(
    small_model_config, make_batch
):
    model = BertForPreTraining(small_model_config)
    mesh = make_mesh(MeshConfig())
    state = init_state(model, OPTIMIZER, mesh, METRICS, seed=1)
    step = jax.jit(
        functools.partial(
            train_step,
            model=model,
            optimizer=OPTIMIZER,
            next_sentence=True,
            accumulation=1,
            log_every=2,
        )
    )

    def largest_move(state):
        difference = jax.tree.map(
            lambda a, b: float(np.max(np.abs(a - b))), fresh, state.params
        )
        return {
            jax.tree_util.keystr(path, simple=True, separator="/"): move
            for path, move in jax.tree_util.tree_leaves_with_path(difference)
        }

    fresh = jax.device_get(state.params)
    first, _ = step(state, put_batch(make_batch(0), mesh))
    assert max(largest_move(first).values()) == 0
    second, _ = step(first, put_batch(make_batch(1), mesh))
    # A bias on the keys moves all scores of a query alike: softmax does not see it.
    moves = {k: v for k, v in largest_move(second).items() if "key/bias" not in k}
    assert min(moves.values()) > 1e-4, moves


def test_without_next_sentence_its_head_has_no_gradient(run):
    with_nsp, _ = run(MeshConfig())
    without, _ = run(MeshConfig(), next_sentence=False)
    nsp = [
        leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(without.opt_state)
        if "nsp" in jax.tree_util.keystr(path)
    ]
    assert nsp
    assert all(np.all(leaf == 0) for leaf in nsp)
    assert not np.array_equal(
        jax.tree.leaves(with_nsp.params)[0], jax.tree.leaves(without.params)[0]
    )


def test_eval_sums_add_over_batches(small_model_config, make_batch):
    model = BertForPreTraining(small_model_config)
    mesh = make_mesh(MeshConfig())
    params = init_state(model, OPTIMIZER, mesh, METRICS, seed=1).params
    evaluate = jax.jit(functools.partial(eval_step, model=model))
    halves = [make_batch(5, rows=8), make_batch(6, rows=8)]
    whole = {k: np.concatenate([h[k] for h in halves]) for k in halves[0]}
    total = jax.tree.map(
        jnp.add, *(evaluate(params, put_batch(h, mesh)) for h in halves)
    )
    one = evaluate(params, put_batch(whole, mesh))
    for name, value in one.items():
        assert np.asarray(total[name]) == pytest.approx(np.asarray(value), rel=1e-5), (
            name
        )
    asked = whole["mlm_ids"][whole["mlm_weights"] > 0]
    assert np.array_equal(one["mlm_counts"], np.bincount(asked, minlength=96))
    assert np.array_equal(one["nsp_counts"], np.bincount(whole["nsp_labels"]))


def test_means_divide_by_their_own_weights():
    sums = {
        "mlm_loss_sum": 30.0,
        "mlm_weight": 10.0,
        "mlm_correct": 4.0,
        "nsp_loss_sum": 2.0,
        "nsp_weight": 4.0,
        "nsp_correct": 3.0,
    }
    assert means(sums) == {
        "loss": 3.5,
        "mlm_loss": 3.0,
        "nsp_loss": 0.5,
        "mlm_accuracy": 0.4,
        "nsp_accuracy": 0.75,
    }
