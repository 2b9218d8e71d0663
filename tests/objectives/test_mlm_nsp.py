import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.causal import Causal
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.objectives.objective import (
    cross_entropy_sums,
    eval_metrics,
    eval_summary,
    few_rows,
)


@jax.jit
def pretraining_sums(mlm_logits, nsp_logits, batch):
    labels = batch["nsp_labels"]
    return cross_entropy_sums(
        "mlm", mlm_logits, batch["mlm_ids"], batch["mlm_weights"]
    ) | cross_entropy_sums("nsp", nsp_logits, labels, jnp.ones(labels.shape))


@pytest.fixture
def case():
    """Logits and a batch of 6 rows, 5 predictions, some of weight 0, 11 tokens."""
    rng = np.random.default_rng(0)
    used = np.array([5, 1, 3, 2, 4, 0])
    batch = {
        "mlm_ids": rng.integers(0, 11, (6, 5), np.int32),
        "mlm_weights": np.float32(np.arange(5) < used[:, None]),
        "nsp_labels": np.array([0, 1, 1, 0, 1, 1], np.int32),
    }
    mlm_logits = rng.normal(size=(6, 5, 11)).astype(np.float32) * 3
    nsp_logits = rng.normal(size=(6, 2)).astype(np.float32) * 3
    return mlm_logits, nsp_logits, batch


def by_hand(mlm_logits, nsp_logits, batch):
    """The sums in float64, one prediction at a time."""

    def loss(logits, label):
        logits = np.float64(logits)
        return -np.log(np.exp(logits[label]) / np.sum(np.exp(logits)))

    sums = dict.fromkeys(("mlm_loss", "mlm_weight", "mlm_correct"), 0.0)
    for b, m in np.argwhere(batch["mlm_weights"] > 0):
        label = batch["mlm_ids"][b, m]
        sums["mlm_loss"] += loss(mlm_logits[b, m], label)
        sums["mlm_weight"] += 1
        sums["mlm_correct"] += np.argmax(mlm_logits[b, m]) == label
    rows = list(zip(nsp_logits, batch["nsp_labels"], strict=True))
    return sums | {
        "nsp_loss": sum(loss(*row) for row in rows),
        "nsp_weight": len(rows),
        "nsp_correct": sum(np.argmax(logits) == label for logits, label in rows),
    }


def test_sums_equal_a_computation_by_hand(case):
    sums = pretraining_sums(*case)
    expected = by_hand(*case)
    assert set(sums) == set(expected)
    assert sums["mlm_weight"] == 15
    for name, value in sums.items():
        assert float(value) == pytest.approx(expected[name], rel=1e-6), name
        assert value.dtype == jnp.float32
        assert value.shape == ()


def test_a_prediction_of_weight_zero_changes_nothing(case):
    mlm_logits, nsp_logits, batch = case

    def loss(mlm_logits):
        sums = pretraining_sums(mlm_logits, nsp_logits, batch)
        return sums["mlm_loss"], sums

    grads, sums = jax.grad(loss, has_aux=True)(mlm_logits)
    unused = batch["mlm_weights"] == 0
    assert np.all(grads[unused] == 0)
    assert np.all(np.any(grads[~unused], axis=-1))
    changed = np.where(unused[:, :, None], 100 * mlm_logits, mlm_logits)
    for name, value in loss(changed)[1].items():
        assert value == sums[name], name


def test_bfloat16_logits_are_summed_in_float32(case):
    """The loss of the rounded logits has float32 precision, not bfloat16's 3 digits."""
    mlm_logits, nsp_logits, batch = case
    rounded = (
        jnp.asarray(mlm_logits, jnp.bfloat16),
        jnp.asarray(nsp_logits, jnp.bfloat16),
    )
    large = pretraining_sums(1e4 * mlm_logits, -1e4 * nsp_logits, batch)
    assert all(np.isfinite(float(value)) for value in large.values())
    expected = by_hand(*(np.float32(x) for x in rounded), batch)
    for name, value in pretraining_sums(*rounded, batch).items():
        assert value.dtype == jnp.float32
        assert float(value) == pytest.approx(expected[name], rel=1e-6), name


def objective(config, **settings):
    return MlmNsp(BertForPreTraining(config), **settings)


def test_metrics_divide_by_their_own_weights(small_model_config):
    sums = {
        "mlm_loss": 30.0,
        "mlm_weight": 10.0,
        "mlm_correct": 4.0,
        "nsp_loss": 2.0,
        "nsp_weight": 4.0,
        "nsp_correct": 3.0,
    }
    assert objective(small_model_config).metrics(sums) == {
        "loss": 3.5,
        "mlm_loss": 3.0,
        "nsp_loss": 0.5,
        "mlm_accuracy": 0.4,
        "nsp_accuracy": 0.75,
    }
    alone = objective(small_model_config, next_sentence=False).metrics(sums)
    assert alone == {"loss": 3.0, "mlm_loss": 3.0, "mlm_accuracy": 0.4}


def test_the_z_loss_is_the_mean_square_of_the_log_normalizers(
    small_model_config, make_batch, random_params
):
    """By hand in float64. It is a part of the loss, and the MLM loss stays the same."""
    model = BertForPreTraining(dataclasses.replace(small_model_config, num_layers=1))
    plain, other = MlmNsp(model), MlmNsp(model, z_loss=0.03)

    @jax.jit
    def compute(params, batch):
        positions, tokens = batch["mlm_positions"], Tokens.of_batch(batch)
        options = {"deterministic": True, "method": "logits"}
        output = model.apply({"params": params}, tokens, positions, **options)
        sums = [each.sums(params, batch, None) for each in (plain, other)]
        return output.mlm_logits_BMW, *sums, other.weights(batch)

    batch = make_batch(5)
    params = random_params(jax.eval_shape(plain.init, jax.random.key(0)))
    params["mlm"]["output_bias"] += 2.0
    logits, before, sums, divisors = jax.device_get(compute(params, batch))
    weights = batch["mlm_weights"]
    squares = np.log(np.sum(np.exp(np.float64(logits)), axis=-1)) ** 2
    expected = 0.03 * np.sum(weights * squares) / np.sum(weights)
    assert expected > 0.3 and weights.min() == 0
    assert {*sums} == {*other.sum_names} == {*before, "mlm_z_loss", "mlm_z_weight"}
    before, metrics = plain.metrics(before), other.metrics(sums)
    loss = before.pop("loss") + expected
    assert metrics.pop("mlm_z_loss") == pytest.approx(expected, rel=1e-6)
    assert metrics.pop("loss") == pytest.approx(loss, rel=1e-6)
    assert metrics == before
    trained = sum(sums[name] / weight for name, weight in divisors.items())
    assert trained == pytest.approx(loss, rel=1e-6)


def test_a_subclass_may_have_another_loss(
    small_model_config, make_batch, random_params
):
    """As in the example of docs/guides/own_objective.md. Evaluation uses the same loss."""

    class OnlyPairs(MlmNsp):
        def part_sums(self, part, *arrays):
            sums = super().part_sums(part, *arrays)
            return sums | {"mlm_loss": jnp.zeros(())} if part == "mlm" else sums

    objective_of_pairs = OnlyPairs(BertForPreTraining(small_model_config))
    shapes = jax.eval_shape(objective_of_pairs.init, jax.random.key(0))
    params, batch = random_params(shapes), make_batch(0)
    expected = jax.jit(objective(small_model_config).eval_sums)(params, batch)
    sums = jax.jit(objective_of_pairs.eval_sums)(params, batch)
    assert expected["mlm_loss"] > 1 and sums["mlm_loss"] == 0
    assert sums["nsp_loss"] == expected["nsp_loss"] > 0


def test_eval_sums_add_over_batches(small_model_config, make_batch, random_params):
    both = objective(small_model_config)
    params = random_params(jax.eval_shape(both.init, jax.random.key(0)))
    evaluate = jax.jit(both.eval_sums)
    halves = [make_batch(5, rows=8), make_batch(6, rows=8)]
    joined = {k: np.concatenate([h[k] for h in halves]) for k in halves[0]}
    combined, parts = evaluate(params, joined), [evaluate(params, h) for h in halves]
    for name, value in combined.items():
        total = sum(np.asarray(part[name]) for part in parts)
        assert total == pytest.approx(np.asarray(value), rel=1e-5), name
    predicted = joined["mlm_ids"][joined["mlm_weights"] > 0]
    assert np.array_equal(combined["mlm_counts"], np.bincount(predicted, minlength=96))
    assert np.array_equal(combined["nsp_counts"], np.bincount(joined["nsp_labels"]))
    metrics = eval_metrics(both, [jax.device_get(part) for part in parts])
    assert metrics["mlm_majority"] == np.bincount(predicted).max() / len(predicted)
    assert metrics["nsp_majority"] == np.bincount(joined["nsp_labels"]).max() / 16
    assert metrics["loss"] == pytest.approx(
        metrics["mlm_loss"] + metrics["nsp_loss"], rel=1e-6
    )


def test_sums_of_many_batches_lose_no_precision():
    """float32 has no number between 2**24 and 2**24 + 2."""
    names = ("mlm_loss", "mlm_weight", "mlm_correct")
    batches = [dict.fromkeys(names, np.float32(x)) for x in (2**24, 1, 1, 1)]
    batches[0] |= {"mlm_correct": np.float32(0)}
    metrics = eval_metrics(MlmNsp(None, next_sentence=False), batches)
    assert metrics["mlm_accuracy"] == 3 / (2**24 + 3)


def test_the_log_shows_accuracies_beside_their_baselines():
    metrics = {"loss": 5.25, "mlm_accuracy": 0.25, "nsp_accuracy": 0.5, "accuracy": 1.0}
    assert eval_summary(metrics | {"mlm_majority": 0.125, "nsp_majority": 0.75}) == (
        "loss 5.2500  mlm accuracy 25.0% (baseline 12.5%)  "
        "nsp accuracy 50.0% (baseline 75.0%)  accuracy 100.0%"
    )


def test_without_next_sentence_no_metric_of_it_is_logged(
    small_model_config, make_batch, random_params
):
    """The loss of an untrained NSP head would stay at ln 2."""
    mlm = objective(small_model_config, next_sentence=False)
    shapes = jax.eval_shape(mlm.init, jax.random.key(0))
    params, batch = random_params(shapes), make_batch(5)
    sums = jax.device_get(jax.jit(mlm.eval_sums)(params, batch))
    metrics = eval_metrics(mlm, [sums])
    assert metrics["loss"] == metrics["mlm_loss"]
    assert not any(name.startswith("nsp") for name in metrics)
    assert "nsp" not in mlm.summary(metrics) + eval_summary(metrics)
    assert set(mlm.weights(batch)) == {"mlm_loss"}


def test_a_new_model_has_the_documented_loss():
    """ln V + 0.77 s² D / 2 for masked tokens, and about ln 2 for the pairs."""
    V, D, s = 600, 64, 0.08
    config = BertConfig(
        vocab_size=V,
        hidden_size=D,
        num_layers=1,
        num_heads=2,
        intermediate_size=D,
        max_positions=64,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        initializer_range=s,
    )
    new = objective(config)
    rng = np.random.default_rng(0)
    shape, every = (32, 64), np.tile(np.arange(0, 64, 2, dtype=np.int32), (32, 1))
    ids = rng.integers(5, V, shape, np.int32)
    ids[:, ::2] = 4  # [MASK]
    batch = {
        "input_ids": ids,
        "token_type_ids": np.zeros(shape, np.int32),
        "attention_mask": np.ones(shape, np.int32),
        "mlm_positions": every,
        "mlm_ids": rng.integers(5, V, every.shape, np.int32),
        "mlm_weights": np.ones(every.shape, np.float32),
        "nsp_labels": rng.integers(0, 2, 32, np.int32),
    }
    params = jax.jit(new.init)(jax.random.key(0))
    metrics = new.metrics(jax.device_get(jax.jit(new.eval_sums)(params, batch)))
    expected = np.log(V) + 0.77 * s**2 * D / 2  # 6.397 + 0.158
    assert metrics["mlm_loss"] == pytest.approx(expected, abs=0.05)
    assert metrics["mlm_accuracy"] < 0.01
    assert metrics["nsp_loss"] == pytest.approx(np.log(2), abs=0.15)


@pytest.mark.long
def test_parts_that_no_loss_reads_are_listed(small_model_config):
    """They have no gradient, and the log of a run does not name them."""
    paired = MlmNsp(BertForPreTraining(small_model_config))
    causal = dataclasses.replace(small_model_config, causal=True)
    params = jax.jit(paired.init)(jax.random.key(0))
    for objective, unused in (
        (paired, ()),
        (dataclasses.replace(paired, next_sentence=False), ("bert/pooler", "nsp")),
        (Causal(BertForPreTraining(causal)), ("bert/pooler", "nsp")),
    ):

        def loss(params, objective=objective):
            sums = objective.sums(params, few_rows(), None)
            return sum(x for name, x in sums.items() if name.endswith("loss"))

        grads = jax.jit(jax.grad(loss))(params)
        parts = {**grads, "bert/pooler": grads["bert"]["pooler"]}
        zero = []
        for name, part in parts.items():
            if not any(np.any(leaf) for leaf in jax.tree.leaves(part)):
                zero.append(name)
        assert objective.unused == unused == tuple(sorted(zero))
