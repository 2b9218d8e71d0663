"""What the processes of a job know together: values, and that they are to stop."""

import contextlib
import hashlib
import json
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from bert_jax.errors import UserError
from bert_jax.parallel import job

T = TypeVar("T")


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
def stop_requests() -> Iterator[Callable[[], bool]]:
    """SIGTERM, to this process or, in a job of several, to any of them.

    Gives a function that says whether all processes are to stop. Every process asks it
    after every step; it is true after the same step in all of them.
    """
    if job.joined():
        ask, asked = job.ask_to_stop, job.stops
    else:
        flag = threading.Event()
        ask, asked = flag.set, flag.is_set
    # Only the main thread may handle signals, and processes that someone else connected
    # could not stop together.
    connected_elsewhere = jax.process_count() > 1 and not job.joined()
    if connected_elsewhere or threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGTERM, lambda *_: ask())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)
