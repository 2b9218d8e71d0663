"""Lists that a program printed into one cell of a table."""

import json

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.cells import is_list_beside, looks_like_list, opens_list, parse_list
from bert_jax.tasks.splits import Form, with_lists

FORM = Form(columns={"words": ("words",), "tags": ("tags",)}, lists=("words", "tags"))
TEXTS = ["a", "b c", "it's", 'the "d"', "e, f]", "g\\h", "é\n", "\u200d😀", "", "[i]"]


@pytest.mark.parametrize(
    "printed",
    [
        json.dumps(TEXTS),
        json.dumps(TEXTS, ensure_ascii=False),
        json.dumps(TEXTS, indent=1),
        str(TEXTS),
        str(tuple(TEXTS)),
        str(np.array(TEXTS)),
        str(np.array(TEXTS, object)),
        repr(np.array(TEXTS)),
        repr(np.array(TEXTS, object)),
        str([*np.array(TEXTS)]),  # np.str_('a')
        f" {TEXTS} ",
    ],
)
def test_printed_lists_of_texts_are_parsed(printed):
    assert opens_list(printed) and looks_like_list(printed)
    assert parse_list(printed) == TEXTS


def test_sets_and_an_index_of_pandas_are_parsed():
    pandas = pytest.importorskip("pandas")
    for texts in (["a"], ["it's", "b", "c"]):
        assert sorted(parse_list(str({*texts}))) == sorted(texts)
        assert sorted(parse_list(str(frozenset(texts)))) == sorted(texts)
    assert parse_list(repr(pandas.Index(["a", "b"]))) == ["a", "b"]
    assert [parse_list(x) for x in ("set()", "()", "[]", "('a',)")] == [
        [],
        [],
        [],
        ["a"],
    ]


@pytest.mark.parametrize(
    "values",
    [[1, 0, 1], [-1, 20], [1.0, 0.0], [0.25, 1e-05, 1e30], [True, False, True], [7]],
)
def test_printed_numbers_are_parsed(values):
    array = np.array(values)
    for printed in (
        str(values),
        str(array),
        repr(array),
        str([*array]),
        str((*values, 3)),
    ):
        parsed = parse_list(printed)
        assert parsed[: len(values)] == values and len(parsed) - len(values) in (0, 1)
        assert [type(x) for x in parsed[: len(values)]] == [type(x) for x in values]
    assert parse_list(json.dumps(values)) == values
    assert parse_list("tensor([1, 0], device='cuda:0')") == [1, 0]
    assert parse_list("[nan, 1.0, None]") == [None, 1.0, None]


def test_answers_of_squad_are_parsed():
    """As pandas writes a row of Hugging Face's data set."""
    answers = {
        "text": np.array(["the sea"], object),
        "answer_start": np.array([515], np.int32),
    }
    expected = {"text": ["the sea"], "answer_start": [515]}
    assert parse_list(str(answers)) == expected
    assert parse_list(json.dumps(expected)) == expected
    assert parse_list(json.dumps([{"text": "a", "answer_start": 3}, {}])) == [
        {"text": "a", "answer_start": 3},
        {},
    ]


@pytest.mark.parametrize(
    "cell",
    [
        *("[toxic, insult]", "(none)", "[sic] he went", "( see above )", "{a: b}"),
        *("['a'", "['a', 'b' 'c']", "['a' 'b', 'c']", "['a''b']", "['a',, 'b']", "[,]"),
        *("('a')", "('a' 'b')", "['a'] b", "['a']]", "[", "array(", "array(dtype=int)"),
        *(
            "[1-2]",
            "[01]",
            "['a\nb']",
            "{'a' 'b'}",
            "{'a': 1, 'b'}",
            "[a(1)]",
            "[" * 9999,
        ),
        str(np.arange(2000)),  # numpy leaves values out: [0 1 2 ... 1999]
    ],
)
def test_other_cells_do_not_parse(cell):
    assert opens_list(cell) and parse_list(cell) is None
    values = {"text": "[b]", "tags": cell}
    with pytest.raises(
        UserError, match=r"^a\.csv:7: column 'tags' starts like a list,"
    ):
        with_lists("a.csv:7", values, FORM)


@pytest.mark.parametrize("length, shown", [(100, 100), (101, 100)])
def test_a_long_cell_is_cut_in_the_message(length, shown):
    cell = "[a(1)" + "b" * (length - 5)
    dots = "..." if shown < length else ""
    with pytest.raises(UserError) as caught:
        with_lists("a.csv:7", {"tags": cell}, FORM)
    assert f"is not one: {cell[:shown]}{dots}; write" in str(caught.value)


def test_only_cells_of_list_columns_are_parsed():
    values = {"text": "['a']", "tags": "['a']", "label": "(none)", "words": ["b"]}
    assert with_lists("here", values, FORM) == {**values, "tags": ["a"]}


@pytest.mark.parametrize(
    "cell, expected",
    [
        ("(CNN) London", False),
        ("[sic] he went", False),
        ("(a) or (b)", False),
        ("[bad, cold]", True),
        ("['bad', 'co", True),
        ("array(['a']", True),
    ],
)
def test_a_text_may_start_with_a_bracket(cell, expected):
    assert looks_like_list(cell) == expected


@pytest.mark.parametrize(
    "cell, other, expected",
    [
        ("( see above )", "O O O O", False),
        ("( see above )", ["O"] * 4, False),
        ("( see above )", "['O', 'O', 'O', 'O']", False),
        ("( see above )", "O O O", True),
        ("[ 1 ]", "O O O", False),
        ("[1]", "O", True),
        ("['a', 'b']", "['X', 'Y']", True),
        ("['a', 'b']", "X Y", True),
        ("['a b', 'c']", "['X', 'Y']", True),
        ("['a', 'b' 'c']", "X Y Z", True),  # damaged, so it is refused
        ("[]", "[]", True),
        ("( VB )", ["a", "b", "c"], False),
        ("( VB )", 5, True),
    ],
)
def test_words_and_tags_have_equal_numbers(cell, other, expected):
    assert is_list_beside(cell, other) == expected
