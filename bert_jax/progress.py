"""How far a long work is: one live line on a terminal, plain lines elsewhere, on stderr.

>>> with Progress("embedding", total=len(texts), unit="texts") as progress:
...     for part in parts:
...         ...
...         progress.update(len(part), tokens=f"{tokens:,}")

A command calls :func:`show_progress`, and is then followed in a pipe or a file too. A
library call shows something on a terminal or in a notebook alone, or where it is asked to.
"""

import sys
from collections.abc import Iterable
from typing import Any, TextIO

from tqdm import tqdm

# Seconds of a work before something is shown, and between two states of it.
_TERMINAL = {"delay": 1.0, "mininterval": 0.2}
_LINES = {"delay": 30.0, "mininterval": 30.0}

_BAR = "{percentage:3.0f}%|{bar:20}| "
_SHARE = "{percentage:.0f}%, "
_COUNT = "{n_fmt} of {total_fmt}{unit}, {rate_noinv_fmt}, {remaining} left{postfix}"
_NO_TOTAL = "{n_fmt}{unit}, {rate_noinv_fmt}, {elapsed} so far{postfix}"

_show: bool | None = None  # what a Progress does that is not told


def show_progress(show: bool | None) -> None:
    """Sets what every Progress of this process shows that is not told otherwise.

    True: also lines in a pipe. None: what there is on a terminal. False: nothing, as in
    the processes of a job beside the first.
    """
    global _show
    _show = show


def log(line: str) -> None:
    """Prints a line, above the live one where there is one."""
    tqdm.write(line)
    sys.stdout.flush()


class Progress(tqdm):
    """The progress of one work: share done, rate, time left and a few named values.

    It is a context manager, and an iterator over ``items`` where these are given.

    doing: the work, such as "embedding". total: how much there is to do; items know it
      where they have a length. initial: of it, what was done before. unit: what is
      counted, such as "texts". scale: whether counts are shown as 4.5M. show: see
      show_progress.
    """

    monitor_interval = 0  # no thread that looks whether the line is old

    def __init__(
        self,
        doing: str,
        items: Iterable[Any] | None = None,
        *,
        total: float | None = None,
        initial: float = 0,
        unit: str,
        scale: bool = False,
        show: bool | None = None,
    ):
        show = _show if show is None else show
        live = _is_live(sys.stderr)
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
            disable=not (live if show is None else show),
            miniters=1,
            leave=False,
            dynamic_ncols=live,
            **(_TERMINAL if live else _LINES),
        )

    def update(self, n: float = 1, **values: object) -> None:
        """Counts ``n`` more; values: shown behind the rate from now on, as they print."""
        if values and not self.disable:
            shown = ", ".join(f"{name} {value}" for name, value in values.items())
            self.set_postfix_str(shown, refresh=False)
        super().update(n)

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Draws the line, which is asked for before its time where others log."""
        if self._time() < self.start_t + self.delay:
            return False
        self.delay = 0  # from now on there is something to clear
        return super().display(msg, pos)


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
