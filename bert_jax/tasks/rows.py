"""Rows from Python values, data frames and files.

A row is a text, a tuple of values, or a dictionary of values by column name. Every row
has a place for error messages, such as "row 12" or "dev.csv:7". The first row of Python
data is row 0. Only a ``Path`` names a file: a ``str`` is a text.
"""

import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.errors import UserError, counted
from bert_jax.tasks import tables

logger = logging.getLogger(__name__)

Row = str | tuple[Any, ...] | dict[str, Any]
Placed = tuple[str, Row]  # a place and the row there
ParseLine = Callable[[str, str], Row]  # from the place and the text of a line
PAIR = ("text_a", "text_b")  # the columns of two texts

EXPECTED = (
    "a text, a tuple or a dictionary, a list of them, a data frame, a data set, or the "
    "Path of a file"
)


def is_single(data: Any) -> bool:
    """Whether the data is one row, and not an iterable of rows."""
    # A numpy array without dimensions holds one text.
    return isinstance(data, str | tuple | Mapping) or getattr(data, "ndim", None) == 0


def count_rows(data: Any) -> int | None:
    """The number of rows; None for a file or a generator."""
    if is_single(data):
        return 1
    return len(data) if isinstance(data, Sized) else None


def text_line(where: str, line: str) -> Row:
    """A line that is one text."""
    del where
    return line


def texts_line(where: str, line: str) -> Row:
    """A line of one text, or of several with tabs between them."""
    del where
    return tuple(line.split("\t")) if "\t" in line else line


def placed_rows(
    data: Any, name: str = "", parse_line: ParseLine = texts_line
) -> Iterator[Placed]:
    """The rows of any data, each with its place.

    data: one row; a list or generator of rows; a pandas or polars data frame; an Arrow
      table; a data set of Hugging Face; an array of texts; or the Path of a file.
    name: what the data is, such as "train", for the places of rows.
    parse_line: the row of a line, for a file that is not a table.

    Raises UserError for any other data.
    """
    if isinstance(data, Path):
        yield from file_rows(data, parse_line)
        return
    place = f"{name}, row" if name else "row"
    for number, row in enumerate(_rows(data, name or "the input")):
        where = f"{place} {number}"
        yield where, _row(row, where)


def _rows(data: Any, name: str) -> Iterable[Any]:
    if getattr(data, "ndim", None) == 0:  # numpy.array("a text")
        data = data.item()
    if is_single(data):
        if isinstance(data, str) and tables.is_table(Path(data)) and _is_file(data):
            logger.warning(
                f"{data!r} is read as a text; give Path({data!r}) for the file"
            )
        return [data]
    if hasattr(data, "iter_rows"):  # polars
        return data.iter_rows(named=True)
    if hasattr(data, "to_pylist"):  # Arrow
        tables.check_names(name, getattr(data, "column_names", []))
        return data.to_pylist()
    if hasattr(data, "to_dict") and hasattr(data, "columns"):  # pandas
        tables.check_names(name, [*map(str, data.columns)])
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
    row = tables.plain(row)
    if isinstance(row, str):
        return row
    if isinstance(row, list | tuple):
        return tuple(row)
    if isinstance(row, dict):
        return row
    came = "missing" if row is None else f"of type {type(row).__name__}"
    raise UserError(f"{where} is {came}; expected a text, a tuple or a dictionary")


def file_rows(path: Path, parse_line: ParseLine = texts_line) -> Iterator[Placed]:
    """The rows of a file: of a table, by its ending, or of lines of text."""
    if tables.is_table(path):
        return tables.read_rows(path)
    lines = (line for _, line in tables.read_lines(path))
    return line_rows(lines, str(path), parse_line)


def line_rows(
    lines: Iterable[str], name: str, parse_line: ParseLine = texts_line
) -> Iterator[Placed]:
    """The rows of lines of text. name: of the input, for errors."""
    for number, line in enumerate(lines, 1):
        where = f"{name}:{number}"
        yield where, parse_line(where, line.rstrip("\r\n").removeprefix("\ufeff"))


def by_position(
    where: str, row: Row, names: Sequence[str], *, fewer: bool = False
) -> dict[str, Any]:
    """The values of a row by name, where those of a text or a tuple have these names.

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


def renamed(where: str, row: Row, columns: Sequence[str], names: Sequence[str]) -> Row:
    """The row with its values of ``columns`` under ``names``."""
    if not columns or not isinstance(row, dict):
        return row
    values = tuple(tables.value(where, row, [column]) for column in columns)
    return row | by_position(where, values, names)


def check_columns(columns: Sequence[str], names: Sequence[str]) -> None:
    """Raises UserError unless there are no columns, or as many as names."""
    if columns and len(columns) != len(names):
        raise UserError(
            f"columns has {counted(len(columns), 'name')} ({', '.join(columns)}); "
            f"expected {len(names)}, for {', '.join(names)}"
        )


def given_columns(columns: str | int | Sequence[str | int]) -> tuple[str, ...]:
    """The argument ``columns`` of users: the name of a column, or names.

    A data frame without a header has numbers as names; the rows have them as texts.
    """
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        columns = () if columns in ("", None) else (columns,)
    return tuple(map(str, columns))


def text_columns(
    where: str, row: dict[str, Any], *, pairs: bool = True
) -> tuple[str, ...]:
    """The columns of the text, or of the two texts, if the user names none.

    In this order: "text_a" and "text_b", "text" and "text_b", "text", and the only column
    besides "id" that has a text or a missing value.

    pairs: whether two texts can be read. Raises UserError for two texts if not, because
    either of them may be meant.
    """
    first = "text_a" if "text_a" in row else "text"
    if row.keys() >= {first, "text_b"}:
        if not pairs:
            raise two_texts(where, first)
        return first, "text_b"
    if "text" in row:
        return ("text",)
    found = [n for n, x in row.items() if n != "id" and isinstance(x, str | None)]
    hint = tables.header_hint(found)
    if len(found) == 1 and not hint:
        return tuple(found)
    raise UserError(
        f"{where}: the columns are {', '.join(row) or 'none'}; expected one of texts, or "
        f"columns= with the name of the text's column{hint and '; '}{hint}"
    )


def with_columns(
    placed: Iterable[Placed], columns: Sequence[str] = (), *, pairs: bool = True
) -> Iterator[tuple[str, Row, tuple[str, ...]]]:
    """The rows, each with the columns of its texts if it is a dictionary.

    columns: the columns that the user names. Without them :func:`text_columns` finds the
      columns of each row. Raises UserError if rows have different ones.
    """
    first: tuple[str, ...] = tuple(columns)
    for where, row in placed:
        found = first
        if isinstance(row, dict) and not columns:
            found = text_columns(where, row, pairs=pairs)
            first = first or found
        if found != first:
            raise UserError(
                f"{where}: the text is in {' and '.join(found)}, in the rows before in "
                f"{' and '.join(first)}; expected the same columns in all rows, or "
                "columns= with their names"
            )
        yield where, row, found if isinstance(row, dict) else ()


def two_texts(where: str, first: str = "text_a") -> UserError:
    """The error for a row of two texts where one text is read."""
    return UserError(
        f"{where} has the columns {first} and text_b; expected one text, so name its "
        f"column, such as columns={first}"
    )


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

    columns, pairs: see :func:`with_columns`.
    """
    for where, row, found in with_columns(placed, columns, pairs=pairs and most > 1):
        identity = None
        if isinstance(row, dict):
            identity = row.get("id")
            row = tuple(tables.text(where, row, [name]) for name in found)
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
