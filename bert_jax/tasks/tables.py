"""Rows with named columns: CSV, TSV and JSONL files, plain or gzipped, and tfds.

CSV is RFC 4180: quotes may hold commas and line ends. TSV is GLUE's: no quoting at all,
a quotation mark is text. JSONL is one object a line. All are UTF-8, with or without a
byte order mark; lines end with LF or CRLF. Data sets of tensorflow-datasets are read
without TensorFlow.
"""

import csv
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.data.corpus import TFDS, find_dataset, open_text
from bert_jax.errors import UserError, listed
from bert_jax.files import LONGEST_LINE, decode_lines, parse_json, valid_text

logger = logging.getLogger(__name__)

SPLITS = ("train", "dev", "test")
_JSONL = (".jsonl", ".ndjson")
FORMATS = (".csv", ".tsv", ".txt", *_JSONL)
ENDINGS = tuple(ending + packed for ending in FORMATS for packed in ("", ".gz"))

_MOST_UNPACKED = 100  # bytes that one of gzip becomes; of text it is 3 to 10

Record = tuple[str, dict[str, Any]]  # ("file:line", value of each column)


def is_jsonl(path: Path) -> bool:
    """Whether a file holds an object a line, by its name."""
    return path.name.removesuffix(".gz").endswith(_JSONL)


def read_columns(path: Path) -> list[str]:
    """Names of a table's columns; of JSONL, the keys of its first object."""
    if _format(path) in _JSONL:
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
    if _format(path) in _JSONL:
        for where, value in read_objects(path):
            yield where, _select(where, value, columns, optional)
        return
    rows = _fields(path)
    header = header or _header(path, rows)
    for name in (*columns, *optional):
        if header.count(name) > 1:
            raise UserError(f"{path}: column {name!r} occurs twice; rename one of them")
    short: list[str] = []
    for line, row in rows:
        if len(header) > 1 and row in ([], [""]):
            continue
        if len(row) < len(header) and skip_short:
            short.append(str(line))
            continue
        where = f"{path}:{line}"
        if len(row) != len(header):
            raise UserError(
                f"{where}: row has {counted(len(row), 'column')}, the header has "
                f"{len(header)} ({', '.join(header)}); mend the row"
            )
        named = dict(zip(header, row, strict=True))
        yield where, _select(where, named, columns, optional)
    if short:
        logger.warning(
            f"{path}: left out {counted(len(short), 'row')} of too few columns: line "
            f"{listed(short)}"
        )


def _select(
    where: str, row: dict[str, Any], columns: Sequence[str], optional: Sequence[str]
) -> dict[str, str | None]:
    """The text in some columns of a row."""
    for name in columns:
        if row.get(name) is None:
            raise missing_column(where, row, name)
    values = {name: row.get(name) for name in (*columns, *optional)}
    return {name: None if x is None else cell(x) for name, x in values.items()}


def read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The place of each object of a JSONL file, and the object; blank lines are skipped."""
    for line, text in _lines(path):
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


def python_records(
    rows: Iterable[Any], split: str, names: Iterable[str]
) -> Iterator[Record]:
    """The place of each row of Python, such as "train[3]", and its values by name.

    rows: dictionaries, tuples in the order of ``names``, single texts, or a pandas data
    frame.
    """
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):
        rows = rows.to_dict("records")
    names = list(names)
    for i, row in enumerate(rows):
        where = f"{split}[{i}]"
        if hasattr(row, "_asdict"):
            row = row._asdict()
        elif isinstance(row, str):
            row = {names[0]: row}
        elif isinstance(row, Sequence):
            if len(row) > len(names):
                raise UserError(
                    f"{where} has {len(row)} values; expected {', '.join(names)}"
                )
            row = dict(zip(names, row, strict=False))
        if not isinstance(row, Mapping):
            raise UserError(
                f"{where} is a {type(row).__name__}; expected a dictionary with "
                f"{', '.join(names)}, or a tuple of them"
            )
        yield where, {str(name): _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    """Numbers and lists for those of numpy and of whoever has the same method.

    Texts are such as UTF-8 can hold.
    """
    if isinstance(value, str):
        return valid_text(value)
    return value.tolist() if hasattr(value, "tolist") else value


def value(where: str, values: Mapping[str, Any], names: Iterable[str]) -> Any:
    """What a row has under the first of these names that it has."""
    names = list(dict.fromkeys(names))
    for name in names:
        if values.get(name) is not None:
            return values[name]
    raise missing_column(where, values, *names)


def text(where: str, values: Mapping[str, Any], names: Iterable[str]) -> str:
    """As :func:`value`, of a text."""
    found = value(where, values, names)
    if not isinstance(found, str):
        name = next(name for name in names if values.get(name) is found)
        raise UserError(f"{where}: {name!r} is not a string; expected text")
    return found


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


_ESCAPES = str.maketrans({c: ascii(c)[1:-1] for c in "\t\n\r\v\f\x85\u2028\u2029"})


def escaped(text: str) -> str:
    """Text for one cell of a TSV file: a tab is "\\t", an end of line "\\n"."""
    return text.translate(_ESCAPES)


def missing_column(where: str, columns: Iterable[str], *names: str) -> UserError:
    """The error of a column, by one of its names, that is not among those of a table."""
    expected, found = " or ".join(map(repr, names)), ", ".join(columns) or "none"
    return UserError(f"{where}: no column {expected}; the columns are {found}")


def check_texts(where: str, texts: Iterable[str], *, gaps: bool = False) -> None:
    """Raises for an empty text; with ``gaps`` only where all of them are empty."""
    if not (any if gaps else all)(text.strip() for text in texts):
        raise UserError(f"{where}: empty text; expected words, mend or drop the row")


def counted(number: int, noun: str) -> str:
    """Such as "1 row" or "2 rows"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _format(path: Path) -> str:
    """The name's ending, which .gz may follow."""
    ending = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if ending not in FORMATS:
        raise UserError(
            f"{path} is no table by its name; expected one of {', '.join(FORMATS)}, "
            "with or without .gz"
        )
    return ending


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Line number and text of each line, with its end; U+2028 is no line end."""
    packed = path.suffix == ".gz"
    # The rows of a table are in memory together.
    most = path.stat().st_size * _MOST_UNPACKED + LONGEST_LINE
    size = 0
    with open_text(path, packed) as file:
        for number, line in decode_lines(file, path):
            size += len(line)
            if packed and size > most:
                raise UserError(
                    f"{path} unpacks to over {_MOST_UNPACKED} times its size; unpack it "
                    "if that is right"
                )
            yield number, line


def _fields(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line where a row starts, and its fields."""
    if _format(path) != ".csv":
        for line, text in _lines(path):
            yield line, text.rstrip("\r\n").split("\t")
        return
    reader, line = csv.reader((text for _, text in _lines(path)), strict=True), 1
    try:
        for row in reader:
            yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{path}:{line}: not CSV ({error}); quote the text and double the quotes in "
            "it, or use JSONL"
        ) from error


def _header(path: Path, rows: Iterator[tuple[int, list[str]]]) -> list[str]:
    for _, row in rows:
        return row
    raise UserError(f"{path} is empty; expected a header and rows")


def is_tfds(directory: str) -> bool:
    """Whether a folder's name is that of a data set in tensorflow-datasets."""
    return directory.startswith(TFDS)


def has_tfds(dataset: str) -> bool:
    """Whether "tfds:NAME:SPLIT" lies on disk."""
    try:
        find_dataset(dataset)
    except UserError:
        return False
    return True


def read_tfds(
    dataset: str,
    columns: Sequence[str],
    *,
    optional: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> Iterator[Record]:
    """The place of each row of "tfds:NAME:SPLIT" and the text of its features.

    columns, optional: as of :func:`read_table`. labels: stand for the classes, by number,
    whose names in the data set are others.
    """
    found = find_dataset(dataset)
    features = found.builder.info.features
    for column in columns:
        if column not in features:
            raise missing_column(dataset, features, column)
    for i, example in found.examples(0, found.rows):
        where = f"{dataset}, row {i}"
        values = dict.fromkeys(optional)
        for column in (*columns, *optional):
            if column in features:
                value = example[column]
                values[column] = _value(features[column], value, labels, where)
        yield where, values


def _value(feature: Any, value: Any, labels: Sequence[str], where: str) -> str:
    if not hasattr(feature, "int2str"):
        return value.decode() if isinstance(value, bytes) else str(value)
    names = feature.names
    if len(names) == len(labels) and not set(names) <= set(labels):
        names = labels
    if not 0 <= value < len(names):
        raise UserError(f"{where}: class {value}, a row without a label")
    return names[value]
