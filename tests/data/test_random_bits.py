import numpy as np
import pytest

from bert_jax.data.random_bits import binomial_half, first_words


def test_the_first_words_are_those_of_numpy():
    random = np.random.default_rng(0)
    counters = random.integers(0, 2**48, 100, np.uint64)
    for key in random.integers(0, 2**64, (3, 2), np.uint64):
        words = first_words(np.random.Philox(key=key), counters)
        for i, counter in enumerate(counters.tolist()):
            bits = np.random.Philox(key=key, counter=[counter, 0, 0, 0])
            assert np.array_equal(words[i], bits.random_raw(4))


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 200, 512, 3000])
def test_front_cuts_are_binomial(size):
    n = 4000
    words = np.random.default_rng(size).integers(0, 2**64, (n, 8), np.uint64)
    counts = binomial_half(np.full(n, size), words)
    assert counts.min() >= 0
    assert counts.max() <= size
    deviation = size**0.5 / 2
    assert abs(counts.mean() - size / 2) <= 4 * deviation / n**0.5
    assert counts.std() == pytest.approx(deviation, rel=4 / (2 * n) ** 0.5, abs=1e-9)
