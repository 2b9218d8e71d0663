"""Rows of every form of data."""

import datetime
import os
import re
import threading
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.rows import (
    by_position,
    count_rows,
    given_columns,
    is_single,
    line_rows,
    placed_rows,
    plain,
    row_texts,
    with_columns,
)

ROWS = [{"text": "a b", "label": "x"}, {"text": "c", "label": "y"}]


def rows(data, **options):
    return [row for _, row in placed_rows(data, **options)]


def table(**columns):
    """The same columns as a pandas frame, a polars frame and an Arrow table."""
    pandas, polars, arrow = map(pytest.importorskip, ("pandas", "polars", "pyarrow"))
    kinds = (pandas.DataFrame, polars.DataFrame, arrow.table)
    return [kind(columns) for kind in kinds]


def test_rows_of_python():
    Pair = namedtuple("Pair", "text label")
    assert rows("a") == ["a"]
    assert rows(("a", "b")) == [("a", "b")]
    assert rows({"text": "a"}) == [{"text": "a"}]
    assert rows(["a", ("b", 1), ["c", 2], {"text": "d"}, Pair("e", 3)]) == [
        *("a", ("b", 1), ("c", 2), {"text": "d"}),
        {"text": "e", "label": 3},
    ]
    assert rows(row for row in ROWS) == ROWS
    nested = {"a": [np.int64(3), float("nan")], "b": {"c": (np.array([1]), "\ud800")}}
    assert rows([nested]) == [{"a": [3, None], "b": {"c": [[1], "\ufffd"]}}]
    assert rows([{"text": "a", "of": Pair("e", 3)}]) == [{"text": "a", "of": ["e", 3]}]
    assert rows(np.array("a b")) == ["a b"]
    assert rows("ä" * 150 + " in data.csv") == ["ä" * 150 + " in data.csv"]
    assert rows(np.array(["a", "b"])) == ["a", "b"]
    assert rows(np.array([["a", "b"], ["c", "d"]])) == [("a", "b"), ("c", "d")]
    assert [where for where, _ in placed_rows(["a", "b"])] == ["row 0", "row 1"]
    assert [where for where, _ in placed_rows(["a"], "train")] == ["train, row 0"]
    assert all(map(is_single, ("a", ("a",), {}, np.array("a"))))
    assert not any(map(is_single, (["a"], np.array(["a"]), iter("a"))))
    data = "a", np.array("a"), ["a", "b"], iter("ab")
    assert [count_rows(x) for x in data] == [1, 1, 2, None]


def test_rows_of_frames():
    for frame in table(text=["a b", "c"], label=["x", "y"]):
        assert rows(frame) == ROWS
        assert count_rows(frame) == 2
    pandas, polars = map(pytest.importorskip, ("pandas", "polars"))
    for kind in (pandas.Series, polars.Series):
        assert rows(kind(["a", "b"])) == ["a", "b"]
    frame = pandas.DataFrame({"label": ["x", "y"], "text": ["a b", "c"]})
    assert rows(row for _, row in frame.iterrows()) == ROWS
    frame = pandas.DataFrame([["a b", 1], ["c", 2]])  # the names of its columns: 0, 1
    for columns in (0, [0], np.int64(0), "0", ()):
        found = row_texts(placed_rows(frame), given_columns(columns))
        assert [row.texts for row in found] == [("a b",), ("c",)]
    with pytest.raises(UserError, match="row 0: no column '7'; the columns are 0, 1"):
        [*row_texts(placed_rows(frame), given_columns(7))]


def test_missing_values_of_every_library_are_none():
    pandas = pytest.importorskip("pandas")
    missing = [None, float("nan"), np.float32("nan"), pandas.NA, pandas.NaT]
    assert [plain(value) for value in missing] == [None] * 5
    assert plain(np.int64(3)) == 3 and type(plain(np.int64(3))) is int
    assert type(plain(np.str_("a"))) is str and plain(np.array([1, 2])) == [1, 2]
    for frame in table(text=["a", None], label=[1, None]):
        assert rows(frame)[1] == {"text": None, "label": None}
    frame = pandas.DataFrame({"label": pandas.array([1, None], dtype="Int64")})
    assert rows(frame) == [{"label": 1}, {"label": None}]


@pytest.mark.parametrize(
    "data, message",
    [
        (None, "the input is of type NoneType; expected a text, a tuple"),
        (b"x", "the input is of type bytes"),
        ({"a", "b"}, "the input is of type set"),
        (["a", None], "row 1 is missing; expected a text, a tuple or a dictionary"),
        ([b"x"], "row 0 is of type bytes"),
        ([datetime.date(2020, 1, 1)], "row 0 is of type date"),
    ],
)
def test_other_data_is_refused(data, message):
    with pytest.raises(UserError, match=message):
        rows(data)


def test_only_a_path_is_a_file(tmp_path, caplog):
    path = tmp_path / "a.csv"
    path.write_text('text,label\na b,x\n"c",y\n')
    assert rows(path) == ROWS
    with caplog.at_level("WARNING", "bert_jax"):
        assert rows("a.txt") == ["a.txt"]
        assert not caplog.messages
        assert rows(str(path)) == [str(path)]
    assert caplog.messages[0].endswith("for the file")


def test_rows_of_lines(tmp_path):
    (tmp_path / "a.txt").write_text(
        '\ufeffa b\r\nc\td\n\n{"text": "e"}\n{f}\u2028g\x0b\n'
    )
    assert rows(tmp_path / "a.txt") == [
        "a b",
        ("c", "d"),
        "",
        '{"text": "e"}',
        "{f}\u2028g\x0b",
    ]
    assert list(line_rows(['{"text": "e"}'], "in")) == [("in:1", '{"text": "e"}')]
    with pytest.raises(UserError, match=r"none\.txt does not exist"):
        rows(Path("none.txt"))


def test_a_pipe_is_read(tmp_path):
    """As a shell's <(command) is."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("a\nb\n",), daemon=True)
    writer.start()
    assert rows(path) == ["a", "b"]
    writer.join()


@pytest.mark.parametrize(
    "row, names, fewer, expected",
    [
        ("a", ["text"], False, {"text": "a"}),
        (("a",), ["text", "label"], True, {"text": "a", "label": None}),
        (("a", "b"), ["text"], False, "row 3 has 2 values; expected text"),
        ("a", ["a", "b"], False, "row 3 has 1 value; expected a, b"),
    ],
)
def test_values_by_position(row, names, fewer, expected):
    if isinstance(expected, dict):
        assert by_position("row 3", row, names, fewer=fewer) == expected
        return
    with pytest.raises(UserError, match=expected):
        by_position("row 3", row, names, fewer=fewer)


def test_columns_have_other_names():
    row = {"review": "a", "text": "b", "id": 3}

    def named(*columns, names=("text",)):
        return next(with_columns([("row 0", row)], names, columns))[1]

    assert named("review") == row | {"text": "a"}
    assert named("review", names=("text_a", "text_b")) == row | {"text_a": "a"}
    with pytest.raises(UserError, match="row 0: no column 'x'; the columns are review"):
        named("x")
    with pytest.raises(
        UserError, match=r"2 names \(review, id\); expected 1, for text"
    ):
        named("review", "id")


def texts(data, *columns, most=2):
    return [row.texts for row in row_texts(placed_rows(data), columns, most)]


def test_texts_of_rows():
    assert texts(["a", ("b", "c")]) == [("a",), ("b", "c")]
    assert texts([{"text": "a", "title": "t"}]) == [("a",)]
    assert texts([{"text_a": "a", "text_b": "b"}]) == [("a", "b")]
    assert texts([{"text": "a", "text_b": "b"}]) == [("a", "b")]
    assert texts([{"text": "c", "text_a": "a", "text_b": "b"}]) == [("a", "b")]
    assert texts([{"review": "a", "stars": 3, "id": "x7"}]) == [("a",)]
    assert texts([{"title": "t", "review": "a"}], "review") == [("a",)]
    rows = [{"text": "a", "id": 7}, {"text": "b", "id": None}, {"text": "c"}]
    assert [row.id for row in row_texts(placed_rows(rows))] == [7, None, None]


@pytest.mark.parametrize(
    "data, message",
    [
        ([{"title": "t", "review": "a"}], "columns are title, review; expected one"),
        ([{"stars": 3}], "the columns are stars"),
        ([{"review": "a"}, {"review": None}], 'row 1: "review" is missing'),
        (
            [{"review": "a"}, {"title": "b"}],
            "row 1: the text is in title, in the rows b",
        ),
        ([{"text": "a"}, {"text": "b", "text_b": "c"}], "row 1: .* text and text_b"),
        # Either column may have the texts, whichever row is the first.
        ([{"title": None, "author": "a"}], "row 0: the columns are title, author"),
        ([{"author": "a"}, {"author": "b", "title": "c"}], "row 1: the columns are"),
        ([{"text": ["a"]}], 'row 0: "text" is of type list; expected text'),
        ([("a", "b", "c")], "row 0 has 3 values; expected a text, or a tuple"),
        ([("a", None)], "row 0: the text is missing"),
        ([("a", 1)], "row 0: the text is of type int"),
    ],
)
def test_what_has_no_texts(data, message):
    with pytest.raises(UserError, match=message):
        texts(data)
    with pytest.raises(UserError, match="row 0: no column 'b'"):
        texts([{"text": "a"}], "b")
    with pytest.raises(UserError, match=r"row 0 has 2 values; expected a text$"):
        texts([("a", "b")], most=1)


@pytest.mark.parametrize(
    "header, refused",
    [
        ("review", ""),
        ("Customer review", ""),
        ("text;label", "header has ';' between its names; expected commas in a .csv"),
        ("a film of the year", "if these are a row of the file, put a line with names"),
    ],
)
def test_a_header_that_is_probably_none_is_refused(tmp_path, header, refused):
    """Otherwise a model would read whole lines, or lose the first text of the file."""
    path = tmp_path / "texts.csv"
    path.write_text(f"{header}\nfirst\nsecond\n")
    if refused:
        with pytest.raises(
            UserError, match=re.escape(f"{path}:2: the columns are")
        ) as e:
            texts(path)
        assert refused in str(e.value)
    assert texts(path, *[header] * bool(refused)) == [("first",), ("second",)]


def test_a_column_that_occurs_twice_is_refused(tmp_path):
    pandas, arrow = map(pytest.importorskip, ("pandas", "pyarrow"))
    parquet = pytest.importorskip("pyarrow.parquet")
    frame = pandas.DataFrame([["a", "b"]], columns=["text", "text"])
    table = arrow.table([arrow.array(["a"]), arrow.array(["b"])], ["text", "text"])
    parquet.write_table(table, tmp_path / "a.parquet")
    for data in (frame, table, tmp_path / "a.parquet"):
        with pytest.raises(UserError, match="'text' occurs twice"):
            rows(data)
