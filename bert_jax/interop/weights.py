"""Weights of a Hugging Face folder: safetensors, and torch.save's files without torch.

torch.save writes a pickle, which can call any function by its name. The unpickler here
allows eleven names and refuses every other name before it is imported. It reads both
formats of torch: the zip archive (torch 1.6 and later) and the older stream of pickles
(torch/serialization.py, _save and _legacy_save).
"""

import collections
import functools
import io
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, TypedDict

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bert_jax.errors import UserError, naming
from bert_jax.files import read_json, reading
from bert_jax.interop.find import INDEX, SAFETENSORS, TORCH, find_weights
from bert_jax.progress import Progress

Tensors = dict[str, np.ndarray]


class _Index(TypedDict):
    """The form of an index of shards."""

    weight_map: dict[str, str]


def read_weights(folder: Path) -> Tensors:
    """Reads all tensors of a folder, in the dtypes of its files.

    Reads model.safetensors or else pytorch_model.bin, whole or in shards. Raises UserError
    for a folder without weights and for a damaged file.
    """
    path = find_weights(folder)
    if path is None:
        raise UserError(f"{folder} has no weights; expected {SAFETENSORS} or {TORCH}")
    read = read_torch
    if path.name.startswith(SAFETENSORS):
        read = read_safetensors
    if path.name.endswith(INDEX):
        return _read_shards(path, read)
    return read(path)


def write_safetensors(
    path: Path,
    tensors: Mapping[str, np.ndarray],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a safetensors file with the permissions of a new file."""
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:
        raise UserError(
            f"{path} could not be written ({error}); free some space and try again"
        ) from error
    path.chmod(mode)  # the library makes a file that only its owner can read


def _read_shards(index: Path, read: Callable[[Path], Tensors]) -> Tensors:
    expected = "an index of shards with a weight_map from tensors to files"
    with reading(index, expected):
        files = read_json(index, expected, _Index)["weight_map"]
        # with_name raises ValueError for a path outside the folder.
        shards = sorted({index.with_name(name) for name in files.values()})
    tensors: Tensors = {}
    for path in Progress("reading", shards, unit="files"):
        tensors |= read(path)
    return tensors


def read_safetensors(path: Path) -> Tensors:
    """Reads the tensors of a file. Raises UserError for a damaged file."""
    with reading(path, "a whole safetensors file of plain numbers; copy it again"):
        return load_file(path)  # bfloat16 works because JAX registers it with NumPy


_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_DTYPES = {
    "torch.DoubleStorage": np.dtype("<f8"),
    "torch.FloatStorage": np.dtype("<f4"),
    "torch.HalfStorage": np.dtype("<f2"),
    "torch.BFloat16Storage": np.dtype(jnp.bfloat16),
    "torch.LongStorage": np.dtype("<i8"),
    "torch.IntStorage": np.dtype("<i4"),
    "torch.ByteStorage": np.dtype("u1"),
    "torch.BoolStorage": np.dtype("?"),
}


# The base class is the unpickler in Python, because in the C version a damaged memo index
# allocates up to 64 GiB.
class _Unpickler(pickle._Unpickler):
    """Unpickles a state dict. A pickle can call only the objects that find_class returns.

    read: function of key, dtype and length that returns the numbers of a storage.
    """

    def __init__(self, file: IO[bytes], read: Callable[..., np.ndarray]):
        super().__init__(file)
        self._read = read

    def find_class(self, module: str, name: str) -> Any:
        path = f"{module}.{name}"
        # A pickle can only change these objects, which are its own or immutable.
        allowed = {
            "collections.OrderedDict": collections.OrderedDict,
            "torch._utils._rebuild_tensor_v2": lambda *args: _view(*args[:4]),
            "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
        }
        if path in _DTYPES:
            return path
        if path not in allowed:
            raise UserError(f"it calls {path}, which may run any code; use safetensors")
        return allowed[path]

    def persistent_load(self, pid: Any) -> np.ndarray:
        kind, storage_type, key, _, length, *view = pid
        if kind != "storage" or view not in ([], [None]):
            raise ValueError("an unknown kind of storage")
        return self._read(key, _DTYPES[storage_type], length)

    def state_dict(self) -> Tensors:
        """The tensors by name."""
        state = dict(self.load())
        for name, value in state.items():
            if not isinstance(name, str) or not isinstance(value, np.ndarray):
                raise ValueError(f"{name!r:.100} is not a tensor")
        return state


def _view(
    storage: np.ndarray, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]
) -> np.ndarray:
    """A tensor that shares the numbers of its storage."""
    size = storage.itemsize
    strides = [step * size for step in stride]
    # NumPy raises ValueError for a view beyond its storage.
    return np.ndarray(shape, storage.dtype, storage, offset * size, strides)


def read_torch(path: Path) -> Tensors:
    """Reads the tensors of a state dict, such as a pytorch_model.bin.

    Raises UserError for a damaged file, for objects other than tensors, and for a pickle
    that would run code.
    """
    expected = "a whole file of tensors as torch.save writes it; copy it again"
    with reading(path, expected), naming(path):
        if zipfile.is_zipfile(path):
            return _read_zip(path)
        return _read_stream(path)


def _read_zip(path: Path) -> Tensors:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        pickled = next(name for name in names if name.endswith("/data.pkl"))
        root = pickled.removesuffix("data.pkl")
        order = f"{root}byteorder"
        if order in names and archive.read(order) != b"little":
            raise ValueError("its numbers are big-endian")

        @functools.cache
        def read(key: str, dtype: np.dtype, length: int) -> np.ndarray:
            return np.frombuffer(archive.read(f"{root}data/{key}"), dtype)

        return _Unpickler(io.BytesIO(archive.read(pickled)), read).state_dict()


def _read_stream(path: Path) -> Tensors:
    storages: dict[str, np.ndarray] = {}

    def read(key: str, dtype: np.dtype, length: int) -> np.ndarray:
        return storages.setdefault(key, np.zeros(length, dtype))

    with path.open("rb") as file:
        start = _Unpickler(file, read).load(), _Unpickler(file, read).load()
        if start != (_MAGIC, _PROTOCOL):
            raise ValueError("it does not start with torch's magic number")
        if not _Unpickler(file, read).load()["little_endian"]:
            raise ValueError("its numbers are big-endian")
        state = _Unpickler(file, read).state_dict()
        # The storages follow. Each is a count and its numbers.
        for key in _Unpickler(file, read).load():
            content = storages[key].view(np.uint8)
            count = int.from_bytes(file.read(8), "little")
            if count != len(storages[key]) or file.readinto(content) != len(content):
                raise ValueError(f"the numbers of storage {key} are cut")
    return state
