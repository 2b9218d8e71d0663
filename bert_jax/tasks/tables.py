"""Tables: rows with named columns in CSV, TSV, JSONL, JSON and Parquet files.

CSV is RFC 4180: a quoted value may contain commas and line ends. TSV is GLUE's: a
quotation mark is text. JSONL has one object a line. JSON has a list of objects, or lines of
JSONL. Parquet needs pyarrow. Text is UTF-8 and may be gzipped.
"""

import csv
import itertools
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax import files
from bert_jax.data.corpus import open_text
from bert_jax.errors import UserError, counted, listed
from bert_jax.files import decode_lines, parse_json, reading, valid_text

logger = logging.getLogger(__name__)

STDIN = Path("-")
_OBJECTS = (".jsonl", ".ndjson", ".json", ".parquet")
FORMATS = (".csv", ".tsv", *_OBJECTS)
ENDINGS = tuple(ending + packed for ending in FORMATS for packed in ("", ".gz"))
_LONGEST_FIELD = (1 << 31) - 1  # characters of a CSV value; Python's default is 131,072

Record = tuple[str, dict[str, Any]]  # ("file:line", value of each column)


def ending(path: Path) -> str:
    """The ending of a file's name in small letters, without .gz."""
    packed = files.ending(path) == ".gz"
    return files.ending(path.with_suffix("") if packed else path)


def has_objects(path: Path) -> bool:
    """Whether a file contains objects, by its ending."""
    return ending(path) in _OBJECTS


def is_table(path: Path) -> bool:
    """Whether a file is a table, by its ending. A .txt file has lines of text."""
    return ending(path) in FORMATS


def read_rows(
    path: Path,
    *,
    header: Sequence[str] = (),
    skip_short: bool = False,
    txt: bool = False,
) -> Iterator[Record]:
    """The place of each row of a table, and its values by column.

    A column without a name is left out (pandas writes its index there). Blank lines are
    skipped, but in a TSV file of one column they are empty texts.

    header: the names of the columns of a CSV or TSV file without a header line.
    skip_short: leave out rows with too few columns, with a warning.
    txt: whether a .txt file is TSV, as in some published data sets.

    Raises UserError with file and line for a row that is not as expected.
    """
    if has_objects(path):
        for where, row in _objects(path):
            yield where, plain(row)
        return
    if not (is_table(path) or (txt and ending(path) == ".txt")):
        raise UserError(
            f"{path} is no table by its name; expected one of {', '.join(FORMATS)}, "
            "with or without .gz"
        )
    rows = _fields(path)
    header = header or next((row for _, row in rows), ())
    if not header:
        raise UserError(f"{path} is empty; expected a header and rows")
    check_names(path, [name for name in header if name])
    short: list[str] = []
    for line, row in rows:
        if row == [] or (len(header) > 1 and row == [""]):
            continue
        if len(row) < len(header) and skip_short:
            short.append(str(line))
            continue
        if len(row) != len(header):
            raise UserError(
                f"{path}:{line}: row has {counted(len(row), 'column')}, the header has "
                f"{len(header)} ({', '.join(header)}); "
                f"{header_hint(header) or 'fix the row'}"
            )
        yield (
            f"{path}:{line}",
            {name: x for name, x in zip(header, row, strict=True) if name},
        )
    if short:
        logger.warning(
            f"{path}: left out {counted(len(short), 'row')} of too few columns: line "
            f"{listed(short)}"
        )


def _fields(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The line where each row of a CSV or TSV file starts, and its values."""
    if ending(path) != ".csv":
        for line, text in read_lines(path):
            yield line, text.rstrip("\r\n").split("\t")
        return
    csv.field_size_limit(_LONGEST_FIELD)
    reader, line = csv.reader((text for _, text in read_lines(path)), strict=True), 1
    try:
        for row in reader:
            yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{path}:{line}: not CSV ({error}); quote the text and double the quotes in "
            "it, or use JSONL"
        ) from error


def _objects(path: Path) -> Iterator[Record]:
    if ending(path) == ".parquet":
        yield from _read_parquet(path)
        return
    lines = read_lines(path)
    if ending(path) == ".json":
        lines = list(lines)
        if not lines or lines[0][1].lstrip("\ufeff ").startswith("["):
            # The list is the value of an object, because parse_json reads objects.
            text = "".join(text for _, text in lines).removeprefix("\ufeff")
            expected = "a list of objects, or one object a line"
            document = parse_json(f'{{"rows": {text}}}', path, expected, unique=True)
            for number, row in enumerate(document["rows"]):
                where = f"{path}: row {number}"
                if not isinstance(row, dict):
                    raise UserError(
                        f"{where} is of type {type(row).__name__}; expected an object"
                    )
                yield where, row
            return
    for line, text in lines:
        if text.strip():
            where = f"{path}:{line}"
            yield where, parse_json(text, where, "one object a line", unique=True)


def _read_parquet(path: Path) -> Iterator[Record]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(
            f"{path} needs a library that reads it ({error}): pip install pyarrow"
        ) from error
    with reading(path, "a Parquet file"), parquet.ParquetFile(path) as file:
        check_names(path, file.schema_arrow.names)
        numbers = itertools.count()
        for batch in file.iter_batches():
            for row in batch.to_pylist():
                yield f"{path}: row {next(numbers)}", row


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of each line of a file, or of stdin for "-", with the line's end."""
    if path == STDIN:
        yield from decode_lines(sys.stdin.buffer, "stdin")
        return
    if not path.exists() or path.is_dir():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(f"{path} {problem}; expected a file of rows")
    # fsspec, which reads compressed files, cannot read a pipe.
    with open_text(path) if path.is_file() else path.open("rb") as file:
        yield from decode_lines(file, path)


def check_names(where: object, names: Sequence[str]) -> None:
    """Raises UserError for the name of a column that occurs twice."""
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"{where}: column {name!r} occurs twice; rename one of them"
            )


def plain(value: Any) -> Any:
    """A value of numpy, pandas or another library as a value of Python.

    Missing values (NaN, NaT, NA of pandas) become None.
    """
    if isinstance(value, str):
        return valid_text(str(value))
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [*map(plain, value)]
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and value != value else value


def value(
    where: str, values: Mapping[str, Any], names: Iterable[str], hint: str = ""
) -> Any:
    """The value of a row in the first of these columns that the row has.

    Raises UserError for a missing value, which no other column replaces, and for a row
    without any of these columns. hint: what to change then.
    """
    names = [name for name in dict.fromkeys(names) if name]
    name = next((name for name in names if name in values), None)
    if name is None:
        columns = [*values]
        hints = [f"the columns are {', '.join(columns) or 'none'}", hint]
        hints = [*filter(None, [*hints, header_hint(columns)])]
        expected = " or ".join(map(repr, names))
        raise UserError(f"{where}: no column {expected}; {'; '.join(hints)}")
    if values[name] is None:
        raise UserError(f'{where}: "{name}" is missing; fill it in or drop the row')
    return values[name]


def text(
    where: str, values: Mapping[str, Any], names: Sequence[str], hint: str = ""
) -> str:
    """The text that :func:`value` finds."""
    found = value(where, values, names, hint)
    if not isinstance(found, str):
        name = next(name for name in names if name in values)
        columns = "; a dictionary is one row (pandas.DataFrame makes rows of columns)"
        hint = columns if isinstance(found, list | tuple) else ""
        raise UserError(
            f'{where}: "{name}" is of type {type(found).__name__}; expected text{hint}'
        )
    return found


def check_texts(where: str, texts: Iterable[str], *, gaps: bool = False) -> None:
    """Raises UserError for an empty text; with ``gaps`` only if all texts are empty."""
    if not (any if gaps else all)(text.strip() for text in texts):
        raise UserError(f"{where}: empty text; expected words, fix or drop the row")


def header_hint(columns: Sequence[str]) -> str:
    """Advice if these names are probably no header of a table; otherwise ""."""
    separators = sorted({c for name in columns for c in name if c in ";|\t,"})
    if len(columns) == 1 and separators:
        return (
            f"the header has {' or '.join(map(repr, separators))} between its names; "
            "expected commas in a .csv file and tabs in a .tsv file"
        )
    # pandas names a column without a header by its number.
    numbers = len(columns) > 1 and any(map(str.isdecimal, columns))
    if numbers or any(name.count(" ") > 2 for name in columns):
        return (
            "if these are a row of the file, put a line with names of columns above it"
        )
    return ""


_ESCAPES = str.maketrans({c: ascii(c)[1:-1] for c in "\t\n\r\v\f\x85\u2028\u2029"})


def escaped(text: str) -> str:
    """Text for a cell of a TSV file: a tab becomes "\\t", a line end "\\n"."""
    return text.translate(_ESCAPES)
