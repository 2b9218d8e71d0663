"""Google's checkpoints: bert_model.ckpt.*, bert_config.json, vocab.txt.

They are read without TensorFlow. ``PREFIX.index`` is a LevelDB table (LevelDB's
doc/table_format.md) from variable names to BundleEntryProto messages.
``PREFIX.data-00000-of-00001`` contains the bytes
(tensorflow/core/protobuf/tensor_bundle.proto). Both have CRC-32C checksums.
"""

import logging
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import jax.numpy as jnp
import numpy as np

from bert_jax.data.tokenizer_files import find_tokenizer
from bert_jax.errors import naming
from bert_jax.files import reading
from bert_jax.interop.checkpoint import Checkpoint, class_names
from bert_jax.interop.config_json import read_config
from bert_jax.interop.names import guess_head, to_params
from bert_jax.model.config import BertConfig
from bert_jax.progress import Progress
from bert_jax.protobuf import last_value, read_message

_logger = logging.getLogger(__name__)
# Layers, width and number of tokens of the releases of 2018 that have no later release of
# the same sizes: BASE cased, both multilingual ones and Chinese. They were trained with
# erf. BASE uncased was trained once more for the release of 2020, and LARGE for the release
# of May 2019 (whole-word masking), with the tanh form. Their configs are equal.
_ONLY_OF_2018 = {
    (12, 768, 28996),
    (12, 768, 119547),
    (12, 768, 105879),
    (12, 768, 21128),
}
# The name of all published files. Files of other names were trained by users.
_PUBLISHED = "bert_model.ckpt"
_FOOTER_BYTES = 48
_MAGIC = 0xDB4775248B80FB57
# dtypes of weights and steps by DataType of tensorflow/core/framework/types.proto.
_DTYPES = {
    1: np.dtype("<f4"),
    2: np.dtype("<f8"),
    3: np.dtype("<i4"),
    9: np.dtype("<i8"),
    14: np.dtype(jnp.bfloat16),
    19: np.dtype("<f2"),
}


class _Entry(NamedTuple):
    """Type, place and checksum of the bytes of a variable."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    masked_crc: int


def read_tensorflow(prefix: Path, **changes: Any) -> Checkpoint:
    """Reads the checkpoint ``prefix`` with the config and the vocabulary of its folder.

    Optimizer state and step are ignored. Heads may be missing. The activation of
    bert_config.json is ambiguous; see config_json.config_from_dict.
    """
    folder = prefix.parent
    path = folder / "bert_config.json"
    with naming(path):
        config = read_config(path, **changes)
    if config.activation == "gelu" and "activation" not in changes:
        _warn_of_gelu(prefix, path, config)
    tensors = huggingface_names(read_checkpoint(prefix))
    head = guess_head(tensors)
    with naming(prefix):
        converted = to_params(tensors, config, head=head)
    if set(converted.params) == {"bert"}:
        head = "none"
    return Checkpoint(
        config=config,
        params=converted.params,
        tokenizer=find_tokenizer(folder),
        head=head,
        labels=class_names(converted.params, head),
        source="tensorflow",
        missing=converted.missing,
        unexpected=converted.unexpected,
    )


def _warn_of_gelu(prefix: Path, path: Path, config: BertConfig) -> None:
    """Logs that "gelu" is ambiguous, unless the files are known to be of 2018.

    path: the bert_config.json of the checkpoint ``prefix``.
    """
    sizes = config.num_layers, config.hidden_size, config.vocab_size
    if sizes in _ONLY_OF_2018 and prefix.name == _PUBLISHED:
        return
    _logger.warning(
        f'"gelu" in {path} may mean either form of GELU; erf is used, as for Google\'s '
        "files before February 2019. Later files (whole-word masking, the small models) "
        'need gelu_tanh: load(path, activation="gelu_tanh"), convert --activation '
        "gelu_tanh, or model.activation=gelu_tanh of a run"
    )


def huggingface_names(variables: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights of Google's variables under Hugging Face's names, kernels transposed."""
    tensors = {}
    for name, array in variables.items():
        path, _, leaf = name.rpartition("/")
        if path in variables or name == "global_step":
            continue  # "VARIABLE/adam_m" belongs to the optimizer
        # The classifier has no scope. The name of an embedding table is its scope.
        if name in ("output_weights", "output_bias"):
            path = "classifier"
        elif not path or leaf.endswith("_embeddings"):
            path = name
        path = path.replace("cls/squad", "qa_outputs")
        path = path.replace("/", ".").replace("layer_", "layer.")
        kind = "weight"
        if leaf in ("bias", "beta", "output_bias"):
            kind = "bias"
        if leaf == "kernel":
            array = array.T
        tensors[f"{path}.{kind}"] = array
    return tensors


def read_checkpoint(prefix: Path | str) -> dict[str, np.ndarray]:
    """All numeric variables of the checkpoint ``prefix``, such as dir/bert_model.ckpt.

    The arrays are read-only views of mapped files, so the optimizer slots of a large
    checkpoint need no memory. Variables of other types, such as strings, are left out.
    Raises UserError for a missing, truncated or changed file.
    """
    index = Path(f"{prefix}.index")
    with reading(
        index, "the whole index of a checkpoint, such as bert_model.ckpt.index"
    ):
        table = dict(_read_table(index.read_bytes()))
        header = read_message(table.pop(b"", b""))
        shards = last_value(header, 1)
        if last_value(header, 2) != 0:
            raise ValueError("its numbers are big-endian")
        entries = {name.decode(): _read_entry(value) for name, value in table.items()}
    data: dict[Path, np.ndarray] = {}  # a file stays open as long as its map
    variables = {}
    for name, entry in Progress("reading", entries.items(), unit="tensors"):
        if entry.dtype not in _DTYPES:
            continue
        path = Path(f"{prefix}.data-{entry.shard:05d}-of-{shards:05d}")
        expected = f"the whole variable {name} of numbers; copy the files again"
        with reading(path, expected):
            if path not in data:
                data[path] = np.memmap(path, np.uint8, "r")
            variables[name] = _read_variable(entry, data[path])
    return variables


def _read_variable(entry: _Entry, data: np.ndarray) -> np.ndarray:
    """A variable in the bytes of its shard."""
    raw = data[entry.offset : entry.offset + entry.size]
    if google_crc32c.value(raw) != _unmask(entry.masked_crc):
        raise ValueError("its bytes do not match their checksum")
    return np.frombuffer(raw, _DTYPES[entry.dtype]).reshape(entry.shape)


def _read_table(file: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The (key, value) pairs of a LevelDB table, in the order of the keys."""
    footer = file[-_FOOTER_BYTES:]
    if struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise ValueError("it does not end in the magic number")
    # Offset and size of the meta-index, which is not used, and of the index.
    (_, _, *index), _ = _read_varints(footer, 0, 4)
    for _, value in _read_block(file, *index):
        yield from _read_block(file, *_read_varints(value, 0, 2)[0])


def _read_block(file: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The pairs of one block. A key shares a prefix with the key before it."""
    end = offset + size
    (masked_crc,) = struct.unpack_from("<I", file, end + 1)
    if google_crc32c.value(file[offset : end + 1]) != _unmask(masked_crc):
        raise ValueError("a block does not match its checksum")
    block = file[offset:end]
    (restarts,) = struct.unpack_from("<I", block, size - 4)
    entries_end = size - 4 * (restarts + 1)
    key = b""
    position = 0
    while position < entries_end:
        (shared, unshared, length), position = _read_varints(block, position, 3)
        value_start = position + unshared
        key = key[:shared] + block[position:value_start]
        position = value_start + length
        yield key, block[value_start:position]


def _read_entry(message: bytes) -> _Entry:
    """BundleEntryProto: dtype 1, shape 2, shard 3, offset 4, size 5, crc 6."""
    fields = read_message(message)
    dims = read_message(last_value(fields, 2, b"")).get(2, [])
    shape = tuple(last_value(read_message(dim), 1) for dim in dims)
    dtype, *place = (last_value(fields, number) for number in (1, 3, 4, 5, 6))
    return _Entry(dtype, shape, *place)


def _unmask(masked: int) -> int:
    """The checksum from its rotated form, which TensorFlow and LevelDB store."""
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


def _read_varints(data: bytes, position: int, count: int) -> tuple[list[int], int]:
    """Integers of 7 bits in each byte, low bits first, and the position after them."""
    values = []
    for _ in range(count):
        start = position
        while data[position] >= 128:
            position += 1
        position += 1
        digits = enumerate(data[start:position])
        values.append(sum((byte & 127) << 7 * i for i, byte in digits))
    return values, position
