import itertools

import numpy as np
import pytest

from bert_jax.data.bin_packing import best_fit


@pytest.mark.parametrize("slots", [1, 3, 50])
@pytest.mark.parametrize("count", [64, 500])
def test_rows_hold_every_example_once_and_no_more_than_they_may(slots, count):
    lengths = np.random.default_rng(slots).integers(3, 65, count)
    rows = best_fit(lengths, 64, slots)
    assert sorted(itertools.chain(*rows)) == list(range(count))
    assert max(lengths[row].sum() for row in rows) <= 64
    assert max(map(len, rows)) <= slots
    if slots == 50 and count == 500:  # within 3% of what no packing can beat
        assert len(rows) < 1.03 * lengths.sum() / 64


def test_no_examples_need_no_rows():
    assert best_fit(np.array([], np.int64), 64, 3) == []
