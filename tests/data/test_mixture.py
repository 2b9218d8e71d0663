"""Batches from several texts."""

import dataclasses

import numpy as np
import pytest

from bert_jax.data.examples import ExampleConfig, ExampleSource
from bert_jax.data.mixture import BLOCK, Mixture, Text, block_counts
from bert_jax.data.phases import Phase, RandomStream
from bert_jax.data.pipeline import TrainingBatches, eval_batches, without_masks

WEIGHTS = (6.0, 1.0, 3.0)
PHASE = Phase(steps=60, batch_size=16, sequence_length=32, max_predictions=5)


@pytest.fixture(scope="module")
def make(array_store, uncased):
    """A function that returns batches of three texts.

    The tokens of text n are 1000 (n + 1) and more, a token for each document.
    """
    texts = []
    for n, documents in enumerate((40, 3, 12)):
        first = 1000 * (n + 1)
        store = array_store([[[first + d] * 6] * 15 for d in range(documents)])
        texts.append(Text(store, np.arange(documents - 1), WEIGHTS[n]))

    def make(rows=np.arange, packing=0, texts=texts):
        config = ExampleConfig(next_sentence=False, short_sequence_rate=0.3)
        return TrainingBatches(
            texts, uncased, (PHASE,), config, seed=5, rows=rows, packing=packing
        )

    return make


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def texts_of(batch):
    """The number of the text of each row, from its second token."""
    return without_masks(batch)["input_ids"][:, 1] // 1000 - 1


def test_a_block_has_the_shares_of_the_weights():
    assert block_counts((3, 1)).tolist() == [49_152, 16_384]
    assert block_counts((1, 1, 1)).tolist() == [21_846, 21_845, 21_845]
    assert block_counts((0.5, 2.5, 3)).sum() == BLOCK
    assert block_counts((BLOCK - 1, 1)).tolist() == [BLOCK - 1, 1]


def test_each_text_has_its_samples_in_order_in_any_part_of_a_run():
    """The number of a sample in its text is the number of earlier samples of the text."""
    mixture = Mixture([None] * 3, WEIGHTS, RandomStream(5, 0, 32))
    samples = np.arange(2 * BLOCK + 1000)
    sources, numbers = mixture.places(samples)
    for source, weight in enumerate(WEIGHTS):
        mine = numbers[sources == source]
        np.testing.assert_array_equal(mine, np.arange(len(mine)))
        for part in (samples[:4000], samples[BLOCK : BLOCK + 4000]):
            share = np.mean(sources[part] == source)
            p = weight / 10
            assert abs(share - p) < 3 * np.sqrt(p * (1 - p) / 4000)
    for part in (samples[7:9], samples[BLOCK - 3 : BLOCK + 5 : 2], samples[:0]):
        found, places = mixture.places(part)
        np.testing.assert_array_equal(found, sources[part])
        np.testing.assert_array_equal(places, numbers[part])
    other, _ = Mixture([None] * 3, WEIGHTS, RandomStream(6, 0, 32)).places(samples)
    assert np.mean(other == sources) < 0.6


def test_rows_are_the_examples_of_each_text_one_epoch_after_the_other(make, uncased):
    batches = make()
    rows = {k: np.concatenate([b[k] for b in batches]) for k in batches[0]}
    origin = texts_of(rows)
    counts = np.bincount(origin)
    for p, count in zip(np.array(WEIGHTS) / 10, counts, strict=True):
        assert abs(count - 960 * p) < 3 * np.sqrt(960 * p * (1 - p))
    for n, text in enumerate(batches.texts):
        alone = ExampleSource(
            text.store,
            uncased,
            batches.config,
            sequence_length=32,
            max_predictions=5,
            seed=5 + (n << 32),
            documents=text.documents,
        )
        # The second text is so small that it repeats many times.
        assert n != 1 or counts[n] > 3 * alone.epoch_size
        expected = alone.draw(np.arange(counts[n]))
        assert same(expected, {k: x[origin == n] for k, x in rows.items()})


@pytest.mark.parametrize("packing", [0, 2])
def test_hosts_share_the_batches_of_a_mixture(make, packing):
    alone = make(packing=packing)
    for step in (0, 33):
        batch = alone[step]
        half = len(batch["input_ids"]) // 2
        parts = []
        for host in range(2):
            rows = np.arange(half) + host * half
            parts.append(make(lambda size, rows=rows: rows, packing)[step])
        joined = {k: np.concatenate([part[k] for part in parts]) for k in batch}
        assert same(batch, joined)


def test_a_mixture_of_one_text_is_the_text(make):
    (first, *_) = make().texts
    one = make(texts=[first])
    assert isinstance(one.sources[0], ExampleSource)
    assert same(one[3], make(texts=[first._replace(weight=7.0)])[3])


def test_equal_texts_have_different_examples(make):
    """Their masks and cuts would otherwise be the same."""
    text = make().texts[0]
    batches = make(texts=[text, text])
    sources = batches.sources[0].sources
    a, b = (source.draw(np.arange(50)) for source in sources)
    assert np.mean((a["mlm_positions"] == b["mlm_positions"]).all(axis=1)) < 0.1


def test_evaluations_mix_the_held_out_documents(make):
    batches = make()
    held_out = []
    for text in batches.texts:
        last = len(text.documents)
        held_out.append(text._replace(documents=np.array([last])))
    phase = dataclasses.replace(PHASE, steps=30)
    origins = []
    for batch in eval_batches(batches, phase, held_out, 0.15):
        ids = batch["mlm_ids"][batch["mlm_weights"] > 0]
        assert {*ids} <= {1039, 2002, 3011}
        origins.append(texts_of(batch))
    shares = np.bincount(np.concatenate(origins)) / 480
    for p, share in zip(np.array(WEIGHTS) / 10, shares, strict=True):
        assert abs(share - p) < 3 * np.sqrt(p * (1 - p) / 480)
