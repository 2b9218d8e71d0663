"""Tables of every format, and the errors that name a file and a line."""

import gzip
import json
import logging

import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.rows import read_rows, text_of


@pytest.fixture
def table(tmp_path):
    """Writes bytes to a file; its path."""

    def write(name, content):
        content = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return write


def rows(path, *columns, **options):
    """The line of each row, and its texts in some columns."""
    return [
        (
            where.removeprefix(f"{path}:"),
            *(text_of(where, row, [name]) for name in columns),
        )
        for where, row in read_rows(path, **options)
    ]


ROWS = [{"text": "a b", "label": "x"}, {"text": "c", "label": "y"}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.csv", "text,label\na b,x\nc,y\n"),
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
def test_rows_of_every_format(name, content, table):
    path = table(name, content)
    found = list(read_rows(path))
    assert [row for _, row in found] == ROWS
    assert all(where.startswith(str(path)) for where, _ in found)


def test_rows_of_parquet(tmp_path, table):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    assert [row for _, row in read_rows(tmp_path / "a.parquet")] == ROWS
    with pytest.raises(UserError, match=r"b\.parquet .*expected a Parquet file"):
        list(read_rows(table("b.parquet", "text")))


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
def test_nan_in_a_file_is_a_missing_value(name, table):
    """As pandas writes missing values; "NaN" would be one more class."""
    if name == "a.parquet":
        pyarrow = pytest.importorskip("pyarrow")
        path = table(name, "")
        content = pyarrow.table({"text": ["a"], "label": [float("nan")]})
        pytest.importorskip("pyarrow.parquet").write_table(content, path)
    else:
        row = '{"text": "a", "label": NaN}'
        path = table(name, f"[{row}]" if name == "a.json" else row)
    assert [row for _, row in read_rows(path)] == [{"text": "a", "label": None}]
    with pytest.raises(UserError, match='"label" is missing; fill it in or drop'):
        rows(path, "label")


def test_quotes_commas_and_line_ends(table):
    path = table("a.csv", 'label,text\r\n1,"a ""b"", c\nd"\r\n0,e\u2028f\r\n')
    assert rows(path, "text") == [("2", 'a "b", c\nd'), ("4", "e\u2028f")]
    path = table("a.tsv", 'text\tlabel\n"open\t1\nshe said "no"\t0\n')
    assert rows(path, "text") == [("2", '"open'), ("3", 'she said "no"')]
    long = "a, " * 100_000
    assert rows(table("b.csv", f'text,label\n"{long}",1\n'), "text") == [("2", long)]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "SICK_train.txt"])
def test_byte_order_mark_crlf_and_blank_lines(table, name):
    separator = "," if name == "a.csv" else "\t"
    content = "\ufefftext,label\r\na,1\r\n\r\nb,0\r\n".replace(",", separator)
    expected = [("2", "a", "1"), ("4", "b", "0")]
    assert rows(table(name, content), "text", "label", txt=True) == expected
    path = table("b.csv", 'text\n\na\n""\n\n')
    assert rows(path, "text") == [("3", "a"), ("4", "")]


def test_data_sets_without_header_and_with_short_rows(table, caplog):
    path = table("a.tsv", "x\t1\t\thello\n")
    header = ("source", "label", "star", "sentence")
    assert rows(path, "sentence", header=header) == [("1", "hello")]
    path = table("b.tsv", "a\tb\n1\t2\n3\n4\t5\n6\n")
    with caplog.at_level(logging.WARNING):
        assert rows(path, "b", skip_short=True) == [("2", "2"), ("4", "5")]
    assert caplog.messages == [f"{path}: left out 2 rows of too few columns: line 3, 5"]


@pytest.mark.parametrize(
    "name, content, message",
    [
        (
            "a.tsv",
            "a\tb\tc\td\n1\t2\t3\t4\n1\t2\t3\n",
            r"a\.tsv:3: row has 3 columns, the header has 4 \(a, b, c, d\)",
        ),
        ("a.csv", 'a,b\n"x\ny",2\n1,2,3\n', r"a\.csv:4: row has 3 columns"),
        ("a.csv", "b,c\n1,2\n", r"a\.csv:2: no column 'a'; the columns are b, c$"),
        (
            "a.csv",
            "a;c\nx;1\n",
            r"a\.csv:2: no column 'a'; .* the header has ';' between its names; expected c",
        ),
        ("a.csv", "a;c\nx, y;1\n", r"a\.csv:2: row has 2 .*the header has ';' between"),
        ("a.tsv", "a,c\nx,1\n", r"the header has ',' between its names; .* tabs in a"),
        (
            "a.csv",
            "a good film,1\na bad film,0\n",
            r"columns are a good film, 1; if these are a row of the file, put a line wi",
        ),
        ("a.csv", "a,a\n1,2\n", r"a\.csv: column 'a' occurs twice"),
        ("a.jsonl", '{"a": "a", "a": "b"}\n', "'a' occurs twice"),
        ("a.csv", 'a,b\n"x"y,2\n', r"a\.csv:2: not CSV"),
        ("a.csv", 'a,b\n"x,2\n3,4\n', r"a\.csv:2: not CSV"),
        ("a.csv", "", r"a\.csv is empty"),
        ("a.jsonl", '{"a": "1"}\n{"b": 1}\n', r"a\.jsonl:2: no column 'a'.*are b"),
        ("a.jsonl", '{"a": null}\n', r'a\.jsonl:1: "a" is missing'),
        ("a.jsonl", "{a: 1}\n", r"a\.jsonl:1 is not JSON"),
        ("a.jsonl", "[1]\n", r"a\.jsonl:1 holds a JSON list, not an object"),
        ("a.json", "[1]", "row 0 is of type int; expected an object"),
        ("a.json", "[{]", "is not JSON"),
        ("a.json", "3", "holds a JSON int, not an object"),
        ("a.tsv", b"a\nok\n\xff\xfe\n", r"a\.tsv:3 is not UTF-8"),
        ("a.csv.gz", "a,b\n1,2\n", r"a\.csv\.gz: broken gzip"),
        (
            "a.tsv.gz",
            gzip.compress(b"".join(b"%d\n" % i for i in range(9999)), mtime=0)[:9999],
            "broken gzip",
        ),
        ("a.txt", "a\n", r"a\.txt is no table by its name"),
        ("a.xlsx", "", r"a\.xlsx is no table by its name; expected one of \.csv"),
    ],
)
def test_errors_name_file_and_line(table, name, content, message):
    path = table(name, content)
    with pytest.raises(UserError, match=message):
        rows(path, "a")
