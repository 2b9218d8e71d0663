"""Cosines, nearest rows and duplicates against plain numpy, in blocks of three rows."""

import jax.numpy as jnp
import numpy as np
import pytest

import bert_jax
from bert_jax.errors import UserError
from bert_jax.inference import search


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(search, "BLOCK", 3)


def vectors(count, seed=0, kind=np.float32):
    """Vectors of eight numbers with steps of 1. A few vectors are equal."""
    random = np.random.default_rng(seed)
    found = random.integers(-3, 4, (count, 8)) + 0.5
    found[count // 2 :: 3] = found[0]
    return found.astype(kind)


def plain(a, b):
    a, b = (np.asarray(x, np.float64) for x in (a, b))
    norms = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1)
    return a @ b.T / norms


@pytest.mark.parametrize(
    ("kind", "top"),
    [
        *((np.float32, top) for top in (1, 4, 20)),
        *((kind, 4) for kind in (np.float16, jnp.bfloat16, np.float64, np.int8)),
    ],
)
def test_the_nearest_rows_equal_a_full_sort(kind, top):
    queries, corpus = vectors(5, 1, kind), vectors(11, 2, kind)
    cosines = plain(queries, corpus)
    rows, values = search.nearest(queries, corpus, top)
    assert rows.shape == values.shape == (5, min(top, 11))
    assert values.dtype == np.float32
    # Rounding gives equal vectors equal cosines, which then have the order of rows.
    order = np.argsort(-cosines.round(6), axis=1, kind="stable")[:, :top]
    np.testing.assert_array_equal(rows, order)
    expected = np.take_along_axis(cosines, order, axis=1)
    np.testing.assert_allclose(values, expected, atol=1e-6)


def test_few_numbers_of_queries_compile_a_program(monkeypatch):
    monkeypatch.setattr(search, "BLOCK", 64)
    corpus, sizes = vectors(50), set()
    for count in range(17, 33):
        rows, _ = search.nearest(vectors(count, 1), corpus, 3)
        assert len(rows) == count
        sizes.add(search._merged._cache_size())
    assert len(sizes) == 1


def test_all_pairs_above_the_threshold_are_found():
    all_vectors = vectors(13)
    cosines = plain(all_vectors, all_vectors).round(6)
    for threshold in (0.3, 0.9, 1.1):
        expected = [
            (-cosines[i, j], i, j)
            for i in range(13)
            for j in range(i + 1, 13)
            if cosines[i, j] >= threshold
        ]
        pairs = search.near_pairs(all_vectors, threshold)
        assert [(i, j) for i, j, _ in pairs] == [(i, j) for _, i, j in sorted(expected)]
        np.testing.assert_allclose(
            [cosine for *_, cosine in pairs],
            [-c for c, *_ in sorted(expected)],
            atol=1e-6,
        )


def test_empty_input_gives_no_pairs_and_wrong_input_is_refused():
    rows, values = search.nearest(vectors(2), vectors(4)[:0], 3)
    assert rows.shape == values.shape == (2, 0)
    rows, _ = search.nearest(vectors(2)[:0], vectors(4), 3)
    assert rows.shape == (0, 3)
    assert search.near_pairs(vectors(4)[:0], 0.5) == []
    assert not np.asarray(search.cosines(np.zeros((1, 8)), vectors(3))).any()
    for top in (0, 2.5, "2"):
        with pytest.raises(UserError, match=rf"top={top!r}, expected a whole number"):
            search.nearest(vectors(2), vectors(4), top)
    with pytest.raises(UserError, match=r"have 8 and 5 dimensions; expected vectors"):
        search.nearest(vectors(2), vectors(4)[:, :5], 1)
    for wrong in (np.nan, np.inf):
        bad = vectors(7)
        bad[5, 2] = wrong
        for find in (
            lambda bad=bad: search.nearest(vectors(2), bad, 3),
            lambda bad=bad: search.near_pairs(bad, 0.9),
        ):
            with pytest.raises(UserError, match="a vector has a number that is NaN"):
                find()


def test_equal_vectors_have_the_cosine_one():
    """Without a correction rounding gives 0.99999976 and 1.0000002."""
    repeated = np.repeat(np.random.default_rng(0).normal(size=(40, 48)), 2, axis=0)
    repeated = repeated.astype(np.float32)
    pairs = [pair[:2] for pair in search.near_pairs(repeated, 1.0)]
    assert sorted(pairs) == [(i, i + 1) for i in range(0, 80, 2)]


def test_a_model_searches_texts_and_vectors(checkpoint_dir):
    model = bert_jax.load(checkpoint_dir)
    texts = ["a good ship", "a bad ship", "the sea", "a good ship", "is it ?"]
    encoded = model.encode(texts)
    cosines = plain(encoded, encoded)
    similarities = model.similarity(texts[:2], encoded)
    assert similarities.shape == (2, 5) and similarities.dtype == np.float32
    np.testing.assert_allclose(similarities, cosines[:2], atol=1e-6)
    assert model.similarity(texts[0], texts).shape == (5,)
    assert model.similarity(texts[0], encoded[1]) == pytest.approx(cosines[0, 1])
    answers = model.search(texts[0], texts, top=3)
    assert [answer["row"] for answer in answers[:2]] == [0, 3]
    assert answers[2] == {
        "row": int(np.argsort(-cosines[0])[2]),
        "cosine": pytest.approx(np.sort(cosines[0])[-3]),
        "text": texts[np.argsort(-cosines[0])[2]],
    }
    several = model.search(np.array(texts[:2]), encoded, top=9)
    assert [len(rows_of_query) for rows_of_query in several] == [5, 5]
    for rows_of_query, other in zip(several[0][:3], answers, strict=True):
        same = pytest.approx(other["cosine"])
        assert rows_of_query == {"row": other["row"], "cosine": same}
    rows = [{"review": text} for text in texts]
    assert model.search(texts[0], rows, 3, columns="review") == answers
    assert model.search(texts[:1], []) == [[]]
    pairs = model.duplicates(texts, 0.9999)
    assert (
        [pair[:2] for pair in pairs]
        == [(0, 3)]
        == [pair[:2] for pair in model.duplicates(encoded, 0.9999)]
    )
    for call in (
        lambda: model.search(texts[0], encoded[0]),
        lambda: model.duplicates(encoded[0]),
        lambda: model.similarity(texts, encoded[None]),
    ):
        with pytest.raises(
            UserError, match=r"vectors have the shape .*expected .texts"
        ):
            call()
    with pytest.raises(UserError, match="there is one text; expected several"):
        model.duplicates(texts[0])
    # Dimensions are dropped before the vectors are normalised.
    short = model.encode(texts, dimensions=4, normalize=True)
    expected = encoded[:, :4] / np.linalg.norm(encoded[:, :4], axis=1, keepdims=True)
    np.testing.assert_allclose(short, expected, atol=1e-6)
    with pytest.raises(UserError, match=r"dimensions=99, expected at most \d+, the w"):
        model.encode(texts, dimensions=99)
