"""The pretraining losses as sums, which add up over microbatches and devices."""

import jax
import jax.numpy as jnp


def pretraining_sums(
    mlm_logits_BMW: jax.Array, nsp_logits_B2: jax.Array, batch: dict[str, jax.Array]
) -> dict[str, jax.Array]:
    """float32 sums of losses, weights and right answers (run_pretraining.py).

    The mean MLM loss is mlm_loss_sum / (mlm_weight + 1e-5), the mean NSP loss
    nsp_loss_sum / nsp_weight, both over the global batch. Packed rows have NSP logits
    (R, S, 2) and "nsp_weights".
    """
    weights_BM = batch["mlm_weights"]
    mlm_losses_BM, mlm_right_BM = _cross_entropy(mlm_logits_BMW, batch["mlm_ids"])
    nsp_losses_B, nsp_right_B = _cross_entropy(nsp_logits_B2, batch["nsp_labels"])
    nsp_weights_B = pair_weights(batch)
    return {
        "mlm_loss_sum": jnp.sum(weights_BM * mlm_losses_BM),
        "mlm_weight": jnp.sum(weights_BM),
        "mlm_correct": jnp.sum(weights_BM * mlm_right_BM),
        "nsp_loss_sum": jnp.sum(nsp_weights_B * nsp_losses_B),
        "nsp_weight": jnp.sum(nsp_weights_B),
        "nsp_correct": jnp.sum(nsp_weights_B * nsp_right_B),
    }


def pair_weights(batch: dict[str, jax.Array]) -> jax.Array:
    """1 for each pair of the batch; 0 for a packed row's slot that is empty."""
    ones = jnp.ones(batch["nsp_labels"].shape, jnp.float32)
    return batch.get("nsp_weights", ones)


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """-log softmax(logits)[label] and whether the label's logit is the largest.

    Both along the last dimension, in float32. Compared with the maximum, for an argmax
    over the vocabulary takes as long as a layer on a CPU.
    """
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    right = chosen >= jnp.max(logits, axis=-1)
    return jax.nn.logsumexp(logits, axis=-1) - chosen, right
