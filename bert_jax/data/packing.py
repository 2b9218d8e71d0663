"""Packing: several sequences share a row, so a batch has fewer rows and little padding.

Most pretraining pairs fill a row, but pairs at the ends of documents and pairs with a
random, shorter length do not. The losses are means over the pairs and masked tokens of a
batch, so packing changes only the dropout masks of a step.
"""

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

# Function from the number of rows of a global batch to the rows of this process's devices,
# ascending. np.arange gives all rows.
HostRows = Callable[[int], np.ndarray]
# Numbers of the sequences in each row.
Rows = Sequence[Sequence[int]]

SAMPLE = 64  # number of random batches from which the numbers of rows are chosen
# Batches need different numbers of rows, and each number compiles a program. With one
# number for all batches, 8% of 256 x 512 tokens of Wikipedia are padding, with three
# numbers 2.4%.
QUANTILES = (1 / 3, 2 / 3, 1)
# A rare batch needs more rows than that. Its number of rows grows in steps of this share,
# to keep the number of programs small.
OVERFLOW = 0.05


def round_up(number, multiple: int):
    """The smallest multiple that is at least ``number``, an integer or an array."""
    return -(-number // multiple) * multiple


def best_fit(lengths: np.ndarray, length: int, slots: int) -> list[list[int]]:
    """The sequences of each row by best fit: longest first, into the fullest row."""
    full: list[list[int]] = []
    # (space, number) of the rows with space, ascending.
    spaces: list[tuple[int, int]] = []
    sizes = lengths.tolist()
    for sequence in np.argsort(-lengths, kind="stable").tolist():
        size = sizes[sequence]
        place = bisect.bisect_left(spaces, (size, 0))
        if place < len(spaces):
            space, number = spaces.pop(place)
        else:
            space, number = length, len(full)
            full.append([])
        full[number].append(sequence)
        if len(full[number]) < slots:
            bisect.insort(spaces, (space - size, number))
    return full


class Places(NamedTuple):
    """Where n sequences are, row by row. Each array is (n,).

    sequences: numbers of the sequences. rows, slots: the row, and the place in this row.
    """

    sequences: np.ndarray
    rows: np.ndarray
    slots: np.ndarray
    starts: np.ndarray  # first position in the row


def lay_out(
    lengths: np.ndarray, rows: Rows, shape: tuple[int, int, int]
) -> tuple[dict[str, np.ndarray], Places]:
    """Places sequences one after the other in R rows of L tokens and S slots.

    lengths: number of tokens of each sequence. Returns int32 arrays and the places:
    "attention_mask" (R, L), 1 for the tokens of all sequences, in their order;
    "segment_ids" (R, L), 1, 2, ... for the tokens of a row's first, second, ... sequence
    and 0 for padding; "starts" (R, S), the first position of each sequence.
    """
    R, L, S = shape
    sequences = np.fromiter(itertools.chain(*rows), np.int64)
    counts = np.fromiter(map(len, rows), np.int64)
    first = np.repeat(np.cumsum(counts) - counts, counts)  # sequence of the row
    row = np.repeat(np.arange(len(counts)), counts)
    slots = np.arange(len(row)) - first
    sizes = lengths[sequences]
    begins = np.cumsum(sizes) - sizes
    starts = begins - begins[first]
    used_RL = np.arange(L) < np.bincount(row, sizes, R)[:, None]
    arrays = {
        "attention_mask": used_RL.astype(np.int32),
        "segment_ids": placed((R, L), used_RL, np.repeat(slots + 1, sizes)),
        "starts": placed((R, S), (row, slots), starts),
    }
    return arrays, Places(sequences, row, slots, starts)


def placed(
    shape: tuple[int, ...], where: Any, values: Any, padding=0, dtype=np.int32
) -> np.ndarray:
    """An array of ``padding`` with ``values`` at the index ``where``."""
    array = np.full(shape, padding, dtype)
    array[where] = values
    return array


class Packing(NamedTuple):
    """How the pairs of a batch are packed into rows of ``length`` tokens.

    row_counts: numbers of rows, ascending. A batch has the first number that is large
    enough; if none is, the last number grows in steps of 5%. multiple: divides every number
    of rows. max_pairs: maximum number of pairs in a row. max_predictions: maximum number of
    masked tokens in a row, enough for all pairs that fit into it.
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
        single_sentences: bool = False,
    ) -> "Packing":
        """The packing for random batches of pairs with these lengths."""
        max_pairs, max_predictions = row_limits(length, mask_rate, single_sentences)
        random = np.random.default_rng(0)
        batches = (random.choice(lengths, batch_size) for _ in range(SAMPLE))
        needed = [len(best_fit(batch, length, max_pairs)) for batch in batches]
        counts = round_up(np.quantile(needed, QUANTILES, method="higher"), multiple)
        counts = tuple(np.unique(counts).tolist())
        return cls(counts, multiple, length, max_pairs, max_predictions)

    def rows(self, lengths: np.ndarray) -> list[list[int]]:
        """The pairs of each row of a batch.

        The ``multiple`` parts of the batch get rows in turn, so each device and each host
        has about the same number of short pairs.
        """
        rows = best_fit(lengths, self.length, self.max_pairs)
        count = self._row_count(len(rows), len(lengths))
        rows += [[] for _ in range(count - len(rows))]
        parts = (rows[part :: self.multiple] for part in range(self.multiple))
        return list(itertools.chain.from_iterable(parts))

    def _row_count(self, needed: int, pairs: int) -> int:
        """The number of rows of a batch of ``pairs`` pairs that needs ``needed`` rows."""
        for count in self.row_counts:
            if count >= needed:
                return count
        largest = self.row_counts[-1]
        step = round_up(math.ceil(OVERFLOW * largest), self.multiple)
        count = largest + round_up(needed - largest, step)
        # More rows than pairs are never needed.
        return min(count, round_up(pairs, self.multiple))

    def pack(
        self, batch: dict[str, np.ndarray], rows: Rows, pad_id: int
    ) -> dict[str, np.ndarray]:
        """Puts the pairs of a batch of ExampleSource.draw into rows.

        For R rows of up to S pairs: "input_ids", "token_type_ids" (R, L); "attention_mask",
        "segment_ids" and "starts" of lay_out(); "mlm_positions", "mlm_ids", "mlm_weights"
        (R, M); "nsp_labels" and float32 "nsp_weights" (R, S), 0 for slots without a pair.
        """
        R, L, S, M = len(rows), self.length, self.max_pairs, self.max_predictions
        packed, places = lay_out(batch["attention_mask"].sum(axis=1), rows, (R, L, S))
        batch = {name: array[places.sequences] for name, array in batch.items()}
        read_PL, masked_PM = batch["attention_mask"] > 0, batch["mlm_weights"] > 0
        used_RL = packed["attention_mask"] > 0
        # Like the tokens, the masked tokens of a row are in the order of its pairs.
        counts_R = np.bincount(places.rows, masked_PM.sum(axis=1), R)
        used_RM = np.arange(M) < counts_R[:, None]
        positions_PM = batch["mlm_positions"] + places.starts[:, None]
        ids, types = (batch[k][read_PL] for k in ("input_ids", "token_type_ids"))
        pairs = (places.rows, places.slots)
        return packed | {
            "input_ids": placed((R, L), used_RL, ids, pad_id),
            "token_type_ids": placed((R, L), used_RL, types),
            "mlm_positions": placed((R, M), used_RM, positions_PM[masked_PM]),
            "mlm_ids": placed((R, M), used_RM, batch["mlm_ids"][masked_PM]),
            "mlm_weights": used_RM.astype(np.float32),
            "nsp_labels": placed((R, S), pairs, batch["nsp_labels"]),
            "nsp_weights": placed((R, S), pairs, 1, dtype=np.float32),
        }


def row_limits(
    length: int, mask_rate: float, single_sentences: bool = False
) -> tuple[int, int]:
    """Maximum numbers of pairs and of masked tokens in a row of ``length`` tokens.

    single_sentences: whether a pair is a single sentence. A sentence has about 30 tokens.
    """
    max_pairs = min(max(length // 64, 3), 8)
    if single_sentences:
        max_pairs = max(length // 20, 3)
    # Each pair has at least one masked token, and the number is rounded.
    return max_pairs, math.ceil(mask_rate * length) + max_pairs
