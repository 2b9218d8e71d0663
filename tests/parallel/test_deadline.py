"""The step deadline, with a clock that moves at each look."""

import errno
import os
import threading

import pytest
from jax._src import compiler

from bert_jax import progress
from bert_jax.errors import PREEMPTED
from bert_jax.parallel import deadline

SECONDS, BUSY = 10, 80


class Exit(BaseException):
    """Stands for the end of this process."""


@pytest.fixture
def end(monkeypatch):
    """A function of what happens at each second; returns the second of the end."""

    def run(happens):
        clock = [0.0]

        def sleep(seconds):
            clock[0] += seconds
            happens(clock[0])

        def leave(code):
            assert code == PREEMPTED
            raise Exit

        monkeypatch.setattr(os, "_exit", leave)
        monkeypatch.setattr(deadline.time, "sleep", sleep)
        monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
        progress.made_progress()
        with pytest.raises(Exit):
            deadline._watch(SECONDS)
        return clock[0]

    return run


def test_a_process_without_progress_ends_with_its_stacks(end, capfd):
    assert end(lambda second: None) == SECONDS
    line, *stacks = capfd.readouterr().err.splitlines()
    assert line.startswith("error: no step, evaluation, save or preparation made")
    assert "for 10 s (--step_timeout)" in line
    assert any(f"in {end.__name__}" in line for line in stacks)


def test_a_process_that_cannot_print_ends_too(end, monkeypatch):
    def fails(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(progress, "print_line", fails)
    assert end(lambda second: None) == SECONDS


def test_updates_and_items_are_progress(end):
    items = iter(progress.Progress("items", range(BUSY // 2), unit="items"))
    updates = progress.Progress("updates", unit="updates")

    def happens(second):
        if second <= BUSY:
            updates.update() if second % 2 else next(items)

    assert end(happens) == BUSY + SECONDS


def test_a_wait_for_other_processes_is_no_stall(end):
    wait = progress.unwatched()

    def happens(second):
        if second == 1:
            wait.__enter__()
        elif second == BUSY:
            wait.__exit__(None, None, None)

    assert end(happens) == BUSY + SECONDS


def test_compilation_is_no_stall(end):
    """The compiler may run in any thread."""
    assert compiler.__file__.endswith(deadline._COMPILER)
    scope, compiled = {}, threading.Event()
    code = "def compiles(event): event.wait()"
    exec(compile(code, "/venv/jax/_src/compiler.py", "exec"), scope)
    thread = threading.Thread(target=scope["compiles"], args=(compiled,))
    thread.start()

    def happens(second):
        if second == BUSY:
            compiled.set()
            thread.join()

    assert end(happens) >= BUSY + SECONDS - 1
