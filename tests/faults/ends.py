"""Runs a command and sends it a signal at a phase of its work or after some time.

``python tests/faults/ends.py HOW train ...``. HOW is a JSON object with "signal",
and either "phase" and "number" (the signal is sent when the phase is reached for the
number-th time) or "seconds". If HOW only has "reached", no signal is sent, and a JSON
list of all reached phases is written to that file.
"""

import atexit
import functools
import inspect
import itertools
import json
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from orbax.checkpoint import v1 as ocp
from orbax.checkpoint._src.path import atomicity
from orbax.checkpoint.experimental.v1._src.metadata import serialization

from bert_jax import files
from bert_jax.interop.train_state import CheckpointStore
from bert_jax.training import finetune, metrics, sweep
from bert_jax.training import run as engine

# Each phase: a function, and whether the phase is before or after its call.
PHASES = {
    "a save begins": (ocp, "save_checkpointables_async", "before"),
    "arrays are copied": (ocp, "save_checkpointables_async", "after"),
    "arrays are written": (serialization, "write", "before"),
    "metadata is written": (serialization, "write", "after"),
    "a checkpoint gets no name": (atomicity, "on_commit_callback", "before"),
    "a checkpoint gets its name": (atomicity, "on_commit_callback", "after"),
    "old ones are deleted": (CheckpointStore, "_delete_old", "before"),
    "old ones were deleted": (CheckpointStore, "_delete_old", "after"),
    "half a line of metrics": (metrics.MetricWriter, "write", "half"),
    "metrics are synced": (metrics.MetricWriter, "sync", "after"),
    "the best model is replaced": (files, "replace_folder", "before"),
    "a sweep's best model was replaced": (sweep, "replace_folder", "after"),
    "a small file was written": (engine, "write_json", "after"),
    "results were written": (finetune, "write_json", "after"),
}


def at_phase(phase: str, action: Callable[[], None]) -> None:
    """Calls ``action`` each time that this process reaches ``phase``."""
    owner, function, when = PHASES[phase]
    original = inspect.getattr_static(owner, function)

    @functools.wraps(original)
    async def wait(*args, **kwargs):
        if when == "before":
            action()
        result = await original(*args, **kwargs)
        if when == "after":
            action()
        return result

    @functools.wraps(original)
    def call(*args, **kwargs):
        if when == "before":
            action()
        if when == "half":
            writer = args[0]._file
            writer.write('{"step": 1, "split": "tr')
            writer.flush()
            action()
            writer.seek(0, os.SEEK_END)
            writer.truncate(writer.tell() - len('{"step": 1, "split": "tr'))
        result = original(*args, **kwargs)
        if when == "after":
            action()
        return result

    setattr(owner, function, wait if inspect.iscoroutinefunction(original) else call)


def end_at(phase: str, number: int, name: str) -> None:
    """Sends a signal to this process when it reaches ``phase`` for the number-th time."""
    times = itertools.count(1)

    def end() -> None:
        if next(times) == number:
            os.kill(os.getpid(), signal.Signals[name])

    at_phase(phase, end)


def end_after(seconds: float, name: str) -> None:
    """Sends a signal to this process after some time."""

    def end() -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), signal.Signals[name])

    threading.Thread(target=end, daemon=True).start()


def write_reached(path: str) -> None:
    """Writes the phases that this process reaches to ``path`` when it exits."""
    reached: set[str] = set()
    for phase in PHASES:
        at_phase(phase, functools.partial(reached.add, phase))
    atexit.register(lambda: Path(path).write_text(json.dumps(sorted(reached))))


if __name__ == "__main__":
    how, *sys.argv[1:] = sys.argv[1:]
    how = json.loads(how)
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # background jobs of a shell ignore SIGINT
    if "phase" in how:
        end_at(how["phase"], how["number"], how["signal"])
    elif "seconds" in how:
        end_after(how["seconds"], how["signal"])
    elif "reached" in how:
        write_reached(how["reached"])
    runpy.run_module("bert_jax", run_name="__main__", alter_sys=True)
