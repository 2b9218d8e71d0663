"""The text of a pretraining, its checks, and the parameters that a run starts with."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath

from bert_jax.data.checksums import Check
from bert_jax.data.corpus import read_documents
from bert_jax.data.corpus_formats import Reading
from bert_jax.data.preparation import check_sources, prepare
from bert_jax.data.store import StoreInfo, TokenStore, open_store, read_info
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.vocabulary_training import train_vocabulary
from bert_jax.errors import UserError, naming
from bert_jax.files import read_json, write_json
from bert_jax.interop.find import CHECKPOINTS, split_step
from bert_jax.interop.load import load
from bert_jax.interop.surgery import stretched, with_new_words
from bert_jax.interop.train_state import newest_step
from bert_jax.model.config import BertConfig
from bert_jax.objectives.objective import Params
from bert_jax.parallel.processes import from_all, on_leader
from bert_jax.progress import Log, unwatched
from bert_jax.remote import local_copy
from bert_jax.training.config import DataConfig, TrainConfig
from bert_jax.training.workdir import RunFolder

_REQUEST = "request.json"  # beside the store of a corpus
# The states of a process's check of its text files.
_READING, _UNDAMAGED, _DAMAGED = range(3)
# Settings of the model that a run may choose. All others must be as in the checkpoint.
_FREE = (
    *("hidden_dropout", "attention_dropout", "initializer_range", "scaled_init"),
    *("pooling", "model_type", "rope_theta", "rope_factor", "local_rope_theta"),
    "causal",
)
# Settings of the model that a checkpoint is fitted to, or that its files leave open.
_FITTED = ("vocab_size", "max_positions", "activation")


def open_text(
    config: DataConfig, folder: RunFolder, log: Log, init_from: str = ""
) -> tuple[list[TokenStore], Tokenizer]:
    """Opens the prepared texts, or config.corpus, prepared once into the workdir's text/.

    init_from: a checkpoint whose vocabulary the corpus is prepared with. Without one the
    vocabulary is trained on the corpus.

    Process 0 prepares the text. All processes must call this function.
    """
    config.check_text()
    if config.corpus:
        directory = folder.prepared(
            "text",
            last="index.json",
            make=lambda directory: prepare_corpus(config, directory, log, init_from),
        )
        store, tokenizer = open_store(directory)
        _check_prepared(config, store, tokenizer, init_from)
        if not newest_step(folder.checkpoints):  # a run that has begun keeps its text
            on_leader(lambda: _check_corpus(config, store))
        return [store], tokenizer
    opened = [open_store(local_copy(path)) for path in config.prepared]
    stores, tokenizers = map(list, zip(*opened, strict=True))
    for store in stores:
        if not tokenizers[0].has_fingerprint(store.info.vocabulary_fingerprint):
            raise UserError(
                f"{store.directory} has another vocabulary than {stores[0].directory}; "
                "prepare all texts of data.mixture with one vocabulary"
            )
    return stores, tokenizers[0]


def _check_prepared(
    config: DataConfig, store: TokenStore, tokenizer: Tokenizer, init_from: str
) -> None:
    """Raises UserError if the text of a workdir was prepared with other settings."""
    settings = store.info.settings
    request = _request(config, init_from)
    before: dict[str, Any] = {
        "corpus": [*settings.get("inputs", ())],
        "language": settings.get("language", "en"),
        "lower_case": tokenizer.lower_case,
    }
    path = store.directory / _REQUEST
    if path.exists():  # text that version 0.2 prepared lacks this file
        before |= read_json(path, "the settings of a prepared text")
    for name, expected in request.items():
        actual = before.get(name, expected)
        if actual != expected:
            raise UserError(
                f"{store.directory} was prepared with data.{name}={actual}, expected "
                f"{expected}; use another workdir, or delete this folder"
            )


def _check_corpus(config: DataConfig, store: TokenStore) -> None:
    """Raises UserError if the files of the corpus changed after their preparation."""
    text = store.info.settings.get("text")
    if text:
        with unwatched():
            check_sources(store.directory, config.corpus, text, config.language)


def _request(config: DataConfig, init_from: str) -> dict[str, Any]:
    """The settings from which the vocabulary and the store of a corpus are made."""
    request: dict[str, Any] = {"corpus": [*config.corpus], "language": config.language}
    request["init_from"] = "a checkpoint"  # it may move
    if not init_from:
        request["init_from"] = ""
        for name in ("vocabulary_size", "lower_case", "keep_accents"):
            request[name] = getattr(config, name)
    return request


def recorded_text(infos: Sequence[StoreInfo]) -> dict[str, Any]:
    """The "text" of a run's config.json. A store without checksums has no "content"."""
    text = {
        "documents": sum(info.documents for info in infos),
        "tokens": sum(info.tokens for info in infos),
        "vocabulary": infos[0].vocabulary_fingerprint,
    }
    contents = [info.fingerprint() for info in infos]
    if all(contents):
        text["content"] = " ".join(contents)
    return text


def text_of(config: DataConfig) -> dict[str, Any]:
    """The "text" of a run on the prepared texts of ``config``."""
    return recorded_text([read_info(local_copy(path)) for path in config.prepared])


def prepare_corpus(
    config: DataConfig, directory: Path, log: Log, init_from: str = ""
) -> None:
    """Writes vocabulary and store of config.corpus. init_from: see :func:`open_text`."""
    log(f"preparing {', '.join(config.corpus)} in {directory}")
    if init_from:
        tokenizer = load(init_from, weights=False).tokenizer
        if tokenizer is None:
            needed = "put its vocab.txt beside its config.json"
            raise UserError(f"{init_from} has no vocabulary for data.corpus; {needed}")
    else:
        documents = read_documents(config.corpus, Reading(language=config.language))
        tokenizer = train_vocabulary(
            itertools.chain.from_iterable(documents),
            config.vocabulary_size,
            lower_case=config.lower_case,
            keep_accents=config.keep_accents,
        )
    report = prepare(config.corpus, tokenizer, directory, language=config.language)
    # The store lacks some of these settings, such as the requested number of tokens.
    write_json(directory / _REQUEST, _request(config, init_from))
    log(f"{directory}: {report}")


def with_vocabulary(config: TrainConfig, vocab_size: int, log: Log) -> TrainConfig:
    """The config for a text whose vocabulary has ``vocab_size`` tokens.

    A small text may yield a smaller vocabulary than ``data.vocabulary_size``. Raises
    UserError if the model does not fit the text.
    """
    model, data = config.model, config.data
    trained = data.corpus and not config.init_from
    if trained and vocab_size < model.vocab_size == data.vocabulary_size:
        log(
            f"the text yields a vocabulary of only {vocab_size:,} tokens "
            f"({data.vocabulary_size:,} were requested)"
        )
        config = replace(config, model=replace(model, vocab_size=vocab_size))
    elif vocab_size != model.vocab_size:
        expected = f"{vocab_size}, the number of tokens in the vocabulary of the text"
        raise UserError(f"model.vocab_size={model.vocab_size}, expected {expected}")
    return config


def check_start(config: TrainConfig) -> None:
    """Raises UserError if the sizes of ``init_from`` and the config differ.

    Reads no weights. The vocabulary, the positions and the activation may differ, because
    :func:`initial_params` fits them to the config and checks them.
    """
    known = load(config.init_from, weights=False).config
    _check_sizes(config, known, leave_out=(*_FREE, *_FITTED))


def _check_sizes(
    config: TrainConfig, known: BertConfig, leave_out: Sequence[str]
) -> None:
    """Raises UserError if a setting of the model is not as in the checkpoint.

    known: the checkpoint's settings. leave_out: names of settings that may differ.
    """
    for name, expected in vars(known).items():
        value = getattr(config.model, name)
        if name not in leave_out and value != expected:
            raise UserError(
                f"model.{name}={value!r}, but {config.init_from} has {expected!r}; leave "
                f"out model.{name}, or set model.{name}={expected}"
            )


def initial_params(config: TrainConfig, tokenizer: Tokenizer, log: Log) -> Params:
    """The parameters of ``init_from``.

    Raises UserError if the sizes of the checkpoint and the config differ, or if the
    vocabulary of the text neither equals nor extends the vocabulary of the checkpoint.
    """
    path, changes = config.init_from, {"scan_layers": config.compute.scan_layers}
    if config.model.activation == "gelu_tanh":
        known = load(path, weights=False).config
        if known.activation == "gelu":  # Google's files have "gelu" for both forms
            changes["activation"] = "gelu_tanh"
    checkpoint = load(path, **changes)
    if known := checkpoint.tokenizer:
        with naming(path):
            checkpoint = with_new_words(checkpoint, tokenizer)
        if count := tokenizer.vocab_size - known.vocab_size:
            log(f"{count:,} new words start as the mean of their former tokens")
    before, positions = checkpoint.config.max_positions, config.model.max_positions
    if positions > before:
        log(f"{path}: max_positions is raised from {before} to {positions}")
        checkpoint = stretched(checkpoint, positions, path)
    _check_sizes(config, checkpoint.config, leave_out=_FREE)
    log(f"starts with the parameters of {path}")
    return checkpoint.params


def checkpoint_of_run(path: str) -> tuple[epath.Path, int | None]:
    """The folder of a run's checkpoints, and the step of the checkpoint to start from.

    path: a workdir, or one of its checkpoints. For a workdir the step is None, which means
    the newest checkpoint.
    """
    workdir, step = split_step(path)
    checkpoints = epath.Path(workdir) / CHECKPOINTS
    if not newest_step(checkpoints):
        needed = "expected the workdir of a run, or one of its checkpoints"
        raise UserError(
            f"init_state=True: init_from={path} has no checkpoints; {needed}"
        )
    return checkpoints, step


@contextlib.contextmanager
def checked(stores: Sequence[TokenStore], log: Log) -> Iterator[Callable[..., bool]]:
    """Compares the checksums of all texts in the background, and yields Job.check_data.

    Each process starts at another place of the text.
    """
    with Check(stores, jax.process_index() / jax.process_count()) as check:
        yield _in_all_processes(check, log)


def _in_all_processes(check: Check, log: Log) -> Callable[..., bool]:
    """The function Job.check_data, which raises in all processes if one finds damage."""
    unfinished = True

    def check_data(*, wait: bool) -> bool:
        nonlocal unfinished
        if not unfinished:
            return False
        error = None
        state = _READING
        try:
            if wait and not check.finished():
                log("the first save waits until the text is checked")
            if check.finished(wait):
                state = _UNDAMAGED
        except UserError as found:
            state, error = _DAMAGED, found
        states = from_all(state)
        if error is not None:
            raise error
        if others := np.flatnonzero(states == _DAMAGED).tolist():
            names = ", ".join(map(str, others))
            raise UserError(f"process {names} found a damaged file and prints its name")
        unfinished = (states == _READING).any()
        return wait

    return check_data
