import itertools

import numpy as np
import pytest

from bert_jax.tasks.batches import choice_lengths
from bert_jax.tasks.even_batches import even_batches
from bert_jax.tasks.packing import PackedBatches
from bert_jax.tasks.task import IGNORED, Features

BATCH = 8


def make_features(lengths, choices=1, targets=None):
    """Sequences of these lengths; the ids tell sequence and position."""
    ids = [100 * (i + 1) + np.arange(n, dtype=np.int32) for i, n in enumerate(lengths)]
    segments = [np.int32(np.arange(n) >= n // 2) for n in lengths]
    rows = np.repeat(np.arange(len(lengths) // choices, dtype=np.int32), choices)
    return Features(ids, segments, rows, targets or {}, choices)


def make_batches(features, multiple=1, most=4, limit=64, parts=1):
    return PackedBatches.of(
        features, BATCH, 7, most=most, limit=limit, multiple=multiple, parts=parts
    )


def random_lengths(count, seed=0, longest=60):
    """A few long ones among many short ones."""
    return np.random.default_rng(seed).triangular(3, 5, longest, count).astype(int)


@pytest.mark.parametrize("units", [1, 7, 8, 9, 1003])
def test_an_epoch_has_every_unit_once_in_full_batches_but_the_last(units):
    order = make_batches(make_features(random_lengths(units))).epoch(1, 2)
    assert sorted(np.concatenate(order).tolist()) == list(range(units))
    assert [len(b) for b in order[:-1]] == [BATCH] * (len(order) - 1)
    assert len(order[-1]) == (units % BATCH or BATCH)


def test_an_epoch_is_a_pure_function_of_seed_and_number():
    batches = make_batches(make_features(random_lengths(100)))

    def order(seed, epoch):
        return np.concatenate(batches.epoch(seed, epoch)).tolist()

    assert order(1, 2) == order(1, 2)
    orders = [order(*a) for a in ((1, 2), (1, 3), (2, 2), (2, 1))]
    for a, b in itertools.combinations(orders, 2):
        assert a != b


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("choices", [1, 3])
@pytest.mark.parametrize("multiple", [1, 4])
def test_the_arrays_hold_every_sequence_once_and_nothing_else(choices, multiple, parts):
    """Each in the slot that its unit names, in its own microbatch."""
    units = 44
    lengths = random_lengths(units * choices, seed=choices)
    targets = {
        "label": np.arange(units, dtype=np.int32),
        "choice_mask": np.random.default_rng(0).random((units, choices)),
    }
    features = make_features(lengths, choices, targets)
    batches = make_batches(features, multiple, parts=parts)
    for units in batches.epoch(0, 0):
        arrays = batches.arrays(units)
        rows, length = arrays["input_ids"].shape
        slots = arrays["starts"].shape[1]
        assert rows % (parts * multiple) == 0
        assert length <= 64
        for name in ("input_ids", "token_type_ids", "attention_mask"):
            assert arrays[name].shape == (rows, length)
            assert arrays[name].dtype == np.int32
        if choices == 1:
            assert arrays["weights"].shape == (rows, slots)
            arrays["slots"] = np.arange(rows * slots)[:, None]
            for name in ("label", "weights", "choice_mask"):
                shape = arrays[name].shape
                arrays[name] = arrays[name].reshape(rows * slots, *shape[2:])
        assert len(arrays["slots"]) == len(arrays["weights"])
        assert len(arrays["slots"]) % (parts * multiple) == 0
        seen = []
        claimed = np.zeros((rows, length), bool)
        for u in np.flatnonzero(arrays["weights"]):
            unit = arrays["label"][u]
            seen.append(unit)
            assert np.array_equal(
                arrays["choice_mask"][u], targets["choice_mask"][unit]
            )
            for c in range(choices):
                sequence = unit * choices + c
                r, s = divmod(int(arrays["slots"][u, c]), slots)
                if choices > 1:  # the row's number within its microbatch
                    r = r * parts + u % parts
                first = arrays["starts"][r, s]
                own = arrays["segment_ids"][r] == s + 1
                token = slice(first, first + lengths[sequence])
                assert own.sum() == own[token].sum() == lengths[sequence]
                assert not np.any(claimed[r] & own)
                claimed[r] |= own
                for name, values in (
                    ("input_ids", features.input_ids),
                    ("token_type_ids", features.token_type_ids),
                ):
                    assert np.array_equal(arrays[name][r, token], values[sequence])
        assert sorted(seen) == sorted(units)
        assert np.array_equal(arrays["attention_mask"] > 0, claimed)
        assert np.all(arrays["input_ids"][~claimed] == 7)
        assert np.all(arrays["token_type_ids"][~claimed] == 0)


def test_labels_of_tokens_lie_where_the_tokens_lie():
    lengths = random_lengths(24)
    ids = [np.full(n, 10 + i, np.int32) for i, n in enumerate(lengths)]
    features = Features(ids, ids, np.arange(24), {"labels": ids})
    batches = make_batches(features)
    for units in batches.epoch(0, 0):
        arrays = batches.arrays(units)
        real = arrays["attention_mask"] > 0
        assert np.array_equal(arrays["labels"][real], arrays["input_ids"][real])
        assert np.all(arrays["labels"][~real] == IGNORED)


def test_few_shapes_hold_all_batches_with_little_padding():
    features = make_features(random_lengths(2000, longest=100))
    batches = make_batches(features, most=5, limit=512)
    assert len(batches.shapes) <= 5
    assert batches.shapes == make_batches(features, most=5, limit=512).shapes
    seen, real, computed = [], 0, 0
    for units in batches.epoch(3, 1):
        mask = batches.arrays(units)["attention_mask"]
        seen.append(mask.shape)
        real += np.count_nonzero(mask)
        computed += mask.size
    known = {(shape.rows, shape.length) for shape in batches.shapes}
    # A batch that is unlike all of the sample has a shape of its own.
    assert np.mean([shape in known for shape in seen]) > 0.95
    random = sum(
        BATCH * choice_lengths(features, units).max() for units in batches.epoch(3, 1)
    )
    # Of the 8 of a batch most share three rows.
    assert 1 - real / computed < 0.1
    assert 1 - real / random > 0.4  # what padding to the longest would be


def test_an_epoch_is_exchanged_for_the_commonest_shape():
    """11% of these batches need another one as even_batches() leaves them."""
    lengths = np.random.default_rng(0).triangular(10, 30, 60, 2000).astype(int)
    batches = make_batches(make_features(lengths), limit=512)
    usual = batches.shapes[0]
    even = even_batches(lengths, BATCH, np.random.default_rng((3, 1)))
    epoch = batches.epoch(3, 1)
    assert np.mean([usual.fits(lengths[units]) for units in even]) < 0.9
    assert np.mean([usual.fits(lengths[units]) for units in epoch]) > 0.98


def test_a_longer_epoch_compiles_more_shapes():
    """A shape must save the time of three batches of an epoch."""
    counts = [
        len(make_batches(make_features(random_lengths(n)), most=12).shapes)
        for n in (BATCH * 3, BATCH * 100, BATCH * 2000)
    ]
    assert counts[0] == 1
    assert counts[0] < counts[1] < counts[2] <= 12


def test_a_batch_that_fits_no_shape_has_one_of_its_own():
    """The longest sequences of all in one batch: the sample has none like it."""
    lengths = np.array([60] * BATCH + [5] * 400)
    batches = make_batches(make_features(lengths), multiple=2)
    arrays = batches.arrays(np.arange(BATCH))
    rows, length = arrays["input_ids"].shape
    assert max(s.rows * s.length for s in batches.shapes) < 60 * BATCH
    assert rows == BATCH
    assert length >= 60
    assert arrays["weights"].sum() == BATCH


def test_rows_are_no_longer_than_the_position_table():
    lengths = np.full(50, 30)
    for limit in (30, 31, 64, 512):
        batches = make_batches(make_features(lengths), limit=limit)
        assert all(30 <= shape.length <= limit for shape in batches.shapes)
