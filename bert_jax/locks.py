"""Whose a folder is while a command works in it: a lock on a disk, a lease in a bucket."""

import contextlib
import errno
import fcntl
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax.errors import UserError
from bert_jax.files import parse_json

if TYPE_CHECKING:
    from etils import epath

LOCK = ".lock"  # the file that says whose a folder is
# What a file system says that has no locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Makes a folder, and keeps others out of it as long as this process lives.

    Raises UserError that names the process which works there.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; expected a folder")
    folder.mkdir(parents=True, exist_ok=True)
    path, held = folder / LOCK, False
    while not held:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise _in_use(folder, os.read(handle, 1000)) from error
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                logging.getLogger(__name__).warning(
                    f"the file system of {folder} has no locks: start nothing else there"
                )
            # Not a file that its last owner has deleted since it was opened.
            with contextlib.suppress(FileNotFoundError):
                held = os.path.samestat(os.fstat(handle), path.stat())
            if held:
                os.ftruncate(handle, 0)
                os.write(handle, json.dumps(_this_process()).encode())
                stack.callback(path.unlink, missing_ok=True)
                yield


class Lease:
    """A file in an object store that says whose a folder is, while its owner renews it.

    No clock is compared with another. Who comes second watches the file: one that changes
    is its owner's, who lives; one that does not for ``expires`` seconds is nobody's. That
    of a dead process of this machine is nobody's at once.
    """

    beat, expires = 5.0, 30.0  # seconds between renewals; seconds without one

    def __init__(self, path: "epath.Path", log: Callable[[str], None]):
        self._path, self._log = path, log
        self._mark = _this_process() | {"machine": _machine(), "born": _born("self")}
        self._mark["token"] = secrets.token_hex(8)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> "Lease":
        """Takes the folder; raises UserError that names the process which has it."""
        found = self._read()
        if found is not None and not _is_dead(found):
            self._watch(found)
        self._write(0)
        # Of two that come at once, one finds the other's words here.
        time.sleep(self.beat / 5)
        self.check()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        with contextlib.suppress(Exception):  # else it expires
            if self._is_ours():
                self._path.unlink()

    def check(self) -> None:
        """Raises UserError where the folder is another's."""
        found = self._read() or ""
        if self._mark["token"] not in found:
            raise _in_use(self._path.parent, found)

    def _watch(self, found: str) -> None:
        who = _owner(found)
        self._log(f"{self._path.parent}: looking whether {who} still runs")
        end = time.monotonic() + self.expires
        while time.monotonic() < end:
            time.sleep(self.beat / 5)
            now = self._read()
            if now is None:
                return
            if now != found:
                raise _in_use(self._path.parent, now)
        self._log(f"{who} has not been heard of for {self.expires:g} s")

    def _renew(self) -> None:
        count = 0
        while not self._done.wait(self.beat):
            # What the store refuses now it may take next time.
            with contextlib.suppress(Exception):
                if not self._is_ours():
                    return
                self._write(count := count + 1)

    def _is_ours(self) -> bool:
        return self._mark["token"] in (self._read() or "")

    def _read(self) -> str | None:
        with contextlib.suppress(FileNotFoundError):
            return self._path.read_text()
        return None

    def _write(self, count: int) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._mark | {"count": count}))


def _this_process() -> dict[str, Any]:
    """Who holds a folder."""
    return {"host": socket.gethostname(), "process": os.getpid()}


def _in_use(folder: object, holder: bytes | str) -> UserError:
    """The error for a folder in which another process works. holder: what it left."""
    return UserError(
        f"{folder} is in use by {_owner(holder)}; wait for its end, or use another folder"
    )


def _owner(holder: bytes | str) -> str:
    """Names the process that left ``holder``, the JSON of :func:`_this_process`."""
    with contextlib.suppress(UserError, KeyError):
        found = parse_json(holder, "", "")
        return f"process {found['process']} on {found['host']}"
    return "another process"  # it has just opened the file


def _machine() -> str:
    """A name that only processes share that see one another; "" where there is none."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').stat().st_ino}"
    return ""


def _born(process: object) -> str:
    """When a process of this machine began, in ticks; "" where there is none."""
    with contextlib.suppress(OSError):
        # After its name, which may hold anything.
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def _is_dead(mark: str) -> bool:
    """Whether a lease is of a process of this machine that has ended, or says nothing."""
    try:
        found = parse_json(mark, "", "")
        ours = found["machine"] == _machine() != ""
        return ours and _born(found["process"]) != found["born"]
    except (UserError, KeyError):
        return True
