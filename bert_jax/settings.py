"""Settings: fields of frozen dataclasses with a default, a unit and a meaning.

:func:`setting` makes every field. Config files, the command line, ``--print_config`` and
the page docs/settings.md read it.
"""

import dataclasses
import functools
import json
import math
import operator
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from bert_jax.errors import UserError, hint
from bert_jax.files import expanded

T = TypeVar("T")
# Types of settings whose values are texts. A label may be given as a number: see
# label_name. A path may start with ~.
Label = typing.NewType("Label", str)
FilePath = typing.NewType("FilePath", str)
Sentence = typing.NewType("Sentence", str)  # may contain commas
REQUIRED = dataclasses.MISSING


def setting(
    default: Any = REQUIRED,
    doc: str = "",
    *,
    factory: Callable[[], Any] = REQUIRED,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    one_of: Collection[str] | None = None,
) -> Any:
    """A dataclass field. doc: its meaning and unit.

    A nested group is ``setting(factory=MeshConfig)``. The docstring of its class explains
    it. A setting without default and factory is required. least, most, above, below,
    one_of: limits for :func:`check_ranges`, which apply to each item of a tuple. Whole
    numbers must also fit into 32 bits, and other numbers must be finite unless ``most`` is
    infinite.
    """
    limits = {"at least": least, "at most": most, "above": above, "below": below}
    limits["one of"] = one_of
    limits = {word: limit for word, limit in limits.items() if limit is not None}
    metadata = {"doc": doc, "limits": limits}
    return dataclasses.field(
        default=default, default_factory=factory, metadata=metadata
    )


_FITS: dict[str, Callable[[Any, Any], bool]] = {
    "at least": operator.ge,
    "at most": operator.le,
    "above": operator.gt,
    "below": operator.lt,
    "one of": lambda value, known: value in known,
}
# Limits of all numbers.
_NUMBER_LIMITS = {
    float: {"above": -math.inf, "below": math.inf},
    int: {"above": -(1 << 31), "below": 1 << 31},
}


class Setting(NamedTuple):
    """full: name with all groups. value: REQUIRED if the setting has no default."""

    full: str
    field: dataclasses.Field
    value: Any
    group: type


@functools.cache
def _hints(group: type) -> dict[str, Any]:
    """The annotated type of each setting of a group."""
    return typing.get_type_hints(group)


def all_settings(config: Any, name: str = "") -> Iterator[Setting]:
    """The settings of a config, or of its type with the defaults.

    name: prefix of the names, such as "data.". A tuple of groups without a value is shown
    as one group.
    """
    group = config if isinstance(config, type) else type(config)
    hints = _hints(group)
    for field in dataclasses.fields(config):
        full, kind = name + field.name, hints[field.name]
        value = getattr(config, field.name, REQUIRED)
        if value is REQUIRED and field.default_factory is not REQUIRED:
            value = field.default_factory()
        item, *_ = typing.get_args(kind) or [None]
        if dataclasses.is_dataclass(value if kind is Any else kind):
            yield from all_settings(kind if value is REQUIRED else value, f"{full}.")
        elif dataclasses.is_dataclass(item):
            for i, part in enumerate([item] if value is REQUIRED else value):
                yield from all_settings(part, f"{full}[{i}].")
        else:
            yield Setting(full, field, value, group)


def check_ranges(config: Any, name: str = "") -> None:
    """Raises UserError for a setting outside its limits. None has no limits.

    name: prefix of the config's settings, such as "data.".
    """
    for full, field, value, _ in all_settings(config, name):
        limits = field.metadata.get("limits", {})
        for item in value if isinstance(value, tuple) else (value,):
            if item is None:
                continue
            general = _NUMBER_LIMITS.get(type(item), {})
            if limits.get("at most") == math.inf:
                general = {}
            for group in limits, {**general, **limits}:
                if not all(_FITS[word](item, end) for word, end in group.items()):
                    raise UserError(f"{full}={value!r}, expected {_shown(group)}")


def _shown(limits: Mapping[str, Any]) -> str:
    """Limits in a message, such as "at least 0 and below 1"."""
    parts = []
    for word, end in limits.items():
        if word == "one of":
            end = ", ".join(str(name) or "''" for name in end)
        parts.append(f"{word} {end}")
    return " and ".join(parts)


def describe(config: Any) -> list[str]:
    """A line for each setting of a config: full name, value and meaning."""
    lines = []
    for full, field, value, _ in all_settings(config):
        if doc := field.metadata.get("doc"):
            shown = "(must be given)" if value is REQUIRED else repr(value)
            lines.append(f"{full} = {shown}  # {doc}")
    return lines


def setting_like(kind: Any, name: str, default: Any) -> Any:
    """The setting ``name`` of the dataclass ``kind``, with another default."""
    field = kind.__dataclass_fields__[name]
    return dataclasses.field(default=default, metadata=field.metadata)


def python_value(value: Any) -> Any:
    """The number, text or list in a value of numpy, pandas, polars, Arrow or JAX.

    Any other value is returned unchanged. The items of a list may themselves be values of a
    library.
    """
    for method in ("tolist", "to_list", "to_pylist", "as_py"):
        if hasattr(value, method):
            return getattr(value, method)()
    return value


def label_name(value: Any) -> Any:
    """The text that names a label: "1" for 1 and for 1.0, "True" for True.

    Any other value is returned unchanged.
    """
    value = python_value(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, int) else value


def from_settings(kind: type[T], value: Any, name: str) -> T:
    """Converts plain values, and values of numpy and pandas, to the annotated type.

    name: full name of the setting, "" for the whole config. Raises UserError for an unknown
    setting, a missing setting, or a value of another type.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    value = python_value(value)
    if kind is Label:
        kind, value = str, label_name(value)
    if kind is Sentence:
        kind = str
    if kind is FilePath:
        kind, value = str, expanded(value)
        if isinstance(value, float):  # data.dev may be a share of the rows
            value = str(value)
    if kind is Any or (dataclasses.is_dataclass(kind) and isinstance(value, kind)):
        return value  # checked by the caller
    if dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        return _from_group(kind, value, name)
    if origin is tuple and isinstance(value, tuple | list | range):
        items = enumerate(value)
        return tuple(from_settings(arguments[0], v, f"{name}[{i}]") for i, v in items)
    if origin is dict and isinstance(value, Mapping):
        items = value.items()
        named = {str(label_name(key)): item for key, item in items}
        return {
            k: from_settings(arguments[1], v, f"{name}.{k}") for k, v in named.items()
        }
    if origin is types.UnionType:
        for option in arguments:
            accepted = typing.get_origin(option) or option
            if accepted is tuple:
                accepted = tuple | list
            if isinstance(value, accepted):
                return from_settings(option, value, name)
    is_whole = type(value) is int and abs(value) < 1 << 63
    if kind is float and (is_whole or isinstance(value, float)):
        return float(value)
    if type(value) is kind:
        return value
    expected = f"a value of type {getattr(kind, '__name__', kind)}"
    if origin in (tuple, dict) or dataclasses.is_dataclass(kind):
        expected = "a tuple" if origin is tuple else "a group of settings"
    raise UserError(f"{name or 'config'}={value!r:.200}, expected {expected}")


def check_names(kind: type, values: Mapping[str, Any], name: str) -> None:
    """Raises UserError for a name that is not a setting of a group.

    kind: type of the group. name: its full name, "" for the whole config.
    """
    dot = f"{name}." if name else ""
    fields = [field.name for field in dataclasses.fields(kind)]
    for key in values:
        if key not in fields:
            near = hint(f"{dot}{key}", [f"{dot}{f}" for f in fields])
            near = near or f"expected one of {sorted(fields)}"
            raise UserError(f"{dot}{key} is not a setting; {near}")


def _from_group(kind: type[T], values: Mapping[str, Any], name: str) -> T:
    check_names(kind, values, name)
    dot = f"{name}." if name else ""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key, field in fields.items():
        required = field.default is field.default_factory is REQUIRED
        if required and key not in values:
            raise UserError(f"{dot}{key} is missing; set it in the config")
    hints = _hints(kind)
    return kind(
        **{k: from_settings(hints[k], v, f"{dot}{k}") for k, v in values.items()}
    )


def to_dict(config: Any) -> dict[str, Any]:
    """A config as JSON values: nested dictionaries, and lists for tuples."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with changes. A group keeps the settings that are not changed."""
    result = dict(settings)
    for name, value in changes.items():
        before = result.get(name)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            value = merged(before, value)
        result[name] = value
    return result


def plain(node: Any) -> Any:
    """Replaces each dataclass and each mapping by a dictionary, including inside tuples."""
    if dataclasses.is_dataclass(node):
        return to_dict(node)
    if hasattr(node, "items"):
        return {key: plain(value) for key, value in node.items()}
    return tuple(map(plain, node)) if isinstance(node, tuple | list) else node


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Full name and value of each setting in a result of :func:`to_dict`."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f"{name}.{key}" if name else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for i, item in enumerate(value):
            yield from flat(item, f"{name}[{i}]")
    else:
        yield name, value


def differences(old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    """Where two results of :func:`to_dict` differ: (full name, old value, new value).

    The value is None if only the other result has the setting.
    """
    before, after = dict(flat(old)), dict(flat(new))
    names = {**before, **after}
    triples = [(name, before.get(name), after.get(name)) for name in names]
    return [(name, a, b) for name, a, b in triples if a != b]
