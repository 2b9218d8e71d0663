import numpy as np
import pytest

from bert_jax.tasks.even_batches import even_batches, exchanged
from bert_jax.tasks.row_shapes import Shape

BATCH = 8


def test_batches_are_even_and_still_random():
    """A hundredth of their tokens apart, after few exchanges; no length has its place."""
    lengths = np.random.default_rng(0).triangular(3, 5, 60, 1600).astype(int)
    drawn = np.random.default_rng(3).permutation(1600).reshape(-1, 32)
    batches = np.stack(even_batches(lengths, 32, np.random.default_rng(3)))
    totals = lengths[batches].sum(axis=1)
    assert np.ptp(lengths[drawn].sum(axis=1)) > 0.3 * totals.mean()
    assert np.ptp(totals) <= 0.01 * totals.mean()
    moved = [
        32 - len(np.intersect1d(a, b)) for a, b in zip(drawn, batches, strict=True)
    ]
    assert np.mean(moved) < 2
    # The lengths within a batch vary as much as those of all.
    spreads = lengths[batches].std(axis=1)
    assert abs(spreads.mean() / lengths.std() - 1) < 0.03


@pytest.mark.parametrize(
    "lengths", [[9] * 20, [60, 3, 3, 3, 3, 3, 3, 3] * 2 + [60], [5], [1, 60] * 10]
)
def test_what_cannot_be_evened_stays_as_it_is(lengths):
    batches = even_batches(np.array(lengths), BATCH, np.random.default_rng(0))
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))


def fitting(batches, lengths, shape):
    return [shape.fits(lengths[units].ravel()) for units in batches]


@pytest.mark.parametrize("choices", [1, 2])
def test_exchanges_make_batches_fit(choices):
    """Rows with 2% to spare: one of eight does not, as they are drawn."""
    units = 1280 // choices
    lengths = (
        np.random.default_rng(0).triangular(3, 5, 50, (units, choices)).astype(int)
    )
    size = 16 // choices
    batches = even_batches(lengths.sum(axis=1), size, np.random.default_rng(0))
    totals = [lengths[units].sum() for units in batches]
    shape = Shape(6, round(1.02 * np.mean(totals) / 6), 9)
    before = fitting(batches, lengths, shape)
    after = exchanged(batches, lengths, shape.fits, np.random.default_rng(0))
    assert np.mean(before) < 0.9
    assert np.mean(fitting(after, lengths, shape)) > 0.97
    # Every unit once; those that fitted still do; few were moved.
    assert [len(units) for units in after] == [len(units) for units in batches]
    assert sorted(np.concatenate(after)) == list(range(units))
    assert np.all(np.array(fitting(after, lengths, shape)) >= before)
    moved = [len(np.setdiff1d(a, b)) for a, b in zip(batches, after, strict=True)]
    assert np.mean(moved) < 0.5


def test_exchanges_leave_what_they_cannot_mend():
    """A sequence longer than the rows, and batches that all fit."""
    lengths = np.array([[70]] + [[8]] * 31)
    batches = list(np.arange(32).reshape(4, 8))
    shape = Shape(1, 64, 8)
    for sizes in (lengths, lengths[::-1], np.full((32, 1), 8)):
        after = exchanged(batches, sizes, shape.fits, np.random.default_rng(0))
        for a, b in zip(batches, after, strict=True):
            assert np.array_equal(a, b)
