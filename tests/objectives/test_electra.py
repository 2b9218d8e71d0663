"""Replaced token detection: transformers' numbers, and a run that trains a BERT."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from bert_jax.commands.config_file import parse
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.families.bert import BERT
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.interop.load import load
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig
from bert_jax.objectives import electra
from bert_jax.objectives.electra import Electra, ReplacedTokens
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.training.config import train_config
from bert_jax.training.pretrain import pretrain

FILE = Path(__file__).parent.parent / "golden" / "huggingface" / "electra.npz"
# Transformers' names of the parameters that BERT does not have.
OWN = {
    "transform": "discriminator.discriminator_predictions.dense",
    "detector": "discriminator.discriminator_predictions.dense_prediction",
    "generator/project": "generator.electra.embeddings_project",
    "generator/mlm/transform": "generator.generator_predictions.dense",
    "generator/mlm/norm": "generator.generator_predictions.LayerNorm",
    "generator/mlm": "generator.generator_lm_head",
}


@pytest.fixture(scope="module")
def computed():
    return dict(np.load(FILE))


@pytest.fixture(scope="module")
def objective():
    config = BertConfig(
        vocab_size=61,
        hidden_size=24,
        num_layers=2,
        num_heads=4,
        intermediate_size=40,
        max_positions=19,
    )
    return ReplacedTokens(Electra(config))


@pytest.fixture(scope="module")
def params(computed, objective):
    def theirs(path, shape):
        place, leaf = path.rsplit("/", 1)
        if place in OWN:
            name = f"{OWN[place]}.{'bias' if leaf.endswith('bias') else 'weight'}"
        else:
            side = "generator" if place.startswith("generator") else "discriminator"
            bert = path.replace("generator/", "bert/")
            name = BERT.name_of(bert).replace("bert.", f"{side}.electra.", 1)
        array = computed[name]
        if leaf == "kernel":
            array = array.T
        if len(array) < shape[0] and leaf == "embedding":
            array = np.pad(array, ((0, shape[0] - len(array)), (0, 0)))
        return array.reshape(shape)

    shapes = jax.eval_shape(objective.init, jax.random.key(0))
    flat = traverse_util.flatten_dict(shapes, sep="/")
    by_path = {path: theirs(path, leaf.shape) for path, leaf in flat.items()}
    return traverse_util.unflatten_dict(by_path, sep="/")


@pytest.fixture(scope="module")
def batch(computed):
    names = (
        "input_ids",
        "token_type_ids",
        "attention_mask",
        "mlm_positions",
        "mlm_ids",
    )
    arrays = {name: np.int32(computed[name]) for name in names}
    return arrays | {"mlm_weights": np.float32(computed["mlm_weights"])}


def test_logits_and_losses_equal_transformers(
    computed, objective, params, batch, monkeypatch
):
    """The generator's tokens are fixed: tests/golden/huggingface/make_electra.py."""
    sampled = lambda key, logits: computed["drawn"]  # noqa: E731
    monkeypatch.setattr(electra.jax.random, "categorical", sampled)
    apply = jax.jit(lambda params: objective.model.apply(
        {"params": params}, batch, jax.random.key(0), deterministic=True
    ))  # fmt: skip
    output = apply(params)
    used, real = batch["mlm_weights"] > 0, batch["attention_mask"] > 0
    logits = np.asarray(output.mlm_logits_BMW)[used][:, :61]
    np.testing.assert_allclose(logits, computed["mlm_logits"], rtol=0, atol=2e-5)
    actual = np.asarray(output.logits_BL)[real]
    np.testing.assert_allclose(actual, computed["rtd_logits"][real], rtol=0, atol=2e-5)
    assert (
        np.asarray(output.replaced_BL).sum() == 4
    )  # of five; one draw is the original token
    sums = jax.jit(lambda params: objective.sums(params, batch, None))(params)
    metrics = objective.metrics(jax.device_get(sums))
    np.testing.assert_allclose(metrics["mlm_loss"], computed["mlm_loss"], rtol=1e-5)
    np.testing.assert_allclose(metrics["rtd_loss"], computed["rtd_loss"], rtol=1e-5)
    assert metrics["loss"] == pytest.approx(
        metrics["mlm_loss"] + 50 * metrics["rtd_loss"]
    )
    weights = objective.weights(batch)
    total = sum(float(sums[name] / weights[name]) for name in weights)
    assert total == pytest.approx(metrics["loss"], rel=1e-5)


def test_the_two_losses_share_the_embeddings_and_nothing_else(objective, params, batch):
    """Clark et al. (2020), 3.1 and 3.2: the discriminator does not teach the generator."""

    def losses(params):
        sums = objective.sums(params, batch, jax.random.key(1))
        return jnp.stack([sums["rtd_loss"], sums["mlm_loss"]])

    gradients = jax.jit(jax.jacrev(losses))(params)

    def largest(part, loss):
        return max(np.abs(x[loss]).max() for x in jax.tree.leaves(part))

    discriminator, generator = 0, 1
    assert largest(gradients["generator"], discriminator) == 0
    assert largest(gradients["bert"]["encoder"], generator) == 0
    for name in ("word", "position", "segment"):
        for loss in (discriminator, generator):
            assert largest(gradients["bert"]["embeddings"][name], loss) > 0, name


def test_logits_of_zero_are_not_right(objective, params, batch):
    """A detector of zeros does not reach the accuracy of always answering original."""
    zeros = jax.tree.map(np.zeros_like, params["detector"])
    sums = jax.jit(lambda params: objective.sums(params, batch, None))
    constant = sums({**params, "detector": zeros})
    assert constant["rtd_correct"] == 0 < constant["rtd_weight"]
    below = {**zeros, "bias": zeros["bias"] - 0.5}  # always original
    original = sums({**params, "detector": below})
    kept = original["rtd_weight"] - original["replaced"]
    assert 0 < original["rtd_correct"] == kept < original["rtd_weight"]


def test_tokens_follow_the_generators_distribution(objective, params, batch):
    """4,000 draws at five positions; no token beyond the vocabulary."""
    output = jax.jit(jax.vmap(lambda key: objective.model.apply(
        {"params": params}, batch, key, deterministic=True
    )))(jax.random.split(jax.random.key(2), 4000))  # fmt: skip
    probabilities = jax.nn.softmax(output.mlm_logits_BMW[0])
    for row, column in zip(*np.nonzero(batch["mlm_weights"]), strict=True):
        place = batch["mlm_positions"][row, column]
        tokens = np.asarray(output.ids_BL)[:, row, place]
        shares = np.bincount(tokens, minlength=128) / 4000
        error = np.abs(shares - probabilities[row, column]).max()
        assert error < 4 * np.sqrt(0.25 / 4000)
    unmasked = batch["attention_mask"].copy()
    np.put_along_axis(unmasked, batch["mlm_positions"], 0, axis=1)
    assert not np.asarray(output.replaced_BL)[:, unmasked > 0].any()


@pytest.mark.long
def test_a_run_starts_from_a_bert_and_produces_one(
    one_phase_of, small_store, eight_devices, tmp_path, metric_lines
):
    """On eight devices. The checkpoint is loaded as the discriminator."""
    flags = (
        "--objective=bert_jax.objectives.electra",
        "--data.examples.next_sentence=False",
        "--checkpoint_every=1000",
    )
    line = ["--config", str(one_phase_of(0)), *flags]
    config = parse(line, "usage", train_config).config
    bert = BertForPreTraining(config.model)
    params = jax.device_get(jax.jit(MlmNsp(bert).init)(jax.random.key(1)))
    tokenizer = load_tokenizer(small_store[0])
    path = tmp_path / "bert"
    save_huggingface(path, Checkpoint(config.model, params, tokenizer, "pretraining"))
    config = dataclasses.replace(config, init_from=str(path))
    lines = []
    metrics = pretrain(config, tmp_path / "run", lines.append)
    assert "initialised at random: detector, generator, transform" in lines
    assert metrics["rtd_loss"] < np.log(2)
    assert 0 < metrics["replaced"] <= config.eval_mask_rate
    assert metrics["rtd_majority"] == pytest.approx(1 - metrics["replaced"])
    checkpoint = load(tmp_path / "run")
    assert set(checkpoint.params) == {"bert"} and checkpoint.head == "none"
    assert any(name.startswith("generator/") for name in checkpoint.unexpected)
    first = metric_lines(tmp_path / "run")[0]
    assert {"mlm_loss", "rtd_loss", "replaced"} <= set(first)


def test_dropout_and_sampling_have_different_keys():
    """With equal keys the sampled tokens would depend on the dropout masks."""
    keys = {}

    class Recorder:
        def apply(self, variables, batch, sample_key, *, deterministic, rngs):
            keys.update(rngs, sample=sample_key)
            zeros = jax.numpy.zeros((1, 4))
            return electra.Output(zeros[..., None], zeros, zeros > 0, zeros)

    batch = {
        "mlm_ids": np.zeros((1, 4), np.int32),
        "mlm_weights": np.ones((1, 4)),
        "attention_mask": np.ones((1, 4)),
    }
    for seed in range(2):
        ReplacedTokens(Recorder()).sums({}, batch, jax.random.key(seed))
        keys[seed] = keys.pop("sample"), keys.pop("dropout")
    data = {tuple(jax.random.key_data(key).tolist()) for key in sum(keys.values(), ())}
    assert len(data) == 4
