"""The processes of a job: how they find one another, and how they are asked to stop."""

import contextlib
import dataclasses
import hashlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from jax._src import distributed as jax_distributed
from jax._src.clusters import ClusterEnv
from jax.experimental import multihost_utils

from bert_jax.errors import UserError
from bert_jax.parallel.roll_call import roll_call

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Job:
    """Where the other processes are.

    from_environment: Cloud TPU, GKE, Slurm or Open MPI say so. Otherwise
    coordinator_address (host:port of process 0), num_processes and process_id, all or
    none; none is a job of one process. timeout: seconds to wait for the others.
    """

    from_environment: bool = False
    coordinator_address: str = ""
    num_processes: int = 0
    process_id: int = -1
    timeout: int = 300


def join(job: Job) -> bool:
    """Connects this process with the others, before anything else asks for devices.

    Returns whether there are others. From here on a process that fails must call
    :func:`abandon`, and one that is done :func:`leave`. Raises UserError that names the
    processes which did not come in time.
    """
    by_hand = bool(job.coordinator_address)
    if not by_hand and (job.num_processes or job.process_id >= 0):
        raise UserError(
            "--num_processes and --process_id need --coordinator_address=HOST:PORT, where "
            "process 0 listens"
        )
    if by_hand and not (0 <= job.process_id < job.num_processes):
        raise UserError(
            f"--process_id={job.process_id} of --num_processes={job.num_processes}, "
            "expected 0 or more and below the number of processes"
        )
    if not (by_hand or job.from_environment):
        return False
    address, count, process = job.coordinator_address, job.num_processes, job.process_id
    if not by_hand:
        # Private, but the only way to learn who is expected before JAX waits for them.
        address, count, process, _ = ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, None, job.timeout
        )
        if address is None:
            raise UserError(
                "--distributed found no Cloud TPU, GKE, Slurm or Open MPI job around this "
                "process; give --coordinator_address, --num_processes and --process_id"
            )
    roll_call(address, count, process, job.timeout)
    jax.distributed.initialize(address, count, process)
    _watcher.start()
    return True


def leave() -> None:
    """Waits for the others to end too, so that no process waits for one that is gone."""
    jax.distributed.shutdown()
    # Which ends its wait. Python must not exit around a thread that is in C++.
    _watcher.join(timeout=10)


# Held by the thread that ends this process, and never released.
_ending = threading.Lock()
_FAILED = "bert_jax/failed"  # the key under which the first process that fails says why
_LINGER = 10_000  # ms that a process which fails waits until the others have heard


def abandon(message: str, code: int) -> NoReturn:
    """Prints ``message`` and ends all processes of the job with ``code``.

    Without it the others would wait in a collective for one that does not come. The last
    line of ``message`` is what they print.
    """
    _ending.acquire()
    print(message, file=sys.stderr)
    report = {
        "process": jax.process_index(),
        "line": message.splitlines()[-1].removeprefix("error: "),
        "code": code,
    }
    # Where another process failed before this one, its report stays.
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        _client().key_value_set(_FAILED, json.dumps(report))
    _end(code)


def _watch() -> None:
    """Waits, on a thread, for another process to fail; then ends this one."""
    client = _client()
    while True:
        try:
            report = json.loads(client.blocking_key_value_get(_FAILED, 3_600_000))
            break
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):  # the job is over
                return
    # Else this process has failed itself.
    if _ending.acquire(blocking=False):
        line = f"error: process {report['process']}: {report['line']}"
        print(line, file=sys.stderr)
        _end(report["code"])


_watcher = threading.Thread(target=_watch, name="watch", daemon=True)


def _end(code: int) -> NoReturn:
    """Ends this process, whatever its threads wait for, when all have heard of it.

    Process 0 keeps the service that tells them; while it is there nothing is said in C++.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.suppress(Exception):  # of one that was killed there is no answer
        _client().wait_at_barrier(_FAILED, _LINGER)
        jax.distributed.shutdown()
    os._exit(code)


def _client() -> Any:
    # Private, as is every other way to JAX's own connection between the processes.
    return jax_distributed.global_state.client


def is_leader() -> bool:
    """Whether this is process 0, which writes the files that all share."""
    return jax.process_index() == 0


def wait_for_all(name: str) -> None:
    """Returns when all processes have called it; ``name`` says what for."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def check_same(value: Any, name: str) -> None:
    """Raises UserError on all processes unless ``value``, as JSON, is the same on all.

    All processes must call it.
    """
    if jax.process_count() == 1:
        return
    text = json.dumps(value, sort_keys=True)
    digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    digests = multihost_utils.process_allgather(digest)
    others = np.flatnonzero((digests != digests[0]).any(axis=1))
    if len(others):
        names = ", ".join(map(str, others))
        raise UserError(f"process {names} and process 0 differ in {name}")


def from_leader(action: Callable[[], T]) -> T:
    """What ``action``, which process 0 alone calls, returns: in every process, as JSON.

    All processes must call it.
    """
    if jax.process_count() == 1:
        return action()
    content = json.dumps(action()).encode() if is_leader() else b""
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(content))))
    padded = np.frombuffer(content.ljust(size, b" ")[:size], np.uint8)
    return json.loads(bytes(multihost_utils.broadcast_one_to_all(padded)))


def on_every_host(tree: Any) -> Any:
    """Whole arrays from ones that may lie on several hosts; all processes must call it."""
    if jax.process_count() == 1:
        return tree
    return multihost_utils.process_allgather(tree, tiled=True)


class StopRequests:
    """SIGTERM, to this process or, in a job of several, to any of them."""

    def __init__(self):
        self._flag = threading.Event()
        self._several = jax.process_count() > 1
        if not self._several and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, lambda *_: self._flag.set())

    def reached(self, step: int) -> bool:
        """Whether all processes are to stop after ``step``: the same step for all.

        To be asked at every step by every process; it does not wait.
        """
        if self._several:
            return multihost_utils.reached_preemption_sync_point(step)
        return self._flag.is_set()

    def close(self) -> None:
        """Gives SIGTERM back to whom it belonged."""
        if hasattr(self, "_before"):
            signal.signal(signal.SIGTERM, self._before)
            del self._before
