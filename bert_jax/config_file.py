"""``--config FILE[:ARG] --config.name=value`` and plain flags beside it."""

import itertools
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags as absl_flags
from ml_collections import ConfigDict, config_flags

from bert_jax.errors import UserError, unknown_field

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

    settings: the config, overrides applied, as plain values. workdir: a path or a URL;
    runs/NAME where none is given, NAME being the config file's, with its argument. flags:
    by name.
    """

    settings: dict[str, Any]
    workdir: str
    flags: dict[str, Any]


def parse(
    argv: list[str], usage: str, flags: Mapping[str, str | int | bool] | None = None
) -> CommandLine:
    """Reads the command line of a command that takes --config and --workdir.

    flags: others that it takes, with their defaults. A setting that does not exist, a
    value of the wrong type and a missing file are UserErrors.
    """
    extra = flags or {}
    if {"-h", "--help"} & set(argv):
        print(usage.strip())
        raise SystemExit(0)
    command_line = usage.strip().splitlines()[-1].strip()
    given, argv = _with_merged(argv)
    for argument, following in itertools.zip_longest(argv, argv[1:], fillvalue=""):
        match = re.fullmatch(r"--?config(=.*)?", argument, re.DOTALL)
        if match is None:
            continue
        value = following if match[1] is None else match[1][1:]
        path = value.split(":")[0]
        if not Path(path).is_file():
            raise UserError(f"--config={path} is not a file; use {command_line}")
        # A config may import its neighbours, as large.py does.
        sys.path.insert(0, str(Path(path).parent.resolve()))
    try:
        values = _flags(argv, extra)
        rest = values(["", *argv])[1:]
    except (AttributeError, KeyError, IndexError) as error:  # no such setting
        raise UserError(_unknown(argv, extra, error)) from error
    except (absl_flags.Error, TypeError, ValueError) as error:
        # Of an error within a config file its last line tells what is wrong.
        raise UserError(str(error).strip().splitlines()[-1]) from error
    if rest:
        raise UserError(f"unexpected argument {rest[0]!r}; use {command_line}")
    if values.config is None:
        raise UserError(f"--config is missing; use {command_line}")
    config = config_flags.get_config_filename(values["config"])
    file, _, argument = given.get(config, config).partition(":")
    name = "-".join(filter(None, (Path(file).stem, argument)))
    return CommandLine(
        plain(values.config),
        f"runs/{name}" if values.workdir is None else values.workdir,
        {flag: values[flag].value for flag in extra},
    )


def _with_merged(argv: list[str]) -> tuple[dict[str, str], list[str]]:
    """New config paths -> those given, and the command line with the new ones."""
    given: dict[str, str] = {}
    words = []
    for before, word in zip(["", *argv], argv, strict=False):
        flag, path = re.fullmatch(r"(--?config=)?(.*)", word, re.DOTALL).groups("")
        new = _MERGED.get(Path(path).name)
        asked = flag or before in ("--config", "-config")
        if asked and new and not Path(path).is_file():
            word = flag + str(Path(path).with_name(new))
            given[word.removeprefix(flag)] = path
        words.append(word)
    return given, words


def _flags(
    argv: list[str], extra: Mapping[str, str | int | bool]
) -> absl_flags.FlagValues:
    # Flags of our own and not absl's global ones: a command may be called twice in one
    # process, as the tests do.
    values = absl_flags.FlagValues()
    absl_flags.DEFINE_string("workdir", None, "where the run lives", flag_values=values)
    define = {
        str: absl_flags.DEFINE_string,
        int: absl_flags.DEFINE_integer,
        bool: absl_flags.DEFINE_boolean,
    }
    for name, default in extra.items():
        define[type(default)](name, default, "", flag_values=values)
    config_flags.DEFINE_config_file(
        "config", None, "FILE[:ARG]", flag_values=values, sys_argv=["", *argv]
    )
    return values


def _unknown(argv: list[str], extra: Mapping[str, Any], error: Exception) -> str:
    """The message for the first --config.name that the config file does not have."""
    file_only = [a for a in argv if not re.match(r"--?config\.", a)]
    values = _flags(file_only, extra)
    values(["", *file_only])
    known = _leaves(values.config, "")
    for argument in argv:
        match = re.match(r"--?config\.([^=\s]+)", argument)
        if match and match[1] not in known:
            return unknown_field(match[1], known)
    return str(error).splitlines()[0]


def _leaves(node: Any, name: str) -> list[str]:
    """Every setting's full name: model.hidden_size, phases[0].steps, ..."""
    if isinstance(node, ConfigDict):
        dot = f"{name}." if name else ""
        return [leaf for key in node for leaf in _leaves(node[key], f"{dot}{key}")]
    if isinstance(node, tuple) and node and isinstance(node[0], ConfigDict):
        return [x for i, item in enumerate(node) for x in _leaves(item, f"{name}[{i}]")]
    return [name]


def plain(node: Any) -> Any:
    """Dicts for ConfigDicts, also within tuples."""
    if isinstance(node, ConfigDict):
        return {key: plain(node[key]) for key in node}
    if isinstance(node, tuple):
        return tuple(map(plain, node))
    return node
