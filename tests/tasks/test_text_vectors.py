"""Vectors of texts, trained on pairs: losses, rows, and runs."""

import dataclasses

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.errors import UserError
from bert_jax.inference.predict import Predictor
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.interop.load import load
from bert_jax.model.config import FeatureConfig
from bert_jax.model.heads import make_model
from bert_jax.objectives.heads import PADDED_SCORE, Vectors
from bert_jax.tasks.text_vectors import SentenceVectors, SentenceVectorsConfig
from bert_jax.training.config import finetune_config
from bert_jax.training.sweep import run_one

PAIRS = [("it is good", "good", 5.0), ("it is", "bad", 1.0), ("red", "blue", 2.0)]


def task(**settings):
    return SentenceVectors(SentenceVectorsConfig(**settings))


def test_losses_are_those_of_sentence_transformers(golden):
    """tests/golden/torch/make.py; a padded pair is no one's partner."""
    theirs = np.load(golden / "torch" / "losses.npz")
    vectors = np.stack([theirs["u"], theirs["v"]], axis=1)
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    losses = jax.jit(Vectors(None).losses)
    found = losses(vectors, {"label": theirs["scores"]})
    np.testing.assert_allclose(found.mean(), theirs["cosine"], rtol=1e-5)
    padded = np.concatenate([vectors, vectors[:1]])
    weights = np.array([1] * 7 + [0], np.float32)
    found = losses(padded, {"weights": weights})[:7]
    np.testing.assert_allclose(found.mean(), theirs["contrastive"], rtol=1e-5)
    assert PADDED_SCORE < -1e9


def test_a_pair_is_two_sequences(vocabulary):
    own = task().with_rows(train=PAIRS, dev=PAIRS)
    rows = own.read("train")
    features = own.encode(rows, vocabulary)
    assert features.choices == 2 and len(features.input_ids) == 6
    assert features.row.tolist() == [0, 0, 1, 1, 2, 2]
    np.testing.assert_allclose(features.targets["label"], [1, 0, 0.25])
    assert not any(types.any() for types in features.token_type_ids)
    outputs = np.eye(6, 4)[[0, 0, 0, 1, 2, 2]]
    answers = own.decode(rows, features, list(outputs))
    assert [answer["value"] for answer in answers] == [1, 0, 1]
    assert own.score(rows, answers)["pearson"] == pytest.approx(
        100 * np.corrcoef([5, 1, 2], [1, 0, 1])[0, 1]
    )


def test_pairs_that_lose_text_are_counted(vocabulary):
    pairs = [("good good good", "bad", 1), ("good good good good", "bad", 2)]
    own = task(max_length=5).with_rows(train=pairs)
    assert own.encode(own.read("train"), vocabulary).truncated == 1


def test_contrastive_pairs_need_no_label_or_one_that_is_high(vocabulary):
    own = task(loss="contrastive")
    without = own.with_rows(train=[pair[:2] for pair in PAIRS], dev=PAIRS)
    assert [row.label for row in without.read("train")] == [None] * 3
    rows = without.read("train")
    features = own.encode(rows, vocabulary)
    assert features.targets == {} and own.warnings(rows, features) == []
    high = task(loss="contrastive", positive_from=2.0).with_rows(train=PAIRS)
    assert [row.label for row in high.read("train")] == [5, 2]
    with pytest.raises(UserError, match=r"^dev, row 0: no column 'label'"):
        own.with_rows(train=PAIRS, dev=[PAIRS[0][:2]]).read("dev")
    with pytest.raises(UserError, match="all training pairs have one label"):
        task().with_rows(train=PAIRS[:1]).read("train")


def test_what_cannot_be_is_refused(settings, model_config, tmp_path):
    config = settings("sentence_vectors", data=dict(loss="contrastive"), accumulation=2)
    with pytest.raises(UserError, match=r"accumulation=2, expected at most 1 for"):
        run_one(finetune_config(config), tmp_path, [].append)
    with pytest.raises(UserError, match=r"\[CLS\] has seen nothing; set .*=mean"):
        make_model(model_config(causal=True), "cls", 1, FeatureConfig())
    with pytest.raises(UserError, match=r"leave features out"):
        make_model(model_config(), "mean", 1, FeatureConfig(bilstm=True))


@pytest.mark.parametrize(
    "data",
    [
        dict(pooling="cls", loss="contrastive", positive_from=4.0),
        pytest.param({}, marks=pytest.mark.long),
    ],
)
def test_a_run_learns_and_encode_gives_its_vectors(
    data, settings, one_device, tmp_path
):
    config = finetune_config(settings("sentence_vectors", data=data, epochs=8))
    with one_device():
        results = run_one(config, tmp_path, [].append)
    assert results["main_metric"] == "pearson"
    assert results["scores"]["dev"]["pearson"] > 85
    pooling = data.get("pooling", "mean")
    checkpoint = load(tmp_path)
    assert (checkpoint.head, set(checkpoint.params)) == (pooling, {"bert"})
    model = bert_jax.load(tmp_path)
    texts = ["sea good ship", "a good ship", "sea bad ship"]
    vectors = model.encode(texts, normalize=True)
    same = model.encode(texts, normalize=True, pooling=pooling)
    np.testing.assert_array_equal(vectors, same)
    near, far = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert near > far + 0.2
    answers = Predictor(tmp_path)([tuple(texts[:2]), tuple(texts[::2])])
    np.testing.assert_allclose([a["value"] for a in answers], [near, far], atol=1e-6)
    assert model.evaluate([(*texts[:2], 1), (*texts[::2], 0)])[
        "spearman"
    ] == pytest.approx(100)
    # sentence-transformers reads the same pooling from the folder's modules.
    text = (tmp_path / "best" / "1_Pooling" / "config.json").read_text()
    assert (
        f'"pooling_mode_{"cls_token" if pooling == "cls" else "mean_tokens"}": true'
        in text
    )


def test_a_run_keeps_the_modules_of_its_checkpoint(settings, one_device, tmp_path):
    given = settings("sentence_vectors", epochs=1)
    encoder = load(given["init_from"])
    modules = {
        "pooling": "cls",
        "activations": [],
        "normalize": True,
        "max_length": 16,
        "prompts": {"query": "query: "},
    }
    params = {"bert": encoder.params["bert"]}
    extra = {"modules": modules}
    checkpoint = dataclasses.replace(encoder, head="cls", params=params, extra=extra)
    save_huggingface(tmp_path / "given", checkpoint)
    config = finetune_config(given | {"init_from": str(tmp_path / "given")})
    with one_device():
        run_one(config, tmp_path / "run", [].append)
    found = load(tmp_path / "run")
    assert (found.head, found.extra["data"]["pooling"]) == ("cls", "cls")
    own = {"max_length": config.data.max_length}
    assert modules | own == {n: found.extra["modules"][n] for n in modules}
    model, texts = bert_jax.load(tmp_path / "run"), ["sea good ship", "sea bad ship"]
    vectors = model.encode(texts)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    task = bert_jax.tasks.sentence_vectors()
    rows = [(*texts, 0), (texts[0], texts[0], 1)]
    assert model.evaluate(rows, task=task)["spearman"] == pytest.approx(100)


def test_a_pooling_that_is_named_is_kept():
    named, unnamed = task(pooling="mean"), task()
    kept = named.fitted(512, "cls")
    assert (kept.head, kept.config.max_length) == ("mean", 128)
    fitted = unnamed.fitted(64, "cls")
    assert (fitted.head, fitted.config.pooling) == ("cls", "cls")
    assert (fitted.config.max_length, unnamed.config.max_length) == (64, 128)
