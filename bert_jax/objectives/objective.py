"""The interface of an objective, and the sums and metrics that objectives share.

The setting ``objective`` names the module of a new objective, in any package.
"""

import abc
import dataclasses
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.model import flops
from bert_jax.model.config import BertConfig
from bert_jax.model.parameters import init_stacked
from bert_jax.parallel.sharding import Rules

Batch = dict[str, jax.Array]
Params = dict[str, Any]

# Positions of each row whose logits are in memory at a time.
POSITIONS = 128


class Objective(abc.ABC):
    """A loss and its metrics, as pure functions. The engine (training/) does the rest.

    The loss of a step is the sum of sums[name] / weights[name] over the names in
    ``weights``. Sums add up over microbatches, and weights belong to the global batch, so
    the loss does not depend on how a batch is split over devices, hosts or microbatches.
    An objective is a frozen dataclass. Runs with equal objectives of bert_jax share their
    compiled programs; see :func:`cached_by_objective`.

    A subclass defines ``init``, ``weights`` and ``sums``. The default of everything else
    follows from the names of the sums. A loss "X_loss" has the weight "X_weight". If there
    is a sum "X_correct", the metric "X_accuracy" is reported. An objective with a single
    loss may leave out "X_".

    sum_names: names of all sums that ``sums`` returns. The names of the engine's own sums,
      RESERVED_SUMS of training/state.py, are refused.
    rules: sharding of parameters that no rule of parallel/sharding.py matches.
    unused: parts of the model, such as bert/pooler, that no loss reads. They are parameters
      of the state, but not of the trained model.
    frozen: pattern of the paths of parameters that are not trained. Layer i of an encoder
      is encoder/layer_i, even if layers are stacked.
    adds_rows: whether ``sums`` of a batch are the sums over its rows, apart from the masks
      of model.layers.Dropout. Each device may then call it for its own rows, and the
      devices exchange each gradient once. ``model.compute`` must be a ComputeConfig. False
      if losses depend on other rows, or if ``sums`` draws random numbers. It is not
      inherited: each subclass sets it.
    """

    sum_names: tuple[str, ...]
    rules: Rules = ()
    unused: tuple[str, ...] = ()
    frozen: str = ""
    adds_rows: bool = False

    def __init_subclass__(cls, **arguments: Any):
        super().__init_subclass__(**arguments)
        # Not inherited, because the sums of a subclass may depend on other rows.
        if "adds_rows" not in vars(cls):
            cls.adds_rows = False

    @abc.abstractmethod
    def init(self, key: jax.Array) -> Params:
        """float32 parameters. Their shapes depend only on the model's config."""

    @abc.abstractmethod
    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """The divisor of each loss's sum: float32 scalars of the whole batch."""

    @abc.abstractmethod
    def sums(
        self, params: Params, batch: Batch, key: jax.Array | None
    ) -> dict[str, jax.Array]:
        """float32 scalars: losses, and sums for the metrics. No dropout without a key."""

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """Metrics, with "loss" among them, from sums over any number of batches.

        Default: the mean of each loss, each accuracy, and the sum of the means as "loss".
        """
        metrics = {"loss": 0.0}
        for part in loss_parts(sums):
            means = mean_metrics(part, sums)
            loss = means[_named(part, "loss")]
            metrics |= means | {"loss": metrics["loss"] + loss}
        return metrics

    def summary(self, metrics: dict[str, float]) -> str:
        """The metrics besides the loss, for a line of the log. Default: see ``metrics``.

        metrics: from :meth:`metrics`, with the baselines "X_majority" of the last
        evaluation.
        """
        texts = []
        if "accuracy" in metrics:
            texts.append(f"accuracy {with_baseline('accuracy', metrics)}")
        for name, loss in metrics.items():
            part, _, kind = name.rpartition("_")
            if not part or kind != "loss":
                continue
            text = f"{part} {loss:.4f}"
            if f"{part}_accuracy" in metrics:
                text += f", {with_baseline(f'{part}_accuracy', metrics)}"
            texts.append(text)
        return "  ".join(texts)

    def flops(self, batch: Batch) -> float:
        """Operations of the forward and backward pass. A multiply-add counts as two.

        The number depends only on the shapes of the batch's global arrays. 0 if it is not
        known: no device utilisation is reported. Default: the encoder of ``model.config``,
        without a head, and 0 for an objective without a ``model``.
        """
        model = getattr(self, "model", None)
        if not (hasattr(model, "config") and hasattr(model, "compute")):
            return 0.0
        rows, length = batch["input_ids"].shape
        return flops.step(model.config, model.compute, rows, length, whole=True)


def cached_by_objective(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function of an objective and other arguments, which compiles programs.

    Calls with equal arguments return the same result if the objective is one of bert_jax.
    The loss of a user's objective may depend on values that equality does not compare, such
    as a constant of its module. So each call with such an objective returns a new result,
    and the objective needs no hash.
    """
    cached = functools.lru_cache(maxsize=8)(function)

    @functools.wraps(function)
    def call(objective: Objective, *arguments: Any, **options: Any) -> Any:
        if _is_of_bert_jax(objective):
            return cached(objective, *arguments, **options)
        return function(objective, *arguments, **options)

    return call


def _is_of_bert_jax(value: Any) -> bool:
    """Whether bert_jax defines the class of a value, and all classes in its fields.

    The fields of an objective contain its model, the configs and the classes of its parts.
    """
    if value is None or isinstance(value, str | int | float):
        return True
    if isinstance(value, tuple):
        return all(_is_of_bert_jax(part) for part in value)
    kind = value
    if not isinstance(value, type | types.FunctionType):
        kind = type(value)
    if kind.__module__.split(".")[0] != __name__.split(".")[0]:
        return False
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return True
    fields = dataclasses.fields(value)
    return all(_is_of_bert_jax(getattr(value, field.name)) for field in fields)


class PretrainingObjective(Objective):
    """An objective for pretraining.

    A function ``pretraining(model, compute, examples)`` of its module returns it, from a
    BertConfig, a ComputeConfig and an ExampleConfig. data/pipeline.py makes the batches.
    """

    @property
    def sum_names(self) -> tuple[str, ...]:
        """The names of all sums. A subclass may list them, which saves a trace."""
        key = jax.random.key(0)
        params = jax.eval_shape(self.init, key)
        return tuple(jax.eval_shape(self.sums, params, few_rows(), key))

    def eval_sums(self, params: Params, batch: Batch) -> dict[str, jax.Array]:
        """Sums of a batch without dropout, for :func:`eval_metrics`."""
        return self.sums(params, batch, None)


def few_rows() -> Batch:
    """A small batch of data/pipeline.py, to trace an objective."""
    ids_BL, positions_BM = jnp.ones((1, 8), jnp.int32), jnp.ones((1, 2), jnp.int32)
    return {
        "input_ids": ids_BL,
        "token_type_ids": 0 * ids_BL,
        "attention_mask": ids_BL,
        "mlm_positions": positions_BM,
        "mlm_ids": positions_BM,
        "mlm_weights": positions_BM.astype(jnp.float32),
        "nsp_labels": jnp.zeros(1, jnp.int32),
    }


def check_model(
    objective: str,
    model: BertConfig,
    *,
    causal: bool = False,
    encoder: str = "transformer",
    pairs: bool = False,
) -> None:
    """Raises UserError if an objective cannot train a model, or does not use the pairs.

    causal, encoder: the values of BertConfig that the objective needs. pairs: the setting
    data.examples.next_sentence, if the objective has no loss on pairs.
    """
    if (model.causal, model.encoder) != (causal, encoder):
        raise UserError(
            f"objective={objective!r} cannot train this model; set "
            f"model.causal={causal} and model.encoder={encoder}"
        )
    if pairs:
        raise UserError(
            f"objective={objective!r} does not train next sentence prediction; set "
            "data.examples.next_sentence=False"
        )


def new_params(
    model: nn.Module, key: jax.Array, *inputs: Any, **options: Any
) -> Params:
    """``model.init``: randomly initialised parameters, float32.

    model: a module with a field ``compute``. The parameters are the same with and without
    compute.scan_layers, apart from the stack. ``model.init`` itself would give a scanned
    layer other random keys.
    """
    compute = dataclasses.replace(model.compute, scan_layers=False)
    unscanned = model.clone(compute=compute)
    if model.compute.scan_layers:
        return init_stacked(unscanned, key, *inputs, **options)
    return unscanned.init(key, *inputs, **options)["params"]


def rngs(key: jax.Array | None) -> dict[str, jax.Array] | None:
    """The argument ``rngs`` of a Flax module: with a ``key`` for dropout, or None."""
    return None if key is None else {"dropout": key}


def cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """-log softmax(logits)[label], and whether the label's logit is above all others.

    Both are computed along the last dimension, in float32. A tie is not right, because
    equal logits predict nothing. Counting the logits replaces an argmax over the
    vocabulary, which takes a CPU as long as a layer.
    """
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)
    reaching = jnp.sum(logits >= chosen, axis=-1)  # 1 for the label itself
    losses = jax.nn.logsumexp(logits, axis=-1) - chosen[..., 0]
    return losses, reaching == 1


def _named(part: str, kind: str) -> str:
    """The name of a sum or metric, such as "mlm_loss"; "loss" for the part ""."""
    if not part:
        return kind
    return f"{part}_{kind}"


def sum_names(part: str) -> tuple[str, ...]:
    """The names of the sums of :func:`cross_entropy_sums`."""
    return _named(part, "loss"), _named(part, "weight"), _named(part, "correct")


def loss_parts(sums: Mapping[str, Any]) -> list[str]:
    """The name X of each loss "X_loss" with a weight "X_weight"; "" for "loss"."""
    parts = []
    for name in sums:
        if name == "loss" or name.endswith("_loss"):
            part = name.removesuffix("loss").removesuffix("_")
            if _named(part, "weight") in sums:
                parts.append(part)
    return parts


def cross_entropy_sums(
    part: str, logits: jax.Array, labels: jax.Array, weights: jax.Array
) -> dict[str, jax.Array]:
    """float32 sums of losses, weights and right answers (run_pretraining.py)."""
    losses, right = cross_entropy(logits, labels)
    sums = jnp.sum(weights * losses), jnp.sum(weights), jnp.sum(weights * right)
    return dict(zip(sum_names(part), sums, strict=True))


def z_loss_sums(
    part: str, logits: jax.Array, weights: jax.Array, factor: float
) -> dict[str, jax.Array]:
    """float32 sums of factor * log(sum of exp(logits))**2, and of the weights.

    The loss keeps the sums of exp(logits) near 1 (Chowdhery et al., 2022, section 5).
    """
    normalizers = jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1)
    losses = factor * jnp.square(normalizers)
    loss, weight, _ = sum_names(f"{part}_z")
    return {loss: jnp.sum(weights * losses), weight: jnp.sum(weights)}


def summed(function: Callable[[Any], Any], parts: Any) -> Any:
    """The sum of ``function(part)`` over all parts, one part after the other.

    parts: a tree of arrays whose first axis is the number of the part.
    """

    def add_part(total: Any, part: Any):
        return jax.tree.map(jnp.add, total, function(part)), None

    first = jax.tree.map(lambda x: x[0], parts)
    zero = jax.tree.map(jnp.zeros_like, jax.eval_shape(function, first))
    return jax.lax.scan(add_part, zero, parts)[0]


def microbatches(batch: Any, parts: int) -> Any:
    """The arrays (B, ...) of a batch as (parts, B/parts, ...).

    Part i has the rows i, i + parts, ... A device has consecutive rows of the batch, and so
    a few rows of every part: no row moves to another device.
    """

    def split(x_B: jax.Array) -> jax.Array:
        return jnp.moveaxis(x_B.reshape(-1, parts, *x_B.shape[1:]), 1, 0)

    return jax.tree.map(split, batch)


def summed_over_positions(function: Callable[..., Any], *arrays: jax.Array) -> Any:
    """``function(*arrays)``, which returns sums over the positions P of (B, P, ...).

    Parts of POSITIONS positions are computed one after the other, and again in the backward
    pass. So the arrays that ``function`` computes, such as logits, need memory for only one
    part. The last part is padded with zeros.
    """
    P = arrays[0].shape[1]
    if P <= POSITIONS:
        return function(*arrays)
    padding = -P % POSITIONS

    def in_parts(x: jax.Array) -> jax.Array:
        x = jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2))
        x = x.reshape(len(x), -1, POSITIONS, *x.shape[2:])
        return jnp.moveaxis(x, 1, 0)

    part_sums = jax.checkpoint(lambda part: function(*part))
    return summed(part_sums, [in_parts(x) for x in arrays])


def mean_metrics(part: str, sums: Mapping[str, float]) -> dict[str, float]:
    """Mean loss, and accuracy if there is a sum of right answers."""
    weight = float(sums[_named(part, "weight")]) or 1.0
    loss = _named(part, "loss")
    metrics = {loss: float(sums[loss]) / weight}
    if _named(part, "correct") in sums:
        correct = float(sums[_named(part, "correct")])
        metrics[_named(part, "accuracy")] = correct / weight
    return metrics


def label_counts(labels: jax.Array, weights: jax.Array, size: int) -> jax.Array:
    """How often each label occurs with a weight above 0: int32 (size,)."""
    used = jnp.where(weights > 0, labels, size)
    return jnp.bincount(used.ravel(), length=size + 1)[:-1]


def eval_metrics(
    objective: Objective, batches: Sequence[dict[str, np.ndarray]]
) -> dict[str, float]:
    """Metrics from the eval_sums of several batches, added up in float64.

    A sum "X_counts", how often each label of X occurs, gives the metric "X_majority": the
    accuracy of a model that always predicts the most frequent label.
    """
    sums = {
        name: np.sum([sums[name] for sums in batches], axis=0, dtype=np.float64)
        for name in batches[0]
    }
    metrics = objective.metrics(sums)
    for name, counts in sums.items():
        if name.endswith("_counts"):
            most = float(counts.max() / max(counts.sum(), 1))
            metrics[name.replace("counts", "majority")] = most
    return metrics


def eval_summary(metrics: dict[str, float]) -> str:
    """A line of the log: the loss, and each accuracy with its baseline."""
    line = f"loss {metrics['loss']:.4f}"
    for name in metrics:
        if name.endswith("accuracy"):
            line += f"  {name.replace('_', ' ')} {with_baseline(name, metrics)}"
    return line


def with_baseline(name: str, metrics: dict[str, float]) -> str:
    """An accuracy and its baseline: always predicting the most frequent label."""
    most = metrics.get(name.replace("accuracy", "majority"))
    return f"{metrics[name]:.1%}" + ("" if most is None else f" (baseline {most:.1%})")


def unmasked_ids(batch: Batch) -> jax.Array:
    """The tokens of a batch of data/pipeline.py before masking: int32 (B, L)."""
    if "mlm_ids" not in batch:  # the batch of a left-to-right phase
        return batch["input_ids"]
    ids_BL, positions_BM = batch["input_ids"], batch["mlm_positions"]
    # Unused predictions are at the row's [CLS], which is never masked.
    masked_BM = jnp.take_along_axis(ids_BL, positions_BM, axis=1)
    ids_BM = jnp.where(batch["mlm_weights"] > 0, batch["mlm_ids"], masked_BM)
    return jnp.put_along_axis(ids_BL, positions_BM, ids_BM, axis=1, inplace=False)
