"""Pretraining that begins with a checkpoint instead of random parameters."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from flax import traverse_util

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.interop.load import load
from bert_jax.model.config import BertConfig
from bert_jax.training.state import TrainState

# What a run may choose; the rest of a BertConfig the checkpoint has decided.
_FREE = {
    "hidden_dropout",
    "attention_dropout",
    "initializer_range",
}


def begin_from(
    path: Path | str,
    config: BertConfig,
    tokenizer: Tokenizer,
    state: TrainState,
    log: Callable[[str], None],
) -> TrainState:
    """``state`` with the parameters of a checkpoint, where it has them.

    Raises UserError where its sizes are not the config's or its vocabulary is not that
    of the text. Fine-tuned heads are left behind.
    """
    checkpoint = load(path, scan_layers="layers" in state.params["bert"]["encoder"])
    _check_config(checkpoint.config, config, path)
    if (
        checkpoint.tokenizer is not None
        and checkpoint.tokenizer.fingerprint() != tokenizer.fingerprint()
    ):
        raise UserError(
            f"the vocabulary of {path} is not the one that the text was prepared with; "
            "prepare the text with the checkpoint's vocabulary"
        )
    given = traverse_util.flatten_dict(checkpoint.params)
    fresh = traverse_util.flatten_dict(state.params)
    params: dict[tuple[str, ...], Any] = {
        name: jax.device_put(given[name], array.sharding) if name in given else array
        for name, array in fresh.items()
    }
    random = sorted(
        {
            name[0] if name[0] != "bert" else name[1]
            for name in fresh
            if name not in given
        }
    )
    log(f"begins with {path}" + (f"; random: {', '.join(random)}" if random else ""))
    return state.replace(params=traverse_util.unflatten_dict(params))


def _check_config(found: BertConfig, config: BertConfig, path: Path | str) -> None:
    for field in dataclasses.fields(BertConfig):
        name, value = field.name, getattr(found, field.name)
        if name not in _FREE and getattr(config, name) != value:
            raise UserError(
                f"model.{name}={getattr(config, name)!r}, but {path} has {value!r}; set "
                f"--config.model.{name}={value}"
            )
