"""The model of a fine-tuning run and its first parameters."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.interop.load import Checkpoint
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.heads import BertForSequence, BertForSpans, BertForTokens
from bert_jax.model.tagger import BiLstmConfig, FeatureTagger

Params = dict[str, Any]
_BEGIN_ANEW = "set --config.fresh_head=True to begin with a new head"


@dataclasses.dataclass(frozen=True)
class FeatureConfig:
    """The feature-based approach (paper, section 5.3): a BiLSTM on the frozen encoder.

    layers: hidden states that are concatenated; 0 is the embeddings', -1 the last
    layer's. Empty: fine-tune everything. width: of the LSTM, in each direction.
    """

    layers: tuple[int, ...] = ()
    lstm_layers: int = 2
    width: int = 768
    dropout: float = 0.1


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


def initial_params(
    checkpoint: Checkpoint,
    model: nn.Module,
    head: str,
    labels: Sequence[str],
    key: jax.Array,
    *,
    fresh_head: bool = False,
) -> tuple[Params, list[str]]:
    """The checkpoint's encoder under a head; and the names of what is made anew.

    A head of the same kind and labels is kept, as between two runs on one label set,
    unless ``fresh_head``. Raises UserError for one of the same kind that does not fit.
    """
    if isinstance(model, FeatureTagger):
        given = {"bert": checkpoint.params["bert"]}
        if "bilstm" in checkpoint.params and not fresh_head:
            _check_tagger(checkpoint, model, labels)
            return given | {"bilstm": checkpoint.params["bilstm"]}, []
        return given | jax.jit(_init_tagger(model))(key), ["bilstm"]
    ids = jnp.zeros((1, 8), jnp.int32)
    shapes = jax.eval_shape(
        lambda key: model.init(key, ids, ids, ids + 1, deterministic=True)["params"],
        key,
    )
    given = {"bert": dict(checkpoint.params["bert"])}
    (name,) = shapes.keys() - {"bert"}
    if checkpoint.head == head and not fresh_head and name in checkpoint.params:
        _check_head(checkpoint, shapes[name]["kernel"].shape[-1], labels)
        given[name] = checkpoint.params[name]
    parts = [("bert", "pooler"), (name,)]
    missing = [part for part in parts if _has(shapes, part) and not _has(given, part)]

    def make(key: jax.Array) -> list[Any]:
        params = model.init(key, ids, ids, ids + 1, deterministic=True)["params"]
        return [_get(params, part) for part in missing]

    fresh = jax.jit(make)(key) if missing else []
    for part, value in zip(missing, fresh, strict=True):
        if len(part) == 1:
            given[part[0]] = value
        else:
            given["bert"][part[1]] = value
    # A pooler that this head does not look at is left behind.
    given["bert"] = {k: v for k, v in given["bert"].items() if k in shapes["bert"]}
    return given, ["/".join(part) for part in missing]


def _check_head(checkpoint: Checkpoint, outputs: int, labels: Sequence[str]) -> None:
    kept = next(k for k in ("classifier", "qa_outputs") if k in checkpoint.params)
    found = checkpoint.params[kept]["kernel"].shape[-1]
    if found != outputs:
        raise UserError(
            f"the checkpoint's head has {found} outputs, the task needs {outputs}; "
            f"{_BEGIN_ANEW}"
        )
    _check_labels(checkpoint.labels, labels)


def _init_tagger(model: FeatureTagger) -> Callable[[jax.Array], Params]:
    """A function of a key: new parameters of the BiLSTM alone."""
    features_BLF = jnp.zeros((1, 2, model.width))
    mask_BL = jnp.ones((1, 2), jnp.int32)

    def init(key: jax.Array) -> Params:
        return model.init(key, features_BLF, mask_BL, deterministic=True, method="tag")[
            "params"
        ]

    return init


def _check_tagger(
    checkpoint: Checkpoint, model: FeatureTagger, labels: Sequence[str]
) -> None:
    shapes = jax.eval_shape(_init_tagger(model), jax.random.key(0))["bilstm"]
    sizes, found = (
        jax.tree.map(lambda leaf: leaf.shape, tree)
        for tree in (shapes, checkpoint.params["bilstm"])
    )
    _check_labels(checkpoint.extra.get("data", {}).get("labels", ()), labels)
    layers = checkpoint.extra.get("features", {}).get("layers", model.layers)
    if sizes != found or tuple(layers) != model.layers:
        raise UserError(
            "the checkpoint's BiLSTM is for other layers, or of other sizes, than "
            f"config.features says; set them as they were, or {_BEGIN_ANEW}"
        )


def _check_labels(found: Sequence[str], labels: Sequence[str]) -> None:
    if labels and found and tuple(labels) != tuple(found):
        raise UserError(
            f"the checkpoint's head was trained for {', '.join(found)}, the task has "
            f"{', '.join(labels)}; {_BEGIN_ANEW}"
        )


def _has(tree: Any, path: Sequence[str]) -> bool:
    for name in path:
        if name not in tree:
            return False
        tree = tree[name]
    return True


def _get(tree: Any, path: Sequence[str]) -> Any:
    for name in path:
        tree = tree[name]
    return tree
