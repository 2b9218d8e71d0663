"""Inputs to documents: files, folders, globs, tensorflow-datasets and python-docs.

An input is one of:
  a file, a folder (every file below it) or a glob, on this machine or in an object store
    (gs://). fsspec reads them, even if they are compressed (.gz, .bz2, .xz);
  ``tfds:NAME[/CONFIG][:SPLIT]``, a data set that tensorflow-datasets has prepared;
  ``python-docs``, the English text that every Python contains.
Documents are read one at a time, so memory does not depend on the size of the corpus.
"""

import collections
import contextlib
import glob
import hashlib
import io
import logging
import lzma
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import fsspec

from bert_jax.data import python_docs
from bert_jax.data.corpus_formats import (
    FORMATS,
    PASSAGES,
    Documents,
    Reading,
    detect_format,
    file_suffixes,
    text_sentences,
)
from bert_jax.data.sentences import check_language, split_sentences
from bert_jax.errors import UserError, counted, listed
from bert_jax.files import (
    LONGEST_LINE,
    check_line_end,
    decode,
    is_remote,
    open_remote,
)
from bert_jax.progress import Progress

PYTHON_DOCS = "python-docs"
TFDS = "tfds:"  # prefix of an input that names a data set

_HEAD = 1 << 16  # bytes at the start of a file from which its format is detected
# Estimated ratio of text to compressed file, for shards and progress.
_COMPRESSION_RATIO = 3
# Titles of wiki40b. They end at the next marker.
_WIKI40B_HEADING = r"(?s)_START_(?:ARTICLE|SECTION)_.*?(?=_START_[A-Z]+_|\Z)"

# Suffixes of tables and of text with tags. None of the formats removes their markup.
_MARKUP = {".csv", ".tsv", ".html", ".htm", ".xml"}

logger = logging.getLogger(__name__)


class Source(NamedTuple):
    """One file, one split of a data set, or Python's own text.

    size: bytes of text, estimated for compressed files and tfds. format: a key of FORMATS,
    "tfds" or PYTHON_DOCS. splittable: whether :func:`read_source` can start and stop inside
    the source.
    """

    name: str
    format: str
    size: int
    splittable: bool = False


def read_documents(inputs: Sequence[str], reading: Reading | None = None) -> Documents:
    """Yields the documents of all inputs, in a fixed order, one at a time.

    A document is a list of its sentences. No sentence is empty or has spaces around it.
    Shows a progress bar. Raises UserError if an input does not exist, is empty or is not
    text. An input of blank lines has no documents.
    """
    reading = reading or Reading()
    sources = find_sources(inputs, reading)
    total = sum(source.size for source in sources)
    with Progress("reading", total=total, unit="B", unit_scale=True) as progress:
        for source in sources:
            before = progress.n
            for offset, document in read_source(source, 0, source.size, reading):
                yield document
                progress.update(before + min(offset, source.size) - progress.n)
            progress.update(before + source.size - progress.n)


def left_out(counts: Mapping[str, int]) -> str:
    """A phrase for the counts of ``Reading.dropped``."""
    return f"left out: {counts[PASSAGES]:,} {PASSAGES}"


def find_sources(inputs: Sequence[str], reading: Reading) -> list[Source]:
    """The sources of all inputs. Files of a folder or a glob are sorted by name.

    Skips empty and hidden files in folders and globs. Logs the formats of the files.
    """
    check_language(reading.language)
    sources = list_sources(inputs, reading)
    formats = collections.Counter(source.format for source in sources)
    chosen = ", ".join(f"{counted(n, 'file')} as {name}" for name, n in formats.items())
    logger.info("reading %s (input_format=%s)", chosen, reading.format)
    if reading.format == "auto":
        _warn_of_markup(sources)
    return sources


def list_sources(inputs: Sequence[str], reading: Reading) -> list[Source]:
    """The sources of :func:`find_sources`, without a log."""
    sources = []
    for text in inputs:
        sources += _expand(text, reading)
    return sources


def _warn_of_markup(sources: Iterable[Source]) -> None:
    """Warns of tables and of files with tags, which are read as plain text."""
    names = []
    for source in sources:
        is_plain = source.format in ("lines", "paragraphs")
        if is_plain and file_suffixes(source.name) & _MARKUP:
            names.append(source.name)
    if names:
        logger.warning(
            f"{names[0]} is read as plain text, with its columns or tags "
            f"({counted(len(names), 'such file')}); write its texts into a JSONL file, or "
            "set input_format if it is plain text"
        )


def _expand(text: str, reading: Reading) -> list[Source]:
    if not text:  # not the current folder
        raise UserError("the name of an input is empty; expected a file or a folder")
    if text == PYTHON_DOCS:
        return [Source(text, PYTHON_DOCS, python_docs.SIZE)]
    if text.startswith(TFDS):
        rows = find_dataset(text)
        # A slice of a split has no size.
        size = rows.dataset_info.splits[rows.split].num_bytes
        size = int(size or 1000 * len(rows) or 1)
        return [Source(text, "tfds", size, splittable=True)]
    if is_remote(text):
        open_remote(text)  # raises UserError if no library reads this store
    store, path = fsspec.core.url_to_fs(text)
    folder, paths = path, store.find(path)
    if not paths and glob.has_magic(text):
        folder = re.split(r"[*?[]", path)[0].rpartition("/")[0]
        paths = filter(store.isfile, store.glob(path))
    sources: list[Source] = []
    for name in sorted(paths, key=lambda path: path.split("/")):
        if "/." in name.removeprefix(folder):  # hidden
            continue
        if is_remote(text):
            name = store.unstrip_protocol(name)
        sources += _file_sources(name, reading)
    if not sources:
        raise UserError(f"{text:.200} {_without_text(store, path)}")
    return sources


def _without_text(store: fsspec.AbstractFileSystem, path: str) -> str:
    """Why an input has no text, for a message."""
    if glob.has_magic(path) and not store.exists(path):
        return "is a pattern that matches no file with text; expected paths of files"
    if store.isdir(path):
        return "is a folder without text: its files are empty or hidden"
    if store.exists(path):
        return "is an empty file; expected text"
    return (
        "does not exist; expected the path of a file or a folder, or a pattern, not the "
        "text itself"
    )


def _file_sources(name: str, reading: Reading) -> Iterator[Source]:
    """Yields the source of a file, or nothing if the file is empty. Reads its start."""
    with open_text(name) as file:
        head = file.read(_HEAD)
    if not head:
        return
    text, format = decode(head, name, cut=True), reading.format
    if format == "auto":
        format = detect_format(name, text, reading.language)
    store, path = fsspec.core.url_to_fs(name)
    size = store.size(path)
    splittable = FORMATS[format].boundary is not None
    if fsspec.utils.infer_compression(name):
        size *= _COMPRESSION_RATIO
        splittable = False
    yield Source(name, format, size, splittable)


def fingerprint(source: Source) -> str:
    """A hash of a file's content, or of a remote object's size and time.

    Reads local files completely, which takes about a hundredth of the preparation's time.
    """
    if source.format == PYTHON_DOCS:
        return python_docs.FINGERPRINT
    if source.format == "tfds":
        rows = find_dataset(source.name)
        version = str(rows.dataset_info.version), str(rows.split), len(rows)
    elif is_remote(source.name):
        store, path = fsspec.core.url_to_fs(source.name)
        version = store.size(path), store.modified(path)
    else:
        with Path(source.name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    return hashlib.sha256(repr(version).encode()).hexdigest()[:16]


def read_source(
    source: Source, start: int, stop: int, reading: Reading
) -> Iterator[tuple[int, list[str]]]:
    """Yields each document of a source, after the number of bytes that precede it.

    A splittable source is read from byte ``start`` to byte ``stop``. Ranges that cover the
    source give every document exactly once. In the paragraphs format, the end of a range
    may cut a document between two paragraphs, and a heading without other text in its
    range is read as text.
    """
    if source.format == PYTHON_DOCS:
        for document in python_docs.read_documents():
            yield 0, document
    elif source.format == "tfds":
        yield from _read_dataset(source, start, stop, reading)
    else:
        lines = _Lines(source, start, stop)
        try:
            for document in FORMATS[source.format].read(lines, reading):
                yield lines.offset, document
        except UserError as error:
            raise UserError(f"{_locate(source, lines.offset)}: {error}") from error


class _Lines:
    """The lines of a source, without line ends, in bytes [start, stop).

    The first line is the first boundary at or after ``start``; the lines end before the
    first boundary at or after ``stop``. A source that is not splittable is read
    completely. offset: byte offset of the newest line.
    """

    def __init__(self, source: Source, start: int, stop: int):
        self.offset, self._stop, self._source = start, stop, source

    def __iter__(self) -> Iterator[str]:
        boundary = re.compile(FORMATS[self._source.format].boundary or "")
        in_range = self.offset == 0
        with open_text(self._source.name) as file:
            if not in_range:  # skip to the start of the next line
                file.seek(self.offset - 1)
                self.offset += len(file.readline(LONGEST_LINE)) - 1
            while raw := file.readline(LONGEST_LINE):
                if len(raw) >= LONGEST_LINE:
                    raise UserError(
                        f"the line is over {LONGEST_LINE >> 20} MiB long; break it up"
                    )
                line = decode(raw, "the line")
                if self.offset == 0 and line.count("\r") > 1:  # one may be in a text
                    check_line_end(line)
                line = line.rstrip("\r\n")
                ended = self.offset >= self._stop and self._source.splittable
                if ended and boundary.match(line):
                    return
                in_range = in_range or bool(boundary.match(line))
                if in_range:
                    yield line
                self.offset += len(raw)


@contextlib.contextmanager
def open_text(name: str | Path) -> Iterator[BinaryIO]:
    """Opens a file to read bytes. Decompresses it by its suffix.

    Raises UserError for a damaged compressed file.
    """
    name = str(name)
    try:
        with (
            fsspec.open(name, "rb", compression="infer") as file,
            io.BufferedReader(file, 1 << 20) as text,
        ):
            yield text
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if getattr(error, "errno", None):
            raise
        raise UserError(f"{name} is damaged ({error}); copy it again") from error


def _locate(source: Source, offset: int) -> str:
    """The file and the line number, counted from 1, of a byte offset."""
    number = 1
    with open_text(source.name) as file:
        while offset > 0:  # in blocks, because a line may be too long for the memory
            block = file.read(min(offset, 1 << 20))
            if not block:
                break
            number += block.count(b"\n")
            offset -= len(block)
    return f"{source.name}:{number}"


class MissingSplitError(UserError):
    """A data set or a folder lacks a split."""


def find_dataset(text: str) -> Sequence[dict[str, Any]]:
    """The rows of ``tfds:NAME[/CONFIG][:SPLIT]`` below $TFDS_DATA_DIR.

    Default split: "train". The files must have the ArrayRecord format. ``tfds build``,
    which makes them, may need TensorFlow, but reading them does not. The rows have
    tensorflow-datasets' ``dataset_info`` and ``split``.
    """
    name, _, split = text.removeprefix(TFDS).partition(":")
    try:
        # Imported late, because it takes a second and most inputs are text files.
        import tensorflow_datasets as tfds

        builder = tfds.builder(name, data_dir=os.environ.get("TFDS_DATA_DIR"))
        known = list(builder.info.splits)
        parts = {part.partition("[")[0].strip() for part in split.split("+")}
        if known and parts - {"", "all", *known}:
            raise MissingSplitError(f"{text} has no such split; it has {listed(known)}")
        return builder.as_data_source(split=split or "train")
    except MissingSplitError:
        raise
    except Exception as error:  # tensorflow-datasets raises errors of many types
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{text}: {reason}; pip install -e '.[tfds]' in the folder of bert_jax, set "
            f"TFDS_DATA_DIR, or run tfds build {name} --file_format=array_record"
        ) from error


def _read_dataset(
    source: Source, start: int, stop: int, reading: Reading
) -> Iterator[tuple[int, list[str]]]:
    """Byte offset and sentences of each document in bytes [start, stop).

    The sizes of rows are not known, so each counts as the same share of the source's bytes.
    """
    rows = find_dataset(source.name)
    first, last = (-(-byte * len(rows) // source.size) for byte in (start, stop))
    for row in range(first, last):
        text = rows[row][reading.text_field]
        if isinstance(text, bytes):
            text = decode(text, f"{source.name}, row {row}")
        sentences = article_sentences(text, reading)
        if sentences:
            yield row * source.size // len(rows), sentences


def article_sentences(text: str, reading: Reading) -> list[str]:
    """The sentences of a row. If the text has wiki40b's markers, only its paragraphs."""
    if "_START_ARTICLE_" not in text:
        return text_sentences(text, reading)
    text, headings = re.subn(_WIKI40B_HEADING, "", text)
    reading.dropped[PASSAGES] += headings
    sentences = []
    for paragraph in re.split(r"_START_PARAGRAPH_|_NEWLINE_|\n", text):
        sentences += split_sentences(" ".join(paragraph.split()), reading.language)
    return sentences
