import itertools

import numpy as np
import pytest

from bert_jax.data.sequences import fit, owners, pair_lengths, token_windows, windows


def test_pair_lengths_equal_run_classifiers():
    """For arrays of lengths, and for single pairs."""
    for room in range(2, 14):
        lengths = np.array(list(itertools.product(range(12), repeat=2)))
        expected = []
        for first, second in lengths:
            a, b = list(range(first)), list(range(second))
            while len(a) + len(b) > room:
                (a if len(a) > len(b) else b).pop()
            expected.append((len(a), len(b)))
        assert np.stack(pair_lengths(*lengths.T, room), 1).tolist() == [
            *map(list, expected)
        ]
        assert pair_lengths(11, 7, room) == expected[11 * 12 + 7]


def spans_of_run_squad(tokens, room, stride):
    """doc_spans of the original run_squad.py: (start, length)."""
    spans, start = [], 0
    while start < tokens:
        length = min(tokens - start, room)
        spans.append((start, length))
        if start + length == tokens:
            break
        start += min(length, stride)
    return spans


def best_span_of_run_squad(spans, position):
    """The span for which _check_is_max_context of the original returns True."""
    best_score, best = None, None
    for i, (start, length) in enumerate(spans):
        end = start + length - 1
        if position < start or position > end:
            continue
        score = min(position - start, end - position) + 0.01 * length
        if best_score is None or score > best_score:
            best_score, best = score, i
    return best


def test_each_text_of_a_pair_keeps_its_end_with_head_tail():
    """The texts share the head of 128 tokens. With 128 each, none would keep its end."""
    texts = [np.arange(600), np.arange(600, 1000)]
    first, second = fit(texts, 253, "head_tail", 128)
    np.testing.assert_array_equal(first, [*range(64), *range(537, 600)])
    np.testing.assert_array_equal(second, [*range(600, 663), *range(937, 1000)])


@pytest.mark.parametrize(
    "room, stride", [(372, 128), (150, 128), (31, 8), (5, 2), (4, 9)]
)
def test_windows_and_their_tokens_equal_run_squads(room, stride):
    """A last window that ends soon after the window before it owns few tokens."""
    assert token_windows(0, room, stride) == [(0, 0)]
    for tokens in [*range(1, 3 * room, 7), room, room + 1, 2 * room + stride + 1]:
        spans = spans_of_run_squad(tokens, room, stride)
        ours = token_windows(tokens, room, stride)
        assert ours == [(start, start + length) for start, length in spans]
        expected = [best_span_of_run_squad(spans, i) for i in range(tokens)]
        assert owners(np.arange(tokens + 1), (0, tokens), ours).tolist() == expected


def random_offsets(rng, words, longest):
    return np.cumsum([0, *rng.integers(1, longest + 1, words)])


def score(offsets, window, word):
    left = offsets[word] - offsets[window[0]]
    right = offsets[window[1]] - offsets[word + 1]
    return min(left, right) + 0.01 * (offsets[window[1]] - offsets[window[0]])


def test_windows_cover_each_word_with_the_most_context():
    rng = np.random.default_rng(0)
    several = 0
    for _ in range(300):
        capacity = int(rng.integers(1, 30))
        offsets = random_offsets(rng, 80, min(capacity, 6))
        first, last = sorted(rng.choice(80, 2, replace=False).tolist())
        stride = int(rng.integers(1, capacity + 1))
        spans = windows(offsets, (first, last), capacity, stride)
        assert spans[0][0] == first and spans[-1][1] == last
        for start, stop in spans:
            assert 0 < offsets[stop] - offsets[start] <= capacity
            # The window is full, because the next word would not fit.
            assert stop == last or offsets[stop + 1] - offsets[start] > capacity
        for (a, b), (c, d) in itertools.pairwise(spans):
            assert a < c <= b <= d
            assert offsets[c] - offsets[a] <= stride or c == a + 1
        owner = owners(offsets, (first, last), spans)
        assert owner.min() >= 0
        for word, i in enumerate(owner, first):
            start, stop = spans[i]
            assert start <= word < stop
            inside = [s for s in spans if s[0] <= word < s[1]]
            best = max(score(offsets, s, word) for s in inside)
            assert score(offsets, spans[i], word) == best
        several += len(spans) > 1
    assert several > 100
