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
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bert_jax.__main__ import COMMANDS
from bert_jax.commands.config_file import named_configs
from bert_jax.settings import REQUIRED, all_settings
from bert_jax.tasks.families import FAMILIES
from bert_jax.training.config import FineTuneConfig, StudyConfig, TrainConfig, Variant

_SETTINGS = """# Settings

<!-- Made by: python docs/make_reference.py -->

Each line has the name of a setting, its default and its meaning. On the command line
`--NAME=VALUE` changes a setting, for example `--optimizer.learning_rate=1e-4`. A config
file names only the settings that its experiment is about. `--print_config` shows all
settings of a run.
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


class Line(NamedTuple):
    """A setting of the page. group: the docstring of its dataclass."""

    default: object
    doc: str
    group: str


def settings_of(kind: type, prefix: str = "") -> dict[str, Line]:
    """The settings of a config's type by full name."""
    lines = {}
    for name, field, default, group in all_settings(kind, prefix):
        if field.default_factory is not REQUIRED:
            default = field.default_factory()
        if "doc" in field.metadata:
            text = inspect.getdoc(group).replace("``", "`")
            lines[name] = Line(default, field.metadata["doc"], text)
    return lines


def written(lines: dict[str, Line], others: dict[str, Line], top: str = "") -> str:
    """The settings in Markdown, with a heading for each group except ``top``.

    others: settings of fine-tuning whose defaults are shown where they differ.
    """
    groups = {top: []}
    for name, (default, doc, text) in lines.items():
        group = name.rpartition(".")[0].removesuffix("[0]")
        head = [f"\n### `{group}`\n\n{text}\n"]
        value = "`, required" if default is REQUIRED else f" = {default!r}`"
        if name in others and others[name].default != default:
            value += f" (fine-tuning `{others[name].default!r}`)"
        groups.setdefault(group, head).append(f"- `{name}{value}: {doc}")
    return "\n".join(line for group in groups.values() for line in group)


def family_settings() -> Iterator[str]:
    """The settings of each task family, without the settings of an earlier family."""
    seen = {}
    for family, kind in FAMILIES.items():
        lines = settings_of(kind.config_class, "data.")
        text = next(iter(lines.values())).group
        parts = [f"\n### `data` of {family}\n\n{text}\n"]
        same = [x for x in lines if x in seen and seen[x][1][:2] == lines[x][:2]]
        for first in dict.fromkeys(seen[x][0] for x in same):
            names = ", ".join(f"`{x}`" for x in same if seen[x][0] == first)
            parts.append(f"- as in {first}: {names}")
        new = {name: line for name, line in lines.items() if name not in same}
        seen = {name: (family, line) for name, line in new.items()} | seen
        yield "\n".join([*parts, written(new, {}, "data")])


def settings_page() -> str:
    """Every setting of every config."""
    train, finetune = settings_of(TrainConfig), settings_of(FineTuneConfig)
    both = {
        x: train[x] for x in train if x in finetune and train[x][1] == finetune[x][1]
    }
    own = {x: finetune[x] for x in finetune if x not in both}
    study, variant = settings_of(StudyConfig), settings_of(Variant)
    parts = [
        _SETTINGS,
        "## Pretraining and fine-tuning\n",
        written(both, finetune),
        "\n## Pretraining\n\n`bert_jax train`\n",
        written({x: train[x] for x in train if x not in both}, {}),
        "\n## Fine-tuning\n\n`bert_jax finetune`\n",
        written(own, {}),
        *family_settings(),
        f"\n## Studies\n\n`bert_jax study`: {study['variants'].group}\n",
        written(study, {}),
        f"\n### A variant\n\n{variant['pretrain'].group}\n",
        written(variant, {}),
    ]
    return "\n".join(parts) + "\n"


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
