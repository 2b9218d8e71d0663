"""Masked LM and next sentence prediction (paper, section 3.1; run_pretraining.py).

Or sentence order prediction (ALBERT, Lan et al., 2020, section 3.1): the same head and
loss, on pairs of which half have their two texts swapped (``examples.sentence_order``).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data.examples import ExampleConfig
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.objectives.objective import Batch, Params, check_model, totals
from bert_jax.parallel.sharding import Rules


@dataclasses.dataclass(frozen=True)
class MlmNsp:
    """Mean loss of the masked tokens plus mean loss of the sentence pairs.

    next_sentence: whether pairs are learned from. Without, the loss is that of the masked
    tokens, and nothing is reported of an NSP head that nobody trains. sentence_order: what
    the pairs teach, and what their metrics are called.
    """

    model: BertForPreTraining
    next_sentence: bool = True
    sentence_order: bool = False
    rules: ClassVar[Rules] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """What is learned from: "mlm", and "nsp" or "sop"."""
        return ("mlm", self._pairs) if self.next_sentence else ("mlm",)

    @property
    def _pairs(self) -> str:
        return "sop" if self.sentence_order else "nsp"

    @property
    def sum_names(self) -> tuple[str, ...]:
        kinds = ("loss", "weight", "correct")
        return tuple(f"{part}_{kind}" for part in self.parts for kind in kinds)

    def init(self, key: jax.Array) -> Params:
        tokens_BL = jnp.zeros((1, 8), jnp.int32)
        positions_BM = jnp.zeros((1, 2), jnp.int32)
        variables = self.model.init(
            key, tokens_BL, tokens_BL, tokens_BL + 1, positions_BM, deterministic=True
        )
        return variables["params"]

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """The original adds 1e-5 to the number of masked tokens."""
        weights = {"mlm_loss": jnp.sum(batch["mlm_weights"]) + 1e-5}
        if self.next_sentence:
            weights[f"{self._pairs}_loss"] = jnp.sum(_pair_weights(batch))
        return weights

    def sums(
        self, params: Params, batch: Batch, key: jax.Array | None
    ) -> dict[str, jax.Array]:
        output = self.model.apply(
            {"params": params},
            batch["input_ids"],
            batch["token_type_ids"],
            batch["attention_mask"],
            batch["mlm_positions"],
            deterministic=key is None,
            segment_ids_BL=batch.get("segment_ids"),
            starts_BS=batch.get("starts"),
            rngs=None if key is None else {"dropout": key},
        )
        logits = output.mlm_logits_BMW, output.nsp_logits_B2
        sums = pretraining_sums(*logits, batch, self._pairs)
        return {name: sums[name] for name in self.sum_names}

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        metrics = {"loss": 0.0}
        for part in self.parts:
            weight = max(float(sums[f"{part}_weight"]), 1.0)
            metrics[f"{part}_loss"] = float(sums[f"{part}_loss"]) / weight
            metrics[f"{part}_accuracy"] = float(sums[f"{part}_correct"]) / weight
            metrics["loss"] += metrics[f"{part}_loss"]
        return metrics

    def summary(self, metrics: dict[str, float]) -> str:
        return "  ".join(
            f"{part} {metrics[f'{part}_loss']:.4f} ({metrics[f'{part}_accuracy']:.1%})"
            for part in self.parts
        )

    def flops(self, batch: Batch) -> float:
        rows, length = batch["input_ids"].shape
        return self.model.config.step_flops(
            length,
            batch["mlm_ids"].shape[1],
            rows,
            math.prod(batch["nsp_labels"].shape[1:]),
            scan_layers=self.model.compute.scan_layers,
        )

    def eval_sums(self, params: Params, batch: Batch) -> dict[str, jax.Array]:
        """The sums without dropout, and how often each answer was the right one.

        mlm_counts int32 (V,): of the masked tokens; nsp_counts, or sop_counts, int32 (2,):
        of the labels.
        """
        V = self.model.config.vocab_size
        masked = jnp.where(batch["mlm_weights"] > 0, batch["mlm_ids"], V)
        sums = self.sums(params, batch, None)
        sums["mlm_counts"] = jnp.bincount(masked.ravel(), length=V + 1)[:-1]
        if self.next_sentence:
            sums[f"{self._pairs}_counts"] = jnp.bincount(batch["nsp_labels"], length=2)
        return sums

    def eval_metrics(
        self, batches: Sequence[dict[str, np.ndarray]]
    ) -> dict[str, float]:
        """Metrics from the eval_sums of several batches, and what guessing reaches.

        mlm_majority: accuracy of always the most frequent masked token; nsp_majority: of
        always the more frequent label.
        """
        sums = totals(batches)
        metrics = self.metrics(sums)
        for part in self.parts:
            counts = sums[f"{part}_counts"]
            metrics[f"{part}_majority"] = float(counts.max() / counts.sum())
        return metrics

    def eval_summary(self, metrics: dict[str, float]) -> str:
        """A line of the log about eval_metrics."""
        line = (
            f"loss {metrics['loss']:.4f}  mlm accuracy {metrics['mlm_accuracy']:.1%} "
            f"(most frequent token: {metrics['mlm_majority']:.1%})"
        )
        for part in self.parts[1:]:
            line += (
                f"  {part} accuracy {metrics[f'{part}_accuracy']:.1%} "
                f"(more frequent label: {metrics[f'{part}_majority']:.1%})"
            )
        return line


def pretraining(
    model: BertConfig, compute: ComputeConfig, examples: ExampleConfig
) -> MlmNsp:
    """The objective of a run that is configured so."""
    check_model(__name__, model)
    pairs = examples.next_sentence, examples.sentence_order
    return MlmNsp(BertForPreTraining(model, compute), *pairs)


def pretraining_sums(
    mlm_logits_BMW: jax.Array,
    nsp_logits_B2: jax.Array,
    batch: Batch,
    pairs: str = "nsp",
) -> dict[str, jax.Array]:
    """float32 sums of losses, weights and right answers (run_pretraining.py).

    Packed rows have NSP logits (R, S, 2) and "nsp_weights". pairs: the name of their sums.
    """
    sums = {}
    for part, logits, labels, weights in (
        ("mlm", mlm_logits_BMW, batch["mlm_ids"], batch["mlm_weights"]),
        (pairs, nsp_logits_B2, batch["nsp_labels"], _pair_weights(batch)),
    ):
        losses, right = cross_entropy(logits, labels)
        sums[f"{part}_loss"] = jnp.sum(weights * losses)
        sums[f"{part}_weight"] = jnp.sum(weights)
        sums[f"{part}_correct"] = jnp.sum(weights * right)
    return sums


def _pair_weights(batch: Batch) -> jax.Array:
    """1 for each pair of the batch; 0 where a packed row has room for one more."""
    ones = jnp.ones(batch["nsp_labels"].shape, jnp.float32)
    return batch.get("nsp_weights", ones)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """-log softmax(logits)[label] and whether the label's logit is the largest.

    Both along the last dimension, in float32. The label's logit is compared with the
    maximum because an argmax over the vocabulary takes a CPU as long as a layer.
    """
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    right = chosen >= jnp.max(logits, axis=-1)
    return jax.nn.logsumexp(logits, axis=-1) - chosen, right
