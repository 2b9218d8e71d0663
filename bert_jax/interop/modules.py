"""Modules of sentence-transformers, which compute a text embedding from token vectors.

modules.json lists them. Here they are settings, under "modules" in Checkpoint.extra:
pooling: "mean" or "cls". activations: the activation of each Dense module, whose weights
are parameters under "dense". normalize: whether vectors are scaled to length 1.
max_length: maximum number of tokens of a text, [CLS] and [SEP] included. prompts,
default_prompt_name, similarity_fn_name: as in config_sentence_transformers.json.
include_prompt: whether the tokens of a prompt are pooled.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

import jax.numpy as jnp
import numpy as np

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.files import read_json, write_json, write_text
from bert_jax.interop.checkpoint import IDENTITY, SIGMOID
from bert_jax.interop.config_json import CrossEncoder
from bert_jax.interop.find import LENGTHS, MODULES, list_modules
from bert_jax.interop.weights import read_weights
from bert_jax.model.config import BertConfig

_logger = logging.getLogger(__name__)
EXTRA = "modules"  # the key of Checkpoint.extra
_CONFIG = "config_sentence_transformers.json"
# Keys of sentence-transformers before version 5.4.
_OLD = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
DENSE_ACTIVATIONS = {"Identity": lambda x: x, "Tanh": jnp.tanh}
_TYPES = "sentence_transformers.models"  # the package of the modules
# The names that models give to their prompts, by option of a search.
_PROMPT_NAMES = {
    "query_prompt": ("query",),
    "document_prompt": ("document", "passage", "corpus"),
}


class _Vectors(TypedDict, total=False):
    """The form of config_sentence_transformers.json. Truncated vectors are refused."""

    truncate_dim: None
    prompts: dict[str, str] | None
    default_prompt_name: str | None
    similarity_fn_name: str | None


class _Length(TypedDict, total=False):
    """The form of a file of LENGTHS."""

    max_seq_length: int | None
    do_lower_case: bool | None
    module_output_name: Literal["token_embeddings"] | None


class _Tokenizer(TypedDict, total=False):
    """The form of tokenizer_config.json, whose length may be 1e30."""

    model_max_length: float | None


class _Pooling(TypedDict, total=False):
    """The form of the config.json of a Pooling."""

    pooling_mode: str | list[str]
    include_prompt: bool | None


class _Dense(TypedDict, total=False):
    """The form of the config.json of a Dense module."""

    activation_function: (
        Literal["torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"]
        | None
    )
    use_residual: Literal[False] | None
    module_input_name: Literal["sentence_embedding"] | None
    module_output_name: Literal["sentence_embedding"] | None


def read_modules(
    folder: Path, config: BertConfig, tokenizer: Tokenizer | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of modules and the parameters of Dense modules; {} without a Pooling.

    Raises UserError for a module or a setting that is not supported.
    """
    modules = list_modules(folder)
    if not modules or [kind for kind, _ in modules] == ["Transformer"]:
        return {}, {}
    try:
        return _read_modules(folder, modules, config, tokenizer)
    except UserError as error:
        advice = "to use only the encoder, remove modules.json"
        raise UserError(f"{error}; {advice}") from error


def _read_modules(
    folder: Path,
    modules: list[tuple[str, str]],
    config: BertConfig,
    tokenizer: Tokenizer | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    kinds, paths = zip(*modules, strict=True)
    dense = [path for kind, path in modules if kind == "Dense"]
    expected = ["Transformer", "Pooling", *["Dense"] * len(dense)]
    normalize = kinds[-1] == "Normalize"
    if normalize:
        expected.append("Normalize")
    if list(kinds) != expected or paths[0]:
        raise UserError(
            f"{folder / MODULES}: the modules are {', '.join(kinds)}; expected Transformer "
            "(path ''), Pooling, Dense layers and Normalize, in this order"
        )
    vectors = _read_optional(folder / _CONFIG, _Vectors)
    prompts = vectors.get("prompts") or {}
    default = vectors.get("default_prompt_name")
    if default not in (None, *prompts):
        raise UserError(
            f"{folder / _CONFIG}: default_prompt_name={default!r}, expected one of the "
            f"prompts {[*prompts]}"
        )
    pooling_file = folder / paths[1] / "config.json"
    pooling = read_json(pooling_file, "settings of a module", _Pooling)
    include_prompt = pooling.get("include_prompt", True)
    settings = {
        "pooling": _pooling(pooling_file, pooling),
        "activations": [],
        "normalize": normalize,
        "max_length": _length(folder, config.max_positions, tokenizer),
        "prompts": prompts,
        "default_prompt_name": default,
        "similarity_fn_name": vectors.get("similarity_fn_name"),
        "include_prompt": include_prompt is not False,
    }
    params, width = {}, config.hidden_size
    for i, name in enumerate(dense):
        activation, params[str(i)] = _read_dense(folder / name, width)
        settings["activations"].append(activation)
        width = params[str(i)]["kernel"].shape[1]
    return settings, params


def check_prompt(folder: Path) -> None:
    """Raises UserError for a cross-encoder with a prompt, which is not put before texts."""
    default = _read_optional(folder / _CONFIG, _Vectors).get("default_prompt_name")
    if default:
        raise UserError(
            f"{folder / _CONFIG}: the cross-encoder has the prompt {default!r}, which is "
            "not put before its texts here; remove default_prompt_name"
        )


def read_activation_fn(folder: Path, config: Mapping[str, Any]) -> str:
    """The function that a cross-encoder applies to its logit. "" if no file names it.

    config: the content of config.json, which has the name in folders of older versions.
    Logs a function that is not applied here.
    """
    names = [
        _read_optional(folder / _CONFIG, CrossEncoder).get("activation_fn"),
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


def _read_optional(path: Path, form: type) -> dict[str, Any]:
    """The settings in a file of the model's own folder. Empty without the file."""
    if not path.is_file():
        return {}
    return read_json(path, "settings of a module", form)


def _pooling(path: Path, settings: Mapping[str, Any]) -> str:
    """The pooling in the config.json of a Pooling: "mean" or "cls"."""
    old = [key for key in settings if key.startswith("pooling_mode_")]
    modes = "mean"
    if "pooling_mode" in settings:
        modes = settings["pooling_mode"]
    elif old:
        modes = [_OLD.get(key, key) for key in old if settings[key]]
    for known in ("mean", "cls"):
        if modes in (known, [known]):
            return known
    raise UserError(f"{path}: the pooling is {modes!r}; expected 'mean' or 'cls'")


def _length(folder: Path, positions: int, tokenizer: Tokenizer | None) -> int:
    """Maximum number of tokens, from the settings of Transformer or of the tokenizer."""
    path = folder / LENGTHS[0]
    for name in LENGTHS:
        if (folder / name).is_file():
            path = folder / name
            break
    settings = _read_optional(path, _Length)
    for name in ("query_length", "document_length", "processing_kwargs"):
        if settings.get(name):
            raise UserError(f"{path}: {name} is not implemented; remove it")
    cased = tokenizer is not None and not tokenizer.lower_case
    if cased and settings.get("do_lower_case"):
        raise UserError(
            f"{path}: do_lower_case=True, but the tokenizer is cased; set it to False"
        )
    other = _read_optional(folder / "tokenizer_config.json", _Tokenizer)
    for length in (settings.get("max_seq_length"), other.get("model_max_length")):
        if length is not None:
            return int(min(length, positions))
    return positions


def _read_dense(folder: Path, width: int) -> tuple[str, dict[str, np.ndarray]]:
    """The activation and the parameters of a Dense module. width: width of its input."""
    config = read_json(folder / "config.json", "settings of a module", _Dense)
    activation = config.get("activation_function") or "Tanh"
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
    return activation.rpartition(".")[2], params


def write_modules(folder: Path, settings: Mapping[str, Any], width: int) -> None:
    """Writes the modules for sentence-transformers and :func:`read_modules`."""
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    if settings["normalize"]:
        paths["Normalize"] = "2_Normalize"
    modules = []
    for i, (kind, path) in enumerate(paths.items()):
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
    write_json(folder / LENGTHS[0], length)
    keys = ("prompts", "default_prompt_name", "similarity_fn_name")
    write_json(folder / _CONFIG, {key: settings.get(key) for key in keys})


def vector_settings(
    head: str, extra: Mapping[str, Any], positions: int
) -> dict[str, Any] | None:
    """The modules of a checkpoint. None if it has no pooling.

    A sentence embedding model that bert_jax trained has only a pooling.
    """
    if EXTRA in extra:
        return extra[EXTRA]
    if head not in ("mean", "cls"):
        return None
    length = extra.get("data", {}).get("max_length", positions)
    plain = {"activations": [], "normalize": False, "prompts": {}}
    return {"pooling": head, "max_length": length} | plain


def with_prompts(
    settings: Mapping[str, Any], prompts: Mapping[str, str]
) -> dict[str, Any]:
    """The settings of modules with the prompts that a model was trained with.

    prompts: by option of a search. An empty prompt changes nothing.
    """
    named = dict(settings["prompts"])
    for option, prompt in prompts.items():
        if prompt:
            named[_PROMPT_NAMES[option][0]] = prompt
    return {**settings, "prompts": named}


def prompt_for(extra: Mapping[str, Any], option: str) -> str:
    """The prompt of a checkpoint for an option of a search: the first that is not empty.

    "" if all are empty, because encode_query of sentence-transformers does not use the
    default prompt either.
    """
    prompts = extra.get(EXTRA, {}).get("prompts", {})
    for name in _PROMPT_NAMES[option]:
        if prompts.get(name):
            return prompts[name]
    return ""


def unused_prompts(extra: Mapping[str, Any], prompts: Mapping[str, str]) -> list[str]:
    """Lines about prompts of a checkpoint that its training does not use.

    prompts: the prompts of the training, by option of a search. Raises UserError for a
    prompt if the checkpoint does not pool the tokens of prompts.
    """
    pools_prompts = extra.get(EXTRA, {}).get("include_prompt", True)
    lines = []
    for option, prompt in prompts.items():
        if prompt and not pools_prompts:
            actual = "the tokens of prompts are not pooled (include_prompt is false)"
            raise UserError(f"{actual}; leave data.{option} out")
        known = prompt_for(extra, option)
        if known and not prompt:
            needed = f"a search puts {known!r} before its texts"
            lines.append(f"data.{option} is empty, but {needed}")
    return lines
