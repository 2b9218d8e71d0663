"""Checks values that were read from JSON against types.

A file's form is a TypedDict that names the keys that we read, each with its type:

>>> class Pooling(TypedDict, total=False):
...     pooling_mode: str | list[str] | None
>>> check({"pooling_mode": 3}, Pooling)
UserError: pooling_mode=3, expected a text, a list or null

Other keys are ignored, because other programs write most of the files. read_json of
files.py checks a whole file.
"""

import dataclasses
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from bert_jax.errors import UserError

_NAMES = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    types.NoneType: "null",
    list: "a list",
    tuple: "a list",
    dict: "an object",
}


def check(value: Any, form: Any, name: str = "") -> None:
    """Raises UserError, with name and expected type, unless ``value`` fits a form.

    form: a TypedDict or a dataclass (an object with these keys), list[X], dict[str, X],
      X | Y, Literal, str, int, float, bool, None or Any. A tuple is a list in JSON:
      tuple[X, ...] of any length, tuple[X, Y] of two items. float accepts whole numbers.
      Whole numbers have at most 64 bits.
    name: full name of the value, such as "prompts.query". "" for a whole file.
    """
    fitting = [kind for kind in _options(form) if has_kind(value, kind)]
    if not fitting:
        actual = f"{name or 'the file'}={value!r:.200}"
        raise UserError(f"{actual}, expected {_described(form)}")
    kind = fitting[0]
    inner = typing.get_args(kind)
    if _has_keys(kind):
        _check_keys(value, kind, name)
    elif _is_fixed(kind):
        for i, (item, item_form) in enumerate(zip(value, inner, strict=True)):
            check(item, item_form, f"{name}[{i}]")
    elif typing.get_origin(kind) in (list, tuple):
        for i, item in enumerate(value):
            check(item, inner[0], f"{name}[{i}]")
    elif typing.get_origin(kind) is dict:
        for key, item in value.items():
            check(item, inner[1], _joined(name, key))


def has_kind(value: Any, form: Any) -> bool:
    """Whether a value has the type of a form, without a check of its items."""
    if form is Any:
        return True
    if typing.get_origin(form) is Literal:
        return value in typing.get_args(form)
    if _has_keys(form):
        return isinstance(value, Mapping)
    kind = typing.get_origin(form) or form
    if _is_fixed(form):
        return type(value) is list and len(value) == len(typing.get_args(form))
    if kind is tuple:
        return type(value) is list
    if kind is float:
        is_whole = type(value) is int and abs(value) <= sys.float_info.max
        return is_whole or type(value) is float
    if kind is int:  # of 64 bits
        return type(value) is int and -(1 << 63) <= value < 1 << 63
    return type(value) is kind


def _check_keys(values: Mapping[str, Any], form: Any, name: str) -> None:
    """Checks the keys of a TypedDict or of a dataclass."""
    hints = typing.get_type_hints(form)
    if dataclasses.is_dataclass(form):
        required = [
            field.name
            for field in dataclasses.fields(form)
            if field.default is field.default_factory is dataclasses.MISSING
        ]
    else:
        required = form.__required_keys__
    for key, hint in hints.items():
        if key in values:
            check(values[key], hint, _joined(name, key))
        elif key in required:
            raise UserError(
                f"{_joined(name, key)} is missing, expected {_described(hint)}"
            )


def _options(form: Any) -> tuple[Any, ...]:
    """The forms of a union. Any other form is a tuple of one form."""
    if typing.get_origin(form) in (types.UnionType, typing.Union):
        return typing.get_args(form)
    return (form,)


def _is_fixed(form: Any) -> bool:
    """Whether a form is a list of a fixed length, such as tuple[str, int]."""
    arguments = typing.get_args(form)
    return typing.get_origin(form) is tuple and arguments[-1] is not Ellipsis


def _has_keys(form: Any) -> bool:
    return typing.is_typeddict(form) or dataclasses.is_dataclass(form)


def _joined(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _described(form: Any) -> str:
    """A form in words, such as "a text" or "a whole number or null"."""
    *first, last = _options(form)
    if first:
        return f"{', '.join(map(_described, first))} or {_described(last)}"
    if typing.get_origin(form) is Literal:
        return f"one of {', '.join(map(repr, typing.get_args(form)))}"
    if _has_keys(form):
        return _NAMES[dict]
    if _is_fixed(form):
        return f"a list of {len(typing.get_args(form))} items"
    return _NAMES[typing.get_origin(form) or form]
