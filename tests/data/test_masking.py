import numpy as np
import pytest

from bert_jax.data import masking


@pytest.fixture
def rows():
    """2000 rows of 40 positions: 30 candidates in two segments, words of 1-3 tokens."""
    rng = np.random.default_rng(0)
    B, L = 2000, 40
    candidates = np.zeros((B, L), bool)
    candidates[:, 1:16] = candidates[:, 17:32] = True
    continuation = rng.random((B, L)) < 0.3
    keys = rng.integers(0, 2**64, (B, L), np.uint64)
    return candidates, continuation, keys


def chosen_mask(positions, shape):
    mask = np.zeros((shape[0], shape[1] + 1), bool)
    np.put_along_axis(mask, positions, True, 1)
    return mask[:, :-1]


def test_tokens_are_chosen_uniformly_among_candidates(rows):
    candidates, _, keys = rows
    counts = np.arange(len(keys)) % 6 + 1
    positions = masking.choose_tokens(candidates, keys, counts, 6)
    assert np.array_equal((positions < 40).sum(1), counts)
    assert np.all(np.diff(positions, axis=1)[positions[:, 1:] < 40] > 0)
    mask = chosen_mask(positions, keys.shape)
    assert not (mask & ~candidates).any()
    share = mask.mean(0)[candidates[0]]
    expected = counts.mean() / 30
    deviation = (expected * (1 - expected) / len(keys)) ** 0.5
    assert np.abs(share - expected).max() < 4 * deviation


def test_a_row_with_few_candidates_gets_no_other_tokens():
    candidates = np.array([[0, 1, 0, 1, 1, 0], [0, 0, 0, 1, 0, 0], [0] * 6], bool)
    keys = np.arange(18, dtype=np.uint64).reshape(3, 6)
    positions = masking.choose_tokens(candidates, keys, np.array([4, 4, 2]), 4)
    assert positions.tolist() == [[1, 3, 4, 6], [3, 6, 6, 6], [6] * 4]


def words_of(candidates, continuation):
    """Lists of positions. The first token of a segment always starts a word."""
    words = []
    for i in np.flatnonzero(candidates):
        if continuation[i] and candidates[i - 1]:
            words[-1].append(i)
        else:
            words.append([i])
    return words


def test_words_are_masked_whole_and_within_the_count(rows):
    candidates, continuation, keys = rows
    counts = np.full(len(keys), 5)
    positions = masking.choose_words(candidates, continuation, keys, counts, 5)
    mask = chosen_mask(positions, keys.shape)
    sizes = mask.sum(1)
    assert sizes.max() == 5
    # A row has fewer masks than its count only if no other word would fit.
    for b in range(200):
        words = words_of(candidates[b], continuation[b])
        masked = [mask[b, word] for word in words]
        assert all(m.all() or not m.any() for m in masked)
        left = [len(w) for w, m in zip(words, masked, strict=True) if not m.any()]
        assert sizes[b] == 5 or min(left) > 5 - sizes[b]


@pytest.mark.parametrize(
    ("keys", "continuation", "expected"),
    [
        # The second segment starts with a continuation, which counts as a word.
        ([9, 8, 7, 6, 1, 2, 3], [0, 0, 0, 0, 1, 1, 0], [4, 5]),
        # A run of two words from a segment's last word contains only this word.
        ([0, 1 << 32, (1 << 32) - 1, 0, 5 << 32, 6 << 32, 0], [0] * 7, [1, 2]),
    ],
)
def test_words_and_runs_end_with_their_segment(keys, continuation, expected):
    """[CLS] a b [SEP] c d [SEP]"""
    candidates = np.array([[0, 1, 1, 0, 1, 1, 0]], bool)
    words = candidates, np.array([continuation], bool), np.array([keys], np.uint64)
    positions = masking.choose_words(*words, np.array([2]), 2, max_ngram=2)
    assert positions.tolist() == [expected]


def test_runs_of_words_have_alberts_lengths():
    """Without limits and with one run a row, n words have probability 1/n / (11/6)."""
    B, L = 6000, 60
    rng = np.random.default_rng(1)
    candidates = np.ones((B, L), bool)
    keys = rng.integers(0, 2**64, (B, L), np.uint64)
    # The word with the smallest key is chosen first, and its run is cut to the count.
    positions = masking.choose_words(
        candidates, np.zeros((B, L), bool), keys, np.full(B, 3), 3, max_ngram=3
    )
    first = np.argmin(keys, axis=1)
    inside = first < L - 3
    mask = chosen_mask(positions, (B, L))
    low = (keys[np.arange(B), first] & 0xFFFF_FFFF) / 2.0**32
    runs = 1 + (low >= 6 / 11).astype(int) + (low >= 9 / 11)
    for offset in range(3):
        covered = mask[np.arange(B), np.minimum(first + offset, L - 1)]
        assert covered[inside & (runs > offset)].all()
        if offset:  # another run rarely follows a shorter one directly
            assert covered[inside & (runs <= offset)].mean() < 0.1
    shares = [(runs == n).mean() for n in (1, 2, 3)]
    assert shares == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=4 * 0.5 / B**0.5)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(3, 1), (5, 1), (10, 2), (30, 4), (50, 8), (128, 19), (512, 20)],
)
def test_counts_round_15_percent_of_all_tokens(tokens, expected):
    """Halves are rounded to even, as by Python's round."""
    assert masking.prediction_counts(np.array([tokens]), 0.15, 20) == expected
    assert expected == min(20, max(1, round(tokens * 0.15)))


def test_tokens_are_masked_replaced_or_kept_by_their_shares():
    B, L, M = 4000, 30, 8
    rng = np.random.default_rng(2)
    original = rng.integers(0, 1000, (B, L), np.int32)
    positions = np.sort(rng.permuted(np.tile(np.arange(L), (B, 1)), axis=1)[:, :M])
    positions[:, -2:] = L  # unused
    ids = original.copy()
    out = masking.replace(
        ids,
        positions,
        rng.integers(0, 2**64, (B, M, 2), np.uint64),
        mask_id=1001,
        vocab_size=1000,
        mask_share=0.8,
        random_share=0.1,
    )
    used = out["mlm_weights"] > 0
    assert used.sum() == B * (M - 2)
    assert np.all(out["mlm_ids"][~used] == 0)
    restored = ids.copy()
    rows, _ = np.nonzero(used)
    restored[rows, out["mlm_positions"][used]] = out["mlm_ids"][used]
    assert np.array_equal(restored, original)
    inputs = np.take_along_axis(ids, out["mlm_positions"], 1)[used]
    labels = out["mlm_ids"][used]
    n = len(labels)
    shares = [(inputs == 1001).mean(), (inputs == labels).mean()]
    bound = 4 * (0.1 * 0.9 / n) ** 0.5
    assert shares == pytest.approx([0.8, 0.1 + 0.1 / 1000], abs=4 * 0.4 / n**0.5)
    assert abs(shares[1] - 0.1001) < bound
    # The random tokens are uniform over the tenths of the vocabulary.
    replacements = inputs[(inputs != 1001) & (inputs != labels)]
    tenths = np.bincount(replacements // 100, minlength=10) / len(replacements)
    assert tenths == pytest.approx(
        np.full(10, 0.1), abs=4 * 0.3 / len(replacements) ** 0.5
    )
