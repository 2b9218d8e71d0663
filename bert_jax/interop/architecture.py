"""Architecture and tokenizer of a checkpoint from which a pretraining starts.

Nothing here reads weights or imports JAX, so ``--print_config`` and errors in a command
line appear at once.
"""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.tokenizer_files import find_vocabulary, load_tokenizer
from bert_jax.errors import UserError, naming
from bert_jax.files import expanded, is_remote, open_remote, parse_json, read_json
from bert_jax.interop.config_json import (
    ConfigJson,
    RunJson,
    config_file,
    config_from_dict,
    with_compute,
)
from bert_jax.interop.find import find_files, from_hub, hub_name
from bert_jax.model.config import BertConfig
from bert_jax.remote import local_copy
from bert_jax.schema import check
from bert_jax.settings import from_settings

# Settings that are not read from a checkpoint, but have the defaults of BertConfig.
_DROPOUTS = ("hidden_dropout", "attention_dropout")
_SIZES = [
    field.name
    for field in dataclasses.fields(BertConfig)
    if field.default is dataclasses.MISSING
]


def read_architecture(
    path: os.PathLike | str,
) -> tuple[dict[str, Any], Tokenizer | None]:
    """Settings of a checkpoint's model, and its tokenizer if it has one.

    path: see ``bert_jax.load``. vocab_size is the number of tokens of the tokenizer. The
    word table may have more rows.
    """
    if hub_name(path):
        folder = from_hub(path, weights=False)
    else:
        local = local_copy(path, model=True)
        _, place = find_files(local, open_remote(path) if is_remote(path) else local)
        folder = place if place.is_dir() else place.parent  # of a prefix of Google's
    file = config_file(folder)
    settings = read_json(file, "the config of a checkpoint")
    with naming(file):
        if "model" in settings:  # a workdir
            check(settings, RunJson)
            model = with_compute(settings)["model"]
            config = from_settings(BertConfig, model, "model")
        else:
            check(settings, ConfigJson)
            config = config_from_dict(settings)
    model, tokenizer = vars(config), None
    if find_vocabulary(folder):
        tokenizer = load_tokenizer(folder)
        model = model | {"vocab_size": tokenizer.vocab_size}
    return model, tokenizer


def with_architecture(
    settings: Mapping[str, Any], workdir: os.PathLike | str = ""
) -> Mapping[str, Any]:
    """Settings of a pretraining. Missing sizes of ``model`` are added from ``init_from``.

    The checkpoint gives all missing settings of the model except the dropout. If it was
    deleted, a run in ``workdir`` that started from it gives them.
    """
    model, path = settings.get("model", {}), expanded(settings.get("init_from"))
    if not isinstance(model, Mapping) or not _is_pretraining(settings):
        return settings
    missing = [f"model.{name}" for name in _SIZES if name not in model]
    if not path and missing[1:]:
        raise UserError(f"there is no {', '.join(missing)}; set them or init_from")
    if not path or not missing:
        return settings
    try:
        known, _ = read_architecture(path)
    except UserError:
        folder = open_remote(workdir) if is_remote(workdir) else Path(workdir)
        file, run = folder / "config.json", {}
        if workdir and file.is_file():
            run = parse_json(file.read_bytes(), file, "the config of a run", RunJson)
        if run.get("init_from") != path:
            raise
        known = run["model"]
    known = {name: known[name] for name in known if name not in _DROPOUTS}
    return {**settings, "model": known | dict(model)}


def with_any_sizes(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings with arbitrary sizes of the model, to list the names of all settings.

    Real sizes may need a checkpoint that only the command line names.
    """
    if not _is_pretraining(settings):
        return settings
    model = settings.get("model", {})
    sizes = dict.fromkeys(_SIZES, 1) | {"max_positions": 1 << 30}
    sizes["hidden_size"] = model.get("num_heads", 1)
    return {**settings, "model": sizes | model}


def _is_pretraining(settings: Mapping[str, Any]) -> bool:
    return {"phases", "optimizer"} <= settings.keys()
