"""Rows: of Python values, data frames, data sets, files and lines of text.

A row is a text, a tuple of values, or a dictionary of values by column name. Each row has
a place for error messages, such as "row 12" or "dev.csv:7". The first row of Python
data is row 0. Only a ``Path`` names a file: a ``str`` is a text.
"""

import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.errors import UserError, counted
from bert_jax.tasks import tables

logger = logging.getLogger(__name__)

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
        if tables.is_table(data):
            yield from tables.read_rows(data)
        else:
            name = "stdin" if data == tables.STDIN else str(data)
            lines = (line for _, line in tables.read_lines(data))
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
    hint = tables.header_hint(found)
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
            get = tables.value if columns else tables.text
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
            row = tuple(tables.text(where, row, [n]) for n in names if n in row)
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
