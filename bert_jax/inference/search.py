"""Exact search among texts or vectors by their cosines.

It works in blocks, so that no array has a number for each pair of a large set. Vectors are
arrays of any type of numbers, such as float16 and bfloat16, and of any length. Cosines are
float32. A vector of zeros has the cosine 0 with all vectors. Numbers below the normal range
of float32, 1.2e-38, count as zeros.
"""

import dataclasses
import functools
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError, listed
from bert_jax.inference.embed import VectorOptions
from bert_jax.inference.evaluation import Columns, row_texts, rows_of
from bert_jax.interop.modules import prompt_for
from bert_jax.model.heads import normalized
from bert_jax.settings import setting
from bert_jax.tasks.rows import is_single

Encoders = Sequence[Callable]  # of queries, and of texts of a corpus
BLOCK = 4096  # vectors; the cosines of two blocks take 64 MiB
ROUNDING = 1e-6  # the rounded cosine of equal vectors is at most this much below 1
_CUTOFFS = (1, 3, 5, 10)  # k of the scores of a search, such as recall@k


def vectors_of(data: Any) -> np.ndarray | jax.Array | None:
    """The array of vectors, (N, W), or of one vector, (W,). None if the data are texts.

    data: an array or a tensor; a list or a column of vectors, such as several results of
    ``encode``; or a list of lists of numbers.

    Raises UserError for complex numbers, and for vectors of different widths.
    """
    array = _number_array(data)
    if array is None:
        return None
    if jnp.issubdtype(array.dtype, np.complexfloating):
        raise UserError("the vectors have complex numbers; expected real numbers")
    if array.dtype.kind == "f" and array.dtype.itemsize > 4:
        # Numbers that float32 cannot represent, such as 1e300, are scaled first.
        largest = np.abs(array).max(axis=-1, keepdims=True, initial=0)
        with np.errstate(invalid="ignore"):  # NaN and infinity become NaN
            array = array / np.where(largest == 0, 1, largest)
    return array


def _number_array(data: Any) -> np.ndarray | jax.Array | None:
    """An array of numbers, or None if the first value is not a number."""
    items = data
    if isinstance(data, np.ma.MaskedArray) and np.ma.is_masked(data):
        raise UserError("the vectors have masked numbers; fill them in with filled()")
    if hasattr(data, "__array__") and not hasattr(data, "columns"):
        array = data
        if not isinstance(data, jax.Array):
            array = np.asarray(data)
        if array.dtype != object and _is_number(array):
            return array
        if array.dtype != object:
            return None
        items = array.tolist()
    if not isinstance(items, list | tuple) or not _starts_with_number(items):
        return None
    arrays = [np.asarray(item) for item in items]
    shapes = sorted({array.shape for array in arrays})
    if len(shapes) > 1:
        actual = f"the vectors have the shapes {listed([*map(str, shapes)])}"
        raise UserError(f"{actual}; expected vectors of the same width")
    array = np.stack(arrays)
    if not _is_number(array):
        raise UserError("a vector has a value that is not a number; drop its row")
    return array


def _starts_with_number(value: Any) -> bool:
    """Whether the first value in nested lists is a number, or an array of numbers."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    if hasattr(value, "__array__"):
        return _is_number(np.asarray(value))
    return isinstance(value, numbers.Number)


def _is_number(array: Any) -> bool:
    return jnp.issubdtype(array.dtype, np.number) or array.dtype == bool


@jax.jit
def cosines(a: Any, b: Any) -> jax.Array:
    """The cosines of vectors, (..., W) and (..., W): (A, B), (A,), (B,) or ().

    Raises UserError for vectors of different widths.
    """
    if a.shape[-1] != b.shape[-1]:
        actual = f"the vectors have {a.shape[-1]} and {b.shape[-1]} dimensions"
        raise UserError(f"{actual}; expected the same model and the same dimensions=")
    values = jnp.matmul(_unit(a), _unit(b).T, precision="highest")
    return jnp.clip(values, -1, 1)  # rounding may exceed 1


def _unit(vectors: jax.Array) -> jax.Array:
    """Vectors of length 1, float32; zeros stay zeros."""
    vectors = vectors.astype(jnp.float32)
    # The squares of 1e30 and of 1e-30 are not in the range of float32.
    largest = jnp.max(jnp.abs(vectors), axis=-1, keepdims=True, initial=0)
    return normalized(vectors / jnp.where(largest == 0, 1, largest))


def nearest(queries: Any, corpus: Any, top: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the corpus with the largest cosines, and these cosines, for each query.

    queries: (Q, W). corpus: (N, W). Both results are (Q, top), or (Q, N) if N is smaller;
    int32 and float32. The largest cosine is first. Equal cosines are in the order of rows.
    """
    # Queries are padded to a power of two, so that few numbers of queries compile programs.
    count = len(queries)
    size = min(BLOCK, 1 << max(count - 1, 0).bit_length())
    queries = np.pad(np.asarray(queries), ((0, -count % size), (0, 0)))
    rows = np.zeros((len(queries), min(top, len(corpus))), np.int32)
    values = np.full(rows.shape, -2, np.float32)
    for first in range(0, len(corpus), BLOCK):
        block = corpus[first : first + BLOCK]
        for start in range(0, len(queries), size):
            part = slice(start, start + size)
            best = rows[part], values[part]
            rows[part], values[part] = _merged(*best, queries[part], block, first)
    check_finite(values)
    return rows[:count], values[:count]


@jax.jit
def _merged(rows: Any, values: Any, queries: Any, block: Any, first: Any) -> Any:
    """The best rows so far, (Q, top), merged with the rows of a block from ``first``."""
    new = cosines(queries, block)
    new = jnp.where(jnp.isnan(new), jnp.inf, new)  # NaN is then among the best
    numbers = first + jnp.arange(len(block), dtype=np.int32)
    numbers = jnp.broadcast_to(numbers, new.shape)
    # Among equal values top_k takes the first, which has the smaller row.
    best, places = jax.lax.top_k(jnp.concatenate([values, new], 1), values.shape[1])
    rows = jnp.concatenate([rows, numbers], 1)
    return jnp.take_along_axis(rows, places, 1), best


def near_pairs(vectors: Any, threshold: float) -> list[tuple[int, int, float]]:
    """All pairs (i, j, cosine), i < j, with at least this cosine; the largest first.

    Pairs with equal cosines are in the order of their rows. A cosine that is at most
    ROUNDING below the threshold is enough. vectors: (N, W).
    """
    triples = []
    for first in range(0, len(vectors), BLOCK):
        for second in range(first, len(vectors), BLOCK):
            a = vectors[first : first + BLOCK]
            b = vectors[second : second + BLOCK]
            values = np.asarray(cosines(a, b))
            check_finite(values)
            i, j = np.nonzero(values >= threshold - ROUNDING)
            rows, others = (first + i).tolist(), (second + j).tolist()
            triples += zip(rows, others, values[i, j].tolist(), strict=True)
    ordered = (triple for triple in triples if triple[0] < triple[1])
    return sorted(ordered, key=lambda triple: (-triple[2], *triple[:2]))


def check_finite(values: np.ndarray) -> None:
    """Raises UserError for a cosine of a vector with NaN or infinity."""
    if not np.isfinite(values).all():
        raise UserError("a vector has a number that is NaN or infinite; drop its row")


# Texts or vectors. ``encode`` returns the vectors of texts; see ``Bert.encode``.


def similarity(encode: Callable[[Any], Any], a: Any, b: Any) -> np.ndarray:
    """The cosines of texts or vectors a with b; see ``Bert.similarity``."""
    values = np.asarray(cosines(_vectors(a, encode), _vectors(b, encode)))
    check_finite(values)
    return values


@dataclasses.dataclass(frozen=True)
class RetrievalOptions(VectorOptions):
    """The options of methods that compare queries with documents."""

    query_prompt: str | None = setting(
        None,
        'text to put before each query; None: the prompt "query" of the model',
    )
    document_prompt: str | None = setting(
        None,
        "text to put before each text of the corpus; None: the prompt "
        '"document", "passage" or "corpus" of the model',
    )


def encoders(
    encode: Callable,
    extra: Mapping[str, Any],
    options: dict[str, Any],
    queries: Any,
    corpus: Any,
) -> Encoders:
    """Two functions that encode queries and texts of the corpus, each with its prompt.

    extra: Checkpoint.extra. options: the options of the call; see RetrievalOptions.
    """
    check_options(options, queries, corpus)
    others = dict(options)
    prompts = {}
    for name, data in (("query_prompt", queries), ("document_prompt", corpus)):
        prompts[name] = others.pop(name, None)
        if prompts[name] is None:
            prompts[name] = prompt_for(extra, name)
        else:
            check_options({name: prompts[name]}, data)
    return [functools.partial(encode, prompt=x, **others) for x in prompts.values()]


def search(
    encoders: Encoders, queries: Any, corpus: Any, top: int, columns: Columns
) -> list[Any]:
    """The rows of the corpus that are nearest to each query; see ``Bert.search``."""
    encode_query, encode_text = encoders
    texts = None
    if vectors_of(corpus) is None:
        rows = row_texts(rows_of(corpus, columns), most=1)
        corpus = texts = [row.texts[0] for row in rows]
    vectors = _vectors(queries, functools.partial(encode_query, columns=columns))
    searched = _vectors(corpus, encode_text, least=2)
    rows_QK, cosines_QK = nearest(np.atleast_2d(vectors), searched, top)
    answers = []
    for rows, values in zip(rows_QK.tolist(), cosines_QK.tolist(), strict=True):
        found = []
        for row, cosine in zip(rows, values, strict=True):
            answer = {"row": row, "cosine": cosine}
            if texts:
                answer["text"] = texts[row]
            found.append(answer)
        answers.append(found)
    if vectors.ndim == 1:
        return answers[0]
    return answers


def evaluate_search(
    encoders: Encoders, queries: Any, corpus: Any, relevant: Any, excluded: Any = ()
) -> dict[str, float]:
    """How well a search finds relevant texts; see ``Bert.evaluate_search``."""
    encode_query, encode_text = encoders
    vectors = _vectors(queries, encode_query, least=2)
    searched = _vectors(corpus, encode_text, least=2)
    sizes = len(vectors), len(searched)
    pairs, most = _checked_pairs("relevant", relevant, *sizes), max(_CUTOFFS)
    if np.size(excluded) == 0:
        rows_QK, _ = nearest(vectors, searched, most)
        return retrieval_scores(rows_QK, pairs, len(searched))
    left_out = _checked_pairs("excluded", excluded, *sizes)
    numbers = _numbers(*left_out.T, len(searched))
    pairs = pairs[~np.isin(_numbers(*pairs.T, len(searched)), numbers)]
    if not len(pairs):
        raise UserError("excluded contains every relevant pair; leave these out")
    more = int(np.bincount(left_out[:, 0]).max())
    rows_QK, _ = nearest(vectors, searched, min(most + more, len(searched)))
    queries_QK = np.arange(len(rows_QK))[:, None]
    is_out_QK = np.isin(_numbers(queries_QK, rows_QK, len(searched)), numbers)
    order_QK = np.argsort(is_out_QK, axis=1, kind="stable")  # excluded texts are last
    rows_QK = np.take_along_axis(rows_QK, order_QK, axis=1)[:, :most]
    return retrieval_scores(rows_QK, pairs, len(searched))


def _numbers(queries: np.ndarray, rows: np.ndarray, texts: int) -> np.ndarray:
    """A number for each pair of a query and a row of a corpus of ``texts`` texts."""
    return queries * texts + rows


def _checked_pairs(name: str, values: Any, queries: int, texts: int) -> np.ndarray:
    """Pairs of rows without repeats, int (N, 2). Raises UserError for other values.

    name: the argument, for the message.
    """
    try:
        pairs = np.asarray(values)
    except ValueError:  # lists of different lengths
        pairs = np.empty(0)
    is_pairs = pairs.dtype.kind in "iu" and pairs.shape[1:] == (2,) and pairs.size
    if not is_pairs or (pairs < 0).any() or (pairs >= (queries, texts)).any():
        needed = "expected pairs (row of the query, row of the text), counted from 0"
        raise UserError(
            f"{name}={values!r:.60}, {needed}, of {queries} queries and {texts} texts"
        )
    return np.unique(pairs.astype(np.int64), axis=0)


def retrieval_scores(
    rows_QK: np.ndarray, pairs: np.ndarray, texts: int
) -> dict[str, float]:
    """Scores in percent, averaged over the queries with relevant texts.

    rows_QK: the rows that were found for each query, the best first. pairs: int (N, 2),
    rows of queries and of their relevant texts, without repeats. texts: size of the corpus.
    The formulas are from InformationRetrievalEvaluator of sentence-transformers.
    """
    relevant_Q = np.bincount(pairs[:, 0], minlength=len(rows_QK))
    queries_QK = np.arange(len(rows_QK))[:, None]
    numbers_QK = _numbers(queries_QK, rows_QK, texts)
    hits_QK = np.isin(numbers_QK, _numbers(*pairs.T, texts))
    is_scored_Q = relevant_Q > 0
    hits_QK, relevant_Q = hits_QK[is_scored_Q], relevant_Q[is_scored_Q]
    scores, most = {}, max(_CUTOFFS)
    for k in _CUTOFFS:
        found_Q = hits_QK[:, :k].sum(axis=1)
        scores[f"accuracy@{k}"] = np.mean(found_Q > 0)
        scores[f"recall@{k}"] = np.mean(found_Q / relevant_Q)
    ranks_K = np.arange(1, hits_QK.shape[1] + 1)
    scores[f"mrr@{most}"] = np.mean((hits_QK / ranks_K).max(axis=1))
    gains_Q = (hits_QK / np.log2(ranks_K + 1)).sum(axis=1)
    ideal_K = np.cumsum(1 / np.log2(np.arange(2, most + 2)))
    ideal_Q = ideal_K[np.minimum(relevant_Q, most) - 1]
    scores[f"ndcg@{most}"] = np.mean(gains_Q / ideal_Q)
    return {name: 100 * float(score) for name, score in scores.items()}


def duplicates(
    encode: Callable[[Any], Any], texts: Any, threshold: float
) -> list[tuple[int, int, float]]:
    """Pairs of texts or vectors with at least this cosine; see ``Bert.duplicates``."""
    return near_pairs(_vectors(texts, encode, least=2), threshold)


def check_options(options: dict[str, Any], *data: Any) -> None:
    """Raises UserError for options of ``encode`` that have no effect on the data.

    No option has an effect if all data are vectors. pooling="none" is refused, because it
    does not give a vector for each text.
    """
    if options.get("pooling") == "none":
        raise UserError("pooling='none' gives vectors of tokens; use another pooling")
    if options and all(vectors_of(x) is not None for x in data):
        names = ", ".join(options)
        raise UserError(f"{names} has no effect on vectors; leave it out")


def _vectors(data: Any, encode: Callable[[Any], Any], least: int = 1) -> Any:
    """The vectors of texts. Vectors are returned unchanged.

    least: minimum number of axes: 1, or 2 if one text is not enough. Raises UserError for
    one text, or for vectors with another number of axes.
    """
    vectors = vectors_of(data)
    if vectors is None:
        if least == 2 and is_single(data):
            raise UserError(
                "only one text is given; expected several, or their vectors"
            )
        vectors = encode(data)
    if not least <= vectors.ndim <= 2:
        actual = f"vectors have the shape {vectors.shape}"
        raise UserError(f"{actual}; expected (texts, W)")
    return vectors
