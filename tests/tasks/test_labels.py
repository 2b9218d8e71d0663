"""Names of classes: their order, and how the values of rows name them."""

import pytest

import bert_jax
from bert_jax.errors import UserError
from bert_jax.tasks.labels import (
    class_of,
    in_order_of,
)


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


def test_a_number_of_dev_without_a_label_is_named():
    given = dict(train=[("a", "x"), ("b", "y")], dev=[("c", 1), ("d", 2)])
    with pytest.raises(UserError, match="dev has the label 2, but a number of dev is"):
        bert_jax.tasks.classification().with_rows(**given).read("dev")
