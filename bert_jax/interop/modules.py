"""Modules of sentence-transformers, which make the vector of a text from its tokens.

modules.json lists them. Here they are settings, under "modules" in Checkpoint.extra:
pooling: "mean" or "cls". activations: the activation of each Dense module. The weights of
these modules are parameters under "dense". normalize: whether vectors are scaled to length
1. max_length: maximum number of tokens of a text, [CLS] and [SEP] included. prompts,
default_prompt_name, similarity_fn_name: as in config_sentence_transformers.json.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import jax.numpy as jnp
import numpy as np

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.files import read_json, write_json, write_text
from bert_jax.interop.checkpoint import IDENTITY, SIGMOID
from bert_jax.interop.find import MODULES, list_modules
from bert_jax.interop.weights import read_weights
from bert_jax.model.config import BertConfig

_logger = logging.getLogger(__name__)
EXTRA = "modules"  # the key of Checkpoint.extra
_TRANSFORMER = "sentence_bert_config.json"
_CONFIG = "config_sentence_transformers.json"
# Keys of sentence-transformers before version 5.4.
_OLD = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
ACTIVATIONS = {"Identity": lambda x: x, "Tanh": jnp.tanh}
_TORCH = ("torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh")
_TYPES = "sentence_transformers.models"  # the package of the modules
_INSTEAD = "to use the encoder alone, remove modules.json"


class _Vectors(TypedDict, total=False):
    """The form of config_sentence_transformers.json."""

    truncate_dim: int | None
    prompts: dict[str, str] | None
    default_prompt_name: str | None
    similarity_fn_name: str | None
    activation_fn: str | None


class _Length(TypedDict, total=False):
    """The form of sentence_bert_config.json."""

    max_seq_length: int | None
    do_lower_case: bool | None


class _Tokenizer(TypedDict, total=False):
    """The form of tokenizer_config.json, whose length may be 1e30."""

    model_max_length: float | None


class _Pooling(TypedDict, total=False):
    """The form of the config.json of a Pooling."""

    pooling_mode: str | list[str]
    include_prompt: bool | None


class _Dense(TypedDict, total=False):
    """The form of the config.json of a Dense module."""

    activation_function: str | None


def read_modules(
    folder: Path, config: BertConfig, tokenizer: Tokenizer | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings and the parameters of Dense modules, both empty without a Pooling.

    Raises UserError for a module or a setting that is not supported.
    """
    modules = list_modules(folder)
    kinds, paths = [kind for kind, _ in modules], [name for _, name in modules]
    if not modules or kinds == ["Transformer"]:
        return {}, {}
    dense = [name for kind, name in modules if kind == "Dense"]
    normalize = kinds[-1] == "Normalize"
    expected = ["Transformer", "Pooling", *["Dense"] * len(dense)]
    if kinds != [*expected, *["Normalize"] * normalize] or paths[0]:
        raise UserError(
            f"{folder / MODULES}: the modules are {', '.join(kinds)}; expected Transformer "
            f"(path ''), Pooling, Dense layers and Normalize, in this order; {_INSTEAD}"
        )
    # A truncated vector has another width, and a prompt may be left out of the mean.
    config_file = _settings(folder / _CONFIG, _Vectors, truncate_dim=[])
    prompts = config_file.get("prompts") or {}
    default = config_file.get("default_prompt_name")
    if default not in (None, *prompts):
        raise UserError(
            f"{folder / _CONFIG}: default_prompt_name={default!r}, expected one of the "
            f"prompts {[*prompts]}"
        )
    included = [True] if prompts.get(default) else [True, False]
    pooling_file = folder / paths[1] / "config.json"
    pooling = _settings(pooling_file, _Pooling, include_prompt=included)
    settings = {
        "pooling": _pooling(folder / paths[1], pooling),
        "activations": [],
        "normalize": normalize,
        "max_length": _length(folder, config.max_positions, tokenizer),
        "prompts": prompts,
        "default_prompt_name": default,
        "similarity_fn_name": config_file.get("similarity_fn_name"),
        "include_prompt": pooling.get("include_prompt", True),
    }
    params, width = {}, config.hidden_size
    for i, name in enumerate(dense):
        activation, params[str(i)] = _read_dense(folder / name, width)
        settings["activations"].append(activation)
        width = params[str(i)]["kernel"].shape[1]
    return settings, params


def read_activation_fn(folder: Path, config: Mapping[str, Any]) -> str:
    """The function that a cross-encoder applies to its logit. "" if none is named.

    config: the content of config.json, which has the name in folders of older versions.
    Logs a function that is not applied here.
    """
    names = [
        _settings(folder / _CONFIG, _Vectors).get("activation_fn"),
        (config.get("sentence_transformers") or {}).get("activation_fn"),
        config.get("sbert_ce_default_activation_function"),  # before version 4
    ]
    given = [name for name in names if name]
    if not given:
        return ""
    for known in (SIGMOID, IDENTITY):  # torch.nn.Sigmoid is the same class
        if given[0].rpartition(".")[2] == known.rpartition(".")[2]:
            return known
    _logger.warning(
        f"{folder}: activation_fn={given[0]!r} is not applied to the logits"
    )
    return given[0]


def _settings(path: Path, form: type, **known: list[Any]) -> dict[str, Any]:
    """The settings in a file. Files in the model's own folder are optional.

    form: types of the settings, see read_json. known: the values that a setting may have.
    Raises UserError for another value and for a missing config.json of a module.
    """
    needed = path.name == "config.json" or path.is_file()
    config = read_json(path, "settings of a module", form) if needed else {}
    for name, values in known.items():
        if config.get(name) not in [None, *values]:
            raise UserError(
                f"{path}: {name}={config[name]!r} is not supported, expected one of "
                f"{[None, *values]}; {_INSTEAD}"
            )
    return config


def _pooling(folder: Path, config: Mapping[str, Any]) -> str:
    old = [key for key in config if key.startswith("pooling_mode_")]
    modes = [_OLD.get(key, key) for key in old if config[key]] if old else "mean"
    modes = config.get("pooling_mode", modes)
    if isinstance(modes, list) and len(modes) == 1:
        modes = modes[0]
    if modes not in ("mean", "cls"):
        raise UserError(
            f"{folder}: the pooling is {modes!r}; expected 'mean' or 'cls'; {_INSTEAD}"
        )
    return modes


def _length(folder: Path, positions: int, tokenizer: Tokenizer | None) -> int:
    """Maximum number of tokens, from the settings of Transformer or of the tokenizer."""
    cased = tokenizer is not None and not tokenizer.lower_case
    config = _settings(
        folder / _TRANSFORMER,
        _Length,
        module_output_name=["token_embeddings"],
        do_lower_case=[False] if cased else [True, False],
    )
    other = _settings(folder / "tokenizer_config.json", _Tokenizer)
    length = config.get("max_seq_length")
    if length is None:
        length = other.get("model_max_length")
    return positions if length is None else int(min(length, positions))


def _read_dense(folder: Path, width: int) -> tuple[str, dict[str, np.ndarray]]:
    """The activation and the parameters of a Dense module. width: width of its input."""
    vector = ["sentence_embedding"]
    config = _settings(
        folder / "config.json",
        _Dense,
        activation_function=[*_TORCH],
        use_residual=[False],
        module_input_name=vector,
        module_output_name=vector,
    )
    name = (config.get("activation_function") or "Tanh").rpartition(".")[2]
    tensors = read_weights(folder)
    shapes = {tensor: array.shape for tensor, array in tensors.items()}
    rows = shapes.get("linear.weight", (0,))[:1]
    expected = {"linear.weight": (*rows, width), "linear.bias": rows}
    if shapes not in (expected, {"linear.weight": (*rows, width)}):
        raise UserError(
            f"{folder} has the tensors {shapes}; expected a matrix linear.weight of "
            f"{width} columns and optionally linear.bias"
        )
    params = {"kernel": np.asarray(tensors["linear.weight"].T, np.float32)}
    if "linear.bias" in tensors:
        params["bias"] = np.asarray(tensors["linear.bias"], np.float32)
    return name, params


def write_modules(folder: Path, settings: Mapping[str, Any], width: int) -> None:
    """Writes the modules for sentence-transformers and :func:`read_modules`."""
    kinds = ["Transformer", "Pooling", *["Normalize"] * settings["normalize"]]
    modules = []
    for i, kind in enumerate(kinds):
        path = f"{i}_{kind}" if i else ""
        (folder / path).mkdir(exist_ok=True)
        kind = f"{_TYPES}.{kind}"
        modules.append({"idx": i, "name": str(i), "path": path, "type": kind})
    write_text(folder / MODULES, json.dumps(modules, indent=2) + "\n")
    modes = {key: mode == settings["pooling"] for key, mode in _OLD.items()}
    pooling = {"word_embedding_dimension": width} | modes
    if not settings.get("include_prompt", True):
        pooling["include_prompt"] = False
    write_json(folder / "1_Pooling/config.json", pooling)
    length = {"max_seq_length": settings["max_length"], "do_lower_case": False}
    write_json(folder / _TRANSFORMER, length)
    keys = ("prompts", "default_prompt_name", "similarity_fn_name")
    write_json(folder / _CONFIG, {key: settings.get(key) for key in keys})


def vector_settings(
    head: str, extra: Mapping[str, Any], positions: int
) -> dict[str, Any] | None:
    """The modules of a checkpoint. None if nothing makes a vector from its tokens.

    A model of sentence vectors that was trained here has only a pooling.
    """
    if EXTRA in extra:
        return extra[EXTRA]
    if head not in ("mean", "cls"):
        return None
    length = extra.get("data", {}).get("max_length", positions)
    plain = {"activations": [], "normalize": False, "prompts": {}}
    return {"pooling": head, "max_length": length} | plain
