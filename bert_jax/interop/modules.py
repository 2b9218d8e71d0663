"""sentence-transformers' modules: what makes a vector of a text from its tokens.

modules.json lists them. Here they are settings, under "modules" in Checkpoint.extra:
pooling: "mean" or "cls". activations: the activation of each Dense module; their weights
are parameters under "dense". normalize: whether vectors get length 1. max_length: tokens of
a text, [CLS] and [SEP] included. prompts, default_prompt_name, similarity_fn_name: as in
config_sentence_transformers.json.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError, naming
from bert_jax.files import read_json, reading, write_json
from bert_jax.interop.find import MODULES, SAFETENSORS, list_modules
from bert_jax.interop.weights import read_weights, write_safetensors
from bert_jax.model.config import BertConfig

EXTRA = "modules"  # the key of Checkpoint.extra
_TRANSFORMER = "sentence_bert_config.json"
_CONFIG = "config_sentence_transformers.json"
# Keys of sentence-transformers before version 5.4, and the poolings that they switch on.
_OLD = "pooling_mode_"
_OLD_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
ACTIVATIONS = {"Identity": lambda x: x, "Tanh": np.tanh}
_TORCH = {
    "Identity": "torch.nn.modules.linear.Identity",
    "Tanh": "torch.nn.modules.activation.Tanh",
}
_INSTEAD = "to use the encoder alone, remove modules.json"


def read_modules(
    folder: Path, config: BertConfig, tokenizer: Tokenizer | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings, and the parameters of Dense modules; both empty without a Pooling.

    Raises UserError for a module or a setting that is not supported.
    """
    modules = list_modules(folder)
    kinds, paths = [kind for kind, _ in modules], [name for _, name in modules]
    if not (folder / MODULES).is_file() or kinds == ["Transformer"]:
        return {}, {}
    with naming(folder / MODULES):
        dense = [name for kind, name in modules if kind == "Dense"]
        normalize = kinds[-1:] == ["Normalize"]
        expected = ["Transformer", "Pooling", *["Dense"] * len(dense)]
        if kinds != [*expected, *["Normalize"] * normalize] or paths[0]:
            raise UserError(
                f"the modules are {', '.join(kinds)}; expected Transformer in the folder "
                f"itself, Pooling, any number of Dense, and Normalize or not; {_INSTEAD}"
            )
    settings = {
        "pooling": _read_pooling(folder / paths[1] / "config.json"),
        "activations": [],
        "normalize": normalize,
        "max_length": _read_length(folder, config.max_positions, tokenizer),
    }
    settings |= _read_prompts(folder / _CONFIG, folder / paths[1] / "config.json")
    params, width = {}, config.hidden_size
    for i, name in enumerate(dense):
        activation, params[str(i)] = _read_dense(folder / name, width)
        settings["activations"].append(activation)
        width = params[str(i)]["kernel"].shape[1]
    return settings, params


def _read_pooling(path: Path) -> str:
    config = read_json(path, "a pooling of sentence-transformers")
    keys = [key for key, value in config.items() if value and key.startswith(_OLD)]
    modes = [_OLD_POOLINGS.get(key, key) for key in keys]
    if not any(key.startswith(_OLD) for key in config):
        modes = ["mean"]
    modes = config.get("pooling_mode", modes)
    if isinstance(modes, list) and len(modes) == 1:
        modes = modes[0]
    if modes not in ("mean", "cls"):
        raise UserError(
            f"{path}: the pooling is {modes!r}; expected 'mean' or 'cls'; {_INSTEAD}"
        )
    return modes


def _read_length(folder: Path, positions: int, tokenizer: Tokenizer | None) -> int:
    """Tokens of a text: in the settings of the Transformer, or of the tokenizer."""
    path = folder / _TRANSFORMER
    config = read_json(path, "a Transformer's settings") if path.is_file() else {}
    length = config.get("max_seq_length")
    other = folder / "tokenizer_config.json"
    if length is None and other.is_file():
        length = read_json(other, "a tokenizer's settings").get("model_max_length")
    with reading(path, "a Transformer's settings"), naming(path):
        if config.get("do_lower_case") and tokenizer and not tokenizer.lower_case:
            raise UserError(
                "do_lower_case=True, but the tokenizer is cased; set do_lower_case in "
                "tokenizer_config.json instead"
            )
        output = config.get("module_output_name", "token_embeddings")
        if output != "token_embeddings":
            raise UserError(
                f"module_output_name={output!r}, expected 'token_embeddings'; {_INSTEAD}"
            )
        if length is None:
            return positions
        return min(length, positions)


def _read_prompts(path: Path, pooling: Path) -> dict[str, Any]:
    config = read_json(path, "settings of a model") if path.is_file() else {}
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    with naming(path):
        if default not in (None, *prompts):
            raise UserError(
                f"default_prompt_name={default!r}, expected one of the prompts"
            )
        if config.get("truncate_dim") is not None:
            raise UserError(f"truncate_dim is not supported; {_INSTEAD}")
    included = read_json(pooling, "a pooling").get("include_prompt", True)
    if not included and prompts.get(default):
        raise UserError(
            f"{pooling}: include_prompt={included} is not supported; {_INSTEAD}"
        )
    return {
        "prompts": prompts,
        "default_prompt_name": default,
        "similarity_fn_name": config.get("similarity_fn_name"),
        "include_prompt": included,
    }


def _read_dense(folder: Path, width: int) -> tuple[str, dict[str, np.ndarray]]:
    """The activation and the parameters of a Dense module. width: of its input."""
    path = folder / "config.json"
    config = read_json(path, "a Dense module's settings")
    activation = str(config.get("activation_function", _TORCH["Tanh"]))
    name = activation.rpartition(".")[2]
    sentence = "sentence_embedding"
    with naming(path):
        if name not in ACTIVATIONS:
            raise UserError(
                f"activation_function={activation!r}, expected one of "
                f"{', '.join(_TORCH.values())}; {_INSTEAD}"
            )
        names = (config.get(f"module_{end}_name") for end in ("input", "output"))
        if config.get("use_residual") or {*names} - {None, sentence}:
            raise UserError(
                f"expected a Dense module of {sentence} without a residual; {_INSTEAD}"
            )
    tensors = read_weights(folder)
    shapes = {tensor: array.shape for tensor, array in tensors.items()}
    rows = shapes.get("linear.weight", (0,))[:1]
    expected = {"linear.weight": (*rows, width), "linear.bias": rows}
    if shapes not in (expected, {"linear.weight": (*rows, width)}):
        raise UserError(
            f"{folder} has the tensors {shapes}; expected a matrix linear.weight of "
            f"{width} columns, and linear.bias or not"
        )
    params = {"kernel": np.asarray(tensors["linear.weight"].T, np.float32)}
    if "linear.bias" in tensors:
        params["bias"] = np.asarray(tensors["linear.bias"], np.float32)
    return name, params


def write_modules(
    folder: Path, settings: Mapping[str, Any], dense: Mapping[str, Any], width: int
) -> None:
    """Writes the modules as sentence-transformers and :func:`read_modules` read them."""
    names = [f"{i + 2}_Dense" for i in range(len(dense))]
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    kinds += [("Dense", name) for name in names]
    if settings["normalize"]:
        kinds.append(("Normalize", f"{len(kinds)}_Normalize"))
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": path,
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, (kind, path) in enumerate(kinds)
    ]
    for _, path in kinds[1:]:
        (folder / path).mkdir()
    (folder / MODULES).write_text(json.dumps(modules, indent=2) + "\n")
    modes = {key: mode == settings["pooling"] for key, mode in _OLD_POOLINGS.items()}
    pooling = {"word_embedding_dimension": width} | modes
    if not settings.get("include_prompt", True):
        pooling["include_prompt"] = False
    write_json(folder / "1_Pooling/config.json", pooling)
    for i, (name, activation) in enumerate(
        zip(names, settings["activations"], strict=True)
    ):
        kernel, bias = np.asarray(dense[str(i)]["kernel"]), dense[str(i)].get("bias")
        tensors = {"linear.weight": np.ascontiguousarray(kernel.T)}
        if bias is not None:
            tensors["linear.bias"] = np.asarray(bias)
        write_safetensors(folder / name / SAFETENSORS, tensors)
        sizes = {"in_features": kernel.shape[0], "out_features": kernel.shape[1]}
        rest = {"bias": bias is not None, "activation_function": _TORCH[activation]}
        write_json(folder / name / "config.json", sizes | rest)
    length = {"max_seq_length": settings["max_length"], "do_lower_case": False}
    write_json(folder / _TRANSFORMER, length)
    keys = ("prompts", "default_prompt_name", "similarity_fn_name")
    write_json(folder / _CONFIG, {key: settings.get(key) for key in keys})


def vector_settings(
    head: str, extra: Mapping[str, Any], positions: int
) -> dict[str, Any] | None:
    """The modules of a checkpoint; None if nothing makes a vector of its tokens.

    A model of sentence vectors that was trained here has only a pooling.
    """
    if EXTRA in extra:
        return extra[EXTRA]
    if head not in ("mean", "cls"):
        return None
    length = extra.get("data", {}).get("max_length", positions)
    plain = {"activations": [], "normalize": False, "prompts": {}}
    return {"pooling": head, "max_length": length} | plain
