"""Texts side by side in rows of a few lengths, for a model that is only applied."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from bert_jax.data.bin_packing import best_fit, round_up
from bert_jax.inference.batching import batch_rows
from bert_jax.parallel.mesh import batch_divisor
from bert_jax.tasks.packing import filled_rows
from bert_jax.tasks.row_shapes import Shape
from bert_jax.tasks.task import Features

# A text goes into a row of the first of these that holds it: the shorter the row, the
# less attention computes between texts that do not see each other. One of 16 where it
# holds all there is.
LENGTHS = (32, 64, 96, 128, 192, 256, 384, 512)
_ONE = 16
SLOT = 4  # tokens of a row for each text that it may hold; the shortest has three


class PackedTexts(NamedTuple):
    """R rows of L tokens. texts: those of each row, in order, by their numbers.

    arrays: what filled_rows() makes of them.
    """

    texts: list[list[int]]
    arrays: dict[str, np.ndarray]


def packed_texts(
    features: Features, batch_size: int, pad_id: int, most: int, mesh: Mesh
) -> Iterator[PackedTexts]:
    """All sequences of ``features``, none longer than ``most``, in batches.

    batch_size: rows of 32 tokens, or fewer longer ones with about as many. What is left
    over of a length is filled up to a power of two: few shapes are ever compiled.
    """
    lengths = np.array([len(ids) for ids in features.input_ids])
    for length, rows in rows_by_length(lengths, most):
        full = max(batch_size * LENGTHS[0] // length, 1)
        full = round_up(full, batch_divisor(mesh))
        for first in range(0, len(rows), full):
            part = rows[first : first + full]
            shape = Shape(batch_rows(len(part), full, mesh), length, _slots(length))
            yield PackedTexts(part, filled_rows(features, part, shape, pad_id))


def rows_by_length(
    lengths: np.ndarray, most: int
) -> Iterator[tuple[int, list[list[int]]]]:
    """Row lengths, the longest first, and the texts of each row."""
    classes = [*(n for n in LENGTHS if n < most), most]
    if lengths.sum() <= _ONE <= most:
        classes = [_ONE]
    left = np.arange(len(lengths))
    for shorter, length in zip([0, *classes][-2::-1], classes[::-1], strict=True):
        rows = best_fit(lengths[left], length, _slots(length))
        # Shorter texts fill the rows up that are needed for longer ones, and no others.
        rows = [row for row in rows if lengths[left[row[0]]] > shorter]
        if rows:
            yield length, [left[row].tolist() for row in rows]
            left = np.delete(left, np.concatenate(rows))


def _slots(length: int) -> int:
    return max(length // SLOT, 1)
