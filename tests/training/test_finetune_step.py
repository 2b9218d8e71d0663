import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.data.batching import IGNORED, EpochBatches, Features
from bert_jax.inference.evaluation import put_rows
from bert_jax.model.config import ComputeConfig
from bert_jax.objectives.heads import jit_forward
from bert_jax.parallel.mesh import MeshConfig, make_mesh
from bert_jax.training.finetune_step import (
    Layout,
    init_state,
    jit_train_step,
)
from bert_jax.training.optimizer import OptimizerConfig, bert_direction

pytestmark = pytest.mark.usefixtures("quick_compiles")

HEADS = ("sequence", "choice", "token", "span")
KEY = jax.random.key(5)
ADAM = bert_direction(OptimizerConfig(learning_rate=1.0, warmup_steps=0, total_steps=1))


@pytest.fixture(scope="module")
def gradients(make_head, init_params):
    """A function of (head, arrays, accumulation): gradients without dropout, and sums.

    An update of rate 1 along the gradients shows them.
    """
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])

    @functools.cache
    def setting(head, accumulation):
        name, model = make_head(head, hidden_dropout=0.0, attention_dropout=0.0)
        params = init_params(model)
        step = jit_train_step(
            Layout.of(init_state(params, optax.identity(), KEY, mesh)),
            model=model,
            head=name,
            optimizer=optax.identity(),
            accumulation=accumulation,
        )
        return params, step

    def compute(head, arrays, accumulation=1):
        params, step = setting(head, accumulation)
        state = init_state(params, optax.identity(), KEY, mesh)
        state, sums = step(state, put_rows(arrays, mesh), np.float32(1))
        grads = jax.tree.map(lambda a, b: a - b, params, jax.device_get(state.params))
        return grads, jax.device_get(sums)

    return compute


def pad(arrays, rows, length):
    """The batch with rows that fill it up, and padded to a greater length."""
    old_rows, *_, old_length = arrays["input_ids"].shape
    padded = {}
    for name, array in arrays.items():
        pads = [(0, rows - old_rows)] + [(0, 0)] * (array.ndim - 1)
        if array.shape[-1] == old_length and array.ndim > 1:
            pads[-1] = (0, length - old_length)
        value = IGNORED if name == "labels" else 0
        padded[name] = np.pad(array, pads, constant_values=value)
    return padded


@pytest.mark.parametrize("head", HEADS)
def test_padding_filled_up_rows_and_microbatches_change_nothing(
    head, gradients, make_arrays, max_difference
):
    """Also where microbatches hold different numbers of labelled tokens."""
    arrays = make_arrays(head)
    if head == "token":
        arrays["labels"][::2] = IGNORED
        arrays["labels"][2, 1] = 1
    grads, sums = gradients(head, arrays)
    padded = pad(arrays, 12, 24)
    padded_grads, padded_sums = gradients(head, padded, accumulation=2)
    assert max_difference(sums, padded_sums) < 1e-5  # sums of up to 60 losses
    assert max_difference(grads, padded_grads) < 1e-6
    assert sums["weight"] == (arrays["labels"] >= 0).sum() if head == "token" else 8
    largest = jax.tree.map(lambda g: float(np.abs(g).max()), grads)
    assert max(jax.tree.leaves(largest)) > 1e-2


def pack(head, arrays, parts):
    """The same sequences, several in a row, by the packing of the training batches."""
    ids = arrays["input_ids"]
    choices = ids.shape[1] if head == "choice" else 1
    lengths = arrays["attention_mask"].sum(axis=-1).ravel()
    cut = {
        name: [
            row[:n]
            for row, n in zip(
                arrays[name].reshape(-1, ids.shape[-1]), lengths, strict=True
            )
        ]
        for name in ("input_ids", "token_type_ids", "labels")
        if name in arrays
    }
    targets = {"labels": cut.pop("labels")} if head == "token" else {}
    for name in ("label", "choice_mask", "start", "end"):
        if name in arrays:
            targets[name] = arrays[name]
    rows = np.arange(len(ids), dtype=np.int32)
    features = Features(**cut, row=rows, targets=targets, choices=choices)
    return EpochBatches(
        features,
        batch_size=len(ids),
        epochs=1,
        seed=0,
        pad_id=0,
        buckets=1,
        limit=32,
        accumulation=parts,
    )[0]


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("head", (*HEADS, "regression"))
def test_packed_rows_change_nothing(
    head, accumulation, gradients, make_arrays, max_difference
):
    """Positions begin anew, no sequence sees another, and each has its own result."""
    arrays = make_arrays(head)
    packed = pack(head, arrays, accumulation)
    assert packed["input_ids"].shape[0] < np.prod(arrays["input_ids"].shape[:-1])
    assert packed["segment_ids"].max() > 1
    grads, sums = gradients(head, arrays)
    packed_grads, packed_sums = gradients(head, packed, accumulation)
    assert max_difference(sums, packed_sums) < 1e-5
    assert max_difference(grads, packed_grads) < 2e-6


@pytest.fixture(scope="module")
def two_updates(make_head, init_params, make_arrays):
    """A function of (head, mesh, devices): after two updates with dropout, the
    parameters, the sums of each, and how often the update was compiled."""

    @functools.cache
    def run(head, mesh_config, devices=8):
        name, model = make_head(head)
        mesh = make_mesh(mesh_config, jax.devices()[:devices])
        # Adam for one of them: it takes longer to compile than all the rest.
        optimizer, rate = (ADAM, 1e-3) if head == "span" else (optax.identity(), 0.1)
        fsdp = mesh_config.fsdp
        state = init_state(init_params(model), optimizer, KEY, mesh, fsdp=fsdp)
        step = jit_train_step(
            Layout.of(state),
            model=model,
            head=name,
            optimizer=optimizer,
            accumulation=1,
        )
        sums = []
        for number in range(2):
            arrays = put_rows(make_arrays(head, number), mesh)
            state, out = step(state, arrays, np.float32(rate))
            sums.append(jax.device_get(out))
        assert state.step == 2
        sizes = step.backward._cache_size(), step.update._cache_size()
        return jax.device_get(state.params), sums, sizes

    return run


@pytest.mark.parametrize(
    "mesh", [MeshConfig(data=8, fsdp=True), MeshConfig(data=4, model=2)]
)
@pytest.mark.parametrize("head", HEADS)
def test_one_device_equals_eight_with_dropout(head, mesh, two_updates, max_difference):
    """Same keys, same masks, global means: float32 sums in another order apart."""
    params, sums, _ = two_updates(head, MeshConfig(), devices=1)
    others, other_sums, _ = two_updates(head, mesh)
    assert max_difference(sums, other_sums) < 1e-4
    assert max_difference(params, others) < 1e-5


@pytest.mark.parametrize("mesh", [MeshConfig(), MeshConfig(data=4, model=2)])
def test_a_shape_is_compiled_once(mesh, two_updates):
    """The new state lies as the old one did, so that the next update fits the first."""
    devices = 8 if mesh.model > 1 else 1
    assert two_updates("span", mesh, devices)[2] == (1, 1)


def test_the_rate_scales_the_update_and_dropout_differs_between_updates(
    make_head, init_params, make_arrays, max_difference
):
    name, model = make_head("span")
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    params, arrays = init_params(model), put_rows(make_arrays("span"), mesh)
    step = jit_train_step(
        Layout.of(init_state(params, optax.identity(), KEY, mesh)),
        model=model,
        head=name,
        optimizer=optax.identity(),
        accumulation=1,
    )

    def update(number, rate):
        state = init_state(params, optax.identity(), KEY, mesh)
        state = state.replace(step=state.step + number)
        state, sums = step(state, arrays, np.float32(rate))
        moves = jax.tree.map(lambda a, b: a - b, jax.device_get(state.params), params)
        return moves, float(sums["loss_sum"])

    assert max_difference(update(0, 0.0)[0], jax.tree.map(np.zeros_like, params)) == 0
    once, loss = update(0, 1.0)
    twice, same_loss = update(0, 2.0)
    assert loss == same_loss
    assert max_difference(jax.tree.map(lambda x: 2 * x, once), twice) < 1e-6
    assert abs(update(1, 1.0)[1] - loss) > 1e-3


def test_the_forward_pass_has_no_dropout_and_gives_float32(
    make_head, init_params, make_arrays
):
    _, model = make_head("choice", ComputeConfig(dtype="bfloat16"))
    mesh = make_mesh(MeshConfig())
    forward = jit_forward(mesh, model)
    params, arrays = init_params(model), put_rows(make_arrays("choice"), mesh)
    logits = forward(params, arrays)
    assert logits.shape == (8, 3)
    assert logits.dtype == jnp.float32
    assert logits.is_fully_replicated
    assert np.array_equal(logits, forward(params, arrays))
