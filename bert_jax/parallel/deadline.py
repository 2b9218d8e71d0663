"""The step deadline: ends a process that makes no progress.

A collective never returns if one process does not take part, and JAX has no watchdog. So
each process of a command has its own deadline.
"""

import faulthandler
import os
import sys
import threading
import time
from pathlib import Path

from bert_jax import progress
from bert_jax.errors import PREEMPTED

_COMPILER = str(Path("jax", "_src", "compiler.py"))


def watch(seconds: float) -> None:
    """Starts a thread that ends this process after ``seconds`` without progress.

    Progress is every update of a :class:`~bert_jax.progress.Progress`: a step, a batch of
    an evaluation, a part of a text. Time that JAX's compiler needs does not count. The
    process prints one line and the stacks of all threads, and exits with code 75.
    """
    progress.made_progress()
    threading.Thread(
        target=_watch, args=(seconds,), name="deadline", daemon=True
    ).start()


def _watch(seconds: float) -> None:
    while progress.idle_seconds() < seconds:
        time.sleep(min(1, seconds / 10))
        if _compiles():
            progress.made_progress()
    try:
        progress.print_line(
            f"error: no step, evaluation, save or preparation made progress for "
            f"{seconds:g} s (--step_timeout); the stacks of all threads follow. Start the "
            "same command again: it resumes from the last checkpoint",
            sys.stderr,
        )
        faulthandler.dump_traceback(sys.__stderr__)
        sys.stdout.flush()
    finally:  # also if stderr or stdout cannot be written
        os._exit(PREEMPTED)


def _compiles() -> bool:
    """Whether a thread is in JAX's compiler."""
    for frame in sys._current_frames().values():
        while frame is not None:
            if frame.f_code.co_filename.endswith(_COMPILER):
                return True
            frame = frame.f_back
    return False
