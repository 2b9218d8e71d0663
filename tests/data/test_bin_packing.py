import itertools
import math

import numpy as np
import pytest

from bert_jax.data.bin_packing import FEW, best_fit, fewest_rows, fullest_rows


@pytest.mark.parametrize("rule", [best_fit, fullest_rows, fewest_rows])
@pytest.mark.parametrize("slots", [1, 3, 50])
@pytest.mark.parametrize("count", [FEW, 500])
def test_rows_hold_every_example_once_and_no_more_than_they_may(rule, slots, count):
    lengths = np.random.default_rng(slots).integers(3, 65, count)
    rows = rule(lengths, 64, slots)
    assert sorted(itertools.chain(*rows)) == list(range(count))
    assert max(lengths[row].sum() for row in rows) <= 64
    assert max(map(len, rows)) <= slots
    if slots == 50 and count == 500:  # within 3% of what no packing can beat
        assert len(rows) < 1.03 * lengths.sum() / 64


@pytest.mark.parametrize("rule", [best_fit, fullest_rows, fewest_rows])
def test_no_examples_need_no_rows(rule):
    assert rule(np.array([], np.int64), 64, 3) == []


def test_the_fullest_row_beats_the_best_fit():
    """17 beside the longest would leave three of 64, and a third row to be opened."""
    lengths = np.array([17, 14, 40, 44, 6, 5])
    assert len(best_fit(lengths, 64, 9)) == 3
    rows = [lengths[row].tolist() for row in fewest_rows(lengths, 64, 9)]
    assert [sorted(row) for row in rows] == [[6, 14, 44], [5, 17, 40]]


def test_the_first_row_is_as_full_as_any_can_be():
    """Beside the longest example; against every choice of the others."""
    random = np.random.default_rng(0)
    for _ in range(200):
        lengths = random.integers(3, 40, 9)
        slots = int(random.integers(1, 6))
        row = fullest_rows(lengths, 64, slots)[0]
        longest = lengths.argmax()
        others = np.delete(lengths, longest).tolist()
        sums = [
            lengths[longest] + sum(choice)
            for count in range(slots)
            for choice in itertools.combinations(others, count)
        ]
        assert row[0] == longest
        assert lengths[row].sum() == max(total for total in sums if total <= 64)


def test_the_fewest_rows_of_a_batch_are_nearly_as_few_as_can_be():
    """1,000 batches of 24 sequences, three to a row: rows above those that they fill."""
    random = np.random.default_rng(1)
    above = {best_fit: 0, fewest_rows: 0}
    for _ in range(1000):
        lengths = random.triangular(3, 20, 40, 24).astype(int)
        for rule in above:
            above[rule] += len(rule(lengths, 64, 9)) - math.ceil(lengths.sum() / 64)
    assert above[best_fit] > 150
    assert above[fewest_rows] < 0.5 * above[best_fit]


def test_many_sequences_are_not_searched():
    """There best_fit() is nearly as good, and the search takes long."""
    random = np.random.default_rng(2)
    lengths = random.triangular(3, 20, 40, 4 * FEW).astype(int)
    rows = best_fit(lengths, 64, 9)
    assert len(fullest_rows(lengths, 64, 9)) < len(rows)
    assert fewest_rows(lengths, 64, 9) == rows
    assert len(rows) < 1.03 * lengths.sum() / 64
