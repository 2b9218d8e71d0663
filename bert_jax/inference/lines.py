"""The input of commands, and their answers as JSON, CSV or aligned columns."""

import contextlib
import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from rich.cells import cell_len, set_cell_size

from bert_jax.errors import UserError, counted, printable
from bert_jax.files import ending, new_file
from bert_jax.progress import aligned
from bert_jax.tasks.rows import Placed, is_table, line_rows, placed_rows

STANDARD = "-"  # stdin, or stdout
CHUNK = 4096  # rows that are in memory together
# Columns with texts of the input, which are shortened to _WIDEST cells in a table.
_INPUT = ("text", "text_a", "text_b", "context", "question", "first", "second")
_WIDEST = 60
T = TypeVar("T")


def input_name(path: str) -> str:
    """The name of an input in errors."""
    return "stdin" if path == STANDARD else path


def count_lines(path: str) -> int | None:
    """The number of lines of a text file; None for tables, stdin and pipes."""
    if path == STANDARD or not Path(path).is_file() or is_table(Path(path)):
        return None
    count, last = 0, b"\n"
    with Path(path).open("rb") as file:
        while part := file.read(1 << 20):
            count, last = count + part.count(b"\n"), part
    return count + (not last.endswith(b"\n"))


class Given(NamedTuple):
    """The rows of a command, the name of the input, and the number of rows if known."""

    rows: Iterable[Placed]
    name: str
    total: int | None


def given_rows(
    texts: Sequence[str] | None,
    path: str,
    *,
    tabs: bool = True,
    read: Callable[[Path], Iterable[Placed]] | None = None,
) -> Given:
    """The rows of a command.

    texts: values of --text. path: value of --input, if texts is None. tabs: whether a line
    with tabs is a row of several texts. read: function that reads a file, if placed_rows is
    not enough.
    """
    if texts is not None:
        return Given(line_rows(texts, "--text", tabs=tabs), "--text", len(texts))
    file = Path(path)
    rows = read(file) if read else placed_rows(file, tabs=tabs)
    return Given(rows, input_name(path), count_lines(path))


def on_screen(path: str) -> bool:
    """Whether an output is a terminal."""
    return path == STANDARD and sys.stdout.isatty()


def output_format(output: str, hint: str = "") -> str:
    """The format of answers by the ending of the output's name: "jsonl" or "csv".

    Raises UserError for another ending. hint: what to change, for errors.
    """
    found = {"": "jsonl", ".jsonl": "jsonl", ".csv": "csv"}.get(ending(output))
    if not found:
        raise UserError(f"--output={output}, expected a name in .csv or .jsonl{hint}")
    return found


def truncation(truncated: int, rows: int, noun: str, max_length: int) -> str:
    """The message about truncated rows."""
    verb = "is" if truncated == 1 else "are"
    return (
        f"{truncated:,} of {counted(rows, noun)} {verb} truncated to "
        f"max_length={max_length}"
    )


def open_output(path: str) -> contextlib.AbstractContextManager[IO[str]]:
    """A file that replaces an existing file when it is complete, or stdout for "-"."""
    if path == STANDARD:
        return contextlib.nullcontext(sys.stdout)
    return new_file(Path(path), "w")


def chunks(
    items: Iterable[T], size: int, cost: Callable[[T], int] = lambda item: 1
) -> Iterator[list[T]]:
    """Lists of items, each list as soon as the costs of its items reach ``size``."""
    chunk, total = [], 0
    for item in items:
        chunk.append(item)
        total += cost(item)
        if total >= size:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk


class Answers(NamedTuple):
    """Some rows, in order, with an answer each.

    task: its method ``cells`` makes the cells of aligned columns. truncated: number of
    truncated rows.
    """

    rows: list[Any]
    answers: list[dict[str, Any]]
    task: Any = None
    truncated: int = 0


def json_lines(part: Answers) -> Iterator[str]:
    """A JSON object for each row. An id that JSON does not have, as a date, is a text."""
    for answer in part.answers:
        yield printable(json.dumps(answer, ensure_ascii=False, default=str))


def table_lines(part: Answers) -> Iterator[str]:
    """Aligned columns with a header. Long texts of the input are shortened."""
    lines = [
        {name: _shown(name, text) for name, text in line.items()}
        for row, answer in zip(part.rows, part.answers, strict=True)
        for line in part.task.cells(row, answer)
    ]
    names = list(dict.fromkeys(name for line in lines for name in line))
    cells = ([line.get(name, "") for name in names] for line in lines)
    yield from aligned([names, *cells])


def _shown(name: str, text: str) -> str:
    text = " ".join(text.split())
    if name in _INPUT and cell_len(text) > _WIDEST:
        return set_cell_size(text, _WIDEST - 1) + "…"
    return text


class CsvTable:
    """A CSV table with a header and a line for each row.

    A dictionary in an answer has a column for each of its values, such as
    "probabilities.good". A list is written as JSON, and "nbest" is left out. Texts are
    written unchanged, with their control characters.
    """

    def __init__(self):
        self._names: dict[str, None] = {}

    def lines(self, part: Answers) -> Iterator[str]:
        """The lines of some rows, after the header the first time.

        Raises UserError for a value that no row of the first part has.
        """
        rows = [_flat(answer) for answer in part.answers]
        first = not self._names
        self._names = self._names or dict.fromkeys(name for row in rows for name in row)
        file = io.StringIO()
        writer = csv.DictWriter(file, self._names, lineterminator="\n")
        if first:
            writer.writeheader()
        try:
            writer.writerows(rows)
        except ValueError as error:
            raise UserError(
                f"an answer has other values than the first {CHUNK:,} answers ({error}); "
                "expected the same values, or --format jsonl"
            ) from error
        yield file.getvalue().removesuffix("\n")


def _flat(answer: dict[str, Any]) -> dict[str, Any]:
    """The cells of an answer by column."""
    cells: dict[str, Any] = {}
    for name, value in answer.items():
        if isinstance(value, dict):
            cells |= {f"{name}.{key}": inner for key, inner in value.items()}
        elif name != "nbest":
            text = isinstance(value, list) and json.dumps(value, ensure_ascii=False)
            cells[name] = text or value
    return cells
