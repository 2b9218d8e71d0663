import io
import logging
import re
import sys

import pytest
from tqdm import std

from bert_jax import progress
from bert_jax.progress import (
    LogHandler,
    Progress,
    library_bar,
    print_line,
    show_progress,
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """The time that bars see: a list with one number, which a test sets."""
    now = [0.0]
    monkeypatch.setattr(std, "time", lambda: now[0])
    return now


@pytest.fixture
def stream(monkeypatch):
    """A function of a stream, which is then stderr, and stdout too."""

    def use(value):
        monkeypatch.setattr(sys, "stderr", value)
        monkeypatch.setattr(sys, "stdout", value)
        return value

    return use


def work(clock, seconds=100, **options):
    """A hundred steps of a second each."""
    with Progress("training", total=100, unit="steps", **options) as bar:
        for step in range(1, seconds + 1):
            clock[0] += 1
            bar.update(loss=f"{10 - step / 10:.2f}", accuracy="20%")


def test_a_pipe_gets_a_line_each_half_minute(clock, stream):
    pipe = stream(io.StringIO())
    work(clock, show=True)
    assert pipe.getvalue().splitlines() == [
        "training: 30%, 30 of 100 steps, 1.00 steps/s, 01:10 left, loss 7.00, "
        "accuracy 20%",
        "training: 60%, 60 of 100 steps, 1.00 steps/s, 00:40 left, loss 4.00, "
        "accuracy 20%",
        "training: 90%, 90 of 100 steps, 1.00 steps/s, 00:10 left, loss 1.00, "
        "accuracy 20%",
    ]


@pytest.mark.parametrize(
    ("of_all", "own", "lines"),
    [(None, None, 0), (True, None, 3), (None, True, 3), (True, False, 0)],
)
def test_in_a_pipe_only_what_was_asked_for_is_shown(clock, stream, of_all, own, lines):
    pipe = stream(io.StringIO())
    progress.show_progress(of_all)
    work(clock, show=own)
    assert len(pipe.getvalue().splitlines()) == lines


def test_a_terminal_has_one_line_that_is_gone_in_the_end(clock, stream):
    terminal = stream(Terminal())
    work(clock)
    text = terminal.getvalue()
    assert "\n" not in text
    states = [state.strip() for state in text.split("\r") if state.strip()]
    assert len(states) == 100
    assert re.fullmatch(
        r"training:  99%\|.*\| 99 of 100 steps,  1.00 steps/s, 00:01 left, loss 0.10, "
        "accuracy 20%",
        states[-2],
    )
    assert text.split("\r")[-2].strip() == "" and text.endswith("\r")


def test_a_short_work_shows_nothing(clock, stream):
    terminal = stream(Terminal())
    with Progress("embedding", total=3, unit="texts") as bar:
        for _ in range(3):
            clock[0] += 0.3
            bar.update()
            progress.print_line("a line of the log")
    assert re.sub(r"\r+", "", terminal.getvalue()) == "a line of the log\n" * 3


def test_lines_of_the_log_stand_above_the_live_line(clock, stream):
    terminal = stream(Terminal())
    with Progress("training", total=4, unit="steps") as bar:
        clock[0] = 2
        bar.update(2)
        progress.print_line("step 2")
        assert "of 4 steps" in terminal.getvalue().splitlines()[-1]
    # Clears the line, writes its own, and draws the line again.
    before, after = terminal.getvalue().split("step 2\n")
    assert before.endswith("\r") and "2 of 4 steps" in before
    assert "2 of 4 steps" in after and after.endswith("\r")


def test_items_are_counted_as_they_are_taken(clock, stream):
    pipe = stream(io.StringIO())

    def documents():
        for number in range(40):
            clock[0] += 1
            yield number

    bar = Progress("reading", documents(), unit="documents", show=True)
    assert list(bar) == list(range(40))
    # An item is done when the next is asked for.
    assert pipe.getvalue().splitlines() == [
        "reading: 30 documents, 1.00 documents/s, 00:30 so far"
    ]


def test_a_work_within_another_takes_its_line_until_it_ends(clock, stream):
    terminal = stream(Terminal())

    def states():
        text = terminal.getvalue()
        terminal.seek(0)
        terminal.truncate()
        return [state.split(":")[0] for state in text.split("\r") if state.strip()]

    with Progress("training", total=4, unit="steps") as outer:
        clock[0] += 2
        outer.update()
        assert states() == ["training"]
        with Progress("scoring", total=2, unit="rows") as inner:
            for _ in range(2):
                clock[0] += 2
                inner.update()
                outer.refresh()
            assert states() == ["scoring"] * 2
        clock[0] += 2
        outer.update()
        assert states() == ["training"]
    assert not Progress._open


def test_a_work_with_a_log_of_its_own_has_no_lines_in_a_pipe(clock, stream):
    pipe, terminal = io.StringIO(), Terminal()
    for target, show, shown in ((pipe, True, 0), (terminal, True, 1), (pipe, None, 0)):
        stream(target)
        work(clock, show=show, lines=False)
        assert bool(target.getvalue()) == shown
    stream(Terminal())
    work(clock, show=False, lines=False)
    assert not sys.stderr.getvalue()


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


def test_a_library_draws_its_bar_on_a_terminal_alone(stream):
    stream(io.StringIO())
    assert not library_bar()
    stream(Terminal())
    assert library_bar()
    show_progress(False)
    assert not library_bar()


def test_what_is_printed_and_logged_cannot_steer_the_terminal(stream):
    out = stream(io.StringIO())
    print_line("a\x1b[2Jb\r\ud800\nم\u200cن \u3000水")
    handler = LogHandler(out)
    handler.emit(logging.makeLogRecord({"msg": "label \x9b31m"}))
    # Lines, and marks that texts in Persian or Chinese need, stay.
    assert out.getvalue() == (
        "a\\u001b[2Jb\\u000d\\ud800\nم\u200cن \u3000水\nlabel \\u009b31m\n"
    )
