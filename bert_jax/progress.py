"""Progress bars on stderr, printed lines that do not break them, and aligned columns.

>>> with Progress("embedding", total=len(texts), unit="texts") as progress:
...     for part in parts:
...         ...
...         progress.update(len(part), tokens=f"{tokens:,}")

A terminal or a notebook shows a bar of tqdm. A pipe or a file shows nothing. A notebook
shows one bar at a time, on stdout, because it puts each change between stdout and stderr
into an output of its own, and cannot draw a second bar below the first.
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

Log = Callable[[str], None]  # receives each line of a log

_show = True  # whether this process shows bars
_last = time.monotonic()  # when the last progress was made
_waits = 0  # number of open calls of unwatched()


def made_progress() -> None:
    """Records that this process made progress, for the step deadline."""
    global _last
    _last = time.monotonic()


def idle_seconds() -> float:
    """Seconds since this process last made progress; 0 within unwatched()."""
    if _waits:
        return 0.0
    return time.monotonic() - _last


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Stops the step deadline during work that reports no progress.

    An example is a wait for another process, which has its own deadline.
    """
    global _waits
    _waits += 1
    try:
        yield
    finally:
        _waits -= 1
        made_progress()


def show_progress(show: bool) -> None:
    """Sets whether this process shows bars. Only process 0 of several does."""
    global _show
    _show = show


@contextlib.contextmanager
def hidden_bars(hide: bool = True) -> Iterator[None]:
    """Hides all bars of this process inside the block, if ``hide``."""
    before = _show
    show_progress(before and not hide)
    try:
        yield
    finally:
        show_progress(before)


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
            if right is not None and i >= right:
                parts.append(gap + cell)
            else:
                parts.append(cell + gap)
        yield "  ".join(parts).rstrip()


class LogHandler(logging.Handler):
    """Prints log records on stderr. A closed stderr does not end a run."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            print_line(self.format(record), sys.stderr)


class Progress(tqdm):
    """A bar of tqdm, used as a context manager or as an iterator over ``items``.

    doing: name of the work, such as "embedding". unit: name of what is counted, such as
      "texts". show: whether to show the bar; None: on a terminal and in a notebook.
      options: total, initial, and unit_scale to show counts as 4.5M.
    """

    monitor_interval = 0  # starts no thread

    def __init__(
        self,
        doing: str,
        items: Iterable[Any] | None = None,
        *,
        unit: str,
        show: bool | None = None,
        **options: Any,
    ):
        notebook = type(sys.stderr).__module__.startswith("ipykernel")
        if show is None:
            show = _show and (notebook or sys.stderr.isatty())
        file = sys.stderr
        if notebook:
            file = sys.stdout
            outer = self._outer()
            if show and outer is not None:
                outer.set_postfix_str(doing)
                show = False
        options |= {"mininterval": 0.2, "miniters": 1, "dynamic_ncols": True}
        options |= {"desc": doing, "unit": f" {unit}", "leave": False}
        super().__init__(items, file=file, disable=not show, **options)

    def _outer(self) -> "Progress | None":
        """The open bar of the work that contains this work."""
        for bar in self._instances:
            if bar is self or not isinstance(bar, Progress):
                continue
            if bar.iterable is None:  # an interrupted loop may leave its bar open
                return bar
        return None

    def update(self, n: float = 1, **values: object) -> None:
        """Counts ``n`` more; values: shown after the rate from now on."""
        made_progress()
        if values:
            shown = ", ".join(f"{name} {value}" for name, value in values.items())
            self.set_postfix_str(shown, refresh=False)
        super().update(n)

    def __iter__(self) -> Iterator[Any]:
        """The items. Each one counts as progress."""
        for item in super().__iter__():
            made_progress()
            yield item

    def part(self, size: int) -> Callable[[float], None]:
        """A function to call with the finished share, up to 1, of the next ``size``."""
        first = self.n
        return lambda share: self.update(first + round(size * share) - self.n)
