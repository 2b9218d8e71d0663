"""What the engine asks of an objective; a new one is a file beside this one."""

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.model.config import BertConfig
from bert_jax.parallel.sharding import Rules

Batch = dict[str, jax.Array]
Params = dict[str, Any]


class Objective(Protocol):
    """What a batch teaches, as pure functions. The engine (training/) does the rest.

    The loss of a step is the sum of sums[name] / weights[name] over the names that
    ``weights`` gives. Sums add up over microbatches, and weights are those of the global
    batch, so the loss does not depend on how a batch is split over devices, hosts or
    microbatches. An objective is hashable: runs that have the same one share what they
    compile.

    sum_names: the keys of what ``sums`` returns. rules: how parameters are sharded that no
      rule of parallel/sharding.py names. frozen: a pattern of the paths of parameters that
      stay as they are; an objective may have none.
    """

    sum_names: tuple[str, ...]
    rules: Rules = ()
    frozen: str = ""

    def init(self, key: jax.Array) -> Params:
        """float32 parameters; their shapes depend on the model's config alone."""
        ...

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """What the sum of each loss is divided by: float32 scalars of a whole batch."""
        ...

    def sums(
        self, params: Params, batch: Batch, key: jax.Array | None
    ) -> dict[str, jax.Array]:
        """float32 scalars: losses, and what the metrics need. Dropout where ``key``."""
        ...

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """What is reported, from sums over any number of batches."""
        ...

    def summary(self, metrics: dict[str, float]) -> str:
        """The part of a line of the log that tells of these metrics."""
        ...

    def flops(self, batch: Batch) -> float:
        """Operations of a step on a batch, from the shapes of its global arrays.

        Those of the model's forward and backward pass, each multiply-add as two.
        """
        ...


class PretrainingObjective(Objective, Protocol):
    """An objective that a config of pretraining can name.

    Its module has a function ``pretraining(model, compute, examples)``, of a BertConfig, a
    ComputeConfig and an ExampleConfig, that makes it. Batches are those of
    data/pipeline.py.
    """

    def eval_sums(self, params: Params, batch: Batch) -> dict[str, jax.Array]:
        """What ``eval_metrics`` needs of a batch, without dropout."""
        ...

    def eval_metrics(
        self, batches: Sequence[dict[str, np.ndarray]]
    ) -> dict[str, float]:
        """Metrics from the eval_sums of several batches, and what guessing reaches."""
        ...

    def eval_summary(self, metrics: dict[str, float]) -> str:
        """A line of the log about eval_metrics."""
        ...


def check_model(
    objective: str,
    model: BertConfig,
    reads: str = "both sides",
    pairs: bool | None = None,
) -> None:
    """Raises UserError where an objective cannot train a model, or learn from pairs.

    reads: see BertConfig. pairs: those of the run, if the objective learns from none.
    """
    if model.reads != reads:
        causal, encoder = reads == "the left side", "transformer"
        if reads == "each side alone":
            encoder = "lstm"
        raise UserError(
            f"objective={objective!r} needs a model that reads {reads}, and this one reads "
            f"{model.reads}; set model.causal={causal} and "
            f"model.encoder={encoder}"
        )
    if pairs:
        raise UserError(
            f"objective={objective!r} learns no next sentence prediction; set "
            "data.examples.next_sentence=False"
        )


def totals(batches: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The eval_sums of several batches added up, in float64."""
    return {
        name: np.sum([sums[name] for sums in batches], axis=0, dtype=np.float64)
        for name in batches[0]
    }


def unmasked_ids(batch: Batch) -> jax.Array:
    """The tokens of a batch of data/pipeline.py before they were masked: int32 (B, L)."""
    ids_BL, places_BM = batch["input_ids"], batch["mlm_positions"]
    # An unused prediction is at the row's [CLS], which is never masked.
    masked_BM = jnp.take_along_axis(ids_BL, places_BM, axis=1)
    ids_BM = jnp.where(batch["mlm_weights"] > 0, batch["mlm_ids"], masked_BM)
    return jnp.put_along_axis(ids_BL, places_BM, ids_BM, axis=1, inplace=False)
