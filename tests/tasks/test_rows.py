"""Rows of every form of data, and errors that name the row."""

import bz2
import datetime
import gzip
import json
import logging
import lzma
import os
import re
import threading
from collections import namedtuple
from pathlib import Path

import numpy as np
import pandas
import pytest

import bert_jax
from bert_jax.errors import UserError
from bert_jax.tasks.rows import (
    count_rows,
    is_single,
    line_rows,
    placed_rows,
    plain,
    read_rows,
    text_of,
)

ROWS = [{"text": "a b", "label": "x"}, {"text": "c", "label": "y"}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def rows(data, **options):
    return [row for _, row in placed_rows(data, **options)]


def frames(**columns):
    """The same columns as a pandas frame, a polars frame and an Arrow table."""
    pandas, polars, arrow = map(pytest.importorskip, ("pandas", "polars", "pyarrow"))
    return [kind(columns) for kind in (pandas.DataFrame, polars.DataFrame, arrow.table)]


@pytest.fixture
def file(tmp_path):
    """A function that writes text or bytes to a file and returns its path."""

    def write(name, content):
        content = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return write


def cells(path, *columns, **options):
    """The line of each row of a table, and its texts in some columns."""
    return [
        (where.removeprefix(f"{path}:"), *(text_of(where, row, [x]) for x in columns))
        for where, row in read_rows(path, **options)
    ]


def test_rows_of_python_are_read():
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
    assert rows([b"x", b"\xc3"]) == ["x", "\ufffd"]
    assert rows("ä" * 150 + " in data.csv") == ["ä" * 150 + " in data.csv"]
    assert rows(np.array("a b")) == ["a b"]
    assert rows(np.array(["a", "b"])) == ["a", "b"]
    assert rows(np.array([["a", "b"], ["c", "d"]])) == [("a", "b"), ("c", "d")]
    assert [where for where, _ in placed_rows(["a", "b"])] == ["row 0", "row 1"]
    assert [where for where, _ in placed_rows(["a"], "train")] == ["train, row 0"]
    assert all(map(is_single, ("a", ("a",), {}, np.array("a"))))
    assert not any(map(is_single, (["a"], np.array(["a"]), iter("a"))))
    data = "a", np.array("a"), ["a", "b"], iter("ab")
    assert [count_rows(x) for x in data] == [1, 1, 2, None]


def test_rows_of_frames_are_read():
    for frame in frames(text=["a b", "c"], label=["x", "y"]):
        assert rows(frame) == ROWS
        assert count_rows(frame) == 2
    pandas, polars = map(pytest.importorskip, ("pandas", "polars"))
    for kind in (pandas.Series, polars.Series):
        assert rows(kind(["a", "b"])) == ["a", "b"]
    frame = pandas.DataFrame({"label": ["x", "y"], "text": ["a b", "c"]})
    assert rows(row for _, row in frame.iterrows()) == ROWS
    frame = pandas.DataFrame([["a b", 1], ["c", 2]])  # the column names are 0 and 1
    assert rows(frame) == [{"0": "a b", "1": 1}, {"0": "c", "1": 2}]


def test_missing_values_of_every_library_are_none():
    pandas = pytest.importorskip("pandas")
    missing = [None, float("nan"), np.float32("nan"), pandas.NA, pandas.NaT]
    assert [plain(value) for value in missing] == [None] * 5
    assert plain(np.int64(3)) == 3 and type(plain(np.int64(3))) is int
    assert type(plain(np.str_("a"))) is str and plain(np.array([1, 2])) == [1, 2]
    for frame in frames(text=["a", None], label=[1, None]):
        assert rows(frame)[1] == {"text": None, "label": None}
    frame = pandas.DataFrame({"label": pandas.array([1, None], dtype="Int64")})
    assert rows(frame) == [{"label": 1}, {"label": None}]


@pytest.mark.parametrize(
    "data, message",
    [
        (None, "the input is of type NoneType; expected a text, a tuple"),
        (b"x", "the input is of type bytes"),
        ({"a", "b"}, "the input is of type set"),
        (["a", None], "row 1 is missing; fill it in or drop the row"),
        ([datetime.date(2020, 1, 1)], "row 0 is of type date"),
        (Path("none.txt"), r"none\.txt does not exist; expected a file of rows"),
        (Path("gs://bucket/a.csv"), "gs:/bucket/a.csv is a URL; copy the file to this"),
    ],
)
def test_other_data_is_refused(data, message):
    with pytest.raises(UserError, match=message):
        rows(data)


def test_a_text_that_names_a_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("new.csv").write_text("text\nship\n")
    kinds = {"new.csv": "is the name", "~/new.csv": "is the name"}
    kinds |= dict.fromkeys(("missing.csv", "missing.JSONL.gz"), "ends like the name")
    for name, kind in kinds.items():
        advice = f"Path('{name}') from pathlib reads its rows, and ['{name}'] is a text"
        message = f"'{name}' {kind} of a file"
        if kind == "ends like the name":
            message += ", and there is no such file"
        message += f"; {advice}"
        with pytest.raises(UserError, match=re.escape(message)):
            rows(name)
        assert rows([name]) == [name]
    for name in ("new.csv", "~/new.csv"):
        assert rows(Path(name)) == [{"text": "ship"}]
    for text in (
        "in old.csv",
        "https://x.org/a.json",
        "csv",
        "a" * 5000,
        ".",
        "",
        "a\0b",
    ):
        assert rows(text) == [text]


def test_lines_are_texts(file, tmp_path):
    """A tab separates the texts of a row. Lines that look like JSON are texts as well."""
    lines = '\ufeffa b\r\nc\td\n\n{"text": "e"}\n{f}\u2028g\x0b\n'
    texts = ["a b", ("c", "d"), "", '{"text": "e"}', "{f}\u2028g\x0b"]
    path = file("a.txt", lines)
    assert rows(path) == texts
    assert rows(path, tabs=False)[1] == "c\td"
    assert list(line_rows(['{"text": "e"}'], "in")) == [("in:1", '{"text": "e"}')]
    pipe = tmp_path / "pipe"  # like <(command) of a shell
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("a\nb\n",), daemon=True)
    writer.start()
    assert rows(pipe) == ["a", "b"]
    writer.join()


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.csv", 'text,label\na b,x\n"c",y\n'),
        ("A.Tsv", "text\tlabel\na b\tx\nc\ty\n"),
        ("a.json", json.dumps(ROWS, indent=1)),
        ("a.json", LINES),
        ("A.JSONL", LINES),
        ("index.csv", ",text,label\n0,a b,x\n1,c,y\n"),  # pandas's to_csv
        ("two.tsv", "\ttext\tlabel\t\n0\ta b\tx\t\n1\tc\ty\t\n"),
        ("a.csv.gz", gzip.compress(b'text,label\n"a b",x\nc,y\n', mtime=0)),
        ("A.TSV.GZ", gzip.compress(b"text\tlabel\na b\tx\nc\ty\n", mtime=0)),
        ("a.jsonl.gz", gzip.compress(LINES.encode(), mtime=0)),
    ],
)
def test_tables_of_every_format_are_read(name, content, file):
    path = file(name, content)
    rows_of_file = list(placed_rows(path))
    assert [row for _, row in rows_of_file] == ROWS
    assert all(where.startswith(str(path)) for where, _ in rows_of_file)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
def test_nan_in_a_file_is_a_missing_value(name, file):
    """pandas writes missing values as NaN, which must not become a class."""
    if name == "a.parquet":
        pyarrow = pytest.importorskip("pyarrow")
        path = file(name, "")
        content = pyarrow.table({"text": ["a"], "label": [float("nan")]})
        pytest.importorskip("pyarrow.parquet").write_table(content, path)
    else:
        row = '{"text": "a", "label": NaN}'
        path = file(name, f"[{row}]" if name == "a.json" else row)
    assert rows(path) == [{"text": "a", "label": None}]
    with pytest.raises(UserError, match='"label" is missing; fill it in or drop'):
        cells(path, "label")


def test_quotes_commas_and_line_ends_are_kept_in_cells(file):
    path = file("a.csv", 'label,text\r\n1,"a ""b"", c\nd"\r\n0,e\u2028f\r\n')
    assert cells(path, "text") == [("2", 'a "b", c\nd'), ("4", "e\u2028f")]
    path = file("a.tsv", 'text\tlabel\n"open\t1\nshe said "no"\t0\n')
    assert cells(path, "text") == [("2", '"open'), ("3", 'she said "no"')]
    long = "a, " * 100_000
    assert cells(file("b.csv", f'text,label\n"{long}",1\n'), "text") == [("2", long)]


def test_a_tsv_file_with_quotation_marks_as_in_csv_warns_once(file, caplog):
    pandas = pytest.importorskip("pandas")
    texts = ['she said "no"', '"', "a", 'a "b" c']
    quoted, plain = file("quoted.tsv", ""), file("plain.tsv", "")
    frame = pandas.DataFrame({"text": texts, "label": ["x"] * 4})
    frame.to_csv(quoted, sep="\t", index=False)
    content = "".join(
        f"{text}\tx\n" for text in ["text", *texts, '"a"', '""', '"b" or "c"']
    )
    plain.write_text(content)
    with caplog.at_level(logging.WARNING):
        assert cells(plain, "text")[:4] == [(str(i), x) for i, x in enumerate(texts, 2)]
        assert caplog.messages == []
        assert cells(quoted, "text")[0] == ("2", '"she said ""no"""')
        cells(quoted, "text")
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(
        f"{quoted}:2: quotation marks as in CSV stay in"
    )


def test_lines_that_end_in_cr_are_not_one_text(file):
    with pytest.raises(UserError, match=r"a\.txt: lines end in CR, as on old Macs"):
        rows(file("a.txt", "first\rsecond\r"))
    assert rows(file("b.txt", "a\rb\nc\r")) == ["a\rb", "c"]
    assert rows(file("c.txt", "a\r")) == ["a"]
    assert rows(file("a.json", '[{"a":\r"b"}]\r')) == [{"a": "b"}]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "SICK_train.txt"])
def test_byte_order_mark_crlf_and_blank_lines_are_skipped(file, name):
    separator = "," if name == "a.csv" else "\t"
    content = "\ufefftext,label\r\na,1\r\n\r\nb,0\r\n".replace(",", separator)
    assert cells(file(name, content), "text", "label") == [
        *[("2", "a", "1"), ("4", "b", "0")]
    ]
    path = file("b.csv", 'text\n\na\n""\n\n')
    assert cells(path, "text") == [("3", "a"), ("4", "")]
    assert cells(file("b.tsv", "text\n\na\n"), "text") == [("2", ""), ("3", "a")]


def test_tables_may_have_no_header_and_short_rows(file, caplog):
    path = file("a.tsv", "x\t1\t\thello\n")
    header = ("source", "label", "star", "sentence")
    assert cells(path, "sentence", header=header) == [("1", "hello")]
    path = file("b.tsv", "a\tb\n1\t2\n3\n4\t5\n6\n")
    with caplog.at_level(logging.WARNING):
        assert cells(path, "b", skip_short=True) == [("2", "2"), ("4", "5")]
    assert [x.partition(": ")[0] for x in caplog.messages] == [f"{path}:3", f"{path}:5"]
    with pytest.raises(UserError, match=r"c\.tsv:3: row has 3 columns"):
        cells(file("c.tsv", "a\tb\n1\n1\t2\t3\n"), "b", skip_short=True)


@pytest.mark.parametrize(
    "name, content, message",
    [
        (
            "a.tsv",
            "a\tb\tc\td\n1\t2\t3\t4\n1\t2\t3\n",
            r"a\.tsv:3: row has 3 columns, the header has 4 \(a, b, c, d\)",
        ),
        ("a.csv", 'a,b\n"x\ny",2\n1,2,3\n', r"a\.csv:4: row has 3 .* put quotes ar"),
        ("a.csv", "a,b\n1\n", r"a\.csv:2: row has 1 column.* or add a header$"),
        ("a.csv", "b,c\n1,2\n", r"a\.csv:2: no column 'a'; the columns are b, c; "),
        (
            "a.csv",
            "a;c\nx;1\n",
            r"a\.csv:2: no column 'a'; .* needs a header, with comm",
        ),
        ("a.csv", "a;c\nx, y;1\n", r"a\.csv:2: row has 2 columns, the header has 1"),
        ("a.tsv", "a,c\nx,1\n", r"no column 'a'; .* tabs in \.tsv"),
        ("a.csv", "a good old film,1\na,0\n", r"good old film, 1; .* needs a hea"),
        ("a.csv", "a,a\n1,2\n", r"a\.csv: column 'a' occurs twice"),
        ("a.jsonl", '{"a": "a", "a": "b"}\n', "'a'.* occurs twice"),
        ("a.json", '[{"a": "a", "a": "b"}]', "'a'.* occurs twice"),
        ("a.csv", 'a,b\n"x"y,2\n', r"a\.csv:2: not CSV"),
        ("a.csv", 'a,b\n"x,2\n3,4\n', r"a\.csv:2: not CSV"),
        ("a.csv", "", r"a\.csv is empty"),
        ("a.csv", "a,b\n", r"a\.csv has no rows; expected at least one"),
        ("a.tsv", "a\tb\n\n", r"a\.tsv has no rows"),
        ("a.json", "[]", r"a\.json has no rows"),
        ("a.jsonl", "\n", r"a\.jsonl has no rows"),
        (
            "a.csv",
            "a,b\r1,2\r",
            r"a\.csv: lines end in CR, as on old Macs; .*: convert",
        ),
        ("a.tsv", "a\tb\r1\t2\r3\t4", r"a\.tsv: lines end in CR"),
        ("a.jsonl", '{"a": "b"}\r{"a": "c"}\r', r"a\.jsonl: lines end in CR"),
        ("a.jsonl", '{"a": "1"}\n{"b": 1}\n', r"a\.jsonl:2: no column 'a'.*are b"),
        ("a.jsonl", '{"a": null}\n', r'a\.jsonl:1: "a" is missing'),
        ("a.jsonl", "{a: 1}\n", r"a\.jsonl:1 is not JSON"),
        ("a.jsonl", "[1]\n", r"a\.jsonl:1 contains a JSON list"),
        ("a.json", "[1]", "row 0 is of type int; expected"),
        ("a.json", '["x"]', "row 0 has 1 value; expected an object"),
        ("a.json", "[{]", "is not JSON"),
        ("a.json", "3", "contains a JSON int"),
        ("a.tsv", b"a\nok\n\xff\xfe\n", r"a\.tsv:3 is not UTF-8"),
        ("a.csv.gz", "a,b\n1,2\n", r"a\.csv\.gz is damaged"),
        (
            "a.tsv.gz",
            gzip.compress(b"".join(b"%d\n" % i for i in range(9999)), mtime=0)[:9999],
            "is damaged",
        ),
        ("b.parquet", "text", r"b\.parquet .*expected a Parquet file"),
    ],
)
def test_errors_have_file_and_line(file, name, content, message):
    if name == "b.parquet":
        pytest.importorskip("pyarrow.parquet")
    path = file(name, content)
    with pytest.raises(UserError, match=message):
        cells(path, "a")


def test_a_column_that_occurs_twice_is_refused(tmp_path):
    pandas, arrow = map(pytest.importorskip, ("pandas", "pyarrow"))
    parquet = pytest.importorskip("pyarrow.parquet")
    frame = pandas.DataFrame([["a", "b"]], columns=["text", "text"])
    table = arrow.table([arrow.array(["a"]), arrow.array(["b"])], ["text", "text"])
    parquet.write_table(table, tmp_path / "a.parquet")
    for data in (frame, table, tmp_path / "a.parquet"):
        with pytest.raises(UserError, match="'text' occurs twice"):
            rows(data)


@pytest.mark.parametrize(
    ("name", "row", "setting"),
    [
        ("squad", {"context": "c", "answers": "c"}, "question"),
        ("squad", {"question": "q", "answers": "c"}, "context"),
        ("choices", {"choices": ["a", "b"], "label": 0}, "context"),
        ("choices", {"context": "c", "label": 0}, "choices"),
        ("choices", {"context": "c", "choices": ["a", "b"]}, "label"),
        ("tagging", {"tags": ["O"]}, "words"),
        ("tagging", {"words": ["a"]}, "tags"),
        ("classification", {"text": "a"}, "label"),
        ("pairs", {"text_a": "a", "label": "x"}, "text_b"),
    ],
)
def test_the_message_for_a_missing_column_names_the_argument_of_the_task(
    name, row, setting
):
    message = (
        rf"rename .*, or set {setting} of the task \(data\.{setting}\) to its name"
    )
    with pytest.raises(UserError, match=message):
        getattr(bert_jax.tasks, name)().with_rows(train=[row])


def test_records_of_numpy_have_the_names_of_their_fields():
    """By position the texts and labels would be swapped."""
    frame = pandas.DataFrame({"label": ["good", "bad"], "text": ["a film", "a bore"]})
    records = frame.to_records(index=False)
    expected = frame.to_dict("records")
    for rows in (records, list(records)):
        assert [row for _, row in placed_rows(rows)] == expected


def test_a_row_of_a_frame_is_refused_because_its_cells_would_be_rows():
    frame = pandas.DataFrame({"text_a": ["a"], "text_b": ["b"]})
    with pytest.raises(UserError, match="one row of a data frame, with text_a, text_b"):
        list(placed_rows(frame.iloc[0]))
    (first,) = placed_rows([frame.iloc[0]])
    assert first[1] == {"text_a": "a", "text_b": "b"}
    assert [row for _, row in placed_rows(frame["text_a"])] == ["a"]


@pytest.mark.parametrize("module", [bz2, gzip, lzma])
def test_a_compressed_table_has_columns(tmp_path, module):
    suffix = {bz2: "bz2", gzip: "gz", lzma: "xz"}[module]
    path = tmp_path / f"rows.csv.{suffix}"
    path.write_bytes(module.compress(b"text,label\nhello,1\n"))
    assert [row for _, row in placed_rows(path)] == [{"text": "hello", "label": "1"}]
