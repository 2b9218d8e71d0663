"""One update and one evaluation batch, as pure functions of (state, batch)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from bert_jax.objectives.mlm_nsp import pair_weights, pretraining_sums
from bert_jax.training.state import TrainState

Batch = dict[str, jax.Array]

LOSS_SUMS = (
    "mlm_loss_sum",
    "mlm_weight",
    "mlm_correct",
    "nsp_loss_sum",
    "nsp_weight",
    "nsp_correct",
)
METRICS = (*LOSS_SUMS, "loss_sum", "grad_norm_sum", "steps")


def train_step(
    state: TrainState,
    batch: Batch,
    *,
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    next_sentence: bool,
    accumulation: int,
    log_every: int,
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One optimizer update on the global batch (run_pretraining.py, optimization.py).

    The means run over the global batch, whatever its sharding or ``accumulation``, the
    number of microbatches it is cut into. Returns the new state and the metric sums
    since the last report; the state's own sums start anew every ``log_every`` steps.
    """
    mlm_weight = jnp.sum(batch["mlm_weights"]) + 1e-5
    pairs = jnp.sum(pair_weights(batch))
    key = jax.random.fold_in(state.key, state.step)

    def loss_fn(params: Any, part: Batch, key: jax.Array):
        sums = _sums(model, params, part, key)
        loss = sums["mlm_loss_sum"] / mlm_weight
        if next_sentence:
            loss += sums["nsp_loss_sum"] / pairs
        return loss, sums

    (loss, sums), grads = summed_gradients(
        loss_fn, state.params, batch, key, accumulation
    )
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    sums = sums | {
        "loss_sum": loss,
        "grad_norm_sum": optax.tree.norm(grads),
        "steps": jnp.ones((), jnp.float32),
    }
    sums = jax.tree.map(jnp.add, state.sums, sums)
    step = state.step + 1
    report = step % log_every == 0
    new_state = TrainState(
        step=step,
        params=optax.apply_updates(state.params, updates),
        opt_state=opt_state,
        key=state.key,
        sums=jax.tree.map(lambda x: jnp.where(report, 0.0, x), sums),
    )
    return new_state, sums


def summed_gradients(
    loss_fn: Callable, params: Any, batch: Batch, key: jax.Array, parts: int
) -> tuple[tuple[jax.Array, Any], Any]:
    """((loss, aux), gradients) of ``loss_fn(params, part, key)``, summed over parts.

    Microbatch i of ``parts`` has the rows i, i + parts, ... and a key of its own; one
    comes after the other.
    """
    grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
    if parts == 1:
        return grad_fn(params, batch, key)

    def add_part(total, inputs):
        part, number = inputs
        result = grad_fn(params, part, jax.random.fold_in(key, number))
        return jax.tree.map(jnp.add, total, result), None

    cut = jax.tree.map(lambda x: _split(x, parts), batch)
    zero = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
        jax.eval_shape(grad_fn, params, jax.tree.map(lambda x: x[0], cut), key),
    )
    return jax.lax.scan(add_part, zero, (cut, jnp.arange(parts)))[0]


def eval_step(params: Any, batch: Batch, *, model: nn.Module) -> dict[str, jax.Array]:
    """The sums of LOSS_SUMS over one batch, without dropout; and what was asked for.

    mlm_counts (V,) int32: how often each token was masked; nsp_counts (2,): the labels.
    """
    vocabulary = model.config.vocab_size
    masked = jnp.where(batch["mlm_weights"] > 0, batch["mlm_ids"], vocabulary)
    counts = {
        "mlm_counts": jnp.bincount(masked.ravel(), length=vocabulary + 1)[:-1],
        "nsp_counts": jnp.bincount(batch["nsp_labels"], length=2),
    }
    return _sums(model, params, batch, None) | counts


def _sums(
    model: nn.Module, params: Any, batch: Batch, dropout_key: jax.Array | None
) -> dict[str, jax.Array]:
    output = model.apply(
        {"params": params},
        batch["input_ids"],
        batch["token_type_ids"],
        batch["attention_mask"],
        batch["mlm_positions"],
        deterministic=dropout_key is None,
        segment_ids_BL=batch.get("segment_ids"),
        starts_BS=batch.get("starts"),
        rngs=None if dropout_key is None else {"dropout": dropout_key},
    )
    return pretraining_sums(output.mlm_logits_BMW, output.nsp_logits_B2, batch)


def _split(x_B: jax.Array, parts: int) -> jax.Array:
    """(B, ...) to (parts, B/parts, ...), every part with rows of every device.

    Part i takes rows i, i + parts, ...: a device's rows lie side by side, so each part
    is as evenly spread as the batch and no row travels.
    """
    return jnp.moveaxis(x_B.reshape(-1, parts, *x_B.shape[1:]), 1, 0)


def means(sums: dict[str, Any]) -> dict[str, float]:
    """Losses and accuracies from sums over any number of batches (host floats)."""
    mlm_weight = max(float(sums["mlm_weight"]), 1.0)
    mlm_loss = float(sums["mlm_loss_sum"]) / mlm_weight
    nsp_weight = max(float(sums["nsp_weight"]), 1.0)
    nsp_loss = float(sums["nsp_loss_sum"]) / nsp_weight
    return {
        "loss": mlm_loss + nsp_loss,
        "mlm_loss": mlm_loss,
        "nsp_loss": nsp_loss,
        "mlm_accuracy": float(sums["mlm_correct"]) / mlm_weight,
        "nsp_accuracy": float(sums["nsp_correct"]) / nsp_weight,
    }
