"""Arrays that grow row by row, to one npz or safetensors file."""

import contextlib
import json
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.files import new_file

ENDINGS = (".npz", ".safetensors")
_SAFETENSORS_TYPES = {"float32": "F32", "int32": "I32", "int64": "I64"}


def check_ending(path: Path) -> None:
    """Raises UserError for a name that says neither npz nor safetensors."""
    if path.suffix not in ENDINGS:
        raise UserError(f"--output={path}, expected a name in {' or '.join(ENDINGS)}")


class GrowingArrays:
    """Arrays by name, kept on disk; each ``append`` adds rows to one of them."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack):
        self._folder, self._stack = folder, stack
        self._files: dict[str, IO[bytes]] = {}
        self._kinds: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        self._rows: dict[str, int] = {}

    def append(self, name: str, rows: np.ndarray) -> None:
        """Adds (n, ...) rows; the first call settles dtype and what follows n."""
        if name not in self._files:
            # It has no name: nothing is left of it, however the process ends.
            file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            self._files[name] = self._stack.enter_context(file)
            self._kinds[name], self._rows[name] = (rows.dtype, rows.shape[1:]), 0
        if (rows.dtype, rows.shape[1:]) != self._kinds[name]:
            raise ValueError(f"{name}: {rows.dtype} {rows.shape}, {self._kinds[name]}")
        self._files[name].write(np.ascontiguousarray(rows).data)
        self._rows[name] += len(rows)

    def save(self, path: Path) -> None:
        """Copies all arrays to one file."""
        arrays = {name: self._mapped(name) for name in self._files}
        with new_file(path) as file:
            if path.suffix == ".npz":
                np.savez(file, **arrays)  # a few MB of a mapped array at a time
            else:
                _write_safetensors(file, arrays)

    def _mapped(self, name: str) -> np.ndarray:
        dtype, rest = self._kinds[name]
        shape = (self._rows[name], *rest)
        if not self._rows[name]:  # nothing cannot be mapped
            return np.zeros(shape, dtype)
        self._files[name].flush()
        return np.memmap(self._files[name], dtype, "r", shape=shape)


def _write_safetensors(file: IO[bytes], arrays: dict[str, np.ndarray]) -> None:
    """As https://github.com/huggingface/safetensors#format says.

    The library's own writer would hold all arrays in memory.
    """
    header: dict[str, Any] = {}
    start = 0
    # The widest numbers come first, so that every array is aligned.
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    for name in names:
        stop = start + arrays[name].nbytes
        header[name] = {
            "dtype": _SAFETENSORS_TYPES[arrays[name].dtype.name],
            "shape": arrays[name].shape,
            "data_offsets": [start, stop],
        }
        start = stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for name in names:
        file.write(np.ascontiguousarray(arrays[name]).data)


@contextlib.contextmanager
def array_file(path: Path) -> Iterator[GrowingArrays]:
    """Arrays that become the file ``path`` at the end, and nothing after an exception.

    Rows wait on the file's own disk, so that memory holds only what is appended.
    """
    check_ending(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        arrays = GrowingArrays(path.parent, stack)
        yield arrays
        arrays.save(path)
