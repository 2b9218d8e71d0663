"""The JSON of configs: bert_config.json, Hugging Face's config.json, and ours."""

import dataclasses
import typing
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypedDict

from bert_jax.errors import UserError
from bert_jax.files import read_json
from bert_jax.interop.families import FAMILIES, find_family
from bert_jax.interop.families.activations import activation_name, read_activation
from bert_jax.interop.families.hub_forms import known_form
from bert_jax.model.config import BertConfig, ComputeConfig, FeatureConfig
from bert_jax.schema import check
from bert_jax.settings import from_settings

# Our own keys in config.json, by field of BertConfig. A key is written if its value does
# not follow from the family and the other keys. These keys are read from every config.json,
# because transformers computes the same without them: positions are written as a table
# (rotary positions have none), scaled_init is for new parameters, and misfit() in
# huggingface.py refuses the others.
_ALWAYS_READ = {
    "encoder": "encoder",
    "positions": "positions",
    "pooling": "pooling",
    "scaled_init": "scaled_init",
}
# Keys that are read if model_type is OWN. Otherwise these options follow from the family.
_READ_IF_OWN = {
    "pre_norm": "pre_norm",
    "position_offset": "position_offset",
    "pooler": "pooler",
    "model_type": "transformers_type",
    "rope_theta": "rope_theta",
    "rope_factor": "rope_factor",
    "window": "window",
    "global_every": "global_every",
    "local_rope_theta": "local_rope_theta",
    "embedding_norm": "embedding_norm",
    "norm_bias": "norm_bias",
    "attention_bias": "attention_bias",
    "gated": "gated",
    "feed_forward_bias": "feed_forward_bias",
    "head_bias": "head_bias",
}
OWN = "bert_jax"  # model_type of a model without a class in transformers
_TYPES_TABLE = "bert/embeddings/segment/embedding"
_COMPUTE = typing.get_type_hints(ComputeConfig).keys()
_HINTS = typing.get_type_hints(BertConfig)


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


class ConfigJson(TypedDict, total=False):
    """The form of a bert_config.json or config.json, without the keys of a family."""

    model_type: str
    architectures: list[str] | None
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
    phases: list[dict[str, Any]]
    text: _Text
    head: str | None
    labels: list[str] | None
    problem_type: str | None
    extra: Saved | None
    init_from: str


def run_config(run: RunJson, step: int, changes: Mapping[str, Any]) -> BertConfig:
    """The config of a run's model after ``step`` steps.

    The model is causal if the last step is in a left-to-right phase.
    changes: fields of BertConfig that replace the run's settings.
    """
    settings, end = run["model"], 0
    for phase in run.get("phases", []):
        start, end = end, end + phase["steps"]
        if start < step <= end and phase.get("causal"):
            settings = settings | {"causal": True}
    return from_settings(BertConfig, settings | changes, "model")


def config_file(folder: Path) -> Path:
    """The config file of a folder: config.json, or else Google's bert_config.json."""
    path, google = folder / "config.json", folder / "bert_config.json"
    if google.is_file() and not path.is_file():
        return google
    return path


def config_from_dict(values: Mapping[str, Any], **changes: Any) -> BertConfig:
    """Reads the contents of a bert_config.json or a Hugging Face config.json.

    changes: fields of BertConfig that replace values of the file. Google's checkpoints
    since February 2019 need activation="gelu_tanh", but their files have "gelu".
    """
    values = known_form(values)
    model_type = values.get("model_type", BertConfig.model_type)
    ours = _ALWAYS_READ
    if model_type == OWN:
        model_type = BertConfig.model_type
        ours = _ALWAYS_READ | _READ_IF_OWN
    sizes = _fields(values, model_type)
    for field, key in ours.items():
        if key in values:
            sizes[field] = values[key]
    return from_settings(BertConfig, sizes | changes, "model")


def _fields(values: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """The fields of BertConfig that a family reads from the values of config.json."""
    family = find_family(model_type)
    sizes = {"model_type": model_type, **family.options}
    missing = []
    for field in dataclasses.fields(BertConfig):
        key = family.keys.get(field.name)
        if key in values:
            check(values[key], _HINTS[field.name], key)
            sizes[field.name] = values[key]
        elif field.default is dataclasses.MISSING and field.name not in sizes:
            missing.append(key)
    if missing:
        raise UserError(
            f"a {model_type} config must have {', '.join(missing)}; add them"
        )
    activation = sizes.get("activation", "gelu")
    sizes["activation"] = read_activation(activation, family.keys["activation"])
    return sizes | family.read(values)


def read_config(path: Path | str, **changes: Any) -> BertConfig:
    """Reads a bert_config.json or config.json; see :func:`config_from_dict`."""
    return config_from_dict(read_config_json(Path(path)), **changes)


def read_config_json(path: Path) -> dict[str, Any]:
    """The content of a bert_config.json or config.json, with values of the right types."""
    return known_form(read_json(path, "the config of an encoder", ConfigJson))


def config_to_dict(
    config: BertConfig, *, model_type: str = "", rest: str = ""
) -> dict[str, Any]:
    """The content of a config.json of a family, by default ``config.model_type``.

    rest: the rest of the name of the model's class, such as "ForMaskedLM". "": the file
    does not name a class. Our own keys are added for values that do not follow from the
    others.
    """
    model_type = model_type or config.model_type
    family = find_family(model_type)
    values = {"model_type": model_type}
    if rest:
        values["architectures"] = [f"{family.model_types[model_type]}{rest}"]
    for field, key in family.keys.items():
        values[key] = getattr(config, field)
    values[family.keys["activation"]] = activation_name(config.activation)
    values |= family.write(config)
    decided = _fields(values, model_type)
    for field, key in (_ALWAYS_READ | _READ_IF_OWN).items():
        value = getattr(config, field)
        if value != decided.get(field, getattr(BertConfig, field)):
            values[key] = value
    return values


def exported_config(
    config: BertConfig, head: str, parts: Collection[str]
) -> BertConfig | None:
    """The config with the model_type of a family that has a class for the model.

    It is ``config.model_type``, or else the first family that fits. None if none fits.

    head, parts: see Family.class_of. If the model does not use a pooler, the result has the
    pooler of the family.
    """
    has_pooler = head in ("sequence", "choice") or {*parts} & {"pooler", "nsp"}
    for model_type in (config.model_type, *FAMILIES):
        family = find_family(model_type)
        exported = dataclasses.replace(config, model_type=model_type)
        if not has_pooler:
            pooler = family.options.get("pooler", BertConfig.pooler)
            exported = dataclasses.replace(exported, pooler=pooler)
        rest = family.class_of(head, parts, config.causal)
        if rest and _fits(exported, rest):
            return exported
    return None


def _fits(config: BertConfig, rest: str) -> bool:
    """Whether a class of ``config.model_type`` computes a model with these options.

    rest: the rest of the name of the class.
    """
    if config.local_rope_theta == config.rope_theta:  # the meaning of 0
        config = dataclasses.replace(config, local_rope_theta=0.0)
    family = find_family(config.model_type)
    has_mlm = "mlm" in family.classes[rest][1]
    if has_mlm and config.activation not in family.mlm_activations:
        return False
    has_types = family.name_of(_TYPES_TABLE) != ""
    if config.type_vocab_size > 0 and not has_types:
        return False
    if config.type_vocab_size == 0 and has_types and family.needs_types:
        return False
    values = config_to_dict(config, rest=rest)
    ours = _ALWAYS_READ | _READ_IF_OWN
    for key in {*ours.values()} - {*family.keys.values()}:
        values.pop(key, None)
    implied = config_from_dict(values)
    if (config.positions == "rotary") != (implied.positions == "rotary"):
        return False
    same = {field: getattr(config, field) for field in _ALWAYS_READ}
    return dataclasses.replace(implied, **same) == config


def learns_from_pairs(config: BertConfig) -> bool:
    """Whether models like this one are pretrained with pairs of sentences.

    They are not if they have no token types for the two sentences, if their family has no
    head for pairs, or if tokens do not attend to later tokens.
    """
    has_head = find_family(config.model_type).name_of("nsp/kernel") != ""
    return has_head and config.type_vocab_size > 1 and config.reads_both_sides


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

    Up to version 0.2.0 compute.remat was True or False.
    """
    settings, compute = dict(settings), settings.get("compute")
    if isinstance(compute, Mapping) and isinstance(compute.get("remat"), bool):
        remat = "none"
        if compute["remat"]:
            remat = "full"
        settings["compute"] = {**compute, "remat": remat}
    return settings
