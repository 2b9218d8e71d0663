"""The weights of a Hugging Face folder: safetensors, and torch.save's files without torch.

torch.save writes a pickle, which is a program: it may call any function that it names. It
is read with an unpickler that knows eleven names and no other, after a look at its
instructions, of which only those that a state dict needs are allowed. Both of torch's
forms are read: the zip archive (torch 1.6 and later) and the stream of pickles before it
(torch/serialization.py, _save and _legacy_save).
"""

import io
import math
import mmap
import pickle
import pickletools
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from bert_jax.errors import UserError
from bert_jax.files import read_json
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
    read = _read_safetensors if path.name.startswith(SAFETENSORS) else read_torch
    return _read_shards(path, read) if path.name.endswith(INDEX) else read(path)


def _read_shards(
    index: Path, read: Callable[[Path], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    expected = "an index of shards, an object with a weight_map from tensors to files"
    try:
        files = read_json(index, expected)["weight_map"]
        # A name with a path could point out of the folder.
        shards = {Path(shard).name for shard in files.values()}
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index} has no weight_map; expected {expected}") from error
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


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
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
# The instructions of a state dict (pickletools.py documents them). Of those that call or
# name something only GLOBAL and REDUCE are here.
# fmt: off
_INSTRUCTIONS = {
    "PROTO", "STOP", "MARK", "GLOBAL", "REDUCE", "BUILD", "BINPERSID",
    "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT",
    "BINUNICODE", "SHORT_BINUNICODE", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE",
    "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND", "APPENDS", "SETITEM", "SETITEMS",
    "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET",
}
# fmt: on


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


class _OrderedDict(dict):
    """A state dict, whose attributes (versions of torch's modules) are dropped."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        """Takes no attributes."""


class _Function(NamedTuple):
    """A function that a pickle may call but, by BUILD, not change."""

    call: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.call(*arguments)

    def __setstate__(self, state: Any) -> None:
        """Refuses all attributes."""
        raise _RefusedError("a function with other attributes")


_FUNCTIONS = {
    "collections.OrderedDict": _Function(lambda *_: _OrderedDict()),
    "torch._utils._rebuild_tensor_v2": _Function(lambda *given: _Tensor(*given[:4])),
    "torch._utils._rebuild_parameter": _Function(lambda tensor, *_: tensor),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        path = f"{module}.{name}"
        if path in _DTYPES:
            return path  # a text, which cannot be called or changed
        if path not in _FUNCTIONS:
            raise _RefusedError(path)
        return _FUNCTIONS[path]

    def persistent_load(self, description: Any) -> _Storage:
        kind, storage_type, key, _, count, *view = description
        if kind != "storage" or any(part is not None for part in view):
            raise ValueError(f"an unknown kind of storage, {kind!r}")
        return _Storage(key, _DTYPES[storage_type], count)


def _load_pickle(file: BinaryIO | mmap.mmap) -> Any:
    """Reads one pickle from where ``file`` stands, tensors as _Tensor."""
    start = file.tell()
    for opcode, argument, position in pickletools.genops(file):
        if opcode.name not in _INSTRUCTIONS:
            raise _RefusedError(f"the instruction {opcode.name}")
        # The unpickler's memo is an array: a large index would take all memory.
        if opcode.name == "LONG_BINPUT" and argument > position:
            raise ValueError(f"memo entry {argument} at byte {position}")
    end = file.tell()
    file.seek(start)
    return _Unpickler(io.BytesIO(file.read(end - start))).load()


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
            raise ValueError(f"{name!r} is no tensor")
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
        if (
            not all(type(n) is int and n >= 0 for n in (offset, *shape, *stride))
            or (0 not in shape and last >= len(buffer))
            or math.prod(shape) > len(buffer)
        ):
            raise ValueError(
                f"{name}, of shape {shape} and stride {stride}, reaches beyond its storage"
            )
        strides = [step * buffer.itemsize for step in stride]
        arrays[name] = np.lib.stride_tricks.as_strided(
            buffer[offset:], shape, strides, writeable=False
        )
    return arrays
