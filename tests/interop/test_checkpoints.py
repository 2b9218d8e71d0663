import dataclasses

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interop.checkpoints import CheckpointStore
from bert_jax.model.bert import BertForPreTraining
from bert_jax.parallel.mesh import MeshConfig, make_mesh
from bert_jax.training.optimizer import OptimizerConfig, bert_optimizer
from bert_jax.training.state import abstract_state, init_state
from bert_jax.training.step import METRICS

OPTIMIZER = bert_optimizer(OptimizerConfig(1e-3, 1, 10))


@pytest.fixture(scope="module")
def model(small_model_config):
    return BertForPreTraining(small_model_config)


@pytest.fixture
def state(model):
    return init_state(model, OPTIMIZER, make_mesh(MeshConfig()), METRICS, seed=1)


def test_a_save_survives_the_donation_of_its_buffers(model, state, tmp_path):
    """The save runs in the background while the next updates overwrite the arrays."""
    shift = jax.jit(
        lambda params: jax.tree.map(lambda x: x + 1, params), donate_argnums=0
    )
    before = jax.device_get(state.params)
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 2, 3):
        store.save(step, state.replace(step=state.step + step), {"seed": 1})
        state = state.replace(params=shift(state.params))
    store.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["2", "3"]

    # On another mesh: the arrays are laid out anew, the values stay.
    mesh = make_mesh(MeshConfig(data=2, model=2, replica=2))
    abstract = abstract_state(model, OPTIMIZER, mesh, METRICS)
    store = CheckpointStore(tmp_path, keep=2)
    assert store.latest_step == 3
    restored = store.restore(abstract)
    store.close()
    assert restored.step == 3
    assert jax.random.key_data(restored.key).tolist() == (
        jax.random.key_data(state.key).tolist()
    )
    for old, new in zip(
        jax.tree.leaves(before), jax.tree.leaves(restored.params), strict=True
    ):
        assert np.array_equal(old + np.float32(1) + np.float32(1), new)
    specs = {leaf.sharding.mesh.shape["model"] for leaf in jax.tree.leaves(restored)}
    assert specs == {2}


def test_a_checkpoint_of_another_model_is_one_clear_error(
    model, state, small_model_config, tmp_path
):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(1, state, {})
    store.close()
    wider = BertForPreTraining(
        dataclasses.replace(small_model_config, intermediate_size=48)
    )
    abstract = abstract_state(wider, OPTIMIZER, make_mesh(MeshConfig()), METRICS)
    store = CheckpointStore(tmp_path, keep=1)
    with pytest.raises(
        UserError,
        match=r"kernel is \(32, 16\), expected \(48, 16\)",
    ):
        store.restore(abstract)
    store.close()
