"""Arrays that grow row by row, to one npz or safetensors file."""

import contextlib
import json
import shutil
import struct
import tempfile
import zipfile
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
        with new_file(path) as file:
            if path.suffix == ".npz":
                self._write_npz(file)
            else:
                self._write_safetensors(file)

    def _write_npz(self, file: IO[bytes]) -> None:
        """Not by np.savez, which wants the arrays in memory, mapped at the least."""
        with zipfile.ZipFile(file, "w") as archive:
            for name, (dtype, rest) in self._kinds.items():
                header = {
                    "descr": np.lib.format.dtype_to_descr(dtype),
                    "fortran_order": False,
                    "shape": (self._rows[name], *rest),
                }
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array_header_1_0(member, header)
                    self._copy(name, member)

    def _write_safetensors(self, file: IO[bytes]) -> None:
        """https://github.com/huggingface/safetensors#format; not by its own writer, for
        the same reason.
        """
        header: dict[str, Any] = {}
        start = 0
        # The widest numbers first, so that every array is aligned.
        names = sorted(self._kinds, key=lambda n: (-self._kinds[n][0].itemsize, n))
        for name in names:
            dtype, rest = self._kinds[name]
            stop = start + self._files[name].tell()
            header[name] = {
                "dtype": _SAFETENSORS_TYPES[dtype.name],
                "shape": [self._rows[name], *rest],
                "data_offsets": [start, stop],
            }
            start = stop
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            self._copy(name, file)

    def _copy(self, name: str, file: IO[bytes]) -> None:
        self._files[name].seek(0)
        shutil.copyfileobj(self._files[name], file, 1 << 20)


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
