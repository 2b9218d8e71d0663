import csv
import os
import sys
from pathlib import Path

import pytest

from bert_jax.errors import UserError
from bert_jax.inference.evaluation import Part, Rows, chunks
from bert_jax.inference.lines import (
    beside_columns,
    csv_texts,
    given_rows,
    plain_texts,
    write_answers,
)
from bert_jax.tasks.rows import read_rows


@pytest.mark.parametrize(
    ("size", "cost", "expected"),
    [
        (2, lambda row: 1, [[3, 1, 4], [1, 5]]),
        (4, lambda row: row, [[3, 1, 4], [1, 5]]),
        (3, lambda row: row, [[3], [1, 4], [1, 5]]),
    ],
)
def test_chunks_contain_every_row_once_and_split_no_document(size, cost, expected):
    rows = [(3, None), (1, "a"), (4, "a"), (1, "b"), (5, None)]
    found = chunks(rows, size, lambda row: cost(row[0]), lambda row: row[1])
    assert [[number for number, _ in chunk] for chunk in found] == expected
    assert list(chunks([], size, cost, cost)) == []


def parts(*answers):
    """Parts of one answer each."""
    return [Part(None, [answer]) for answer in answers]


def test_csv_keeps_texts_unchanged():
    text = 'a\tb\u202ec\nd "e", f'
    row = {"id": text, "probabilities": {text: 0.5}, "start": None, "blanks": [text]}
    (lines,) = csv_texts(parts(row))
    header, row = csv.reader(lines.splitlines(keepends=True))
    assert header == ["id", f"probabilities.{text}", "start", "blanks"]
    assert row[:3] == [text, "0.5", ""]


@pytest.mark.parametrize("control", ["\r", "\n", "\r\n", "\x0b", "\x1c", "\u2028"])
def test_a_control_character_does_not_end_a_line_of_csv(control, tmp_path):
    """Python quotes a lone CR only since 3.11.9."""
    pandas = pytest.importorskip("pandas")
    texts, path = [f"a{control}film", control, "b"], tmp_path / "a.csv"
    write_answers(parts(*({control: x, "label": "y"} for x in texts)), str(path), "csv")
    content = path.read_bytes().decode()
    assert content.replace(control, "").count("\n") in (4, 0)
    assert [list(row.values()) for _, row in read_rows(path)] == [
        [x, "y"] for x in texts
    ]
    frame = pandas.read_csv(path, keep_default_na=False)
    assert frame["label"].tolist() == ["y"] * 3
    if control != "\r\n":  # pandas reads it as "\n"
        assert frame[control].tolist() == texts


def test_an_answer_never_shares_a_column_with_values_of_other_rows():
    """A later row of JSON lines may be the first one with the column."""
    rows = [
        ("1", {"text": "a"}),
        ("2", {"text": "b", "tokens": 9}),
        ("3", {"text": "c"}),
    ]

    def answer(rows):
        values = [{"text": row["text"], "tokens": 1} for _, row in rows.placed]
        return iter([Part(None, values[:2]), Part(None, values[2:])])

    found = beside_columns(answer, Rows(rows), "rows.jsonl")
    assert [x for part in found for x in part.answers] == [
        {"text": "a", "predicted_tokens": 1},
        {"text": "b", "tokens": 9, "predicted_tokens": 1},
        {"text": "c", "predicted_tokens": 1},
    ]


def test_texts_of_the_command_line_are_rows():
    """A tab or a line end of the shell is part of the text."""
    texts = [["a\tb\r\n"], ["a", "b\tc"], [""], ["a", "b", "c"]]
    assert [*given_rows(texts, "", None).placed] == [
        ("--text:1", "a\tb\r\n"),
        ("--text:2", ("a", "b\tc")),
        ("--text:3", ""),
        ("--text:4", ("a", "b", "c")),
    ]


def test_csv_refuses_a_value_without_a_column():
    first, second = {"label": "a", "id": "1"}, {"label": "b"}
    assert list(csv_texts(parts(first, second))) == ["label,id\na,1\n", "b,\n"]
    with pytest.raises(UserError, match="column 'value' is missing in the first"):
        list(csv_texts(parts(first, {"label": "b", "value": 1.0})))


def test_answers_for_a_closed_stdout_are_an_error(monkeypatch):
    """Commands open the null device for a closed stdout, which would lose the answers."""
    with Path(os.devnull).open("w") as null:
        monkeypatch.setattr(sys, "stdout", null)
        with pytest.raises(UserError, match="stdout is closed; redirect it"):
            write_answers(parts({"label": "a"}), "-", "text")


def test_a_failed_row_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("before")
    with pytest.raises(UserError, match="'value'"):
        write_answers(parts({"label": "a"}, {"value": 1}), str(path), "csv")
    assert path.read_text() == "before"
    write_answers(parts({"label": "a"}, {"label": "b"}), str(path), "csv")
    assert path.read_text() == "label\na\nb\n"


def test_a_readable_line_has_the_values_of_its_answer():
    answers = [
        {
            "answer": "a",
            "probabilities": {"a": 0.75, "b": 1 / 4},
            "nbest": [{"text": "c"}],
        },
        {
            "text": "a [MASK]\n",
            "blanks": [[{"token": "b", "probability": 0.12345}] * 2],
        },
        {"id": 7, "tags": ["O", "B"], "start": None},
        {"nbest": ["a", "column"], "score": 1},
    ]
    assert "".join(plain_texts(parts(*answers))).splitlines() == [
        "answer: a  probabilities: a 0.75, b 0.25",
        "text: a [MASK]  blanks: b 0.123, b 0.123",
        "id: 7  tags: O, B  start: None",
        "nbest: a, column  score: 1",
    ]


@pytest.mark.parametrize("form", ["csv", "jsonl", "text"])
def test_control_characters_of_a_text_are_escaped(form, monkeypatch, capsys):
    monkeypatch.setattr("bert_jax.inference.lines.on_screen", lambda output: True)
    write_answers(parts({"text": "red \x1b[31malert\u202eback"}), "-", form)
    line = capsys.readouterr().out.splitlines()[-1]
    assert r"red \u001b[31malert\u202eback" in line
