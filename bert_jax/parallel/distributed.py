"""The processes of a job: how they find one another, and how they are asked to stop."""

import contextlib
import hashlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from jax._src import distributed as jax_distributed
from jax._src.clusters import ClusterEnv
from jax.experimental import multihost_utils

from bert_jax.errors import UserError

T = TypeVar("T")
_RETRY = 0.2  # seconds between calls to process 0


def join(
    distributed: bool = False,
    coordinator_address: str = "",
    num_processes: int = 0,
    process_id: int = -1,
    join_timeout: int = 300,
) -> bool:
    """Connects this process with the others, before anything else asks for devices.

    distributed: Cloud TPU, GKE, Slurm or Open MPI say where the others are. Otherwise
    coordinator_address (host:port of process 0), num_processes and process_id say so, all
    or none; none is a job of one process. join_timeout: seconds to wait for the others.

    Returns whether there are others. From here on a process that fails must call
    :func:`abandon`, and one that is done :func:`leave`. Raises UserError that names the
    processes which did not come in time.
    """
    by_hand = bool(coordinator_address)
    if not by_hand and (num_processes or process_id >= 0):
        raise UserError(
            "--num_processes and --process_id need --coordinator_address=HOST:PORT, where "
            "process 0 listens"
        )
    if by_hand and not (0 <= process_id < num_processes):
        raise UserError(
            f"--process_id={process_id} of --num_processes={num_processes}, "
            "expected 0 or more and below the number of processes"
        )
    if not (by_hand or distributed):
        return False
    address, count, process = coordinator_address, num_processes, process_id
    if not by_hand:
        # Private, but the only way to learn who is expected before JAX waits for them.
        address, count, process, _ = ClusterEnv.auto_detect_unset_distributed_params(
            *[None] * 5, join_timeout
        )
        if address is None:
            raise UserError(
                "--distributed found no Cloud TPU, GKE, Slurm or Open MPI job around this "
                "process; give --coordinator_address, --num_processes and --process_id"
            )
    roll_call(address, count, process, join_timeout)
    jax.distributed.initialize(address, count, process)
    _watcher.start()
    return True


def roll_call(address: str, count: int, process: int, timeout: float) -> None:
    """Waits until all ``count`` processes of a job have called it.

    JAX ends a process whose peers do not come, in C++, and does not say who is missing.
    So before JAX connects them, all call process 0 on the port where JAX will listen, and
    it answers all of them.

    address: host:port of process 0. Raises UserError that names the processes which did
    not come within ``timeout`` seconds.
    """
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and len(port) < 6 and int(port) < 1 << 16):
        raise UserError(f"--coordinator_address={address}, expected HOST:PORT")
    if process == 0:
        _listen(int(port), count, timeout)
    else:
        _call(host, int(port), process, timeout)


def _listen(port: int, count: int, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    callers: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(
                socket.create_server(
                    ("", port),
                    family=socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET,
                    dualstack_ipv6=socket.has_dualstack_ipv6(),
                )
            )
        except OSError as error:
            raise UserError(
                f"port {port} of --coordinator_address cannot be used ({error.strerror}); "
                "give another one to all processes"
            ) from error
        while len(callers) < count - 1 and time.monotonic() < deadline:
            server.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                caller, _ = server.accept()
                stack.enter_context(caller)
                caller.settimeout(5)
                name = caller.makefile("rb").readline(20).strip()
            except OSError:  # nobody called in time, or hung up
                continue
            if name.isdigit() and 0 < int(name) < count:
                callers[int(name)] = caller
        missing = [i for i in range(1, count) if i not in callers]
        for caller in callers.values():
            with contextlib.suppress(OSError):
                caller.sendall((" ".join(map(str, missing)) + "\n").encode())
        for caller in callers.values():
            # They hang up first, so that the port is free at once.
            with contextlib.suppress(OSError):
                caller.recv(1)
    _check_complete(missing, timeout)


def _call(host: str, port: int, process: int, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            with socket.create_connection((host, port), timeout=5) as caller:
                caller.sendall(f"{process}\n".encode())
                # Process 0 may have begun to wait later than this one.
                caller.settimeout(2 * timeout)
                answer = caller.makefile().readline()
            if answer:
                _check_complete([int(i) for i in answer.split()], timeout)
                return
        except OSError:
            pass
        if time.monotonic() > deadline:
            raise UserError(
                f"process 0 at {host}:{port} did not answer within {timeout:g} s; start "
                "it, or look into its output"
            )
        time.sleep(_RETRY)


def _check_complete(missing: list[int], timeout: float) -> None:
    if missing:
        names = ", ".join(map(str, missing))
        who = f"process {names}" if len(missing) == 1 else f"processes {names}"
        raise UserError(
            f"{who} did not join within {timeout:g} s; start them all, or look into "
            "their output"
        )


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


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[int], bool]]:
    """SIGTERM, to this process or, in a job of several, to any of them.

    Gives a function of the step: whether all processes are to stop after it, the same
    step for all. Every process asks it at every step; it does not wait.
    """
    flag = threading.Event()
    if jax.process_count() > 1:
        yield multihost_utils.reached_preemption_sync_point
    elif threading.current_thread() is not threading.main_thread():
        yield lambda step: False
    else:
        before = signal.signal(signal.SIGTERM, lambda *_: flag.set())
        try:
            yield lambda step: flag.is_set()
        finally:
            signal.signal(signal.SIGTERM, before)
