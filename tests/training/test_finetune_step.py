"""A step of each head: padding and packing change nothing, and parameters change."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.batching import IGNORED, EpochBatches, Features
from bert_jax.model.config import ComputeConfig
from bert_jax.objectives.heads import ENCODER, jit_forward
from bert_jax.objectives.heads import HEADS as OBJECTIVES
from bert_jax.parallel.mesh import MeshConfig, make_mesh, put_batch
from bert_jax.parallel.sharding import path_name
from bert_jax.training.finetune_loss import first_layers
from bert_jax.training.optimizer import (
    OptimizerConfig,
    bert_optimizer,
    by_layer,
    make_schedule,
)
from bert_jax.training.state import abstract_state, init_state
from bert_jax.training.step import compile_step, gradients

HEADS = ("sequence", "choice", "token", "span")
SETTINGS = OptimizerConfig(learning_rate=1e-3)
ADAM = bert_optimizer(SETTINGS)
SCHEDULE = make_schedule(SETTINGS, 1000)
TAG_WEIGHTS = np.array([0.5, 3.0, 1.0])  # class weights of the head "token"


@pytest.fixture(scope="module")
def make_objective(make_head):
    """A function of (head, config changes) that makes an objective of fine-tuning."""

    def make(head, class_weights=(), label_smoothing=0.0, **changes):
        name, model = make_head(head, **changes)
        return OBJECTIVES[name](model, "", class_weights, label_smoothing)

    return make


@pytest.fixture(scope="module")
def gradients_of(make_objective, random_params):
    """A function of (head, arrays, accumulation): gradients and sums, no dropout."""
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])

    @functools.cache
    def setting(head, accumulation):
        changes = dict(hidden_dropout=0.0, attention_dropout=0.0)
        if head == "token":
            changes |= dict(class_weights=(*TAG_WEIGHTS,), label_smoothing=0.1)
        objective = make_objective(head, **changes)
        settings = dict(objective=objective, accumulation=accumulation)
        abstract = abstract_state(objective, ADAM, mesh)
        params = random_params(abstract.params)
        state = init_state(objective, ADAM, abstract, 5, params)
        return state, jax.jit(functools.partial(gradients, **settings))

    def compute(head, arrays, accumulation=1):
        state, compiled = setting(head, accumulation)
        grads, sums = jax.device_get(compiled(state, put_batch(arrays, mesh)))
        # Padding only changes the number of computed tokens.
        return grads, {k: v for k, v in sums.items() if k != "computed_tokens"}

    return compute


def pad(arrays, rows, length):
    """The batch with padding rows, and padded to a greater length."""
    old_rows, *_, old_length = arrays["input_ids"].shape
    padded = {}
    for name, array in arrays.items():
        pads = [(0, rows - old_rows)] + [(0, 0)] * (array.ndim - 1)
        if array.shape[-1] == old_length and array.ndim > 1:
            pads[-1] = (0, length - old_length)
        value = IGNORED if name == "labels" else 0
        padded[name] = np.pad(array, pads, constant_values=value)
    return padded


@pytest.mark.parametrize(
    "head",
    [pytest.param(head, marks=[pytest.mark.long] * (head != "span")) for head in HEADS],
)
def test_padding_padding_rows_and_microbatches_change_nothing(
    head, gradients_of, make_arrays, max_difference
):
    """Even if microbatches have different numbers and weights of labelled tokens."""
    arrays = make_arrays(head)
    if head == "token":
        arrays["labels"][::2] = IGNORED
        arrays["labels"][2, 1] = 1
    grads, sums = gradients_of(head, arrays)
    padded = pad(arrays, 12, 24)
    padded_grads, padded_sums = gradients_of(head, padded, accumulation=2)
    assert max_difference(sums, padded_sums) < 1e-5  # sums of up to 60 losses
    assert max_difference(grads, padded_grads) < 1e-6
    labels = arrays.get("labels", np.zeros(0))
    expected = TAG_WEIGHTS[labels[labels >= 0]].sum() if head == "token" else 8
    assert sums["weight"] == pytest.approx(expected)
    largest = jax.tree.map(lambda g: float(np.abs(g).max()), grads)
    assert max(jax.tree.leaves(largest)) > 1e-2


def pack(head, arrays, accumulation, multiple=1):
    """The same sequences, packed like training batches."""
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
            targets[name] = arrays[name] if choices > 1 else arrays[name][:, 0]
    rows = np.arange(len(ids), dtype=np.int32)
    features = Features(**cut, example=rows, targets=targets, choices=choices)
    batches = EpochBatches(
        features,
        batch_size=len(ids),
        epochs=1,
        seed=0,
        pad_id=0,
        buckets=1,
        limit=32,
        multiple=multiple * accumulation,
        accumulation=accumulation,
    )
    return batches[0]


@pytest.mark.parametrize(
    ("head", "accumulation"),
    [
        *((head, 1) for head in (*HEADS, "regression")),
        ("token", 2),
        *(
            pytest.param(head, 2, marks=pytest.mark.long)
            for head in ("sequence", "choice", "span", "regression")
        ),
    ],
)
def test_packed_rows_change_nothing(
    head, accumulation, gradients_of, make_arrays, max_difference
):
    """Each sequence has its own positions and result, and sees no other sequence."""
    arrays = make_arrays(head)
    packed = pack(head, arrays, accumulation)
    assert packed["input_ids"].shape[0] < np.prod(arrays["input_ids"].shape[:-1])
    assert packed["segment_ids"].max() > 1
    grads, sums = gradients_of(head, arrays)
    packed_grads, packed_sums = gradients_of(head, packed, accumulation)
    assert max_difference(sums, packed_sums) < 1e-5
    assert max_difference(grads, packed_grads) < 2e-6


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(head, marks=[pytest.mark.long] * (head != "choice"))
        for head in HEADS
    ],
)
def test_four_devices_learn_what_one_learns(
    head, make_objective, make_arrays, random_params, max_difference
):
    """With dropout. The choices of an example may be rows of different devices."""
    objective = make_objective(head)
    arrays = pack(head, make_arrays(head), 1, multiple=4)

    def train(devices):
        mesh = make_mesh(MeshConfig(), jax.devices()[:devices])
        abstract = abstract_state(objective, ADAM, mesh)
        params = random_params(abstract.params)
        state = init_state(objective, ADAM, abstract, 5, params)
        step = compile_step(objective, SETTINGS, abstract)
        state, sums = step(state, put_batch(arrays, mesh), SCHEDULE)
        return jax.device_get((state.opt_state, sums))

    moments, sums = train(1)
    other_moments, other_sums = train(4)
    assert max_difference(sums, other_sums) < 1e-5
    assert max_difference(moments, other_moments) < 1e-6


def test_the_forward_pass_has_no_dropout_and_returns_float32(
    make_objective, init_params, make_arrays
):
    """The loss is then also computed in float32."""
    objective = make_objective("choice", compute=ComputeConfig(dtype="bfloat16"))
    model = objective.model
    mesh = make_mesh(MeshConfig())
    forward = jit_forward(mesh, model)
    params, batch = init_params(model), put_batch(make_arrays("choice"), mesh)
    logits = forward(params, batch)
    assert logits.shape == (8, 3)
    assert logits.dtype == jnp.float32
    assert logits.is_fully_replicated
    assert np.array_equal(logits, forward(params, batch))


@pytest.mark.parametrize(
    ("frozen", "parts", "scan"),
    [
        (ENCODER, ("embeddings", "layer_0", "layer_1"), False),
        pytest.param(
            *(ENCODER, ("embeddings", "layer_0", "layer_1"), True),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *(first_layers(1), ("embeddings", "layer_0"), False), marks=pytest.mark.long
        ),
        (first_layers(1), ("embeddings", "layer_0"), True),
    ],
    ids=["encoder", "encoder-stacked", "first", "first-stacked"],
)
def test_frozen_parameters_do_not_change_and_have_no_moments(
    frozen, parts, scan, make_objective, make_arrays, random_params
):
    """Even with weight decay, which needs no gradient, and in stacked layers."""
    compute = ComputeConfig(scan_layers=scan)
    objective = make_objective("sequence", compute=compute, num_layers=2)
    objective = dataclasses.replace(objective, frozen=frozen)
    settings = OptimizerConfig(learning_rate=0.1, weight_decay=0.5)
    optimizer = bert_optimizer(settings, frozen)
    sizes = MeshConfig(1, 2, 2, True) if scan else MeshConfig()
    mesh = make_mesh(sizes, jax.devices()[: 4 if scan else 1])
    abstract = abstract_state(objective, optimizer, mesh, fsdp=scan)
    params = random_params(abstract.params)
    state = init_state(objective, optimizer, abstract, 1, params)
    moments = {
        path_name(path) for path, _ in jax.tree.leaves_with_path(state.opt_state)
    }
    assert any("mu/bert/pooler/kernel" in name for name in moments)
    without = parts[:1] if scan and "layer_1" not in parts else parts
    assert not any(part in name for part in without for name in moments)
    before = jax.device_get(state.params)
    step = compile_step(objective, settings, abstract, accumulation=2)
    for _ in range(2):  # the learning rate of the first step is 0
        batch = put_batch(make_arrays("sequence", rows=16), mesh)
        state, _ = step(state, batch, make_schedule(settings, 10))
    after = jax.device_get(state.params)
    for path, old in jax.tree.leaves_with_path(before):
        new = functools.reduce(lambda tree, key: tree[key.key], path, after)
        same = by_layer(path, old, lambda name: any(part in name for part in parts))
        bits = np.moveaxis(old.view(np.int32) == new.view(np.int32), 0, -1)
        stays = bits.all() if same.size == 1 else bits.reshape(-1, 2).all(axis=0)
        assert np.array_equal(stays, same.squeeze()), path_name(path)
