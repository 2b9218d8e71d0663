"""All commands as one: ``bert_jax NAME ...``, or ``python -m bert_jax NAME ...``.

A command is a file of this folder that ends in ``cli.run(main)``. Their reference page is
made by ``python -m bert_jax reference > docs/commands.md``.
"""

import ast
import contextlib
import difflib
import importlib
import io
import os
import textwrap
from pathlib import Path

from bert_jax import __version__, cli
from bert_jax.errors import UserError
from bert_jax.progress import print_line

_PAGE = """# Commands

<!-- Made by: python -m bert_jax reference > docs/commands.md -->

`bert_jax NAME ...` runs a command, and so does `python -m bert_jax.NAME ...`.
`bert_jax` alone lists them, and `bert_jax NAME --help` says what one does. A wrong
argument, name or file is one line and exit code 2. Work that takes long shows how far it
is, on stderr: one live line on a terminal, a line each half minute elsewhere. Training
logs a line every `log_every` steps and after each evaluation instead, and once the first
steps are done it says how many tokens are left and how long they take at that pace.

An output file replaces an existing file of that name when it is complete. After an error
the existing file is unchanged. An output folder must be new or empty.

`--config` takes the name of a config, such as `tiny`, `base:lamb` or `sst2`, or a file. The
names are
{names}.
[Settings](settings.md) has what can be set in it: `--config.NAME=VALUE`, or
`--NAME=VALUE` for short. NAME is the whole name: `--optimizer.learning_rate=1e-4`. Among
the settings:

- `--profile_steps 10:20` writes a profile of these steps into the workdir's `tensorboard/`,
  where `tensorboard --logdir WORKDIR/tensorboard` or `xprof` (both from PyPI) shows it.
- `--tracker wandb` or `--tracker trackio` sends the numbers of `metrics.jsonl` to Weights &
  Biases or Trackio too; the library has to be installed.
"""


def commands() -> dict[str, str]:
    """The name of each command and what it does, in a line."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if text.endswith("\n    cli.run(main)\n") and path != Path(__file__):
            found[path.stem] = ast.get_docstring(ast.parse(text)).partition("\n")[0]
    return found


def main(argv: list[str]) -> int | None:
    """Runs the command that ``argv`` begins with, or lists all."""
    name, *rest = argv or ["--help"]
    known = commands()
    if name in ("-h", "--help", "help"):
        width = max(map(len, known))
        print_line("usage: bert_jax COMMAND ...\n")
        for command, line in known.items():
            print_line(f"  {command:{width}}  {line}")
        print_line("\nbert_jax COMMAND --help says more.")
    elif name == "--version":
        print_line(__version__)
    elif name == "reference":
        print_line(reference())
    elif name in known:
        return importlib.import_module(f"bert_jax.{name}").main(rest)
    else:
        near = difflib.get_close_matches(name, known, cutoff=0.5)
        found = f"did you mean {', '.join(near)}?"
        found = found if near else f"the commands are {', '.join(known)}"
        raise UserError(f"{name} is not a command of bert_jax; {found}")
    return None


def reference() -> str:
    """The reference page: what --help of each command shows, without its settings."""
    from bert_jax.config_file import named_configs

    names = textwrap.fill(", ".join(f"`{name}`" for name in named_configs()), 98)
    parts = [_PAGE.format(names=names)]
    os.environ["COLUMNS"] = "92"  # the width that argparse fills
    for name in commands():
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            importlib.import_module(f"bert_jax.{name}").main(["--help"])
        text = shown.getvalue().partition("\nsettings, with their defaults:")[0]
        parts.append(f"## {name}\n\n```text\n{text.strip()}\n```\n")
    return "\n".join(parts).rstrip()


def run() -> None:
    """The console script."""
    cli.run(main)


if __name__ == "__main__":
    run()
