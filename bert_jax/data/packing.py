"""Several sequences in one row: the same batch in fewer rows, with hardly any padding.

Most pretraining pairs fill their row. Those at the ends of documents and those that the
original cuts short do not. The losses are means over the pairs and masked tokens of a
batch, so the layout changes nothing in a step but the masks of dropout.
"""

import bisect
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# From the number of rows of a global batch to the ranges of them that this process's
# devices hold, ascending.
HostRows = Callable[[int], Sequence[range]]

SAMPLE = 64  # random batches that the numbers of rows are chosen on
# A batch needs a few rows more or fewer than another: with one number for all, 8% of 256 x
# 512 of Wikipedia would be padding, with three 2.4%, and each has to be compiled.
QUANTILES = (1 / 3, 2 / 3, 1)


def all_rows(rows: int) -> tuple[range]:
    """The rows of the only process."""
    return (range(rows),)


def take_rows(array: np.ndarray, ranges: Sequence[range]) -> np.ndarray:
    """The rows of ``array`` in some ranges."""
    return np.concatenate([array[rows.start : rows.stop] for rows in ranges])


def round_up(number, multiple: int):
    """The least multiple that is not below ``number``, an int or an array of them."""
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
    """How n sequences lie in R rows of L tokens, with S slots: one after the other.

    sizes: their tokens, int (n,). rows: of each, ascending. Returns arrays, and of each
    sequence its number in the row and its place there, int (n,). The arrays, int32:
    "attention_mask" (R, L), 1 for the tokens of all sequences, in their order;
    "segment_ids" (R, L), 1, 2, ... for the tokens of a row's first, second, ... sequence
    and 0 for padding; "starts" (R, S), where each sequence begins.
    """
    R, L, S = shape
    first = np.searchsorted(rows, rows)  # the first sequence of each one's row
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
            _fit(random.choice(lengths, batch_size), length, max_pairs)[1]
            for _ in range(SAMPLE)
        ]
        counts = round_up(np.quantile(needed, QUANTILES, method="higher"), multiple)
        counts = tuple(np.unique(counts).tolist())
        return cls(counts, multiple, length, max_pairs, max_predictions)

    def rows(self, lengths: np.ndarray) -> tuple[np.ndarray, int]:
        """The row of each pair of a batch, int (pairs,), and how many rows it has.

        The rows are dealt in turns to ``multiple`` parts of the batch, so that each
        device, and each host, has as many short pairs as another. A batch that fits none
        of the counts has as many rows as it needs.
        """
        rows, needed = _fit(lengths, self.length, self.max_pairs)
        own = round_up(needed, self.multiple)
        count = next((count for count in self.row_counts if count >= needed), own)
        turn, part = np.divmod(rows, self.multiple)
        return part * (count // self.multiple) + turn, count

    def pack(
        self, batch: dict[str, np.ndarray], rows: np.ndarray, R: int, pad_id: int
    ) -> dict[str, np.ndarray]:
        """A batch as ExampleSource.draw gives it, its pairs in the ``rows`` of R.

        For rows of up to S pairs: "input_ids", "token_type_ids" (R, L); "attention_mask",
        "segment_ids" and "starts" of lay_out(); "mlm_positions", "mlm_ids", "mlm_weights"
        (R, M); "nsp_labels" and float32 "nsp_weights" (R, S), 0 where a row has fewer
        pairs.
        """
        L, S, M = self.length, self.max_pairs, self.max_predictions
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
        batch = {name: array[order] for name, array in batch.items()}
        read_PL, masked_PM = batch["attention_mask"] > 0, batch["mlm_weights"] > 0
        packed, slots, starts = lay_out(read_PL.sum(axis=1), rows, (R, L, S))
        used_RL = packed["attention_mask"] > 0
        # The masked tokens of a row's pairs lie one after the other too.
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
    """The most pairs, and masked tokens, of a row of ``length``."""
    max_pairs = min(max(length // 64, 3), 8)
    # Each pair has at least one masked token, and its share is rounded.
    return max_pairs, math.ceil(mask_rate * length) + max_pairs


def _fit(lengths: np.ndarray, length: int, max_pairs: int) -> tuple[np.ndarray, int]:
    """The row of each pair, int (pairs,), and the number of rows.

    Longest first, each where it leaves the least space, as best_fit(); but pairs of one
    length go at once into rows of one space, as a batch of 32,768 has hundreds of each.
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
            # How many rows take the group, as many of it in each as fit.
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
