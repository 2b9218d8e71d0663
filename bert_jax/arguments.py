"""Settings as arguments of Python functions.

A setting is declared once, as a field of a config or of options. :func:`accepts` adds it to
the signature and the help of each function that takes it.
"""

import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from bert_jax.errors import UserError, hint
from bert_jax.settings import REQUIRED, describe, to_dict

Function = TypeVar("Function", bound=Callable)


class _Argument(NamedTuple):
    """An argument for a setting, or for a group of settings.

    keys: a line for each setting of a group; () for a single setting. config: the class of
    a group; None for a single setting. group: name of the group whose setting it is; "" for
    a setting without a group.
    """

    name: str
    kind: Any
    default: Any
    meaning: str
    keys: Sequence[str]
    config: type | None
    group: str


def accepts(
    *kinds: type,
    flat: str = "",
    leave_out: Collection[str] = (),
    optional: bool = False,
) -> Callable[[Function], Function]:
    """Decorates a function that takes the fields of dataclasses as ``**settings``.

    Adds each field to its signature and its docstring, with type, default and meaning. The
    fields of a class are before the fields of its parents, and groups are last.

    flat: name of a group whose settings are also arguments of their own. leave_out: names
    of fields that are not arguments. optional: whether each default is None, which means
    that the value is set elsewhere.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        named = signature.parameters.values()
        parameters = [x for x in named if x.kind != x.VAR_KEYWORD]
        hidden = {*leave_out, *(parameter.name for parameter in parameters)}
        arguments: dict[str, _Argument] = {}
        groups: dict[str, str] = {}
        configs: dict[str, type] = {}
        for kind in kinds:
            for argument in _arguments(kind, flat):
                if argument.group:
                    groups[argument.name] = argument.group
                if argument.config:
                    configs[argument.name] = argument.config
                if argument.name not in hidden:
                    arguments.setdefault(argument.name, argument)
        page = [f"{inspect.getdoc(function)}\n\nSettings:\n"]
        for argument in sorted(arguments.values(), key=lambda x: bool(x.keys)):
            parameters.append(_parameter(argument, optional))
            end = ":" if argument.keys else "."
            lines = [f"{argument.name}: {argument.meaning}{end}"]
            lines += [f"  {key}" for key in argument.keys]
            page += [_wrapped(line) for line in lines]
        function.__signature__ = signature.replace(parameters=parameters)
        function.__doc__ = "\n".join(page)
        function.groups, function.configs = groups, configs
        return function

    return decorate


def in_groups(function: Callable, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a call, with the settings of a flat group in their group.

    function: a function with :func:`accepts`. settings: a group is a dictionary, or a
    config of the group's class, which sets all settings of the group. A single argument
    replaces the value of a config, because a config does not record which of its values are
    defaults. Raises UserError for a name that is not one of the arguments, for a group of
    another type, and for two values of one setting if the group is a dictionary.
    """
    given = settings
    settings = {}
    for name, value in given.items():
        settings[name] = _group(name, value, function.configs.get(name))
    known = inspect.signature(function).parameters
    grouped: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in known:
            actual = f"{name} is not an argument of {function.__name__}"
            near = hint(name, sorted(known)) or f"expected one of {', '.join(known)}"
            for group, config in function.configs.items():
                example = _in_group(name, config)
                if example and group in known and not isinstance(value, Mapping):
                    near = f"it is a setting of a group: {group}=dict({example})"
            raise UserError(f"{actual}; {near}")
        if known[name].annotation is dict and not isinstance(value, Mapping):
            raise UserError(f"{name}={value!r:.60}, expected a dictionary of settings")
        if name not in function.groups:
            grouped[name] = value
    for group in {*function.groups.values()}:
        changed = dict(settings.get(group, {}))
        for name, owner in function.groups.items():
            if owner != group or name not in settings:
                continue
            is_given = isinstance(given.get(group), Mapping) and name in changed
            if is_given and changed[name] != settings[name]:
                twice = f"{name} and {group}[{name!r}] differ"
                raise UserError(f"{twice}; give only one")
            changed[name] = settings[name]
        if changed:
            grouped[group] = changed
    return grouped


def _in_group(name: str, config: type) -> str:
    """How a dictionary of a config gives a setting, "" if the config does not have it."""
    for field, annotation in typing.get_type_hints(config).items():
        if field == name:
            return f"{name}=..."
        example = ""
        if dataclasses.is_dataclass(annotation):
            example = _in_group(name, annotation)
        if example:
            return f"{field}=dict({example})"
    return ""


def _arguments(kind: type, flat: str = "", group: str = "") -> Iterator[_Argument]:
    """The arguments for the fields of a dataclass."""
    hints = typing.get_type_hints(kind)
    for field in _fields(kind):
        annotation, default = hints[field.name], field.default
        meaning, keys, config = field.metadata.get("doc"), [], None
        if field.default_factory is not REQUIRED:
            default = field.default_factory()
        if field.name == flat:
            yield from _arguments(annotation, group=flat)
        if dataclasses.is_dataclass(annotation):
            keys, config = describe(annotation), annotation
            meaning = f"a {config.__name__}, or a dictionary with some of its settings"
            annotation, default = dict, {}
        yield _Argument(field.name, annotation, default, meaning, keys, config, group)


def _group(name: str, value: Any, config: type | None) -> Any:
    """The dictionary of a config, which is a group of settings. Other values are kept.

    config: the class of the group ``name``. Raises UserError for another class, which has
    other defaults.
    """
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    if config is not None and not isinstance(value, config):
        actual = f"{name} is of the class {type(value).__name__}"
        raise UserError(f"{actual}, expected {config.__name__} or a dictionary")
    return to_dict(value)


def _wrapped(line: str) -> str:
    """A line of a docstring as lines of at most 80 characters."""
    indent = line[: len(line) - len(line.lstrip())]
    lines = textwrap.wrap(
        line, 80, subsequent_indent=f"{indent}  ", break_on_hyphens=False
    )
    return "\n".join(lines)


def _fields(kind: type) -> list[dataclasses.Field]:
    """The fields of a dataclass: its own fields, then the fields of its parents."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    ordered = {}
    for parent in kind.__mro__:
        for name in inspect.get_annotations(parent):
            if name in fields:
                ordered[name] = fields.pop(name)
    return [*ordered.values()]


def _parameter(argument: _Argument, optional: bool) -> inspect.Parameter:
    kind, default = argument.kind, argument.default
    if optional or default is REQUIRED:
        kind, default = kind | None, None
    place = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(argument.name, place, default=default, annotation=kind)
