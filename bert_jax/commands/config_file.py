"""Command lines with a config: ``--config NAME[:ARGUMENT]``, settings and flags.

``--data.dir=X``, ``--data.dir X`` and ``--config.data.dir=X`` all change a setting.
"""

import argparse
import ast
import math
import re
import runpy
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from bert_jax.commands.cli import Flags, argument_parser
from bert_jax.errors import UserError, hint
from bert_jax.progress import print_line
from bert_jax.settings import Sentence, Setting, all_settings, describe, plain
from bert_jax.tasks.data_sets import DATA_SETS
from bert_jax.training.config import with_any_sizes, with_architecture

# The settings of the text of a pretraining.
_TEXTS = ("data.path", "data.mixture", "data.corpus")
# Names of configs that are an argument of another file.
_ARGUMENTS = {
    "conll2003_features": "conll2003.py:features",
    "squad2": "squad.py:v2",
    "wnut17_features": "wnut17.py:features",
}
for _name, _data_set in DATA_SETS["classification"].items():
    if _data_set.config:
        _ARGUMENTS[_name] = _data_set.config
# Names of earlier versions.
_OLD_NAMES = {"further": "further_pretraining"}
# A setting is a flag that --help leaves out.
_HIDDEN = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS}


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
    flags: Flags | None = None,
) -> CommandLine:
    """Parses the command line of a command that takes --config and --workdir.

    read: makes the config, a dataclass, from plain values. flags: the command's other
    flags. --help, --print_config and --help_settings end the process. A pretraining that
    continues a checkpoint has the checkpoint's sizes; see :func:`with_architecture`. Raises
    UserError for a missing file, an unknown setting and a value of the wrong type.
    """
    base = {"config": "", "workdir": "", "print_config": False, "help_settings": False}
    parser = argument_parser(usage, base | {**(flags or {})})
    first, _ = parser.parse_known_args(argv)
    given = first.config
    if not given and first.help_settings:
        _print_and_exit(typing.get_type_hints(read)["return"])
    if not given:
        parser.error("the following arguments are required: --config")
    settings = load_file(given, "get_config", named_configs())
    config = read(with_any_sizes(settings))
    if first.help_settings:
        _print_and_exit(config)
    known = {x.full: x for x in all_settings(config)}
    for name, known_setting in known.items():
        count = {}
        if isinstance(known_setting.value, bool):
            count = {"nargs": "?", "const": "True"}
        elif isinstance(known_setting.value, tuple):
            count = {"nargs": "+"}
        parser.add_argument(f"--{name}", f"--config.{name}", **_HIDDEN, **count)
    args = vars(parser.parse_args(argv))
    for name, known_setting in known.items():
        if name not in args:
            continue
        if isinstance(known_setting.value, tuple):
            value = _items(args[name], known_setting)
        else:
            value = _value(args[name], known_setting.value)
        _change(settings, name, value)
    if any(args.get(name) for name in _TEXTS):
        _drop_other_text(settings, known, args)
    file, _, argument = given.partition(":")
    name = "-".join(filter(None, (Path(file).stem, argument)))
    workdir = args["workdir"] or f"runs/{name}"
    if Path(workdir).is_file():
        raise UserError(f"--workdir={workdir} must be a folder, but is a file")
    config = read(with_architecture(settings, workdir))
    if args["print_config"]:
        _print_and_exit(config)
    return CommandLine(config, workdir, args)


def _drop_other_text(
    settings: dict[str, Any], known: Mapping[str, Setting], args: Mapping[str, Any]
) -> None:
    """Removes the text of a config, and its prompts, if a flag names another text."""
    for name in _TEXTS:
        if name in known and known[name].value and "prompts" not in args:
            settings["prompts"] = ()  # they are about the text of the config
        if name in known and known[name].value and name not in args:
            _change(settings, name, type(known[name].value)())


def _print_and_exit(config: Any) -> NoReturn:
    """Prints the settings of a config, or of a type with their defaults."""
    print_line("\n".join(describe(config)))
    raise SystemExit(0)


def _change(settings: dict[str, Any], name: str, value: Any) -> None:
    """Changes a setting, such as phases[1].steps, in nested dictionaries."""
    *groups, key = re.findall(r"\w+", name)
    for group in groups:
        index = group.isdecimal()
        settings = settings[int(group)] if index else settings.setdefault(group, {})
    settings[key] = value


def _value(text: str, old: Any) -> Any:
    """The value that a text on the command line means, for a setting with the value
    ``old``.

    from_settings checks its type later.
    """
    if isinstance(old, str):
        return text
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        words = {"true": True, "false": False, "inf": math.inf, "nan": math.nan}
        return words.get(text.lower(), text)


def _items(texts: Sequence[str], known: Setting) -> Sequence[Any]:
    """The items of a tuple: ``a,b`` or ``a b``, or a tuple or list of Python."""
    if len(texts) == 1 and texts[0].startswith(("(", "[", "'", '"')):
        value = _value(texts[0], ())
        if isinstance(value, list | tuple):
            return value
        if value != texts[0]:
            return [value]
    kind, *_ = typing.get_args(typing.get_type_hints(known.group)[known.field.name])
    if kind is Sentence:
        return [text.strip() for text in texts if text.strip()]
    parts = [part.strip() for text in texts for part in text.split(",")]
    items = [part for part in parts if part]
    if getattr(kind, "__supertype__", kind) is str:
        return items
    return [_value(item, None) for item in items]


def load_file(config: str, function: str, known: Mapping[str, str]) -> dict[str, Any]:
    """The settings that ``function`` of FILE[:ARGUMENT] or NAME[:ARGUMENT] returns.

    known: files by name. Prints the new name of a config with an old name. For an unknown
    name raises UserError with the nearest known name.
    """
    file, _, argument = config.partition(":")
    if not Path(file).is_file():
        old = Path(file).stem
        if old in _OLD_NAMES:
            file = _OLD_NAMES[old]
            print_line(f"the config {old} is now called {file}", sys.stderr)
        if file not in known:
            name = re.sub("bert|uncased|cased", "", Path(file).stem.lower())
            near = hint(name, list(known)) or f"known: {', '.join(known)}"
            raise UserError(f"{file} is not a file or the name of a config; {near}")
        file, _, first = known[file].partition(":")
        argument = ":".join(filter(None, [first, argument]))
    folder = str(Path(file).parent.resolve())
    sys.path.insert(0, folder)  # a config may import its neighbours, as large.py does
    try:
        settings = runpy.run_path(file)[function](*filter(None, [argument]))
    except (KeyError, SyntaxError, TypeError, ValueError) as error:
        raise UserError(f"{file}: {error!r}; expected {function}()") from error
    except ModuleNotFoundError as error:
        raise UserError(
            f"{file}: {error}; put the files that it imports into {folder}"
        ) from error
    finally:
        sys.path.remove(folder)
    return plain(settings)


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
    """The folder of each reference run that has a name, such as tiny."""
    folders = sorted(_experiments().glob("references/*"))
    return {folder.name: str(folder) for folder in folders}


def _experiments() -> Path:
    package = Path(__file__).parent.parent
    packed = package / "experiments"  # in a wheel
    return packed if packed.is_dir() else package.parent / "experiments"
