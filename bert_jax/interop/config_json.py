"""The JSON of BERT configs: bert_config.json, Hugging Face's config.json, and ours."""

import dataclasses
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from bert_jax.errors import UserError
from bert_jax.files import read_json
from bert_jax.model.config import BertConfig, ComputeConfig, FeatureConfig
from bert_jax.settings import from_settings

# Settings without a name in transformers. config.json contains them if they are no
# defaults.
_OURS = ("encoder", "positions", "pooling", "pre_norm")
# From our names to the names in bert_config.json and in Hugging Face's config.json.
_JSON_NAMES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "layer_norm_epsilon": "layer_norm_eps",
    "initializer_range": "initializer_range",
    "causal": "is_decoder",
    **{name: name for name in _OURS},
}
# Values of model_type. PRE_NORM: a BERT of pre-LN layers in transformers. OWN: a model
# without a class in transformers.
BERT, PRE_NORM, OWN = "bert", "megatron-bert", "bert_jax"
# bert_config.json has "gelu" for both forms. Hugging Face has a name for each.
_FROM_JSON_ACTIVATION = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "relu": "relu",
}
_TO_JSON_ACTIVATION = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}
_COMPUTE = typing.get_type_hints(ComputeConfig).keys()
_HINTS = typing.get_type_hints(BertConfig)
_Sizes = TypedDict(
    "_Sizes",
    {theirs: _HINTS[ours] for ours, theirs in _JSON_NAMES.items()},
    total=False,
)


class TrainedOn(TypedDict, total=False):
    """The settings of a task that are read without the task."""

    labels: list[str]
    max_length: int


class Saved(TypedDict, total=False):
    """Values that bert_jax saves with a model; see Checkpoint.extra."""

    family: str
    data: TrainedOn
    features: FeatureConfig
    init_from: str


class CrossEncoder(TypedDict, total=False):
    """Values that sentence-transformers saves with a cross-encoder."""

    activation_fn: str | None


class ConfigJson(_Sizes, total=False):
    """The form of a bert_config.json or config.json: the keys that are read."""

    model_type: str
    architectures: list[str] | None
    hidden_act: str
    id2label: dict[str, str | float | bool] | None
    problem_type: str | None
    head: str | None
    bert_jax: Saved | None
    sentence_transformers: CrossEncoder | None
    sbert_ce_default_activation_function: str | None


class _Examples(TypedDict, total=False):
    next_sentence: bool


class _Data(TypedDict, total=False):
    examples: _Examples


class _Text(TypedDict, total=False):
    vocabulary: str


class RunJson(TypedDict, total=False):
    """The form of the config.json of a workdir: the keys that are read to load a model."""

    model: typing.Required[dict[str, Any]]
    compute: dict[str, Any]
    data: _Data
    text: _Text
    head: str | None
    labels: list[str] | None
    problem_type: str | None
    extra: Saved | None
    init_from: str


def config_file(folder: Path) -> Path:
    """The file of a folder's config: config.json, or else Google's bert_config.json."""
    path, google = folder / "config.json", folder / "bert_config.json"
    if google.is_file() and not path.is_file():
        return google
    return path


def config_from_dict(values: Mapping[str, Any], **changes: Any) -> BertConfig:
    """Reads the contents of a bert_config.json or a Hugging Face config.json.

    changes: fields of BertConfig that replace values of the file. Google's checkpoints
    since February 2019 need activation="gelu_tanh", but their files have "gelu".
    """
    kind = values.get("model_type", BERT)
    if kind not in (BERT, PRE_NORM, OWN):
        raise UserError(f"model_type={kind!r}; bert_jax runs only BERT's encoder")
    sizes = {}
    missing = []
    for field in dataclasses.fields(BertConfig):
        name = _JSON_NAMES.get(field.name)
        if name in values:
            sizes[field.name] = values[name]
        elif field.default is dataclasses.MISSING:
            missing.append(name)
    if missing:
        raise UserError(f"a BERT config needs {', '.join(missing)}; add them")
    activation = values.get("hidden_act", "gelu")
    if str(activation) not in _FROM_JSON_ACTIVATION:
        raise UserError(
            f"hidden_act={activation!r}, expected one of "
            f"{', '.join(_FROM_JSON_ACTIVATION)}"
        )
    sizes["activation"] = _FROM_JSON_ACTIVATION[activation]
    if kind == PRE_NORM:
        sizes["pre_norm"] = True
    return from_settings(BertConfig, sizes | changes, "model")


def read_config(path: Path | str, **changes: Any) -> BertConfig:
    """Reads a bert_config.json or config.json; see :func:`config_from_dict`."""
    return config_from_dict(read_config_json(Path(path)), **changes)


def read_config_json(path: Path) -> dict[str, Any]:
    """The content of a bert_config.json or config.json, with values of the right types."""
    return read_json(path, "a BERT config", ConfigJson)


def config_to_dict(config: BertConfig) -> dict[str, Any]:
    """The content of a config.json for Hugging Face's and Google's code."""
    values = {
        "architectures": ["BertForPreTraining"],
        "model_type": BERT,
        "hidden_act": _TO_JSON_ACTIVATION[config.activation],
    }
    if config.pre_norm:
        values["model_type"] = PRE_NORM
    for ours, theirs in _JSON_NAMES.items():
        value = getattr(config, ours)
        if ours not in _OURS or value != getattr(BertConfig, ours):
            values[theirs] = value
    return values


def split_changes(changes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits changes into fields of BertConfig and fields of ComputeConfig."""
    model = dict(changes)
    compute = {}
    for name in _COMPUTE:
        if name in model:
            compute[name] = model.pop(name)
    return model, compute


def with_remat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in the form of this version.

    Up to version 0.3.0 compute.remat was True or False.
    """
    settings, compute = dict(settings), settings.get("compute")
    if isinstance(compute, Mapping) and isinstance(compute.get("remat"), bool):
        remat = "none"
        if compute["remat"]:
            remat = "full"
        settings["compute"] = {**compute, "remat": remat}
    return settings
