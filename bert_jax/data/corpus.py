"""Where text comes from: inputs to sources, sources to documents of sentences.

An input is a file, a folder (every file below it) or a glob, of this machine or of an
object store (gs://), ``tfds:NAME[/CONFIG][:SPLIT]`` (tensorflow-datasets already on disk)
or ``python-docs`` (the English inside Python).
Text files may be gzipped. Everything streams: memory does not depend on the corpus.
"""

import collections
import contextlib
import dataclasses
import glob
import gzip
import hashlib
import io
import itertools
import logging
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from bert_jax.data import python_docs
from bert_jax.data.corpus_formats import (
    FORMATS,
    HEADINGS,
    BadLineError,
    Documents,
    Reading,
    detect_format,
    text_sentences,
)
from bert_jax.data.sentences import check_language, split_sentences
from bert_jax.errors import UserError, counted
from bert_jax.files import LONGEST_LINE, decode, is_remote, open_remote
from bert_jax.progress import Progress

PYTHON_DOCS = "python-docs"
TFDS = "tfds:"  # begins the name of a data set

# Bytes from where a file's text begins, in which its format is seen.
_HEAD = 1 << 16
_GZIP_MAGIC = b"\x1f\x8b"
# Bytes of text that a byte of gzip holds, for balance and progress only.
_GZIP_RATIO = 3
_TFDS_ROWS = 256  # fetched at once: a few MB of articles
_WIKI40B_MARKER = re.compile(r"_START_(ARTICLE|SECTION|PARAGRAPH)_")

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Source:
    """One file, dataset split or the embedded corpus.

    size: bytes of text, estimated for gzip and tfds. format: one of FORMATS, "tfds" or
    PYTHON_DOCS. fingerprint: what the contents are known by; "" of a file, which
    ``with_fingerprints`` reads for it.
    """

    name: str
    format: str
    size: int
    fingerprint: str
    gzipped: bool = False

    @property
    def splittable(self) -> bool:
        """Whether :func:`read_source` can begin and end in the middle."""
        if self.format in FORMATS:
            return FORMATS[self.format].is_boundary is not None and not self.gzipped
        return self.format == "tfds"


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

    format: one of FORMATS, or "auto" to choose for each file from its name and beginning.
    text_field: the key of the text in JSONL rows and tfds examples. language: see
    sentences.split_sentences. dropped: gets the number of headings, lines and documents
    that are left out, by reason. Raises UserError for inputs that do not exist, are empty
    or are not text. Shows how far it is.
    """
    dropped = collections.Counter() if dropped is None else dropped
    reading = Reading(text_field, language, dropped)
    sources = find_sources(inputs, format=format, language=language)
    total = sum(source.size for source in sources)
    with Progress("reading", total=total, unit="B", scale=True) as progress:
        for source in sources:
            before = progress.n
            for offset, document in _read(source, 0, None, reading):
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
    """What ``inputs`` name, folders and globs expanded in sorted order.

    Empty files in folders and globs are left out. Logs the formats it chose.
    """
    if format not in ("auto", *FORMATS):
        raise UserError(f"format {format!r}: expected auto, {', '.join(FORMATS)}")
    check_language(language)
    if not inputs:
        raise UserError("no input: expected a file, folder, glob, tfds: or python-docs")
    sources = [
        s for text in inputs for s in _expand(text.rstrip("\n"), format, language)
    ]
    counts = collections.Counter(source.format for source in sources)
    chosen = ", ".join(f"{n:,} as {name}" for name, n in counts.items())
    logger.info(
        "reading %s: %s (--format %s)", counted(len(sources), "file"), chosen, format
    )
    return sources


def _expand(text: str, format: str, language: str) -> list[Source]:
    if text == PYTHON_DOCS:
        return [Source(text, text, python_docs.SIZE, python_docs.fingerprint())]
    if text.startswith(TFDS):
        dataset = find_dataset(text)
        return [Source(text, "tfds", dataset.size, dataset.fingerprint)]
    path = _path(text)
    if path.is_file():
        paths, what = [path], "the file"
    elif path.is_dir():
        below = _below(path) if is_remote(text) else path.rglob("*")
        paths = [p for p in below if "/." not in f"/{p.relative_to(path)}"]
        what = "the folder"
    elif glob.has_magic(text):
        paths, what = _glob(text), "every matching file"
        if not any(path.is_file() for path in paths):
            raise UserError(f"{text}: no file matches; quote the pattern and check it")
    else:
        raise UserError(f"{text}: no such file or folder; check the path of the input")
    files = sorted(path for path in paths if path.is_file())
    sources = [s for file in files if (s := _file_source(file, format, language))]
    if not sources:
        raise UserError(f"{text}: {what} is empty; expected UTF-8 text")
    return sources


def _path(text: str) -> Path:
    """A path of this machine, or what epath makes of a URL, which can do the same."""
    return open_remote(text) if is_remote(text) else Path(text)


def _below(folder: Path) -> Iterator[Path]:
    """The files below a folder of an object store, whose globs do not recurse."""
    for path in folder.iterdir():
        if path.is_dir():
            yield from _below(path)
        else:
            yield path


def _glob(text: str) -> list[Path]:
    """The paths that a pattern matches, which may be a URL."""
    if not is_remote(text):
        found = glob.glob(text, recursive=True)  # noqa: PTH207 (absolute patterns too)
        return [Path(name) for name in found]
    parts = text.split("/")
    fixed = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return list(_path("/".join(parts[:fixed])).glob("/".join(parts[fixed:])))


def _file_source(path: Path, format: str, language: str) -> Source | None:
    """The source of a file from a look at its beginning; None where it is empty."""
    stat, offset = path.stat(), 0
    size = stat.length if is_remote(path) else stat.st_size
    with path.open("rb") as file:
        gzipped = file.read(2) == _GZIP_MAGIC
    with open_text(path, gzipped) as file:
        while (head := file.read(_HEAD)).isspace():  # blank lines, however many
            offset += len(head)
        offset += len(head) - len(head := head.lstrip())
        head += file.read(_HEAD - len(head))
    if not head:
        return None
    text = decode(head, path, offset=offset, cut=True)
    if format == "auto":
        format = detect_format(path.name, text, language)
    if gzipped:
        size *= _GZIP_RATIO
    return Source(str(path), format, size, "", gzipped)


def stamp(source: Source) -> tuple[int, float]:
    """Size and time of a file, of which one changes when its contents do."""
    stat = _path(source.name).stat()
    if is_remote(source.name):
        return stat.length, stat.mtime
    return stat.st_size, stat.st_mtime_ns


def with_fingerprints(sources: Sequence[Source]) -> list[Source]:
    """The sources with fingerprints, for which every file of this machine is read whole.

    At a GB/s or two it takes a hundredth of the time of preparing the text. Of an object
    its size and time have to do.
    """
    return [s if s.fingerprint else _with_fingerprint(s) for s in sources]


def _with_fingerprint(source: Source) -> Source:
    if is_remote(source.name):
        digest = hashlib.sha256(repr(stamp(source)).encode())
    else:
        with Path(source.name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
    return dataclasses.replace(source, fingerprint=digest.hexdigest()[:16])


def read_source(
    source: Source,
    start: int = 0,
    stop: int | None = None,
    *,
    reading: Reading | None = None,
) -> Documents:
    """The documents of a source, or of a splittable one those in bytes [start, stop).

    The ranges of a partition give every document of a splittable source exactly once
    (text in the paragraphs format may be cut between two paragraphs where a range ends, and
    a heading that is alone in a range is read as text).
    """
    found = _read(source, start, stop, reading or Reading())
    return (document for _, document in found)


def _read(
    source: Source, start: int, stop: int | None, reading: Reading
) -> Iterator[tuple[int, list[str]]]:
    """The documents, and up to which of its bytes the source was read for each."""
    if source.format == PYTHON_DOCS:
        for document in python_docs.read_documents():
            yield 0, document
    elif source.format == "tfds":
        yield from find_dataset(source.name).read(start, stop, reading)
    else:
        lines = _Lines(source, start, stop)
        try:
            for document in FORMATS[source.format].read(lines, reading):
                yield lines.offset, document
        except BadLineError as error:
            raise UserError(f"{_locate(source, lines.offset)}: {error}") from error


class _Lines:
    """Lines, without their ends, from the first boundary at ``start`` or behind it.

    They end before the first boundary at ``stop`` or behind it. A source that is not
    splittable is read whole. offset: where the newest line begins, in bytes.
    """

    def __init__(self, source: Source, start: int, stop: int | None):
        whole = not source.splittable
        self.offset, self._stop = (0, None) if whole else (start, stop)
        self._source = source

    def __iter__(self) -> Iterator[str]:
        path, stop = _path(self._source.name), self._stop
        is_boundary = FORMATS[self._source.format].is_boundary
        owned = self.offset == 0
        if self.offset == stop:
            return
        with open_text(path, self._source.gzipped) as file:
            if not owned:  # to the beginning of a line
                file.seek(self.offset - 1)
                self.offset += len(file.readline(LONGEST_LINE)) - 1
            while raw := file.readline(LONGEST_LINE):
                if len(raw) >= LONGEST_LINE:
                    raise UserError(
                        f"{path}: the line at byte {self.offset} is over "
                        f"{LONGEST_LINE >> 20} MiB long; expected text in lines"
                    )
                line = decode(raw, path, offset=self.offset).rstrip("\r\n")
                if stop is not None and self.offset >= stop and is_boundary(line):
                    return
                owned = owned or is_boundary(line)
                if owned:
                    yield line
                self.offset += len(raw)


@contextlib.contextmanager
def open_text(path: Path, gzipped: bool) -> Iterator[BinaryIO]:
    """The bytes of a text file, unzipped. A broken gzip file raises UserError."""
    try:
        with (
            # fsspec's files of an object store have no readline of so many bytes.
            io.BufferedReader(path.open("rb"), 1 << 20)
            if is_remote(path)
            else path.open("rb") as file,
            gzip.open(file) if gzipped else contextlib.nullcontext(file) as text,
        ):
            yield text
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(
            f"{path}: broken gzip ({error}); copy or compress the file again"
        ) from error


def _locate(source: Source, offset: int) -> str:
    """The file and line number, counted from 1, of a byte offset."""
    with open_text(_path(source.name), source.gzipped) as file:
        ends = itertools.accumulate(map(len, file))
        before = sum(1 for _ in itertools.takewhile(lambda end: end <= offset, ends))
    return f"{source.name}:{before + 1}"


@dataclasses.dataclass(frozen=True)
class Dataset:
    """One split of tensorflow-datasets on disk, read without TensorFlow.

    size: bytes as tensorflow-datasets states them; a byte offset stands for the row at
    the same share of the rows.
    """

    name: str
    split: str
    size: int
    rows: int
    fingerprint: str
    builder: Any

    def read(
        self, start: int, stop: int | None, reading: Reading
    ) -> Iterator[tuple[int, list[str]]]:
        """The documents, behind their byte offsets, which are in [start, stop)."""
        text_field = reading.text_field
        if text_field not in self.builder.info.features:
            names = ", ".join(sorted(self.builder.info.features))
            raise UserError(
                f'tfds:{self.name}: no feature "{text_field}", found {names}; set '
                "--text_field"
            )
        last = self.rows if stop is None else self._row(stop)
        for row, example in self.examples(self._row(start), last):
            text = example[text_field]
            if isinstance(text, bytes):
                text = decode(text, f"tfds:{self.name}, row {row}")
            if sentences := article_sentences(text, reading):
                yield row * self.size // self.rows, sentences

    def examples(self, first: int, last: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """The rows from ``first`` up to ``last``, with their numbers."""
        source = self.builder.as_data_source(split=self.split)
        for begin in range(first, last, _TFDS_ROWS):
            numbers = list(range(begin, min(begin + _TFDS_ROWS, last)))
            yield from zip(numbers, source.__getitems__(numbers), strict=True)

    def _row(self, offset: int) -> int:
        return min(self.rows, -(-offset * self.rows // self.size))


def article_sentences(text: str, reading: Reading) -> list[str]:
    """Sentences of a row: of the paragraphs where wiki40b's markers name them."""
    if not _WIKI40B_MARKER.search(text):
        return text_sentences(text, reading)
    parts = _WIKI40B_MARKER.split(text)[1:]  # kind, text, kind, text, ...
    kinds = zip(parts[::2], parts[1::2], strict=True)
    kept = [part for kind, part in kinds if kind == "PARAGRAPH"]
    reading.dropped[HEADINGS] += len(parts) // 2 - len(kept)
    lines = re.split(r"_NEWLINE_|\n", "\n".join(kept))
    paragraphs = (" ".join(line.split()) for line in lines)
    return [s for p in paragraphs for s in split_sentences(p, reading.language)]


def find_dataset(text: str) -> Dataset:
    """The split that ``[tfds:]NAME[/CONFIG][:SPLIT]`` names; train by default.

    Looks below $TFDS_DATA_DIR, else ~/tensorflow_datasets, and takes the newest version.
    It must be stored as ArrayRecord: making it (``tfds build``) may need TensorFlow.
    """
    name, _, split = text.removeprefix(TFDS).partition(":")
    split = split or "train"
    data_dir = Path(os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets"))
    try:
        folder = data_dir.expanduser() / name
    except RuntimeError as error:
        raise UserError(
            f"tfds:{name}: this user has no home directory; set TFDS_DATA_DIR"
        ) from error
    versions = sorted(
        (path.parent for path in folder.glob("*.*.*/dataset_info.json")),
        key=lambda path: [int(part) for part in re.findall(r"\d+", path.name)],
    )
    if not versions:
        configs = {p.parent.parent.name for p in folder.glob("*/*/dataset_info.json")}
        if configs:
            names = ", ".join(f"tfds:{name}/{config}" for config in sorted(configs))
            raise UserError(f"tfds:{name}: choose one of its configs: {names}")
        raise UserError(
            f"tfds:{name}: not found below {data_dir}; set TFDS_DATA_DIR, or make it with "
            f"tfds build {name} --file_format=array_record"
        )
    # Imported here: it takes a second, and most corpora are text files.
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise UserError(
            f"tfds:{name} needs a library that reads it ({error}): pip install "
            "'bert_jax[tfds]'"
        ) from error

    builder = tfds.builder_from_directory(versions[-1])
    stored = builder.info.file_format.value
    if stored != "array_record":
        raise UserError(
            f"tfds:{name}: stored as {stored}, expected array_record; make it again with "
            f"tfds build {name} --file_format=array_record"
        )
    try:
        info = builder.info.splits[split]
    except (KeyError, ValueError) as error:
        known = ", ".join(builder.info.splits)
        raise UserError(
            f"tfds:{name}: no split {split!r}; expected one of {known}, or a slice of one"
        ) from error
    if not info.num_examples:
        raise UserError(f"tfds:{name}:{split} is an empty split; choose another")
    facts = f"{versions[-1].name} {split} {info.num_examples} {info.num_bytes}"
    fingerprint = hashlib.sha256(facts.encode()).hexdigest()[:16]
    # A slice of a split has no size of its own.
    size = int(getattr(info, "num_bytes", 0) or 1000 * info.num_examples)
    return Dataset(name, split, size, info.num_examples, fingerprint, builder)
