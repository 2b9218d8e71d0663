"""Writes docs/settings.md and docs/commands.md, the lists of all settings and commands.

usage:
  python docs/scripts/write_lists.py
"""

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bert_jax.__main__ import COMMANDS
from bert_jax.commands import cli
from bert_jax.commands.config_file import named_configs
from bert_jax.settings import REQUIRED, all_settings
from bert_jax.tasks.families import FAMILIES
from bert_jax.training.config import FineTuneConfig, StudyConfig, TrainConfig, Variant

_SETTINGS = """# Settings

<!-- Made by: python docs/scripts/write_lists.py -->

Each line has the name of a setting, its default and its meaning. On the command line
`--NAME=VALUE` changes a setting, for example `--optimizer.learning_rate=1e-4`. A config
file names only the settings that its experiment is about. `--print_config` shows all
settings of a run.

Some meanings start with a value and a colon. Such a setting is only used with this value
of `data.task`, `data.loss` or `data.truncation`. For example, `table:` means
`data.task=table`, and `version_2:` means `data.version_2=True`.
"""
_COMMANDS = """# Commands

<!-- Made by: python docs/scripts/write_lists.py -->

`bert_jax NAME --help` shows all flags of a command. Below, flags that a
command shares with an earlier one are listed by name only. `--config` takes a file, or a
name with an optional argument, such as `base:lamb`:
{names}.

Each [setting](settings.md) is a flag, such as `--optimizer.learning_rate=1e-4`. A dash
in a flag means an underscore. A wrong flag, name or file ends the command with one line and
exit code 2. An output file replaces an existing file when it is complete. An output folder
must be new or empty, except to resume `prepare` or with `--overwrite`. A file or a folder
may start with `~`, even after `=`.
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
            text = " ".join(inspect.getdoc(group).replace("``", "`").split())
            doc = field.metadata["doc"]
            known = field.metadata["limits"].get("one of", ())
            if not all(str(value) in doc for value in known):
                doc += f". One of {', '.join(map(repr, known))}"
            lines[name] = Line(default, doc, text)
    return lines


def written(lines: dict[str, Line], others: dict[str, Line], top: str = "") -> str:
    """The settings in Markdown, with a heading for each group except ``top``.

    others: settings of fine-tuning. Defaults that differ are shown as well.
    """
    groups = {top: []}
    for name, (default, doc, text) in lines.items():
        group = name.rpartition(".")[0].removesuffix("[0]")
        head = [f"\n### `{group}`\n{text}\n"]
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
        parts = [f"\n### `data` of {family}\n{text}\n"]
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


def without_known(shown: str, name: str, known: dict[str, str]) -> str:
    """The help of a command. Flags of earlier commands are listed by name only.

    known: the first command of each line of a flag. Lines of this command are added.
    """
    about, mark, flags = shown.partition("\nflags:\n")
    lines = {" ".join(line.split()): line for line in flags.split("\n")}
    new = [line for words, line in lines.items() if words not in known]
    for first in dict.fromkeys(known[words] for words in lines if words in known):
        same = [words.split()[0] for words in lines if known.get(words) == first]
        text = f"as in {first}: {', '.join(same)}"
        new.append(
            textwrap.fill(text, 78, initial_indent="  ", subsequent_indent="    ")
        )
    for words in lines:
        known.setdefault(words, name)
    return f"{about}{mark}" + "\n".join(new)


def commands_page() -> str:
    """The help of each command, and the details below it."""
    names = textwrap.fill(", ".join(f"`{name}`" for name in named_configs()), 98)
    parts, known = [_COMMANDS.format(names=names)], {}
    for name in COMMANDS:
        module = importlib.import_module(f"bert_jax.commands.{name}")
        shown, details = cli.help_and_details(module.__doc__)
        block = f"```text\n{without_known(shown, name, known)}\n```"
        parts.append("\n\n".join(filter(None, [f"## {name}", block, details])) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    docs = Path(__file__).resolve().parents[1]
    (docs / "settings.md").write_text(settings_page(), encoding="utf-8")
    (docs / "commands.md").write_text(commands_page(), encoding="utf-8")
