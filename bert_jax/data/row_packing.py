"""Pretraining pairs side by side: the same batch in fewer rows, with hardly any padding.

Most examples fill their row, but those at the ends of documents and those that the
original cuts short do not. The losses are means over a batch's pairs and masked tokens,
so that the update is the same however they are laid out, but for dropout's masks.
"""

import dataclasses
import math

import numpy as np

from bert_jax.data.bin_packing import best_fit, round_up

SAMPLE = 64  # random batches that the numbers of rows are chosen on
# A batch needs a few rows more or fewer than another: with one number for all, 8% of 256 x
# 512 of Wikipedia would be padding, with three 2.4%, and each has to be compiled.
QUANTILES = (1 / 3, 2 / 3, 1)


@dataclasses.dataclass(frozen=True)
class RowShapes:
    """Some rows of ``length`` tokens, each with at most ``slots`` pairs.

    counts: of rows, ascending; a batch has the first that it fits. multiple: what any
    number of rows is one of. predictions: masked tokens of a row, with room for those of
    any pairs that fit it.
    """

    counts: tuple[int, ...]
    multiple: int
    length: int
    slots: int
    predictions: int

    @classmethod
    def of(
        cls,
        lengths: np.ndarray,
        batch_size: int,
        length: int,
        *,
        mask_rate: float,
        multiple: int,
    ) -> "RowShapes":
        """What random batches of pairs of such ``lengths`` need."""
        slots, predictions = row_budget(length, mask_rate)
        random = np.random.default_rng(0)
        needed = [
            len(best_fit(random.choice(lengths, batch_size), length, slots))
            for _ in range(SAMPLE)
        ]
        counts = round_up(np.quantile(needed, QUANTILES, method="higher"), multiple)
        counts = tuple(np.unique(counts).tolist())
        return cls(counts, multiple, length, slots, predictions)


def row_budget(length: int, mask_rate: float) -> tuple[int, int]:
    """Slots for pairs and for masked tokens in a row of ``length``."""
    slots = min(max(length // 64, 3), 8)
    # Each pair has at least one masked token, and its share is rounded.
    return slots, math.ceil(mask_rate * length) + slots


def pack(
    batch: dict[str, np.ndarray], shapes: RowShapes, pad_id: int
) -> dict[str, np.ndarray]:
    """A batch as ExampleSource.draw gives it, in one of ``shapes``.

    For R rows of S slots: "input_ids", "token_type_ids" (R, L); "attention_mask" (R, L);
    "segment_ids" (R, L), 1, 2, ... for the tokens of a row's first, second, ... pair and
    0 for padding; "starts" (R, S), where each pair begins; "mlm_positions", "mlm_ids",
    "mlm_weights" (R, M);
    "nsp_labels" and float32 "nsp_weights" (R, S), 0 for a slot that is empty. A batch
    that fits none of the counts has as many rows as it needs.
    """
    sizes = batch["attention_mask"].sum(axis=1)
    L, S, M = shapes.length, shapes.slots, shapes.predictions
    rows = best_fit(sizes, L, S)
    fitting = [count for count in shapes.counts if count >= len(rows)]
    R = fitting[0] if fitting else round_up(len(rows), shapes.multiple)
    packed = {
        "input_ids": np.full((R, L), pad_id, np.int32),
        "token_type_ids": np.zeros((R, L), np.int32),
        "attention_mask": np.zeros((R, L), np.int32),
        "segment_ids": np.zeros((R, L), np.int32),
        "starts": np.zeros((R, S), np.int32),
        "mlm_positions": np.zeros((R, M), np.int32),
        "mlm_ids": np.zeros((R, M), np.int32),
        "mlm_weights": np.zeros((R, M), np.float32),
        "nsp_labels": np.zeros((R, S), np.int32),
        "nsp_weights": np.zeros((R, S), np.float32),
    }
    masked = (batch["mlm_weights"] > 0).sum(axis=1)  # they come first
    for row, examples in enumerate(rows):
        start = predictions = 0
        for slot, example in enumerate(examples):
            size, count = sizes[example], masked[example]
            tokens = np.s_[row, start : start + size]
            for name in ("input_ids", "token_type_ids"):
                packed[name][tokens] = batch[name][example, :size]
            packed["attention_mask"][tokens] = 1
            packed["segment_ids"][tokens] = slot + 1
            packed["starts"][row, slot] = start
            places = np.s_[row, predictions : predictions + count]
            for name in ("mlm_positions", "mlm_ids", "mlm_weights"):
                packed[name][places] = batch[name][example, :count]
            packed["mlm_positions"][places] += start
            packed["nsp_labels"][row, slot] = batch["nsp_labels"][example]
            packed["nsp_weights"][row, slot] = 1
            start, predictions = start + size, predictions + count
    return packed
