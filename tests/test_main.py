"""``bert_jax NAME ...``: one command that finds all others."""

import pydoc
import re
import runpy
import tomllib
from pathlib import Path

import pytest

import bert_jax
from bert_jax import __main__ as umbrella
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


def test_a_command_gets_the_arguments_behind_its_name(capsys):
    with pytest.raises(SystemExit):
        umbrella.main(["train", "--config", "base:lamb", "--print_config"])
    assert "optimizer.name = 'lamb'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new"), [(old, " ".join(new)) for old, new in umbrella.OLD_NAMES.items()]
)
def test_an_old_name_works_and_prints_the_new_name(old, new, capsys):
    with pytest.raises(SystemExit):
        umbrella.main([old, "--help"])
    out, err = capsys.readouterr()
    assert f"  bert_jax {new.split()[0]} " in out
    assert err == f"{old} is now bert_jax {new}\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("trian", "trian is not a command of bert_jax; did you mean train?"),
        ("xyzzy", "bert_jax; expected train, finetune, "),
    ],
)
def test_a_wrong_name_lists_the_nearest(name, message):
    with pytest.raises(UserError) as error:
        umbrella.main([name])
    assert message in str(error.value)


def test_the_console_script_is_this_command():
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert settings["project"]["scripts"] == {"bert_jax": "bert_jax.__main__:run"}
    assert callable(umbrella.run)


def test_help_of_the_package_shows_its_functions():
    # Python 3.13 gives each argument of a long signature a line of its own.
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
def test_the_reference_pages_are_up_to_date(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "92")
    pages = runpy.run_path(str(REPOSITORY / "docs" / "make_reference.py"))
    page = (REPOSITORY / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert page == pages[f"{name}_page"](), "run python docs/make_reference.py"
