"""How far a long work is: one live line on a terminal, plain lines elsewhere, on stderr.

>>> with Progress("embedding", total=len(texts), unit="texts") as progress:
...     for part in parts:
...         ...
...         progress.update(len(part), tokens=f"{tokens:,}")

A command calls :func:`show_progress`, and is then followed in a pipe or a file too. A
library call shows something on a terminal or in a notebook alone, or where it is asked to.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, TextIO

from tqdm import tqdm

from bert_jax.errors import printable

# Seconds of a work before something is shown, and between two states of it.
_TERMINAL = {"delay": 1.0, "mininterval": 0.2}
_LINES = {"delay": 30.0, "mininterval": 30.0}

_BAR = "{percentage:3.0f}%|{bar:10}| "
_SHARE = "{percentage:.0f}%, "
_COUNT = "{n_fmt} of {total_fmt}{unit}, {rate_noinv_fmt}, {remaining} left{postfix}"
_NO_TOTAL = "{n_fmt}{unit}, {rate_noinv_fmt}, {elapsed} so far{postfix}"

_show: bool | None = None  # what a Progress does that is not told
_last = time.monotonic()  # when the last progress was made


def made_progress() -> None:
    """Records that this process made progress, for the step deadline."""
    global _last
    _last = time.monotonic()


def idle_seconds() -> float:
    """Seconds since this process last made progress."""
    return time.monotonic() - _last


def show_progress(show: bool | None) -> None:
    """Sets what every Progress of this process shows that is not told otherwise.

    True: also lines in a pipe. None: what there is on a terminal. False: nothing, as in
    the processes of a job beside the first.
    """
    global _show
    _show = show


def library_bar() -> bool:
    """Whether a library that tells nobody how far it is may draw a bar of its own."""
    return _show is not False and sys.stderr.isatty()


def print_line(line: str, file: TextIO | None = None) -> None:
    """Prints a line, or several, above the live line; all printed output uses this.

    Names, labels and texts of files cannot steer the terminal: see ``printable``. file:
    None for stdout.
    """
    file = file or sys.stdout
    tqdm.write(printable(line), file=file)
    file.flush()


class PrintableFormatter(logging.Formatter):
    """The messages of log records, escaped as ``print_line`` does."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class LogHandler(logging.StreamHandler):
    """Writes log records to stderr, above the live line."""

    def __init__(self, stream: TextIO | None = None):
        super().__init__(stream)
        self.setFormatter(PrintableFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        with tqdm.external_write_mode(file=self.stream):
            super().emit(record)


class Progress(tqdm):
    """The progress of one work: share done, rate, time left and a few named values.

    It is a context manager, and an iterator over ``items`` where these are given. One
    within another takes its line until it ends.

    doing: the work, such as "embedding". total: how much there is to do; items know it
      where they have a length. initial: of it, what was done before. unit: what is
      counted, such as "texts". scale: whether counts are shown as 4.5M. lines: whether
      there are lines in a pipe; no for a work that has a log of its own. show: see
      show_progress.
    """

    monitor_interval = 0  # no thread that looks whether the line is old
    _open: ClassVar[list["Progress"]] = []

    def __init__(
        self,
        doing: str,
        items: Iterable[Any] | None = None,
        *,
        total: float | None = None,
        initial: float = 0,
        unit: str,
        scale: bool = False,
        lines: bool = True,
        show: bool | None = None,
    ):
        live, show = _is_live(sys.stderr), _show if show is None else show
        if show is None or not lines:
            show = live and show is not False
        known = total is not None or hasattr(items, "__len__")
        form = (_BAR if live else _SHARE) + _COUNT if known else _NO_TOTAL
        super().__init__(
            items,
            desc=doing,
            total=total,
            initial=initial,
            unit=f" {unit}",
            unit_scale=scale,
            bar_format="{desc}: " + form,
            file=sys.stderr if live else _Lines(sys.stderr),
            disable=not show,
            miniters=1,
            leave=False,
            position=0,
            dynamic_ncols=live,
            **(_TERMINAL if live else _LINES),
        )
        if show:
            self._open.append(self)

    def update(self, n: float = 1, **values: object) -> None:
        """Counts ``n`` more; values: shown behind the rate from now on, as they print."""
        made_progress()
        if values and not self.disable:
            shown = ", ".join(f"{name} {value}" for name, value in values.items())
            self.set_postfix_str(shown, refresh=False)
        super().update(n)

    def __iter__(self) -> Iterator[Any]:
        """The items; each one is progress."""
        for item in super().__iter__():
            made_progress()
            yield item

    def part(self, size: int) -> Callable[[float], None]:
        """A function that is told which share of the next ``size`` is done, up to 1."""
        first = self.n
        return lambda share: self.update(first + round(size * share) - self.n)

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Draws the line, which is asked for before its time where others log."""
        if self._time() < self.start_t + self.delay or self is not self._open[-1]:
            return False
        if self.delay:
            self.delay = 0  # from now on there is something to clear
            for other in self._open[:-1]:
                other.clear(nolock=True)
        return super().display(msg, pos)

    def close(self) -> None:
        """Clears the line."""
        super().close()
        self._open[:] = [other for other in self._open if other is not self]

    @classmethod
    def close_all(cls) -> None:
        """Clears the lines of this class, for a library that leaves its own open."""
        for bar in [bar for bar in cls._open if isinstance(bar, cls)]:
            bar.close()


class _Lines:
    """A stream on which each state of a bar is a line of its own."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> None:
        if text.strip():
            self._stream.write(" ".join(text.split()) + "\n")

    def flush(self) -> None:
        self._stream.flush()


def _is_live(stream: TextIO) -> bool:
    """Whether a line can be drawn again: on a terminal, and below a notebook's cell."""
    return stream.isatty() or type(stream).__module__.startswith("ipykernel")
