"""Reads a checkpoint of any origin, and writes one as a workdir of ours."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from flax import traverse_util

from bert_jax.data.tokenizer import find_vocabulary, load_tokenizer
from bert_jax.errors import UserError
from bert_jax.files import new_folder
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.checkpoints import read_params, write_params
from bert_jax.interop.config_json import split_changes, with_compute
from bert_jax.interop.huggingface import read_huggingface
from bert_jax.interop.names import guess_head, to_params, with_scan
from bert_jax.interop.tensorflow import find_prefix, read_tensorflow
from bert_jax.interop.weights import has_weights
from bert_jax.model.config import BertConfig, ComputeConfig

_CHECKPOINTS = "checkpoints"
_BEST = "best"  # where a fine-tuning run keeps its best model
_EXPECTED = (
    "expected a Hugging Face folder (config.json, model.safetensors), Google's "
    "bert_model.ckpt.* with bert_config.json, or a --workdir of bert_jax"
)


def load(path: Path | str, **changes: Any) -> Checkpoint:
    """Reads config, parameters and tokenizer of a BERT, whoever wrote it.

    path: a Hugging Face folder, a folder or prefix of Google's bert_model.ckpt, or a
      workdir of ours: of pretraining (its newest checkpoint), of fine-tuning (its best).
    changes: fields of BertConfig that replace what the files say, such as the
      activation="gelu_tanh" that Google's files cannot express; and fields of
      ComputeConfig, such as dtype="bfloat16" or scan_layers=True.

    Raises UserError where there is no checkpoint, where a tensor of the encoder is
    missing or has another shape than the config gives, and where the vocabulary has
    another size than the word table.
    """
    path = Path(path)
    if (path / _BEST / "config.json").is_file():
        checkpoint = read_huggingface(path / _BEST, **changes)
    elif (path / _CHECKPOINTS).is_dir():
        checkpoint = _read_workdir(path, changes)
    elif has_weights(path):
        checkpoint = read_huggingface(path, **changes)
    elif (prefix := find_prefix(path)) is not None:
        checkpoint = read_tensorflow(prefix, **changes)
    elif path.is_dir():
        raise UserError(f"{path} holds no weights; {_EXPECTED}")
    else:
        what = "is a file" if path.exists() else "does not exist"
        raise UserError(f"{path} {what}; {_EXPECTED}")
    tokenizer, config = checkpoint.tokenizer, checkpoint.config
    if tokenizer is not None and tokenizer.vocab_size != config.vocab_size:
        raise UserError(
            f"{path}: the vocabulary has {tokenizer.vocab_size} tokens, the word table "
            f"{config.vocab_size} rows; put the vocabulary there that came with the "
            "checkpoint"
        )
    return checkpoint


def check_length(max_length: int, checkpoint: Checkpoint, setting: str) -> None:
    """Raises where sequences would be longer than the position table."""
    positions = checkpoint.config.max_positions
    if max_length > positions:
        raise UserError(
            f"max_length={max_length} is over the position table of {positions}; set "
            f"{setting} to {positions} or less"
        )


def save_workdir(directory: Path | str, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint as a workdir that :func:`load` reads, whole or not at all.

    Raises UserError where ``directory`` holds something.
    """
    settings = {
        "model": dataclasses.asdict(checkpoint.config),
        "compute": dataclasses.asdict(checkpoint.compute),
        "head": checkpoint.head,
        "labels": checkpoint.labels,
        "problem_type": checkpoint.problem_type,
        "extra": checkpoint.extra,
    }
    with new_folder(Path(directory)) as folder:
        if checkpoint.tokenizer is not None:
            checkpoint.tokenizer.save(folder)
        write_params(folder / _CHECKPOINTS, checkpoint.params)
        (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n")


def _read_workdir(workdir: Path, changes: dict[str, Any]) -> Checkpoint:
    path = workdir / "config.json"
    try:
        settings = with_compute(json.loads(path.read_bytes()))
        model_changes, compute_changes = split_changes(changes)
        config = BertConfig(**settings["model"] | model_changes)
        compute = ComputeConfig(**settings.get("compute", {}) | compute_changes)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not the config of a run of bert_jax ({error!r}); copy it from "
            "where the run was"
        ) from error
    params = read_params(workdir / _CHECKPOINTS)
    flat = traverse_util.flatten_dict(with_scan(params, scan=False), sep="/")
    head = settings.get("head") or guess_head(flat, "ours")
    try:
        converted = to_params(flat, config, "ours", head=head, scan=compute.scan_layers)
    except UserError as error:
        raise UserError(f"{workdir}: {error}") from error
    tokenizer = load_tokenizer(workdir) if find_vocabulary(workdir) else None
    trained_with = settings.get("text", {}).get("vocabulary")
    if tokenizer and trained_with not in (None, tokenizer.fingerprint()):
        raise UserError(
            f"{workdir}: the vocabulary there is not the one that the run was trained "
            "with; copy it from where the run was"
        )
    return Checkpoint(
        config=config,
        compute=compute,
        params=converted.params,
        tokenizer=tokenizer,
        head=head,
        labels=tuple(settings.get("labels", ())),
        problem_type=settings.get("problem_type"),
        extra=settings.get("extra", {}),
        source="bert_jax",
        missing=converted.missing,
        unexpected=converted.unexpected,
    )
