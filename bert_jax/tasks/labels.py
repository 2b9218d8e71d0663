"""The names of classes: their order, and how the values of rows name them."""

import functools
import logging
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from bert_jax.errors import UserError, listed

logger = logging.getLogger(__name__)

_WHOLE = re.compile(r"[-+]?[0-9]+")
_WHOLE_FLOAT = re.compile(r"([-+]?[0-9]+)\.0+")  # as pandas writes whole numbers


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """The different names, in the order of the outputs of a head.

    Whole numbers are in the order of numbers: 0, 1, 2, 10. Other names are sorted.
    """
    different = {*names}
    if all(map(_WHOLE.fullmatch, different)):
        return tuple(sorted(different, key=lambda name: (int(name), name)))
    return tuple(sorted(different))


def class_name(where: str, value: Any) -> str:
    """The name of a class: a text, or a whole number. The float 1.0 has the name "1".

    Raises UserError for any other value, and for an empty text.
    """
    if isinstance(value, str) and not value.strip():
        raise UserError(f"{where}: the label is empty; fill it in or drop the row")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, str | int):
        return str(value)
    needed = "expected a text or a whole number; regression=True learns numbers"
    raise UserError(f"{where}: the label is {value!r}; {needed}")


def without_decimals(names: Sequence[str]) -> list[str]:
    """The names, as whole numbers if all are whole numbers: "1" for "1.0".

    pandas writes a column of whole numbers with a missing value as 1.0 and 2.0.
    """
    whole = [_WHOLE_FLOAT.sub(r"\1", name) for name in names]
    if all(map(_WHOLE.fullmatch, whole)):
        return whole
    return [*names]


def class_of(where: str, value: Any, labels: tuple[str, ...]) -> str:
    """The label that a value means: its name, or its number from 0.

    A label may have another spelling here: see :func:`spelling`. True and False are 1 and 0
    if these are labels, and the other way round. A number is the position of a label only
    if no label is a number. A value that means no label becomes a name that is not in
    ``labels``.
    """
    name = class_name(where, value)
    if name in labels:
        return name
    spelled = spelling(name)
    same = _by_spelling(labels).get(spelled) or _by_truth(labels).get(spelled, ())
    if len(same) == 1:
        return same[0]
    number = _WHOLE_FLOAT.sub(r"\1", name)
    if _WHOLE.fullmatch(number):
        return names_by_number(labels).get(number, name)
    return name


def known_class(where: str, value: Any, labels: tuple[str, ...]) -> str:
    """The label that a value means. Raises UserError if it means none of the labels."""
    name = class_of(where, value, labels)
    if name in numbers_of(labels):
        return name
    actual = f"{where}: label {name!r} is not in the label set {listed(labels, 10)}"
    if re.fullmatch(r"-?\d+\.\d+", name):
        actual += "; regression=True learns numbers"
    raise UserError(actual)


def spelling(name: str) -> str:
    """The name without the details that differ between programs.

    These are blanks around the name, case, the form of a Unicode character, invisible
    characters (category Cf), and the "+" and ".0" of a whole number.
    """
    composed = unicodedata.normalize("NFKC", name.casefold())
    seen = [x for x in composed if unicodedata.category(x) != "Cf"]
    number = _WHOLE_FLOAT.sub(r"\1", "".join(seen).strip())
    if _WHOLE.fullmatch(number):
        return number.removeprefix("+")
    return number


@functools.cache
def _by_spelling(labels: tuple[str, ...]) -> dict[str, list[str]]:
    """The labels of each spelling."""
    same: dict[str, list[str]] = {}
    for label in labels:
        same.setdefault(spelling(label), []).append(label)
    return same


@functools.cache
def _by_truth(labels: tuple[str, ...]) -> dict[str, list[str]]:
    """The labels that "true" and "false" mean, or 1 and 0 if they are the labels."""
    same = _by_spelling(labels)
    if same.keys() == {"true", "false"}:
        return {"1": same["true"], "0": same["false"]}
    if same.keys() >= {"0", "1"}:
        return {"true": same["1"], "false": same["0"]}
    return {}


@functools.cache  # warns once
def warn_of_spellings(labels: tuple[str, ...]) -> None:
    """Warns of different labels that have the same spelling, in one line."""
    by_spelling = _by_spelling(labels)
    groups = [same for same in by_spelling.values() if len(same) > 1]
    for truth, number in (("true", "1"), ("false", "0")):
        if truth in by_spelling and number in by_spelling:
            groups.append(by_spelling[truth] + by_spelling[number])
    pairs = [" and ".join(map(repr, same)) for same in groups]
    if pairs:
        advice = "if they are the same, spell them the same in train"
        logger.warning(f"labels {'; '.join(pairs)} are different classes; {advice}")


@functools.cache  # warns once
def warn_of_separators(labels: tuple[str, ...]) -> None:
    """Warns of a label whose parts between ";" or "|" are themselves labels."""
    for label in labels:
        for separator in ";|":
            parts = [part.strip() for part in label.split(separator)]
            if len(parts) > 1 and {*parts} <= {*labels}:
                advice = f"multi_label(separator={separator!r}) reads several labels"
                logger.warning(f"label {label!r} is a class of its own; {advice}")


def with_labels_of_dev(
    labels: tuple[str, ...], names: Iterable[str]
) -> tuple[str, ...]:
    """The labels of train and the labels that only dev has.

    names: labels in the rows of dev. They may be positions of the labels of train, or have
    another spelling. If any is a position, new labels are the last, otherwise all labels
    are in order. Raises UserError if several are new and none is known, because dev could
    then not be scored.
    """
    new = []
    has_position = False
    different = [*dict.fromkeys(names)]
    for name in different:
        label = class_of("dev", name, labels)
        if label not in labels:
            new.append(label)
        elif spelling(label) != spelling(name):
            has_position = True
    if not new:
        return labels
    if len(new) == len(different) > 1:
        needed = "give the classes the same names in both, or all names with labels="
        raise UserError(
            f"no label of dev ({listed(new)}) is a label of train ({listed(labels)}); "
            f"{needed}"
        )
    numbers = [name for name in new if name.isdecimal()]
    if has_position and numbers:
        last = len(labels) - 1
        expected = f"a number of dev is the position of a label of train, 0 to {last}"
        raise UserError(f"dev has the label {listed(numbers)}, but {expected}")
    if has_position:
        return labels + in_order(new)
    return in_order(without_decimals([*labels, *new]))


def has_number(labels: Sequence[str]) -> bool:
    """Whether any label is a number, such as "1" or "-0.5"."""
    return any(x.lstrip("+-").replace(".", "", 1).isdecimal() for x in labels)


@functools.cache  # warns once
def names_by_number(labels: tuple[str, ...]) -> dict[str, str]:
    """The label for each whole number, which is a text here.

    A number is the position of its label, with a warning. If any label is itself a number,
    each number is the name of its label.
    """
    if not labels or has_number(labels):
        return dict(zip(labels, labels, strict=True))
    by_number = {str(i): label for i, label in enumerate(labels)}
    shown = f"labels {listed([*by_number])} are read as {listed(labels)}"
    logger.warning(f"{shown}, by position")
    return by_number


@functools.cache  # warns once
def in_order_of(outputs: tuple[str, ...], labels: tuple[str, ...]) -> tuple[str, ...]:
    """The label of a task for each class of a data set, or for each output of a head.

    Classes and labels are matched by name: by the exact name, otherwise regardless of case.
    Names that are numbers, such as LABEL_0 or 0, are matched by position, with a warning.
    Raises UserError for other names.
    """
    by_name: dict[str, str] = {}
    for label in labels:
        by_name[label.casefold()] = label
    by_name.update(zip(labels, labels, strict=True))
    matched = [by_name.get(name, by_name.get(name.casefold())) for name in outputs]
    if None not in matched and len({*matched}) == len(outputs):
        return tuple(matched)
    numbers = [*map(str, range(len(outputs)))]
    are_numbers = numbers in (_without_prefix(outputs), _without_prefix(labels))
    if not are_numbers or len(outputs) != len(labels):
        actual = f"the classes are {', '.join(outputs)}, the labels of the task "
        needed = "give the task labels= with the class names"
        raise UserError(f"{actual}{', '.join(labels)}; {needed}")
    shown = ", ".join(map(" is ".join, zip(outputs, labels, strict=True)))
    logger.warning(f"classes are matched by position: {shown}")
    return tuple(labels)


def _without_prefix(names: Sequence[str]) -> list[str]:
    """The names, without the prefix of names that transformers makes, as in LABEL_0."""
    return [name.upper().removeprefix("LABEL_") for name in names]


@functools.cache
def numbers_of(labels: tuple[str, ...]) -> dict[str, int]:
    """The number of each label: its place among the outputs of the head."""
    return {label: number for number, label in enumerate(labels)}
