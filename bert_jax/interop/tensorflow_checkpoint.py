"""Reads a TensorFlow V2 checkpoint without TensorFlow.

``PREFIX.index`` is a LevelDB table (LevelDB's doc/table_format.md) from variable names
to BundleEntryProto messages, ``PREFIX.data-00000-of-00001`` holds the bytes
(tensorflow/core/protobuf/tensor_bundle.proto). Both carry CRC-32C checksums.
"""

import dataclasses
import math
import struct
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop.crc32c import crc32c, unmask
from bert_jax.interop.protobuf import FormatError, last, read_message, read_varint

_FOOTER_BYTES = 48
_MAGIC = 0xDB4775248B80FB57
_BLOCK_TRAILER_BYTES = 5  # compression type, masked checksum
_STRING = 7
# DataType of tensorflow/core/framework/types.proto -> numpy.
_DTYPES = {
    1: np.dtype("<f4"),
    2: np.dtype("<f8"),
    3: np.dtype("<i4"),
    4: np.dtype("u1"),
    5: np.dtype("<i2"),
    6: np.dtype("i1"),
    9: np.dtype("<i8"),
    10: np.dtype("?"),
    14: np.dtype(jnp.bfloat16),
    19: np.dtype("<f2"),
}


@dataclasses.dataclass(frozen=True)
class _Entry:
    """One variable: where its bytes lie and how to read them."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    masked_crc: int
    sliced: bool


def read_checkpoint(prefix: Path | str) -> dict[str, np.ndarray]:
    """All numeric variables of the checkpoint ``prefix``, such as dir/bert_model.ckpt.

    The arrays are read-only views of the mapped files, so that the optimizer slots of a
    big checkpoint cost no memory. String variables are left out. Raises UserError for
    a missing, truncated or altered file, and for partitioned variables.
    """
    index_path = Path(f"{prefix}.index")
    try:
        table = dict(_read_table(_read_index(index_path)))
        header = read_message(table.pop(b"", b""))
        shards = last(header, 1, 0)
        if last(header, 2, 0) != 0:
            raise FormatError("its data is big-endian")
        entries = {name.decode(): _read_entry(value) for name, value in table.items()}
    except (FormatError, IndexError, ValueError, struct.error) as error:
        raise UserError(
            f"{index_path} is not the whole index of a TensorFlow checkpoint ({error}); "
            "copy it again"
        ) from error

    data = {
        shard: _map(Path(f"{prefix}.data-{shard:05d}-of-{shards:05d}"))
        for shard in sorted({entry.shard for entry in entries.values()})
    }
    return {
        name: _read_variable(name, entry, *data[entry.shard])
        for name, entry in entries.items()
        if entry.dtype != _STRING
    }


def _read_index(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"cannot read {path} ({error.strerror}); expected the prefix of a TensorFlow "
            "checkpoint, such as dir/bert_model.ckpt"
        ) from error


def _map(path: Path) -> tuple[Path, np.ndarray]:
    try:
        if path.stat().st_size == 0:  # which cannot be mapped
            return path, np.zeros(0, np.uint8)
        return path, np.memmap(path, np.uint8, "r")
    except OSError as error:
        raise UserError(
            f"cannot read {path} ({error.strerror}); it belongs beside its .index file"
        ) from error


def _read_variable(
    name: str, entry: _Entry, path: Path, data: np.ndarray
) -> np.ndarray:
    if entry.sliced or entry.dtype not in _DTYPES:
        kind = "is partitioned" if entry.sliced else f"has data type {entry.dtype}"
        raise UserError(
            f"{path}: variable {name} {kind}; expected whole variables of numbers, save "
            "the checkpoint without partitioning"
        )
    dtype = _DTYPES[entry.dtype]
    if entry.size != math.prod(entry.shape) * dtype.itemsize:
        raise UserError(
            f"{path}: variable {name} has {entry.size} bytes, not those of a {dtype} "
            f"array of shape {entry.shape}; copy the .index file again"
        )
    stop = entry.offset + entry.size
    if stop > len(data):
        raise UserError(
            f"{path} is truncated: {len(data)} bytes, but {name} ends at {stop}; copy it "
            "again"
        )
    raw = data[entry.offset : stop]
    if crc32c(raw) != unmask(entry.masked_crc):
        raise UserError(
            f"{path}: the bytes of {name} do not match their checksum; copy it again"
        )
    return np.frombuffer(raw, dtype).reshape(entry.shape)


def _read_table(file: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The (key, value) pairs of a LevelDB table, in the order of the keys."""
    if len(file) < _FOOTER_BYTES:
        raise FormatError(f"{len(file)} bytes are too few")
    footer = file[-_FOOTER_BYTES:]
    if struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise FormatError("it does not end in the magic number")
    _, position = _read_handle(footer, 0)  # the meta-index: unused in checkpoints
    handle, _ = _read_handle(footer, position)
    for _, value in _read_block(file, *handle):
        yield from _read_block(file, *_read_handle(value, 0)[0])


def _read_handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    """(offset, size) of a block, and the position after them."""
    offset, position = read_varint(data, position)
    size, position = read_varint(data, position)
    return (offset, size), position


def _read_block(file: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The pairs of one block; a key shares a prefix with the key before it."""
    end = offset + size
    if end + _BLOCK_TRAILER_BYTES > len(file):
        raise FormatError("a block ends beyond the file")
    compression, masked_crc = struct.unpack_from("<BI", file, end)
    if crc32c(file[offset : end + 1]) != unmask(masked_crc):
        raise FormatError("a block does not match its checksum")
    if compression != 0:
        raise FormatError("it is compressed, which TensorFlow does not do")
    block = file[offset:end]
    (restarts,) = struct.unpack_from("<I", block, size - 4)
    entries_end = size - 4 * (restarts + 1)
    key = b""
    position = 0
    while position < entries_end:
        shared, position = read_varint(block, position)
        unshared, position = read_varint(block, position)
        length, position = read_varint(block, position)
        value_start = position + unshared
        key = key[:shared] + block[position:value_start]
        position = value_start + length
        yield key, block[value_start:position]


def _read_entry(message: bytes) -> _Entry:
    """BundleEntryProto: dtype 1, shape 2, shard 3, offset 4, size 5, crc 6, slices 7."""
    fields = read_message(message)
    dims = read_message(last(fields, 2, b"")).get(2, [])
    return _Entry(
        dtype=last(fields, 1, 0),
        shape=tuple(last(read_message(dim), 1, 0) for dim in dims),
        shard=last(fields, 3, 0),
        offset=last(fields, 4, 0),
        size=last(fields, 5, 0),
        masked_crc=last(fields, 6, 0),
        sliced=7 in fields,
    )
