"""Progress bars on a terminal, and lines printed at the same time."""

import io
import logging
import sys

import pytest
from tqdm import std

from bert_jax.progress import (
    LogHandler,
    Progress,
    aligned,
    hidden_bars,
    print_line,
    show_progress,
)


class Notebook(io.StringIO):
    """The output stream of a notebook cell."""

    __module__ = "ipykernel.iostream"


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def states(self):
        """The bar states drawn since the last call."""
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return [state.strip() for state in text.split("\r") if state.strip()]


@pytest.fixture
def clock(monkeypatch):
    """The clock of the bars: a list with one number, which a test sets."""
    now = [0.0]
    monkeypatch.setattr(std, "time", lambda: now[0])
    return now


@pytest.fixture
def stream(monkeypatch):
    """A function that makes its argument stderr and stdout."""

    def use(value):
        monkeypatch.setattr(sys, "stderr", value)
        monkeypatch.setattr(sys, "stdout", value)
        return value

    return use


def work(clock, **options):
    """A bar of a hundred steps of one second each."""
    with Progress("training", total=100, unit="steps", **options) as bar:
        for step in range(1, 101):
            clock[0] += 1
            bar.update(loss=f"{10 - step / 10:.2f}", accuracy="20%")


def test_a_terminal_has_one_bar_that_is_cleared_at_the_end(clock, stream):
    terminal = stream(Terminal())
    work(clock)
    text = terminal.getvalue()
    assert "\n" not in text
    assert text.split("\r")[-2].strip() == "" and text.endswith("\r")
    states = terminal.states()
    assert states[-2].startswith("training:  99%|")
    end = "| 99/100 [01:39<00:01,  1.00 steps/s, loss 0.10, accuracy 20%]"
    assert states[-2].endswith(end)


def test_a_pipe_a_hidden_bar_and_other_processes_show_nothing(clock, stream):
    pipe = stream(io.StringIO())
    work(clock)
    terminal = stream(Terminal())
    work(clock, show=False)
    show_progress(False)
    work(clock)
    assert pipe.getvalue() == terminal.getvalue() == ""


def test_hidden_bars_are_shown_again_afterwards(clock, stream):
    terminal = stream(Terminal())
    with hidden_bars(False):
        work(clock)
    assert terminal.states()
    with pytest.raises(KeyError), hidden_bars():
        work(clock)
        raise KeyError
    assert terminal.getvalue() == ""
    work(clock)
    assert terminal.states()
    show_progress(False)
    with hidden_bars(False):  # the bars of other processes stay hidden
        work(clock)
    assert terminal.getvalue() == ""


def test_a_notebook_has_one_bar_on_stdout(clock, monkeypatch):
    out, error = Notebook(), Notebook()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", error)
    with Progress("training", total=9, unit="steps") as bar:
        clock[0] += 1
        bar.update(3)
        for _ in Progress("evaluating", range(5), unit="batches"):
            clock[0] += 1
        with Progress("predicting dev", total=9, unit="rows") as inner:
            inner.update(9)
        print_line("step 3")
    assert error.getvalue() == ""
    text = out.getvalue()
    assert "evaluating" in text and "predicting dev" in text
    # One line: each state of the bar replaces the state before, below the log.
    assert [line.split("\r")[-1] for line in text.split("\n")] == ["step 3", ""]
    assert all(part.startswith("training") for part in text.split("\r") if "%" in part)


def test_lines_of_the_log_are_printed_above_the_bar(clock, stream):
    terminal = stream(Terminal())
    with Progress("training", total=4, unit="steps") as bar:
        clock[0] = 2
        bar.update(2)
        print_line("step 2")
        assert "2/4" in terminal.getvalue().splitlines()[-1]
    # Clears the bar, prints the line, and draws the bar again.
    before, after = terminal.getvalue().split("step 2\n")
    assert before.endswith("\r") and "2/4" in before
    assert "2/4" in after and after.endswith("\r")


def test_a_part_advances_the_bar_by_its_share(stream):
    stream(io.StringIO())
    with Progress("embedding", total=30, unit="texts", show=True) as bar:
        counts = []
        for size in (20, 10):
            done = bar.part(size)
            for share in (0.24, 0.5, 1.0):
                done(share)
                counts.append(bar.n)
    assert counts == [5, 10, 20, 22, 25, 30]


def test_control_characters_are_escaped_in_output_and_log(stream):
    out = stream(io.StringIO())
    print_line("a\x1b[2Jb\r\ud800\nم\u200cن \u3000水")
    LogHandler().emit(logging.makeLogRecord({"msg": "label \x9b31m"}))
    # Line ends and marks of Persian or Chinese texts are kept.
    assert out.getvalue() == (
        "a\\u001b[2Jb\\u000d\\ud800\nم\u200cن \u3000水\nlabel \\u009b31m\n"
    )


def test_logging_to_a_closed_stream_is_no_error(stream):
    class Closed(io.StringIO):
        def flush(self):
            raise BrokenPipeError

    stream(Closed())
    LogHandler().emit(logging.makeLogRecord({"msg": "step 2"}))


def test_columns_are_aligned_with_numbers_on_the_right():
    rows = [["name", "count"], ["北京", 1_000], ["a", 7]]
    assert list(aligned(rows)) == ["name  count", "北京  1000", "a     7"]
    assert list(aligned(rows, right=1)) == ["name  count", "北京   1000", "a         7"]
