"""``--config FILE[:ARG] --config.name=value`` and plain flags beside it."""

import dataclasses
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags as absl_flags
from ml_collections import ConfigDict, config_flags

from bert_jax.errors import UserError, unknown_field
from bert_jax.settings import all_settings, describe

# Config files that were merged, with what they are now, beside the old place.
_MERGED = {
    "conll2003_features.py": "conll2003.py:features",
    "sick_entailment.py": "sick.py:entailment",
    "sick_relatedness.py": "sick.py:relatedness",
    "squad2.py": "squad.py:v2",
    "wnut17_features.py": "wnut17.py:features",
} | {
    f"{task}.py": f"glue.py:{task}"
    for task in ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]
}


class CommandLine(NamedTuple):
    """What was asked for.

    config: of the file, with the overrides. workdir: a path or a URL; runs/NAME where none
    is given, NAME being the config file's, with its argument. flags: by name.
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
    """Reads the command line of a command that takes --config and --workdir.

    read: from plain values to the config, a dataclass, every setting of which can be
    overridden. flags: others that the command takes, with their defaults. --help, and
    --print_config, which shows all settings, end the process. A setting that does not
    exist, a value of the wrong type and a missing file are UserErrors.
    """
    if {"-h", "--help"} & set(argv):
        print(usage.strip())
        raise SystemExit(0)
    command_line = usage.strip().splitlines()[-1].strip()
    given, argv = _take_config(argv)
    if not given:
        raise UserError(f"--config is missing; use {command_line}")
    file, _, argument = _merged(given).partition(":")
    if not Path(file).is_file():
        raise UserError(f"--config={file} is not a file; use {command_line}")
    config = read(_load(file, argument))
    known = [name for name, _, _ in all_settings(config)]
    for word in argv:
        match = re.match(r"--?(?:no)?config\.([^=\s]+)", word)
        if match and re.sub(r"\[\d+\]$", "", match[1]) not in known:
            raise UserError(unknown_field(match[1], known))
    # Flags of our own and not absl's global ones: a command may be called twice in one
    # process, as the tests do.
    values = absl_flags.FlagValues()
    define = {
        str: absl_flags.DEFINE_string,
        int: absl_flags.DEFINE_integer,
        bool: absl_flags.DEFINE_boolean,
    }
    flags = {"workdir": "", "print_config": False, **(flags or {})}
    try:
        for name, default in flags.items():
            define[type(default)](name, default, "", flag_values=values)
        config_flags.DEFINE_config_dict(
            "config",
            _config_dict(dataclasses.asdict(config)),
            flag_values=values,
            sys_argv=["", *argv],
        )
        rest = values(["", *argv])[1:]
    except (absl_flags.Error, IndexError, TypeError, ValueError) as error:
        raise UserError(str(error).strip().splitlines()[-1]) from error
    if rest:
        raise UserError(f"unexpected argument {rest[0]!r}; use {command_line}")
    config = read(plain(values.config))
    if values.print_config:
        print(*describe(config), sep="\n")
        raise SystemExit(0)
    file, _, argument = given.partition(":")
    name = "-".join(filter(None, (Path(file).stem, argument)))
    workdir = values.workdir or f"runs/{name}"
    return CommandLine(config, workdir, {name: values[name].value for name in flags})


def _take_config(argv: list[str]) -> tuple[str, list[str]]:
    """The value of --config, "" without one, and the other arguments."""
    config, rest, words = "", [], iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in ("--config", "-config"):
            config = value if equals else next(words, "")
        else:
            rest.append(word)
    return config, rest


def _merged(config: str) -> str:
    """FILE[:ARG] as it is today, for a file that was merged into another one."""
    path = Path(config)
    new = _MERGED.get(path.name)
    return str(path.with_name(new)) if new and not path.is_file() else config


def _load(file: str, argument: str) -> dict[str, Any]:
    """What get_config of a config file gives, as plain values."""
    spec = importlib.util.spec_from_file_location("config", file)
    if spec is None or spec.loader is None:
        raise UserError(f"--config={file} is not a Python file; its name ends in .py")
    module = importlib.util.module_from_spec(spec)
    folder = str(Path(file).parent.resolve())
    sys.path.insert(0, folder)  # it may import its neighbours, as large.py does
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, "get_config"):
            raise UserError(f"--config={file} has no function get_config")
        settings = module.get_config(*filter(None, [argument]))
    except (TypeError, ValueError) as error:
        raise UserError(f"--config={file}: {error}") from error
    finally:
        sys.path.remove(folder)
    if not isinstance(settings, Mapping | ConfigDict):
        raise UserError(
            f"get_config of {file} gave {type(settings).__name__}, expected a dict or a "
            "ConfigDict of settings"
        )
    return plain(settings)


def plain(node: Any) -> Any:
    """Dicts for ConfigDicts, also within tuples."""
    if isinstance(node, Mapping | ConfigDict):
        return {key: plain(node[key]) for key in node}
    if isinstance(node, tuple):
        return tuple(map(plain, node))
    return node


def _config_dict(node: Any) -> Any:
    """ConfigDicts for dicts, also within tuples."""
    if isinstance(node, dict):
        return ConfigDict({key: _config_dict(value) for key, value in node.items()})
    if isinstance(node, tuple):
        return tuple(map(_config_dict, node))
    return node
