"""Gradients in bfloat16: their error and the dtype of their sums."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig, ComputeConfig, FeatureConfig
from bert_jax.objectives.causal import Causal
from bert_jax.objectives.electra import Electra, ReplacedTokens
from bert_jax.objectives.heads import HEADS
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.objectives.networks import make_model
from bert_jax.objectives.two_way import TwoWay, TwoWayForPreTraining
from bert_jax.parallel.mesh import MeshConfig, batch_sharding, make_mesh, traced_on

# All sizes, and the rows of a product, differ, so that a shape identifies a kernel.
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
    """A jitted bfloat16 function of parameters and input_ids, and its parameters."""
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
    replicated = NamedSharding(mesh, PartitionSpec())
    run = jax.jit(
        traced_on(mesh, jax.value_and_grad(loss)),
        in_shardings=(replicated, batch_sharding(mesh)),
        out_shardings=replicated,
    )
    return run, params["params"]


def gradient_products(float32_gradients):
    """Dtypes of the products with a kernel's shape, lowered for a TPU."""
    run, params = loss_and_gradients(float32_gradients)
    text = run.trace(params, IDS).lower(lowering_platforms=("tpu",)).as_text()
    flat = traverse_util.flatten_dict(params, sep="/")
    # The products of the pooler and the NSP head have float32 results.
    kernels = {n: a for n, a in flat.items() if re.search("encoder/.*kernel", n)}
    shapes = {"x".join(map(str, a.shape)) for a in kernels.values()}
    dot_types = re.findall(r"dot_general .*-> tensor<([\dx]+)x(\w+)>", text)
    return {dtype for shape, dtype in dot_types if shape in shapes}


@pytest.mark.parametrize(("setting", "dtype"), [(False, "bf16"), (True, "f32")])
def test_a_kernels_gradient_has_the_dtype_of_its_sum(setting, dtype):
    """Gradients are summed over devices in the dtype of the product's output."""
    assert gradient_products(setting) == {dtype}


MASK = 4


def masked_batch(rows=16, length=256, vocab_size=64):
    """Random tokens of two types with labels. One in eight is [MASK]."""
    rng = np.random.default_rng(0)
    ids = rng.integers(5, vocab_size, (rows, length), np.int32)
    places = np.broadcast_to(np.arange(3, length, 8, np.int32), (rows, length // 8))
    mlm_ids = np.take_along_axis(ids, places, axis=1)
    np.put_along_axis(ids, places, MASK, axis=1)
    return {
        "input_ids": ids,
        "token_type_ids": np.int32(np.arange(length) >= length // 2) + 0 * ids,
        "attention_mask": np.ones_like(ids),
        "mlm_positions": places,
        "mlm_ids": mlm_ids,
        "mlm_weights": np.ones(places.shape, np.float32),
        "labels": rng.integers(0, 3, ids.shape, np.int32),
    }


def head(name, config, compute):
    return HEADS[name](make_model(config, name, 3, FeatureConfig(), compute))


OBJECTIVES = {
    "masked": lambda *of: MlmNsp(BertForPreTraining(*of), next_sentence=False),
    "causal": lambda *of: Causal(BertForPreTraining(*of)),
    "electra": lambda *of: ReplacedTokens(Electra(*of)),
    "token": lambda *of: head("token", *of),
    "two-way": lambda *of: TwoWay(TwoWayForPreTraining(*of)),
    "mean": lambda *of: head("mean", *of),
}


@pytest.mark.parametrize(
    "kind",
    [
        "masked",
        pytest.param("causal", marks=pytest.mark.long),
        pytest.param("electra", marks=pytest.mark.long),
        pytest.param("token", marks=pytest.mark.long),
        pytest.param("two-way", marks=pytest.mark.long),
    ],
)
def test_gradients_of_tables_are_within_1_5_percent_of_float32(kind):
    """In bfloat16, with sums of 2,048 tokens of a type and 512 [MASK].

    A lookup's gradient is summed in float32; a sum in bfloat16 would be 4 to 90% off.
    The bias of each layer's projections has as many addends.
    """
    batch = masked_batch()
    if kind == "masked":
        batch["nsp_labels"] = np.zeros(len(batch["input_ids"]), np.int32)
    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_layers=1,
        num_heads=2,
        intermediate_size=64,
        max_positions=256,
        causal=kind == "causal",
        encoder="lstm" if kind == "two-way" else "transformer",
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )

    def gradients(dtype):
        objective = OBJECTIVES[kind](config, ComputeConfig(dtype=dtype))

        @jax.jit
        def run(batch):
            def loss(params):
                sums = objective.sums(params, batch, None)
                weights = objective.weights(batch)
                return sum(sums[name] / weights[name] for name in weights)

            return jax.grad(loss)(objective.init(jax.random.key(0)))

        return traverse_util.flatten_dict(run(batch)["bert"], sep="/")

    actual, expected = gradients("bfloat16"), gradients("float32")

    def check(name, rows=slice(None)):
        a, b = actual[name][rows], expected[name][rows]
        assert np.linalg.norm(a - b) < 0.015 * np.linalg.norm(b), name

    for table in ("word", "position", "segment"):
        check(f"embeddings/{table}/embedding")
    check("embeddings/word/embedding", MASK)
    biases = ("attention/value/bias", "feed_forward_output/bias")
    if kind == "two-way":
        biases = "forward_inputs/bias", "backward_inputs/bias"
    for name in actual:
        if name.endswith(biases):
            check(name)


@pytest.mark.parametrize(
    ("kind", "scan_layers"),
    [
        ("mean", False),
        pytest.param("masked", True, marks=pytest.mark.long),
        pytest.param("electra", False, marks=pytest.mark.long),
        pytest.param("two-way", False, marks=pytest.mark.long),
    ],
)
def test_the_plain_model_has_second_derivatives_in_forward_mode(kind, scan_layers):
    """Products with a vector equal reverse mode, in float32 and with dropout."""
    batch = masked_batch(rows=2, length=16)
    batch["nsp_labels"] = batch["label"] = np.array([0, 1], np.int32)
    batch["weights"] = np.ones(2, np.float32)
    if kind == "mean":
        batch["slots"] = np.array([[0, 1], [1, 0]])
        batch["label"] = np.float32([0.2, 0.9])
    config = BertConfig(
        vocab_size=64,
        hidden_size=16,
        num_layers=1 if kind == "mean" else 2,
        num_heads=4,
        intermediate_size=24,
        max_positions=16,
        causal=kind == "causal",
        encoder="lstm" if kind == "two-way" else "transformer",
        initializer_range=0.2,
    )
    compute = ComputeConfig(attention_impl="plain", scan_layers=scan_layers)
    objective = OBJECTIVES[kind](config, compute)

    def loss(params):
        sums = objective.sums(params, batch, jax.random.key(1))
        weights = objective.weights(batch)
        return sum(sums[name] / weights[name] for name in weights)

    @jax.jit
    def derivatives():
        params = objective.init(jax.random.key(0))
        leaves, tree = jax.tree.flatten(params)
        keys = jax.random.split(jax.random.key(2), len(leaves))
        vector = tree.unflatten(
            jax.random.normal(key, leaf.shape)
            for key, leaf in zip(keys, leaves, strict=True)
        )

        def dot(a, b):
            return sum(map(jnp.vdot, jax.tree.leaves(a), jax.tree.leaves(b)))

        def slope(params):
            return jax.jvp(loss, (params,), (vector,))[1]

        grad, hessian_vector = jax.jvp(jax.grad(loss), (params,), (vector,))
        _, curvature = jax.jvp(slope, (params,), (vector,))
        return slope(params), dot(grad, vector), curvature, dot(hessian_vector, vector)

    slope, expected_slope, curvature, expected_curvature = derivatives()
    assert abs(expected_slope) > 0.01
    assert abs(expected_curvature) > 0.01
    np.testing.assert_allclose(slope, expected_slope, rtol=1e-4)
    np.testing.assert_allclose(curvature, expected_curvature, rtol=1e-3)
