import csv

import pytest

from bert_jax.errors import UserError
from bert_jax.inference.lines import (
    Answers,
    CsvTable,
    chunks,
    table_lines,
)
from bert_jax.tasks.question_answering import Squad, SquadConfig
from bert_jax.tasks.tagging_formats import TaggedSentence
from bert_jax.tasks.text_classification import Classification, ClassificationConfig, Row
from bert_jax.tasks.word_tagging import Tagging, TaggingConfig

CLASSIFICATION = Classification(
    ClassificationConfig(task="table", labels=("no", "yes"))
)
TAGGING = Tagging(TaggingConfig("columns", labels=("B-LOC", "B-PER", "O")))
SQUAD = Squad(SquadConfig())


def test_chunks_hold_every_item_once():
    items = [3, 1, 4, 1, 5]
    assert list(chunks(items, 2)) == [[3, 1], [4, 1], [5]]
    assert list(chunks(items, 4, lambda item: item)) == [[3, 1], [4], [1, 5]]
    assert list(chunks([], 4)) == []


def classified(*rows):
    answers = [{"label": label, "probability": 0.5} for label, _ in rows]
    return Answers([Row("x:1", text) for _, text in rows], answers, CLASSIFICATION)


def test_columns_are_aligned_and_texts_shortened():
    rows = [("yes", "one"), ("no", "four\n\tfive"), ("yes", "x" * 100)]
    assert list(table_lines(classified(*rows))) == [
        "label  probability  text",
        "yes    0.5000       one",
        "no     0.5000       four five",
        f"yes    0.5000       {'x' * 59}…",
    ]


def test_wide_characters_take_two_cells_and_accents_none():
    sentences = [("北京", "abc"), ("e\u0301te\u0301", "x")]
    answers = [{"words": words, "tags": [], "entities": []} for words in sentences]
    rows = [TaggedSentence(words, None, 0, "x:1") for words in sentences]
    assert list(table_lines(Answers(rows, answers, TAGGING))) == [
        "text      entities",
        "北京 abc  -",
        "e\u0301te\u0301 x     -",
    ]


def test_a_text_does_not_steer_the_terminal():
    (_, line) = table_lines(classified(("yes", "red \x1b[31malert\u202eback")))
    assert line.endswith(r"red \u001b[31malert\u202eback")


def test_every_entity_has_its_probability():
    entities = [
        {"type": "PER", "text": "Ann Lee", "start": 0, "end": 2, "probability": 0.931},
        {"type": "LOC", "text": "Rome", "start": 3, "end": 4, "probability": 0.5},
    ]
    words = ("Ann", "Lee", "likes", "Rome")
    row = TaggedSentence(words, None, 0, "x:1")
    part = Answers([row], [{"words": words, "entities": entities}], TAGGING)
    (_, line) = table_lines(part)
    assert line == "Ann Lee likes Rome  Ann Lee (PER 0.93), Rome (LOC 0.50)"


def test_no_answer_is_said():
    row = type("Question", (), {"question": "who?"})
    part = Answers([row], [{"answer": "", "probability": 0.75}], SQUAD)
    (_, line) = table_lines(part)
    assert line == "(no answer)  0.7500       who?"


def test_csv_keeps_texts_as_they_are():
    text = 'a\tb\u202ec\nd "e", f'
    rows = [{"id": text, "probabilities": {text: 0.5}, "start": None, "blanks": [text]}]
    lines = "\n".join(CsvTable().lines(Answers(rows, rows, CLASSIFICATION)))
    header, row = csv.reader(lines.splitlines(keepends=True))
    assert header == ["id", f"probabilities.{text}", "start", "blanks"]
    assert row[:3] == [text, "0.5", ""]


def test_csv_refuses_a_value_without_a_column():
    table = CsvTable()
    first = list(table.lines(Answers([1], [{"label": "a", "id": "1"}], CLASSIFICATION)))
    assert first == ["label,id\na,1"]
    assert list(table.lines(Answers([1], [{"label": "b"}], CLASSIFICATION))) == ["b,"]
    later = Answers([1], [{"label": "b", "value": 1.0}], CLASSIFICATION)
    with pytest.raises(UserError, match=r"other values than the first 4,096.*'value'"):
        list(table.lines(later))
