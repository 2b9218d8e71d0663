"""Rows with named columns: CSV, TSV, JSONL, JSON and Parquet files, and tfds.

CSV is RFC 4180: quotes may hold commas and line ends. TSV is GLUE's: no quoting at all,
a quotation mark is text. JSONL is one object a line; JSON is a list of objects, or JSONL
under another name. Parquet needs pyarrow. The text formats are UTF-8, with or without a
byte order mark, and may be gzipped; lines end with LF or CRLF. Data sets of
tensorflow-datasets are read without TensorFlow.
"""

import csv
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax import files
from bert_jax.data.corpus import TFDS, find_dataset, open_text
from bert_jax.errors import UserError, counted, listed
from bert_jax.files import LONGEST_LINE, decode_lines, parse_json, valid_text
from bert_jax.tasks.class_names import in_order_of

logger = logging.getLogger(__name__)

SPLITS = ("train", "dev", "test")
_OBJECTS = (".jsonl", ".ndjson", ".json", ".parquet")
FORMATS = (".csv", ".tsv", *_OBJECTS)
ENDINGS = tuple(ending + packed for ending in FORMATS for packed in ("", ".gz"))
_LONGEST_FIELD = (1 << 31) - 1  # characters of a CSV field; Python's default is 131,072

_MOST_UNPACKED = 100  # bytes that one of gzip becomes; of text it is 3 to 10

Record = tuple[str, dict[str, Any]]  # ("file:line", value of each column)


def has_objects(path: Path) -> bool:
    """Whether a file holds objects with the values of rows, by its ending."""
    return ending(path) in _OBJECTS


def is_table(path: Path) -> bool:
    """Whether a file has named columns, by its ending; a .txt file has lines of text."""
    return ending(path) in FORMATS


def check_table(path: Path) -> None:
    """Raises UserError unless the file :func:`is_table`."""
    if not is_table(path):
        raise UserError(
            f"{path} is no table by its name; expected one of {', '.join(FORMATS)}, "
            "with or without .gz"
        )


def check_names(where: object, names: Sequence[str]) -> None:
    """Raises UserError for the name of a column that occurs twice."""
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"{where}: column {name!r} occurs twice; rename one of them"
            )


def read_columns(path: Path) -> list[str]:
    """Names of a table's columns; of JSON, the keys of its first object."""
    if has_objects(path):
        return next((list(value) for _, value in read_objects(path)), [])
    return _header(path, _fields(path))


def read_rows(path: Path) -> Iterator[Record]:
    """The place of each row of a table, and its values in all columns with a name.

    A column of CSV without a name is the index of a pandas data frame.
    """
    check_table(path)
    if has_objects(path):
        return read_objects(path)
    return read_table(path, [name for name in read_columns(path) if name])


def read_table(
    path: Path,
    columns: Sequence[str],
    *,
    optional: Sequence[str] = (),
    header: Sequence[str] = (),
    skip_short: bool = False,
    hints: Mapping[str, str] | None = None,
) -> Iterator[Record]:
    """The place of each row, "FILE:LINE", and its text in the columns asked for.

    columns: must be there. optional: None where the table has no such column.
    header: names of the columns of a CSV or TSV file without a header line.
    skip_short: leaves out, with a notice, rows that have too few columns, for data sets
      that are published with such rows.
    hints: what to change if a column is missing, by column, for errors.
    Blank lines are skipped, except in a TSV file of one column: there they are empty
    texts.

    Raises UserError naming file and line of a row that has too few or too many columns.
    """
    if has_objects(path):
        for where, value in read_objects(path):
            yield where, _select(where, value, columns, optional, hints or {})
        return
    rows = _fields(path)
    header = header or _header(path, rows)
    asked = {*columns, *optional}
    check_names(path, [name for name in header if name in asked])
    short: list[str] = []
    for line, row in rows:
        if row == [] or (len(header) > 1 and row == [""]):
            continue
        if len(row) < len(header) and skip_short:
            short.append(str(line))
            continue
        where = f"{path}:{line}"
        if len(row) != len(header):
            raise UserError(
                f"{where}: row has {counted(len(row), 'column')}, the header has "
                f"{len(header)} ({', '.join(header)}); "
                f"{header_hint(header) or 'fix the row'}"
            )
        named = dict(zip(header, row, strict=True))
        yield where, _select(where, named, columns, optional, hints or {})
    if short:
        logger.warning(
            f"{path}: left out {counted(len(short), 'row')} of too few columns: line "
            f"{listed(short)}"
        )


def _select(
    where: str,
    row: dict[str, Any],
    columns: Sequence[str],
    optional: Sequence[str],
    hints: Mapping[str, str],
) -> dict[str, str | None]:
    """The text in some columns of a row."""
    for name in columns:
        value(where, row, [name], hints.get(name, ""))
    values = {name: row.get(name) for name in (*columns, *optional)}
    return {
        name: None if x is None else cell(where, name, x) for name, x in values.items()
    }


def read_objects(path: Path) -> Iterator[Record]:
    """The place of each object of a JSONL, JSON or Parquet file, and the object.

    Blank lines of JSONL are skipped. A JSON file is a list of objects, or JSONL. Values
    are those of :func:`plain`.
    """
    for where, row in _objects(path):
        yield where, plain(row)


def _objects(path: Path) -> Iterator[Record]:
    if ending(path) == ".parquet":
        yield from _read_parquet(path)
        return
    lines = read_lines(path)
    if ending(path) == ".json":
        lines = list(lines)
        if "".join(text for _, text in lines[:1]).lstrip("\ufeff ")[:1] in ("[", ""):
            # A list as the value of an object gets the checks of an object.
            text = "".join(text for _, text in lines).removeprefix("\ufeff")
            expected = "a list of objects, or one object a line"
            rows = parse_json(f'{{"rows": {text}}}', path, expected, unique=True)[
                "rows"
            ]
            for number, row in enumerate(rows):
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


def plain(value: Any) -> Any:
    """A value of numpy, pandas or another library as one of Python.

    Missing values (NaN, NaT, NA of pandas) are None. Texts are valid in UTF-8. The values
    of lists, tuples and dictionaries are converted, too.
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


def _read_parquet(path: Path) -> Iterator[Record]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise UserError(
            f"{path} needs a library that reads it ({error}): pip install pyarrow"
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            check_names(path, file.schema_arrow.names)
            number = 0
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    yield f"{path}: row {number}", row
                    number += 1
    except (OSError, ArrowException) as error:
        raise UserError(f"{path} is not a Parquet file ({error})") from error


def value(
    where: str, values: Mapping[str, Any], names: Iterable[str], hint: str = ""
) -> Any:
    """The value of a row in the first of these columns that it has.

    Raises UserError for a missing value, and for a row without such a column; ``hint``
    then says what to change. No other column replaces a missing value.
    """
    names = [name for name in dict.fromkeys(names) if name]
    name = next((name for name in names if name in values), None)
    if name is None:
        raise missing_column(where, values, *names, hint=hint)
    if values[name] is None:
        raise UserError(f'{where}: "{name}" is missing; fill it in or drop the row')
    return values[name]


def one_column_each(
    records: Iterable[tuple[str, Any]], keys: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, Any]]:
    """The rows, of which all dictionaries have a value in the same column.

    keys: the possible columns of each value. Raises UserError for a row that has the value
    in another column than the rows before.
    """
    chosen: dict[str, str] = {}
    for where, row in records:
        for key, names in keys.items() if isinstance(row, dict) else ():
            found = next((name for name in names if name in row), None)
            if found and found != chosen.setdefault(key, found):
                raise UserError(
                    f"{where} has the column {found!r} where the rows before have "
                    f"{chosen[key]!r}; expected the same columns in all rows"
                )
        yield where, row


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


def find_file(directory: str | Path, names: Iterable[str]) -> Path | None:
    """The first of these files that exists below a folder."""
    paths = (Path(directory) / name for name in names)
    return next((path for path in paths if path.is_file()), None)


def existing_file(directory: str | Path, names: Sequence[str], split: str = "") -> Path:
    """The first of these files that exists in a folder; a UserError where none does.

    split: the setting that names another file, if there is one.
    """
    path = find_file(directory, names)
    if path is None:
        folder = Path(directory)
        there = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
        found = f" (it has {listed(there)})" if directory and there else ""
        setting = f", or data.{split} to a file in it" if split else ""
        train = find_file(directory, [name.replace("dev", "train") for name in names])
        own = f"put some rows of {train.name} into {names[0]}, or " if train else ""
        raise UserError(
            f"{directory or 'data.dir'} has no {listed(names)}{found}; {own}set "
            f"data.dir to the folder of the data set{setting}"
        )
    return path


def cell(where: str, name: str, value: Any) -> str:
    """A value as the text that a CSV file of pandas would hold.

    Raises UserError with the place and the name of a value that JSON does not have, such
    as a date.
    """
    if isinstance(value, str | bool):
        return str(value)
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError:
        raise UserError(
            f"{where}: {name} is of type {type(value).__name__}; expected a text or a "
            "number"
        ) from None


_ESCAPES = str.maketrans({c: ascii(c)[1:-1] for c in "\t\n\r\v\f\x85\u2028\u2029"})


def escaped(text: str) -> str:
    """Text for one cell of a TSV file: a tab is "\\t", an end of line "\\n"."""
    return text.translate(_ESCAPES)


def missing_column(
    where: str, columns: Iterable[str], *names: str, hint: str = ""
) -> UserError:
    """The error for a table without a column that has one of these names."""
    columns, expected = [*columns], " or ".join(map(repr, names))
    found = ", ".join(columns) or "none"
    hints = [f"the columns are {found}", *filter(None, (hint, header_hint(columns)))]
    return UserError(f"{where}: no column {expected}; {'; '.join(hints)}")


def header_hint(columns: Sequence[str]) -> str:
    """What to change if the names of columns are no header of the right form, or ""."""
    separators = sorted({c for name in columns for c in name if c in ";|\t,"})
    if len(columns) == 1 and separators:
        return (
            f"the header has {' or '.join(map(repr, separators))} between its names; "
            "expected commas in a .csv file and tabs in a .tsv file"
        )
    # pandas gives a column without a name the number 0.
    numbers = len(columns) > 1 and any(map(str.isdecimal, columns))
    if numbers or any(name.count(" ") > 2 for name in columns):
        return (
            "if these are a row of the file, put a line with names of columns above it"
        )
    return ""


def check_texts(where: str, texts: Iterable[str], *, gaps: bool = False) -> None:
    """Raises for an empty text; with ``gaps`` only where all of them are empty."""
    if not (any if gaps else all)(text.strip() for text in texts):
        raise UserError(f"{where}: empty text; expected words, fix or drop the row")


def ending(path: Path) -> str:
    """The ending of a file's name in small letters, without .gz."""
    return files.ending(path.with_suffix("") if is_packed(path) else path)


def is_packed(path: Path) -> bool:
    """Whether a file is gzipped, by its ending."""
    return files.ending(path) == ".gz"


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Line number and text of each line, with its end; U+2028 is no line end."""
    if not path.exists() or path.is_dir():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(f"{path} {problem}; expected a file of rows")
    packed = is_packed(path)
    # The rows of a table are in memory together.
    most = path.stat().st_size * _MOST_UNPACKED + LONGEST_LINE
    size = 0
    with open_text(path) as file:
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
    if ending(path) != ".txt":  # of a published data set; such a file has tabs
        check_table(path)
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

    columns, optional: as of :func:`read_table`. labels: of the task, for the classes of
    the data set; see class_names.in_order_of. A class of -1 is a missing label.
    """
    found = find_dataset(dataset)
    features = found.features
    for column in columns:
        if column not in features:
            raise missing_column(dataset, features, column)
    columns = [name for name in (*columns, *optional) if name in features]
    classes = {}
    for name in columns:
        if names := tuple(getattr(features[name], "names", None) or ()):
            names = in_order_of(names, tuple(labels)) if labels else names
            classes[name] = {-1: None} | dict(enumerate(names))
    for i, example in found.examples(0, found.rows):
        where = f"{dataset}, row {i}"
        values = dict.fromkeys(optional)
        for column in columns:
            value = example[column]
            if column in classes:
                values[column] = classes[column][int(value)]
            else:
                values[column] = (
                    value.decode() if isinstance(value, bytes) else str(value)
                )
        yield where, values
