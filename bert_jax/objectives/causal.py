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
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.objectives.objective import (
    Batch,
    Params,
    check_model,
    cross_entropy_sums,
    label_counts,
    mean_metrics,
    rngs,
    sum_names,
    unmasked_ids,
    with_baseline,
)
from bert_jax.parallel.sharding import Rules


@dataclasses.dataclass(frozen=True)
class Causal:
    """Mean loss of all tokens except the first one of each sequence.

    A two-way LSTM also predicts each token from the tokens after it (see two_way.py).
    """

    model: BertForPreTraining
    sum_names: ClassVar[tuple[str, ...]] = sum_names("lm")
    rules: ClassVar[Rules] = ()

    def init(self, key: jax.Array) -> Params:
        return MlmNsp(self.model).init(key)

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"lm_loss": jnp.maximum(sum(map(jnp.sum, self._weights(batch))), 1.0)}

    def sums(
        self, params: Params, batch: Batch, key: jax.Array | None
    ) -> dict[str, jax.Array]:
        ids_BL = unmasked_ids(batch)
        directions = self.model.apply(
            {"params": params},
            Tokens.of_batch(batch | {"input_ids": ids_BL}),
            jnp.broadcast_to(jnp.arange(ids_BL.shape[1]), ids_BL.shape),
            deterministic=key is None,
            rngs=rngs(key),
            method="lm_logits",
        )
        parts = [
            cross_entropy_sums("lm", logits_BLW, ids_BL, weights_BL)
            for logits_BLW, weights_BL in zip(
                directions, self._weights(batch), strict=True
            )
        ]
        return {name: sum(part[name] for part in parts) for name in self.sum_names}

    def _weights(self, batch: Batch) -> list[jax.Array]:
        """float32 (B, L) for each direction: 1 for the tokens that it predicts."""
        ids_BL = Tokens.of_batch(batch).segment_ids
        same_BM = (ids_BL[:, 1:] == ids_BL[:, :-1]) & (ids_BL[:, 1:] > 0)
        forward = jnp.pad(same_BM, ((0, 0), (1, 0)))  # from the token before
        backward = jnp.pad(same_BM, ((0, 0), (0, 1)))
        directions = self.model.config.kind.directions
        return [x.astype(jnp.float32) for x in (forward, backward)[:directions]]

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """perplexity: e to the power of the mean loss."""
        metrics = mean_metrics("lm", sums)
        loss = metrics.pop("lm_loss")
        perplexity = float(np.exp(min(loss, 700.0)))  # finite also for a diverged run
        return {"loss": loss, **metrics, "perplexity": perplexity}

    def summary(self, metrics: dict[str, float]) -> str:
        accuracy = with_baseline("lm_accuracy", metrics)
        return f"perplexity {metrics['perplexity']:,.1f}  accuracy {accuracy}"

    def flops(self, batch: Batch) -> float:
        rows, length = batch["input_ids"].shape
        config, scan = self.model.config, self.model.compute.scan_layers
        predictions = config.kind.directions * length
        return config.step_flops(length, predictions, rows, 0, scan_layers=scan)

    def eval_sums(self, params: Params, batch: Batch) -> dict[str, jax.Array]:
        """The sums without dropout, and how often each token is predicted.

        lm_counts: int32 (V,).
        """
        V, ids_BL = self.model.config.vocab_size, unmasked_ids(batch)
        counts_V = sum(label_counts(ids_BL, x, V) for x in self._weights(batch))
        return self.sums(params, batch, None) | {"lm_counts": counts_V}


def pretraining(
    model: BertConfig, compute: ComputeConfig, examples: ExampleConfig
) -> Causal:
    """The objective of a run with these configs."""
    check_model(__name__, model, "the left side", pairs=examples.next_sentence)
    return Causal(BertForPreTraining(model, compute))
