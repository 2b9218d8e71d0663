"""Packing: several sequences share a row, so a batch has fewer rows and little padding.

Most pretraining pairs fill a row. Pairs at the ends of documents and pairs that the
original cuts short do not. The losses are means over the pairs and masked tokens of a
batch, so packing changes only the dropout masks of a step.
"""

import bisect
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# Function from the number of rows of a global batch to the ranges of rows of this process's
# devices, ascending.
HostRows = Callable[[int], Sequence[range]]

SAMPLE = 64  # random batches from which the numbers of rows are chosen
# Batches need different numbers of rows. With one number for all, 8% of 256 x 512 tokens of
# Wikipedia are padding; with three numbers 2.4%. Each number compiles one program.
QUANTILES = (1 / 3, 2 / 3, 1)


def all_rows(rows: int) -> tuple[range]:
    """The rows of the only process."""
    return (range(rows),)


def take_rows(array: np.ndarray, ranges: Sequence[range]) -> np.ndarray:
    """The rows of ``array`` in some ranges."""
    return np.concatenate([array[rows.start : rows.stop] for rows in ranges])


def round_up(number, multiple: int):
    """The least multiple that is not below ``number``, an integer or an array."""
    return -(-number // multiple) * multiple


def best_fit(lengths: np.ndarray, length: int, slots: int) -> list[list[int]]:
    """The examples of each row, by best fit: longest first, each into the fullest row."""
    full: list[list[int]] = []
    # Rows with space, by it: ascending (space, number); and their members by number.
    spaces: list[tuple[int, int]] = []
    for example in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[example])
        place = bisect.bisect_left(spaces, (size, 0))
        if place < len(spaces):
            space, number = spaces.pop(place)
        else:
            space, number = length, len(full)
            full.append([])
        full[number].append(example)
        if len(full[number]) < slots:
            bisect.insort(spaces, (space - size, number))
    return full


def lay_out(
    sizes: np.ndarray, rows: np.ndarray, shape: tuple[int, int, int]
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Places n sequences one after the other in R rows of L tokens and S slots.

    sizes: number of tokens of each sequence, int (n,). rows: row of each sequence,
    ascending. Returns arrays, and the number and the first position of each sequence in its
    row, int (n,). The arrays, int32:
    "attention_mask" (R, L), 1 for the tokens of all sequences, in their order;
    "segment_ids" (R, L), 1, 2, ... for the tokens of a row's first, second, ... sequence
    and 0 for padding; "starts" (R, S), the first position of each sequence.
    """
    R, L, S = shape
    first = np.searchsorted(rows, rows)  # first sequence of the row of each sequence
    slots = np.arange(len(rows)) - first
    begins = np.cumsum(sizes) - sizes
    used_RL = np.arange(L) < np.bincount(rows, sizes, R)[:, None]
    starts = begins - begins[first]
    arrays = {
        "attention_mask": used_RL.astype(np.int32),
        "segment_ids": placed((R, L), used_RL, np.repeat(slots + 1, sizes)),
        "starts": placed((R, S), (rows, slots), starts),
    }
    return arrays, slots, starts


def placed(
    shape: tuple[int, ...], where: Any, values: Any, padding=0, dtype=np.int32
) -> np.ndarray:
    """An array of ``padding`` with ``values`` at the index ``where``."""
    array = np.full(shape, padding, dtype)
    array[where] = values
    return array


@dataclasses.dataclass(frozen=True)
class Packing:
    """How the pairs of a batch are packed into rows of ``length`` tokens.

    row_counts: numbers of rows, ascending; a batch has the first number that is large
    enough. multiple: divides every number of rows. max_pairs: maximum number of pairs in a
    row. max_predictions: maximum number of masked tokens in a row, enough for all pairs
    that fit into it.
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
        """The packing for random batches of pairs with these ``lengths``."""
        max_pairs, max_predictions = row_limits(length, mask_rate)
        random = np.random.default_rng(0)
        needed = [
            _fit(random.choice(lengths, batch_size), length, max_pairs)[1]
            for _ in range(SAMPLE)
        ]
        counts = round_up(np.quantile(needed, QUANTILES, method="higher"), multiple)
        counts = tuple(np.unique(counts).tolist())
        return cls(counts, multiple, length, max_pairs, max_predictions)

    def rows(self, lengths: np.ndarray) -> tuple[np.ndarray, int]:
        """The row of each pair of a batch, int (pairs,), and the number of rows.

        The ``multiple`` parts of the batch get rows in turn, so that each device and each
        host has about the same number of short pairs. A batch that is too large for all
        counts has as many rows as it needs.
        """
        rows, needed = _fit(lengths, self.length, self.max_pairs)
        own = round_up(needed, self.multiple)
        count = next((count for count in self.row_counts if count >= needed), own)
        turn, part = np.divmod(rows, self.multiple)
        return part * (count // self.multiple) + turn, count

    def pack(
        self, batch: dict[str, np.ndarray], rows: np.ndarray, R: int, pad_id: int
    ) -> dict[str, np.ndarray]:
        """Puts the pairs of a batch of ExampleSource.draw into ``rows`` of R rows.

        For rows of up to S pairs: "input_ids", "token_type_ids" (R, L); "attention_mask",
        "segment_ids" and "starts" of lay_out(); "mlm_positions", "mlm_ids", "mlm_weights"
        (R, M); "nsp_labels" and float32 "nsp_weights" (R, S), 0 for slots without a pair.
        """
        L, S, M = self.length, self.max_pairs, self.max_predictions
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
        batch = {name: array[order] for name, array in batch.items()}
        read_PL, masked_PM = batch["attention_mask"] > 0, batch["mlm_weights"] > 0
        packed, slots, starts = lay_out(read_PL.sum(axis=1), rows, (R, L, S))
        used_RL = packed["attention_mask"] > 0
        # The masked tokens of a row's pairs follow each other as well.
        used_RM = np.arange(M) < np.bincount(rows, masked_PM.sum(axis=1), R)[:, None]
        positions_PM = batch["mlm_positions"] + starts[:, None]
        ids, types = (batch[k][read_PL] for k in ("input_ids", "token_type_ids"))
        pairs = (rows, slots)
        return packed | {
            "input_ids": placed((R, L), used_RL, ids, pad_id),
            "token_type_ids": placed((R, L), used_RL, types),
            "mlm_positions": placed((R, M), used_RM, positions_PM[masked_PM]),
            "mlm_ids": placed((R, M), used_RM, batch["mlm_ids"][masked_PM]),
            "mlm_weights": used_RM.astype(np.float32),
            "nsp_labels": placed((R, S), pairs, batch["nsp_labels"]),
            "nsp_weights": placed((R, S), pairs, 1, dtype=np.float32),
        }


def row_limits(length: int, mask_rate: float) -> tuple[int, int]:
    """Maximum numbers of pairs and of masked tokens in a row of ``length``."""
    max_pairs = min(max(length // 64, 3), 8)
    # Each pair has at least one masked token, and its share is rounded.
    return max_pairs, math.ceil(mask_rate * length) + max_pairs


def _fit(lengths: np.ndarray, length: int, max_pairs: int) -> tuple[np.ndarray, int]:
    """The row of each pair, int (pairs,), and the number of rows.

    The longest pair is first, and each goes where it leaves the least space, as in
    best_fit(). Pairs of one length go at once into rows with the same space, because a
    batch of 32,768 pairs has hundreds of each length.
    """
    order = np.argsort(-lengths, kind="stable")
    sizes, firsts = np.unique(-lengths[order], return_index=True)
    rows, pairs = np.empty(len(lengths), np.int64), np.zeros(len(lengths), np.int64)
    spaces: list[int] = []  # ascending
    open_rows: dict[int, np.ndarray] = {}  # by their space
    count = 0
    for size, group in zip((-sizes).tolist(), np.split(order, firsts[1:]), strict=True):
        while len(group):
            at = bisect.bisect_left(spaces, size)
            space = spaces[at] if at < len(spaces) else length
            # Number of rows for the group, with as many pairs in each row as fit.
            wanted = -(-len(group) // min(space // size, max_pairs))
            if at < len(spaces):
                found, rest = np.split(open_rows[space], [wanted])
                open_rows[space] = rest
                if not len(rest):
                    del spaces[at], open_rows[space]
            else:
                found, count = np.arange(count, count + wanted), count + wanted
            group, placed = group[len(found) :], group[: len(found)]
            rows[placed] = found
            pairs[found] += 1
            left, found = space - size, found[pairs[found] < max_pairs]
            if left < -sizes[-1] or not len(found):
                continue
            if left in open_rows:
                open_rows[left] = np.concatenate([open_rows[left], found])
            else:
                bisect.insort(spaces, left)
                open_rows[left] = found
    return rows, count
