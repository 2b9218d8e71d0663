"""The text of a run: a prepared store, or one that the run prepares for itself."""

import itertools
from collections.abc import Callable
from pathlib import Path

from bert_jax.data.corpus import read_documents
from bert_jax.data.preparation import prepare
from bert_jax.data.store import TokenStore
from bert_jax.data.tokenizer import Tokenizer, load_tokenizer
from bert_jax.data.vocabulary_training import train_vocabulary
from bert_jax.errors import UserError
from bert_jax.parallel.remote import RunFolder, local_copy
from bert_jax.training.config import DataConfig


def open_text(
    config: DataConfig, folder: RunFolder, log: Callable[[str], None]
) -> tuple[TokenStore, Tokenizer]:
    """Opens config.path, or config.corpus, prepared once into the workdir's text/.

    Of several processes, process 0 prepares; all must call it.
    """
    if config.path:
        directory = local_copy(config.path, last="index.json")
        if not directory.exists():
            raise UserError(
                f"{directory} holds no prepared text; run python -m bert_jax.vocabulary "
                f"--input TEXT --size {config.vocabulary_size} --output vocab.txt, then "
                "python -m bert_jax.prepare --input TEXT --vocabulary vocab.txt --output "
                f"{directory}, or set --config.data.path"
            )
    elif config.corpus:
        directory = folder.prepared(
            "text",
            last="index.json",
            make=lambda directory: _prepare(config, directory, log),
        )
    else:
        raise UserError(
            "the config names no text; set --config.data.path to the output of python -m "
            "bert_jax.prepare"
        )
    store = TokenStore(directory)
    tokenizer = load_tokenizer(directory)
    if tokenizer.fingerprint() != store.info.vocabulary_fingerprint:
        raise UserError(
            f"{directory} was prepared with another vocabulary than the one it holds; "
            "prepare the text again"
        )
    return store, tokenizer


def _prepare(config: DataConfig, directory: Path, log: Callable[[str], None]) -> None:
    """Writes vocabulary and store of config.corpus."""
    log(f"preparing {', '.join(config.corpus)} in {directory}")
    tokenizer = train_vocabulary(
        itertools.chain.from_iterable(read_documents(config.corpus)),
        config.vocabulary_size,
        lower_case=config.lower_case,
    )
    log(f"{directory}: {prepare(config.corpus, tokenizer, directory)}")
