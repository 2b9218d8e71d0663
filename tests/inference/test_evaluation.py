import functools

import jax
import numpy as np
import pytest

from bert_jax.inference.evaluation import (
    Split,
    evaluate,
    run_model,
    shared_buckets,
)
from bert_jax.objectives.heads import jit_forward
from bert_jax.parallel.mesh import MeshConfig, make_mesh
from bert_jax.parallel.sharding import tree_shardings
from bert_jax.tasks.batches import make_batch
from bert_jax.tasks.task import Features

pytestmark = pytest.mark.usefixtures("quick_compiles")

HEADS = ("sequence", "choice", "token", "span")
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
    """A function of (head, devices): forward, parameters and mesh."""

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
    """What the model says of each sequence, in one batch with more padding."""

    @functools.cache
    def outputs(head):
        features = make_features(max(COUNTS), 3 if head == "choice" else 1)
        forward, params, _ = setting(head, 1)
        units = np.arange(max(COUNTS))
        batch = make_batch(features, units, len(units), (24,), pad_id=0).arrays
        inputs = ("input_ids", "token_type_ids", "attention_mask")
        logits = np.asarray(forward(params, {name: batch[name] for name in inputs}))
        if head == "choice":
            return features, list(logits.reshape(-1))
        if logits.ndim == 3:
            lengths = map(len, features.input_ids)
            return features, [x[:n] for x, n in zip(logits, lengths, strict=True)]
        return features, list(logits)

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
    """Also where a batch is not full, or all devices but one have nothing to do."""
    forward, params, mesh = setting(head, devices)
    features, right = expected(head)
    for count in COUNTS:
        part = first(features, count)
        split = Split("dev", list(range(count)), part)
        outputs = run_model(
            forward,
            params,
            split,
            batch_size=BATCH,
            buckets=(16,),
            pad_id=0,
            mesh=mesh,
        )
        assert len(outputs) == len(part.input_ids)
        for output, wanted in zip(outputs, right, strict=False):
            assert np.shape(output) == np.shape(wanted)
            assert np.asarray(output).dtype == np.float32
            np.testing.assert_allclose(output, wanted, atol=1e-5)
    different = {np.asarray(output).tobytes() for output in outputs}
    assert len(different) == len(outputs)


def test_labels_do_not_compile_a_shape_again(setting):
    forward, params, mesh = setting("span", 1)
    features = make_features(BATCH)
    before = forward._cache_size()
    for targets in ({}, {"start": np.zeros(BATCH, np.int32)}):
        split = Split("dev", [], Features(*features_parts(features), targets))
        run_model(
            forward,
            params,
            split,
            batch_size=BATCH,
            buckets=(32,),
            pad_id=0,
            mesh=mesh,
        )
    assert forward._cache_size() == before + 1


def features_parts(features):
    return features.input_ids, features.token_type_ids, features.row


def test_buckets_serve_every_split():
    splits = [
        Split(name, [], make_features(400, seed=i, longest=longest))
        for i, (name, longest) in enumerate({"dev": 20, "test": 31}.items())
    ]
    buckets = shared_buckets(splits, BATCH, 2, 32)
    assert len(buckets) == 2
    lengths = [len(ids) for split in splits for ids in split.features.input_ids]
    assert max(lengths) <= buckets[-1] <= 32


def test_only_labelled_splits_are_scored():
    class Count:
        eval_splits = ("dev",)

        def predictions(self, rows, features, outputs):
            return [{"n": len(rows) + len(outputs)}]

        def score(self, rows, predictions):
            return {"n": predictions[0]["n"]}

    features = make_features(2)
    for name, scores in (("dev", {"n": 5}), ("test", {})):
        evaluation = evaluate(Count(), Split(name, [1, 2], features), [1, 2, 3])
        assert evaluation.predictions == [{"n": 5}]
        assert evaluation.scores == scores
