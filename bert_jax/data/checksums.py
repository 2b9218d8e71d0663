"""Checks the files of a store against the checksums in its index.json.

A damaged disk or a bad copy may change the bytes of a file and keep its size. Training
would then continue with other text. A run reads the files once, in a thread, while it
trains: the first step does not wait for it, and the first save does.

A file that was checked is not read again as long as its size and its time of change are the
same. The file ``.checked`` of the store contains both. If the store is not writable, the
cache of the user contains them.
"""

import contextlib
import dataclasses
import hashlib
import os
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bert_jax.data.store import AGAIN, TokenStore, write_info
from bert_jax.errors import UserError
from bert_jax.files import cache_folder, read_json, reading, write_json
from bert_jax.progress import Progress, unwatched

CHECKED = (
    ".checked"  # the file with size, time and checksum of each file that was checked
)
_BLOCK = 16 << 20  # bytes that are read at a time


class Check:
    """Checks all files of a store in a thread, which starts and ends with a ``with`` block.

    share: number from 0 to 1, the place in the list of files to start at. Processes that
      share a disk start at different places, and do not repeat each other's work.

    A store without checksums has nothing to check.
    """

    def __init__(self, store: TokenStore, share: float = 0.0):
        names = list(store.files)
        first = int(share * len(names))
        self._store, self._names = store, [*names[first:], *names[:first]]
        if not store.info.checksums:
            self._names = []
        self._ended, self._stopped = threading.Event(), threading.Event()
        self._error: Exception | None = None

    def __enter__(self) -> "Check":
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()

    def finished(self, wait: bool = False) -> bool:
        """Whether all files were read. wait: whether to wait until then.

        Raises UserError that names the first damaged file.
        """
        if wait:
            with unwatched():
                self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._ended.is_set()

    def _run(self) -> None:
        try:
            for name in self._names:
                if not self._stopped.is_set():
                    self._check(name)
        except Exception as error:
            self._error = error
        finally:
            self._ended.set()

    def _check(self, name: str) -> None:
        """Reads a file, unless it was checked before or the work is stopped."""
        path, expected = self._store.directory / name, self._store.info.checksums[name]
        with reading(path, f"the checksum {expected}; {AGAIN}"):
            about = path.stat()
            state = [about.st_size, about.st_mtime_ns, expected]
            # Another process may have checked the file in the meantime.
            if _read_checked(self._store.directory).get(name) == state:
                return
            checksum = 0
            for block in _blocks(self._store.files[name]):
                if self._stopped.is_set():
                    return
                checksum = zlib.crc32(block, checksum)
            if checksum != expected:
                raise ValueError(f"its checksum is {checksum}")
        _write_checked(self._store.directory, name, state)


def check_now(store: TokenStore) -> None:
    """Reads all files of a store, and adds their checksums to index.json if it has none.

    Raises UserError that names the first damaged file.
    """
    total = sum(numbers.nbytes for numbers in store.files.values())
    checksums = {}
    with Progress("reading", total=total, unit="B", unit_scale=True) as progress:
        for name, numbers in store.files.items():
            checksum = 0
            for block in _blocks(numbers):
                checksum = zlib.crc32(block, checksum)
                progress.update(block.nbytes)
            expected = store.info.checksums.get(name, checksum)
            with reading(store.directory / name, f"the checksum {expected}; {AGAIN}"):
                if checksum != expected:
                    raise ValueError(f"its checksum is {checksum}")
            checksums[name] = checksum
    if not store.info.checksums:
        write_info(
            store.directory, dataclasses.replace(store.info, checksums=checksums)
        )


def _blocks(numbers: np.ndarray) -> Iterator[np.ndarray]:
    count = _BLOCK // numbers.itemsize
    for start in range(0, len(numbers), count):
        yield numbers[start : start + count]


def _checked_path(directory: Path) -> Path:
    """The file with the states of checked files. RuntimeError for a user without a home."""
    if os.access(directory, os.W_OK):
        return directory / CHECKED
    name = hashlib.sha256(os.fspath(directory.resolve()).encode()).hexdigest()[:16]
    return cache_folder() / "checked" / f"{name}.json"


def _read_checked(directory: Path) -> dict[str, list]:
    try:
        return read_json(_checked_path(directory), "states of files")
    except (RuntimeError, UserError):  # nothing was checked, or the file is damaged
        return {}


def _write_checked(directory: Path, name: str, state: list) -> None:
    """Adds the state of a file. If it cannot be written, the file is read again later."""
    with contextlib.suppress(OSError, RuntimeError):
        # Two processes may lose each other's states, which costs only time.
        write_json(_checked_path(directory), _read_checked(directory) | {name: state})
