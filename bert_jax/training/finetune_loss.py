"""The loss of a fine-tuning: its head, class weights and frozen parameters."""

import numpy as np

from bert_jax.errors import UserError, listed
from bert_jax.objectives.heads import ENCODER, HEADS, FrozenTagging
from bert_jax.objectives.objective import Objective
from bert_jax.progress import Log
from bert_jax.training.config import FineTuneConfig
from bert_jax.training.finetune_data import Prepared


def finetune_objective(
    config: FineTuneConfig, prepared: Prepared, log: Log
) -> Objective:
    """The objective of the task's head, or of a BiLSTM that reads a frozen encoder."""
    task = prepared.task
    kind = HEADS[task.head]
    if config.features.layers:
        kind = FrozenTagging
    frozen = first_layers(config.freeze_layers)
    if config.freeze:
        frozen = ENCODER
    loss = class_weights(config, prepared, log), config.label_smoothing
    return kind(prepared.model, frozen, *loss, **task.loss_settings)


def class_weights(
    config: FineTuneConfig, prepared: Prepared, log: Log
) -> tuple[float, ...]:
    """The weight of each label, in the order of the labels; () without weights."""
    by_label, labels = config.class_weights, prepared.task.labels
    if by_label == "balanced":
        targets = next(iter(prepared.train.features.targets.values()))
        ids = np.concatenate([np.atleast_1d(x) for x in targets])
        balance = balanced(np.bincount(ids[ids >= 0], minlength=len(labels)))
        by_label = dict(zip(labels, balance.tolist(), strict=True))
        shown = [f"{label!r} {weight:.4g}" for label, weight in by_label.items()]
        log(f"class weights: {listed(shown, most=10)}")
    weights: tuple[float, ...] = ()
    if by_label:
        weights = tuple(by_label.get(label, 1.0) for label in labels)
    if by_label.keys() - {*labels} or (weights and not any(weights)):
        raise UserError(
            f"class_weights={by_label} must name labels of the task "
            f"({listed(labels)}), and not all may have the weight 0"
        )
    return weights


def balanced(counts: np.ndarray) -> np.ndarray:
    """scikit-learn's weights: all examples / (classes * examples of the class).

    A class without examples is not counted, and its weight is 0.
    """
    shares = counts * np.count_nonzero(counts) / np.sum(counts)
    return np.divide(1, shares, out=np.zeros(len(counts)), where=counts > 0)


def first_layers(count: int) -> str:
    """The pattern of the embeddings and the first layers; "" for a negative count."""
    numbers = "|".join(map(str, range(count)))
    layers = rf"|encoder/layer_({numbers})(?!\d)" if count > 0 else ""
    return f"^bert/(embeddings/{layers})" if count >= 0 else ""
