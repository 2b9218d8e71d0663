import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.objectives import mlm_nsp as losses

pretraining_sums = jax.jit(losses.pretraining_sums)


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

    sums = dict.fromkeys(("mlm_loss_sum", "mlm_weight", "mlm_correct"), 0.0)
    for b, m in np.argwhere(batch["mlm_weights"] > 0):
        label = batch["mlm_ids"][b, m]
        sums["mlm_loss_sum"] += loss(mlm_logits[b, m], label)
        sums["mlm_weight"] += 1
        sums["mlm_correct"] += np.argmax(mlm_logits[b, m]) == label
    rows = list(zip(nsp_logits, batch["nsp_labels"], strict=True))
    return sums | {
        "nsp_loss_sum": sum(loss(*row) for row in rows),
        "nsp_weight": len(rows),
        "nsp_correct": sum(np.argmax(logits) == label for logits, label in rows),
    }


def test_sums_equal_those_by_hand(case):
    sums = pretraining_sums(*case)
    expected = by_hand(*case)
    assert set(sums) == set(expected)
    assert sums["mlm_weight"] == 15
    for name, value in sums.items():
        assert float(value) == pytest.approx(expected[name], rel=1e-6), name
        assert value.dtype == jnp.float32
        assert value.shape == ()


def test_sums_add_over_parts_of_a_batch(case):
    mlm_logits, nsp_logits, batch = case

    def part(rows):
        rest = {name: array[rows] for name, array in batch.items()}
        return pretraining_sums(mlm_logits[rows], nsp_logits[rows], rest)

    total = jax.tree.map(jnp.add, part(slice(0, 2)), part(slice(2, 6)))
    for name, value in pretraining_sums(*case).items():
        assert float(total[name]) == pytest.approx(float(value), rel=1e-6), name


def test_a_prediction_of_weight_zero_counts_nowhere(case):
    mlm_logits, nsp_logits, batch = case

    def loss(mlm_logits):
        sums = pretraining_sums(mlm_logits, nsp_logits, batch)
        return sums["mlm_loss_sum"], sums

    grads, sums = jax.grad(loss, has_aux=True)(mlm_logits)
    unused = batch["mlm_weights"] == 0
    assert np.all(grads[unused] == 0)
    assert np.all(np.any(grads[~unused], axis=-1))
    changed = np.where(unused[:, :, None], 100 * mlm_logits, mlm_logits)
    for name, value in loss(changed)[1].items():
        assert value == sums[name], name


def test_without_predictions_the_losses_are_zero_and_finite(case):
    mlm_logits, nsp_logits, batch = case
    batch = batch | {"mlm_weights": np.zeros((6, 5), np.float32)}
    sums = pretraining_sums(mlm_logits, nsp_logits, batch)
    assert [float(sums[f"mlm_{x}"]) for x in ("loss_sum", "weight", "correct")] == [
        0
    ] * 3


def test_equal_logits_cost_the_logarithm_of_the_choices(case):
    _, _, batch = case
    sums = pretraining_sums(jnp.zeros((6, 5, 11)), jnp.zeros((6, 2)), batch)
    assert float(sums["mlm_loss_sum"]) == pytest.approx(15 * np.log(11), rel=1e-6)
    assert float(sums["nsp_loss_sum"]) == pytest.approx(6 * np.log(2), rel=1e-6)


def test_large_logits_do_not_overflow(case):
    mlm_logits, nsp_logits, batch = case
    sums = pretraining_sums(1e4 * mlm_logits, -1e4 * nsp_logits, batch)
    assert all(np.isfinite(float(value)) for value in sums.values())


def test_bfloat16_logits_are_summed_in_float32(case):
    """The loss of rounded logits to float32 precision, not to bfloat16's 3 digits."""
    mlm_logits, nsp_logits, batch = case
    rounded = (
        jnp.asarray(mlm_logits, jnp.bfloat16),
        jnp.asarray(nsp_logits, jnp.bfloat16),
    )
    expected = by_hand(*(np.float32(x) for x in rounded), batch)
    for name, value in pretraining_sums(*rounded, batch).items():
        assert value.dtype == jnp.float32
        assert float(value) == pytest.approx(expected[name], rel=1e-6), name
