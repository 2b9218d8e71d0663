"""The objectives of fine-tuning: one for each head (paper, section 4; figure 4)."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.objectives.objective import Batch, Params
from bert_jax.parallel.mesh import traced_on
from bert_jax.tasks.task import IGNORED

ENCODER = "^bert/(embeddings|encoder)/"  # what the setting ``freeze`` freezes
CONTRAST = 20.0  # the factor of cosines, of which a softmax is taken
PADDED_SCORE = -1e30  # of what cannot be chosen: padding, an absent choice


@dataclasses.dataclass(frozen=True)
class Head:
    """The mean loss of what a head predicts; ``losses`` says of what.

    model: a module of model/heads.py. frozen: see Objective. reads_tokens: whether the head
      reads every token and not [CLS] alone.
    """

    model: nn.Module
    frozen: str = ""
    sum_names = ("loss", "weight")
    rules = ()
    reads_tokens = False

    def init(self, key: jax.Array) -> Params:
        ids_BL = jnp.zeros((1, 8), jnp.int32)
        variables = self.model.init(key, ids_BL, ids_BL, ids_BL + 1, deterministic=True)
        return variables["params"]

    def logits(self, params: Params, batch: Batch, key: jax.Array | None) -> jax.Array:
        """float32, as ``losses`` takes them; dropout where there is a ``key``."""
        return forward(self.model, params, batch, key).astype(jnp.float32)

    def losses(self, logits: jax.Array, batch: Batch) -> jax.Array:
        """Of each thing that is predicted, in the shape of ``loss_weights``."""
        raise NotImplementedError

    def loss_weights(self, batch: Batch) -> jax.Array:
        """1 for what is learned from: by default each sequence; 0 for padding."""
        return batch["weights"]

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"loss": jnp.maximum(jnp.sum(self.loss_weights(batch)), 1.0)}

    def sums(
        self, params: Params, batch: Batch, key: jax.Array | None
    ) -> dict[str, jax.Array]:
        weights = self.loss_weights(batch)
        losses = self.losses(self.logits(params, batch, key), batch)
        return {
            "loss": jnp.sum(jnp.where(weights > 0, losses * weights, 0.0)),
            "weight": jnp.sum(weights),
        }

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        return {"loss": sums["loss"] / max(sums["weight"], 1.0)}

    def summary(self, metrics: dict[str, float]) -> str:
        del metrics
        return ""

    def flops(self, batch: Batch) -> float:
        """Of the encoder, and of a BiLSTM; another head is a thousandth of it."""
        rows, length = batch["input_ids"].shape
        bilstm = getattr(self.model, "feature_config", None)
        on_top = 6 * rows * length * bilstm.products(self.model.width) if bilstm else 0
        return on_top + self.model.config.step_flops(
            length,
            0,
            rows,
            batch["starts"].shape[1],
            # The last layer is computed where the head reads it.
            scan_layers=self.model.compute.scan_layers
            or self.reads_tokens
            or on_top > 0
            or self.model.config.pooling == "mean",
        )


class Classification(Head):
    """Cross-entropy over classes; squared error where the labels are floats (STS-B).

    Where there is a float for each output, several labels at once: the mean of the binary
    cross-entropies -y log s(x) - (1 - y) log(1 - s(x)) of all outputs x, s the sigmoid.
    """

    def losses(self, logits_BC: jax.Array, batch: Batch) -> jax.Array:
        label = batch["label"]
        if not jnp.issubdtype(label.dtype, jnp.floating):
            return _cross_entropy(logits_BC, label)
        if label.ndim == logits_BC.ndim:
            return jnp.mean(jax.nn.softplus(logits_BC) - label * logits_BC, axis=-1)
        return jnp.square(logits_BC[..., 0] - label)


class Tagging(Head):
    """Cross-entropy over the tags of every token that has a label."""

    reads_tokens = True

    def losses(self, logits_BLC: jax.Array, batch: Batch) -> jax.Array:
        return _cross_entropy(logits_BLC, jnp.maximum(batch["labels"], 0))

    def loss_weights(self, batch: Batch) -> jax.Array:
        return (batch["labels"] != IGNORED).astype(jnp.float32)


class FrozenTagging(Tagging):
    """Trains the BiLSTM alone, on what its frozen encoder gave: "hidden"."""

    def init(self, key: jax.Array) -> Params:
        features_BLF = jnp.zeros((1, 2, self.model.width))
        mask_BL = jnp.ones((1, 2), jnp.int32)
        variables = self.model.init(
            key, features_BLF, mask_BL, deterministic=True, method="tag"
        )
        return variables["params"]

    def flops(self, batch: Batch) -> float:
        """Of the BiLSTM; the encoder's work is done."""
        tokens = batch["input_ids"].size
        return 6 * tokens * self.model.feature_config.products(self.model.width)


class MultipleChoice(Head):
    """Softmax over the choices of a row (paper, section 4.4)."""

    def losses(self, scores_BC: jax.Array, batch: Batch) -> jax.Array:
        if "choice_mask" in batch:  # a choice that a row does not have is never right
            scores_BC = jnp.where(batch["choice_mask"] > 0, scores_BC, PADDED_SCORE)
        return _cross_entropy(scores_BC, batch["label"])


class Span(Head):
    """Mean of the losses of start and end over a sequence's tokens (run_squad.py)."""

    reads_tokens = True

    def losses(self, logits_BL2: jax.Array, batch: Batch) -> jax.Array:
        if "starts" in batch:  # rows that pack several sequences: (B, S)
            starts_BS = batch["starts"]
            numbers_S = jnp.arange(1, starts_BS.shape[1] + 1)
            own_BSL = batch["segment_ids"][:, None, :] == numbers_S[None, :, None]
            logits = jnp.where(own_BSL[..., None], logits_BL2[:, None], PADDED_SCORE)
        else:
            starts_BS = 0
            real_BL = batch["attention_mask"] > 0
            logits = jnp.where(real_BL[:, :, None], logits_BL2, PADDED_SCORE)
        return 0.5 * (
            _cross_entropy(logits[..., 0], batch["start"] + starts_BS)
            + _cross_entropy(logits[..., 1], batch["end"] + starts_BS)
        )


class Vectors(Head):
    """Vectors u and v, of length 1, of the two texts of a pair (Reimers et al., 2019).

    With a label from 0 to 1 the squared error of their cosine (sentence-transformers'
    CosineSimilarityLoss). Without, v of the own pair is to be told from those of all pairs
    of the batch: cross-entropy over 20 times the cosines (its MultipleNegativesRankingLoss;
    Henderson et al., 2017). That loss is one of a whole batch, which cannot be split.
    """

    reads_tokens = True

    def losses(self, vectors_U2W: jax.Array, batch: Batch) -> jax.Array:
        u_UW, v_UW = vectors_U2W[:, 0], vectors_U2W[:, 1]
        if "label" in batch:
            return jnp.square(jnp.sum(u_UW * v_UW, axis=-1) - batch["label"])
        cosines_UU = jnp.einsum("UW,VW->UV", u_UW, v_UW, precision="highest")
        is_pair_U = batch["weights"][None] > 0
        scores_UU = jnp.where(is_pair_U, CONTRAST * cosines_UU, PADDED_SCORE)
        return _cross_entropy(scores_UU, jnp.arange(len(scores_UU)))


# By the head of a task; see tasks/task.py.
HEADS = {
    "sequence": Classification,
    "token": Tagging,
    "choice": MultipleChoice,
    "span": Span,
    "mean": Vectors,
    "cls": Vectors,
}


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """-log softmax(logits)[label] along the last dimension."""
    log_p = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(log_p, labels[..., None], axis=-1)[..., 0]


def model_inputs(batch: Batch) -> tuple[list[jax.Array], dict[str, jax.Array]]:
    """What a model takes of a batch: the arrays of its tokens, and of packed rows."""
    tokens = [batch[n] for n in ("input_ids", "token_type_ids", "attention_mask")]
    if "starts" not in batch:
        return tokens, {}
    return tokens, {
        "segment_ids_BL": batch["segment_ids"],
        "starts_BS": batch["starts"],
    }


def forward(model: nn.Module, params: Any, batch: Batch, key: jax.Array | None):
    """Logits of a batch; dropout where there is a ``key``.

    Packed rows (see data/batching.py) have "starts", and give a result for each slot,
    (B, S, ...), or, with "slots" (U, C), the scores of U units' choices, or the vectors of
    U pairs, (U, 2, W).
    """
    settings = {
        "deterministic": key is None,
        "rngs": None if key is None else {"dropout": key},
    }
    if "hidden" in batch:  # what the frozen encoder of a BertWithBiLstm gave
        mask_BL = batch["attention_mask"]
        return model.apply(
            {"params": params}, batch["hidden"], mask_BL, method="tag", **settings
        )
    tokens_BL, packed = model_inputs(batch)
    logits = model.apply({"params": params}, *tokens_BL, **packed, **settings)
    if "slots" not in batch:
        return logits
    outputs = logits.reshape(-1, logits.shape[-1])[batch["slots"]]
    return outputs[..., 0] if outputs.shape[-1] == 1 else outputs


def eval_logits(model: nn.Module, params: Any, batch: Batch) -> jax.Array:
    """float32 logits of a batch, without dropout."""
    return forward(model, params, batch, None).astype(jnp.float32)


def jit_forward(mesh: Mesh, model: nn.Module) -> Callable:
    """:func:`eval_logits` of (params, batch), whole on every device."""
    return jit_whole(mesh, functools.partial(eval_logits, model))


def jit_whole(mesh: Mesh, function: Callable) -> Callable:
    """Compiles a function whose result is whole on every device."""
    return jax.jit(
        traced_on(mesh, function), out_shardings=NamedSharding(mesh, PartitionSpec())
    )
