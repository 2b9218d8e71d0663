"""Checks the files of a store against the checksums in its index.json.

A damaged disk or a bad copy may change the bytes of a file and keep its size. Training
would then continue with different text. A run reads the files once, in a thread, while it
trains: the first step does not wait for the check, but the first save does.

A file that was checked is not read again as long as its size, its times and its inode are
the same. A copy has another inode and another time, so it is read. The stamps of checked
files are in the store's folder ``.checked``, or in the user's cache if the store is not
writable.
"""

import contextlib
import dataclasses
import hashlib
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bert_jax.data.store import AGAIN, TokenStore, write_info
from bert_jax.errors import UserError
from bert_jax.files import cache_folder, read_json, reading, write_json
from bert_jax.progress import Progress, made_progress

# The folder with a stamp of each file that was checked. Each stamp is a file of its own,
# because several processes write stamps at the same time.
CHECKED = ".checked"
_BLOCK = 16 << 20  # bytes that are read at a time


class Check:
    """Checks all files of stores in a thread, which starts and ends with a ``with`` block.

    share: number from 0 to 1, the place in the list of files to start at. Processes that
      share a disk start at different places, so that none repeats another's work.

    A store without checksums has nothing to check.
    """

    def __init__(self, stores: Sequence[TokenStore], share: float = 0.0):
        files = []
        for store in stores:
            if store.info.checksums:
                files += [(store, name) for name in store.files]
        first = int(share * len(files))
        self._files = [*files[first:], *files[:first]]
        self._ended, self._stopped = threading.Event(), threading.Event()
        self._awaited = False
        self._error: Exception | None = None

    def __enter__(self) -> "Check":
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()

    def finished(self, wait: bool = False) -> bool:
        """Whether all files were read. wait: whether to wait until then.

        During the wait each block that is read counts as progress for the step deadline,
        which ends the process only if the disk hangs. Raises UserError that names the first
        damaged file.
        """
        if wait:
            self._awaited = True
            self._ended.wait()
            self._awaited = False
        if self._error is not None:
            raise self._error
        return self._ended.is_set()

    def _run(self) -> None:
        try:
            for store, name in self._files:
                directory, checksums = store.directory, store.info.checksums
                # Another process may have checked the file in the meantime.
                if _is_checked(directory, name, checksums[name]):
                    continue
                for _ in _read(directory, name, checksums):
                    if self._stopped.is_set():
                        return
                    # Without a wait the training reports its own progress.
                    if self._awaited:
                        made_progress()
        except Exception as error:
            self._error = error
        finally:
            self._ended.set()


def check_now(store: TokenStore) -> None:
    """Reads all files of a store, and adds their checksums to index.json if it has none.

    Raises UserError that names the first damaged file.
    """
    total = sum(numbers.nbytes for numbers in store.files.values())
    checksums = dict(store.info.checksums)
    with Progress("reading", total=total, unit="B", unit_scale=True) as progress:
        for name in store.files:
            for size in _read(store.directory, name, checksums):
                progress.update(size)
    if not store.info.checksums:
        write_info(
            store.directory, dataclasses.replace(store.info, checksums=checksums)
        )


def _read(directory: Path, name: str, checksums: dict[str, int]) -> Iterator[int]:
    """Reads a file, and yields the number of bytes of each block.

    At the end the checksum is compared with the one in ``checksums``, or added if there is
    none, and a stamp is written.

    The file is read, not mapped, so that a disk error raises OSError and is not a signal.
    """
    path = directory / name
    expected = checksums.get(name, "of its numbers")
    with (
        reading(path, f"the checksum {expected}; {AGAIN}"),
        path.open("rb", buffering=0) as file,
    ):
        about = os.fstat(file.fileno())
        if path.suffix == ".npy":
            np.lib.format.read_magic(file)
            np.lib.format.read_array_header_1_0(file)
        checksum = 0
        block = memoryview(bytearray(_BLOCK))
        while size := file.readinto(block):
            checksum = zlib.crc32(block[:size], checksum)
            yield size
        if checksum != checksums.setdefault(name, checksum):
            raise ValueError(f"its checksum is {checksum}")
    # Without a stamp the file is only read once more.
    with contextlib.suppress(OSError, RuntimeError, UserError):
        write_json(_stamp_path(directory, name), _stamp(about, checksum))


def _is_checked(directory: Path, name: str, checksum: int) -> bool:
    """Whether a file has a stamp, and has not changed since."""
    # The stamp may be missing or damaged. If the file is missing, _read raises an error.
    with contextlib.suppress(OSError, RuntimeError, UserError):
        stamp = read_json(_stamp_path(directory, name), "a stamp", list)
        return stamp == _stamp((directory / name).stat(), checksum)
    return False


def _stamp(about: os.stat_result, checksum: int) -> list[int]:
    times = [about.st_mtime_ns, about.st_ctime_ns]
    return [about.st_size, *times, about.st_ino, checksum]


def _stamp_path(directory: Path, name: str) -> Path:
    """The file of a stamp. RuntimeError for a user without a home."""
    if os.access(directory, os.W_OK):
        folder = directory / CHECKED
    else:
        place = os.fspath(directory.resolve()).encode()
        folder = cache_folder() / "checked" / hashlib.sha256(place).hexdigest()[:16]
    # Without slashes, because a name in index.json must not lead out of the folder.
    return folder / f"{name.replace('/', '-')}.json"
