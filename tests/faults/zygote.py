"""Runs commands that are to be killed, each in a process that begins within milliseconds.

All that is slow to import is imported once, before JAX looks for devices; each command is
a fork. tests/faults/test_kills.py starts this file, writes a JSON object a line (module,
argv, log, and how the command ends) and reads the exit status.
"""

import functools
import inspect
import itertools
import json
import os
import signal
import sys
import threading
import time

from orbax.checkpoint._src.checkpointers import async_checkpointer
from orbax.checkpoint._src.path import deleter

from bert_jax import cli, convert, embed, files, finetune, prepare, train, vocabulary
from bert_jax.inference import embed as embedding
from bert_jax.interop import huggingface
from bert_jax.training import finetune as finetuning
from bert_jax.training import metrics, pretrain, sweep
from bert_jax.training import run as engine

COMMANDS = {
    m.__name__: m for m in (train, finetune, prepare, vocabulary, convert, embed)
}
IMPORTED = (embedding, huggingface)  # by the commands, late

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
    "results were written": (finetuning, "write_json", "after"),
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


def child(job: dict) -> None:
    """Becomes the command."""
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ |= job.get("environment", {})
    for module in (finetuning, pretrain):  # pictures take most of a second
        module.draw_run = lambda folder, log: None
    if "phase" in job:
        end_at(job["phase"], job["number"], job["signal"])
    elif "seconds" in job:
        end_after(job["seconds"], job["signal"])
    sys.argv = [job["module"], *job["argv"]]
    code = 0
    try:
        cli.run(COMMANDS[job["module"]].main)
    except SystemExit as end:
        code = end.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    # Python's own handlers again: a child of a shell's background job ignores SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print(json.dumps([*PHASES]), flush=True)
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            child(json.loads(line))
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
