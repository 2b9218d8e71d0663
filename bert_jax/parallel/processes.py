"""The processes of one run: how they connect, exchange values, stop and end.

JAX connects the processes, checks their heartbeats and chooses the step after which all
processes stop. This file adds one-line errors, exit codes, and a step deadline for each
process of a command, so that no wait is endless.
"""

import contextlib
import faulthandler
import itertools
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np

from bert_jax import progress
from bert_jax.errors import PREEMPTED, Preempted, UserError
from bert_jax.progress import unwatched
from bert_jax.unstable import global_state, multihost_utils

T = TypeVar("T")
# Returns None, or the exception that ends the run.
StopRequested = Callable[[], type[BaseException] | None]

# Seconds that a process waits for the others. Process 0 may prepare text for hours. If a
# process is lost, JAX ends the wait immediately.
WAIT = 24 * 3600
# Every process makes the same calls, so the n-th call has the same number everywhere.
_numbers = itertools.count(1)
_steps = itertools.count(1)
# Messages of Gloo, JAX and NCCL for a failed collective or a lost process. Messages of
# JAX and NCCL have a status, which Orbax quotes in the middle of its own message. A single
# word such as "barrier" or "collective" may occur in the message of any bug, and "socket
# closed" in an error of a bucket. Gloo raises ValueError, so the type of an exception does
# not help.
_LOST = re.compile(
    r"\bgloo (?!context)[\w -]+ failed|"
    r"\b(UNKNOWN|INTERNAL|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED|"
    r"FAILED_PRECONDITION): .*"
    r"(barrier (failed|timed out)|barrier.* cancelled|heartbeat|"
    r"in error before the barrier|Agent (is not|must be) in CONNECTED state|"
    r"Leader incarnation ID mismatch|coordination ?service|GetKeyValue\(\) timed out|"
    r"remote process exited|NCCL operation (?!ncclCommInit).*: unhandled system)",
    re.IGNORECASE | re.DOTALL,
)
_STOPPING = (
    b"\nstopping after this step, to save it; a second interrupt ends without a save\n"
)
_COMPILER = str(Path("jax", "_src", "compiler.py"))


def connect(
    distributed: bool = False,
    coordinator_address: str = "",
    num_processes: int = 0,
    process_id: int = -1,
    join_timeout: int = 300,
    heartbeat_timeout: int = 30,
) -> bool:
    """Connects this process with the others; must be called before JAX has devices.

    distributed: whether Cloud TPU, GKE, Slurm or Open MPI provide the addresses and numbers
    of the processes. Otherwise coordinator_address (host:port of process 0), num_processes
    and process_id do; without them the run has one process. join_timeout: maximum number of
    seconds until all processes are connected. heartbeat_timeout: seconds without a
    heartbeat after which a process is lost.

    Returns whether the run has several processes. Raises UserError for wrong flags and for
    a port that process 0 cannot use. If a process is missing, JAX ends the others.
    """
    named = (coordinator_address, num_processes, process_id)
    if named == ("", 0, -1):
        if not distributed:
            return False
        named = ()
    try:
        if named:
            host, _, port = coordinator_address.rpartition(":")
            known = process_id in range(num_processes)
            if not (host and 0 < int(port) < 1 << 16 and known):
                raise ValueError("there is no such port or process")
            if process_id == 0:  # JAX may crash on a port in use
                socket.create_server(("", int(port))).close()
        jax.distributed.initialize(
            *named,
            initialization_timeout=join_timeout,
            heartbeat_timeout_seconds=heartbeat_timeout,
        )
    except (ValueError, OSError) as error:
        raise UserError(
            f"this process cannot be connected ({error}); expected --distributed in a job "
            "of Cloud TPU, GKE, Slurm or Open MPI, or --coordinator_address=HOST:PORT with "
            "a free port of process 0, --num_processes=N and --process_id from 0 to N - 1"
        ) from error
    return jax.process_count() > 1


def is_leader() -> bool:
    """Whether this is process 0, which writes the small files of a run."""
    return jax.process_index() == 0


def _client() -> Any:
    """JAX's connection to process 0."""
    return global_state.client


def wait_for_all(name: str) -> None:
    """Waits until all processes have called it, without using a device.

    name: name in JAX's error if a process does not call it within a day.
    """
    if jax.process_count() > 1:
        with unwatched():
            _client().wait_at_barrier(f"{name}/{next(_numbers)}", WAIT * 1000)


def from_all(value: int) -> np.ndarray:
    """The numbers of all processes, below 2^32; all processes must call it."""
    if jax.process_count() == 1:
        return np.array([value])
    wait_for_all("numbers")  # a collective has a shorter timeout
    return multihost_utils.process_allgather(np.uint32(value))


def check_same(value: Any, name: str) -> None:
    """Raises UserError in all processes unless ``value``, as JSON, is equal in all."""
    if jax.process_count() > 1:
        text = json.dumps(value, sort_keys=True)
        sums = from_all(zlib.crc32(text.encode()))
        if others := np.flatnonzero(sums != sums[0]).tolist():
            names = ", ".join(map(str, others))
            raise UserError(f"process {names} and process 0 differ in {name}")


def from_leader(action: Callable[[], T]) -> T:
    """Returns in every process what ``action`` returns in process 0.

    The other processes receive it as JSON, in which a tuple becomes a list. Only process 0
    calls ``action``; all processes must call this function. If ``action`` raises, process 0
    raises its exception, and the others raise UserError.
    """
    if jax.process_count() == 1:
        return action()
    key, answer = f"leader/{next(_numbers)}", "{}"
    if is_leader():
        try:
            value = action()
            answer = json.dumps({"value": value})
            return value
        finally:
            _client().key_value_set(key, answer)
    with unwatched():
        answer = json.loads(_client().blocking_key_value_get(key, WAIT * 1000))
    if "value" not in answer:
        raise UserError(
            "process 0 failed and prints the reason; correct it and run the same command "
            "again"
        )
    return answer["value"]


def on_leader(action: Callable[[], T]) -> T | None:
    """Calls ``action`` in process 0 and returns its result there, None in the others.

    See :func:`from_leader` for errors. All processes must call this function.
    """
    results = []
    from_leader(lambda: results.append(action()))
    return results[0] if results else None


def on_every_host(tree: Any) -> Any:
    """Gathers arrays that several hosts share, in numpy; all processes must call it."""
    return multihost_utils.process_allgather(tree, tiled=True)


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequested]:
    """Gives a function that returns whether the run stops, and with which exception.

    The exception is Preempted after a SIGTERM, and KeyboardInterrupt after a Ctrl-C or the
    stop button of a notebook. A second Ctrl-C raises KeyboardInterrupt immediately. If a
    signal arrives after the run's last call, the exception is raised at the end.

    Every process calls the function once after each step. With several processes a SIGTERM
    to any process makes it return Preempted after the same step in all. JAX handles this
    signal, and a handler in Python would replace JAX's. A Ctrl-C counts as a SIGTERM.
    """
    stops: list[type[BaseException]] = []
    several = jax.process_count() > 1

    def terminate(*_: object) -> None:
        stops.append(Preempted)

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if several:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            stops.append(KeyboardInterrupt)
        # print would fail if the signal interrupts a print to the same stream.
        with contextlib.suppress(OSError):
            os.write(2, _STOPPING)

    def requested() -> type[BaseException] | None:
        if several:
            # Steps of a sweep start again at 1 in each run; JAX needs numbers that grow.
            reached = multihost_utils.reached_preemption_sync_point(next(_steps))
            return Preempted if reached else None
        return stops.pop() if stops else None

    with contextlib.ExitStack() as stack:
        # Only the main thread may handle signals.
        if threading.current_thread() is threading.main_thread():
            if not several:
                stack.enter_context(_handled(signal.SIGTERM, terminate))
            # A handler of the user is kept, and so is nohup's.
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                stack.enter_context(_handled(signal.SIGINT, interrupt))
        yield requested
        # The caller may still score the model, or start more runs.
        if stop := requested():
            raise stop("asked to stop after the last step, which is saved")


@contextlib.contextmanager
def _handled(number: signal.Signals, handler: Callable[..., None]) -> Iterator[None]:
    """Handles a signal within a ``with`` block."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def lost_peer(error: BaseException | None) -> str:
    """The message of a failed collective or a lost process that caused ``error``, or ""."""
    while error is not None:
        if not isinstance(error, UserError) and _LOST.search(str(error)):
            return str(error).strip().partition("\n")[0][:300]
        error = error.__cause__ or error.__context__
    return ""


def leave(code: int, *, together: bool) -> NoReturn:
    """Exits from a command of several processes, after their streams were flushed.

    together: whether all processes call this function, so that JAX can close their
    connections. A process that fails does not wait for the others. JAX ends them as soon as
    process 0 ends, so process 0 gives them 3 s to print their own errors. Meanwhile the
    step deadline must not end this process, because that would replace the exit code.
    """
    with unwatched():
        if together:
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                wait_for_all("end")
                jax.distributed.shutdown()
        elif is_leader():
            time.sleep(3)
        os._exit(code)


def watch(seconds: float) -> None:
    """Starts a thread that ends this process after ``seconds`` without progress.

    A collective never returns if one process does not take part, and JAX has no watchdog.
    Every update of a :class:`~bert_jax.progress.Progress` is progress: a step, a batch of
    an evaluation, a part of a text. Time that JAX's compiler needs does not count. The
    process prints one line and the stacks of all threads, and exits with code 75.
    """
    progress.made_progress()
    threading.Thread(target=_watch, args=(seconds,), daemon=True).start()


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
    finally:  # even if stderr or stdout cannot be written
        os._exit(PREEMPTED)


def _compiles() -> bool:
    """Whether a thread is in JAX's compiler."""
    for frame in sys._current_frames().values():
        while frame is not None:
            if frame.f_code.co_filename.endswith(_COMPILER):
                return True
            frame = frame.f_back
    return False
