import itertools

import numpy as np

from bert_jax.tasks import tagging_windows as windows


def random_offsets(rng, words, longest):
    return np.cumsum([0, *rng.integers(1, longest + 1, words)])


def context(offsets, window, word):
    left = offsets[word] - offsets[window[0]]
    right = offsets[window[1]] - offsets[word + 1]
    return min(left, right), left + right


def test_windows_cover_each_word_with_the_most_context():
    rng = np.random.default_rng(0)
    several = 0
    for _ in range(300):
        capacity = int(rng.integers(1, 30))
        offsets = random_offsets(rng, 80, min(capacity, 6))
        first, last = sorted(rng.choice(80, 2, replace=False).tolist())
        stride = int(rng.integers(1, capacity + 1))
        spans = windows.cut(offsets, (first, last), capacity, stride)
        assert spans[0][0] == first and spans[-1][1] == last
        for start, stop in spans:
            assert 0 < offsets[stop] - offsets[start] <= capacity
            # Full: the next word would not have fitted.
            assert stop == last or offsets[stop + 1] - offsets[start] > capacity
        for (a, b), (c, d) in itertools.pairwise(spans):
            assert a < c <= b <= d
            assert offsets[c] - offsets[a] <= stride or c == a + 1
        owner = windows.owners(offsets, (first, last), spans)
        assert owner.min() >= 0
        for word, i in enumerate(owner, first):
            start, stop = spans[i]
            assert start <= word < stop
            inside = [s for s in spans if s[0] <= word < s[1]]
            assert context(offsets, spans[i], word) == max(
                context(offsets, s, word) for s in inside
            )
        several += len(spans) > 1
    assert several > 100


def test_widening_fills_the_window_from_both_sides():
    rng = np.random.default_rng(0)
    balanced = 0
    for _ in range(300):
        capacity = int(rng.integers(8, 60))
        offsets = random_offsets(rng, 60, 5)
        low, start, stop, high = sorted(rng.choice(61, 4, replace=False).tolist())
        stop = windows.cut(offsets, (start, stop), capacity, capacity)[0][1]
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
