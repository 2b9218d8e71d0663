"""``bert_jax NAME ...`` runs the command NAME."""

import argparse
import importlib
import pydoc
import re
import runpy
import shlex
import tomllib
from pathlib import Path

import pytest

import bert_jax
from bert_jax import __main__ as umbrella
from bert_jax.commands import cli
from bert_jax.errors import UserError

REPOSITORY = Path(__file__).parent.parent


def test_every_command_is_listed_with_its_first_line(capsys):
    umbrella.main([])
    listed = capsys.readouterr().out
    for name in umbrella.COMMANDS:
        text = (REPOSITORY / f"bert_jax/commands/{name}.py").read_text()
        line = text.removeprefix('"""').partition("\n")[0]
        assert line.endswith(".") and f"\n  {name:12}{line}\n" in listed
    umbrella.main(["--help"])
    assert capsys.readouterr().out == listed
    umbrella.main(["--version"])
    assert capsys.readouterr().out == f"{bert_jax.__version__}\n"


def test_a_command_gets_the_arguments_after_its_name(capsys):
    with pytest.raises(SystemExit):
        umbrella.main(["train", "--config", "base:lamb", "--print_config"])
    assert "optimizer.name = 'lamb'" in capsys.readouterr().out


def test_a_command_of_an_earlier_version_works_and_gives_its_new_name(capsys):
    for old, new in umbrella.RENAMED.items():
        with pytest.raises(SystemExit):
            umbrella.main([old, "--help"])
        printed = capsys.readouterr()
        assert f"bert_jax {new} --" in printed.out
        assert printed.err == f"the command {old} is now called {new}\n"
        assert old not in umbrella.COMMANDS and new in umbrella.COMMANDS


@pytest.mark.parametrize("name", umbrella.COMMANDS)
def test_help_fits_on_a_screen_and_its_examples_parse(name, capsys, monkeypatch):
    main = importlib.import_module(f"bert_jax.commands.{name}").main
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 25 and max(map(len, lines)) <= 80
    flags = [line.split(maxsplit=1) for line in lines[lines.index("flags:") + 1 :]]
    examples = [x for x in lines if x.startswith(f"  bert_jax {name}")]
    assert len(examples) == 3
    read, known = cli._Parser.parse_args, set()

    def parse_args(self, *args):
        read(self, *args)
        actions = [x for x in self._actions if x.help != argparse.SUPPRESS]
        known.update(
            x.option_strings[-1] if x.option_strings else x.metavar for x in actions
        )
        raise SystemExit(0)

    monkeypatch.setattr(cli._Parser, "parse_args", parse_args)
    monkeypatch.setattr(cli, "check_checkpoint", lambda path: None)
    for example in examples:
        with pytest.raises(SystemExit):
            main(shlex.split(example)[2:])
    assert {flag for flag, _ in flags} == known - {"--help"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train", "model.hidden_size = (must be given)"),
        ("train --config tiny", "model.hidden_size = 128"),
        ("finetune", "epochs = 3"),
        ("finetune --config table", "data.text_a = ''"),
    ],
)
def test_the_settings_are_listed_with_their_meaning(line, expected, capsys):
    with pytest.raises(SystemExit):
        umbrella.main([*line.split(), "--help-settings"])
    listed = capsys.readouterr().out.splitlines()
    assert all(re.fullmatch(r"[\w.\[\]]+ = .+  # .{8,}", setting) for setting in listed)
    assert expected in [setting.partition("  # ")[0] for setting in listed]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("trian", "trian is not a command of bert_jax; did you mean train?"),
        ("xyzzy", "bert_jax; the commands are train, finetune, "),
        ("compare", "compare is not a command of bert_jax; use bert_jax plot"),
    ],
)
def test_a_wrong_name_suggests_the_nearest(name, message):
    with pytest.raises(UserError) as error:
        umbrella.main([name])
    assert message in str(error.value)


def test_the_console_script_is_this_command():
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert settings["project"]["scripts"] == {"bert_jax": "bert_jax.__main__:run"}
    assert callable(umbrella.run)


def test_help_of_the_package_shows_its_functions():
    # Python 3.13 prints each argument of a long signature on its own line.
    text = re.sub(r"\(\s+", "(", pydoc.plain(pydoc.render_doc(bert_jax)))
    for signature in ("finetune(task: ", "load(", "pretrain(config: "):
        assert f"\n    {signature}" in text
    assert dir(bert_jax) == ["__version__", *bert_jax.__all__]
    assert dir(bert_jax.figures) == sorted(bert_jax.figures.__all__)
    for name in bert_jax.figures.__all__:
        assert callable(getattr(bert_jax.figures, name))
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        bert_jax.lode()


@pytest.mark.parametrize("name", ["settings", "commands"])
def test_the_pages_of_lists_are_up_to_date(name):
    pages = runpy.run_path(str(REPOSITORY / "docs" / "scripts" / "write_lists.py"))
    page = (REPOSITORY / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert page == pages[f"{name}_page"](), "run python docs/scripts/write_lists.py"


def test_the_page_of_commands_names_the_flags_of_earlier_commands():
    pages = runpy.run_path(str(REPOSITORY / "docs" / "scripts" / "write_lists.py"))
    known = {}
    help_of = "About.\n\nflags:\n  {}\n  --b  second"
    first, other = help_of.format("--a N  first (1)"), help_of.format("--a  first (2)")
    assert pages["without_known"](first, "one", known) == first
    shown = pages["without_known"](other, "two", known)
    assert shown == "About.\n\nflags:\n  --a  first (2)\n  as in one: --b"
