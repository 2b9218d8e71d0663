import itertools

import numpy as np
import pytest

from bert_jax.tasks.batches import (
    CHUNK,
    GRANULE,
    SortedBatches,
    bucket_lengths,
    epoch_order,
    evaluation_order,
    make_batch,
    unit_lengths,
)
from bert_jax.tasks.task import IGNORED, Features


def make_features(lengths, choices=1, targets=None):
    """Sequences of these lengths; the ids tell which sequence they are of."""
    ids = [np.full(n, 10 + i, np.int32) for i, n in enumerate(lengths)]
    segments = [np.int32(np.arange(n) >= n // 2) for n in lengths]
    rows = np.repeat(np.arange(len(lengths) // choices, dtype=np.int32), choices)
    return Features(ids, segments, rows, targets or {}, choices)


@pytest.mark.parametrize("units", [1, 7, 8, 9, 8 * CHUNK, 8 * CHUNK + 1, 1003])
def test_an_epoch_has_every_unit_once_in_full_batches_but_one(units):
    lengths = np.random.default_rng(units).integers(3, 100, units)
    order = epoch_order(lengths, 8, seed=1, epoch=2)
    assert sorted(np.concatenate(order).tolist()) == list(range(units))
    sizes = sorted(map(len, order), reverse=True)
    assert sizes == [8] * (units // 8) + [units % 8] * (units % 8 > 0)


def test_an_epoch_is_a_pure_function_of_seed_and_number():
    lengths = np.random.default_rng(0).integers(3, 100, 500)

    def order(seed, epoch):
        return [units.tolist() for units in epoch_order(lengths, 8, seed, epoch)]

    assert order(1, 2) == order(1, 2)
    orders = [order(*arguments) for arguments in ((1, 2), (1, 3), (2, 2), (2, 1))]
    for a, b in itertools.combinations(orders, 2):
        assert a != b


def test_batches_are_even_in_length_and_come_in_any_order():
    lengths = np.random.default_rng(0).integers(3, 100, 800)
    order = epoch_order(lengths, 8, seed=0, epoch=0)
    longest = np.array([lengths[units].max() for units in order])
    spread = longest - [lengths[units].min() for units in order]
    assert spread.mean() < 5  # it is 76 for batches at random
    # Sorted within two chunks only, and the batches shuffled.
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.3


def test_the_partial_batch_is_one_of_short_sequences():
    lengths = np.arange(10, 29)
    partial = [u for u in epoch_order(lengths, 8, seed=0, epoch=0) if len(u) < 8]
    assert sorted(lengths[partial[0]].tolist()) == [10, 11, 12]


def _cost(longest, buckets):
    buckets = np.array(buckets)
    return sum(int(buckets[buckets >= n].min()) for n in longest)


@pytest.mark.parametrize("seed", range(30))
def test_buckets_are_the_best_of_all(seed):
    """Against every set of at most ``most`` multiples of GRANULE, or the limit."""
    random = np.random.default_rng(seed)
    limit = int(random.integers(20, 70))
    longest = random.integers(3, limit + 1, random.integers(1, 40))
    most = int(random.integers(1, 5))
    buckets = bucket_lengths(longest, most, limit)
    assert 1 <= len(buckets) <= most
    assert list(buckets) == sorted(set(buckets))
    assert longest.max() <= buckets[-1] <= limit
    assert all(size % GRANULE == 0 or size == limit for size in buckets)
    sizes = {*range(GRANULE, limit, GRANULE), limit}
    best = min(
        _cost(longest, chosen)
        for count in range(1, most + 1)
        for chosen in itertools.combinations(sorted(sizes), count)
        if chosen[-1] >= longest.max()
    )
    assert _cost(longest, buckets) == best


def test_no_bucket_is_made_for_nothing():
    assert bucket_lengths(np.array([5, 6, 30, 31]), 4, 128) == (8, 32)
    assert bucket_lengths(np.array([5, 6, 30, 31]), 1, 128) == (32,)
    assert bucket_lengths(np.array([101]), 4, 102) == (102,)


def test_a_further_bucket_saves_the_batches_it_is_worth():
    """Ten batches of 8 and ten of 32: the second length saves 7.5 of 20 at 32."""
    longest = np.array([8] * 10 + [32] * 10)
    assert bucket_lengths(longest, 4, 128, worth=7.5) == (8, 32)
    assert bucket_lengths(longest, 4, 128, worth=7.6) == (32,)


@pytest.mark.parametrize("units", [1, 7, 8, 9])
def test_evaluation_takes_every_unit_once_by_length(units):
    lengths = np.random.default_rng(units).integers(3, 100, units)
    order = np.concatenate(evaluation_order(lengths, 8))
    assert sorted(order.tolist()) == list(range(units))
    assert np.all(np.diff(lengths[order]) >= 0)


def test_a_batch_is_padded_on_the_right_and_filled_up_below():
    targets = {
        "label": np.array([3, 1, 4, 1], np.int32),
        "labels": [np.arange(n, dtype=np.int32) for n in (3, 9, 5, 2)],
    }
    features = make_features([3, 9, 5, 2], targets=targets)
    batch = make_batch(features, np.array([2, 0]), 4, (4, 6, 12), pad_id=7)
    assert batch.units.tolist() == [2, 0, -1, -1]
    arrays = batch.arrays
    assert arrays["input_ids"].tolist() == [
        [12, 12, 12, 12, 12, 7],
        [10, 10, 10, 7, 7, 7],
        [7] * 6,
        [7] * 6,
    ]
    assert arrays["token_type_ids"].tolist() == [
        [0, 0, 1, 1, 1, 0],
        [0, 1, 1, 0, 0, 0],
        [0] * 6,
        [0] * 6,
    ]
    assert arrays["attention_mask"].sum(axis=1).tolist() == [5, 3, 0, 0]
    assert arrays["weights"].tolist() == [1, 1, 0, 0]
    assert arrays["label"].tolist() == [4, 3, 0, 0]
    assert arrays["labels"].tolist() == [
        [0, 1, 2, 3, 4, IGNORED],
        [0, 1, 2, IGNORED, IGNORED, IGNORED],
        [IGNORED] * 6,
        [IGNORED] * 6,
    ]
    floats = {"weights"}
    for name, array in arrays.items():
        assert array.dtype == (np.float32 if name in floats else np.int32), name


def test_the_choices_of_a_row_stay_together():
    targets = {
        "label": np.array([0, 1], np.int32),
        "choice_mask": np.array([[1, 1, 0], [1, 1, 1]], np.float32),
    }
    features = make_features([3, 4, 2, 5, 6, 7], choices=3, targets=targets)
    assert unit_lengths(features).tolist() == [4, 7]
    batch = make_batch(features, np.array([1]), 2, (8,), pad_id=0)
    arrays = batch.arrays
    assert batch.units.tolist() == [1, -1]
    for name in ("input_ids", "token_type_ids", "attention_mask"):
        assert arrays[name].shape == (2, 3, 8)
    assert arrays["input_ids"][0, :, 0].tolist() == [13, 14, 15]
    assert arrays["attention_mask"].sum(axis=2).tolist() == [[5, 6, 7], [0, 0, 0]]
    assert arrays["label"].tolist() == [1, 0]
    assert arrays["choice_mask"].tolist() == [[1, 1, 1], [0, 0, 0]]


def test_regression_labels_stay_floats():
    features = make_features([3, 4], targets={"label": np.array([0.5, 2], np.float32)})
    label = make_batch(features, np.array([1]), 2, (8,), pad_id=0).arrays["label"]
    assert label.dtype == np.float32
    assert label.tolist() == [2, 0]


def test_hidden_states_are_padded_with_zeros():
    features = make_features([3, 5])
    hidden = [np.full((n, 4), n, np.float32) for n in (3, 5)]
    arrays = make_batch(features, np.array([1, 0]), 3, (8,), 0, hidden).arrays
    assert arrays["hidden"].shape == (3, 8, 4)
    assert arrays["hidden"].dtype == np.float32
    assert arrays["hidden"][:, :, 0].sum(axis=1).tolist() == [25, 9, 0]
    assert np.all(arrays["hidden"][0, :5] == 5)
    assert np.all(arrays["hidden"][1, 3:] == 0)


def test_sorted_batches_have_few_lengths_whatever_the_seed():
    random = np.random.default_rng(0)
    features = make_features(random.integers(3, 60, 301), targets={})
    batches = SortedBatches.of(features, 8, 7, most=3, limit=64)
    assert len(batches.lengths) == 3
    lengths = unit_lengths(features)
    for seed, epoch in ((0, 0), (3, 1)):
        order = batches.epoch(seed, epoch)
        expected = epoch_order(lengths, 8, seed, epoch)
        for units, same in zip(order, expected, strict=True):
            assert np.array_equal(units, same)
            made = batches.arrays(units)
            direct = make_batch(features, units, 8, batches.lengths, 7).arrays
            assert all(np.array_equal(made[name], direct[name]) for name in direct)
