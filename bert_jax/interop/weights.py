"""The files that hold the weights of a Hugging Face folder, read without torch."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from bert_jax.errors import UserError
from bert_jax.interop.torch_pickle import read_torch

_SAFETENSORS = "model.safetensors"
_TORCH = "pytorch_model.bin"
_INDEX = ".index.json"


def has_weights(folder: Path) -> bool:
    """Whether :func:`read_weights` finds files to read."""
    names = (_SAFETENSORS, _TORCH)
    return any((folder / f"{n}{end}").is_file() for n in names for end in ("", _INDEX))


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """All tensors by the names they are stored under, float32 where they are floats.

    Takes model.safetensors or pytorch_model.bin, whole or in shards, safetensors first.
    Raises UserError where there is none, and for files that are not whole.
    """
    for name, read in ((_SAFETENSORS, _read_safetensors), (_TORCH, read_torch)):
        if (folder / name).is_file():
            return _widened(read(folder / name))
        index = folder / f"{name}{_INDEX}"
        if index.is_file():
            return _read_shards(index, read)
    raise UserError(
        f"{folder} holds no weights; expected {_SAFETENSORS}, {_SAFETENSORS}{_INDEX} with "
        f"its shards, or {_TORCH}"
    )


def _read_shards(
    index: Path, read: Callable[[Path], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    try:
        files = json.loads(index.read_bytes())["weight_map"]
        # A name with a path could point out of the folder.
        shards = {str(Path(shard).name) for shard in files.values()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{index} is not an index of shards ({error!r}); expected a JSON object with "
            "a weight_map from tensors to files"
        ) from error
    tensors: dict[str, np.ndarray] = {}
    for shard in sorted(shards):
        if not index.with_name(shard).is_file():
            raise UserError(
                f"{index.with_name(shard)} does not exist, but {index.name} names it; "
                "copy it there"
            )
        tensors |= _widened(read(index.with_name(shard)))
    absent = sorted(set(files) - set(tensors))
    if absent:
        raise UserError(
            f"{index} promises {absent[0]} in {files[absent[0]]}, which does not hold it; "
            "copy the whole folder again"
        )
    return tensors


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    try:
        tensors = {}
        with safe_open(path, framework="np") as file, safe_open(path, "flax") as wide:
            for name in file.keys():  # noqa: SIM118
                dtype = file.get_slice(name).get_dtype()
                # numpy alone knows no bfloat16.
                reader = wide if dtype == "BF16" else file
                tensors[name] = np.asarray(reader.get_tensor(name))
    except (SafetensorError, TypeError, AttributeError, KeyError, OSError) as error:
        raise UserError(
            f"{path} is not a whole safetensors file of plain numbers ({error}); copy it "
            "again"
        ) from error
    return tensors


def _widened(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """float16 and bfloat16 as float32, which holds their values exactly."""
    return {
        name: array.astype(np.float32)
        if array.dtype.itemsize == 2 and array.dtype.kind in "fV"
        else array
        for name, array in tensors.items()
    }
