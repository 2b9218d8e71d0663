"""Classes of a data set or a head become the labels of a task by their names."""

import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.source import by_number, by_position, in_order_of


def test_a_name_finds_its_label_in_any_order_and_case(caplog):
    outputs = ("Neutral", "contradiction", "ENTAILMENT")
    labels = ("entailment", "neutral", "contradiction")
    assert in_order_of(outputs, labels) == ("neutral", "contradiction", "entailment")
    assert in_order_of(("b", "B", "a"), ("a", "B", "b")) == ("b", "B", "a")
    assert not caplog.records


def test_names_that_are_numbers_find_their_label_by_position(caplog):
    assert in_order_of(("LABEL_0", "LABEL_1"), ("no", "yes")) == ("no", "yes")
    assert "LABEL_0 is no, LABEL_1 is yes" in caplog.text
    with pytest.raises(UserError, match="the classes are x, yes, the labels"):
        in_order_of(("x", "yes"), ("no", "yes"))


def test_a_number_is_that_of_a_class_unless_a_name_is_a_number():
    assert by_number(("no", "yes")) == {0: "no", 1: "yes"}
    assert by_number(("no", "1")) == {}


def test_labels_that_are_read_by_position_are_warned_of_once(caplog):
    labels = ("worse", "better")
    assert [by_position(labels, n) for n in (1, 0, 1, 2)] == [
        *labels[::-1],
        "better",
        None,
    ]
    assert by_position(("no", "1"), 0) is None
    (record,) = caplog.records
    assert record.message == "labels 0, 1 are read as worse, better, by position"
