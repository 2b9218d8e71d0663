"""In which dtype gradients are summed over rows and devices."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.parallel.mesh import MeshConfig, batch_sharding, make_mesh, traced_on

# No two sizes are alike, nor rows of a product, so that a shape names a kernel.
CONFIG = BertConfig(
    vocab_size=200,
    hidden_size=32,
    num_layers=1,
    num_heads=4,
    intermediate_size=80,
    max_positions=24,
)
IDS = np.random.default_rng(0).integers(0, 200, (8, 16), np.int32)


def loss_and_gradients(float32_gradients):
    """A jitted function of parameters and input_ids in bfloat16, and the parameters."""
    compute = ComputeConfig(dtype="bfloat16", float32_gradients=float32_gradients)
    model = BertForPreTraining(CONFIG, compute)

    def apply(method, *args):
        ids = args[-1]
        batch = ids, jnp.zeros_like(ids), jnp.ones_like(ids), ids[:, :5] % 16
        return method(*args[:-1], *batch, deterministic=True)

    def loss(params, ids):
        output = apply(model.apply, {"params": params}, ids)
        mlm = jax.nn.log_softmax(output.mlm_logits_BMW)[..., 7]
        return -mlm.mean() - jax.nn.log_softmax(output.nsp_logits_B2)[:, 0].mean()

    params = jax.jit(lambda ids: apply(model.init, jax.random.key(0), ids))(IDS)
    mesh = make_mesh(MeshConfig())
    whole = NamedSharding(mesh, PartitionSpec())
    run = jax.jit(
        traced_on(mesh, jax.value_and_grad(loss)),
        in_shardings=(whole, batch_sharding(mesh)),
        out_shardings=whole,
    )
    return run, params["params"]


def gradient_products(float32_gradients):
    """Dtypes of the products with a kernel's shape, as written for a TPU."""
    run, params = loss_and_gradients(float32_gradients)
    text = run.trace(params, IDS).lower(lowering_platforms=("tpu",)).as_text()
    flat = traverse_util.flatten_dict(params, sep="/")
    shapes = {"x".join(map(str, a.shape)) for n, a in flat.items() if "kernel" in n}
    found = re.findall(r"dot_general .*-> tensor<([\dx]+)x(\w+)>", text)
    return {dtype for shape, dtype in found if shape in shapes}


@pytest.mark.parametrize(("setting", "dtype"), [(False, "bf16"), (True, "f32")])
def test_kernels_gradients_leave_their_product_in_the_dtype_of_the_sum(setting, dtype):
    """What a device has of a gradient is summed over devices as the product gives it."""
    assert gradient_products(setting) == {dtype}


def test_float32_gradients_are_summed_over_devices_in_float32():
    run, params = loss_and_gradients(True)
    compiled = run.lower(params, IDS).compile().as_text()
    results = re.findall(r"= (\(.*?\)|\S+) all-reduce(?:-start)?\(", compiled)
    dtypes = {d for result in results for d in re.findall(r"\b([a-z]+\d+)\[", result)}
    assert dtypes == {"f32"}


def test_float32_gradients_leave_the_loss_as_it_is_and_round_less():
    (loss, rough), (same, fine) = (
        run(params, IDS) for run, params in map(loss_and_gradients, (False, True))
    )
    assert loss == same
    for a, b in zip(jax.tree.leaves(rough), jax.tree.leaves(fine), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2**-7 * np.abs(b).max())
    table = fine["bert"]["encoder"]["layer_0"]["intermediate"]["kernel"]
    assert not np.array_equal(table, jnp.bfloat16(table))
