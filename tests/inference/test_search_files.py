"""Folders in BEIR's form."""

import json

import pytest

from bert_jax.errors import UserError
from bert_jax.inference.search_files import read_search


@pytest.fixture
def folder(tmp_path):
    """Four queries, one without a relevant text, and graded scores."""
    queries = {"q9": "the cat", "q1": "a bee", "q5": "a day", "q2": "a mat"}
    corpus = [
        {"_id": "7", "title": "", "text": "a good day", "metadata": {}},
        {"_id": "d", "title": "Bees", "text": "a bee sat"},
        {"_id": "x", "text": "on the mat"},
    ]
    scores = [("q5", "7", 2), ("q1", "d", 1), ("q1", "x", 0), ("q9", "x", 3)]
    scores += [("q5", "d", 1), ("q2", "x", 0)]
    write_lines(
        tmp_path / "queries.jsonl", ({"_id": n, "text": x} for n, x in queries.items())
    )
    write_lines(tmp_path / "corpus.jsonl", corpus)
    (tmp_path / "qrels").mkdir()
    lines = ["query-id\tcorpus-id\tscore"]
    lines += ["\t".join(map(str, row)) for row in scores]
    (tmp_path / "qrels/test.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_queries_with_relevant_texts_are_read(folder):
    """A title is put before its text. A score of 0 is not relevant."""
    queries, corpus, relevant, excluded = read_search(folder)
    assert queries == ["a day", "a bee", "the cat"]
    assert corpus == ["a good day", "Bees a bee sat", "on the mat"]
    assert relevant == [(0, 0), (1, 1), (2, 2), (0, 1)]
    assert excluded == []


def test_a_query_does_not_find_the_text_with_its_own_id(folder, caplog):
    """As in BEIR: the queries of ArguAna are texts of its corpus."""
    with (folder / "corpus.jsonl").open("a") as lines:
        lines.write('{"_id": "q1", "text": "a bee"}\n')
    assert read_search(folder).excluded == [(1, 3)]
    assert caplog.messages[0].startswith("1 text of the corpus with the _id of a query")
    with (folder / "qrels/test.tsv").open("a") as lines:
        lines.write("q1\tq1\t1\n")
    assert read_search(folder).excluded == []


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("qrels/test.tsv", "q3\t7\t1\n", r"test.tsv:8: no .* 'q3' in queries.jsonl"),
        ("qrels/test.tsv", "q1\te\t1\n", r"test.tsv:8: no .* 'e' in corpus.jsonl"),
        ("qrels/test.tsv", "q1\t7\thigh\n", r"score='high', expected a number"),
        ("corpus.jsonl", '{"_id": "7", "text": "a"}\n', "a second text with .* '7'"),
        ("corpus.jsonl", '{"_id": 8, "text": "a"}\n', '"_id" is of type int'),
        ("queries.jsonl", '{"id": "8", "text": "a"}\n', "no column '_id'; the columns"),
    ],
)
def test_ids_that_do_not_fit_are_named(folder, file, text, message):
    with (folder / file).open("a") as lines:
        lines.write(text)
    with pytest.raises(UserError, match=message):
        read_search(folder)


def test_a_search_without_relevant_texts_is_refused(folder):
    (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td\t0\n")
    with pytest.raises(UserError, match="no score is above 0, expected at least one"):
        read_search(folder)
