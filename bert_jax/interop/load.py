"""Reads checkpoints: Hugging Face's, Google's and our own."""

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any

from etils import epath

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.tokenizer_files import (
    find_tokenizer,
    find_vocabulary,
    load_tokenizer,
)
from bert_jax.errors import UserError, naming
from bert_jax.files import (
    ending,
    expanded,
    is_remote,
    open_remote,
    read_json,
)
from bert_jax.interop.checkpoint import (
    Checkpoint,
    Head,
    check_params,
    check_vocabulary,
)
from bert_jax.interop.config_json import (
    ConfigJson,
    RunJson,
    config_file,
    config_from_dict,
    run_config,
    split_changes,
    with_remat,
)
from bert_jax.interop.families import find_family
from bert_jax.interop.find import (
    BEST,
    CHECKPOINTS,
    find_files,
    from_hub,
    hub_name,
    split_step,
)
from bert_jax.interop.huggingface import check_padding, read_huggingface
from bert_jax.interop.surgery import stretched
from bert_jax.interop.tensorflow import read_tensorflow
from bert_jax.interop.train_state import newest_step, read_step
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.parameters import with_scan
from bert_jax.parallel.processes import on_leader
from bert_jax.parallel.sharding import array_shapes
from bert_jax.progress import unwatched
from bert_jax.remote import local_copy
from bert_jax.schema import check
from bert_jax.settings import from_settings

_logger = logging.getLogger(__name__)


def load(
    path: os.PathLike | str,
    *,
    weights: bool = True,
    average: str | int = "",
    **changes: Any,
) -> Checkpoint:
    """Reads config, parameters and tokenizer of a checkpoint.

    path: a Hugging Face folder, a folder or prefix of Google's bert_model.ckpt, the file of
      their weights, the output_dir of transformers' Trainer (its newest checkpoint), a
      workdir (newest checkpoint of pretraining, best model of fine-tuning), or one
      checkpoint of a run, such as runs/base/checkpoints/20000. It may be a URL such as
      gs://bucket/folder, or the name of a model on the Hugging Face Hub, such as
      google-bert/bert-base-uncased, optionally with @REVISION. A local path takes
      precedence over a model of the same name on the hub.
    weights: False reads only the config and the tokenizer, and downloads no weights. Then
      ``params`` is empty, and the head and its labels are not known.
    average: for a workdir of pretraining, "ema" for the moving average of its parameters
      (the setting ``average``), or a number n for the mean of its n newest checkpoints, or
      of the checkpoint at ``path`` and the n - 1 before it.
    changes: fields of BertConfig that replace values of the files, such as
      activation="gelu_tanh", which Google's files cannot express; and fields of
      ComputeConfig, such as dtype="bfloat16" or scan_layers=True. max_positions: see
      stretched.

    Raises UserError if there is no checkpoint, if a tensor of the encoder is missing or its
    shape does not fit the config, or if the vocabulary has more tokens than the word table
    has rows. Rows without a token are kept and never predicted.
    """
    _check_type(path)
    is_count = isinstance(average, int) and average >= 1
    if average not in ("", "ema") and not is_count:
        expected = "expected ema, or a number of checkpoints"
        raise UserError(f"average={average!r}, {expected}")
    path, step = split_step(expanded(path))
    model_changes, compute_changes = split_changes(changes)
    if "model_type" in model_changes:
        find_family(model_changes["model_type"])
    if not weights:
        return _without_weights(path, model_changes, step)
    positions = model_changes.pop("max_positions", 0)
    local = _local_files(path)
    run = local
    if is_remote(path):
        run = epath.Path(path)
    checkpoint = _read(local, run, model_changes, step, average)
    if positions:
        checkpoint = stretched(checkpoint, positions, path)
    compute = dataclasses.replace(checkpoint.compute, **compute_changes)
    tokenizer, config = checkpoint.tokenizer, checkpoint.config
    if tokenizer is not None:
        _limit_length(tokenizer, config, stretched=positions > 0)
    if tokenizer is not None and tokenizer.vocab_size != config.vocab_size:
        if tokenizer.vocab_size > config.vocab_size:
            raise UserError(
                f"{path}: the vocabulary has {tokenizer.vocab_size} tokens, the word table "
                f"{config.vocab_size} rows; use the vocabulary of the checkpoint"
            )
        _logger.warning(
            f"{path}: the word table has {config.vocab_size:,} rows for "
            f"{tokenizer.vocab_size:,} tokens; the other rows are never predicted"
        )
    params = with_scan(checkpoint.params, compute.scan_layers, *config.scanned)
    read = {"params": params, "compute": compute, "path": os.fspath(path)}
    return dataclasses.replace(checkpoint, **read)


def tokenizer(path: os.PathLike | str) -> Tokenizer:
    """Reads the tokenizer of a checkpoint, without its weights.

    >>> tokenizer = bert_jax.tokenizer("google-bert/bert-base-uncased")
    >>> tokenizer.tokenize("A man eats pasta.")
    ['a', 'man', 'eats', 'pasta', '.']

    path: a checkpoint, as for ``bert_jax.load``, or a vocabulary: a vocab.txt, a
      tokenizer.json, a SentencePiece model, or their folder, such as the output of
      ``bert_jax vocabulary`` or ``bert_jax prepare``. No weights are downloaded.

    Raises UserError if there is no vocabulary, or if it cannot be read.
    """
    _check_type(path)
    path = expanded(path)
    place = Path(path)
    if place.is_dir() and find_vocabulary(place) and not config_file(place).is_file():
        return load_tokenizer(place)
    if place.is_file() and ending(place) in (".txt", ".json", ".model"):
        return load_tokenizer(place)
    checkpoint = load(path, weights=False)
    check_vocabulary(checkpoint, path)
    _limit_length(checkpoint.tokenizer, checkpoint.config)
    return checkpoint.tokenizer


def _limit_length(
    tokenizer: Tokenizer, config: BertConfig, *, stretched: bool = False
) -> None:
    """Sets the maximum length of a sequence: of the tokenizer, or all positions.

    stretched: whether the user asked for more positions than the checkpoint has.
    """
    longest = tokenizer.model_max_length or config.max_positions
    if stretched:
        longest = config.max_positions
    tokenizer.model_max_length = min(longest, config.max_positions)


def _check_type(path: Any) -> None:
    """Raises UserError unless ``path`` is a path or a name."""
    if not isinstance(path, str | os.PathLike):
        raise UserError(
            f"the checkpoint is of type {type(path).__name__}; expected the path of a "
            "folder or a file, or the name of a model on the hub"
        )


def _without_weights(
    path: os.PathLike | str, changes: dict[str, Any], step: int | None
) -> Checkpoint:
    """The config and the tokenizer of a checkpoint; see :func:`load`.

    step: as for :func:`_read`.
    """
    if hub_name(path):
        source, folder = "huggingface", from_hub(path, weights=False)
        run = folder
    else:
        run = local = local_copy(path, model=True)
        if is_remote(path):
            run = open_remote(path)
        source, folder = find_files(local, run)
        if not folder.is_dir():  # a prefix of Google's files
            folder = folder.parent
    file = config_file(folder)
    settings = read_json(file, "the config of a checkpoint")
    with naming(file):
        if "model" in settings:  # a workdir
            check(settings, RunJson)
            if step is None:
                step = newest_step(run / CHECKPOINTS)
            config = run_config(settings, step, changes)
        else:
            check(settings, ConfigJson)
            config = config_from_dict(settings, **changes)
    tokenizer = find_tokenizer(folder)
    if "model" not in settings:
        with naming(file):
            check_padding(settings, config, tokenizer)
    return Checkpoint(config, {}, tokenizer, "none", source=source)


def _local_files(path: os.PathLike | str) -> Path:
    """``path`` if it is local, and otherwise its copy from a store or a hub."""
    if not hub_name(path):
        return local_copy(path, model=True)
    with unwatched():  # a download has its own timeouts
        # The other processes of this host find the files in its cache.
        on_leader(lambda: from_hub(path))
        return from_hub(path)


def _read(
    local: Path,
    run: os.PathLike,
    changes: dict[str, Any],
    step: int | None,
    average: str | int,
) -> Checkpoint:
    """Reads a checkpoint in any format.

    run: ``local``, or the remote workdir if ``local`` is a copy of its small files. step:
    the step of a run's checkpoint. None: the newest. average: see :func:`load`.
    """
    chosen = step, average
    if step is not None:
        return _read_workdir(local, run / CHECKPOINTS, changes, *chosen)
    source, path = find_files(local, run)
    if source == "bert_jax":
        return _read_workdir(path, run / CHECKPOINTS, changes, *chosen)
    if average:
        raise UserError(
            f"average={average!r} needs the workdir of pretraining, which {path} is not; "
            "leave average out"
        )
    if path.parent == local and path.name != BEST and source == "huggingface":
        _logger.warning(f"{local} has no weights; reading its newest, {path.name}")
    if source == "tensorflow":
        return read_tensorflow(path, **changes)
    return read_huggingface(path, **changes)


def _read_workdir(
    workdir: Path,
    checkpoints: Path,
    changes: dict[str, Any],
    step: int | None,
    average: str | int,
) -> Checkpoint:
    path = workdir / "config.json"
    expected = "the config of a run of bert_jax; copy it from the run"
    settings = with_remat(read_json(path, expected, RunJson))
    if "family" in settings:
        if (workdir / BEST).exists():
            instead = f"load {workdir}, which contains its best model"
            raise UserError(
                f"{workdir / CHECKPOINTS}/{step} is a checkpoint of a fine-tuning run, "
                f"which only the run itself reads; {instead}"
            )
        again = "start its command again to resume it"
        raise UserError(f"{workdir} is a fine-tuning run without a best model; {again}")
    with naming(path):
        pairs = settings.get("data", {}).get("examples", {}).get("next_sentence", True)
        trained_with = settings.get("text", {}).get("vocabulary")
        # Raises an error for wrong settings before the weights are read.
        run_config(settings, 0, changes)
        compute = from_settings(ComputeConfig, settings.get("compute", {}), "compute")
    # An objective may train other parts, such as another head or a generator.
    known = ("bert", "mlm", "nsp", "classifier", "qa_outputs", "bilstm", "dense")
    step, every = read_step(checkpoints, step, average)
    config = run_config(settings, step, changes)
    parts = ("pooler", "mlm", "nsp")
    if not pairs:
        parts = ("mlm",)
    if not pairs and every.pop("nsp", None):
        # This head and the pooler below it learn only from pairs. Without pairs, weight
        # decay only shrinks them.
        every["bert"].pop("pooler", None)
    params = {}
    for name in known:
        if name in every:
            params[name] = every.pop(name)
    # convert of version 0.1.0 also wrote head, labels, problem_type and extra.
    head = settings.get("head")
    if not head and "mlm" in params:
        head = "pretraining"
    head = head or "none"
    with naming(path):
        check(head, Head, "head")
    with naming(workdir):
        missing = check_params(params, config, head, parts)
    tokenizer = find_tokenizer(workdir)
    if tokenizer and trained_with and not tokenizer.has_fingerprint(trained_with):
        needed = "copy the vocabulary of the run to this folder"
        raise UserError(f"{workdir} has a different vocabulary from its run; {needed}")
    return Checkpoint(
        config=config,
        compute=compute,
        params=params,
        tokenizer=tokenizer,
        head=head,
        labels=tuple(settings.get("labels") or ()),
        problem_type=settings.get("problem_type"),
        extra=settings.get("extra") or {},
        source="bert_jax",
        init_from=settings.get("init_from", ""),
        missing=missing,
        unexpected=tuple(array_shapes(every)),
    )
