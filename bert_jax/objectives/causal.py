"""Left-to-right language modelling: the comparison with GPT (paper, 5.1 and C.3).

Each token is predicted from those before it, by a model whose attention sees nothing else
(``model.causal``) through the same head as masked LM. The paper's LTR model is trained
without next sentence prediction, and so is this one.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data.examples import ExampleConfig
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.objectives.mlm_nsp import MlmNsp, cross_entropy
from bert_jax.objectives.objective import (
    Batch,
    Params,
    check_model,
    totals,
    unmasked_ids,
)
from bert_jax.parallel.sharding import Rules


@dataclasses.dataclass(frozen=True)
class Causal:
    """Mean loss of each token that follows another one in its sequence.

    A two-way LSTM also predicts each token from the tokens after it (see two_way.py).
    """

    model: BertForPreTraining
    sum_names: ClassVar[tuple[str, ...]] = ("lm_loss", "lm_weight", "lm_correct")
    rules: ClassVar[Rules] = ()

    @property
    def directions(self) -> int:
        """Number of directions in which each token is predicted."""
        return self.model.config.kind.directions

    def init(self, key: jax.Array) -> Params:
        return MlmNsp(self.model).init(key)

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"lm_loss": jnp.maximum(sum(map(jnp.sum, self._predicted(batch))), 1.0)}

    def sums(
        self, params: Params, batch: Batch, key: jax.Array | None
    ) -> dict[str, jax.Array]:
        ids_BL = unmasked_ids(batch)
        places_BL = jnp.broadcast_to(jnp.arange(ids_BL.shape[1]), ids_BL.shape)
        every = self.model.apply(
            {"params": params},
            ids_BL,
            batch["token_type_ids"],
            batch["attention_mask"],
            positions_BQ=places_BL,
            deterministic=key is None,
            segment_ids_BL=batch.get("segment_ids"),
            starts_BS=batch.get("starts"),
            rngs=None if key is None else {"dropout": key},
            method="lm_logits",
        )
        sums = dict.fromkeys(self.sum_names, jnp.float32(0))
        for logits_BLW, weights_BL in zip(every, self._predicted(batch), strict=True):
            losses_BL, right_BL = cross_entropy(logits_BLW, ids_BL)
            sums["lm_loss"] += jnp.sum(weights_BL * losses_BL)
            sums["lm_weight"] += jnp.sum(weights_BL)
            sums["lm_correct"] += jnp.sum(weights_BL * right_BL)
        return sums

    def _predicted(self, batch: Batch) -> list[jax.Array]:
        """float32 (B, L) of each direction: 1 for the tokens that it predicts."""
        ids_BL = batch.get("segment_ids", batch["attention_mask"])
        same_BM = (ids_BL[:, 1:] == ids_BL[:, :-1]) & (ids_BL[:, 1:] > 0)
        forward = jnp.pad(same_BM, ((0, 0), (1, 0)))  # from the token before
        backward = jnp.pad(same_BM, ((0, 0), (0, 1)))
        return [x.astype(jnp.float32) for x in (forward, backward)[: self.directions]]

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """perplexity: e to the mean loss, of the vocabulary's tokens."""
        weight = max(float(sums["lm_weight"]), 1.0)
        loss = float(sums["lm_loss"]) / weight
        return {
            "loss": loss,
            "lm_accuracy": float(sums["lm_correct"]) / weight,
            "perplexity": float(np.exp(min(loss, 700.0))),  # of a diverged run too
        }

    def summary(self, metrics: dict[str, float]) -> str:
        accuracy, perplexity = metrics["lm_accuracy"], metrics["perplexity"]
        return f"perplexity {perplexity:,.1f}  accuracy {accuracy:.1%}"

    def flops(self, batch: Batch) -> float:
        rows, length = batch["input_ids"].shape
        return self.model.config.step_flops(
            length,
            self.directions * length,
            rows,
            0,
            scan_layers=self.model.compute.scan_layers,
        )

    def eval_sums(self, params: Params, batch: Batch) -> dict[str, jax.Array]:
        """The sums without dropout, and how often each token was to be predicted.

        lm_counts: int32 (V,).
        """
        V, ids_BL = self.model.config.vocab_size, unmasked_ids(batch)
        counts_V = sum(
            jnp.bincount(jnp.where(weights > 0, ids_BL, V).ravel(), length=V + 1)[:-1]
            for weights in self._predicted(batch)
        )
        return self.sums(params, batch, None) | {"lm_counts": counts_V}

    def eval_metrics(
        self, batches: Sequence[dict[str, np.ndarray]]
    ) -> dict[str, float]:
        """Metrics from the eval_sums of several batches.

        lm_majority: accuracy of always the most frequent token.
        """
        sums = totals(batches)
        counts = sums["lm_counts"]
        majority = float(counts.max() / max(counts.sum(), 1))
        return self.metrics(sums) | {"lm_majority": majority}

    def eval_summary(self, metrics: dict[str, float]) -> str:
        """A line of the log about eval_metrics."""
        return (
            f"loss {metrics['loss']:.4f}  {self.summary(metrics)} "
            f"(most frequent token: {metrics['lm_majority']:.1%})"
        )


def pretraining(
    model: BertConfig, compute: ComputeConfig, examples: ExampleConfig
) -> Causal:
    """The objective of a run that is configured so."""
    check_model(__name__, model, "the left side", pairs=examples.next_sentence)
    return Causal(BertForPreTraining(model, compute))
