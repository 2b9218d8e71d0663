import numpy as np

from bert_jax.data import sequences
from bert_jax.tasks import tagging_windows as windows


def random_offsets(rng, words, longest):
    return np.cumsum([0, *rng.integers(1, longest + 1, words)])


def test_widening_fills_the_window_from_both_sides():
    rng = np.random.default_rng(0)
    balanced = 0
    for _ in range(300):
        capacity = int(rng.integers(8, 60))
        offsets = random_offsets(rng, 60, 5)
        low, start, stop, high = sorted(rng.choice(61, 4, replace=False).tolist())
        stop = sequences.windows(offsets, (start, stop), capacity, capacity)[0][1]
        a, b = windows.widen(offsets, (start, stop), (low, high), capacity)
        assert low <= a <= start and stop <= b <= high
        room = capacity - (offsets[b] - offsets[a])
        assert room >= 0
        assert a == low or offsets[a] - offsets[a - 1] > room
        assert b == high or offsets[b + 1] - offsets[b] > room
        if a > low and b < high:
            sides = (offsets[start] - offsets[a], offsets[b] - offsets[stop])
            assert abs(sides[0] - sides[1]) <= 2 * 5
            balanced += 1
    assert balanced > 20


def test_documents_are_runs_of_equal_numbers():
    sentences = [(0, 2), (2, 5), (5, 6), (6, 9)]
    assert windows.documents([7, 7, 3, 7], sentences) == [
        (0, 5),
        (0, 5),
        (5, 6),
        (6, 9),
    ]
