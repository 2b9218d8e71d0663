import numpy as np
import pytest

from bert_jax.data import plan as plan_module
from bert_jax.data.plan import plan_epoch


def make_corpus(seed=0, documents=50):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 40, documents)
    lengths = rng.integers(1, 60, sizes.sum()).astype(np.uint16)
    return lengths, np.concatenate([[0], np.cumsum(sizes)])


def plan(lengths, bounds, seed=0, documents=None, **settings):
    if documents is None:
        documents = np.arange(len(bounds) - 1)
    rng = np.random.default_rng(seed)
    defaults = dict(sequence_length=128, short_sequence_rate=0.1, next_sentence=True)
    offsets = np.cumsum([0, *lengths.tolist()])
    return plan_epoch(offsets, bounds, documents, rng, **defaults | settings)


def test_every_sentence_is_used_exactly_once_as_a_or_following_b():
    lengths, bounds = make_corpus()
    result = plan(lengths, bounds)
    used = np.zeros(len(lengths), int)
    for first, a, b in zip(result.first, result.a_count, result.b_count, strict=True):
        used[first : first + a + b] += 1
    assert np.all(used == 1)


def test_chunks_are_what_the_original_makes_of_the_same_choices():
    """Each chunk goes on from where the last one left, and stops at its target."""
    lengths, bounds = make_corpus(1)
    result = plan(lengths, bounds)
    for d in range(len(bounds) - 1):
        mine = result.document == d
        order = np.argsort(result.first[mine])
        rows = np.flatnonzero(mine)[order]
        position = bounds[d]
        targets = set(result.target[rows].tolist())
        assert len(targets) == 1
        target = targets.pop()
        assert 2 <= target <= 125
        for row in rows:
            assert result.first[row] == position
            # Sentences accumulate until they reach the target or the document ends.
            sums = np.cumsum(lengths[position : bounds[d + 1]].astype(int))
            count = min(int(np.searchsorted(sums, target)) + 1, len(sums))
            a, b = int(result.a_count[row]), int(result.b_count[row])
            assert 1 <= a <= max(count - 1, 1)
            if result.random_next[row]:
                assert b == 0
                position += a
            else:
                assert a + b == count > 1
                position += count
        assert position == bounds[d + 1]


def test_a_chunk_of_one_sentence_has_a_random_next():
    lengths = np.full(100, 200, np.uint16)
    result = plan(lengths, np.array([0, 100]))
    assert len(result) == 100
    assert result.random_next.all()


def test_short_targets_are_uniform_and_as_frequent_as_asked():
    lengths = np.full(20_000, 50, np.uint16)
    bounds = np.arange(20_001)
    targets = plan(lengths, bounds, short_sequence_rate=0.1).target
    short = targets < 125
    # 20,000 draws: four binomial deviations of 0.1 * 124 / 125 are 0.0085.
    assert short.mean() == pytest.approx(0.1 * 123 / 124, abs=0.0085)
    assert targets.min() == 2
    assert targets[short].mean() == pytest.approx(63, abs=4 * 36 / 2000**0.5)


def test_without_next_sentence_b_always_follows():
    lengths, bounds = make_corpus(2)
    result = plan(lengths, bounds, next_sentence=False)
    assert not result.random_next.any()
    assert (result.b_count == 0).sum() < len(result) / 2


def test_a_subset_of_documents_is_planned_as_if_it_were_the_corpus():
    lengths, bounds = make_corpus(3)
    chosen = np.array([1, 2, 7, 30])
    parts = [lengths[bounds[d] : bounds[d + 1]] for d in chosen]
    alone = plan(
        np.concatenate(parts), np.concatenate([[0], np.cumsum([*map(len, parts)])])
    )
    among = plan(lengths, bounds, documents=chosen)
    assert np.array_equal(alone.document, among.document)
    assert np.array_equal(alone.a_count, among.a_count)
    shift = bounds[chosen] - np.concatenate([[0], np.cumsum([*map(len, parts)])[:-1]])
    assert np.array_equal(alone.first + shift[alone.document], among.first)


def test_groups_of_documents_bound_the_memory_and_lose_nothing(monkeypatch):
    lengths, bounds = make_corpus(4)
    monkeypatch.setattr(plan_module, "_GROUP_SENTENCES", 100)
    result = plan(lengths, bounds)
    covered = (result.a_count.astype(int) + result.b_count).sum()
    assert covered == len(lengths)
    assert np.array_equal(np.unique(result.document), np.arange(len(bounds) - 1))
