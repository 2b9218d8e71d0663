"""Rows with named columns: CSV, TSV and JSONL files, plain or gzipped, and tfds.

CSV is RFC 4180: quotes may hold commas and line ends. TSV is GLUE's: no quoting at all,
a quotation mark is text. JSONL is one object a line. All are UTF-8, with or without a
byte order mark; lines end with LF or CRLF. Data sets of tensorflow-datasets are read
without TensorFlow.
"""

import csv
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_jax.data.corpus import open_text
from bert_jax.data.corpus_tfds import TFDS, find_dataset
from bert_jax.errors import UserError
from bert_jax.files import decode_lines, parse_json

logger = logging.getLogger(__name__)

FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_LISTED = 5  # line numbers in a notice

Record = tuple[str, dict[str, str | None]]  # ("file:line", value of each column)


def table_format(path: Path) -> str:
    """By the name's ending, which .gz may follow: "csv", "tsv" or "jsonl"."""
    name = path.with_suffix("") if path.suffix == ".gz" else path
    if name.suffix not in FORMATS:
        raise UserError(
            f"{path} is no table by its name; expected one of {', '.join(FORMATS)}, "
            "with or without .gz"
        )
    return FORMATS[name.suffix]


def read_columns(path: Path) -> list[str]:
    """Names of a table's columns; of JSONL, the keys of its first object."""
    if table_format(path) == "jsonl":
        return next((list(value) for _, value in read_objects(path)), [])
    return _header(path, _fields(path))


def read_table(
    path: Path,
    columns: Sequence[str],
    *,
    optional: Sequence[str] = (),
    header: Sequence[str] = (),
    skip_short: bool = False,
) -> Iterator[Record]:
    """The place of each row, "FILE:LINE", and its text in the columns asked for.

    columns: must be there. optional: None where the table has no such column.
    header: names of the columns of a CSV or TSV file without a header line.
    skip_short: leaves out, with a notice, rows that have too few columns, for data sets
      that are published with such rows.
    In CSV and TSV, blank lines are skipped where the table has more than one column.

    Raises UserError naming file and line of a row that has too few or too many columns.
    """
    if table_format(path) == "jsonl":
        yield from _select_keys(path, columns, optional)
        return
    rows = _fields(path)
    header = list(header) or _header(path, rows)
    places = {name: _find(path, header, name) for name in columns}
    places |= {
        name: _find(path, header, name) if name in header else None for name in optional
    }
    short: list[int] = []
    for line, row in rows:
        if len(header) > 1 and row in ([], [""]):
            continue
        if len(row) < len(header) and skip_short:
            short.append(line)
            continue
        if len(row) != len(header):
            raise UserError(
                f"{path}:{line}: row has {_count(len(row), 'column')}, the header has "
                f"{len(header)} ({', '.join(header)}); mend the row"
            )
        yield (
            f"{path}:{line}",
            {
                name: None if place is None else row[place]
                for name, place in places.items()
            },
        )
    if short:
        more = "" if len(short) <= _LISTED else ", ..."
        logger.warning(
            "%s: left out %s of too few columns: line %s%s",
            path,
            _count(len(short), "row"),
            ", ".join(map(str, short[:_LISTED])),
            more,
        )


def read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The place of each object of a JSONL file, and the object; blank lines are skipped."""
    for line, text in read_lines(path):
        if text.strip():
            where = f"{path}:{line}"
            yield where, parse_json(text, where, "one object a line")


def parse_lines(
    lines: Iterable[str], name: str, first: int = 1
) -> Iterator[tuple[str, dict[str, Any] | list[str]]]:
    """The place of each line of an input, and its JSON object or its texts between tabs.

    name: what errors call the input. first: the number of the first line in it.
    """
    for number, line in enumerate(lines, first):
        where = f"{name}:{number}"
        line = line.rstrip("\r\n")
        if number == 1:
            line = line.removeprefix("\ufeff")
        if line.lstrip().startswith("{"):
            yield where, parse_json(line, where, "one object a line, or plain text")
        else:
            yield where, line.split("\t")


def find_file(directory: str | Path, names: Iterable[str]) -> Path | None:
    """The first of these files that exists below a folder."""
    paths = (Path(directory) / name for name in names)
    return next((path for path in paths if path.is_file()), None)


def existing_file(directory: str | Path, names: Sequence[str]) -> Path:
    """As :func:`find_file`; a UserError where none exists."""
    path = find_file(directory, names)
    if path is None:
        raise UserError(
            f"{directory or 'config.data.dir'} has no {' or '.join(names)}; set "
            "--config.data.dir to the folder of the data set"
        )
    return path


def cell(value: Any) -> str:
    """A JSON value as the text that a CSV file would hold."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def missing_column(where: str, name: str, columns: Iterable[str]) -> UserError:
    """The error of a column that is not there."""
    return UserError(
        f"{where}: no column {name!r}; the columns are {', '.join(columns)}"
    )


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Line number and text of each line, line ends cut off; U+2028 is no line end."""
    for line, text in _raw_lines(path):
        yield line, text.rstrip("\r\n")


def _raw_lines(path: Path) -> Iterator[tuple[int, str]]:
    if not path.is_file():
        raise UserError(f"{path} does not exist; expected a table of examples")
    with open_text(path, path.suffix == ".gz") as file:
        yield from decode_lines(file, path)


def _fields(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line where a row starts, and its fields."""
    if table_format(path) == "tsv":
        for line, text in read_lines(path):
            yield line, text.split("\t")
        return
    reader = csv.reader((text for _, text in _raw_lines(path)), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise UserError(
                f"{path}:{line}: not CSV ({error}); quote the text and double the quotes "
                "in it, or use JSONL"
            ) from error
        yield line, row


def _header(path: Path, rows: Iterator[tuple[int, list[str]]]) -> list[str]:
    for _, row in rows:
        return row
    raise UserError(f"{path} is empty; expected a header and rows")


def _find(path: Path, header: Sequence[str], name: str) -> int:
    if name not in header:
        raise missing_column(str(path), name, header)
    if header.count(name) > 1:
        raise UserError(f"{path}: column {name!r} occurs twice; rename one of them")
    return header.index(name)


def _select_keys(
    path: Path, columns: Sequence[str], optional: Sequence[str]
) -> Iterator[Record]:
    for where, value in read_objects(path):
        row: dict[str, str | None] = {}
        for name in columns:
            if value.get(name) is None:
                raise missing_column(where, name, value)
            row[name] = cell(value[name])
        for name in optional:
            row[name] = None if value.get(name) is None else cell(value[name])
        yield where, row


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def is_tfds(directory: str) -> bool:
    """Whether a folder's name is that of a data set in tensorflow-datasets."""
    return directory.startswith(TFDS)


def has_split(name: str, split: str) -> bool:
    """Whether the data set lies on disk and has this split."""
    try:
        find_dataset(f"{name}:{split}")
    except UserError:
        return False
    return True


def read_tfds(
    name: str,
    split: str,
    columns: Sequence[str],
    *,
    optional: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> Iterator[Record]:
    """The place of each row and the text of its features, as read_table gives them.

    labels: stand for the classes, by number, whose names in the data set are others.
    """
    dataset = find_dataset(f"{name}:{split}")
    features = dataset.builder.info.features
    where = f"{TFDS}{name}:{split}"
    for column in columns:
        if column not in features:
            raise missing_column(where, column, features)
    wanted = [*columns, *(column for column in optional if column in features)]
    names = {
        column: _class_names(features[column], labels)
        for column in wanted
        if hasattr(features[column], "int2str")
    }
    empty = dict.fromkeys(optional)
    for i, example in dataset.examples(0, dataset.rows):
        yield (
            f"{where}, row {i}",
            empty
            | {c: _text(example[c], names.get(c), f"{where}, row {i}") for c in wanted},
        )


def _class_names(feature: Any, labels: Sequence[str]) -> list[str]:
    names = list(feature.names)
    if len(names) == len(labels) and not set(names) <= set(labels):
        return list(labels)
    return names


def _text(value: Any, names: list[str] | None, where: str) -> str:
    if names is not None:
        if not 0 <= value < len(names):
            raise UserError(f"{where}: class {value}, a row without a label")
        return names[value]
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, str) else str(value)
