"""Runs a command that ends at a phase of its work, or after some time, by a signal.

``python tests/faults/ends.py HOW bert_jax.train ...``, HOW an object of JSON: the signal,
and either a phase and the how manieth time, or seconds.
"""

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

from orbax.checkpoint._src.checkpointers import async_checkpointer
from orbax.checkpoint._src.path import deleter

from bert_jax import files
from bert_jax.training import finetune, metrics, sweep
from bert_jax.training import run as engine

_SAVER = async_checkpointer.AsyncCheckpointer
# The parts of a save and of what surrounds it: a function, before or after which it ends.
PHASES = {
    "a save begins": (_SAVER, "_save", "before"),
    "arrays are copied": (_SAVER, "_save", "after"),
    "arrays are written": (_SAVER, "_save_step_metadata", "before"),
    "metadata is written": (_SAVER, "_save_step_metadata", "after"),
    "a checkpoint gets no name": (async_checkpointer, "_on_commit_callback", "before"),
    "a checkpoint gets its name": (async_checkpointer, "_on_commit_callback", "after"),
    "an old one is deleted": (deleter.StandardCheckpointDeleter, "delete", "before"),
    "an old one was deleted": (deleter.StandardCheckpointDeleter, "delete", "after"),
    "half a line of metrics": (metrics.MetricWriter, "write", "half"),
    "metrics are synced": (metrics.MetricWriter, "sync", "after"),
    "the best model is replaced": (files, "replace_folder", "before"),
    "a sweep's best model was replaced": (sweep, "replace_folder", "after"),
    "a small file was written": (engine, "write_json", "after"),
    "results were written": (finetune, "write_json", "after"),
}


def end_at(phase: str, number: int, name: str) -> None:
    """Sends a signal to this process at the phase's ``number``-th time."""
    owner, function, when = PHASES[phase]
    original = inspect.getattr_static(owner, function)
    times = itertools.count(1)

    def end() -> None:
        if next(times) == number:
            os.kill(os.getpid(), signal.Signals[name])

    @functools.wraps(original)
    async def wait(*args, **kwargs):
        if when == "before":
            end()
        result = await original(*args, **kwargs)
        if when == "after":
            end()
        return result

    @functools.wraps(original)
    def call(*args, **kwargs):
        if when == "before":
            end()
        if when == "half":
            writer = args[0]._file
            writer.write('{"step": 1, "split": "tr')
            writer.flush()
            end()
            writer.seek(0, os.SEEK_END)
            writer.truncate(writer.tell() - len('{"step": 1, "split": "tr'))
        result = original(*args, **kwargs)
        if when == "after":
            end()
        return result

    setattr(owner, function, wait if inspect.iscoroutinefunction(original) else call)


def end_after(seconds: float, name: str) -> None:
    """Sends a signal to this process after some time."""

    def end() -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), signal.Signals[name])

    threading.Thread(target=end, daemon=True).start()


if __name__ == "__main__":
    how, module, *arguments = sys.argv[1:]
    how = json.loads(how)
    if "phase" in how:
        end_at(how["phase"], how["number"], how["signal"])
    elif "seconds" in how:
        end_after(how["seconds"], how["signal"])
    sys.argv = ["", *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
