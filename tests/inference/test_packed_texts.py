"""Texts in rows: each once, none cut, few shapes, hardly any padding."""

import collections

import jax
import numpy as np
import pytest

from bert_jax.inference.packed_texts import LENGTHS, packed_texts
from bert_jax.parallel.mesh import MeshConfig, make_mesh
from bert_jax.tasks.task import Features

pytestmark = pytest.mark.usefixtures("quick_compiles")

PAD = 99


def features_of(lengths):
    """Text i has the tokens i * 1,000, i * 1,000 + 1, ... and segments 0, 1, 0, 1, ..."""
    ids = [[i * 1000 + k for k in range(n)] for i, n in enumerate(lengths)]
    return Features(ids, [[k % 2 for k in range(n)] for n in lengths], np.arange(0))


def batches_of(lengths, batch_size=32, most=512, devices=1):
    mesh = make_mesh(MeshConfig(), jax.devices()[:devices])
    return list(packed_texts(features_of(lengths), batch_size, PAD, most, mesh))


def sentence_lengths(count):
    drawn = np.random.default_rng(0).lognormal(3.3, 0.8, count)
    return np.clip(drawn.astype(int), 3, 512).tolist()


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize(
    "lengths", [[3], [16], [17, 3], [512] * 3, [3] * 100, sentence_lengths(700)]
)
def test_every_text_is_whole_and_lies_where_starts_says(lengths, devices):
    seen = []
    for texts, arrays in batches_of(lengths, devices=devices):
        covered = np.zeros(arrays["input_ids"].shape, bool)
        for r, row in enumerate(texts):
            for s, text in enumerate(row):
                start = arrays["starts"][r, s]
                place = np.s_[r, start : start + lengths[text]]
                expected = text * 1000 + np.arange(lengths[text])
                assert arrays["input_ids"][place].tolist() == expected.tolist()
                assert (
                    arrays["token_type_ids"][place] == np.arange(len(expected)) % 2
                ).all()
                assert (arrays["segment_ids"][place] == s + 1).all()
                covered[place] = True
                seen.append(text)
        assert not arrays["segment_ids"][~covered].any()
        assert np.array_equal(arrays["attention_mask"], arrays["segment_ids"] > 0)
        assert (arrays["input_ids"][~covered] == PAD).all()
        assert len(arrays["input_ids"]) % devices == 0
    assert sorted(seen) == list(range(len(lengths)))


def test_many_texts_leave_hardly_any_padding_and_few_shapes():
    lengths = sentence_lengths(4000)
    shapes = [arrays["input_ids"].shape for _, arrays in batches_of(lengths)]
    computed = sum(rows * length for rows, length in shapes)
    assert sum(lengths) <= computed <= 1.03 * sum(lengths)
    # Of each length a full batch and what is left over.
    assert len(set(shapes)) <= 2 * len(LENGTHS)
    assert max(rows * length for rows, length in shapes) <= 32 * LENGTHS[0]


def test_short_texts_do_not_lie_in_long_rows_that_nothing_needs():
    rows = collections.Counter()
    for texts, arrays in batches_of([20] * 50 + [100] + [3] * 50):
        rows[arrays["input_ids"].shape[1]] += len(texts)
    # One of 20 and two of 3 lie beside the 100, the other 49 and 48 in rows of their own.
    assert rows == {128: 1, 32: 49}


@pytest.mark.parametrize(
    ("lengths", "most", "shape"),
    [
        ([9], 512, (1, 16)),
        ([8, 8], 512, (1, 16)),
        ([8, 9], 512, (1, 32)),
        ([30] * 3, 512, (4, 32)),
        ([300], 512, (1, 384)),
        ([300], 300, (1, 300)),
        ([5], 6, (1, 6)),
    ],
)
def test_a_few_texts_take_a_small_batch(lengths, most, shape):
    (batch,) = batches_of(lengths, most=most)
    assert batch.arrays["input_ids"].shape == shape
