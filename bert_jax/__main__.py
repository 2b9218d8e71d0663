"""All commands as one: ``bert_jax NAME ...``, or ``python -m bert_jax NAME ...``."""

import ast
import difflib
import importlib
import sys
from pathlib import Path

from bert_jax import __version__
from bert_jax.commands import cli
from bert_jax.errors import UserError
from bert_jax.progress import print_line

_RENAMED = {"compare": "plot"}  # old and new names of commands
_SHARED = ("cli", "config_file", "startup")  # files of commands/ that are no command


def commands() -> dict[str, str]:
    """The name of each command and what it does, in a line."""
    found = {}
    for path in sorted(Path(__file__).with_name("commands").glob("[!_]*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found[path.stem] = ast.get_docstring(tree).partition("\n")[0]
    return {name: line for name, line in found.items() if name not in _SHARED}


def main(argv: list[str]) -> int | None:
    """Runs the command that ``argv`` begins with, or lists all."""
    name, *rest = argv or ["--help"]
    if name in _RENAMED:
        print_line(f"{name} is now bert_jax {_RENAMED[name]}", sys.stderr)
        name = _RENAMED[name]
    known = commands()
    if name in ("-h", "--help", "help"):
        width = max(map(len, known))
        print_line("usage: bert_jax COMMAND ...\n")
        for command, line in known.items():
            print_line(f"  {command:{width}}  {line}")
        print_line("\nbert_jax COMMAND --help shows the arguments of a command.")
    elif name == "--version":
        print_line(__version__)
    elif name in known:
        return importlib.import_module(f"bert_jax.commands.{name}").main(rest)
    else:
        near = difflib.get_close_matches(name, known, cutoff=0.5)
        found = f"did you mean {', '.join(near)}?"
        found = found if near else f"the commands are {', '.join(known)}"
        raise UserError(f"{name} is not a command of bert_jax; {found}")
    return None


def run() -> None:
    """The console script."""
    cli.run(main)


if __name__ == "__main__":
    run()
