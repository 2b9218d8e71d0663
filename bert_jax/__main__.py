"""The command ``bert_jax NAME ...``, or ``python -m bert_jax NAME ...``."""

import importlib
import sys
from pathlib import Path

from bert_jax import __version__
from bert_jax.commands import cli
from bert_jax.errors import UserError, hint
from bert_jax.progress import print_line

COMMANDS = (
    *("train", "finetune", "study", "vocabulary", "prepare", "predict", "evaluate"),
    *("embed", "score", "convert", "inspect", "plot", "estimate", "doctor"),
)
# Names of earlier versions that still work, and their new names.
RENAMED = {"aot": "estimate"}
# Wrong names that users may try, such as names of version 0.1.0, and the right commands.
OTHER_NAMES = {
    "pretrain": "train",
    "experiment": "study",
    "sweep": "finetune --sweep",
    "fill_mask": "predict",
    "next_sentence": "predict --next_sentence",
    "minimal_pairs": "score --pairs",
    "compare": "plot",
}


def summary(name: str) -> str:
    """The first line of a command's file, which describes the command."""
    with Path(__file__).with_name("commands").joinpath(f"{name}.py").open() as file:
        return file.readline().strip('"\n')


def main(argv: list[str]) -> int | None:
    """Runs the command ``argv[0]``, or lists all commands."""
    name, *rest = argv or ["--help"]
    if name in ("-h", "--help", "help"):
        lines = [f"  {command:12}{summary(command)}" for command in COMMANDS]
        print_line("\n".join(["usage: bert_jax COMMAND ...\n", *lines]))
        print_line("\nbert_jax COMMAND --help explains a command.")
        print_line("To start: bert_jax train --config tiny")
        return None
    if name == "--version":
        print_line(__version__)
        return None
    if name in RENAMED:
        new_name = RENAMED[name]
        print_line(f"the command {name} is now called {new_name}", sys.stderr)
        name = new_name
    if name not in COMMANDS:
        near = hint(name, COMMANDS) or f"the commands are {', '.join(COMMANDS)}"
        if name in OTHER_NAMES:
            near = f"use bert_jax {OTHER_NAMES[name]}"
        raise UserError(f"{name} is not a command of bert_jax; {near}")
    return importlib.import_module(f"bert_jax.commands.{name}").main(rest)


def run() -> None:
    """The console script."""
    cli.run(main)


if __name__ == "__main__":
    run()
