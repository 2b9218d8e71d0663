"""Packed rows contain exactly the examples of a batch."""

import itertools

import numpy as np
import pytest

from bert_jax.data.examples import ExampleConfig, ExampleSource
from bert_jax.data.masking import prediction_counts
from bert_jax.data.packing import Packing, best_fit, row_limits

LENGTH = 64


@pytest.fixture(scope="module")
def batch(moby_dick, uncased):
    """96 pairs of up to 64, 40 and 20 tokens, as at ends of documents."""
    parts = []
    for length, predictions in ((64, 10), (40, 6), (20, 3)):
        source = ExampleSource(
            moby_dick,
            uncased,
            ExampleConfig(),
            sequence_length=length,
            max_predictions=predictions,
            seed=0,
        )
        part = source.draw(range(32))
        for name, array in part.items():
            width = 10 if name.startswith("mlm") else LENGTH
            if array.ndim == 2:
                part[name] = np.pad(array, ((0, 0), (0, width - array.shape[1])))
        parts.append(part)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@pytest.fixture(scope="module")
def packed(batch, uncased):
    lengths = batch["attention_mask"].sum(axis=1)
    packing = Packing.of(lengths, 96, LENGTH, mask_rate=0.15, multiple=4)
    return packing.pack(batch, packing.rows(lengths), uncased.pad_id)


def as_seen(ids, segments, positions, mlm_ids, label):
    return (*map(tuple, (ids, segments, positions, mlm_ids)), int(label))


def test_packed_rows_contain_the_same_examples(batch, packed):
    """Compares tokens, token types, masked positions in the pair, and labels."""
    expected = []
    for row in range(96):
        used = batch["mlm_weights"][row] > 0
        real = batch["attention_mask"][row] > 0
        expected.append(
            as_seen(
                batch["input_ids"][row][real],
                batch["token_type_ids"][row][real],
                batch["mlm_positions"][row][used],
                batch["mlm_ids"][row][used],
                batch["nsp_labels"][row],
            )
        )
    examples = []
    for row, slot in np.argwhere(packed["nsp_weights"] > 0):
        places = np.flatnonzero(packed["segment_ids"][row] == slot + 1)
        start = packed["starts"][row, slot]
        assert np.array_equal(places, start + np.arange(len(places)))
        positions = packed["mlm_positions"][row]
        mine = (packed["mlm_weights"][row] > 0) & np.isin(positions, places)
        examples.append(
            as_seen(
                packed["input_ids"][row, places],
                packed["token_type_ids"][row, places],
                positions[mine] - start,
                packed["mlm_ids"][row][mine],
                packed["nsp_labels"][row, slot],
            )
        )
    assert sorted(examples) == sorted(expected)
    assert packed["mlm_weights"].sum() == batch["mlm_weights"].sum()


def test_padding_is_a_few_percent(batch, packed, uncased):
    """With one row for each of the 96 pairs a third of the tokens are padding."""
    assert 1 - batch["attention_mask"].mean() > 0.3
    padding = packed["attention_mask"] == 0
    assert padding.mean() < 0.08 and len(padding) % 4 == 0
    assert np.all(packed["input_ids"][padding] == uncased.pad_id)
    assert not packed["token_type_ids"][padding].any()
    assert packed["nsp_weights"].dtype == packed["mlm_weights"].dtype == np.float32


def test_large_batches_share_a_few_row_counts():
    """Each number of rows compiles a program. Batches of 300 pairs need 100 to 300 rows."""
    packing = Packing((210, 240), 2, 128, max_pairs=3, max_predictions=22)
    counts = {}
    for full in range(0, 301, 3):  # pairs that fill a row; three others share a row
        rows = full + (300 - full) // 3
        lengths = np.where(np.arange(300) < full, 128, 40)
        counts[rows] = len(packing.rows(lengths))
    assert all(count >= rows for rows, count in counts.items())
    assert sorted(set(counts.values())) == [210, 240, 252, 264, 276, 288, 300]
    assert (counts[100], counts[210], counts[212], counts[240]) == (210, 210, 240, 240)
    assert (counts[242], counts[252], counts[254]) == (252, 252, 264)


@pytest.mark.parametrize(
    ("pairs", "planned", "expected"), [(10, 8, 12), (201, 200, 204)]
)
def test_more_rows_than_planned_are_a_multiple_and_at_most_one_for_each_pair(
    pairs, planned, expected
):
    """One step of 5% more than 200 rows would be 212 rows."""
    packing = Packing((planned,), 4, 128, max_pairs=3, max_predictions=22)
    assert len(packing.rows(np.full(pairs, 128))) == expected


def test_many_steps_compile_a_few_programs():
    """With the lengths of pairs, one batch in eight needs more rows than planned."""
    random = np.random.default_rng(3)
    lengths = np.where(random.random(4096) < 0.4, 128, random.integers(8, 128, 4096))
    packing = Packing.of(lengths, 256, 128, mask_rate=0.15, multiple=1)
    longer = np.minimum(lengths + 2, 128)
    needed, counts = set(), set()
    for step in range(500):
        batch = random.choice(longer if step % 4 == 0 else lengths, 256)
        needed.add(len(best_fit(batch, 128, packing.max_pairs)))
        counts.add(len(packing.rows(batch)))
    assert len({rows for rows in needed if rows > packing.row_counts[-1]}) > 3
    assert counts > {*packing.row_counts}
    assert len(counts) <= len(packing.row_counts) + 1


def test_parts_of_a_batch_have_equal_work():
    """Pairs and tokens of the 16 devices differ by less than one row."""
    random = np.random.default_rng(0)
    lengths = np.where(random.random(4096) < 0.5, 128, random.integers(8, 128, 4096))
    packing = Packing.of(lengths, 4096, 128, mask_rate=0.15, multiple=16)
    rows = packing.rows(lengths)
    assert max(lengths[row].sum() for row in rows) <= 128 and max(map(len, rows)) <= 3
    parts = np.array([(len(row), lengths[row].sum()) for row in rows])
    pairs, tokens = np.ptp(parts.reshape(16, -1, 2).sum(1), axis=0)
    assert pairs <= 8  # of 256
    assert tokens <= 256  # two rows of 196


@pytest.mark.parametrize("length", [64, 128, 512])
def test_rows_of_single_sentences_have_little_padding(length):
    """Sentences of 3 to 61 tokens, with a mean of 32."""
    lengths = np.random.default_rng(0).integers(3, 62, 2000)
    most, _ = row_limits(length, 0.15, single_sentences=True)
    rows = len(best_fit(lengths, length, most))
    assert lengths.sum() > 0.93 * rows * length


@pytest.mark.parametrize("mask_rate", [0.01, 0.15, 0.4])
@pytest.mark.parametrize("length", [16, 128, 512])
@pytest.mark.parametrize("single", [False, True])
def test_every_row_has_room_for_its_masked_tokens(mask_rate, length, single):
    """Each pair of a row masks its rounded share of tokens, and at least one token."""
    max_pairs, max_predictions = row_limits(length, mask_rate, single)
    random = np.random.default_rng(0)
    for _ in range(300):
        cuts = np.sort(random.integers(5, length, max_pairs - 1))
        lengths = np.diff([0, *cuts, length])
        counts = prediction_counts(lengths[lengths >= 5], mask_rate, length)
        assert counts.sum() <= max_predictions


@pytest.mark.parametrize("slots", [1, 3, 50])
@pytest.mark.parametrize("count", [64, 500])
def test_rows_contain_every_example_once_and_respect_the_limits(slots, count):
    lengths = np.random.default_rng(slots).integers(3, 65, count)
    rows = best_fit(lengths, 64, slots)
    assert sorted(itertools.chain(*rows)) == list(range(count))
    assert max(lengths[row].sum() for row in rows) <= 64
    assert max(map(len, rows)) <= slots
    if slots == 50 and count == 500:  # within 3% of the lower bound of any packing
        assert len(rows) < 1.03 * lengths.sum() / 64
