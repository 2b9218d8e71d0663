"""Random batches with hardly any padding: several sequences side by side in a row.

Batches are drawn at random; then a few units are exchanged between them, so that all have
about as many tokens and most fit the same rows.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_jax.data.bin_packing import fewest_rows, round_up
from bert_jax.tasks.batches import choice_lengths
from bert_jax.tasks.even_batches import even_batches, exchanged
from bert_jax.tasks.row_shapes import Shape, packed_shapes
from bert_jax.tasks.task import IGNORED, Features


@dataclasses.dataclass(frozen=True)
class PackedBatches:
    """The training batches of a run.

    parts: microbatches, packed each for itself. shapes: those that most microbatches fit,
    the commonest first. multiple: what the number of a microbatch's rows is one of.
    """

    features: Features
    batch_size: int
    pad_id: int
    parts: int
    multiple: int
    shapes: tuple[Shape, ...]

    @classmethod
    def of(
        cls,
        features: Features,
        batch_size: int,
        pad_id: int,
        *,
        most: int,
        limit: int,
        parts: int = 1,
        multiple: int = 1,
    ) -> "PackedBatches":
        """With at most ``most`` shapes, of rows no longer than ``limit``."""
        lengths_UC = choice_lengths(features)
        shapes = packed_shapes(lengths_UC, batch_size // parts, most, limit, multiple)
        return cls(features, batch_size, pad_id, parts, multiple, shapes)

    def epoch(self, seed: int, epoch: int) -> list[np.ndarray]:
        """The units of each batch, a pure function of its arguments.

        even_batches(), exchanged() so that more fit the commonest shape or a cheaper one.
        """
        random = np.random.default_rng((seed, epoch))
        lengths_UC = choice_lengths(self.features)
        size = self.batch_size // self.parts
        parts = even_batches(lengths_UC.sum(axis=1), size, random)
        cheap = [s for s in self.shapes if s.cost <= self.shapes[0].cost]

        def fits(lengths: np.ndarray) -> bool:
            return any(shape.fits(lengths) for shape in cheap)

        parts = exchanged(parts, lengths_UC, fits, random)
        return [
            np.concatenate(parts[first : first + self.parts])
            for first in range(0, len(parts), self.parts)
        ]

    def arrays(self, units: np.ndarray) -> dict[str, np.ndarray]:
        """What the step takes, for R rows of S slots.

        "input_ids", "token_type_ids" (R, L); "attention_mask" (R, L); "segment_ids" (R, L),
        1, 2, ... for the tokens of a row's first, second, ... sequence and 0 for padding;
        "starts" (R, S), where each begins. Of sequences that stand alone, "weights" float32
        (R, S), 0 for a slot that is empty, and targets (R, S, ...), or (R, L) of tokens. Of
        choices, for U units, "weights" (U,), targets (U, ...), and "slots" int32 (U,
        choices): which of a microbatch's slots, row by row, holds each.
        """
        size = self.batch_size // self.parts
        groups = [units[part * size : (part + 1) * size] for part in range(self.parts)]
        shape, places = self._place(groups)
        filled = [
            self._fill(group, shape, rows)
            for group, rows in zip(groups, places, strict=True)
        ]
        # Part i of the step has the rows i, i + parts, ...
        together = {name: np.stack([a[name] for a in filled], 1) for name in filled[0]}
        return {k: v.reshape(-1, *v.shape[2:]) for k, v in together.items()}

    def _place(self, groups: list[np.ndarray]) -> tuple[Shape, list[list[list[int]]]]:
        """The cheapest shape that all fit, or one of their own; and the rows of each."""
        lengths = [choice_lengths(self.features, units).ravel() for units in groups]
        longest = max(group.max(initial=0) for group in lengths)
        candidates = []
        for length, slots in {(s.length, s.slots) for s in self.shapes}:
            if length < longest:
                continue
            places = [fewest_rows(group, length, slots) for group in lengths]
            needed = max(map(len, places))
            fitting = [
                s for s in self.shapes if s.length == length and s.rows >= needed
            ]
            shape = min(
                fitting,
                key=lambda s: s.rows,
                default=Shape(round_up(needed, self.multiple), length, slots),
            )
            candidates.append((not fitting, shape.cost, shape, places))
        return min(candidates, key=lambda c: c[:2])[2:]

    def _fill(
        self, units: np.ndarray, shape: Shape, rows: list[list[int]]
    ) -> dict[str, np.ndarray]:
        """The arrays of a microbatch; ``rows``: of its sequences, by their numbers."""
        features, C = self.features, self.features.choices
        R, S = shape.rows, shape.slots
        sequences = (units[:, None] * C + np.arange(C)).ravel()
        in_rows = [sequences[members] for members in rows]
        arrays = filled_rows(features, in_rows, shape, self.pad_id)
        slots = np.zeros(len(sequences), np.int32)
        for r, members in enumerate(rows):
            slots[members] = r * S + np.arange(len(members))
        if C == 1:
            size, where, shape_of_all = R * S, slots, (R, S)
        else:
            size = round_up(self.batch_size // self.parts, self.multiple)
            where, shape_of_all = np.arange(len(units)), (size,)
            arrays["slots"] = np.zeros((size, C), np.int32)
            arrays["slots"][: len(units)] = slots.reshape(-1, C)
        values = {"weights": np.ones(len(features.row), np.float32)} | features.targets
        for name in values.keys() - arrays.keys():
            array = np.zeros((size, *values[name].shape[1:]), values[name].dtype)
            array[where] = values[name][units]
            arrays[name] = array.reshape(*shape_of_all, *array.shape[1:])
        return arrays


def filled_rows(
    features: Features, rows: Sequence[Sequence[int]], shape: Shape, pad_id: int
) -> dict[str, np.ndarray]:
    """Sequences side by side; ``rows``: those of each row, by their numbers.

    "input_ids", "token_type_ids", "attention_mask", "segment_ids", "starts", and
    targets of tokens as
    PackedBatches.arrays() has them.
    """
    R, L, S = shape.rows, shape.length, shape.slots
    tokens = {k: v for k, v in features.targets.items() if isinstance(v, list)}
    arrays = {
        "input_ids": np.full((R, L), pad_id, np.int32),
        "token_type_ids": np.zeros((R, L), np.int32),
        "attention_mask": np.zeros((R, L), np.int32),
        "segment_ids": np.zeros((R, L), np.int32),
        "starts": np.zeros((R, S), np.int32),
    }
    arrays |= {name: np.full((R, L), IGNORED, np.int32) for name in tokens}
    for r, row in enumerate(rows):
        end = 0
        for s, sequence in enumerate(row):
            ids = features.input_ids[sequence]
            place = np.s_[r, end : end + len(ids)]
            arrays["input_ids"][place] = ids
            arrays["token_type_ids"][place] = features.token_type_ids[sequence]
            arrays["attention_mask"][place] = 1
            arrays["segment_ids"][place] = s + 1
            arrays["starts"][r, s] = end
            for name, target in tokens.items():
                arrays[name][place] = target[sequence]
            end += len(ids)
    return arrays
