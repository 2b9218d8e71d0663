import csv
import types

import pytest

from bert_jax.errors import UserError
from bert_jax.inference.evaluation import Answers, Inference, chunks
from bert_jax.inference.lines import CsvTable, write_answers


def test_chunks_hold_every_item_once_and_cut_no_group():
    groups = [[3], [1, 4], [1], [5]]
    assert list(chunks(groups, 2, lambda item: 1)) == [[3, 1, 4], [1, 5]]
    assert list(chunks(groups, 4, lambda item: item)) == [[3, 1, 4], [1, 5]]
    assert list(chunks(groups, 3, lambda item: item)) == [[3], [1, 4], [1, 5]]
    assert list(chunks([], 4, lambda item: 1)) == []


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
