"""Masked LM and next sentence prediction (paper, section 3.1; run_pretraining.py).

Sentence order prediction (ALBERT, Lan et al., 2020, section 3.1) has the same head and
loss. The setting ``examples.sentence_order`` swaps the two texts in half of the pairs.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from bert_jax.data.examples import ExampleConfig
from bert_jax.model import flops
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.objective import (
    Batch,
    Params,
    PretrainingObjective,
    check_model,
    cross_entropy_sums,
    label_counts,
    new_params,
    rngs,
    sum_names,
    z_loss_sums,
)


@dataclasses.dataclass(frozen=True)
class MlmNsp(PretrainingObjective):
    """Mean loss of the masked tokens plus mean loss of the sentence pairs.

    next_sentence: whether the loss includes the sentence pairs. sentence_order: whether
    the pairs are for sentence order prediction. Their metrics are then "sop", not "nsp".
    z_loss: factor of the z-loss of the masked tokens, the part "mlm_z"; 0: no z-loss.
    """

    model: BertForPreTraining
    next_sentence: bool = True
    sentence_order: bool = False
    z_loss: float = 0.0
    adds_rows: ClassVar[bool] = True

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the predictions: "mlm", and "nsp" or "sop"."""
        pairs = "sop" if self.sentence_order else "nsp"
        return ("mlm", pairs) if self.next_sentence else ("mlm",)

    @property
    def sum_names(self) -> tuple[str, ...]:
        names = [name for part in self.parts for name in sum_names(part)]
        if self.z_loss:
            names += sum_names("mlm_z")[:2]
        return tuple(names)

    @property
    def unused(self) -> tuple[str, ...]:
        """The head for pairs, and the pooler below it, if there are no pairs."""
        return () if self.next_sentence else ("bert/pooler", "nsp")

    def init(self, key: jax.Array) -> Params:
        ids_BL = jnp.zeros((1, 8), jnp.int32)
        inputs = ids_BL, ids_BL, ids_BL + 1, ids_BL[:, :2]
        return new_params(self.model, key, *inputs, deterministic=True)

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Number of masked tokens, plus 1e-5 as in the original, and number of pairs."""
        totals = {
            f"{part}_loss": jnp.sum(label_weights)
            for part, (_, label_weights) in self._answers(batch).items()
        }
        totals["mlm_loss"] += 1e-5
        if self.z_loss:
            totals["mlm_z_loss"] = totals["mlm_loss"]
        return totals

    def sums(
        self, params: Params, batch: Batch, key: jax.Array | None
    ) -> dict[str, jax.Array]:
        output = self.model.apply(
            {"params": params},
            Tokens.of_batch(batch),
            batch["mlm_positions"],
            deterministic=key is None,
            rngs=rngs(key),
            method="logits",
        )
        sums = {}
        for part, (labels, weights) in self._answers(batch).items():
            is_mlm = part == "mlm"
            logits = output.mlm_logits_BMW if is_mlm else output.nsp_logits_B2
            sums |= self.part_sums(part, logits, labels, weights)
            if is_mlm and self.z_loss:
                sums |= z_loss_sums(part, logits, weights, self.z_loss)
        return sums

    def part_sums(
        self, part: str, logits: jax.Array, labels: jax.Array, weights: jax.Array
    ) -> dict[str, jax.Array]:
        """The sums of a part; see :attr:`parts`. A subclass with another loss overrides it.

        logits: float32, (B, M, W) for "mlm" and (B, S, 2) for pairs. labels, weights: the
        same shape without the last dimension.
        """
        return cross_entropy_sums(part, logits, labels, weights)

    def _answers(self, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        """Labels and weights of each part: (B, M) for tokens, (B, S) for pairs."""
        labels_BS = batch["nsp_labels"].reshape(len(batch["input_ids"]), -1)
        ones_BS = jnp.ones(labels_BS.shape, jnp.float32)
        pairs = labels_BS, batch.get("nsp_weights", ones_BS)
        tokens = batch["mlm_ids"], batch["mlm_weights"]
        return {part: tokens if part == "mlm" else pairs for part in self.parts}

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        return super().metrics({name: sums[name] for name in self.sum_names})

    def flops(self, batch: Batch) -> float:
        rows, length = batch["input_ids"].shape
        return flops.step(
            self.model.config,
            self.model.compute,
            rows,
            length,
            predictions=batch["mlm_ids"].shape[1],
            sequences=batch["nsp_labels"].size // rows,
            whole=self.model.config.pooling == "mean",
        )

    def eval_sums(self, params: Params, batch: Batch) -> dict[str, jax.Array]:
        """The sums without dropout, and the number of occurrences of each label.

        mlm_counts: int32 (V,). nsp_counts or sop_counts: int32 (2,).
        """
        sums = self.sums(params, batch, None)
        for part, answers in self._answers(batch).items():
            size = self.model.config.vocab_size if part == "mlm" else 2
            sums[f"{part}_counts"] = label_counts(*answers, size)
        return sums


def pretraining(
    model: BertConfig,
    compute: ComputeConfig,
    examples: ExampleConfig,
    z_loss: float = 0.0,
) -> MlmNsp:
    """The objective of a run with these configs. z_loss: see MlmNsp."""
    check_model(__name__, model)
    pairs = examples.next_sentence, examples.sentence_order
    return MlmNsp(BertForPreTraining(model, compute), *pairs, z_loss)
