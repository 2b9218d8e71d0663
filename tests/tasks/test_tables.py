import gzip
import logging

import pytest

from bert_jax.errors import UserError
from bert_jax.tasks import tables
from bert_jax.tasks.tables import read_columns, read_table


@pytest.fixture
def table(tmp_path):
    """Writes bytes to a file; its path."""

    def write(name, content):
        content = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return write


def rows(path, *columns, **options):
    return [
        (where.removeprefix(f"{path}:"), *values.values())
        for where, values in read_table(path, columns, **options)
    ]


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
    assert [row for _, row in tables.read_objects(path)] == [
        {"text": "a", "label": None}
    ]
    with pytest.raises(UserError, match='"label" is missing; fill it in or drop'):
        rows(path, "text", "label")


def test_csv_with_quotes_commas_and_line_ends(table):
    content = 'label,text\r\n1,"a ""b"", c\nd"\r\n0,e\u2028f\r\n'
    path = table("a.csv", content)
    assert rows(path, "text", "label") == [
        ("2", 'a "b", c\nd', "1"),
        ("4", "e\u2028f", "0"),
    ]
    assert read_columns(path) == ["label", "text"]


def test_tsv_has_no_quoting(table):
    path = table("a.tsv", 'text\tlabel\n"open\t1\nshe said "no"\t0\n')
    assert rows(path, "text", "label") == [
        ("2", '"open', "1"),
        ("3", 'she said "no"', "0"),
    ]


def test_jsonl_with_any_values_and_keys_in_any_order(table):
    content = (
        '{"label": 1, "text": "é"}\n\n{"id": 7, "text": "\\u00e9", "label": true}\n'
    )
    path = table("a.jsonl", content)
    assert rows(path, "text", "label", optional=["id"]) == [
        ("1", "é", "1", None),
        ("3", "é", "True", "7"),
    ]
    assert read_columns(path) == ["label", "text"]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "SICK_train.txt"])
def test_byte_order_mark_crlf_and_blank_lines(table, name):
    separator = "," if name == "a.csv" else "\t"
    content = "\ufefftext,label\r\na,1\r\n\r\nb,0\r\n".replace(",", separator)
    expected = [("2", "a", "1"), ("4", "b", "0")]
    assert rows(table(name, content), "text", "label") == expected
    if name == "a.csv":
        assert rows(table("b.csv", 'text\n\na\n""\n\n'), "text") == [
            ("3", "a"),
            ("4", ""),
        ]


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.csv.gz", 'text,label\n"a,b",1\n'),
        ("a.tsv.gz", "text\tlabel\na,b\t1\n"),
        ("a.jsonl.gz", '{"text": "a,b", "label": 1}\n'),
        ("A.CSV.GZ", 'text,label\n"a,b",1\n'),
    ],
)
def test_gzip(table, name, content):
    path = table(name, gzip.compress(content.encode()))
    assert [row[1:] for row in rows(path, "text", "label")] == [("a,b", "1")]


def test_header_given_and_column_optional(table):
    path = table("a.tsv", "x\t1\t\thello\n")
    header = ("source", "label", "star", "sentence")
    expected = [("1", "hello", None)]
    assert rows(path, "sentence", optional=["index"], header=header) == expected


def test_short_rows_are_left_out_with_a_notice(table, caplog):
    path = table("a.tsv", "a\tb\n1\t2\n3\n4\t5\n6\n")
    with caplog.at_level(logging.WARNING):
        assert rows(path, "a", "b", skip_short=True) == [
            ("2", "1", "2"),
            ("4", "4", "5"),
        ]
    assert caplog.messages == [f"{path}: left out 2 rows of too few columns: line 3, 5"]


@pytest.mark.parametrize(
    "name, content, message",
    [
        (
            "a.tsv",
            "a\tb\tc\td\n1\t2\t3\t4\n1\t2\t3\n",
            r"a\.tsv:3: row has 3 columns, the header has 4 \(a, b, c, d\)",
        ),
        ("a.csv", "a,b\n1\n", r"a\.csv:2: row has 1 column, the header has 2"),
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
        ("a.csv", 'a,b\n"x"y,2\n', r"a\.csv:2: not CSV"),
        ("a.csv", 'a,b\n"x,2\n3,4\n', r"a\.csv:2: not CSV"),
        ("a.csv", "", r"a\.csv is empty"),
        ("a.jsonl", '{"a": 1}\n{"b": 1}\n', r"a\.jsonl:2: no column 'a'.*are b"),
        ("a.jsonl", '{"a": null}\n', r'a\.jsonl:1: "a" is missing'),
        ("a.jsonl", "{a: 1}\n", r"a\.jsonl:1 is not JSON"),
        ("a.jsonl", "[1]\n", r"a\.jsonl:1 holds a JSON list, not an object"),
        ("a.tsv", b"a\nok\n\xff\xfe\n", r"a\.tsv:3 is not UTF-8"),
        ("a.csv.gz", "a,b\n1,2\n", r"a\.csv\.gz: broken gzip"),
        ("a.xlsx", "", r"a\.xlsx is no table by its name; expected one of \.csv"),
    ],
)
def test_errors_name_file_and_line(table, name, content, message):
    path = table(name, content)
    with pytest.raises(UserError, match=message):
        rows(path, "a")


def test_a_field_of_any_length(table):
    text = "a, " * 100_000
    path = table("a.csv", f'text,label\n"{text}",1\n')
    assert rows(path, "text", "label") == [("2", text, "1")]


def test_half_a_gzip_file(table):
    packed = gzip.compress(b"a\tb\n" + b"".join(b"%d\t1\n" % i for i in range(9999)))
    with pytest.raises(UserError, match="broken gzip"):
        rows(table("a.tsv.gz", packed[: len(packed) // 2]), "a")


def test_a_table_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "LONGEST_LINE", 0)
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"text,label\n" + b"a,b\n" * 100_000))
    with pytest.raises(UserError, match="unpacks to over 100 times its size"):
        list(tables.read_table(path, ["text"]))
