"""Writes the reference pages docs/settings.md and docs/commands.md.

usage:
  python docs/make_reference.py
"""

import contextlib
import importlib
import inspect
import io
import os
import textwrap
from pathlib import Path

from bert_jax.__main__ import COMMANDS
from bert_jax.commands.config_file import named_configs
from bert_jax.settings import REQUIRED, all_settings
from bert_jax.tasks.families import FAMILIES
from bert_jax.training.config import FineTuneConfig, StudyConfig, TrainConfig, Variant

_SETTINGS = """# Settings

<!-- Made by: python docs/make_reference.py -->

A config file names the settings that its experiment is about. The others have the defaults
below. The command line can change every setting: `--config.NAME=VALUE`. With
`--print_config` a command shows all settings of a run and ends.
"""
_COMMANDS = """# Commands

<!-- Made by: python docs/make_reference.py -->

`bert_jax NAME ...` runs a command, and so does `python -m bert_jax NAME ...`.
`bert_jax` alone lists them, and `bert_jax NAME --help` explains one. A wrong
argument, name or file is one line and exit code 2. Work that takes long shows its
progress on one line of a terminal. Training
logs a line every `log_every` steps and after each evaluation instead, with the time that is
left. The first estimate of the time is logged after ten steps. If the same model had
batches of the same shape on this machine before, it is logged before the first step.

An output file replaces an existing file of that name when it is complete. After an error
the existing file is unchanged. An output folder must be new or empty.

`--config` takes the name of a config, such as `tiny`, `base:lamb` or `sst2`, or a file. The
names are
{names}.
[Settings](settings.md) lists what can be set in it: `--config.NAME=VALUE`, or
`--NAME=VALUE` for short. NAME is the whole name: `--optimizer.learning_rate=1e-4`. Among
the settings:

- `--profile_steps 10:20` writes a profile of these steps into the workdir's `tensorboard/`,
  where `tensorboard --logdir WORKDIR/tensorboard` or `xprof` (both from PyPI) shows it.
- `--tracker wandb` or `--tracker trackio` also sends the numbers of `metrics.jsonl` to
  Weights & Biases or Trackio; the library has to be installed.
"""


def tables(kind: type, name: str = "", level: str = "##") -> str:
    """The settings of a config's type in Markdown, with a table for each group."""
    rows = {(name.removesuffix("."), kind): []}  # its own settings come first
    for full, field, default, group in all_settings(kind, name):
        if field.default_factory is not REQUIRED:
            default = field.default_factory()
        shown = "must be given" if default is REQUIRED else f"`{default!r}`"
        row = f"| `{full}` | {shown} | {field.metadata.get('doc')} |"
        if "doc" in field.metadata:
            rows.setdefault((full.rpartition(".")[0], group), []).append(row)
    parts = []
    for (full, group), own in rows.items():
        heading = f"{level}{'#' * (full.count('.') - name.count('.') + 1)} "
        heading += f"`{full.removesuffix('[0]')}`\n"
        text = inspect.getdoc(group).replace("``", "`")
        parts += [heading * (full != name.removesuffix(".")) + text]
        parts += ["\n".join(["| setting | default | meaning |", "|---|---|---|", *own])]
    return "\n\n".join(parts)


def settings_page() -> str:
    """Every setting of every config."""
    data = [
        f"### `data` of the family {name}\n{tables(family.config_class, 'data.', '###')}"
        for name, family in FAMILIES.items()
    ]
    parts = [
        f"{_SETTINGS}\n## Pretraining\n\n`bert_jax train`",
        tables(TrainConfig),
        "## Fine-tuning\n\n`bert_jax finetune`",
        tables(FineTuneConfig),
        *data,
        "## Studies\n\n`bert_jax study`",
        tables(StudyConfig),
        f"### A variant\n\n{tables(Variant)}\n",
    ]
    return "\n\n".join(parts)


def commands_page() -> str:
    """The --help text of each command."""
    names = textwrap.fill(", ".join(f"`{name}`" for name in named_configs()), 98)
    parts = [_COMMANDS.format(names=names)]
    os.environ["COLUMNS"] = "92"  # the width that argparse fills
    for name in COMMANDS:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            importlib.import_module(f"bert_jax.commands.{name}").main(["--help"])
        parts.append(f"## {name}\n\n```text\n{shown.getvalue().strip()}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    folder = Path(__file__).parent
    (folder / "settings.md").write_text(settings_page(), encoding="utf-8")
    (folder / "commands.md").write_text(commands_page(), encoding="utf-8")
