"""Lines of text in, as predict and embed read them; answers out, as predict shows them."""

import bisect
import contextlib
import itertools
import json
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from bert_jax.errors import printable
from bert_jax.files import decode_lines, new_file, open_bytes

STANDARD = "-"  # stdin, or stdout
CHUNK = 4096  # lines that are in memory together
_GAP = "  "  # between two columns of a table


def input_name(path: str) -> str:
    """What errors call an input."""
    return "stdin" if path == STANDARD else path


def read_lines(path: str) -> Iterator[str]:
    """The lines of a UTF-8 file or pipe, or of stdin for "-", without their ends.

    Raises UserError where there is no such file, or where a line is not UTF-8.
    """
    if path == STANDARD:
        opened: Any = contextlib.nullcontext(sys.stdin.buffer)
    else:
        opened = open_bytes(Path(path), "a file of text, or - for stdin")
    with opened as file:
        for _, line in decode_lines(file, input_name(path)):
            yield line.rstrip("\r\n")


def count_lines(path: str) -> int | None:
    """How many lines a file has; None for stdin and pipes, which are read only once."""
    if path == STANDARD or not Path(path).is_file():
        return None
    count, last = 0, b"\n"
    with Path(path).open("rb") as file:
        while part := file.read(1 << 20):
            count, last = count + part.count(b"\n"), part
    return count + (not last.endswith(b"\n"))


class Given(NamedTuple):
    """Lines of text, what errors call them, and how many they are, where that is known."""

    lines: Iterable[str]
    name: str
    total: int | None


def given_lines(texts: Sequence[str] | None, path: str) -> Given:
    """Those of a command line, or the lines of a file where there are none."""
    if texts is not None:
        return Given(texts, "--text", len(texts))
    return Given(read_lines(path), input_name(path), count_lines(path))


def known_length(items: Iterable[Any]) -> int | None:
    """How many items there are; None where only going through them would tell."""
    return len(items) if isinstance(items, Sized) else None


def on_screen(path: str) -> bool:
    """Whether an output is what a user watches on a terminal."""
    return path == STANDARD and sys.stdout.isatty()


def open_output(path: str) -> contextlib.AbstractContextManager[IO[str]]:
    """A new file, which is complete or not there, or stdout for "-"."""
    if path == STANDARD:
        return contextlib.nullcontext(sys.stdout)
    return new_file(Path(path), "w")


def chunks(
    lines: Iterable[str], size: int, ends: Callable[[str], bool] = lambda line: True
) -> Iterator[list[str]]:
    """Lists of ``size`` lines, or more until one that a chunk may end with."""
    chunk: list[str] = []
    for line in lines:
        chunk.append(line)
        if len(chunk) >= size and ends(line):
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def aligned(
    rows: Iterable[Sequence[object]], right: int | None = None
) -> Iterator[str]:
    """The lines of a table; columns from number ``right`` on are numbers."""
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        parts = []
        for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
            gap = " " * (width - _width(cell))
            parts.append(cell + gap if right is None or i < right else gap + cell)
        yield _GAP.join(parts).rstrip()


class Shown(Protocol):
    """What answers are shown by: a Task, or FillMask."""

    column_widths: dict[str, int]

    def cells(self, row: Any, answer: dict[str, Any]) -> list[dict[str, str]]: ...


class Answers(NamedTuple):
    """Some rows, in order, with an answer each.

    task: knows how they are shown. truncated: how many rows are seen in part.
    """

    rows: list[Any]
    answers: list[dict[str, Any]]
    task: Shown
    truncated: int = 0


def json_lines(part: Answers) -> Iterator[str]:
    """One object a row."""
    for answer in part.answers:
        yield printable(json.dumps(answer, ensure_ascii=False))


class AnswerTable:
    """Aligned columns, as wide as the rows of the first part need."""

    def __init__(self):
        self._widths: dict[str, int] = {}
        self._limits: dict[str, int] = {}

    def lines(self, part: Answers) -> Iterator[str]:
        """The lines of some rows; below a header, the first time."""
        cells = [
            {name: _printable(text) for name, text in line.items()}
            for row, answer in zip(part.rows, part.answers, strict=True)
            for line in part.task.cells(row, answer)
        ]
        if not self._widths and cells:
            self._limits = part.task.column_widths
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
