"""The objectives of fine-tuning: one for each head (paper, section 4; figure 4)."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.model import flops
from bert_jax.model.bilstm import BertWithBiLstm
from bert_jax.model.heads import normalized
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.objective import Batch, Objective, Params, new_params, rngs
from bert_jax.parallel.programs import jit_whole
from bert_jax.tasks.task import IGNORED

ENCODER = "^bert/(embeddings|encoder)/"  # parameters that ``freeze`` freezes
CONTRAST = 20.0  # factor of the cosines before their softmax
PADDED_SCORE = -1e30  # score of padding and of missing choices


@dataclasses.dataclass(frozen=True)
class Head(Objective):
    """The mean loss of a head's predictions. ``losses`` defines the loss.

    data/batching.py makes the batches.
    model: a module of model/heads.py. frozen: see Objective. reads_tokens: whether the head
      reads every token. Otherwise it reads only [CLS].
    class_weights, label_smoothing: see :meth:`class_losses`. The sum of the losses is
      divided by the sum of the labels' weights, as in torch. Without class_weights every
      class has the weight 1.
    """

    model: nn.Module
    frozen: str = ""
    class_weights: tuple[float, ...] = ()
    label_smoothing: float = 0.0
    sum_names = ("loss", "weight")
    reads_tokens = False

    def init(self, key: jax.Array) -> Params:
        return new_params(self.model, key, _few_tokens(), deterministic=True)

    def losses(self, logits: jax.Array, batch: Batch) -> jax.Array:
        """The loss of each prediction, from float32 logits; see ``loss_weights``."""
        raise NotImplementedError

    def loss_weights(self, batch: Batch) -> jax.Array:
        """1 for predictions, 0 for padding. Default: the sequences, (B, S)."""
        return batch["weights"]

    def labels(self, batch: Batch) -> jax.Array:
        """The class of each prediction. The class of padding does not matter."""
        return batch["label"]

    def by_class(self, weights: jax.Array, batch: Batch) -> jax.Array:
        """The ``loss_weights``, each times the weight of its class."""
        if not self.class_weights:
            return weights
        return weights * jnp.array(self.class_weights)[self.labels(batch)]

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        least = 1e-30 if self.class_weights else 1.0
        weights = self.by_class(self.loss_weights(batch), batch)
        return {"loss": jnp.maximum(jnp.sum(weights), least)}

    def class_losses(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        """Cross-entropy as in torch's CrossEntropyLoss(weight, label_smoothing).

        (1 - s) w[y] nll[y] + s mean_c(w[c] nll[c]) of the label y, where nll is
        -log softmax(logits), w the weights of the classes and s the label smoothing.
        """
        if not self.class_weights and not self.label_smoothing:
            return _cross_entropy(logits, labels)
        losses = -jax.nn.log_softmax(logits)
        if self.class_weights:
            losses *= jnp.broadcast_to(jnp.array(self.class_weights), losses.shape)
        label_losses = jnp.take_along_axis(losses, labels[..., None], axis=-1)[..., 0]
        share = self.label_smoothing
        return (1 - share) * label_losses + share * jnp.mean(losses, axis=-1)

    def sums(
        self, params: Params, batch: Batch, key: jax.Array | None
    ) -> dict[str, jax.Array]:
        weights = self.loss_weights(batch)
        losses = self.losses(forward(self.model, params, batch, key), batch)
        return {
            "loss": jnp.sum(jnp.where(weights > 0, losses * weights, 0.0)),
            "weight": jnp.sum(self.by_class(weights, batch)),
        }

    def flops(self, batch: Batch) -> float:
        """Operations of the encoder and of a BiLSTM. Other heads need 1% of that."""
        rows, length = batch["input_ids"].shape
        config, compute = self.model.config, self.model.compute
        sequences = batch["starts"].shape[1]
        whole = self.reads_tokens or config.pooling == "mean"
        operations = 0
        if isinstance(self.model, BertWithBiLstm):
            whole = True
            operations = self._bilstm_flops(rows * length)
        return operations + flops.step(
            config, compute, rows, length, sequences=sequences, whole=whole
        )

    def _bilstm_flops(self, tokens: int) -> int:
        return flops.bilstm(self.model.feature_config, self.model.width, tokens)


class Classification(Head):
    """Cross-entropy over classes, or squared error if the labels are floats (STS-B).

    With a float label for each output (multi-label): the mean of the binary cross-entropies
    -y log s(x) - (1 - y) log(1 - s(x)) of all outputs x, where s is the sigmoid.
    """

    adds_rows = True

    def losses(self, logits_BSC: jax.Array, batch: Batch) -> jax.Array:
        label = batch["label"]
        if not jnp.issubdtype(label.dtype, jnp.floating):
            return self.class_losses(logits_BSC, label)
        if label.ndim == logits_BSC.ndim:
            return jnp.mean(jax.nn.softplus(logits_BSC) - label * logits_BSC, axis=-1)
        return jnp.square(logits_BSC[..., 0] - label)


class Tagging(Head):
    """Cross-entropy over the tags of all tokens with a label."""

    reads_tokens = True
    adds_rows = True

    def losses(self, logits_BLC: jax.Array, batch: Batch) -> jax.Array:
        return self.class_losses(logits_BLC, self.labels(batch))

    def labels(self, batch: Batch) -> jax.Array:
        return jnp.maximum(batch["labels"], 0)

    def loss_weights(self, batch: Batch) -> jax.Array:
        return (batch["labels"] != IGNORED).astype(jnp.float32)


class FrozenTagging(Tagging):
    """Trains only the BiLSTM, on the features of a frozen encoder (array "hidden")."""

    adds_rows = True

    def init(self, key: jax.Array) -> Params:
        tokens = _few_tokens()
        features_BLF = jnp.zeros((*tokens.input_ids.shape, self.model.width))
        init = functools.partial(self.model.init, key, method="tag")
        return init(features_BLF, tokens, deterministic=True)["params"]

    def flops(self, batch: Batch) -> float:
        """Operations of the BiLSTM, because the encoder has run before."""
        return self._bilstm_flops(batch["input_ids"].size)


class MultipleChoice(Head):
    """Softmax over the choices of an example (paper, section 4.4)."""

    def losses(self, scores_UC: jax.Array, batch: Batch) -> jax.Array:
        if "choice_mask" in batch:  # a missing choice is never right
            scores_UC = jnp.where(batch["choice_mask"] > 0, scores_UC, PADDED_SCORE)
        return _cross_entropy(scores_UC, batch["label"])


class Span(Head):
    """Mean of the losses of start and end over a sequence's tokens (run_squad.py)."""

    reads_tokens = True
    adds_rows = True

    def losses(self, logits_BL2: jax.Array, batch: Batch) -> jax.Array:
        numbers_S = jnp.arange(1, batch["starts"].shape[1] + 1)
        inside_BSL = batch["segment_ids"][:, None, :] == numbers_S[None, :, None]
        logits = jnp.where(inside_BSL[..., None], logits_BL2[:, None], PADDED_SCORE)
        losses = [
            _cross_entropy(logits[..., i], batch[end] + batch["starts"])
            for i, end in enumerate(("start", "end"))
        ]
        return 0.5 * sum(losses)


@dataclasses.dataclass(frozen=True)
class Vectors(Head):
    """A loss of the text embeddings of each row (Reimers et al., 2019).

    The embeddings have length 1: u and v for the pair, n for the negatives of the row. The
    names in brackets are losses of sentence-transformers.
    loss:
      "cosine": squared error of the cosine of u and v. The label is from 0 to 1.
        (CosineSimilarityLoss)
      "contrastive": cross-entropy over 20 times the cosines of u with the v and n of all
        rows of the batch. The right class is the v of the row. The batch cannot be split
        into microbatches. (MultipleNegativesRankingLoss; Henderson et al., 2017)
      "triplet": mean of max(0, cos(u, n) - cos(u, v) + margin) over the negatives.
        (TripletLoss with the distance 1 - cosine; Schroff et al., 2015)
    matryoshka: widths. The loss is the sum of the losses of embeddings that are cut to each
      width and scaled to length 1. Empty: the loss of whole embeddings. (MatryoshkaLoss;
      Kusupati et al., 2022)
    """

    reads_tokens = True
    loss: str = "cosine"
    margin: float = 0.5
    matryoshka: tuple[int, ...] = ()

    def losses(self, vectors_UCW: jax.Array, batch: Batch) -> jax.Array:
        if not self.matryoshka:
            return self._losses(vectors_UCW, batch)
        W = vectors_UCW.shape[-1]
        if max(self.matryoshka) > W:
            raise UserError(f"data.matryoshka={self.matryoshka}, expected at most {W}")
        parts = [normalized(vectors_UCW[..., :width]) for width in self.matryoshka]
        return sum(self._losses(part, batch) for part in parts)

    def _losses(self, vectors_UCW: jax.Array, batch: Batch) -> jax.Array:
        u_UW, others_UNW = vectors_UCW[:, 0], vectors_UCW[:, 1:]
        if self.loss == "cosine":
            cosine_U = jnp.sum(u_UW * others_UNW[:, 0], axis=-1)
            return jnp.square(cosine_U - batch["label"])
        if self.loss == "contrastive":
            others_VW = others_UNW.swapaxes(0, 1).reshape(-1, u_UW.shape[-1])
            cosines_UV = jnp.einsum("UW,VW->UV", u_UW, others_VW, precision="highest")
            is_text_V = jnp.tile(batch["weights"], others_UNW.shape[1])[None] > 0
            scores_UV = jnp.where(is_text_V, CONTRAST * cosines_UV, PADDED_SCORE)
            return _cross_entropy(scores_UV, jnp.arange(len(scores_UV)))
        if others_UNW.shape[1] == 1:
            raise UserError("data.loss=triplet needs negatives; add a column negative")
        cosines_UN = jnp.sum(u_UW[:, None] * others_UNW, axis=-1)
        above_UN = cosines_UN[:, 1:] - cosines_UN[:, :1] + self.margin
        return jnp.mean(jax.nn.relu(above_UN), axis=-1)


# Objectives by the head of a task; see tasks/task.py.
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


def _few_tokens() -> Tokens:
    """A row of eight tokens, to initialise parameters."""
    ids_BL = jnp.zeros((1, 8), jnp.int32)
    return Tokens.of_mask(ids_BL, ids_BL, ids_BL + 1)


def forward(model: nn.Module, params: Any, batch: Batch, key: jax.Array | None = None):
    """float32 logits of a batch, with dropout if there is a ``key``.

    With "slots" (U, C) the result is the scores of the choices of U examples, (U, C), or
    the embeddings of the C texts of U rows, (U, C, W).
    """
    inputs, method = [Tokens.of_batch(batch)], "__call__"
    if "hidden" in batch:  # the features of the frozen encoder of a BertWithBiLstm
        inputs, method = [batch["hidden"], *inputs], "tag"
    logits = model.apply(
        {"params": params},
        *inputs,
        deterministic=key is None,
        rngs=rngs(key),
        method=method,
    )
    if "slots" not in batch:
        return logits
    outputs = logits.reshape(-1, logits.shape[-1])[batch["slots"]]
    return outputs[..., 0] if outputs.shape[-1] == 1 else outputs


@functools.lru_cache(maxsize=8)
def jit_forward(mesh: Mesh, model: nn.Module) -> Callable:
    """:func:`forward` of (params, batch) without dropout, whole on every device.

    Calls with equal arguments share their programs.
    """
    return jit_whole(mesh, functools.partial(forward, model))
