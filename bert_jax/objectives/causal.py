"""Left-to-right language modelling: the comparison with GPT (paper, 5.1 and C.3).

A model with causal attention (``model.causal``) and the head of masked LM predicts each
token from the tokens before it. Like the paper's LTR model it is trained without next
sentence prediction.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data.examples import ExampleConfig
from bert_jax.model import flops
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.objectives.objective import (
    Batch,
    Params,
    PretrainingObjective,
    check_model,
    cross_entropy_sums,
    label_counts,
    mean_metrics,
    rngs,
    sum_names,
    summed_over_positions,
    unmasked_ids,
    with_baseline,
)


@dataclasses.dataclass(frozen=True)
class Causal(PretrainingObjective):
    """Mean loss of all tokens except the first token of each sequence."""

    model: BertForPreTraining
    sum_names: ClassVar[tuple[str, ...]] = sum_names("lm")
    unused: ClassVar[tuple[str, ...]] = ("bert/pooler", "nsp")
    adds_rows: ClassVar[bool] = True

    def init(self, key: jax.Array) -> Params:
        return MlmNsp(self.model).init(key)

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"lm_loss": jnp.maximum(jnp.sum(self.prediction_weights(batch)), 1.0)}

    def sums(
        self, params: Params, batch: Batch, key: jax.Array | None
    ) -> dict[str, jax.Array]:
        ids_BL = unmasked_ids(batch)
        x_BPD = self.model.apply(
            {"params": params},
            Tokens.of_batch(batch | {"input_ids": ids_BL}),
            jnp.broadcast_to(jnp.arange(ids_BL.shape[1]), ids_BL.shape),
            deterministic=key is None,
            rngs=rngs(key),
            method="lm_vectors",
        )

        def head_sums(x_BPD: jax.Array, targets_BP: jax.Array, weights_BP: jax.Array):
            logits = self.model.apply({"params": params}, x_BPD, method="lm_head")
            return cross_entropy_sums("lm", logits, targets_BP, weights_BP)

        # Logits of all positions would be the largest array of a step.
        weights_BP = self.prediction_weights(batch)
        return summed_over_positions(head_sums, x_BPD, self.targets(batch), weights_BP)

    def prediction_weights(self, batch: Batch) -> jax.Array:
        """float32 (B, L): 1 for each token that is predicted, 0 for all others."""
        ids_BL = Tokens.of_batch(batch).segment_ids
        before_BL = jnp.pad(ids_BL[:, :-1], ((0, 0), (1, 0)))
        follows_BL = (ids_BL == before_BL) & (ids_BL > 0)
        return follows_BL.astype(jnp.float32)

    def targets(self, batch: Batch) -> jax.Array:
        """The token to which each of the ``prediction_weights`` belongs, int32."""
        return unmasked_ids(batch)

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """perplexity: e to the power of the mean loss."""
        metrics = mean_metrics("lm", sums)
        loss = metrics.pop("lm_loss")
        perplexity = float(np.exp(min(loss, 700.0)))  # finite even in a diverged run
        return {"loss": loss, **metrics, "perplexity": perplexity}

    def summary(self, metrics: dict[str, float]) -> str:
        accuracy = with_baseline("lm_accuracy", metrics)
        return f"perplexity {metrics['perplexity']:,.1f}  accuracy {accuracy}"

    def flops(self, batch: Batch) -> float:
        rows, length = batch["input_ids"].shape
        return flops.step(
            self.model.config, self.model.compute, rows, length, predictions=length
        )

    def eval_sums(self, params: Params, batch: Batch) -> dict[str, jax.Array]:
        """The sums without dropout, and how often each token is predicted.

        lm_counts: int32 (V,).
        """
        weights, V = self.prediction_weights(batch), self.model.config.vocab_size
        counts_V = label_counts(self.targets(batch), weights, V)
        return self.sums(params, batch, None) | {"lm_counts": counts_V}


def pretraining(
    model: BertConfig, compute: ComputeConfig, examples: ExampleConfig
) -> Causal:
    """The objective of a run with these configs."""
    check_model(__name__, model, causal=True, pairs=examples.next_sentence)
    return Causal(BertForPreTraining(model, compute))
