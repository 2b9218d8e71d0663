"""Inputs to documents: files, folders, globs, tensorflow-datasets and python-docs.

An input is one of these:
  a file, a folder (every file below it) or a glob, on this machine or in an object store
    (gs://). fsspec reads them, also if they are compressed (.gz, .bz2, .xz);
  ``tfds:NAME[/CONFIG][:SPLIT]``, a data set that tensorflow-datasets has prepared;
  ``python-docs``, the English text inside Python.
Documents are read one at a time, so memory does not depend on the size of the corpus.
"""

import collections
import contextlib
import glob
import hashlib
import io
import itertools
import logging
import lzma
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import fsspec

from bert_jax.data import corpus_formats, python_docs
from bert_jax.data.corpus_formats import FORMATS, Documents, Reading
from bert_jax.data.sentences import check_language, split_sentences
from bert_jax.errors import UserError, counted
from bert_jax.files import LONGEST_LINE, decode, is_remote, open_remote
from bert_jax.progress import Progress

PYTHON_DOCS = "python-docs"
TFDS = "tfds:"  # prefix of an input that names a data set

_HEAD = 1 << 16  # bytes of text from which the format of a file is chosen
# Estimated bytes of text in a byte of a compressed file, for shards and progress.
_COMPRESSION_RATIO = 3
_TFDS_ROWS = 256  # rows fetched at once, a few MB of articles
_WIKI40B_MARKER = re.compile(r"_START_(ARTICLE|SECTION|PARAGRAPH)_")

logger = logging.getLogger(__name__)


class Source(NamedTuple):
    """One file, one split of a data set, or the text inside Python.

    size: bytes of text, estimated for a compressed file and for tfds. format: one of
    FORMATS, "tfds" or PYTHON_DOCS. splittable: whether :func:`read_source` can start and
    stop inside the source.
    """

    name: str
    format: str
    size: int
    splittable: bool = False


def read_documents(
    inputs: Sequence[str],
    *,
    format: str = "auto",
    text_field: str = "text",
    language: str = "en",
    dropped: collections.Counter[str] | None = None,
) -> Documents:
    """The documents of all inputs, in a fixed order, one at a time.

    A document is a list of its sentences, each stripped and none empty.

    format: one of FORMATS, or "auto" to choose for each file from its name and first
    64 KiB. text_field: key of the text in JSONL rows and tfds examples. language: see
    sentences.split_sentences. dropped: counter that gets the number of dropped headings,
    lines and documents, by reason. Shows a progress bar. Raises UserError if an input
    does not exist, is empty or is not text.
    """
    dropped = collections.Counter() if dropped is None else dropped
    reading = Reading(text_field, language, dropped)
    sources = find_sources(inputs, format=format, language=language)
    total = sum(source.size for source in sources)
    with Progress("reading", total=total, unit="B", unit_scale=True) as progress:
        for source in sources:
            before = progress.n
            for offset, document in read_source(source, 0, None, reading):
                yield document
                progress.update(before + min(offset, source.size) - progress.n)
            progress.update(before + source.size - progress.n)


def left_out(dropped: Mapping[str, int]) -> str:
    """The counts of ``Reading.dropped`` in words."""
    counts = [f"{count:,} {reason}" for reason, count in dropped.items() if count]
    return f"left out: {', '.join(counts) or 'nothing'}"


def find_sources(
    inputs: Sequence[str], *, format: str = "auto", language: str = "en"
) -> list[Source]:
    """The sources of all inputs. Files of a folder or a glob are sorted by name.

    Skips empty and hidden files in folders and globs. Logs the format of the files.
    """
    if format not in ("auto", *FORMATS):
        raise UserError(f"format {format!r}: expected auto, {', '.join(FORMATS)}")
    check_language(language)
    if not inputs:
        raise UserError("no input: expected a file, folder, glob, tfds: or python-docs")
    expanded = (_expand(text.rstrip("\n"), format, language) for text in inputs)
    sources = list(itertools.chain.from_iterable(expanded))
    formats = collections.Counter(source.format for source in sources)
    chosen = ", ".join(f"{counted(n, 'file')} as {name}" for name, n in formats.items())
    logger.info("reading %s (--format %s)", chosen, format)
    return sources


def _expand(text: str, format: str, language: str) -> list[Source]:
    if text == PYTHON_DOCS:
        return [Source(text, text, python_docs.SIZE)]
    if text.startswith(TFDS):
        return [Source(text, "tfds", find_dataset(text).size, splittable=True)]
    if is_remote(text):
        open_remote(text)  # raises UserError if no library reads this store
    store, path = fsspec.core.url_to_fs(text)
    is_glob = glob.has_magic(text) and not store.exists(path)
    paths = filter(store.isfile, store.glob(path)) if is_glob else store.find(path)
    folder = path.partition("*")[0].rpartition("/")[0] if is_glob else path
    paths = [p for p in paths if "/." not in p.removeprefix(folder)]
    if not paths and (is_glob or not store.exists(path)):
        raise UserError(
            f"{text}: no such file or folder, and no file matches; check the path of the "
            "input, and quote a pattern"
        )
    paths.sort(key=lambda path: path.split("/"))
    names = [store.unstrip_protocol(p) if is_remote(text) else p for p in paths]
    sources = [s for name in names if (s := _file_source(name, format, language))]
    if not sources:
        raise UserError(f"{text} is empty; expected UTF-8 text")
    return sources


def _file_source(name: str, format: str, language: str) -> Source | None:
    """The source of a file; None if the file is empty. Reads the start of the file."""
    with open_text(name) as file:
        while (head := file.read(_HEAD)).isspace():
            pass
        head += file.read(len(head) - len(head.lstrip()))
    if not head:
        return None
    text = decode(head, name, cut=True)
    if format == "auto":
        format = corpus_formats.detect_format(name, text, language)
    store, path = fsspec.core.url_to_fs(name)
    if fsspec.utils.infer_compression(name):
        return Source(name, format, store.size(path) * _COMPRESSION_RATIO)
    splittable = FORMATS[format].is_boundary is not None
    return Source(name, format, store.size(path), splittable)


def fingerprint(source: Source) -> str:
    """Identifies the text: the hash of a file, the size and time of an object.

    Reads local files completely, which takes about a hundredth of the preparation time.
    """
    if source.format == PYTHON_DOCS:
        return python_docs.FINGERPRINT
    if source.format == "tfds":
        digest = hashlib.sha256(find_dataset(source.name).facts.encode())
    elif is_remote(source.name):
        store, path = fsspec.core.url_to_fs(source.name)
        version = store.size(path), store.modified(path)
        digest = hashlib.sha256(repr(version).encode())
    else:
        with Path(source.name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
    return digest.hexdigest()[:16]


def read_source(
    source: Source, start: int, stop: int | None, reading: Reading
) -> Iterator[tuple[int, list[str]]]:
    """The documents of a source, each after the number of bytes read before it.

    A splittable source is read from byte ``start`` to byte ``stop``. Ranges that cover the
    source give every document exactly once. In the paragraphs format, the end of a range
    may cut a document between two paragraphs, and a heading without other text in its
    range is read as text.
    """
    if source.format == PYTHON_DOCS:
        for document in python_docs.read_documents():
            yield 0, document
    elif source.format == "tfds":
        yield from _read_dataset(find_dataset(source.name), start, stop, reading)
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

    def __init__(self, source: Source, start: int, stop: int | None):
        self.offset, self._stop = (start, stop) if source.splittable else (0, None)
        self._source = source

    def __iter__(self) -> Iterator[str]:
        is_boundary = FORMATS[self._source.format].is_boundary
        owned, stop = self.offset == 0, self._stop
        if self.offset == stop:
            return
        with open_text(self._source.name) as file:
            if not owned:  # skip to the next start of a line
                file.seek(self.offset - 1)
                self.offset += len(file.readline(LONGEST_LINE)) - 1
            while raw := file.readline(LONGEST_LINE):
                if len(raw) >= LONGEST_LINE:
                    raise UserError(f"the line is over {LONGEST_LINE >> 20} MiB long")
                line = decode(raw, "the line").rstrip("\r\n")
                if stop is not None and self.offset >= stop and is_boundary(line):
                    return
                owned = owned or is_boundary(line)
                if owned:
                    yield line
                self.offset += len(raw)


@contextlib.contextmanager
def open_text(name: str | Path) -> Iterator[BinaryIO]:
    """Opens a file to read bytes, and decompresses it if its suffix names a compression.

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
        compression = fsspec.utils.infer_compression(name)
        if getattr(error, "errno", None) or not compression:
            raise
        raise UserError(
            f"{name}: broken {compression} ({error}); copy or compress the file again"
        ) from error


def _locate(source: Source, offset: int) -> str:
    """The file and the line number, counted from 1, of a byte offset."""
    with open_text(source.name) as file:
        ends = itertools.accumulate(map(len, file))
        before = sum(1 for _ in itertools.takewhile(lambda end: end <= offset, ends))
    return f"{source.name}:{before + 1}"


class Dataset(NamedTuple):
    """One split of a data set on disk, read without TensorFlow.

    size: bytes of the split as tensorflow-datasets states them. rows: number of rows.
    facts: version and sizes of the split. features: type of each column. source: random
    access to the rows.
    """

    name: str
    size: int
    rows: int
    facts: str
    features: Any
    source: Any

    def examples(self, first: int, last: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Row numbers from ``first`` up to ``last``, and the rows."""
        for start in range(first, last, _TFDS_ROWS):
            numbers = list(range(start, min(start + _TFDS_ROWS, last)))
            yield from zip(numbers, self.source.__getitems__(numbers), strict=True)


def find_dataset(text: str) -> Dataset:
    """The data set ``tfds:NAME[/CONFIG][:SPLIT]`` below $TFDS_DATA_DIR.

    The split is "train" by default. Rows must be stored as ArrayRecord. Making the data
    set with ``tfds build`` may need TensorFlow; reading it does not.
    """
    name, _, split = text.removeprefix(TFDS).partition(":")
    split = split or "train"
    try:
        # Imported late: it takes a second, and most inputs are text files.
        import tensorflow_datasets as tfds

        builder = tfds.builder(name, data_dir=os.environ.get("TFDS_DATA_DIR"))
        source = builder.as_data_source(split=split)
        info = builder.info.splits[split]
    except Exception as error:  # of no common type
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{text}: {reason}; pip install 'bert_jax[tfds]', set TFDS_DATA_DIR to the "
            "folder of the data set, or make it with tfds build "
            f"{name} --file_format=array_record"
        ) from error
    if not len(source):
        raise UserError(f"{text} is an empty split; choose another")
    facts = f"{builder.version} {split} {info.num_examples} {info.num_bytes}"
    # A slice of a split has no size.
    size = int(info.num_bytes or 1000 * len(source))
    return Dataset(text, size, len(source), facts, builder.info.features, source)


def _read_dataset(
    dataset: Dataset, start: int, stop: int | None, reading: Reading
) -> Iterator[tuple[int, list[str]]]:
    """The documents in bytes [start, stop), each after its byte offset.

    A byte offset means the row at the same fraction of the rows.
    """
    field, rows, row_size = (
        reading.text_field,
        dataset.rows,
        dataset.size / dataset.rows,
    )
    if field not in dataset.features:
        names = ", ".join(sorted(dataset.features))
        raise UserError(
            f'{dataset.name}: no feature "{field}", found {names}; set --text_field'
        )
    last = rows if stop is None else min(rows, math.ceil(stop / row_size))
    for row, example in dataset.examples(math.ceil(start / row_size), last):
        text = example[field]
        if isinstance(text, bytes):
            text = decode(text, f"{dataset.name}, row {row}")
        if sentences := article_sentences(text, reading):
            yield int(row * row_size), sentences


def article_sentences(text: str, reading: Reading) -> list[str]:
    """The sentences of a row. If it has wiki40b's markers, only paragraphs are read."""
    if not _WIKI40B_MARKER.search(text):
        return corpus_formats.text_sentences(text, reading)
    parts = _WIKI40B_MARKER.split(text)[1:]  # kind, text, kind, text, ...
    kinds = zip(parts[::2], parts[1::2], strict=True)
    kept = [part for kind, part in kinds if kind == "PARAGRAPH"]
    reading.dropped[corpus_formats.HEADINGS] += len(parts) // 2 - len(kept)
    lines = re.split(r"_NEWLINE_|\n", "\n".join(kept))
    paragraphs = (" ".join(line.split()) for line in lines)
    return [s for p in paragraphs for s in split_sentences(p, reading.language)]
