"""``bert_jax.vocabulary`` and ``bert_jax.prepare``: text for pretraining, from Python."""

import inspect
import itertools
import logging
import os
import shlex
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from bert_jax.data import preparation
from bert_jax.data.beam import prepare_with_beam
from bert_jax.data.corpus import left_out, read_documents
from bert_jax.data.corpus_formats import Reading
from bert_jax.data.preparation import Report
from bert_jax.data.tokenizer import FILES, Tokenizer, save_vocabulary, with_spaces
from bert_jax.data.tokenizer_files import find_vocabulary, load_tokenizer
from bert_jax.data.vocabulary_training import KINDS, extend_vocabulary, train_vocabulary
from bert_jax.errors import UserError, counted
from bert_jax.files import check_output, ending, expanded, is_remote, read_json
from bert_jax.settings import from_settings, python_value

Files = os.PathLike | str | Iterable[os.PathLike | str]
# A vocabulary file or its folder, a name on the Hub, a tokenizer, or a model of
# bert_jax.load.
Vocabulary = os.PathLike | str | Tokenizer | Any

logger = logging.getLogger(__name__)

_ENDINGS = {"wordpiece": ".txt", "sentencepiece": ".model", "bpe": ".json"}


def vocabulary(
    input: Files,
    output: os.PathLike | str,
    *,
    size: int = 30522,
    kind: str = "wordpiece",
    cased: bool = False,
    keep_accents: bool = False,
    extend: Vocabulary = "",
    words: int = 1000,
    input_format: str = "auto",
    text_field: str = "text",
    language: str = "en",
) -> Tokenizer:
    """Makes a vocabulary from text, writes it to a file, and returns its tokenizer.

    >>> tokenizer = bert_jax.vocabulary("wiki/*.txt", "vocab.txt", size=8000)
    >>> tokenizer.tokenize("The whales swim.")
    ['the', 'whale', '##s', 'swim', '.']

    input: files, folders or patterns, "tfds:NAME" or "python-docs"; one or several.
    output: the file, in .txt for WordPiece, in .model for SentencePiece and in .json for
      BPE. Its settings are written to the same folder: to tokenizer_config.json for
      vocab.txt, spiece.model and tokenizer.json, and to NAME_config.json for other names.
    size: number of tokens.
    kind: "wordpiece", like Google's; "sentencepiece"; or "bpe", a byte-level BPE like
      RoBERTa's.
    cased: whether capitals and accents are kept.
    keep_accents: whether lower-cased text keeps accents and vowel signs, as Hindi needs.
    extend: a WordPiece vocabulary that gets more words, instead of a new vocabulary: its
      file or folder, a name on the Hub, a tokenizer, or a model of ``bert_jax.load``. The
      new words are words of the text that it splits into several tokens, or does not know.
    words: maximum number of words that ``extend`` adds.
    input_format: "auto", or the format of all files; see the page docs/data.md.
    text_field: field of the text in JSONL and tfds rows.
    language: language of the text, to split its sentences.

    Raises UserError for wrong files and for arguments that have no effect.
    """
    options = {"size": size, "cased": cased, "keep_accents": keep_accents}
    options |= {"words": words, "text_field": text_field, "language": language}
    options |= {"kind": kind, "input_format": input_format}
    _check_types(vocabulary, options)
    output = _output(output)
    if extend:
        _check_unused(size=size, kind=kind, cased=cased, keep_accents=keep_accents)
    else:
        _check_unused(words=words)
    if kind not in KINDS:
        raise UserError(f"kind={kind!r}, expected one of {', '.join(KINDS)}")
    if cased or kind != "wordpiece":
        _check_unused(keep_accents=keep_accents)
    inputs, path = _inputs(input), Path(output)
    if ending(path) != _ENDINGS[kind]:
        expected = f"expected a {_ENDINGS[kind]} file for {kind}"
        raise UserError(f"output={path}, {expected}")
    if path.name == "vocab.json":  # is read together with merges.txt
        raise UserError(f"output={path}, expected another name, such as tokenizer.json")
    _check_alone(path)
    check_output(path, *inputs)
    if isinstance(extend, str | os.PathLike):
        check_output(path, expanded(extend))
    reading = Reading(input_format, text_field, language)
    documents = read_documents(inputs, reading)
    if kind == "bpe":  # as preparation encodes them
        documents = map(with_spaces, documents)
    sentences = itertools.chain.from_iterable(documents)
    if extend:
        tokenizer = extend_vocabulary(_tokenizer(extend, "extend"), sentences, words)
    else:
        tokenizer = train_vocabulary(
            sentences,
            size,
            kind=kind,
            lower_case=not cased,
            keep_accents=keep_accents,
        )
    save_vocabulary(tokenizer, path)
    logger.info(left_out(reading.dropped))
    return tokenizer


def prepare(
    input: Files,
    vocabulary: Vocabulary,
    output: os.PathLike | str,
    *,
    workers: int = 0,
    shards: int = 0,
    segmenter: str = "",
    input_format: str = "auto",
    text_field: str = "text",
    language: str = "en",
    beam: str | None = None,
) -> Report:
    """Tokenises text into a store that pretraining reads. Returns a report.

    The same call resumes an interrupted preparation.

    >>> report = bert_jax.prepare("wiki/*.txt", "vocab.txt", "data/wiki")
    >>> print(report)
    1,204 documents, 51,310 sentences, 1,402,377 tokens; 0.01% unknown tokens; ...
    >>> model = bert_jax.pretrain(text="data/wiki", steps=1000, model=sizes)

    input: files, folders or patterns, "tfds:NAME" or "python-docs"; one or several.
    vocabulary: its file or folder, a name on the Hub, a tokenizer, or a model of
      ``bert_jax.load``.
    output: folder of the store. With ``beam`` it may be the URL of a bucket.
    workers: number of processes; 0: as many as there are cores, at most 4.
    shards: number of files in the store; 0: by the size of the text.
    segmenter: finds Chinese words: "jieba", or "MODULE:FUNCTION".
    input_format: "auto", or the format of all files; see the page docs/data.md.
    text_field: field of the text in JSONL and tfds rows.
    language: language of the text, to split its sentences.
    beam: options of Apache Beam, which then does the work, such as
      "--runner=DirectRunner"; None: this machine does it.

    report.info has the numbers of documents, sentences and tokens. Raises UserError for
    wrong files, and if ``output`` contains text that was prepared with other settings.
    """
    options = {"workers": workers, "shards": shards, "segmenter": segmenter}
    options |= {"text_field": text_field, "language": language, "beam": beam}
    options["input_format"] = input_format
    _check_types(prepare, options)
    inputs, folder = _inputs(input), _output(output)
    tokenizer = _tokenizer(vocabulary, "vocabulary")
    settings = {"workers": workers, "shards": shards, "segmenter": segmenter}
    settings |= {"format": input_format, "text_field": text_field, "language": language}
    if beam is not None:
        options = shlex.split(beam)
        return prepare_with_beam(inputs, tokenizer, folder, options, **settings)
    if is_remote(folder):
        raise UserError(
            f"output={folder} is in an object store, which needs beam; set it"
        )
    return preparation.prepare(inputs, tokenizer, Path(folder), **settings)


def file_names(text: Any, argument: str) -> list[str]:
    """The files, folders and patterns of an argument.

    text: one name; or a list, an array or a column of names, or a table with one column.
    argument: name of the argument. Raises UserError for other values.
    """
    is_table = isinstance(text, Mapping) or hasattr(text, "columns")
    if is_table or hasattr(text, "column_names"):
        names = [*getattr(text, "column_names", getattr(text, "columns", text))]
        if len(names) != 1:
            actual = f"{argument} is a table with {counted(len(names), 'column')}"
            raise UserError(f"{actual}; expected one column, with the names of files")
        text = text[names[0]]
    text = python_value(text)
    if text is None or isinstance(text, str | os.PathLike):
        text = [text] if text else []
    if not isinstance(text, Iterable) or isinstance(text, bytes):
        raise UserError(f"{argument}={text!r:.80}, expected the names of files")
    inputs = [*text]
    for i, item in enumerate(inputs):
        if not isinstance(item, str | os.PathLike):
            actual = f"{argument}[{i}]={item!r:.80}"
            raise UserError(f"{actual}, expected the name of a file")
    return [*map(expanded, inputs)]


def _inputs(input: Files) -> list[str]:
    """The names in an argument ``input``. Raises UserError if there are none."""
    names = file_names(input, "input")
    if not names:
        raise UserError("input is empty; expected the name of at least one file")
    return names


def _output(output: Any) -> str:
    """The path in an argument ``output``. Raises UserError for another value."""
    if not isinstance(output, str | os.PathLike):
        raise UserError(f"output={output!r:.80}, expected the name of a file or folder")
    return expanded(output)


def _check_alone(path: Path) -> None:
    """Raises UserError if the folder of ``path`` has a vocabulary of another kind.

    Both would have the same file of settings, and only one vocabulary would be read. It is
    also raised for the vocabulary of prepared text, of a model or of a run.
    """
    if path.name not in FILES:
        return
    if path.is_file() and _has_owner(path.parent):
        raise UserError(
            f"output={path} is the vocabulary of the text or model in its folder, which "
            "would get other tokens; expected another folder"
        )
    for name in FILES:
        if name != path.name and path.with_name(name).is_file():
            raise UserError(
                f"output={path} is in the same folder as {name}, another vocabulary; "
                "expected another folder"
            )


def _has_owner(folder: Path) -> bool:
    """Whether a folder has prepared text, a model or a run."""
    for name in ("index.json", "bert_config.json"):
        if (folder / name).is_file():
            return True
    config = folder / "config.json"
    if not config.is_file():
        return False
    settings = read_json(config, "a config")
    return bool(settings.keys() & {"model_type", "hidden_size", "phases"})


def _tokenizer(source: Vocabulary, argument: str) -> Tokenizer:
    """A tokenizer, or the tokenizer of a file, a folder or a model."""
    source = getattr(source, "tokenizer", source)
    if isinstance(source, Tokenizer):
        return source
    if isinstance(source, str | os.PathLike):
        folder = Path(expanded(source))
        is_vocabulary = folder.is_dir() and find_vocabulary(folder)
        if is_vocabulary or ending(source) in _ENDINGS.values():
            return load_tokenizer(source)
        from bert_jax.interop.load import tokenizer  # imports JAX

        return tokenizer(source)
    actual = f"{argument} is of type {type(source).__name__}"
    raise UserError(f"{actual}; expected a file, a tokenizer, or a model with one")


def _check_types(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raises UserError for an option of another type than the function declares."""
    kinds = typing.get_type_hints(function)
    for name, value in options.items():
        from_settings(kinds[name], value, name)


def _check_unused(**values: Any) -> None:
    """Raises UserError for an argument of :func:`vocabulary` that has no effect."""
    parameters = inspect.signature(vocabulary).parameters
    for name, value in values.items():
        if value != parameters[name].default:
            other = "has no effect with the other arguments; leave it out"
            raise UserError(f"{name} {other}")
