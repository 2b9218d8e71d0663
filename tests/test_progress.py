"""Bars on a terminal, lines in a pipe, and what is printed beside them."""

import io
import logging
import sys

import pytest
from tqdm import std

from bert_jax.progress import (
    LogHandler,
    Progress,
    aligned,
    print_line,
    show_progress,
)


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def states(self):
        """The states of bars that were drawn since the last call."""
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return [state.strip() for state in text.split("\r") if state.strip()]


@pytest.fixture
def clock(monkeypatch):
    """The time that bars see: a list with one number, which a test sets."""
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
    """A hundred steps of a second each."""
    with Progress("training", total=100, unit="steps", **options) as bar:
        for step in range(1, 101):
            clock[0] += 1
            bar.update(loss=f"{10 - step / 10:.2f}", accuracy="20%")


@pytest.mark.parametrize(
    ("of_all", "own", "lines", "count"),
    [
        (None, None, True, 0),
        (True, None, True, 3),
        (None, True, True, 3),
        (True, False, True, 0),
        (True, None, False, 0),  # a training logs its own lines
    ],
)
def test_a_pipe_gets_a_line_each_half_minute_if_asked(
    clock, stream, of_all, own, lines, count
):
    pipe = stream(io.StringIO())
    show_progress(of_all)
    work(clock, show=own, lines=lines)
    expected = [
        f"training: {done}% {done}/100 [{elapsed}<{left}, 1.00 steps/s, "
        f"loss {10 - done / 10:.2f}, accuracy 20%]"
        for done, elapsed, left in (
            (30, "00:30", "01:10"),
            (60, "01:00", "00:40"),
            (90, "01:30", "00:10"),
        )
    ]
    assert pipe.getvalue().splitlines() == expected[:count]


@pytest.mark.parametrize("lines", [True, False])
def test_a_terminal_has_one_bar_that_is_cleared_in_the_end(clock, stream, lines):
    terminal = stream(Terminal())
    work(clock, lines=lines)
    text = terminal.getvalue()
    assert "\n" not in text
    assert text.split("\r")[-2].strip() == "" and text.endswith("\r")
    states = terminal.states()
    assert len(states) == 100
    assert states[-2].startswith("training:  99%|")
    end = "| 99/100 [01:39<00:01,  1.00 steps/s, loss 0.10, accuracy 20%]"
    assert states[-2].endswith(end)
    work(clock, show=False)
    assert not terminal.states()


def test_a_short_work_shows_nothing(clock, stream):
    terminal = stream(Terminal())
    with Progress("embedding", total=3, unit="texts") as bar:
        for _ in range(3):
            clock[0] += 0.3
            bar.update()
            print_line("a line of the log")
    assert terminal.getvalue().replace("\r", "") == "a line of the log\n" * 3


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


def test_the_bar_of_a_work_within_another_replaces_its_bar(clock, stream):
    terminal = stream(Terminal())
    with Progress("training", total=4, unit="steps") as outer:
        clock[0] += 2
        outer.update()
        assert [state[:8] for state in terminal.states()] == ["training"]
        for _ in Progress("scoring", range(2), unit="rows"):
            clock[0] += 2
        # The line is cleared first, because the new state may be shorter.
        assert terminal.getvalue().split("\r")[1].isspace()
        assert [state[:7] for state in terminal.states()] == ["scoring"] * 2
        clock[0] += 2
        outer.update()
        assert [state[:8] for state in terminal.states()] == ["training"]


def test_a_part_counts_by_its_share(stream):
    stream(io.StringIO())
    with Progress("embedding", total=30, unit="texts", show=True) as bar:
        counts = []
        for size in (20, 10):
            done = bar.part(size)
            for share in (0.24, 0.5, 1.0):
                done(share)
                counts.append(bar.n)
    assert counts == [5, 10, 20, 22, 25, 30]


def test_what_is_printed_and_logged_cannot_steer_the_terminal(stream):
    out = stream(io.StringIO())
    print_line("a\x1b[2Jb\r\ud800\nم\u200cن \u3000水")
    handler = LogHandler(out)
    handler.emit(logging.makeLogRecord({"msg": "label \x9b31m"}))
    # Lines, and marks that texts in Persian or Chinese need, stay.
    assert out.getvalue() == (
        "a\\u001b[2Jb\\u000d\\ud800\nم\u200cن \u3000水\nlabel \\u009b31m\n"
    )


def test_columns_are_aligned_and_numbers_to_the_right():
    rows = [["name", "count"], ["北京", 1_000], ["a", 7]]
    assert list(aligned(rows)) == ["name  count", "北京  1000", "a     7"]
    assert list(aligned(rows, right=1)) == ["name  count", "北京   1000", "a         7"]
