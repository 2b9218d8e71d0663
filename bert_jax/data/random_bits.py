"""Random numbers of many examples at once, from the bits of a counter-based generator."""

import numpy as np

# Philox4x64-10 (Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3).
_MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
_LOW = np.uint64(0xFFFF_FFFF)
_HALF = np.uint64(32)


def first_words(bits: np.random.Philox, counters: np.ndarray) -> np.ndarray:
    """The first four words that ``bits`` gives from each of its counters: uint64 (n, 4).

    counters: uint64 (n,), the lowest word of each. numpy makes a stream at a time, which
    takes ten times as long where few words of each are needed.
    """
    keys = bits.state["state"]["key"].tolist()
    a, d = counters + np.uint64(1), np.uint64(0)  # numpy counts before it draws
    b = c = np.zeros_like(counters)
    for _ in range(10):
        a, b, c, d = (
            _high_product(_MULTIPLIERS[1], c) ^ b ^ np.uint64(keys[0]),
            c * np.uint64(_MULTIPLIERS[1]),
            _high_product(_MULTIPLIERS[0], a) ^ d ^ np.uint64(keys[1]),
            a * np.uint64(_MULTIPLIERS[0]),
        )
        keys = [(k + w) % 2**64 for k, w in zip(keys, _WEYL, strict=True)]
    return np.stack([a, b, c, d], axis=1)


def _high_product(number: int, x: np.ndarray) -> np.ndarray:
    """The upper 64 of the 128 bits of a product, by multiplying halves."""
    low, high = np.uint64(number & 0xFFFF_FFFF), np.uint64(number >> 32)
    x_low, x_high = x & _LOW, x >> _HALF
    first = high * x_low + (low * x_low >> _HALF)
    second = low * x_high + (first & _LOW)
    return high * x_high + (first >> _HALF) + (second >> _HALF)


def binomial_half(sizes_B: np.ndarray, words_BW: np.ndarray) -> np.ndarray:
    """Binomial(size, 1/2) of each row, by counting random bits of its words (uint64).

    A row of more tokens than bits seeds a generator with its first word instead.
    """
    W = words_BW.shape[1]
    bits_BW = np.clip(sizes_B[:, None] - 64 * np.arange(W), 0, 64).astype(np.uint64)
    # A shift by 64 is undefined: shift by 63 and once more.
    used_BW = np.where(bits_BW == 0, np.uint64(0), words_BW)
    dropped_BW = np.where(bits_BW == 0, np.uint64(0), np.uint64(64) - bits_BW)
    counts_B = np.bitwise_count(used_BW >> dropped_BW).sum(1, dtype=np.int64)
    for i in np.flatnonzero(sizes_B > 64 * W):
        rng = np.random.Generator(np.random.Philox(key=int(words_BW[i, 0])))
        counts_B[i] = rng.binomial(int(sizes_B[i]), 0.5)
    return counts_B
