"""Cosines, nearest rows and duplicates against plain numpy, in blocks of three rows."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
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
    # Equal vectors have equal cosines after rounding, and are in the order of rows.
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
    with pytest.raises(UserError, match=r"have 8 and 5 dimensions; expected the same"):
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
    assert np.max(search.cosines(repeated, repeated)) == 1


def test_masked_vectors_are_refused():
    masked = np.ma.array(np.ones((2, 3)), mask=[[0, 0, 1], [0, 0, 0]])
    with pytest.raises(UserError, match="the vectors have masked numbers"):
        search.vectors_of(masked)


def test_cosines_of_very_large_and_small_vectors_are_right():
    random = np.random.default_rng(3)
    a, b = random.normal(size=(4, 8)), random.normal(size=(6, 8))
    expected = plain(a, b)
    # Beyond the square root of the range of float32, and beyond its range.
    for scale in (1e30, 1e-30, 1e300, 1e-300):
        scaled = [search.vectors_of(x * scale) for x in (a, b)]
        if 1e-38 < scale < 1e38:
            scaled = [x.astype(np.float32) for x in scaled]
        np.testing.assert_allclose(search.cosines(*scaled), expected, atol=1e-6)
        rows, _ = search.nearest(*scaled, 6)
        np.testing.assert_array_equal(rows, np.argsort(-expected, axis=1))
    mixed = a * np.array([[1e30], [1e-30], [1.0], [1e8]])
    np.testing.assert_allclose(search.cosines(mixed, b), expected, atol=1e-6)


def test_vectors_are_arrays_or_lists_of_numbers():
    array = vectors(4, 5)
    several = {
        "a list of arrays": [*array],
        "a tuple of arrays": tuple(array),
        "JAX's arrays": [*jnp.asarray(array)],
        "lists": array.tolist(),
        "a column": pd.Series([*array]),
        "an array of objects": np.array([*array, None], object)[:4],
    }
    for name, data in several.items():
        found = np.asarray(search.vectors_of(data), np.float64)
        # Numbers of 64 bits are divided by the largest number of their vector.
        scale = np.abs(array).max(1, keepdims=True) / np.abs(found).max(
            1, keepdims=True
        )
        np.testing.assert_allclose(found * scale, array, rtol=1e-6, err_msg=name)
        assert (scale == 1).all() == (name != "lists")
    one = search.vectors_of(array[0].tolist())
    np.testing.assert_allclose(one, array[0] / np.abs(array[0]).max(), rtol=1e-6)
    texts = "a", ["a"], ("a", "b"), np.array(["a"]), pd.Series(["a"]), iter("ab"), []
    for data in (*texts, {"text": "a"}, pd.DataFrame({"text": ["a"]})):
        assert search.vectors_of(data) is None
    for data, message in (
        ([array[0], array[1, :3]], r"shapes \(3,\), \(8,\); expected vectors of the"),
        ([array[0], "a text"], r"shapes \(\), \(8,\); expected vectors of the same wi"),
        ([[1.0, None]], "a vector has a value that is not a number"),
        ([1.0, "a"], "a vector has a value that is not a number"),
        (array * 1j, "the vectors have complex numbers; expected real"),
        ([[1j, 2.0]], "the vectors have complex numbers; expected real"),
    ):
        with pytest.raises(UserError, match=message):
            search.vectors_of(data)


TEXTS = ["a good ship", "a bad ship", "the sea", "a good ship", "is it ?"]
ROWS = [{"review": text} for text in TEXTS]


@pytest.fixture(scope="module")
def model(checkpoint_dir):
    return bert_jax.load(checkpoint_dir)


@pytest.fixture(scope="module")
def encoded(model):
    return model.encode(TEXTS)


def test_similarities_of_texts_and_vectors_equal_plain_cosines(model, encoded):
    cosines = plain(encoded, encoded)
    similarities = model.similarity(TEXTS[:2], encoded)
    assert similarities.shape == (2, 5) and similarities.dtype == np.float32
    np.testing.assert_allclose(similarities, cosines[:2], atol=1e-6)
    named = model.similarity(ROWS[:2], ROWS, columns="review")
    np.testing.assert_allclose(named, cosines[:2], atol=1e-6)
    assert model.similarity(TEXTS[0], TEXTS).shape == (5,)
    assert model.similarity(TEXTS[0], encoded[1]) == pytest.approx(cosines[0, 1])
    assert model.similarity([encoded[0]], [*encoded]).shape == (1, 5)


def test_a_search_finds_the_nearest_texts(model, encoded):
    cosines = plain(encoded, encoded)[0]
    answers = model.search(TEXTS[0], TEXTS, top=3)
    # Texts 0 and 3 are equal, and their order depends on rounding.
    assert {answer["row"] for answer in answers[:2]} == {0, 3}
    third = int(np.argsort(-cosines)[2])
    cosine = pytest.approx(cosines[third])
    assert answers[2] == {"row": third, "cosine": cosine, "text": TEXTS[third]}
    several = model.search(np.array(TEXTS[:2]), encoded, top=9)
    assert [len(found) for found in several] == [5, 5]
    assert {found["row"] for found in several[0][:2]} == {0, 3}
    for found, other in zip(several[0][:3], answers, strict=True):
        assert found["cosine"] == pytest.approx(other["cosine"])
    assert several[0][2]["row"] == third
    assert model.search(TEXTS[0], ROWS, 3, columns="review") == answers
    assert model.search(ROWS[:1], TEXTS, 3, columns="review") == [answers]
    assert model.search(TEXTS[:1], []) == [[]]
    assert [len(x) for x in model.search([encoded[0]], encoded.tolist(), 2)] == [2]


def test_equal_texts_and_vectors_are_duplicates(model, encoded):
    for data, columns in ((TEXTS, ()), (encoded, ()), (ROWS, "review")):
        pairs = model.duplicates(data, 0.9999, columns=columns)
        assert [pair[:2] for pair in pairs] == [(0, 3)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, v: m.search(TEXTS[0], v[0]), r"vectors have the shape .*\(texts, W"),
        (lambda m, v: m.duplicates(v[0]), "vectors have the shape"),
        (lambda m, v: m.similarity(TEXTS, v[None]), "vectors have the shape"),
        (lambda m, v: m.duplicates(TEXTS[0]), "only one text is given; expected sev"),
        (lambda m, v: m.search(TEXTS[0], v, 0), "top=0, expected at least 1"),
        (lambda m, v: m.search(TEXTS[0], v, "2"), "top='2', expected a value of"),
        (lambda m, v: m.search("a", TEXTS, device="cpu"), "device is not a setting"),
        (lambda m, v: m.duplicates(v, "x"), "threshold='x', expected a value of"),
        (lambda m, v: m.duplicates(v, layers=(0,)), "layers has no effect on vectors"),
        (
            lambda m, v: m.similarity("a", "b", pooling="none"),
            "gives vectors of tokens",
        ),
        (lambda m, v: m.similarity(v[0] * np.nan, "a"), "a number that is NaN"),
        (lambda m, v: m.similarity(v * 1j, TEXTS), "complex numbers; expected real"),
        (lambda m, v: m.search(v * 1j, TEXTS), "complex numbers; expected real"),
        (lambda m, v: m.duplicates(v * 1j), "complex numbers; expected real"),
        (lambda m, v: m.encode(TEXTS, dimensions=99), r"dimensions=99, .* \d+, the w"),
    ],
)
def test_what_has_no_cosine_is_refused(model, encoded, call, message):
    with pytest.raises(UserError, match=message):
        call(model, encoded)


def test_the_options_of_encode_leave_vectors_as_they_are(model):
    first = model.encode(TEXTS, layers=(0,), pooling="cls")
    of_texts = model.similarity(TEXTS, first, layers=(0,), pooling="cls")
    np.testing.assert_allclose(np.diag(of_texts), 1, atol=1e-6)


def test_texts_are_encoded_with_the_options_of_the_call(model):
    options = {"layers": (0,), "max_length": 5, "batch_size": 2}
    vectors = model.encode(TEXTS, **options)
    similarities = model.similarity(TEXTS, TEXTS, **options)
    np.testing.assert_allclose(similarities, plain(vectors, vectors), atol=1e-6)
    found = model.search(TEXTS, TEXTS, 2, **options)
    for answers, known in zip(found, model.search(vectors, vectors, 2), strict=True):
        assert [x["row"] for x in answers] == [x["row"] for x in known]
        cosines = [x["cosine"] for x in known]
        assert [x["cosine"] for x in answers] == pytest.approx(cosines)
    pairs = model.duplicates(TEXTS, 0.9, **options)
    assert pairs == model.duplicates(vectors, 0.9)
    assert pairs != model.duplicates(TEXTS, 0.9)


def test_dimensions_are_dropped_before_vectors_are_normalised(model, encoded):
    short = model.encode(TEXTS, dimensions=4, normalize=True)
    expected = encoded[:, :4] / np.linalg.norm(encoded[:, :4], axis=1, keepdims=True)
    np.testing.assert_allclose(short, expected, atol=1e-6)


def test_scores_of_a_search_by_hand():
    """Query 1 finds its two texts at the ranks 2 and 4, query 2 nothing."""
    rows = np.array([[3, 0, 1, 2], [0, 4, 1, 3], [1, 0, 2, 3]])
    pairs = np.array([(1, 3), (1, 4), (2, 4)])
    scores = search.retrieval_scores(rows, pairs, 5)
    ideal = 1 + 1 / np.log2(3)
    expected = {
        **{"accuracy@1": 0, "accuracy@3": 50, "accuracy@5": 50, "accuracy@10": 50},
        **{"recall@1": 0, "recall@3": 25, "recall@5": 50, "recall@10": 50},
        "mrr@10": 25,
        "ndcg@10": 50 * (1 / np.log2(3) + 1 / np.log2(5)) / ideal,
    }
    assert scores == pytest.approx(expected)


def test_of_equal_cosines_the_first_text_is_found_first():
    """sentence-transformers sorts them by their ids."""
    corpus = np.eye(4, dtype=np.float32)[[2, 0, 0, 0, 1]]
    queries = corpus[[1, 4]]
    scores = search.evaluate_search([None, None], queries, corpus, [(0, 3), (1, 4)])
    assert scores["mrr@10"] == pytest.approx(50 * (1 / 3 + 1))
    assert (scores["accuracy@1"], scores["recall@3"]) == (50, 100)


@pytest.mark.parametrize(
    ("relevant", "message"),
    [
        ([], r"relevant=\[\], expected pairs"),
        (np.zeros((0, 2), int), "expected pairs"),
        ([[0, 1], [2]], r"relevant=\[\[0, 1\], \[2\]\], expected pairs \(row of the"),
        ({"q0": {"d1"}}, "expected pairs"),
        ([(0, 1.5)], "expected pairs"),
        ([(0, 1, 1)], "expected pairs"),
        ([(0, 1), (1, 6)], "from 0, of 2 queries and 6 texts"),
        ([(-1, 0)], "from 0, of 2"),
        ([(2, 0)], "from 0, of 2"),
    ],
)
def test_relevant_pairs_are_rows_of_both(pretrained, relevant, message):
    with pytest.raises(UserError, match=message):
        pretrained.evaluate_search(vectors(2), vectors(6, 1), relevant)


def test_excluded_texts_are_not_found():
    """The corpus contains the queries, so each query is its own nearest text."""
    corpus = np.random.default_rng(5).normal(size=(30, 8)).astype(np.float32)
    functions, own = [None, None], [(row, row) for row in range(30)]
    values = plain(corpus, corpus) - 9 * np.eye(30)
    nearest = [(row, int(values[row].argmax())) for row in range(30)]
    found = search.evaluate_search(functions, corpus, corpus, nearest)
    assert (found["accuracy@1"], found["mrr@10"]) == (0, 50)
    found = search.evaluate_search(functions, corpus, corpus, nearest, own)
    assert (found["accuracy@1"], found["ndcg@10"]) == (100, 100)
    # The tenth text is found although one of the first ten is excluded.
    tenth = [(row, int(np.argsort(-values[row])[9])) for row in range(30)]
    found = search.evaluate_search(functions, corpus, corpus, tenth, own)
    assert (found["accuracy@10"], found["mrr@10"]) == (100, pytest.approx(10))
    with pytest.raises(UserError, match=r"excluded=\[\(0, 30\)\], expected pairs"):
        search.evaluate_search(functions, corpus, corpus, tenth, [(0, 30)])
