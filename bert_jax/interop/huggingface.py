"""Hugging Face folders: config.json, weights, tokenizer files and a model card."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax import traverse_util
from safetensors.numpy import load_file, save_file

from bert_jax.data.tokenizer import Tokenizer, find_vocabulary, load_tokenizer
from bert_jax.errors import UserError
from bert_jax.files import new_folder
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.config_json import (
    config_to_dict,
    read_config,
    split_changes,
)
from bert_jax.interop.model_card import model_card
from bert_jax.interop.names import from_params, guess_head, to_params
from bert_jax.interop.tokenizer_files import write_tokenizer
from bert_jax.interop.weights import read_weights
from bert_jax.model.config import BertConfig, ComputeConfig

# Architecture -> our head, and the parts that its checkpoints hold beside the encoder.
_ARCHITECTURES = {
    "BertForPreTraining": ("pretraining", ("pooler", "mlm", "nsp")),
    "BertForMaskedLM": ("pretraining", ("mlm",)),
    "BertForNextSentencePrediction": ("pretraining", ("pooler", "nsp")),
    "BertModel": ("none", ("pooler",)),
    "BertForSequenceClassification": ("sequence", ("pooler", "classifier")),
    "BertForMultipleChoice": ("choice", ("pooler", "classifier")),
    "BertForTokenClassification": ("token", ("classifier",)),
    "BertForQuestionAnswering": ("span", ("qa_outputs",)),
}
BILSTM = "bilstm.safetensors"  # the tagger on a frozen encoder, under our names
_PREFIXES = ("embeddings.", "encoder.", "pooler.")  # of an encoder saved on its own
_DECODER = "cls.predictions.decoder."
_WORDS = "bert.embeddings.word_embeddings.weight"
_MLM_BIAS = "cls.predictions.bias"


def read_huggingface(folder: Path, **changes: Any) -> Checkpoint:
    """Reads a folder that transformers, or :func:`save_huggingface`, wrote.

    Names may be those of a bare encoder or start with "bert."; LayerNorms may say
    gamma / beta. Tied copies of the word table are compared and then left out.
    """
    model_changes, compute = split_changes(changes)
    config = read_config(folder / "config.json", **model_changes)
    compute = ComputeConfig(**compute)
    settings = json.loads((folder / "config.json").read_bytes())
    tensors = standard_names(read_weights(folder))
    untied = _take_tied(tensors)
    head, parts = _architecture(settings, tensors)
    try:
        converted = to_params(
            tensors,
            config,
            "huggingface",
            head=head,
            expected=parts,
            scan=compute.scan_layers,
        )
    except UserError as error:
        raise UserError(f"{folder}: {error}") from error
    params = converted.params
    if (folder / BILSTM).is_file():
        head = "features"
        flat = load_file(folder / BILSTM)
        params = params | {"bilstm": traverse_util.unflatten_dict(flat, sep="/")}
    return Checkpoint(
        config=config,
        compute=compute,
        params=params,
        tokenizer=load_tokenizer(folder) if find_vocabulary(folder) else None,
        head=head if len(params) > 1 else "none",
        labels=_labels(settings, params, head),
        problem_type=settings.get("problem_type"),
        extra=settings.get("bert_jax", {}),
        source="huggingface",
        missing=converted.missing,
        unexpected=tuple(sorted([*converted.unexpected, *untied])),
    )


def save_huggingface(
    directory: Path | str,
    config: BertConfig,
    params: Mapping[str, Any],
    tokenizer: Tokenizer | None,
    *,
    head: str,
    labels: Sequence[str] = (),
    problem_type: str | None = None,
    extra: Mapping[str, Any] | None = None,
    card: str | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a folder that AutoModel and AutoTokenizer load, whole or not at all.

    params: the tree of a BERT with this ``head`` (see Checkpoint), on host or devices,
    the layers stacked or not. labels: names of a classifier's outputs. extra: kept in
    config.json under "bert_jax". card: Markdown for the model card, where the weights
    come from. Raises UserError where ``directory`` holds something, unless
    ``overwrite``.
    """
    bilstm = params.get("bilstm")
    if bilstm is not None:  # not in any architecture of transformers: a file of its own
        params = {name: part for name, part in params.items() if name != "bilstm"}
    tensors = from_params(params, config, "huggingface")
    architecture = _architecture_of("none" if head == "features" else head, params)
    if architecture == "BertModel":
        tensors = {name.removeprefix("bert."): a for name, a in tensors.items()}
    settings = config_to_dict(config) | {
        "architectures": [architecture],
        "dtype": "float32",
    }
    if head in ("sequence", "token"):
        outputs = tensors["classifier.bias"].shape[0]
        names = list(labels) or [f"LABEL_{i}" for i in range(outputs)]
        if len(names) != outputs:
            raise UserError(
                f"{len(names)} labels for a classifier of {outputs} outputs; give one "
                "label an output"
            )
        settings["id2label"] = {str(i): name for i, name in enumerate(names)}
        settings["label2id"] = {name: i for i, name in enumerate(names)}
    if problem_type is not None:
        settings["problem_type"] = problem_type
    if tokenizer is not None:
        settings["pad_token_id"] = tokenizer.pad_id
    if extra:
        settings["bert_jax"] = dict(extra)
    with new_folder(Path(directory), overwrite=overwrite) as folder:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        if bilstm is not None:
            flat = traverse_util.flatten_dict(bilstm, sep="/")
            arrays = {name: np.asarray(array) for name, array in flat.items()}
            save_file(arrays, folder / BILSTM)
        if tokenizer is not None:
            write_tokenizer(folder, tokenizer, config)
        text = json.dumps(settings, indent=2) + "\n"
        (folder / "config.json").write_text(text)
        size = sum(array.size for array in tensors.values())
        (folder / "README.md").write_text(
            model_card(config, architecture, size, tuple(labels), card)
        )


def standard_names(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors under the names of names.py; buffers that hold no weights left out."""
    bare = "embeddings.word_embeddings.weight" in tensors
    result = {}
    for name, array in tensors.items():
        if name.endswith("embeddings.position_ids"):
            continue
        if bare and name.startswith(_PREFIXES):
            name = f"bert.{name}"
        for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
            if name.endswith(old):
                name = name.removesuffix(old) + new
        result[name] = array
    return result


def _take_tied(tensors: dict[str, np.ndarray]) -> list[str]:
    """Removes copies of tied tensors; returns those that differ, with a remark."""
    weight = tensors.pop(f"{_DECODER}weight", None)
    bias = tensors.pop(f"{_DECODER}bias", None)
    untied = []
    if weight is not None and not np.array_equal(weight, tensors.get(_WORDS)):
        untied.append(f"{_DECODER}weight (it is not the word table, which is used)")
    if bias is not None and not np.array_equal(
        bias, tensors.setdefault(_MLM_BIAS, bias)
    ):
        untied.append(f"{_DECODER}bias (it is not {_MLM_BIAS}, which is used)")
    return untied


def _architecture(
    settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> tuple[str, tuple[str, ...] | None]:
    """Head and expected parts: from config.json, else from the tensors' names."""
    for name in settings.get("architectures") or ():
        if name in _ARCHITECTURES:
            return _ARCHITECTURES[name]
    return guess_head(tensors, "huggingface"), None


def _architecture_of(head: str, params: Mapping[str, Any]) -> str:
    parts = set(params) - {"bert"}
    for name, (its_head, its_parts) in _ARCHITECTURES.items():
        if head == its_head and parts == set(its_parts) - {"pooler"}:
            return name
    raise UserError(
        f"a BERT with head {head!r} and parameters {', '.join(sorted(params))} is none "
        f"that transformers has; expected one of {', '.join(_ARCHITECTURES)}"
    )


def _labels(
    settings: Mapping[str, Any], params: Mapping[str, Any], head: str
) -> tuple[str, ...]:
    if head not in ("sequence", "token") or "classifier" not in params:
        return ()
    outputs = params["classifier"]["bias"].shape[0]
    if outputs == 1:
        return ()
    given = settings.get("id2label") or {}
    # transformers counts from LABEL_0 as well where the file does not say.
    return tuple(given.get(str(i), f"LABEL_{i}") for i in range(outputs))
