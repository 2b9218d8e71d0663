import dataclasses

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interop.checkpoints import CheckpointStore
from bert_jax.model.bert import BertForPreTraining
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.parallel.mesh import MeshConfig, make_mesh
from bert_jax.training.optimizer import OptimizerConfig, bert_optimizer
from bert_jax.training.state import abstract_state, init_state

OPTIMIZER = bert_optimizer(OptimizerConfig(1e-3))


@pytest.fixture(scope="module")
def objective(small_model_config):
    return MlmNsp(BertForPreTraining(small_model_config))


@pytest.fixture
def state(objective):
    return init_state(objective, OPTIMIZER, make_mesh(MeshConfig()), seed=1)


def test_a_save_survives_the_donation_of_its_buffers(objective, state, tmp_path):
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
    abstract = abstract_state(objective, OPTIMIZER, mesh)
    store = CheckpointStore(tmp_path, keep=2)
    assert store.latest_step == 3
    restored, notes = store.restore(abstract)
    assert notes == {"seed": 1}
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
    state, small_model_config, tmp_path
):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(1, state, {})
    store.close()
    config = dataclasses.replace(small_model_config, intermediate_size=48)
    wider = MlmNsp(BertForPreTraining(config))
    abstract = abstract_state(wider, OPTIMIZER, make_mesh(MeshConfig()))
    store = CheckpointStore(tmp_path, keep=1)
    with pytest.raises(
        UserError,
        match=r"kernel is \(32, 16\), expected \(48, 16\)",
    ):
        store.restore(abstract)
    store.close()
