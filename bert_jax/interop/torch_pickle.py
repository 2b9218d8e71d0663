"""Reads the tensors that torch.save wrote, without torch and without running code.

A pickle may call any function by its name. The unpickler here knows nine names, all of
which make plain tuples or an OrderedDict, and refuses every other. Both forms of file:
the zip archive (torch 1.6 and later) and the stream of pickles before it
(torch/serialization.py, _save and _legacy_save).
"""

import collections
import io
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_DTYPES = {
    "DoubleStorage": np.dtype("<f8"),
    "FloatStorage": np.dtype("<f4"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype(jnp.bfloat16),
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
    "ByteStorage": np.dtype("u1"),
    "BoolStorage": np.dtype("?"),
}
_HEADER = struct.Struct("<q")  # numbers in a storage, before its bytes


class _StorageType(NamedTuple):
    name: str


class _Storage(NamedTuple):
    """A run of numbers somewhere in the file. count: of numbers."""

    key: str
    dtype: np.dtype
    count: int


class _Tensor(NamedTuple):
    """A view of a storage; offset and stride count numbers, not bytes."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _RefusedError(Exception):
    """The pickle names something that is not on the list."""


class _FormatError(Exception):
    """The bytes are not what the format says; says how."""


# The unpickler may set attributes of what it makes: named tuples have none to set.
def _rebuild_tensor(storage, offset, shape, stride, *_) -> _Tensor:
    return _Tensor(storage, offset, shape, stride)


def _rebuild_parameter(tensor, *_) -> _Tensor:
    return tensor


_ALLOWED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    **{("torch", name): _StorageType(name) for name in _DTYPES},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError as error:
            raise _RefusedError(f"{module}.{name}") from error

    def persistent_load(self, saved_id: Any) -> _Storage:
        # ("storage", type, key, device, count[, None: no view of another storage])
        kind, storage_type, key, _, count, *view = saved_id
        if kind != "storage" or view not in ([], [None]):
            raise _FormatError(f"an unknown kind of storage, {kind!r} {view!r}")
        return _Storage(str(key), _DTYPES[storage_type.name], count)


def read_torch(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a state dict, such as pytorch_model.bin holds.

    Raises UserError for a file that is damaged, that holds anything but tensors, or
    that would run code.
    """
    try:
        if zipfile.is_zipfile(path):
            return _read_zip(path)
        return _read_stream(path)
    except _RefusedError as error:
        raise UserError(
            f"{path} is a pickle that asks for {error}, and may run any code; refused: "
            "ask for the weights as model.safetensors (save_pretrained writes it)"
        ) from error
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror})") from error
    except Exception as error:  # a broken pickle raises anything
        raise UserError(
            f"{path} is not a whole file of tensors as torch.save writes it ({error}); "
            "copy it again, or take model.safetensors"
        ) from error


def _read_zip(path: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        root = next(n for n in names if n.endswith("/data.pkl")).removesuffix(
            "data.pkl"
        )
        order = f"{root}byteorder"
        if order in names and archive.read(order) != b"little":
            raise _FormatError("its numbers are big-endian")
        state = _Unpickler(io.BytesIO(archive.read(f"{root}data.pkl"))).load()
        return _arrays(state, lambda storage: archive.read(f"{root}data/{storage.key}"))


def _read_stream(path: Path) -> dict[str, np.ndarray]:
    with path.open("rb") as file:
        magic, protocol, system = (_Unpickler(file).load() for _ in range(3))
        if magic != _MAGIC or protocol != _PROTOCOL:
            raise _FormatError("it does not start with torch's magic number")
        if system.get("little_endian") is not True:
            raise _FormatError("its numbers are big-endian")
        state = _Unpickler(file).load()
        keys = _Unpickler(file).load()
        sizes = {
            tensor.storage.key: tensor.storage.dtype.itemsize
            for tensor in _tensors(state).values()
        }
        content = {}
        for key in keys:
            (count,) = _HEADER.unpack(file.read(_HEADER.size))
            content[key] = file.read(count * sizes[key])
    return _arrays(state, lambda storage: content[storage.key])


def _tensors(state: Any) -> dict[str, _Tensor]:
    if not isinstance(state, Mapping):
        raise _FormatError(f"it holds a {type(state).__name__}, no state dict")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, _Tensor):
            raise _FormatError(f"{name!r} is no tensor")
    return dict(state)


def _arrays(state: Any, read: Callable[[_Storage], bytes]) -> dict[str, np.ndarray]:
    buffers: dict[str, np.ndarray] = {}
    arrays = {}
    for name, (storage, offset, shape, stride) in _tensors(state).items():
        if storage.key not in buffers:
            content = read(storage)
            if len(content) < storage.count * storage.dtype.itemsize:
                raise _FormatError(f"{name} is cut off")
            buffers[storage.key] = np.frombuffer(content, storage.dtype, storage.count)
        buffer = buffers[storage.key]
        _check_view(name, buffer, offset, shape, stride)
        arrays[name] = np.lib.stride_tricks.as_strided(
            buffer[offset:],
            shape,
            [step * buffer.itemsize for step in stride],
            writeable=False,
        )
    return arrays


def _check_view(
    name: str,
    buffer: np.ndarray,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
) -> None:
    """Raises where a view would reach out of its storage."""
    numbers = (offset, *shape, *stride)
    if not all(type(n) is int and n >= 0 for n in numbers) or len(shape) != len(stride):
        raise _FormatError(f"{name} has the shape {shape} and the stride {stride}")
    last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    if 0 not in shape and last >= len(buffer):
        raise _FormatError(f"{name} reaches beyond its storage")
