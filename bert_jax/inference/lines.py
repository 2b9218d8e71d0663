"""The input and output of commands: rows of lines or files, and answers."""

import bisect
import contextlib
import csv
import io
import itertools
import json
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from bert_jax.errors import UserError, counted, printable
from bert_jax.files import ending, new_file
from bert_jax.tasks.rows import Placed, line_rows, placed_rows
from bert_jax.tasks.tables import is_table

STANDARD = "-"  # stdin, or stdout
CHUNK = 4096  # lines that are in memory together
_GAP = "  "  # between two columns of a table
T = TypeVar("T")


def input_name(path: str) -> str:
    """What errors call an input."""
    return "stdin" if path == STANDARD else path


def count_lines(path: str) -> int | None:
    """The number of lines of a text file; None for other tables, stdin and pipes."""
    if path == STANDARD or not Path(path).is_file() or is_table(Path(path)):
        return None
    count, last = 0, b"\n"
    with Path(path).open("rb") as file:
        while part := file.read(1 << 20):
            count, last = count + part.count(b"\n"), part
    return count + (not last.endswith(b"\n"))


class Given(NamedTuple):
    """Rows of a command, its name in errors, and their number where it is known."""

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
    """The texts of a command line, or the rows of --input where there are none.

    tabs: whether a line with tabs is a row of several texts. read: the rows of a file,
    where placed_rows is not enough.
    """
    if texts is not None:
        return Given(line_rows(texts, "--text", tabs=tabs), "--text", len(texts))
    file = Path(path)
    rows = read(file) if read else placed_rows(file, tabs=tabs)
    return Given(rows, input_name(path), count_lines(path))


def on_screen(path: str) -> bool:
    """Whether an output is what a user watches on a terminal."""
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
    """The message about rows that are longer than the model reads."""
    verb = "is" if truncated == 1 else "are"
    return (
        f"{truncated:,} of {counted(rows, noun)} {verb} truncated to "
        f"max_length={max_length}"
    )


def open_output(path: str) -> contextlib.AbstractContextManager[IO[str]]:
    """A file that replaces an existing one when it is complete, or stdout for "-"."""
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

    task: formats them for a table on a terminal. truncated: how many rows are seen in part.
    """

    rows: list[Any]
    answers: list[dict[str, Any]]
    task: Any = None
    truncated: int = 0


def json_lines(part: Answers) -> Iterator[str]:
    """One object a row. An id that JSON does not have, such as a date, is a text."""
    for answer in part.answers:
        yield printable(json.dumps(answer, ensure_ascii=False, default=str))


class CsvTable:
    """A CSV table with a line for each row, below a header.

    A dictionary of an answer has a column for each of its values, such as
    "probabilities.good". A list is written as JSON, and "nbest" is left out. Texts are
    written as they are, control characters included.
    """

    def __init__(self):
        self._names: list[str] = []

    def lines(self, part: Answers) -> Iterator[str]:
        """The lines of some rows; below the header, the first time.

        Raises UserError for a value that no row of the first part has.
        """
        rows = [_flat(answer) for answer in part.answers]
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        if not self._names and rows:
            self._names = list(dict.fromkeys(name for row in rows for name in row))
            writer.writerow(self._names)
        for row in rows:
            if new := [name for name in row if name not in self._names]:
                raise UserError(
                    f"an answer has the value {new[0]!r}, which none of the first "
                    f"{CHUNK:,} answers has; expected the same values, or --format jsonl"
                )
            writer.writerow(row.get(name) for name in self._names)
        yield file.getvalue().removesuffix("\n")


def _flat(answer: dict[str, Any]) -> dict[str, Any]:
    """The cells of an answer by column."""
    cells: dict[str, Any] = {}
    for name, value in answer.items():
        if name == "nbest":
            continue
        if isinstance(value, dict):
            cells |= {f"{name}.{key}": inner for key, inner in value.items()}
        elif isinstance(value, list):
            cells[name] = json.dumps(value, ensure_ascii=False)
        else:
            cells[name] = value
    return cells


# The columns of a table that are shortened.
_LONG = ("text", "text_a", "text_b", "context", "question")


class AnswerTable:
    """Aligned columns, as wide as the rows of the first part need."""

    def __init__(self):
        self._widths: dict[str, int] = {}
        self._limits: dict[str, int] = {}

    def lines(self, part: Answers) -> Iterator[str]:
        """The lines of some rows; below a header, the first time."""
        cells = [
            {name: _printable(str(cell)) for name, cell in line.items()}
            for row, answer in zip(part.rows, part.answers, strict=True)
            for line in part.task.cells(row, answer)
        ]
        if not self._widths and cells:
            self._limits = dict.fromkeys(_LONG, 60)
            for name in cells[0]:
                widest = max(
                    _width(line.get(name, "")) for line in [*cells, {name: name}]
                )
                self._widths[name] = min(widest, self._limits.get(name, widest))
            yield self._line({name: name for name in self._widths})
        for line in cells:
            yield self._line(line)

    def _line(self, line: dict[str, str]) -> str:
        parts = []
        for name, width in self._widths.items():
            text = line.get(name, "")
            if name in self._limits:
                text = _shortened(text, width)
            parts.append(text + " " * (width - _width(text)))
        return _GAP.join(parts).rstrip()


def _printable(text: str) -> str:
    """One line, without what a terminal would obey."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _columns(character: str) -> int:
    """Of a terminal: two for a Chinese character, none for an accent."""
    if unicodedata.combining(character):
        return 0
    return 1 + (unicodedata.east_asian_width(character) in "WF")


def _width(text: str) -> int:
    return sum(map(_columns, text))


def _shortened(text: str, width: int) -> str:
    ends = list(itertools.accumulate(map(_columns, text)))
    if not ends or ends[-1] <= width:
        return text
    return text[: bisect.bisect(ends, width - 1)] + "…"
