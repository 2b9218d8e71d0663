"""Pretraining pairs side by side: the same batch in fewer rows, with hardly any padding.

Most examples fill their row, but those at the ends of documents and those that the
original cuts short do not. The losses are means over a batch's pairs and masked tokens,
so that the step is the same however they are laid out, but for dropout's masks.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from bert_jax.data.bin_packing import best_fit, round_up

SAMPLE = 64  # random batches that the numbers of rows are chosen on
# A batch needs a few rows more or fewer than another: with one number for all, 8% of 256 x
# 512 of Wikipedia would be padding, with three 2.4%, and each has to be compiled.
QUANTILES = (1 / 3, 2 / 3, 1)


@dataclasses.dataclass(frozen=True)
class Packing:
    """How the pairs of a batch are packed into rows of ``length`` tokens.

    row_counts: numbers of rows, ascending; a batch has the first that it fits. multiple:
    every number of rows is one of it. max_pairs: of a row. max_predictions: masked tokens
    of a row, enough for those of any pairs that fit it.
    """

    row_counts: tuple[int, ...]
    multiple: int
    length: int
    max_pairs: int
    max_predictions: int

    @classmethod
    def of(
        cls,
        lengths: np.ndarray,
        batch_size: int,
        length: int,
        *,
        mask_rate: float,
        multiple: int,
    ) -> "Packing":
        """What random batches of pairs of such ``lengths`` need."""
        max_pairs, max_predictions = row_limits(length, mask_rate)
        random = np.random.default_rng(0)
        needed = [
            len(_fit(random.choice(lengths, batch_size), length, max_pairs))
            for _ in range(SAMPLE)
        ]
        counts = round_up(np.quantile(needed, QUANTILES, method="higher"), multiple)
        counts = tuple(np.unique(counts).tolist())
        return cls(counts, multiple, length, max_pairs, max_predictions)

    def rows(self, lengths: np.ndarray) -> list[list[int]]:
        """The pairs of each row of a batch, by their numbers; a row may have none.

        The rows are dealt in turns to ``multiple`` parts of the batch, so that each
        device, and each host, has as many short pairs as another. A batch that fits none
        of the counts has as many rows as it needs.
        """
        rows = _fit(lengths, self.length, self.max_pairs)
        fitting = [count for count in self.row_counts if count >= len(rows)]
        count = fitting[0] if fitting else round_up(len(rows), self.multiple)
        rows += [[] for _ in range(count - len(rows))]
        return [
            row for part in range(self.multiple) for row in rows[part :: self.multiple]
        ]

    def pack(
        self,
        batch: dict[str, np.ndarray],
        rows: Sequence[Sequence[int]],
        pad_id: int,
    ) -> dict[str, np.ndarray]:
        """A batch as ExampleSource.draw gives it, its pairs in ``rows``.

        For R rows of up to S pairs: "input_ids", "token_type_ids" (R, L);
        "attention_mask" (R, L); "segment_ids" (R, L), 1, 2, ... for the tokens of a row's
        first, second, ... pair and 0 for padding; "starts" (R, S), where each pair
        begins; "mlm_positions", "mlm_ids", "mlm_weights" (R, M); "nsp_labels" and float32
        "nsp_weights" (R, S), 0 where a row has fewer pairs.
        """
        R, L = len(rows), self.length
        S, M = self.max_pairs, self.max_predictions
        order = np.array([pair for row in rows for pair in row], np.int64)
        row_of = np.repeat(np.arange(R), [len(row) for row in rows])
        place = np.array([i for row in rows for i in range(len(row))], np.int64)
        batch = {name: array[order] for name, array in batch.items()}
        read_PL, masked_PM = batch["attention_mask"] > 0, batch["mlm_weights"] > 0
        sizes, counts = read_PL.sum(axis=1), masked_PM.sum(axis=1)
        ends = np.cumsum(sizes)
        first = np.searchsorted(row_of, row_of)  # the first pair of each pair's row
        starts = (ends - sizes) - (ends - sizes)[first]
        # Pairs lie one after the other from the row's beginning, and so do their masked
        # tokens: in order, they are the True of these.
        used_RL = np.arange(L) < np.bincount(row_of, sizes, R)[:, None]
        used_RM = np.arange(M) < np.bincount(row_of, counts, R)[:, None]

        packed = {
            "input_ids": np.full((R, L), pad_id, np.int32),
            "token_type_ids": np.zeros((R, L), np.int32),
            "attention_mask": used_RL.astype(np.int32),
            "segment_ids": np.zeros((R, L), np.int32),
            "starts": np.zeros((R, S), np.int32),
            "mlm_positions": np.zeros((R, M), np.int32),
            "mlm_ids": np.zeros((R, M), np.int32),
            "mlm_weights": used_RM.astype(np.float32),
            "nsp_labels": np.zeros((R, S), np.int32),
            "nsp_weights": np.zeros((R, S), np.float32),
        }
        for name in ("input_ids", "token_type_ids"):
            packed[name][used_RL] = batch[name][read_PL]
        packed["segment_ids"][used_RL] = np.repeat(place + 1, sizes)
        positions_PM = batch["mlm_positions"] + starts[:, None]
        packed["mlm_positions"][used_RM] = positions_PM[masked_PM]
        packed["mlm_ids"][used_RM] = batch["mlm_ids"][masked_PM]
        packed["starts"][row_of, place] = starts
        packed["nsp_labels"][row_of, place] = batch["nsp_labels"]
        packed["nsp_weights"][row_of, place] = 1
        return packed


def row_limits(length: int, mask_rate: float) -> tuple[int, int]:
    """The most pairs, and masked tokens, of a row of ``length``."""
    max_pairs = min(max(length // 64, 3), 8)
    # Each pair has at least one masked token, and its share is rounded.
    return max_pairs, math.ceil(mask_rate * length) + max_pairs


def _fit(lengths: np.ndarray, length: int, max_pairs: int) -> list[list[int]]:
    """best_fit(), but most pairs leave no room for another: they need no search."""
    alone = lengths + lengths.min() > length
    others = np.flatnonzero(~alone)
    shared = best_fit(lengths[others], length, max_pairs)
    rows = [[pair] for pair in np.flatnonzero(alone).tolist()]
    return rows + [others[row].tolist() for row in shared]
