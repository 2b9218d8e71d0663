"""Reads rows from Python values, data frames, data sets, files and lines of text.

A row is a text, a tuple of values, or a dictionary of values by column name. Each row has
a place for error messages, such as "row 12" or "dev.csv:7". The first row of Python
data is row 0. Only a ``Path`` names a file: a ``str`` is a text.

Formats of tables: in CSV (RFC 4180) a quoted value may contain commas and line ends. In
TSV, as in GLUE, a quotation mark has no special meaning. A JSONL file has one object on
each line. A JSON file is a list of rows, or has the lines of JSONL. Parquet needs pyarrow.
Text files are UTF-8 and may be gzipped.
"""

import contextlib
import csv
import decimal
import enum
import functools
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

from bert_jax import files
from bert_jax.data.corpus import open_text
from bert_jax.errors import UserError, counted, listed, naming
from bert_jax.files import decode_lines, parse_json, reading, valid_text
from bert_jax.settings import python_value

logger = logging.getLogger(__name__)

STDIN = Path("-")
FORMATS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
_ROW = "expected a text, a tuple or a dictionary"
# Columns of texts and labels, by which a row of a data frame is recognised.
_USUAL_COLUMNS = (
    *("text", "text_a", "text_b", "label", "labels", "words", "tags"),
    *("question", "context", "answers", "choices"),
)
_ESCAPES = str.maketrans({c: ascii(c)[1:-1] for c in "\t\n\r\v\f\x85\u2028\u2029"})

Row = str | tuple[Any, ...] | dict[str, Any]
Placed = tuple[str, Row]  # place and row
Record = tuple[str, dict[str, Any]]  # place and values by name of the column


def is_single(data: Any) -> bool:
    """Whether the data is one row, such as a numpy array without dimensions."""
    if isinstance(data, Mapping):
        return not is_columns(data)
    return isinstance(data, str | tuple) or getattr(data, "ndim", None) == 0


def is_columns(data: Any) -> bool:
    """Whether the data is a dictionary of columns: each value is a list or an array."""
    if not isinstance(data, Mapping) or not data:
        return False
    return all(map(_is_column, data.values()))


def _is_column(value: Any) -> bool:
    single = isinstance(value, str | bytes | Mapping) or getattr(value, "ndim", 1) == 0
    return isinstance(value, Sized) and isinstance(value, Iterable) and not single


def column_rows(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a dictionary of columns.

    Raises UserError for columns of different lengths.
    """
    check_names("the dictionary of columns", [*map(str, data)])
    lengths = {str(name): len(column) for name, column in data.items()}
    if len({*lengths.values()}) > 1:
        shown = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise UserError(
            f"columns have different lengths ({shown}); expected one value "
            "of each column for each row"
        )
    rows = zip(*data.values(), strict=True)
    return [dict(zip(lengths, values, strict=True)) for values in rows]


def count_rows(data: Any) -> int | None:
    """Number of rows; None for a file or a generator."""
    if is_single(data):
        return 1
    if is_columns(data):
        return len(next(iter(data.values())))
    if isinstance(data, Sized):
        return len(data)
    return None


def placed_rows(data: Any, name: str = "", *, tabs: bool = True) -> Iterator[Placed]:
    """Yields each row of the data together with its place.

    data: one row; a list or generator of rows; a dictionary of columns; a pandas or polars
      data frame; an Arrow table; a data set of Hugging Face; an array of texts; or the Path
      of a file. The file is a table if its ending is in FORMATS; otherwise each line is a
      row. Path("-") is stdin.
    name: name of the data, such as "train". Each place starts with it.
    tabs: see :func:`line_rows`.

    Raises UserError for any other data, and for a text that is the name of a file.
    """
    if isinstance(data, str):
        _check_no_file(data)
    if not isinstance(data, Path):
        rows, place = _rows(data, name or "the input"), "row"
        if name:
            place = f"{name}, row"
        yield from _numbered(rows, place)
        return
    data = Path(files.expanded(data))
    files.check_local(data, "copy the file to this machine")
    if is_table(data):
        yield from read_rows(data)
    else:
        place = str(data)
        if data == STDIN:
            place = "stdin"
        yield from line_rows(_texts(data), place, tabs=tabs)


def _check_no_file(text: str) -> None:
    """Raises UserError for a text that is the name of a file.

    A word with the ending of a table is also refused if no such file exists, because it is
    more likely a misspelt name than a text. A URL is a text.
    """
    is_file = False
    with contextlib.suppress(OSError, ValueError):  # too long for a name, or a NUL
        is_file = Path(files.expanded(text)).is_file()
    is_word = len(text.split()) == 1 and "://" not in text
    actual = f"{text!r} is the name of a file"
    if not is_file:
        actual = f"{text!r} ends like the name of a file, and there is no such file"
    if is_file or (is_word and is_table(Path(text))):
        advice = f"Path({text!r}) from pathlib reads its rows, and [{text!r}] is a text"
        raise UserError(f"{actual}; {advice}")


def line_rows(
    lines: Iterable[str], name: str, *, tabs: bool = True
) -> Iterator[Placed]:
    """Yields the place and the row for each line of text.

    name: name of the file, for the places. tabs: whether a line with tabs is a tuple of
    texts; otherwise each line is one text.
    """
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\r\n")
        if tabs and "\t" in line:
            yield f"{name}:{number}", tuple(line.split("\t"))
        else:
            yield f"{name}:{number}", line


def _rows(data: Any, name: str) -> Iterable[Any]:
    """The rows of Python data. Their types are not checked yet."""
    if is_single(data):
        return [data]
    if hasattr(data, "num_rows") and isinstance(
        data, Mapping
    ):  # splits of Hugging Face
        splits = ", ".join(map(str, data))
        raise UserError(
            f"{name} has the splits {splits}; give one, as in data['train']"
        )
    if is_columns(data):
        return column_rows(data)
    if _record_names(data):  # a record array of numpy
        return [
            dict(zip(_record_names(data), row, strict=True)) for row in data.tolist()
        ]
    _check_no_frame_row(data, name)
    if hasattr(data, "with_format") and hasattr(data, "features"):
        data = data.with_format(None)  # another format has frames or arrays as rows
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
    actual = f"{name} is of type {type(data).__name__}"
    raise UserError(f"{actual}; {_ROW}, a list of rows, a data frame or a Path")


def _record_names(data: Any) -> tuple[str, ...]:
    """The names of the columns of a record array of numpy, or of one of its records."""
    return getattr(getattr(data, "dtype", None), "names", None) or ()


def _check_no_frame_row(data: Any, name: str) -> None:
    """Raises UserError for a row of a data frame, whose cells would be read as rows."""
    if not (hasattr(data, "to_dict") and hasattr(data, "index")):
        return
    if hasattr(data, "columns"):
        return
    names = {*map(str, data.index[:20])} & {*_USUAL_COLUMNS}
    if names:
        actual = f"{name} is one row of a data frame, with {listed(sorted(names))}"
        raise UserError(f"{actual}; put it into a list: [row]")


def _numbered(rows: Iterable[Any], name: str) -> Iterator[Placed]:
    """Converts each value to a row, and yields it with its place. The first place is 0."""
    for number, row in enumerate(rows):
        if _record_names(row):
            row = dict(zip(_record_names(row), row.tolist(), strict=True))
        if hasattr(row, "_asdict"):  # a named tuple
            row = row._asdict()
        if hasattr(row, "to_dict"):
            row = row.to_dict()
        row = plain(row)
        if row is None:
            raise UserError(f"{name} {number} is missing; fill it in or drop the row")
        if not isinstance(row, str | list | dict):
            raise UserError(f"{name} {number} is of type {type(row).__name__}; {_ROW}")
        if isinstance(row, list):
            row = tuple(row)
        yield f"{name} {number}", row


def plain(value: Any) -> Any:
    """Converts a value of numpy, pandas or another library to plain Python.

    Missing values (NaN, NaT, NA of pandas) become None. A member of an Enum becomes its
    value, and a Decimal a float.
    """
    value = python_value(value)
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, decimal.Decimal):
        value = float(value)
    if isinstance(value, str):
        return valid_text(str.__str__(value))
    if isinstance(value, bytes):  # a text of tensorflow-datasets
        return value.decode(errors="replace")
    if isinstance(value, list | tuple):
        return [*map(plain, value)]
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    kind = type(value).__name__
    missing = kind in ("NAType", "NaTType") or (kind == "float" and value != value)
    if missing:
        return None
    return value


# Files


def ending(path: Path) -> str:
    """The ending of a file's name in lower case: ".csv" for "Train.CSV.gz".

    A suffix of a compression that :func:`files.open_text` reads is left out.
    """
    from fsspec.utils import infer_compression

    if infer_compression(str(path).lower()) is not None:
        path = path.with_suffix("")
    return files.ending(path)


def is_table(path: Path) -> bool:
    """Whether a file is a table, by the ending of its name."""
    return ending(path) in FORMATS


def read_rows(
    path: Path, *, header: Sequence[str] = (), skip_short: bool = False
) -> Iterator[Placed]:
    """Yields the place and the values of each row of a table.

    A column without a name is ignored, because pandas writes its index there. Blank lines
    are skipped, except in a TSV file with one column, where a blank line is a row with an
    empty text.

    header: column names of a CSV or TSV file without a header line.
    skip_short: whether rows with too few columns are skipped, with a warning.

    Raises UserError with file and line for a malformed row, and for a table without rows.
    """
    if ending(path) == ".parquet":
        rows = _numbered(_parquet(path), f"{path}: row")
    elif ending(path) in FORMATS[2:]:
        rows = _objects(path)
    else:
        rows = _records(path, header, skip_short)
    return not_empty(rows, path, "row")


def not_empty(rows: Iterator[Placed], path: Path, noun: str) -> Iterator[Placed]:
    """Yields the rows of a file. Raises UserError if there are none.

    noun: name of a row, such as "row" or "sentence".
    """
    is_empty = True
    for row in rows:
        is_empty = False
        yield row
    if is_empty:
        raise UserError(f"{path} has no {noun}s; expected at least one")


def _records(path: Path, header: Sequence[str], skip_short: bool) -> Iterator[Record]:
    """Yields the rows of a CSV file. Any other file is read as TSV."""
    rows = _fields(path)
    if not header:
        _, header = next(rows, (1, ()))
    if not header:
        raise UserError(f"{path} is empty; expected a header and rows")
    check_names(path, [*filter(None, header)])
    for line, row in rows:
        if row == [] or (len(header) > 1 and row == [""]):
            continue
        if len(row) == len(header):
            values = dict(zip(header, row, strict=True))
            values.pop("", None)
            yield f"{path}:{line}", values
            continue
        actual = (
            f"{path}:{line}: row has {counted(len(row), 'column')}, the header has "
        )
        actual += f"{len(header)} ({', '.join(header)})"
        if len(row) > len(header) or not skip_short:
            advice = "add a header"
            if ending(path) == ".csv" and len(row) > len(header):
                advice = "put quotes around cells that contain commas"
            raise UserError(f"{actual}; fix the row, or {advice}")
        logger.warning(f"{actual}; the row is left out")


def _fields(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the first line number and the cells of each row of a CSV or TSV file."""
    if ending(path) != ".csv":
        has_quotes = False
        for line, text in text_lines(path):
            cells = text.rstrip("\r\n").split("\t")
            if not has_quotes and any(map(_is_quoted, cells)):
                has_quotes = True
                _warn_of_quotes(path, line)
            yield line, cells
        return
    csv.field_size_limit((1 << 31) - 1)  # Python's default is 131,072 characters
    reader, line = csv.reader(_texts(path), strict=True), 1
    try:
        for row in reader:
            yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        needed = 'write the text as "..." and each " in it as "", or use JSONL'
        raise UserError(f"{path}:{line}: not CSV ({error}); {needed}") from error


def _is_quoted(cell: str) -> bool:
    """Whether a cell of a TSV file is written as in CSV, such as "a ""b"" c"."""
    if len(cell) < 4 or not (cell.startswith('"') and cell.endswith('"')):
        return False
    inside = cell[1:-1]
    return '""' in inside and '"' not in inside.replace('""', "")


@functools.cache  # warns once, although a file may be read twice
def _warn_of_quotes(path: Path, line: int) -> None:
    logger.warning(
        f"{path}:{line}: quotation marks as in CSV stay in the texts of a TSV file, as in "
        "GLUE; if pandas wrote the file, write .csv, or use quoting=csv.QUOTE_NONE"
    )


def _objects(path: Path) -> Iterator[Record]:
    """Yields the rows of a JSON list, or of a file with a JSON object on each line."""
    expected = "an object on each line, or a list in .json"
    lines: Iterable[tuple[int, str]] = text_lines(path)
    if ending(path) == ".json":
        lines = [*read_lines(path)]
        text = "".join(line for _, line in lines)
        if text.lstrip().startswith("["):
            # parse_json reads only objects, so the list is wrapped into an object.
            wrapped = parse_json(f'{{"rows": {text}}}', path, expected, unique=True)
            for where, row in _numbered(wrapped["rows"], f"{path}: row"):
                yield where, named_values(where, row, ())
            return
    for line, text in lines:
        if text.strip():
            where = f"{path}:{line}"
            yield where, plain(parse_json(text, where, expected, unique=True))


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    with reading(path, "a Parquet file"):
        from pyarrow import parquet

        with parquet.ParquetFile(path) as file:
            check_names(path, file.schema_arrow.names)
            for batch in file.iter_batches():
                yield from batch.to_pylist()


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the number and the text of each line. The text includes the line end.

    Path("-") is stdin.
    """
    if path == STDIN:
        yield from decode_lines(sys.stdin.buffer, "stdin")
        return
    with reading(path, "a file of rows"), _opened(path) as file:
        yield from decode_lines(file, path)


def _opened(path: Path) -> Any:
    """The open file of a path, for bytes."""
    if path.is_file():
        return open_text(path)
    return path.open("rb")  # a pipe, which fsspec cannot read


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of :func:`read_lines`.

    Raises UserError for a file whose lines end in a carriage return, as on old Macs.
    """
    name = path
    if path == STDIN:
        name = "stdin"
    for number, line in read_lines(path):
        if number == 1:
            with naming(name):
                files.check_line_end(line)
        yield number, line


def _texts(path: Path) -> Iterator[str]:
    """The lines of :func:`text_lines` without their numbers."""
    for _, line in text_lines(path):
        yield line


def slice_of(name: str, text: str) -> slice:
    """Parses a slice such as "0:36", the value of a setting; an empty text means all.

    name: the setting, for the message. Raises UserError.
    """
    ends = re.fullmatch(r"(-?\d+)?:(-?\d+)?", text or ":")
    if not ends:
        raise UserError(f"{name}={text!r}, expected a slice such as 0:36")
    first = stop = None
    if ends[1]:
        first = int(ends[1])
    if ends[2]:
        stop = int(ends[2])
    return slice(first, stop)


def check_names(where: object, names: Sequence[str]) -> None:
    """Raises UserError if two columns have the same name."""
    twice = {repr(name) for name in names if names.count(name) > 1}
    if twice:
        raise UserError(f"{where}: column {listed([*twice])} occurs twice; rename one")


def escaped(text: str) -> str:
    """The text as a cell of a TSV file: a tab becomes "\\t", a line end "\\n"."""
    return text.translate(_ESCAPES)


# Values and texts of a row


def name_in(values: Mapping[str, Any], names: Sequence[str]) -> str:
    """The first of the names that a row has; "" if it has none."""
    for name in names:
        if name in values:
            return name
    return ""


def value_of(
    where: str, values: Mapping[str, Any], names: Sequence[str], setting: str = ""
) -> Any:
    """The value of a column in one row.

    names: possible names of the column. The first name that the row has is used.
    setting: "columns" or the setting of the task that names the column in this call, for
      the message; "" if no setting does.
    Raises UserError if the row has none of the names, or if the value is missing.
    """
    name = name_in(values, names)
    if name and values[name] is None:
        raise UserError(f'{where}: "{name}" is missing; fill it in or drop the row')
    if name:
        return values[name]
    advice = "rename a column"
    if setting == "columns":
        advice += ", or set columns to its name"
    elif setting:
        advice += f", or set {setting} of the task (data.{setting}) to its name"
    if ".csv" in where or ".tsv" in where:
        advice += "; a table needs a header, with commas in .csv and tabs in .tsv"
    raise UserError(
        f"{where}: no column {' or '.join(map(repr, names))}; the columns are "
        f"{', '.join(values)}; {advice}"
    )


def text_of(where: str, values: Mapping[str, Any], names: Sequence[str]) -> str:
    """The value of a column as :func:`value_of`. Raises UserError if it is not a text."""
    text = value_of(where, values, names)
    if isinstance(text, str):
        return text
    name, kind = name_in(values, names), type(text).__name__
    raise UserError(f'{where}: "{name}" is of type {kind}; expected text')


def check_texts(where: str, texts: Iterable[str], *, gaps: bool = False) -> None:
    """Raises UserError for an empty text.

    gaps: whether some of the texts may be empty. At least one must have words.
    """
    filled = [bool(text.strip()) for text in texts]
    if not all(filled) and not (gaps and any(filled)):
        raise UserError(f"{where}: the text is empty; fill it in or drop the row")


def truth_of(where: str, name: str, value: Any) -> bool:
    """A value of a column as a boolean. Tables write it as 0 or 1, or as false or true."""
    truths = {"true": True, "1": True, "false": False, "0": False}
    truth = truths.get(str(value).lower().removesuffix(".0"))
    if truth is None:
        needed = "expected 0 or 1, or false or true"
        raise UserError(f"{where}: {name!r} is {value!r}, {needed}")
    return truth


def named_values(
    where: str, row: Row, names: Sequence[str], *, fewer: bool = False
) -> dict[str, Any]:
    """The values of a row by name. A dictionary is returned unchanged.

    names: names for the values of a tuple, in their order. A text is a tuple of one value.
    fewer: whether the row may have fewer values than names.
    """
    if isinstance(row, dict):
        return row
    values = row
    if isinstance(row, str):
        values = (row,)
    fits = len(values) == len(names)
    if fewer:
        fits = 0 < len(values) <= len(names)
    if not fits:
        actual = f"{where} has {counted(len(values), 'value')}"
        raise UserError(f"{actual}; expected {', '.join(names) or 'an object'}")
    return dict(zip(names, values, strict=False))


def column_names(columns: str | Sequence[str] | None) -> tuple[str, ...]:
    """Converts an argument ``columns`` to a tuple. "", () and None mean no columns.

    Raises UserError for anything other than names.
    """
    names = python_value(columns)
    if names is None or names == "":
        return ()
    if isinstance(names, str):
        return (names,)
    if isinstance(names, list | tuple) and all(isinstance(x, str) for x in names):
        return tuple(names)
    raise UserError(f"columns={columns!r:.200}, expected a name, or a list of names")
