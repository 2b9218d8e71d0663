"""Locks a folder for one run: a lock on a disk, a file with the owner in a bucket."""

import contextlib
import errno
import fcntl
import json
import logging
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bert_jax.errors import UserError
from bert_jax.files import parse_json

if TYPE_CHECKING:
    from etils import epath

LOCK = ".lock"  # the file that names the owner of a folder
# Errors of file systems without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextlib.contextmanager
def locked(
    folder: Path, *, wait: bool = False, name: os.PathLike | None = None
) -> Iterator[None]:
    """Creates a folder on a disk and locks it, at most until this process ends.

    wait: wait while another process has the lock. Otherwise raises UserError that names
    this process and the folder, or ``name``.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; expected a folder")
    folder.mkdir(parents=True, exist_ok=True)
    path, held = folder / LOCK, False
    while not held:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise UserError(f"{path} is a link, expected a file; delete it") from error
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError as error:
                raise UserError(
                    f"{name or folder} is in use by {_owner(os.read(handle, 1000))}; wait "
                    "until it ends, or use another folder"
                ) from error
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                logging.getLogger(__name__).warning(
                    f"the file system of {folder} has no locks: start no second run there"
                )
            # The last owner may have deleted the file after it was opened here.
            with contextlib.suppress(FileNotFoundError):
                held = os.path.samestat(os.fstat(handle), path.stat())
            if held:
                os.ftruncate(handle, 0)
                os.write(handle, _this_process().encode())
                stack.callback(path.unlink, missing_ok=True)
                yield


@contextlib.contextmanager
def owned(folder: "epath.Path") -> Iterator[str]:
    """Makes this run the owner of a folder in a bucket; yields its token.

    Buckets have no locks, and a killed run cannot release one. So the newest run owns the
    folder. An older run that still works there stops in :func:`check_owned`. A warning
    names its process.
    """
    path, token = folder / LOCK, _this_process(token=secrets.token_hex(8))
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        before = _owner(path.read_text())
        logging.getLogger(__name__).warning(
            f"{folder} belonged to {before}, which was killed or still runs; it now "
            "belongs to this run, and the other run stops at its next save"
        )
    path.write_text(token)
    try:
        yield token
    finally:
        with contextlib.suppress(OSError):
            if path.read_text() == token:
                path.unlink()


def check_owned(folder: "epath.Path", token: str) -> None:
    """Raises UserError if another run has become the owner of the folder."""
    found = ""
    with contextlib.suppress(FileNotFoundError):
        found = (folder / LOCK).read_text()
    if found != token:
        raise UserError(
            f"{folder} now belongs to {_owner(found)}, which started later; this run "
            "stops without a save: use another folder"
        )


def _this_process(**more: str) -> str:
    return json.dumps({"host": socket.gethostname(), "process": os.getpid(), **more})


def _owner(content: bytes | str) -> str:
    """Names the process that wrote a lock file."""
    with contextlib.suppress(UserError, KeyError):
        found = parse_json(content, "", "")
        return f"process {found['process']} on {found['host']}"
    return "another process"  # it has just opened the file
