"""The loss of each head as a weighted sum and its weight."""

import jax
import jax.numpy as jnp

from bert_jax.tasks.task import IGNORED

PADDED_SCORE = -1e30  # of what cannot be chosen: padding, an absent choice


def loss_sums(
    head: str, logits: jax.Array, batch: dict[str, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """(sum of losses, their weight), float32; the mean is their quotient.

    head "sequence", "choice", "span": the weights are those of the rows; the span's loss
    is the mean of start and end (run_squad.py). head "token": every labelled piece
    weighs 1. A sequence without class ids but with floats is regression: squared error.
    """
    logits = logits.astype(jnp.float32)
    weights_B = batch["weights"]
    if head == "token":
        labels_BL = batch["labels"]
        counted_BL = (labels_BL != IGNORED).astype(jnp.float32)
        losses_BL = cross_entropy(logits, jnp.maximum(labels_BL, 0))
        return jnp.sum(losses_BL * counted_BL), jnp.sum(counted_BL)
    if head == "span":
        logits_BL2 = mask_padding(logits, batch["attention_mask"])
        losses_B = 0.5 * (
            cross_entropy(logits_BL2[:, :, 0], batch["start"])
            + cross_entropy(logits_BL2[:, :, 1], batch["end"])
        )
    elif head == "choice":
        losses_B = cross_entropy(choice_scores(logits, batch), batch["label"])
    elif jnp.issubdtype(batch["label"].dtype, jnp.floating):
        losses_B = jnp.square(logits[:, 0] - batch["label"])
    else:
        losses_B = cross_entropy(logits, batch["label"])
    return jnp.sum(losses_B * weights_B), jnp.sum(weights_B)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """-log softmax(logits)[label] along the last dimension."""
    return -jnp.take_along_axis(
        jax.nn.log_softmax(logits), labels[..., None], axis=-1
    )[..., 0]


def mask_padding(logits_BL2: jax.Array, attention_mask_BL: jax.Array) -> jax.Array:
    """Padding can neither start nor end an answer, whatever the batch's length."""
    return jnp.where(attention_mask_BL[:, :, None] > 0, logits_BL2, PADDED_SCORE)


def choice_scores(logits_R1: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    """(B, choices) from a score a sequence, a row's choices side by side."""
    scores_BC = logits_R1[:, 0].reshape(batch["weights"].shape[0], -1)
    if "choice_mask" not in batch:
        return scores_BC
    return jnp.where(batch["choice_mask"] > 0, scores_BC, PADDED_SCORE)
