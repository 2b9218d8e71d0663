"""Texts side by side in rows of a few lengths, for a model that is only applied."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from bert_jax.data.row_packing import best_fit, round_up
from bert_jax.finetuning.batching import batch_rows
from bert_jax.parallel.mesh import batch_divisor
from bert_jax.tasks.task import Features

# A text goes into a row of the first of these that holds it: the shorter the row, the
# less attention computes between texts that do not see each other. One of 16 where it
# holds all there is.
LENGTHS = (32, 64, 96, 128, 192, 256, 384, 512)
_ONE = 16
SLOT = 4  # pieces of a row for each text that it may hold; the shortest has three


class PackedTexts(NamedTuple):
    """R rows of L pieces. texts: those of each row, in order, by their numbers.

    arrays: "input_ids", "segment_ids" (R, L); "attention_mask" (R, L), 1, 2, ... for the
    pieces of a row's first, second, ... text and 0 for padding; "starts" (R, S), where
    each begins.
    """

    texts: list[list[int]]
    arrays: dict[str, np.ndarray]


def packed_texts(
    features: Features, batch_size: int, pad_id: int, most: int, mesh: Mesh
) -> Iterator[PackedTexts]:
    """All sequences of ``features``, none longer than ``most``, in batches.

    batch_size: rows of 32 pieces, or fewer longer ones with about as many. What is left
    over of a length is filled up to a power of two: few shapes are ever compiled.
    """
    lengths = np.array([len(ids) for ids in features.input_ids])
    for length, rows in rows_by_length(lengths, most):
        full = max(batch_size * LENGTHS[0] // length, 1)
        full = round_up(full, batch_divisor(mesh))
        for first in range(0, len(rows), full):
            part = rows[first : first + full]
            count = batch_rows(len(part), full, mesh)
            yield PackedTexts(part, _arrays(features, part, (count, length), pad_id))


def rows_by_length(
    lengths: np.ndarray, most: int
) -> Iterator[tuple[int, list[list[int]]]]:
    """Row lengths, the longest first, and the texts of each row."""
    classes = [*(n for n in LENGTHS if n < most), most]
    if lengths.sum() <= _ONE <= most:
        classes = [_ONE]
    left = np.arange(len(lengths))
    for shorter, length in zip([0, *classes][-2::-1], classes[::-1], strict=True):
        rows = best_fit(lengths[left], length, max(length // SLOT, 1))
        # Shorter texts fill the rows up that are needed for longer ones, and no others.
        rows = [row for row in rows if lengths[left[row[0]]] > shorter]
        if rows:
            yield length, [left[row].tolist() for row in rows]
            left = np.delete(left, np.concatenate(rows))


def _arrays(
    features: Features, rows: list[list[int]], shape: tuple[int, int], pad_id: int
) -> dict[str, np.ndarray]:
    arrays = {
        "input_ids": np.full(shape, pad_id, np.int32),
        "segment_ids": np.zeros(shape, np.int32),
        "attention_mask": np.zeros(shape, np.int32),
        "starts": np.zeros((shape[0], max(shape[1] // SLOT, 1)), np.int32),
    }
    for r, row in enumerate(rows):
        start = 0
        for s, text in enumerate(row):
            end = start + len(features.input_ids[text])
            arrays["input_ids"][r, start:end] = features.input_ids[text]
            arrays["segment_ids"][r, start:end] = features.segment_ids[text]
            arrays["attention_mask"][r, start:end] = s + 1
            arrays["starts"][r, s] = start
            start = end
    return arrays
