import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from bert_jax.objectives.heads import HEADS as OBJECTIVES
from bert_jax.tasks.task import IGNORED

HEADS = ("sequence", "regression", "choice", "token", "span")


def loss_sum(head, logits, batch):
    """The weighted sum of losses of the model's logits."""
    objective = OBJECTIVES["sequence" if head == "regression" else head](None)
    weights = objective.loss_weights(batch)
    losses = objective.losses(logits.astype(jnp.float32), batch)
    return jnp.sum(jnp.where(weights > 0, losses * weights, 0.0))


def loss_weight(head, batch):
    return OBJECTIVES[head](None).weights(batch)["loss"]


def test_class_losses_equal_a_computation_by_hand():
    """Rows of weight 0 are padding of the batch."""
    logits = np.array([[1, 2, 4], [0, 0, 0], [5, 0, 0]], np.float32)
    batch = {"label": np.array([2, 1, 0]), "weights": np.float32([1, 1, 0])}
    expected = np.log(np.exp(logits[0]).sum()) - 4 + np.log(3)
    assert float(loss_sum("sequence", logits, batch)) == pytest.approx(expected)
    assert float(loss_weight("sequence", batch)) == 2


# The losses of torch 2.13's CrossEntropyLoss(weight, label_smoothing) for these logits.
@pytest.mark.parametrize(
    ("weights", "smoothing", "torch"),
    [
        ((), 0.0, 0.34336892),
        ((), 0.1, 0.48781335),
        ((0.5, 2.0, 1.0), 0.0, 0.51186901),
        ((0.5, 2.0, 1.0), 0.1, 0.64978087),
        ((0.0, 0.02, 0.01), 0.1, None),  # weights with a sum below 1
    ],
)
@pytest.mark.parametrize("head", ["sequence", "token"])
def test_class_weights_and_label_smoothing_equal_torch(head, weights, smoothing, torch):
    logits = np.float32([[[1, 2, 4], [0, 0.5, 0], [3, 0, -1], [9, 9, 0]]])
    labels, used = np.array([[2, 1, 0, 0]]), np.float32([[1, 1, 1, 0]])
    batch = {"label": labels, "weights": used}
    batch |= {"labels": np.where(used > 0, labels, IGNORED)}
    objective = OBJECTIVES[head](None, "", weights, smoothing)
    losses = objective.losses(logits, batch) * used
    mean = float(jnp.sum(losses) / objective.weights(batch)["loss"])
    w, nll = (
        np.array(weights or (1, 1, 1)),
        -log_softmax(np.float64(logits[0]), axis=-1),
    )
    expected, total = 0.0, 0.0
    for i, label in enumerate(labels[0, :3]):
        expected += (1 - smoothing) * w[label] * nll[i, label] + smoothing * np.mean(
            w * nll[i]
        )
        total += w[label]
    assert mean == pytest.approx(expected / total, rel=1e-6)
    assert torch is None or mean == pytest.approx(torch, rel=1e-6)


def test_regression_losses_equal_a_computation_by_hand():
    """Squared error, as for STS-B in run_glue.py."""
    logits = np.array([[1.5], [0], [9]], np.float32)
    batch = {"label": np.float32([1, 3, 0]), "weights": np.float32([1, 1, 0])}
    assert float(loss_sum("sequence", logits, batch)) == pytest.approx(0.25 + 9)
    assert float(loss_weight("sequence", batch)) == 2


def test_choice_losses_equal_a_computation_by_hand():
    """Padding choices have no probability."""
    logits = np.array([[1, 2, 9], [1, 2, 3]], np.float32)
    batch = {
        "label": np.array([0, 1]),
        "weights": np.float32([1, 1]),
        "choice_mask": np.float32([[1, 1, 0], [1, 1, 1]]),
    }
    expected = -log_softmax([1, 2])[0] - log_softmax([1, 2, 3])[1]
    assert float(loss_sum("choice", logits, batch)) == pytest.approx(expected)
    del batch["choice_mask"]
    unmasked = -log_softmax([1, 2, 9])[0] - log_softmax([1, 2, 3])[1]
    assert float(loss_sum("choice", logits, batch)) == pytest.approx(unmasked)


def test_token_losses_equal_a_computation_by_hand():
    """Every labelled token has the same weight in every row."""
    logits = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    batch = {
        "labels": np.array([[IGNORED, 3, 0], [IGNORED, IGNORED, 2]]),
        "weights": np.ones(2, np.float32),
    }
    log_p = log_softmax(logits.astype(np.float64), axis=-1)
    expected = -(log_p[0, 1, 3] + log_p[0, 2, 0] + log_p[1, 2, 2])
    assert float(loss_sum("token", logits, batch)) == pytest.approx(expected, rel=1e-6)
    assert float(loss_weight("token", batch)) == 3


def test_span_losses_equal_a_computation_by_hand():
    """Mean of the losses of start and end, over real tokens."""
    logits = np.random.default_rng(0).normal(size=(2, 4, 2)).astype(np.float32)
    batch = {
        "start": np.array([[1], [0]]),
        "end": np.array([[2], [1]]),
        "weights": np.ones((2, 1), np.float32),
        "starts": np.zeros((2, 1), np.int32),
        "segment_ids": np.array([[1, 1, 1, 1], [1, 1, 0, 0]]),
    }
    expected = 0
    for row, length in enumerate((4, 2)):
        log_p = log_softmax(logits[row, :length].astype(np.float64), axis=0)
        start, end = batch["start"][row, 0], batch["end"][row, 0]
        expected -= (log_p[start, 0] + log_p[end, 1]) / 2
    assert float(loss_sum("span", logits, batch)) == pytest.approx(expected, rel=1e-6)
    assert float(loss_weight("span", batch)) == 2


@pytest.mark.parametrize("head", HEADS)
def test_masked_outputs_have_no_gradient(head, make_arrays):
    """Padding rows, padding tokens, tokens without a label, and padding choices."""
    arrays = make_arrays(head)
    arrays["weights"][-2:] = 0
    if head == "token":
        arrays["labels"][-2:] = IGNORED
    if head == "choice":
        arrays["choice_mask"][-2:] = 0
    arrays.get("segment_ids", arrays["attention_mask"])[-2:] = 0
    outputs = {"sequence": 3, "regression": 1, "token": 3, "span": 2}
    shape = (8, 3) if head == "choice" else (8, 1, outputs[head])
    if head in ("token", "span"):
        shape = (8, 16, outputs[head])
    logits = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    grads = jax.jit(jax.grad(lambda x: loss_sum(head, x, arrays)))(logits)
    counts = np.broadcast_to(
        {
            "token": lambda: (arrays["labels"] != IGNORED)[..., None],
            "span": lambda: (arrays["attention_mask"] > 0)[..., None],
            "choice": lambda: arrays["choice_mask"] > 0,
        }.get(head, lambda: arrays["weights"][..., None] > 0)(),
        shape,
    )
    assert np.all(grads[~counts] == 0)
    assert np.all(grads[counts] != 0)
