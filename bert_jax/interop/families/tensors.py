"""Tensors of a file: names as in a model with a head, and the parts of fused tensors."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.interop.families.family import Family

Table = Mapping[str, tuple[str, ...]]  # see Family.split


def split_tensors(
    tensors: Mapping[str, np.ndarray], table: Table
) -> dict[str, np.ndarray]:
    """Tensors of a file, with parts in place of the whole tensors of ``table``."""
    result = {}
    for name, tensor in tensors.items():
        stem, _, leaf = name.rpartition(".")
        parts = {name: tensor}
        for whole, endings in table.items():
            if stem.endswith(f".{whole}"):
                start = stem.removesuffix(whole)
                names = [f"{start}{ending}.{leaf}" for ending in endings]
                # Parts of a wrong size raise an error later, which names them.
                arrays = np.array_split(np.atleast_1d(tensor), len(names))
                parts = dict(zip(names, arrays, strict=True))
        result |= parts
    return result


def join_tensors(
    tensors: Mapping[str, np.ndarray], table: Table
) -> dict[str, np.ndarray]:
    """The inverse of :func:`split_tensors`."""
    result = dict(tensors)
    for name in tensors:
        stem, _, leaf = name.rpartition(".")
        for whole, endings in table.items():
            if stem.endswith(f".{endings[0]}"):
                start = stem.removesuffix(endings[0])
                names = [f"{start}{ending}.{leaf}" for ending in endings]
                arrays = [result.pop(part) for part in names]
                result[f"{start}{whole}.{leaf}"] = np.concatenate(arrays)
    return result


def with_prefix(tensors: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Tensors under the names that they have in a model with a head."""
    named = {}
    for name, tensor in tensors.items():
        if family.old_prefix and name.startswith(family.old_prefix):
            name = f"{family.prefix}{name.removeprefix(family.old_prefix)}"
        named[name] = tensor
    word = family.name_of("bert/embeddings/word/embedding")
    if word.removeprefix(family.prefix) not in named:
        return named
    names = [*family.names.values(), family.layer]
    for others in family.head_names.values():
        names += others.values()
    inside = set()
    for start in names:
        if start.startswith(family.prefix):
            inside.add(start.removeprefix(family.prefix).partition(".")[0])
    result = {}
    for name, tensor in named.items():
        if name.partition(".")[0] in inside:
            name = f"{family.prefix}{name}"
        result[name] = tensor
    return result
