"""Weights of a Hugging Face folder: safetensors, and torch.save's files without torch.

torch.save writes a pickle, which is a program: it may call any function that it names. It
is not run: the few instructions that a state dict needs are followed here, with eleven
names and no other, and none of what it makes is hashed, compared or printed. Both of
torch's forms are read: the zip archive (torch 1.6 and later) and the stream of pickles
before it (torch/serialization.py, _save and _legacy_save).
"""

import io
import math
import mmap
import pickletools
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bert_jax.errors import UserError
from bert_jax.files import is_name, open_zip, read_json
from bert_jax.interop.find import INDEX, SAFETENSORS, TORCH, find_weights
from bert_jax.progress import Progress


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """All tensors by the names they are stored under, in the types they are stored in.

    Takes model.safetensors or pytorch_model.bin, whole or in shards, safetensors first.
    Raises UserError where there is none, and for files that are not whole.
    """
    path = find_weights(folder)
    if path is None:
        raise UserError(
            f"{folder} holds no weights; expected {SAFETENSORS}, {SAFETENSORS}{INDEX} "
            f"with its shards, or {TORCH}"
        )
    read = read_safetensors if path.name.startswith(SAFETENSORS) else read_torch
    return _read_shards(path, read) if path.name.endswith(INDEX) else read(path)


def write_safetensors(
    path: Path,
    tensors: Mapping[str, np.ndarray],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a safetensors file with the permissions that the umask gives a new file."""
    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path, metadata)  # makes a file that only its owner can read
    path.chmod(mode)


def _read_shards(
    index: Path, read: Callable[[Path], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    expected = "an index of shards, an object with a weight_map from tensors to files"
    try:
        files = read_json(index, expected)["weight_map"]
        shards = set(files.values())
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index} has no weight_map; expected {expected}") from error
    # A name with a path could point out of the folder.
    if odd := [s for s in shards if not is_name(s)]:
        raise UserError(
            f"{index} names {odd[0]!r:.100}, no file of its folder; expected {expected}"
        )
    tensors: dict[str, np.ndarray] = {}
    for shard in Progress("reading", sorted(shards), unit="files"):
        path = index.with_name(shard)
        if not path.is_file():
            raise UserError(
                f"{path} does not exist, but {index.name} names it; copy it there"
            )
        tensors |= read(path)
    absent = sorted(set(files) - set(tensors))
    if absent:
        raise UserError(
            f"{index} promises {absent[0]} in {files[absent[0]]}, which does not hold it; "
            "copy the whole folder again"
        )
    return tensors


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file. Raises UserError for one that is not whole."""
    try:
        return load_file(path)  # bfloat16 too: jax teaches it to numpy
    except (SafetensorError, TypeError, AttributeError, KeyError, OSError) as error:
        raise UserError(
            f"{path} is not a whole safetensors file of plain numbers ({error}); copy it "
            "again"
        ) from error


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


class _Name(NamedTuple):
    """What a pickle names: a function, or the type of a storage."""

    path: str


def _ordered_dict(*_: Any) -> dict[Any, Any]:
    return {}


def _rebuild_tensor(
    storage: Any, offset: Any, shape: Any, stride: Any, *_: Any
) -> _Tensor:
    numbers = (offset, *shape, *stride)
    if not isinstance(storage, _Storage) or not all(
        type(n) is int and 0 <= n < 1 << 62 for n in numbers
    ):
        raise ValueError("a tensor of no storage or of odd sizes")
    if not len(shape) == len(stride) <= _MOST_DIMENSIONS:
        raise ValueError(f"a tensor of {len(shape)} dimensions")
    return _Tensor(storage, offset, shape, stride)


def _rebuild_parameter(tensor: Any, *_: Any) -> _Tensor:
    if not isinstance(tensor, _Tensor):
        raise ValueError("a parameter of no tensor")
    return tensor


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _ordered_dict,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
}
_MOST_DIMENSIONS = 8


def _storage(description: Any) -> _Storage:
    kind, storage_type, key, _, count, *view = description
    if kind != "storage" or any(part is not None for part in view):
        raise ValueError("an unknown kind of storage")
    if not (isinstance(storage_type, _Name) and storage_type.path in _DTYPES):
        raise ValueError("a storage of no known type")
    if not isinstance(key, str) or type(count) is not int or count < 0:
        raise ValueError("a storage without a key or a size")
    return _Storage(key, _DTYPES[storage_type.path], count)


def _load_pickle(file: BinaryIO | mmap.mmap) -> Any:
    """Reads one pickle from where ``file`` stands, tensors as _Tensor.

    pickletools.py documents the instructions. It takes time and memory as the file is long.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def from_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    def top(kind: type) -> Any:
        if not isinstance(stack[-1], kind):
            raise ValueError(
                f"a {type(stack[-1]).__name__} where a {kind.__name__} is due"
            )
        return stack[-1]

    for opcode, argument, _ in pickletools.genops(file):
        match opcode.name:
            case "PROTO" | "STOP":
                pass
            case "MARK":
                marks.append(len(stack))
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True}.get(opcode.name, False))
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                stack.append(argument)
            case "BINUNICODE" | "SHORT_BINUNICODE":
                stack.append(argument)
            case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
                stack.append({"DICT": {}, "LIST": [], "TUPLE": ()}[opcode.name[6:]])
            case "TUPLE":
                stack.append(tuple(from_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                marks.append(len(stack) - int(opcode.name[-1]))
                stack.append(tuple(from_mark()))
            case "APPEND" | "APPENDS":
                items = from_mark() if opcode.name == "APPENDS" else [stack.pop()]
                top(list).extend(items)
            case "SETITEM" | "SETITEMS":
                if opcode.name == "SETITEM":
                    marks.append(len(stack) - 2)
                items = from_mark()
                if not all(isinstance(key, str | int) for key in items[::2]):
                    raise ValueError("a key that is no text")
                top(dict).update(zip(items[::2], items[1::2], strict=True))
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL":
                path = argument.replace(" ", ".")
                if path not in _DTYPES and path not in _FUNCTIONS:
                    raise _RefusedError(path)
                stack.append(_Name(path))
            case "REDUCE":
                arguments = stack.pop()
                name = top(_Name).path
                if name not in _FUNCTIONS:
                    raise _RefusedError(f"a call of {name}")
                stack[-1] = _FUNCTIONS[name](*arguments)
            case "BUILD":  # attributes of a state dict, versions of torch's modules
                stack.pop()
                if isinstance(stack[-1], _Name):
                    raise _RefusedError("a function with other attributes")
                top(dict)
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case name:
                raise _RefusedError(f"the instruction {name}")
    return stack.pop()


def read_torch(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a state dict, such as pytorch_model.bin holds, read-only.

    Raises UserError for a file that is damaged, that holds anything but tensors, or
    that would run code.
    """
    try:
        if zipfile.is_zipfile(path):
            return _read_zip(path)
        return _read_stream(path)
    except UserError:
        raise
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
    # torch.save packs without compressing.
    with open_zip(path, "a file as torch.save writes it", ratio=1) as archive:
        names = archive.namelist()
        pickled = next(name for name in names if name.endswith("/data.pkl"))
        root = pickled.removesuffix("data.pkl")
        order = f"{root}byteorder"
        if order in names and archive.read(order) != b"little":
            raise ValueError("its numbers are big-endian")
        tensors, storages = _tensors(_load_pickle(io.BytesIO(archive.read(pickled))))
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
        raise ValueError("it does not start with torch's magic number")
    if system["little_endian"] is not True:
        raise ValueError("its numbers are big-endian")
    tensors, storages = _tensors(_load_pickle(content))
    buffers = {}
    for key in _load_pickle(content):
        if not isinstance(key, str):
            raise ValueError("a storage's key is no text")
        # Before the bytes of a storage stands how many numbers it has.
        count, dtype = int.from_bytes(content.read(8), "little"), storages[key].dtype
        buffers[key] = np.frombuffer(content, dtype, count, content.tell())
        content.seek(count * dtype.itemsize, io.SEEK_CUR)
    return _arrays(tensors, buffers)


def _tensors(state: Any) -> tuple[dict[str, _Tensor], dict[str, _Storage]]:
    """The tensors of a state dict by name, and their storages by key."""
    if not isinstance(state, dict):
        raise ValueError(f"it holds a {type(state).__name__}, no state dict")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, _Tensor):
            shown = repr(name)[:100] if isinstance(name, str) else "what is no name"
            raise ValueError(f"{shown} is no tensor")
    return state, {t.storage.key: t.storage for t in state.values()}


def _arrays(
    tensors: dict[str, _Tensor], buffers: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The views, none of which reaches out of its storage or repeats its numbers."""
    arrays = {}
    for name, (storage, offset, shape, stride) in tensors.items():
        buffer = buffers[storage.key]
        last = offset + sum(
            (n - 1) * step for n, step in zip(shape, stride, strict=True)
        )
        if (0 not in shape and last >= len(buffer)) or math.prod(shape) > len(buffer):
            raise ValueError(
                f"{name!r:.100}, of shape {shape} and stride {stride}, reaches beyond its "
                "storage"
            )
        strides = [step * buffer.itemsize for step in stride]
        arrays[name] = np.lib.stride_tricks.as_strided(
            buffer[offset:], shape, strides, writeable=False
        )
    return arrays
