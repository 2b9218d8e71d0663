"""A search with its relevant texts, in the files of BEIR (Thakur et al., 2021).

queries.jsonl and corpus.jsonl have "_id" and "text". A text of the corpus may have a
"title", which is put before it. qrels/test.tsv has query-id, corpus-id and score.
"""

import logging
from pathlib import Path
from typing import NamedTuple

from bert_jax.errors import UserError, counted
from bert_jax.tasks.rows import placed_rows, text_of

_logger = logging.getLogger(__name__)
_RELEVANT = "qrels/test.tsv"


class SearchFiles(NamedTuple):
    """Texts, and pairs (row of a query, row of a text).

    relevant: the pairs of a query and a relevant text. excluded: the pairs of a query and
    the text with the same _id, which BEIR's evaluation leaves out of what was found. Empty
    if such a text is relevant.
    """

    queries: list[str]
    corpus: list[str]
    relevant: list[tuple[int, int]]
    excluded: list[tuple[int, int]]


def read_search(folder: Path) -> SearchFiles:
    """The queries with relevant texts, and the corpus.

    Raises UserError for an id that a file lacks, and if nothing is relevant.
    """
    queries, corpus = _texts(folder / "queries.jsonl"), _texts(folder / "corpus.jsonl")
    query_rows: dict[str, int] = {}
    corpus_rows = {name: row for row, name in enumerate(corpus)}
    relevant = []
    for where, values in placed_rows(folder / _RELEVANT):
        query = text_of(where, values, ["query-id"])
        text = text_of(where, values, ["corpus-id"])
        for name, known, file in (
            (query, queries, "queries"),
            (text, corpus, "corpus"),
        ):
            if name not in known:
                raise UserError(
                    f"{where}: no text with the _id {name!r} in {file}.jsonl"
                )
        if _score(where, text_of(where, values, ["score"])) > 0:
            row = query_rows.setdefault(query, len(query_rows))
            relevant.append((row, corpus_rows[text]))
    if not relevant:
        raise UserError(
            f"{folder / _RELEVANT}: no score is above 0, expected at least one"
        )
    excluded = []
    for name, row in query_rows.items():
        if name in corpus_rows:
            excluded.append((row, corpus_rows[name]))
    if {*excluded} & {*relevant}:  # queries and texts were numbered independently
        excluded = []
    if excluded:
        texts = counted(len(excluded), "text")
        _logger.warning(
            f"{texts} of the corpus with the _id of a query: this query does not find the "
            "text, as in BEIR"
        )
    used = [queries[name] for name in query_rows]
    return SearchFiles(used, [*corpus.values()], relevant, excluded)


def _texts(path: Path) -> dict[str, str]:
    """The texts of a file by their ids."""
    texts = {}
    for where, values in placed_rows(path):
        name = text_of(where, values, ["_id"])
        if name in texts:
            raise UserError(f"{where}: a second text with the _id {name!r}")
        text = text_of(where, values, ["text"])
        if values.get("title"):
            text = f"{text_of(where, values, ['title'])} {text}"
        texts[name] = text
    return texts


def _score(where: str, cell: str) -> float:
    try:
        return float(cell)
    except ValueError as error:
        raise UserError(f"{where}: score={cell!r}, expected a number") from error
