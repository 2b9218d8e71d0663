"""The model of a fine-tuning run and its first parameters."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.interop.load import Checkpoint, initial_shapes
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.heads import BertForSequence, BertForSpans, BertForTokens
from bert_jax.model.tagger import BiLstmConfig, FeatureTagger
from bert_jax.settings import setting

Params = dict[str, Any]
_NEW_HEAD = "set --config.fresh_head=True to begin with a new head"


@dataclasses.dataclass(frozen=True)
class FeatureConfig:
    """The feature-based approach (paper, section 5.3): a BiLSTM on the frozen encoder."""

    layers: tuple[int, ...] = setting(
        (),
        "hidden states that are concatenated: 0 the embeddings, -1 the last layer's; "
        "empty: everything is fine-tuned",
    )
    lstm_layers: int = setting(2, "layers of the BiLSTM")
    width: int = setting(768, "units of the LSTM, in each direction")
    dropout: float = setting(
        0.1, "probability of dropping a feature or an output of an LSTM layer"
    )


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
        return _feature_tagger(config, head, outputs, features, compute)
    if head == "span":
        return BertForSpans(config, compute)
    if head == "token":
        return BertForTokens(config, outputs, compute)
    return BertForSequence(config, outputs, compute)


def _feature_tagger(
    config: BertConfig,
    head: str,
    outputs: int,
    features: FeatureConfig,
    compute: ComputeConfig,
) -> FeatureTagger:
    if head != "token":
        raise UserError(
            "features.layers is for tagging; leave --config.features.layers empty"
        )
    states = config.num_layers + 1
    for layer in features.layers:
        if not -states <= layer < states:
            raise UserError(
                f"features.layers has {layer}, expected 0 (the embeddings) to "
                f"{states - 1}, or {-states} to -1; set --config.features.layers"
            )
    bilstm = BiLstmConfig(
        outputs, features.width, features.lstm_layers, features.dropout
    )
    return FeatureTagger(config, features.layers, bilstm, compute)


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
    if isinstance(model, FeatureTagger):
        given = {"bert": checkpoint.params["bert"]}
        if "bilstm" in checkpoint.params and not fresh_head:
            _check_tagger(checkpoint, model, labels)
            return given | {"bilstm": checkpoint.params["bilstm"]}, []
        return given, ["bilstm"]
    ids_BL = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    shapes = initial_shapes(model, ids_BL, ids_BL, ids_BL)
    # A pooler that this head does not look at is left behind.
    parts = checkpoint.params["bert"].items()
    given = {"bert": {name: part for name, part in parts if name in shapes["bert"]}}
    (name,) = shapes.keys() - {"bert"}
    if checkpoint.head == head and not fresh_head and name in checkpoint.params:
        _check_head(checkpoint, shapes[name]["kernel"].shape[-1], labels)
        given[name] = checkpoint.params[name]
    new = [f"bert/{part}" for part in shapes["bert"] if part not in given["bert"]]
    return given, new + [name] * (name not in given)


def _check_head(checkpoint: Checkpoint, outputs: int, labels: Sequence[str]) -> None:
    kept = next(k for k in ("classifier", "qa_outputs") if k in checkpoint.params)
    found = checkpoint.params[kept]["kernel"].shape[-1]
    if found != outputs:
        raise UserError(
            f"the checkpoint's head has {found} outputs, the task needs {outputs}; "
            f"{_NEW_HEAD}"
        )
    _check_labels(checkpoint.labels, labels)


def _check_tagger(
    checkpoint: Checkpoint, model: FeatureTagger, labels: Sequence[str]
) -> None:
    features_BLF = jax.ShapeDtypeStruct((1, 2, model.width), jnp.float32)
    mask_BL = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    shapes = initial_shapes(model, features_BLF, mask_BL, method="tag")["bilstm"]
    sizes, found = (
        jax.tree.map(lambda leaf: leaf.shape, tree)
        for tree in (shapes, checkpoint.params["bilstm"])
    )
    _check_labels(checkpoint.extra.get("data", {}).get("labels", ()), labels)
    layers = checkpoint.extra.get("features", {}).get("layers", model.layers)
    if sizes != found or tuple(layers) != model.layers:
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
