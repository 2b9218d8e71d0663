"""The loss of each head, as a sum and the weight to divide it by."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.parallel.mesh import traced_on
from bert_jax.tasks.task import IGNORED

Batch = dict[str, jax.Array]

PADDED_SCORE = -1e30  # of what cannot be chosen: padding, an absent choice


def forward(model: nn.Module, params: Any, batch: Batch, key: jax.Array | None):
    """Logits of a batch; dropout where there is a ``key``.

    Rows with several choices, (B, C, L), give scores (B, C). Packed rows (see
    data/batching.py) have "starts" too, and give a result for each slot, (B, S, ...), or,
    with "slots" (U, C), the scores of U units' choices.
    """
    settings = {
        "deterministic": key is None,
        "rngs": None if key is None else {"dropout": key},
    }
    if "hidden" in batch:  # what the frozen encoder of a FeatureTagger gave
        mask_BL = batch["attention_mask"]
        return model.apply(
            {"params": params}, batch["hidden"], mask_BL, method="tag", **settings
        )
    inputs = [batch[n] for n in ("input_ids", "token_type_ids", "attention_mask")]
    choices = inputs[0].shape[1:-1]
    if choices:
        inputs = [x.reshape(-1, x.shape[-1]) for x in inputs]
    if "starts" in batch:
        settings["segment_ids_BL"] = batch["segment_ids"]
        settings["starts_BS"] = batch["starts"]
    logits = model.apply({"params": params}, *inputs, **settings)
    if choices:
        return logits.reshape(-1, *choices)
    return logits.ravel()[batch["slots"]] if "slots" in batch else logits


def loss_weight(head: str, batch: dict[str, jax.Array]) -> jax.Array:
    """What the sum of losses is divided by: labelled tokens, or rows (float32)."""
    if head == "token":
        return jnp.sum((batch["labels"] != IGNORED).astype(jnp.float32))
    return jnp.sum(batch["weights"])


def loss_sum(head: str, logits: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    """The sum of losses in float32, logits as the model gives them.

    head "token": over all labelled tokens. "span": mean of start and end
    (run_squad.py). "choice": softmax over a row's choices (paper, section 4.4).
    "sequence": cross-entropy, or squared error where the labels are floats (STS-B).
    Of packed rows everything but tokens has a dimension for slots, (B, S, ...).
    """
    logits = logits.astype(jnp.float32)
    if head == "token":
        labels_BL = batch["labels"]
        losses_BL = cross_entropy(logits, jnp.maximum(labels_BL, 0))
        return jnp.sum(jnp.where(labels_BL != IGNORED, losses_BL, 0.0))
    if head == "span":
        losses_B = span_losses(logits, batch)
    elif head == "choice":
        losses_B = cross_entropy(mask_choices(logits, batch), batch["label"])
    elif jnp.issubdtype(batch["label"].dtype, jnp.floating):
        losses_B = jnp.square(logits[..., 0] - batch["label"])
    else:
        losses_B = cross_entropy(logits, batch["label"])
    return jnp.sum(losses_B * batch["weights"])


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """-log softmax(logits)[label] along the last dimension."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)[
        ..., 0
    ]


def span_losses(logits_BL2: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    """Mean of the losses of start and end: of each row, or of each slot (B, S)."""
    starts_BS = batch.get("starts")
    if starts_BS is None:
        logits = mask_padding(logits_BL2, batch["attention_mask"])
        offsets = 0
    else:
        numbers_S = jnp.arange(1, starts_BS.shape[1] + 1)
        own_BSL = batch["segment_ids"][:, None, :] == numbers_S[None, :, None]
        logits = jnp.where(own_BSL[..., None], logits_BL2[:, None], PADDED_SCORE)
        offsets = starts_BS
    return 0.5 * (
        cross_entropy(logits[..., 0], batch["start"] + offsets)
        + cross_entropy(logits[..., 1], batch["end"] + offsets)
    )


def mask_padding(logits_BL2: jax.Array, attention_mask_BL: jax.Array) -> jax.Array:
    """Padding can neither start nor end an answer, whatever the batch's length."""
    return jnp.where(attention_mask_BL[:, :, None] > 0, logits_BL2, PADDED_SCORE)


def mask_choices(scores_BC: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    """A choice that a row does not have is never the right one."""
    if "choice_mask" not in batch:
        return scores_BC
    return jnp.where(batch["choice_mask"] > 0, scores_BC, PADDED_SCORE)


def jit_forward(mesh: Mesh, model: nn.Module) -> Callable:
    """(params, batch) to float32 logits without dropout, whole on every device."""

    def logits(params: Any, batch: Batch) -> jax.Array:
        return forward(model, params, batch, None).astype(jnp.float32)

    return jax.jit(
        traced_on(mesh, logits), out_shardings=NamedSharding(mesh, PartitionSpec())
    )
