"""Command lines with a config: ``--config NAME[:ARGUMENT]``, settings and flags.

``--config.data.dir=X``, ``--data.dir=X`` and ``--data.dir X`` all change a setting.
"""

import ast
import difflib
import functools
import importlib.util
import math
import operator
import re
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from bert_jax.commands.cli import argument_parser
from bert_jax.errors import UserError, hint
from bert_jax.progress import print_line
from bert_jax.settings import all_settings, describe, to_dict

# Names of configs that are an argument of another file.
_ARGUMENTS = {
    "conll2003_features": "conll2003.py:features",
    "sick_entailment": "sick.py:entailment",
    "sick_relatedness": "sick.py:relatedness",
    "squad2": "squad.py:v2",
    "wnut17_features": "wnut17.py:features",
} | {
    task: f"glue.py:{task}"
    for task in ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]
}


class CommandLine(NamedTuple):
    """A parsed command line.

    config: the file's config with the settings of the command line. workdir: a path or a
    URL; the default is runs/NAME, or runs/NAME-ARGUMENT. flags: values by name.
    """

    config: Any
    workdir: str
    flags: dict[str, Any]


def parse(
    argv: list[str],
    usage: str,
    read: Callable[[dict[str, Any]], Any],
    flags: Mapping[str, str | int | bool] | None = None,
) -> CommandLine:
    """Parses the command line of a command that takes --config and --workdir.

    read: makes the config, a dataclass, from plain values. flags: the command's other
    flags with their defaults. --help and --print_config, which prints all settings, end
    the process. Raises UserError for a missing file, an unknown setting and a value of the
    wrong type.
    """
    command_line = usage.strip().splitlines()[-1].strip()
    parser = argument_parser(usage)
    parser.add_argument("--config", nargs="?", metavar="NAME[:ARGUMENT]")
    flags = {"workdir": "", "print_config": False, **(flags or {})}
    for name, default in flags.items():
        if default is False:
            parser.add_argument(f"--{name}", action="store_true")
        else:
            parser.add_argument(f"--{name}", type=type(default), default=default)
    args, words = parser.parse_known_args(argv)
    if not args.config:
        raise UserError(f"--config is missing; use {command_line}")
    config = read(load_file(args.config, "get_config", named_configs()))
    config = read(_changed(config, words, command_line, flags))
    if args.print_config:
        print_line("\n".join(describe(config)))
        raise SystemExit(0)
    file, _, argument = args.config.partition(":")
    name = "-".join(filter(None, (Path(file).stem, argument)))
    return CommandLine(config, args.workdir or f"runs/{name}", vars(args))


def _changed(
    config: Any, words: list[str], command_line: str, flags: Collection[str]
) -> dict[str, Any]:
    """The config's settings as plain values, with the command line's changes.

    flags: names of the command's other flags, also suggested for an unknown word.
    """
    settings = to_dict(config)
    known = [name for name, _, _ in all_settings(config)]
    rest = iter(words)
    for word in rest:
        start, equals, text = word.partition("=")
        name = start.removeprefix("--").removeprefix("config.")
        if not word.startswith("--") or name not in known:
            near = ("--" in word or equals) and hint(
                name, [*known, *flags], "--{}".format
            )
            raise UserError(
                f"unexpected argument {word!r}; {near or f'use {command_line}'}"
            )
        *parents, last = [
            int(part) if part.isdecimal() else part for part in re.findall(r"\w+", name)
        ]
        group = functools.reduce(operator.getitem, parents, settings)
        if not equals and isinstance(group[last], bool):
            group[last] = True
            continue
        if not equals:
            text = next(rest, "--")
            if text.startswith("--"):
                raise UserError(f"{word} has no value; expected {word}=VALUE")
        group[last] = _value(text, group[last])
    return settings


def _value(text: str, old: Any) -> Any:
    """The value that a text means for a setting whose value is ``old``.

    from_settings checks its type later.
    """
    if isinstance(old, str):
        return text
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        words = {"true": True, "false": False, "inf": math.inf}
        value = words.get(text.lower(), text)
    if isinstance(old, list) and not isinstance(value, list | tuple):
        return [value]
    return value


def load_file(config: str, function: str, known: Mapping[str, str]) -> dict[str, Any]:
    """The settings that ``function`` of FILE[:ARGUMENT] or NAME[:ARGUMENT] returns.

    known: files by name. Raises UserError with the nearest names for an unknown one.
    """
    file, argument = _find(config, known)
    spec = importlib.util.spec_from_file_location("config", file)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} is not a Python file; its name ends in .py")
    module = importlib.util.module_from_spec(spec)
    folder = str(Path(file).parent.resolve())
    sys.path.insert(0, folder)  # a config may import its neighbours, as large.py does
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, function):
            raise UserError(f"{file} has no function {function}")
        settings = getattr(module, function)(*filter(None, [argument]))
    except (TypeError, ValueError) as error:
        raise UserError(f"{file}: {error}") from error
    finally:
        sys.path.remove(folder)
    if not isinstance(settings, Mapping | ConfigDict):
        raise UserError(
            f"{function} of {file} gave {type(settings).__name__}, expected a dict or a "
            "ConfigDict of settings"
        )
    return _plain(settings)


def _plain(node: Any) -> Any:
    """Replaces each ConfigDict by a dict, also within tuples."""
    if isinstance(node, Mapping | ConfigDict):
        return {key: _plain(node[key]) for key in node}
    if isinstance(node, tuple):
        return tuple(map(_plain, node))
    return node


def _find(config: str, known: Mapping[str, str]) -> tuple[str, str]:
    """The file and the argument of FILE[:ARGUMENT] or NAME[:ARGUMENT]."""
    given, _, argument = config.partition(":")
    if Path(given).is_file():
        return given, argument
    if given in known:
        file, _, first = known[given].partition(":")
        return file, ":".join(filter(None, [first, argument]))
    near = difflib.get_close_matches(Path(given).stem, known, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(known)}"
    raise UserError(f"{given} is not a file or the name of a config; {hint}")


def named_configs() -> dict[str, str]:
    """FILE[:ARGUMENT] of each config that has a name, such as tiny or sst2."""
    folder = _experiments()
    files = [*sorted(folder.glob("*.py")), *sorted(folder.glob("finetune/*.py"))]
    return {path.stem: str(path) for path in files} | {
        name: str(folder / "finetune" / file) for name, file in _ARGUMENTS.items()
    }


def named_studies() -> dict[str, str]:
    """The file of each study that has a name, such as table5."""
    return {path.stem: str(path) for path in _experiments().glob("ablations/*.py")}


def named_references() -> dict[str, str]:
    """The file of each reference curve that has a name, such as tiny."""
    files = sorted(_experiments().glob("references/*.json"))
    return {path.stem: str(path) for path in files}


def _experiments() -> Path:
    package = Path(__file__).parent.parent
    packed = package / "experiments"  # in a wheel
    return packed if packed.is_dir() else package.parent / "experiments"
