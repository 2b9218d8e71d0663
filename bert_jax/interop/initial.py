"""The model of a fine-tuning run and its first parameters."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.interop.load import Checkpoint, check_layers, initial_shapes
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.heads import BertForSequence, BertForSpans, BertForTokens
from bert_jax.model.tagger import FeatureConfig, FeatureTagger

Params = dict[str, Any]
_NEW_HEAD = "set --config.fresh_head=True to begin with a new head"


def make_model(
    config: BertConfig,
    head: str,
    outputs: int,
    features: FeatureConfig,
    compute: ComputeConfig = ComputeConfig(),
) -> nn.Module:
    """The module of a head: "sequence", "choice", "token" or "span".

    With layers in ``features`` that of the feature-based approach, for head "token".
    """
    if features.layers:
        if head != "token":
            raise UserError(
                "features.layers is for tagging; leave --config.features.layers empty"
            )
        check_layers(features.layers, config, "--config.features.layers")
        return FeatureTagger(config, outputs, features, compute)
    if head == "span":
        return BertForSpans(config, compute)
    if head == "token":
        return BertForTokens(config, outputs, compute)
    return BertForSequence(config, outputs, compute)


def head_params(
    checkpoint: Checkpoint,
    model: nn.Module,
    head: str,
    labels: Sequence[str],
    *,
    fresh_head: bool = False,
) -> tuple[Params, list[str]]:
    """What the checkpoint gives a model with this head; and the parts that it lacks.

    A head of the same kind and labels is kept, as between two runs on one label set,
    unless ``fresh_head``. Raises UserError for one of the same kind that does not fit.
    """
    tagger = isinstance(model, FeatureTagger)
    shapes = initial_shapes(model)
    bert = checkpoint.params["bert"]
    if not tagger:  # a pooler that this head does not look at is left behind
        bert = {name: part for name, part in bert.items() if name in shapes["bert"]}
    given = {"bert": bert}
    new = [f"bert/{part}" for part in shapes["bert"] if part not in bert]
    (name,) = shapes.keys() - {"bert"}
    same_kind = checkpoint.head == ("features" if tagger else head)
    if not same_kind or fresh_head or name not in checkpoint.params:
        return given, [*new, name]
    given[name] = checkpoint.params[name]
    if tagger:
        _check_tagger(checkpoint, model, shapes[name], labels)
    else:
        _check_head(given[name], shapes[name])
        _check_labels(checkpoint.labels, labels)
    return given, new


def _check_head(found: Params, expected: Params) -> None:
    outputs, needed = (part["kernel"].shape[-1] for part in (found, expected))
    if outputs != needed:
        raise UserError(
            f"the checkpoint's head has {outputs} outputs, the task needs {needed}; "
            f"{_NEW_HEAD}"
        )


def _check_tagger(
    checkpoint: Checkpoint,
    model: FeatureTagger,
    expected: Params,
    labels: Sequence[str],
) -> None:
    _check_labels(checkpoint.extra.get("data", {}).get("labels", ()), labels)
    sizes, found = (
        jax.tree.map(np.shape, tree) for tree in (expected, checkpoint.params["bilstm"])
    )
    own = model.feature_config.layers
    layers = checkpoint.extra.get("features", {}).get("layers", own)
    if sizes != found or tuple(layers) != own:
        raise UserError(
            "the checkpoint's BiLSTM is for other layers, or of other sizes, than "
            f"config.features says; set them as they were, or {_NEW_HEAD}"
        )


def _check_labels(found: Sequence[str], labels: Sequence[str]) -> None:
    if labels and found and tuple(labels) != tuple(found):
        raise UserError(
            f"the checkpoint's head was trained for {', '.join(found)}, the task has "
            f"{', '.join(labels)}; {_NEW_HEAD}"
        )
