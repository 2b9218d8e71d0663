"""Progress bars on stderr, printed lines that do not break them, and aligned columns.

>>> with Progress("embedding", total=len(texts), unit="texts") as progress:
...     for part in parts:
...         ...
...         progress.update(len(part), tokens=f"{tokens:,}")

A terminal or a notebook shows a bar of tqdm. A pipe or a file gets a line every 30 seconds
if a command has called :func:`show_progress`.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TextIO

from rich.cells import cell_len
from tqdm import tqdm

from bert_jax.errors import printable

# tqdm's options. delay: seconds before a bar is shown. mininterval: seconds between states.
_TERMINAL = {"delay": 1.0, "mininterval": 0.2, "dynamic_ncols": True}
_LINES = {"delay": 30.0, "mininterval": 30.0, "ncols": 0}

_show: bool | None = None  # the default of Progress(show=...)
_last = time.monotonic()  # when the last progress was made
_waits = 0  # number of open calls of unwatched()


def made_progress() -> None:
    """Records that this process made progress, for the step deadline."""
    global _last
    _last = time.monotonic()


def idle_seconds() -> float:
    """Seconds since this process last made progress; 0 within unwatched()."""
    return 0.0 if _waits else time.monotonic() - _last


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Stops the step deadline during work that reports no progress.

    Such as a wait for another process, which has its own deadline.
    """
    global _waits
    _waits += 1
    try:
        yield
    finally:
        _waits -= 1
        made_progress()


def show_progress(show: bool | None) -> None:
    """Sets what every Progress of this process shows by default.

    True: a bar, or lines in a pipe. None: a bar on a terminal or in a notebook. False:
    nothing, as in all processes of a job except the first.
    """
    global _show
    _show = show


def print_line(line: str, file: TextIO | None = None) -> None:
    """Prints a line, or several, above the bar; all printed output uses this.

    Names, labels and texts of files cannot steer the terminal: see ``printable``. file:
    None for stdout.
    """
    file = file or sys.stdout
    tqdm.write(printable(line), file=file)
    file.flush()


def aligned(
    rows: Iterable[Sequence[object]], right: int | None = None
) -> Iterator[str]:
    """The lines of a table; columns from number ``right`` on are aligned to the right."""
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        parts = []
        for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
            gap = " " * (width - cell_len(cell))
            parts.append(cell + gap if right is None or i < right else gap + cell)
        yield "  ".join(parts).rstrip()


class PrintableFormatter(logging.Formatter):
    """Escapes the messages of log records as ``print_line`` does."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class LogHandler(logging.StreamHandler):
    """Writes log records to stderr, above the bar."""

    def __init__(self, stream: TextIO | None = None):
        super().__init__(stream)
        self.setFormatter(PrintableFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        with tqdm.external_write_mode(file=self.stream):
            super().emit(record)


class Progress(tqdm):
    """A tqdm bar, which is a context manager, or an iterator over ``items``.

    doing: name of the work, such as "embedding". unit: name of what is counted, such as
      "texts". scale: whether to show counts as 4.5M. lines: whether a pipe gets lines;
      False for work that logs its own. show: see show_progress. options: total, initial.
    """

    monitor_interval = 0  # starts no thread

    def __init__(
        self,
        doing: str,
        items: Iterable[Any] | None = None,
        *,
        unit: str,
        scale: bool = False,
        lines: bool = True,
        show: bool | None = None,
        **options: Any,
    ):
        show = _show if show is None else show
        notebook = type(sys.stderr).__module__.startswith("ipykernel")
        live = notebook or sys.stderr.isatty()
        if show is None or (show and not lines):
            show = live
        super().__init__(
            items,
            desc=doing,
            unit=f" {unit}",
            unit_scale=scale,
            file=sys.stderr if live else _Lines(sys.stderr),
            disable=not show,
            miniters=1,
            leave=False,
            position=0,
            **(_TERMINAL if live else _LINES),
            **options,
        )

    def update(self, n: float = 1, **values: object) -> None:
        """Counts ``n`` more; values: shown after the rate from now on."""
        made_progress()
        if values:
            shown = ", ".join(f"{name} {value}" for name, value in values.items())
            self.set_postfix_str(shown, refresh=False)
        super().update(n)

    def __iter__(self) -> Iterator[Any]:
        """The items; each one is progress."""
        for item in super().__iter__():
            made_progress()
            yield item

    def part(self, size: int) -> Callable[[float], None]:
        """A function that takes the share of the next ``size`` that is done, up to 1."""
        first = self.n
        return lambda share: self.update(first + round(size * share) - self.n)

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Draws the bar after its delay; print_line draws all bars at any time."""
        if self._time() < self.start_t + self.delay:
            return False
        if self.delay:  # the first time
            self.delay = 0  # close() clears only bars without a delay
            for bar in self._instances:
                if bar is not self:
                    bar.clear(nolock=True)
        return super().display(msg, pos)


class _Lines:
    """A stream on which each state of a bar is a line."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> None:
        if text.strip():
            self._stream.write(" ".join(text.split()) + "\n")

    def flush(self) -> None:
        self._stream.flush()
