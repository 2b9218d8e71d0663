"""Rows: of Python values, data frames, data sets, files and lines of text.

A row is a text, a tuple of values, or a dictionary of values by column name. Each row has
a place for error messages, such as "row 12" or "dev.csv:7". The first row of Python
data is row 0. Only a ``Path`` names a file: a ``str`` is a text.

CSV is RFC 4180: a quoted value may contain commas and line ends. TSV is GLUE's: a
quotation mark is text. JSONL has one object a line. JSON has a list of objects, or lines of
JSONL. Parquet needs pyarrow. Text is UTF-8 and may be gzipped.
"""

import csv
import itertools
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, NamedTuple

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


def value_of(
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


def text_of(
    where: str, values: Mapping[str, Any], names: Sequence[str], hint: str = ""
) -> str:
    """The text that :func:`value_of` finds."""
    found = value_of(where, values, names, hint)
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


Row = str | tuple[Any, ...] | dict[str, Any]
Placed = tuple[str, Row]  # a place and the row there
PAIR = ("text_a", "text_b")  # the columns of two texts

EXPECTED = (
    "a text, a tuple or a dictionary, a list of them, a data frame, a data set, or the "
    "Path of a file"
)


def is_single(data: Any) -> bool:
    """Whether the data is one row."""
    # A numpy array without dimensions holds one text.
    return isinstance(data, str | tuple | Mapping) or getattr(data, "ndim", None) == 0


def count_rows(data: Any) -> int | None:
    """The number of rows; None for a file or a generator."""
    if is_single(data):
        return 1
    return len(data) if isinstance(data, Sized) else None


def placed_rows(data: Any, name: str = "", *, tabs: bool = True) -> Iterator[Placed]:
    """The rows of any data, each with its place.

    data: one row; a list or generator of rows; a pandas or polars data frame; an Arrow
      table; a data set of Hugging Face; an array of texts; or the Path of a file, which is
      a table by its ending, or has a row a line. Path("-") is stdin.
    name: of the data, such as "train", for the places of rows.
    tabs: see :func:`line_rows`.

    Raises UserError for any other data.
    """
    if isinstance(data, Path):
        if is_table(data):
            yield from read_rows(data)
        else:
            name = "stdin" if data == STDIN else str(data)
            lines = (line for _, line in read_lines(data))
            yield from line_rows(lines, name, tabs=tabs)
        return
    place = f"{name}, row" if name else "row"
    for number, row in enumerate(_rows(data, name or "the input")):
        where = f"{place} {number}"
        yield where, _row(row, where)


def line_rows(
    lines: Iterable[str], name: str, *, tabs: bool = True
) -> Iterator[Placed]:
    """A row for each line of text. name: of the lines, for the places of rows.

    tabs: whether a line with tabs is a tuple of texts; otherwise each line is one text.
    """
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\r\n").removeprefix("\ufeff")
        yield (
            f"{name}:{number}",
            tuple(line.split("\t")) if tabs and "\t" in line else line,
        )


def _rows(data: Any, name: str) -> Iterable[Any]:
    if getattr(data, "ndim", None) == 0:  # numpy.array("a text")
        data = data.item()
    if is_single(data):
        if isinstance(data, str) and is_table(Path(data)) and _is_file(data):
            logger.warning(
                f"{data!r} is read as a text; give Path({data!r}) for the file"
            )
        return [data]
    if hasattr(data, "iter_rows"):  # polars
        return data.iter_rows(named=True)
    if hasattr(data, "to_pylist"):  # Arrow
        check_names(name, getattr(data, "column_names", []))
        return data.to_pylist()
    if hasattr(data, "to_dict") and hasattr(data, "columns"):  # pandas
        check_names(name, [*map(str, data.columns)])
        return data.to_dict("records")
    unordered = bytes | bytearray | set | frozenset
    if isinstance(data, Iterable) and not isinstance(data, unordered):
        return data
    raise UserError(f"{name} is of type {type(data).__name__}; expected {EXPECTED}")


def _is_file(text: str) -> bool:
    return os.path.isfile(text)  # noqa: PTH113 (Path raises OSError for a long text)


def _row(row: Any, where: str) -> Row:
    for method in ("_asdict", "to_dict"):  # of a named tuple, of a pandas Series
        if hasattr(row, method):
            row = getattr(row, method)()
    row = plain(row)
    if isinstance(row, str | dict):
        return row
    if isinstance(row, list):
        return tuple(row)
    came = "missing" if row is None else f"of type {type(row).__name__}"
    raise UserError(f"{where} is {came}; expected a text, a tuple or a dictionary")


def by_position(
    where: str, row: Row, names: Sequence[str], *, fewer: bool = False
) -> dict[str, Any]:
    """The values of a row by name. A text or a tuple has its values in this order.

    fewer: whether values at the end may be left out; they are then None.
    """
    if isinstance(row, dict):
        return row
    values = (row,) if isinstance(row, str) else row
    if len(values) > len(names) or not (values if fewer else len(values) == len(names)):
        raise UserError(
            f"{where} has {counted(len(values), 'value')}; expected {', '.join(names)}"
        )
    return dict(itertools.zip_longest(names, values))


def given_columns(columns: str | int | Sequence[str | int]) -> tuple[str, ...]:
    """The argument ``columns`` of users: the name of a column, or names.

    The columns of a data frame without a header have numbers as names.
    """
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        columns = () if columns in ("", None) else (columns,)
    return tuple(map(str, columns))


def text_columns(where: str, row: dict[str, Any], most: int = 2) -> tuple[str, ...]:
    """The columns of the text, or of the two texts, if the user names none.

    In this order: "text_a" and "text_b", "text" and "text_b", "text", and the only column
    besides "id" that has a text or a missing value.

    most: how many texts are read. Raises UserError for two texts if it is 1, because either
    of them may be meant.
    """
    first = "text_a" if "text_a" in row else "text"
    if row.keys() >= {first, "text_b"}:
        if most == 1:
            raise UserError(
                f"{where} has the columns {first} and text_b; expected one text, so name "
                f"its column, such as columns={first}"
            )
        return first, "text_b"
    if "text" in row:
        return ("text",)
    found = [n for n, x in row.items() if n != "id" and isinstance(x, str | None)]
    hint = header_hint(found)
    if len(found) == 1 and not hint:
        return tuple(found)
    raise UserError(
        f"{where}: the columns are {', '.join(row) or 'none'}; expected one of texts, or "
        f"columns= with the name of the text's column{hint and '; '}{hint}"
    )


def with_columns(
    placed: Iterable[Placed], names: Sequence[str], columns: Sequence[str] = ()
) -> Iterator[Placed]:
    """The rows, of which dictionaries have their texts under ``names``.

    columns: the columns of the texts, if the user names them. Otherwise
      :func:`text_columns` finds the columns of each row. Raises UserError if two rows have
      their texts in different columns.
    """
    first = tuple(columns)
    if len(first) > len(names):
        raise UserError(
            f"columns has {counted(len(first), 'name')} ({', '.join(first)}); expected "
            f"{len(names)}, for {', '.join(names)}"
        )
    for where, row in placed:
        if isinstance(row, dict):
            found = tuple(columns) or text_columns(where, row, len(names))
            first = first or found
            if found != first:
                raise UserError(
                    f"{where}: the text is in {' and '.join(found)}, in the rows before "
                    f"in {' and '.join(first)}; expected the same columns in all rows, or "
                    "columns= with their names"
                )
            # A user may name a column of lists, such as words to tag.
            get = value_of if columns else text_of
            values = [get(where, row, [column]) for column in found]
            others = {name: x for name, x in row.items() if name not in names}
            row = others | dict(zip(names, values, strict=False))
        yield where, row


class Texts(NamedTuple):
    """The texts of a row; id: None for a row without one."""

    where: str
    texts: tuple[str, ...]
    id: Any


def row_texts(
    placed: Iterable[Placed],
    columns: Sequence[str] = (),
    most: int = 2,
    *,
    pairs: bool = True,
) -> Iterator[Texts]:
    """The texts of each row, at most ``most`` of them.

    columns: see with_columns. pairs: whether a dictionary may have two texts if the user
    names no columns.
    """
    names = PAIR[: most if pairs or columns else 1]
    for where, row in with_columns(placed, names, columns):
        identity = None
        if isinstance(row, dict):
            identity = row.get("id")
            row = tuple(text_of(where, row, [n]) for n in names if n in row)
        texts = (row,) if isinstance(row, str) else row
        if not 1 <= len(texts) <= most:
            expected = "a text" if most == 1 else "a text, or a tuple of two"
            raise UserError(
                f"{where} has {counted(len(texts), 'value')}; expected {expected}"
            )
        for text in texts:
            if not isinstance(text, str):
                came = "missing" if text is None else f"of type {type(text).__name__}"
                raise UserError(f"{where}: the text is {came}; expected text")
        yield Texts(where, texts, identity)
