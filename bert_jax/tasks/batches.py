"""Sequences of many lengths to batches of few shapes, with little padding.

Every shape is compiled once, so the shapes must be few; padding costs time, so they
must fit. An epoch is shuffled, sorted by length within large chunks, and cut into
batches, which are shuffled again; a few lengths, the best for these batches, are the
shapes.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_jax.data.bin_packing import round_up
from bert_jax.tasks.task import IGNORED, Features

GRANULE = 4  # shapes are multiples of this many tokens
CHUNK = 50  # batches that are sorted together: random enough, and even in length
# Batches of an epoch whose time a further shape must save: it takes as long as some to
# compile, once for all epochs.
WORTH = 3


@dataclasses.dataclass(frozen=True)
class Batch:
    """One batch of fixed shape.

    arrays: what the step takes, (B, ...): "input_ids", "token_type_ids", "attention_mask"
    (B, L), or (B, choices, L); "weights" float32 (B,), 0 for the rows that fill up; and
    the targets.
    units: int32 (B,), the sequence (or the row, of several choices) behind each row of
    the batch, -1 where it fills up.
    """

    arrays: dict[str, np.ndarray]
    units: np.ndarray


@dataclasses.dataclass(frozen=True)
class SortedBatches:
    """The training batches of a run, each of like lengths.

    hidden: see make_batch. lengths: those that are compiled.
    """

    features: Features
    batch_size: int
    pad_id: int
    lengths: tuple[int, ...]
    hidden: Sequence[np.ndarray] | None = None

    @classmethod
    def of(
        cls,
        features: Features,
        batch_size: int,
        pad_id: int,
        *,
        most: int,
        limit: int,
        hidden: Sequence[np.ndarray] | None = None,
    ) -> "SortedBatches":
        """With at most ``most`` lengths, none over ``limit``."""
        lengths = unit_lengths(features)
        # Of one order, whatever the seed: the runs of a sweep share what they compile.
        order = epoch_order(lengths, batch_size, seed=0, epoch=0)
        longest = np.array([lengths[units].max() for units in order])
        buckets = bucket_lengths(longest, most, limit, WORTH)
        return cls(features, batch_size, pad_id, buckets, hidden)

    def epoch(self, seed: int, epoch: int) -> list[np.ndarray]:
        """The units of each batch: epoch_order()."""
        return epoch_order(unit_lengths(self.features), self.batch_size, seed, epoch)

    def arrays(self, units: np.ndarray) -> dict[str, np.ndarray]:
        """What the step takes: make_batch()."""
        return make_batch(
            self.features,
            units,
            self.batch_size,
            self.lengths,
            self.pad_id,
            self.hidden,
        ).arrays


def choice_lengths(features: Features, units: np.ndarray | None = None) -> np.ndarray:
    """Tokens of each sequence of the units, (U, choices)."""
    C = features.choices
    if units is None:
        units = np.arange(len(features.input_ids) // C)
    sequences = (units[:, None] * C + np.arange(C)).ravel()
    lengths = [len(features.input_ids[i]) for i in sequences]
    return np.array(lengths, np.int64).reshape(-1, C)


def unit_lengths(features: Features) -> np.ndarray:
    """Tokens of each unit: of a sequence, or of a row's longest choice."""
    return choice_lengths(features).max(axis=1)


def epoch_order(
    lengths: np.ndarray, batch_size: int, seed: int, epoch: int
) -> list[np.ndarray]:
    """The units of each training batch of an epoch, a pure function of its arguments.

    Every unit once; the one batch that may be partial lies anywhere.
    """
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(len(lengths))
    size = batch_size * CHUNK
    batches = []
    for first in range(0, len(order), size):
        chunk = order[first : first + size]
        chunk = chunk[np.argsort(lengths[chunk], kind="stable")]
        # Cut from the long end: the partial batch is one of short sequences.
        cuts = np.arange(len(chunk) % batch_size or batch_size, len(chunk), batch_size)
        batches += np.split(chunk, cuts)
    return [batches[i] for i in random.permutation(len(batches))]


def bucket_lengths(
    longest: np.ndarray, most: int, limit: int, worth: float = 0
) -> tuple[int, ...]:
    """At most ``most`` lengths that cover batches with these ``longest`` sequences.

    Those with the least padding: dynamic programming over the multiples of GRANULE, none
    over ``limit``, the position table. A further one saves ``worth`` batches or more.
    """
    rounded = np.minimum(round_up(np.asarray(longest), GRANULE), limit)
    sizes, counts = np.unique(rounded, return_counts=True)
    # cost[j]: of covering the sizes before j; with one more bucket in each round.
    total = np.concatenate([[0], np.cumsum(counts)])
    cost = np.where(np.arange(len(sizes) + 1) == 0, 0, np.inf)
    choices = []
    for _ in range(min(most, len(sizes))):
        # The last bucket, sizes[j-1], covers the sizes from i on.
        candidates = cost[:, None] + np.concatenate([[0], sizes]) * (
            total[None, :] - total[:, None]
        )
        candidates[np.tril_indices(len(cost))] = np.inf
        candidates[0, 0] = 0
        saved = cost[-1] - candidates[:, -1].min()
        if choices and saved < worth * cost[-1] / len(rounded):
            break
        choices.append(candidates.argmin(axis=0))
        cost = candidates.min(axis=0)
    end, buckets = len(sizes), []
    for choice in reversed(choices):
        if end:
            buckets.append(int(sizes[end - 1]))
            end = choice[end]
    return tuple(reversed(buckets))


def evaluation_order(lengths: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Every unit once, by length."""
    order = np.argsort(lengths, kind="stable")
    return np.split(order, np.arange(batch_size, len(order), batch_size))


def make_batch(
    features: Features,
    units: np.ndarray,
    batch_size: int,
    buckets: Sequence[int],
    pad_id: int,
    hidden: Sequence[np.ndarray] | None = None,
) -> Batch:
    """Pads ``units`` to ``batch_size`` rows and to the smallest bucket that fits.

    hidden: float32 (L_i, W) of each sequence, from a frozen encoder; (B, L, W) under
    "hidden".
    """
    C = features.choices
    sequences = (units[:, None] * C + np.arange(C)).reshape(-1)
    ids = [features.input_ids[i] for i in sequences]
    longest = max(len(row) for row in ids)
    L = min(bucket for bucket in buckets if bucket >= longest)
    shape = (batch_size, C, L) if C > 1 else (batch_size, L)
    inputs = {
        "input_ids": (ids, pad_id),
        "token_type_ids": ([features.token_type_ids[i] for i in sequences], 0),
        "attention_mask": ([np.ones(len(row), np.int32) for row in ids], 0),
    }
    arrays = {
        name: _pad(rows, batch_size * C, L, value).reshape(shape)
        for name, (rows, value) in inputs.items()
    }
    if hidden is not None:
        states = [hidden[i] for i in sequences]
        arrays["hidden"] = np.zeros((batch_size, L, states[0].shape[1]), np.float32)
        for row, state in zip(arrays["hidden"], states, strict=False):
            row[: len(state)] = state
    arrays["weights"] = (np.arange(batch_size) < len(units)).astype(np.float32)
    for name, target in features.targets.items():
        if isinstance(target, list):
            arrays[name] = _pad([target[i] for i in units], batch_size, L, IGNORED)
        else:
            values = target[units]
            fill = [(0, batch_size - len(units))] + [(0, 0)] * (values.ndim - 1)
            arrays[name] = np.pad(values, fill)
    filled = np.full(batch_size, -1, np.int32)
    filled[: len(units)] = units
    return Batch(arrays, filled)


def _pad(rows: Sequence[np.ndarray], count: int, length: int, value: int) -> np.ndarray:
    padded = np.full((count, length), value, np.int32)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded
