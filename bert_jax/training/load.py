"""Reads a checkpoint of any origin, and writes one as a workdir of ours."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from bert_jax.data.tokenizer import find_vocabulary, load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.folders import new_folder
from bert_jax.interop.huggingface import read_huggingface
from bert_jax.interop.names import HEADS, with_scan
from bert_jax.interop.tensorflow import find_prefix, read_tensorflow
from bert_jax.model.config import BertConfig
from bert_jax.training.checkpoint import read_params, write_params

_CHECKPOINTS = "checkpoints"
_BEST = "best"  # where a fine-tuning run keeps its best model
_EXPECTED = (
    "expected a Hugging Face folder (config.json, model.safetensors), Google's "
    "bert_model.ckpt.* with bert_config.json, or a --workdir of bert_jax"
)


def load(path: Path | str, **config_changes: Any) -> Checkpoint:
    """Reads config, parameters and tokenizer of a BERT, whoever wrote it.

    path: a Hugging Face folder, a folder or prefix of Google's bert_model.ckpt, or a
      workdir of ours: of pretraining (its newest checkpoint), of fine-tuning (its best).
    config_changes: fields of BertConfig that replace what the files say, such as
      dtype="bfloat16", scan_layers=True, or the activation="gelu_tanh" that Google's
      files cannot express.

    Raises UserError where there is no checkpoint, where a tensor of the encoder is
    missing or has another shape than the config gives, and where the vocabulary has
    another size than the word table.
    """
    path = Path(path)
    prefix = find_prefix(path)
    if prefix is not None:
        checkpoint = read_tensorflow(prefix, **config_changes)
    elif not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise UserError(f"{path} {what}; {_EXPECTED}")
    elif (path / _CHECKPOINTS).is_dir():
        checkpoint = _read_workdir(path, config_changes)
    elif (path / _BEST / "config.json").is_file():
        checkpoint = read_huggingface(path / _BEST, **config_changes)
    elif (path / "config.json").is_file():
        checkpoint = read_huggingface(path, **config_changes)
    else:
        raise UserError(f"{path} holds no weights; {_EXPECTED}")
    tokenizer, config = checkpoint.tokenizer, checkpoint.config
    if tokenizer is not None and tokenizer.vocab_size != config.vocab_size:
        raise UserError(
            f"{path}: the vocabulary has {tokenizer.vocab_size} pieces, the word table "
            f"{config.vocab_size} rows; put the vocabulary there that came with the "
            "checkpoint"
        )
    return checkpoint
