"""``--config FILE[:ARG] --config.name=value`` and plain flags beside it."""

import re
import sys
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from bert_jax.errors import UserError, unknown_field


def parse(argv: list[str], usage: str) -> tuple[dict[str, Any], Path]:
    """Reads the command line of a command that takes --config and --workdir.

    Returns the config, overrides applied, as plain values, and the workdir: runs/NAME
    where none is given, NAME being the config file's, with its argument. A setting that
    does not exist, a value of the wrong type and a missing file are UserErrors.
    """
    if {"-h", "--help"} & set(argv):
        print(usage.strip())
        raise SystemExit(0)
    command_line = usage.strip().splitlines()[-1].strip()
    for value in re.findall(r"--?config[= ](\S+)", " ".join(argv)):
        path = value.split(":")[0]
        if not Path(path).is_file():
            raise UserError(f"--config={path} is not a file; use {command_line}")
        # A config may import its neighbours, as large.py does.
        sys.path.insert(0, str(Path(path).parent.resolve()))
    try:
        values = _flags(argv)
        rest = values(["", *argv])[1:]
    except (AttributeError, KeyError, IndexError) as error:  # no such setting
        raise UserError(_unknown(argv, error)) from error
    except (flags.Error, TypeError, ValueError) as error:
        # Of an error within a config file its last line tells what is wrong.
        raise UserError(str(error).strip().splitlines()[-1]) from error
    if rest:
        raise UserError(f"unexpected argument {rest[0]!r}; use {command_line}")
    if values.config is None:
        raise UserError(f"--config is missing; use {command_line}")
    if values.workdir is not None:
        return plain(values.config), Path(values.workdir)
    file, _, argument = config_flags.get_config_filename(values["config"]).partition(
        ":"
    )
    return plain(values.config), Path(
        "runs", "-".join(filter(None, (Path(file).stem, argument)))
    )


def _flags(argv: list[str]) -> flags.FlagValues:
    # Flags of our own and not absl's global ones: a command may be called twice in one
    # process, as the tests do.
    values = flags.FlagValues()
    flags.DEFINE_string("workdir", None, "where the run lives", flag_values=values)
    config_flags.DEFINE_config_file(
        "config", None, "FILE[:ARG]", flag_values=values, sys_argv=["", *argv]
    )
    return values


def _unknown(argv: list[str], error: Exception) -> str:
    """The message for the first --config.name that the config file does not have."""
    file_only = [a for a in argv if not re.match(r"--?config\.", a)]
    values = _flags(file_only)
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
