"""Names of classes: their order, and how the values of rows name them."""

import pytest

import bert_jax
from bert_jax.errors import UserError
from bert_jax.tasks.labels import (
    class_of,
    in_order,
    in_order_of,
    names_by_number,
    without_decimals,
)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("0 11 2 10 1", "0 1 2 10 11"),
        ("-1 10 -10 0", "-10 -1 0 10"),
        ("02 1 2", "1 02 2"),
        ("b 10 9 a", "10 9 a b"),
        ("10.5 9.5", "10.5 9.5"),
        ("\u0663 2", "2 \u0663"),  # a digit of another script is a name
    ],
)
def test_whole_numbers_are_in_the_order_of_numbers(names, expected):
    assert in_order([*names.split(), names.split()[0]]) == tuple(expected.split())


@pytest.mark.parametrize(
    ("value", "labels", "expected"),
    [
        ("pos", ("neg", "pos"), "pos"),
        (1, ("neg", "pos"), "pos"),
        ("1", ("neg", "pos"), "pos"),
        ("1.0", ("neg", "pos"), "pos"),
        (1.0, ("neg", "pos"), "pos"),
        (True, ("neg", "pos"), "True"),
        (True, ("0", "1"), "1"),
        ("false", ("2", "1", "0"), "0"),
        (1, ("True", "False"), "True"),
        ("0.0", ("true", "false"), "false"),
        (1, ("maybe", "true", "false"), "true"),
        (2, ("neg", "pos"), "2"),
        (-1, ("neg", "pos"), "-1"),
        (1.0, ("1", "2"), "1"),
        ("1.0", ("1", "2"), "1"),
        (1.0, ("1.0", "1.5"), "1.0"),
        (1, ("1.0", "1.5"), "1.0"),
        ("0", ("1", "2"), "0"),
        (10.0, ("1", "10"), "10"),
    ],
)
def test_a_value_means_the_name_or_the_number_of_a_label(value, labels, expected):
    assert class_of("here", value, labels) == expected


def test_a_value_that_is_no_class_is_refused():
    for value in (1.5, None, [1], " "):
        with pytest.raises(UserError, match=r"^here: the label is"):
            class_of("here", value, ("1", "2"))


def test_decimals_are_dropped_if_all_labels_are_whole_numbers():
    assert without_decimals(["1.0", "2.00", "-3"]) == ["1", "2", "-3"]
    for names in (["1.0", "2.5"], ["1.0", "x"], ["GPL-2.0"]):
        assert without_decimals(names) == names


def test_a_class_finds_its_label_by_name(caplog):
    outputs = ("Neutral", "contradiction", "ENTAILMENT")
    labels = ("entailment", "neutral", "contradiction")
    assert in_order_of(outputs, labels) == ("neutral", "contradiction", "entailment")
    assert in_order_of(("b", "B", "a"), ("a", "B", "b")) == ("b", "B", "a")
    assert not caplog.records
    assert in_order_of(("LABEL_0", "LABEL_1"), ("no", "yes")) == ("no", "yes")
    assert "LABEL_0 is no, LABEL_1 is yes" in caplog.text
    assert in_order_of(("bad", "good"), ("0", "1")) == ("0", "1")
    for outputs in (("x", "yes"), ("LABEL_0",), ("Yes", "YES")):
        with pytest.raises(UserError, match=r"the classes are .*, the labels"):
            in_order_of(outputs, ("no", "yes"))


def test_a_number_is_a_class_unless_a_name_is_a_number(caplog):
    assert names_by_number(("no", "1")) == {"no": "no", "1": "1"}
    assert not caplog.records
    for _ in range(2):
        assert names_by_number(("worse", "better")) == {"0": "worse", "1": "better"}
    (record,) = caplog.records
    assert record.message == "labels 0, 1 are read as worse, better, by position"


def test_the_numbers_of_rows_may_be_true_and_false():
    task = bert_jax.tasks.classification(labels=[0, 1])
    task = task.with_rows(train=[("a", True), ("b", False)], dev=[("c", "True")])
    labels = [row.label for split in ("train", "dev") for row in task.read(split)]
    assert labels == ["1", "0", "1"]
