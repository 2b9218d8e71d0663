"""Reads the tensors that torch.save wrote, without torch and without running code.

A pickle is a program that may call any function by its name, so no unpickler is used:
the few instructions and the eleven names that a state dict needs are acted out here, and
everything else is refused. Both forms of file: the zip archive (torch 1.6 and later) and
the stream of pickles before it (torch/serialization.py, _save and _legacy_save).
"""

import io
import math
import mmap
import pickletools
import struct
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

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


class _Name(NamedTuple):
    """A function or a class that a pickle names, such as "torch.FloatStorage"."""

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
    """The pickle wants something that is not on the list."""


class _FormatError(Exception):
    """The bytes are not what the format says; says how."""


_MARK = object()  # on the stack: where the items of a tuple or a list begin
_CALLED = {
    "collections.OrderedDict": lambda *_: {},
    "torch._utils._rebuild_tensor_v2": lambda *given: _Tensor(*given[:4]),
    "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
}
_NAMED = {*_CALLED, *(f"torch.{name}" for name in _DTYPES)}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NUMBERS_AND_TEXTS = (
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "BINFLOAT",
    "BINUNICODE",
    "SHORT_BINUNICODE",
)


def _load_pickle(file: BinaryIO | mmap.mmap) -> Any:
    """Acts one pickle out, from the place where ``file`` is; tensors as _Tensor."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for opcode, argument, _ in pickletools.genops(file):
        _act(opcode.name, argument, stack, memo)
    (value,) = stack
    return value


def _act(name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    """One instruction of the pickle machine (pickletools.py documents them)."""
    if name in _NUMBERS_AND_TEXTS:
        stack.append(argument)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name in _EMPTY:
        stack.append(_EMPTY[name]())
    elif name == "MARK":
        stack.append(_MARK)
    elif name in _TUPLES:
        stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
    elif name == "TUPLE":
        stack.append(tuple(_pop_marked(stack)))
    elif name in ("APPEND", "APPENDS"):
        items = [stack.pop()] if name == "APPEND" else _pop_marked(stack)
        stack[-1].extend(items)
    elif name in ("SETITEM", "SETITEMS"):
        items = (
            [stack.pop(-2), stack.pop()] if name == "SETITEM" else _pop_marked(stack)
        )
        stack[-1].update(zip(items[::2], items[1::2], strict=True))
    elif name in ("BINPUT", "LONG_BINPUT"):
        memo[argument] = stack[-1]
    elif name in ("BINGET", "LONG_BINGET"):
        stack.append(memo[argument])
    elif name == "GLOBAL":
        path = argument.replace(" ", ".")
        if path not in _NAMED:
            raise _RefusedError(path)
        stack.append(_Name(path))
    elif name == "BINPERSID":
        stack.append(_storage(*stack.pop()))
    elif name == "REDUCE":
        arguments, called = stack.pop(), stack.pop()
        stack.append(_CALLED[called.name](*arguments))
    elif name == "BUILD":
        stack.pop()  # attributes of an ordered dict: the versions of torch's modules
    elif name not in ("PROTO", "STOP"):
        raise _RefusedError(f"the instruction {name}")


def _pop_marked(stack: list[Any]) -> list[Any]:
    items = []
    while (item := stack.pop()) is not _MARK:
        items.append(item)
    return items[::-1]


def _storage(
    kind: str, storage_type: _Name, key: str, device: str, count: int, view: None = None
) -> _Storage:
    """The storage of this description; it lay on ``device``."""
    if kind != "storage" or view is not None:
        raise _FormatError(f"an unknown kind of storage, {kind!r} {view!r}")
    return _Storage(key, _DTYPES[storage_type.name.removeprefix("torch.")], count)


def read_torch(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a state dict, such as pytorch_model.bin holds, read-only.

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
        tensors = _tensors(_load_pickle(io.BytesIO(archive.read(f"{root}data.pkl"))))
        storages = {t.storage.key: t.storage for t in tensors.values()}
        buffers = {
            key: np.frombuffer(
                archive.read(f"{root}data/{key}"), storage.dtype, storage.count
            )
            for key, storage in storages.items()
        }
    return _arrays(tensors, buffers)


def _read_stream(path: Path) -> dict[str, np.ndarray]:
    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    magic, protocol, system = (_load_pickle(content) for _ in range(3))
    if magic != _MAGIC or protocol != _PROTOCOL:
        raise _FormatError("it does not start with torch's magic number")
    if system["little_endian"] is not True:
        raise _FormatError("its numbers are big-endian")
    tensors = _tensors(_load_pickle(content))
    storages = {t.storage.key: t.storage for t in tensors.values()}
    buffers = {}
    for key in _load_pickle(content):
        (count,) = _HEADER.unpack(content.read(_HEADER.size))
        dtype = storages[key].dtype
        buffers[key] = np.frombuffer(content, dtype, count, content.tell())
        content.seek(count * dtype.itemsize, io.SEEK_CUR)
    return _arrays(tensors, buffers)


def _tensors(state: Any) -> dict[str, _Tensor]:
    if not isinstance(state, dict):
        raise _FormatError(f"it holds a {type(state).__name__}, no state dict")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, _Tensor):
            raise _FormatError(f"{name!r} is no tensor")
    return state


def _arrays(
    tensors: dict[str, _Tensor], buffers: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    arrays = {}
    for name, (storage, offset, shape, stride) in tensors.items():
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
    """Raises where a view would reach out of its storage, or repeat its numbers."""
    numbers = (offset, *shape, *stride)
    if not all(type(n) is int and n >= 0 for n in numbers) or len(shape) != len(stride):
        raise _FormatError(f"{name} has the shape {shape} and the stride {stride}")
    last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    beyond = 0 not in shape and last >= len(buffer)
    if beyond or offset > len(buffer) or math.prod(shape) > len(buffer):
        raise _FormatError(f"{name} reaches beyond its storage")
