import functools

import jax
import numpy as np
import pytest

from bert_jax.data.batching import Features
from bert_jax.inference.evaluation import run_model
from bert_jax.objectives.heads import jit_forward
from bert_jax.parallel.mesh import MeshConfig, make_mesh
from bert_jax.parallel.sharding import tree_shardings

# Heads with outputs for a sequence, and for its tokens.
HEADS = ["choice", "span"]
HEADS += [pytest.param(head, marks=pytest.mark.long) for head in ("sequence", "token")]
BATCH = 8
COUNTS = (1, BATCH - 1, BATCH, BATCH + 1)


def make_features(units, choices=1, seed=0, longest=16):
    random = np.random.default_rng(seed)
    lengths = random.integers(4, longest + 1, units * choices)
    return Features(
        [random.integers(5, 50, n).astype(np.int32) for n in lengths],
        [np.int32(np.arange(n) > n // 2) for n in lengths],
        np.repeat(np.arange(units, dtype=np.int32), choices),
        choices=choices,
    )


@pytest.fixture(scope="module")
def setting(make_head, init_params):
    """A function of (head, devices) that returns forward, parameters and mesh."""

    @functools.cache
    def make(head, devices):
        _, model = make_head(head)
        mesh = make_mesh(MeshConfig(), jax.devices()[:devices])
        params = init_params(model)
        params = jax.device_put(params, tree_shardings(params, mesh))
        return jit_forward(mesh, model), params, mesh

    return make


@pytest.fixture(scope="module")
def expected(setting):
    """The outputs of the model for each sequence alone, with more padding."""

    @functools.cache
    def outputs(head):
        features = make_features(max(COUNTS), 3 if head == "choice" else 1)
        forward, params, _ = setting(head, 1)
        right = []
        for ids, types in zip(features.input_ids, features.token_type_ids, strict=True):
            arrays = {
                "input_ids": ids,
                "token_type_ids": types,
                "attention_mask": np.ones_like(ids),
            }
            arrays = {k: np.pad(v, (0, 24 - len(v)))[None] for k, v in arrays.items()}
            (logits,) = np.asarray(forward(params, arrays))
            by_token = head in ("token", "span")
            right.append(logits[: len(ids)] if by_token else logits[0])
        return features, right

    return outputs


def first(features, units):
    n = units * features.choices
    return Features(
        features.input_ids[:n],
        features.token_type_ids[:n],
        features.row[:n],
        choices=features.choices,
    )


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("head", HEADS)
def test_every_sequence_once_and_in_order(head, devices, setting, expected):
    """Also if a batch is not full, or all devices but one have only padding."""
    forward, params, mesh = setting(head, devices)
    features, right = expected(head)
    for count in COUNTS:
        part = first(features, count)
        outputs = run_model(
            forward, params, part, batch_size=BATCH, limit=32, pad_id=0, mesh=mesh
        )
        assert len(outputs) == len(part.input_ids)
        for output, wanted in zip(outputs, right, strict=False):
            assert np.shape(output) == np.shape(wanted)
            assert np.asarray(output).dtype == np.float32
            np.testing.assert_allclose(output, wanted, atol=1e-5)
    different = {np.asarray(output).tobytes() for output in outputs}
    assert len(different) == len(outputs)


def test_labels_cause_no_new_compilation(setting):
    forward, params, mesh = setting("span", 1)
    features = make_features(BATCH)
    sizes = []
    for targets in ({}, {"start": np.zeros(BATCH, np.int32)}):
        labelled = Features(*features_parts(features), targets)
        run_model(
            forward, params, labelled, batch_size=BATCH, limit=64, pad_id=0, mesh=mesh
        )
        sizes.append(forward._cache_size())
    assert sizes[0] == sizes[1]


def features_parts(features):
    return features.input_ids, features.token_type_ids, features.row
