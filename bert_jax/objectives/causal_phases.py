"""Pretraining with left-to-right phases: the objective changes within a run.

Causal first, then masked, is the recipe of AntLM (Yu et al., 2024) and of "Should We Still
Pretrain Encoders with Masked Language Modeling?" (Gisserot-Boukhlef et al., 2025). Both
objectives have the same parameters, so the optimizer state continues from phase to phase.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from bert_jax.data.examples import ExampleConfig
from bert_jax.errors import UserError
from bert_jax.model.bert import BertForPreTraining
from bert_jax.objectives.causal import Causal
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.objectives.objective import (
    Batch,
    Params,
    PretrainingObjective,
    few_rows,
)


@dataclasses.dataclass(frozen=True)
class CausalPhases(PretrainingObjective):
    """The loss of masked LM, or of language modelling for a batch without masks.

    ends_causal: whether the last phase is left to right.
    """

    masked: MlmNsp
    causal: Causal
    ends_causal: bool
    adds_rows: ClassVar[bool] = True

    @property
    def model(self) -> BertForPreTraining:
        """The model of the last phase."""
        if self.ends_causal:
            return self.causal.model
        return self.masked.model

    @property
    def sum_names(self) -> tuple[str, ...]:
        return (*self.masked.sum_names, *self.causal.sum_names)

    @property
    def unused(self) -> tuple[str, ...]:
        return self.masked.unused

    def of_batch(self, batch: Batch) -> PretrainingObjective:
        """The objective of the phase to which a batch belongs."""
        if "mlm_ids" in batch:
            return self.masked
        return self.causal

    def init(self, key: jax.Array) -> Params:
        return self.masked.init(key)

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return self.of_batch(batch).weights(batch)

    def sums(
        self, params: Params, batch: Batch, key: jax.Array | None
    ) -> dict[str, jax.Array]:
        """The sums of the batch's objective. The sums of the other objective are 0."""
        zeros = {name: jnp.zeros((), jnp.float32) for name in self.sum_names}
        return zeros | self.of_batch(batch).sums(params, batch, key)

    def eval_sums(self, params: Params, batch: Batch) -> dict[str, jax.Array]:
        return self.of_batch(batch).eval_sums(params, batch)

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """The metrics of the objectives that had batches.

        If both had batches, "loss" is the loss of masked LM.
        """
        metrics = {}
        if sums.get("lm_weight"):
            metrics |= self.causal.metrics(sums)
        if sums.get("mlm_weight"):
            metrics |= self.masked.metrics(sums)
        return metrics

    def summary(self, metrics: dict[str, float]) -> str:
        texts = []
        if "perplexity" in metrics:
            texts.append(self.causal.summary(metrics))
        if "mlm_loss" in metrics:
            texts.append(self.masked.summary(metrics))
        return "  ".join(texts)

    def flops(self, batch: Batch) -> float:
        return self.of_batch(batch).flops(batch)


def with_causal_phases(
    objective: PretrainingObjective, examples: ExampleConfig, *, ends_causal: bool
) -> CausalPhases:
    """The objective of a run with left-to-right phases.

    objective: the objective of the other phases. Raises UserError unless it is masked LM
    without sentence pairs, for a model that attends to both sides, or if the attention of
    its ``compute`` has no causal form.
    """
    if type(objective) is not MlmNsp:
        needed = "objective='bert_jax.objectives.mlm_nsp'"
        raise UserError(f"phases with causal=True need {needed} and model.causal=False")
    if examples.next_sentence:
        needed = "data.examples.next_sentence=False"
        raise UserError(f"phases with causal=True do not train NSP; set {needed}")
    model = objective.model
    config = dataclasses.replace(model.config, causal=True)
    causal = Causal(BertForPreTraining(config, model.compute))
    # Raises UserError now, not after the first phase, if there is no such attention.
    key = jax.random.key(0)
    params = jax.eval_shape(causal.init, key)
    jax.eval_shape(causal.sums, params, few_rows(), key)
    return CausalPhases(objective, causal, ends_causal)
