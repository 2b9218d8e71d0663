"""Reads a checkpoint of any origin, and writes one as a workdir of ours."""

import dataclasses
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath
from flax import linen as nn

from bert_jax.data.tokenizer import Tokenizer, WordPieceTokenizer
from bert_jax.data.tokenizer_files import find_vocabulary, load_tokenizer
from bert_jax.data.wordpiece import PREFIX
from bert_jax.errors import UserError, naming
from bert_jax.files import is_remote, new_folder, read_json, write_json
from bert_jax.interop.checkpoint import (
    Checkpoint,
    Params,
    check_params,
    initial_shapes,
)
from bert_jax.interop.config_json import split_changes, with_compute
from bert_jax.interop.find import CHECKPOINTS, find_files, from_hub, hub_name
from bert_jax.interop.modules import EXTRA
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.encoder import with_scan
from bert_jax.model.heads import BertWithBiLstm
from bert_jax.parallel.deadline import unwatched
from bert_jax.parallel.processes import on_leader
from bert_jax.parallel.remote import local_checkpoint
from bert_jax.parallel.sharding import array_shapes, path_name
from bert_jax.settings import from_settings
from bert_jax.training.checkpoints import read_params, write_params

_logger = logging.getLogger(__name__)
_NEW_HEAD = "set fresh_head=True to begin with a new head"


def load(path: os.PathLike | str, **changes: Any) -> Checkpoint:
    """Reads config, parameters and tokenizer of a BERT, whoever wrote it.

    path: a Hugging Face folder, a folder or prefix of Google's bert_model.ckpt, or a
      workdir of ours: of pretraining (its newest checkpoint), of fine-tuning (its best).
      It may be a URL such as gs://bucket/folder, or the name of a model on the hub of
      huggingface_hub, such as google-bert/bert-base-uncased, with @REVISION or without.
      What exists here comes first.
    changes: fields of BertConfig that replace what the files say, such as the
      activation="gelu_tanh" that Google's files cannot express; and fields of
      ComputeConfig, such as dtype="bfloat16" or scan_layers=True. max_positions: see
      stretched.

    Raises UserError if there is no checkpoint, if a tensor of the encoder is missing or
    has another shape than the config gives, or if the vocabulary has more tokens than the
    word table has rows. Rows without a token are kept, and never predicted.
    """
    model_changes, compute_changes = split_changes(changes)
    positions = model_changes.pop("max_positions", 0)
    local = _local_files(path)
    run = epath.Path(path) if is_remote(path) else local
    checkpoint = _read(local, run, model_changes)
    if positions:
        checkpoint = stretched(checkpoint, positions, path)
    compute = dataclasses.replace(checkpoint.compute, **compute_changes)
    tokenizer, config = checkpoint.tokenizer, checkpoint.config
    if tokenizer is not None and tokenizer.vocab_size != config.vocab_size:
        if tokenizer.vocab_size > config.vocab_size:
            raise UserError(
                f"{path}: the vocabulary has {tokenizer.vocab_size} tokens, the word table "
                f"{config.vocab_size} rows; expected a row for each token, so put there "
                "the vocabulary that came with the checkpoint"
            )
        _logger.warning(
            f"{path}: the word table has {config.vocab_size:,} rows for "
            f"{tokenizer.vocab_size:,} tokens; the other rows are never predicted"
        )
    with naming(path):
        check_finite(checkpoint.params)
    params = with_scan(checkpoint.params, compute.scan_layers)
    return dataclasses.replace(checkpoint, params=params, compute=compute)


def with_new_words(checkpoint: Checkpoint, tokenizer: Tokenizer) -> Checkpoint:
    """The checkpoint with a longer vocabulary that starts with its own.

    The row of a new word in the word table, and its bias in the MLM head, is the mean of
    those of the tokens that the word was before. Rows that have no token are left out.
    Raises UserError where the vocabularies do not fit.
    """
    old, config = checkpoint.tokenizer, checkpoint.config
    longer = (
        isinstance(tokenizer, WordPieceTokenizer)
        and tokenizer.tokens[: old.vocab_size] == old.tokens
        and tokenizer.with_tokens(old.tokens).fingerprint() == old.fingerprint()
    )
    if not longer and tokenizer.fingerprint() != old.fingerprint():
        raise UserError(
            "the text was prepared with another vocabulary, or with other rules (lower "
            "case, accents, longest word); prepare the text with the checkpoint's "
            "vocabulary, or with one that python -m bert_jax.vocabulary --extend makes of "
            "it"
        )
    config = dataclasses.replace(config, vocab_size=tokenizer.vocab_size)
    words = [token.removeprefix(PREFIX) for token in tokenizer.tokens[old.vocab_size :]]
    # A word of nothing but accents or control characters has no tokens.
    pieces = [ids if len(ids) else [old.unk_id] for ids in old.encode_batch(words)]

    def grown(rows: np.ndarray, size: int) -> np.ndarray:
        new = [rows[ids].mean(axis=0) for ids in pieces]
        table = np.stack([*rows[: old.vocab_size], *new]).astype(rows.dtype)
        padding = [(0, size - len(table)), *[(0, 0)] * (rows.ndim - 1)]
        return np.pad(table, padding)

    params = jax.tree.map(np.asarray, checkpoint.params)
    word = params["bert"]["embeddings"]["word"]
    word["embedding"] = grown(word["embedding"], config.word_rows)
    if "mlm" in params:
        bias = params["mlm"]["output_bias"]
        params["mlm"]["output_bias"] = grown(bias, config.vocab_size)
    return dataclasses.replace(
        checkpoint, config=config, params=params, tokenizer=tokenizer
    )


def check_finite(params: Mapping[str, Any]) -> None:
    """Raises UserError for a parameter that is no number: every answer would be none."""
    for place, array in jax.tree_util.tree_leaves_with_path(params):
        if not np.isfinite(array).all():
            raise UserError(
                f"{path_name(place)} has values that are no finite numbers, as of a run "
                "that diverged; take an earlier checkpoint"
            )


def check_types(token_type_ids: Iterable[np.ndarray], config: BertConfig) -> None:
    """Raises UserError if the model cannot tell the second text of a pair."""
    types = config.type_vocab_size
    if any(ids.max(initial=0) >= types for ids in token_type_ids):
        raise UserError(
            f"the model has type_vocab_size={types}, and pairs of texts need 2; take "
            "another checkpoint, or join the texts of a pair"
        )


def stretched(checkpoint: Checkpoint, positions: int, path: object) -> Checkpoint:
    """A checkpoint at ``path`` for texts of up to so many tokens.

    Its own positions stay, so shorter texts are computed as before. Those beyond are
    interpolated from the table as if it were stretched over all, and want training. Raises
    UserError for fewer positions than there are.
    """
    config = checkpoint.config
    if positions < config.max_positions:
        raise UserError(
            f"max_positions={positions}, but {path} has {config.max_positions}; leave it "
            "out, or set it to more"
        )
    config = dataclasses.replace(config, max_positions=positions)
    bert = checkpoint.params["bert"]
    embeddings = dict(bert["embeddings"])
    if "position" in embeddings:
        old_PD = embeddings["position"]["embedding"]
        last = len(old_PD) - 1
        places_P = np.linspace(0, last, positions)[len(old_PD) :]
        low_P, high_P = np.floor(places_P).astype(int), np.ceil(places_P).astype(int)
        share_P1 = (places_P - low_P)[:, None]
        new_PD = (1 - share_P1) * old_PD[low_P] + share_P1 * old_PD[high_P]
        table_PD = np.concatenate([old_PD, new_PD.astype(np.float32)])
        embeddings["position"] = {"embedding": table_PD}
    params = checkpoint.params | {"bert": bert | {"embeddings": embeddings}}
    return dataclasses.replace(checkpoint, config=config, params=params)


def opened(
    source: Checkpoint | os.PathLike | str, dtype: str | None = None
) -> tuple[Checkpoint, str]:
    """A checkpoint that is loaded, or the one at a path; and what errors call it.

    dtype: what it computes in, of ComputeConfig, if not in its own.
    """
    name = "the checkpoint"
    if not isinstance(source, Checkpoint):
        source, name = load(source), os.fspath(source)
    if dtype:
        compute = dataclasses.replace(source.compute, dtype=dtype)
        source = dataclasses.replace(source, compute=compute)
    return source, name


def check_vocabulary(checkpoint: Checkpoint, path: object) -> None:
    """Raises UserError if the checkpoint at ``path`` cannot read text."""
    if checkpoint.tokenizer is None:
        raise UserError(
            f"{path} has no vocabulary; put the vocab.txt that belongs to the checkpoint "
            "beside its config.json"
        )


def check_length(max_length: int, checkpoint: Checkpoint, setting: str) -> None:
    """Raises UserError if sequences would be longer than the position table."""
    positions = checkpoint.config.max_positions
    if max_length > positions:
        raise UserError(
            f"max_length={max_length} is over the position table of {positions}; set "
            f"{setting} to {positions} or less"
        )


def head_params(
    checkpoint: Checkpoint,
    model: nn.Module,
    head: str,
    labels: Sequence[str],
    *,
    fresh_head: bool = False,
) -> tuple[Params, list[str]]:
    """What the checkpoint gives a model with this head; and the parts that it lacks.

    A head of the same kind and labels is kept, as between two runs on one label set,
    unless ``fresh_head``. Raises UserError for one of the same kind that does not fit.
    """
    bilstm = isinstance(model, BertWithBiLstm)
    shapes = initial_shapes(model)
    bert = checkpoint.params["bert"]
    if not (bilstm and model.feature_config.layers):  # of a whole frozen encoder
        # A pooler that this head does not look at is left behind.
        bert = {name: part for name, part in bert.items() if name in shapes["bert"]}
    given = {"bert": bert}
    new = [f"bert/{part}" for part in shapes["bert"] if part not in bert]
    name = next(iter(shapes.keys() - {"bert"}), None)
    if name is None:  # vectors
        modules = checkpoint.extra.get(EXTRA, {})
        prompt = modules.get("prompts", {}).get(modules.get("default_prompt_name"))
        if "dense" in checkpoint.params or prompt:
            raise UserError(
                "the checkpoint has Dense modules or a default prompt, which encode alone "
                "applies; compare the vectors of encode, or remove modules.json"
            )
        return given, new
    same_kind = checkpoint.head == ("features" if bilstm else head)
    if not same_kind or fresh_head or name not in checkpoint.params:
        return given, [*new, name]
    given[name] = checkpoint.params[name]
    if bilstm:
        _check_bilstm(checkpoint, model, shapes[name], labels)
    else:
        _check_head(given[name], shapes[name])
        _check_labels(checkpoint.labels, labels)
    return given, new


def _check_head(found: Params, expected: Params) -> None:
    outputs, needed = (part["kernel"].shape[-1] for part in (found, expected))
    if outputs != needed:
        raise UserError(
            f"the checkpoint's head has {outputs} outputs, the task needs {needed}; "
            f"{_NEW_HEAD}"
        )


def _check_bilstm(
    checkpoint: Checkpoint,
    model: BertWithBiLstm,
    expected: Params,
    labels: Sequence[str],
) -> None:
    _check_labels(checkpoint.extra.get("data", {}).get("labels", ()), labels)
    sizes, found = (
        jax.tree.map(np.shape, tree) for tree in (expected, checkpoint.params["bilstm"])
    )
    own = model.feature_config.layers
    layers = checkpoint.extra.get("features", {}).get("layers", own)
    if sizes != found or tuple(layers) != own:
        raise UserError(
            "the checkpoint's BiLSTM is for other layers, or of other sizes, than "
            f"features says; set them as they were, or {_NEW_HEAD}"
        )


def _check_labels(found: Sequence[str], labels: Sequence[str]) -> None:
    if labels and found and tuple(labels) != tuple(found):
        raise UserError(
            f"the checkpoint's head was trained for {', '.join(found)}, the task has "
            f"{', '.join(labels)}; {_NEW_HEAD}"
        )


def save_workdir(directory: Path | str, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint as a workdir that :func:`load` reads, whole or not at all.

    Raises UserError if ``directory`` is not empty.
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
        write_params(folder / CHECKPOINTS, checkpoint.params)
        write_json(folder / "config.json", settings)


def _local_files(path: os.PathLike | str) -> Path:
    """``path`` as one of this machine: itself, or a copy from a store or a hub."""
    if not hub_name(path):
        return local_checkpoint(path)
    with unwatched():  # a download has timeouts of its own
        # Processes of the same host then find the files in its cache.
        on_leader(lambda: from_hub(path))
        return from_hub(path)


def _read(local: Path, run: os.PathLike, changes: dict[str, Any]) -> Checkpoint:
    """run: what ``local`` is, or is the copy of; a run's checkpoints are read there."""
    source, path = find_files(local, run)
    if source == "bert_jax":
        return _read_workdir(path, run / CHECKPOINTS, changes)
    # Imported here because our own workdirs need no table of foreign names.
    if source == "tensorflow":
        from bert_jax.interop.tensorflow import read_tensorflow

        return read_tensorflow(path, **changes)
    from bert_jax.interop.huggingface import read_huggingface

    return read_huggingface(path, **changes)


def _had_pairs(settings: Mapping[str, Any]) -> bool:
    """Whether a run's examples were pairs of texts, which train the NSP head."""
    for group in ("data", "examples"):
        settings = settings.get(group)
        if not isinstance(settings, Mapping):
            return True
    return settings.get("next_sentence", True)


def _read_workdir(
    workdir: Path, checkpoints: Path, changes: dict[str, Any]
) -> Checkpoint:
    path = workdir / "config.json"
    expected = "the config of a run of bert_jax; copy it from where the run was"
    settings = with_compute(read_json(path, expected))
    if not isinstance(settings.get("model"), Mapping):
        raise UserError(f"{path} has no BERT in its group model; expected {expected}")
    with naming(path):
        config = from_settings(BertConfig, settings["model"] | changes, "model")
        compute = from_settings(ComputeConfig, settings.get("compute", {}), "compute")
    # An objective may train more than a BERT: another head, a generator.
    known = ("bert", "mlm", "nsp", "classifier", "qa_outputs", "bilstm", "dense")
    every = read_params(checkpoints)
    if not _had_pairs(settings):
        every.pop("nsp", None)  # a head that the run did not train
    params = {name: every[name] for name in known if name in every}
    others = {name: part for name, part in every.items() if name not in known}
    head = settings.get("head") or ("pretraining" if "mlm" in params else "none")
    with naming(workdir):
        missing = check_params(params, config, head)
    tokenizer = load_tokenizer(workdir) if find_vocabulary(workdir) else None
    text = settings.get("text")
    trained_with = text.get("vocabulary") if isinstance(text, Mapping) else None
    checked = tokenizer is not None and trained_with is not None
    if checked and not tokenizer.has_fingerprint(trained_with):
        raise UserError(
            f"{workdir}: its vocabulary is not the one that the run was trained with; "
            "copy the vocabulary from where the run was"
        )
    return Checkpoint(
        config=config,
        compute=compute,
        params=params,
        tokenizer=tokenizer,
        head=head,
        labels=settings.get("labels") or (),
        problem_type=settings.get("problem_type"),
        extra=settings.get("extra") or {},
        source="bert_jax",
        missing=missing,
        unexpected=tuple(array_shapes(others)),
    )
