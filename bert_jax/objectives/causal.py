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
from bert_jax.errors import UserError
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.objectives.mlm_nsp import MlmNsp, cross_entropy
from bert_jax.objectives.objective import Batch, Params, totals, unmasked_ids
from bert_jax.parallel.sharding import Rules


@dataclasses.dataclass(frozen=True)
class Causal:
    """Mean loss of each token that follows another one in its sequence."""

    model: BertForPreTraining
    sum_names: ClassVar[tuple[str, ...]] = ("lm_loss", "lm_weight", "lm_correct")
    rules: ClassVar[Rules] = ()

    def init(self, key: jax.Array) -> Params:
        return MlmNsp(self.model).init(key)

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"lm_loss": jnp.maximum(jnp.sum(_follows(batch)), 1.0)}

    def sums(
        self, params: Params, batch: Batch, key: jax.Array | None
    ) -> dict[str, jax.Array]:
        ids_BL = unmasked_ids(batch)
        # The last token of a row predicts nothing.
        places_M = jnp.arange(ids_BL.shape[1] - 1)
        output = self.model.apply(
            {"params": params},
            ids_BL,
            batch["token_type_ids"],
            batch["attention_mask"],
            jnp.broadcast_to(places_M, (len(ids_BL), len(places_M))),
            deterministic=key is None,
            segment_ids_BL=batch.get("segment_ids"),
            starts_BS=batch.get("starts"),
            rngs=None if key is None else {"dropout": key},
        )
        losses, right = cross_entropy(output.mlm_logits_BMW, ids_BL[:, 1:])
        weights = _follows(batch)
        return {
            "lm_loss": jnp.sum(weights * losses),
            "lm_weight": jnp.sum(weights),
            "lm_correct": jnp.sum(weights * right),
        }

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
            length - 1,
            rows,
            0,
            scan_layers=self.model.compute.scan_layers,
        )

    def eval_sums(self, params: Params, batch: Batch) -> dict[str, jax.Array]:
        """The sums without dropout, and how often each token was to be predicted.

        lm_counts: int32 (V,).
        """
        V = self.model.config.vocab_size
        targets = jnp.where(_follows(batch) > 0, unmasked_ids(batch)[:, 1:], V)
        counts_V = jnp.bincount(targets.ravel(), length=V + 1)[:-1]
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
    if not model.causal:
        raise UserError(
            "objective='bert_jax.objectives.causal' needs a left-to-right model; set "
            "--config.model.causal=True"
        )
    if examples.next_sentence:
        raise UserError(
            "objective='bert_jax.objectives.causal' learns no next sentence prediction; "
            "set --config.data.examples.next_sentence=False"
        )
    return Causal(BertForPreTraining(model, compute))


def _follows(batch: Batch) -> jax.Array:
    """float32 (B, L - 1): 1 where the next token is of the same sequence."""
    ids_BL = batch.get("segment_ids", batch["attention_mask"])
    follows_BM = (ids_BL[:, 1:] == ids_BL[:, :-1]) & (ids_BL[:, 1:] > 0)
    return follows_BM.astype(jnp.float32)
