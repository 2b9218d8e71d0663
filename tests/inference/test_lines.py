import csv
import types

import pytest

from bert_jax.errors import UserError
from bert_jax.inference.evaluation import Answers, Inference, chunks
from bert_jax.inference.lines import (
    CsvTable,
    table_lines,
    write_answers,
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


def test_chunks_hold_every_item_once_and_cut_no_group():
    groups = [[3], [1, 4], [1], [5]]
    assert list(chunks(groups, 2, lambda item: 1)) == [[3, 1, 4], [1, 5]]
    assert list(chunks(groups, 4, lambda item: item)) == [[3, 1, 4], [1, 5]]
    assert list(chunks(groups, 3, lambda item: item)) == [[3], [1, 4], [1, 5]]
    assert list(chunks([], 4, lambda item: 1)) == []


def table(task, rows, answers):
    return list(table_lines(task, Answers(rows, None, answers)))


def classified(*rows):
    answers = [{"label": label, "probability": 0.5} for label, _ in rows]
    return table(CLASSIFICATION, [Row("x:1", text) for _, text in rows], answers)


def test_columns_are_aligned_and_texts_shortened():
    rows = [("yes", "one"), ("no", "four\n\tfive"), ("yes", "x" * 100)]
    assert classified(*rows) == [
        "label  probability  text",
        "yes    0.5000       one",
        "no     0.5000       four five",
        f"yes    0.5000       {'x' * 59}…",
    ]


def test_wide_characters_take_two_cells_and_accents_none():
    sentences = [("北京", "abc"), ("e\u0301te\u0301", "x")]
    answers = [{"words": words, "tags": [], "entities": []} for words in sentences]
    rows = [TaggedSentence(words, None, 0, "x:1") for words in sentences]
    assert table(TAGGING, rows, answers) == [
        "text      entities",
        "北京 abc  -",
        "e\u0301te\u0301 x     -",
    ]


def test_a_text_does_not_steer_the_terminal():
    (_, line) = classified(("yes", "red \x1b[31malert\u202eback"))
    assert line.endswith(r"red \u001b[31malert\u202eback")


def test_every_entity_has_its_probability():
    entities = [
        {"type": "PER", "text": "Ann Lee", "start": 0, "end": 2, "probability": 0.931},
        {"type": "LOC", "text": "Rome", "start": 3, "end": 4, "probability": 0.5},
    ]
    words = ("Ann", "Lee", "likes", "Rome")
    row = TaggedSentence(words, None, 0, "x:1")
    (_, line) = table(TAGGING, [row], [{"words": words, "entities": entities}])
    assert line == "Ann Lee likes Rome  Ann Lee (PER 0.93), Rome (LOC 0.50)"


def test_no_answer_is_said():
    row = type("Question", (), {"question": "who?"})
    (_, line) = table(SQUAD, [row], [{"answer": "", "probability": 0.75}])
    assert line == "(no answer)  0.7500       who?"


def test_csv_keeps_texts_as_they_are():
    text = 'a\tb\u202ec\nd "e", f'
    rows = [{"id": text, "probabilities": {text: 0.5}, "start": None, "blanks": [text]}]
    lines = "\n".join(CsvTable().lines(Answers(rows, None, rows)))
    header, row = csv.reader(lines.splitlines(keepends=True))
    assert header == ["id", f"probabilities.{text}", "start", "blanks"]
    assert row[:3] == [text, "0.5", ""]


def test_csv_refuses_a_value_without_a_column():
    csv_table = CsvTable()

    def lines(**answer):
        return list(csv_table.lines(Answers([1], None, [answer])))

    assert lines(label="a", id="1") == ["label,id\na,1"]
    assert lines(label="b") == ["b,"]
    with pytest.raises(UserError, match=r"'value'.*; expected the same .*\.jsonl"):
        lines(label="b", value=1.0)


def test_rows_of_all_parts_are_counted(tmp_path, capsys):
    class Parts(Inference):
        def __init__(self):
            self.max_length = 9

        def stream(self, placed):
            for rows in placed:
                cut = types.SimpleNamespace(truncated=1)
                yield Answers(rows, cut, [{"label": row} for row in rows])

    path = tmp_path / "x.jsonl"
    write_answers(Parts(), [["a", "b"], ["c"]], str(path), "jsonl")
    assert path.read_text().split("\n")[1:] == ['{"label": "b"}', '{"label": "c"}', ""]
    said = "3 rows\n2 of 3 texts truncated to max_length=9\n"
    assert capsys.readouterr().err == said
