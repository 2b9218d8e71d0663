"""A config file states what it is about; the command line can change every setting."""

import dataclasses
import os
import subprocess
import sys

import pytest

from bert_jax.config_file import parse
from bert_jax.errors import UserError
from bert_jax.settings import from_settings, setting

USAGE = "usage:\n  command"


@dataclasses.dataclass(frozen=True)
class Phase:
    steps: int = setting(doc="of training")
    learning_rate: float = setting(0.1, "the peak")


@dataclasses.dataclass(frozen=True)
class Mesh:
    model: int = setting(1, "devices that share a layer")


@dataclasses.dataclass(frozen=True)
class Config:
    phases: tuple[Phase, ...] = setting(doc="one after the other")
    mesh: Mesh = setting(factory=Mesh, doc="the devices")
    seeds: tuple[int, ...] = setting((0,), "of the runs")
    packing: bool = setting(False, "whether rows are shared")
    name: str = setting("", "of the run")


def read(given):
    return from_settings(Config, given, "")


@pytest.fixture
def config(tmp_path):
    """A function of a file's text, and of flags: the config of the command line."""

    def settings(text, *flags, argument=""):
        path = tmp_path / "config.py"
        path.write_text(text)
        line = ["--config", f"{path}:{argument}".rstrip(":"), *flags]
        return parse(line, USAGE, read).config

    return settings


FILE = "def get_config():\n    return dict(phases=(dict(steps=3), dict(steps=4)))\n"


def test_what_the_file_leaves_out_has_its_default(config):
    assert config(FILE) == Config((Phase(3, 0.1), Phase(4, 0.1)), Mesh(1), (0,), False)


def test_any_setting_can_be_changed_though_the_file_does_not_name_it(config):
    changed = config(
        FILE,
        "--config.phases[1].steps=9",
        "--config.phases[0].learning_rate=1",
        "--config.mesh.model=2",
        "--config.seeds=(4, 5)",
        "--config.packing",
        "--config.name=a b",
    )
    phases = Phase(3, 1.0), Phase(9, 0.1)
    assert changed == Config(phases, Mesh(2), (4, 5), True, "a b")
    assert config(FILE, "--noconfig.packing", "--config.seeds=7").seeds == (7,)


def test_a_file_may_give_a_config_dict_and_import_its_neighbours(config, tmp_path):
    (tmp_path / "neighbour_of_config.py").write_text("STEPS = 5\n")
    text = """
from ml_collections import ConfigDict
from neighbour_of_config import STEPS

def get_config(name):
    phase = ConfigDict(dict(steps=STEPS, learning_rate=1))
    return ConfigDict(dict(phases=(phase,), name=name))
"""
    path = list(sys.path)
    settings = config(text, "--config.phases[0].learning_rate=0.5", argument="x:y")
    assert settings.phases == (Phase(5, 0.5),)
    assert settings.name == "x:y"
    assert sys.path == path


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--config.mesh.mdel=2", r"mesh\.mdel is not .* mean config\.mesh\.model\?"),
        ("--config.optim.model=2", r"did you mean config\.mesh\.model\?"),
        ("--config.phases[2].steps=1", r"phases\[2\]\.steps is not a setting"),
        ("--config.mesh=2", "config.mesh is not a setting"),
        ("--config.mesh.model=x", "mesh.model"),
        ("--config.packing=perhaps", "packing"),
        ("--colour=red", "colour"),
        ("more", "unexpected argument 'more'; use command"),
    ],
)
def test_a_wrong_argument_is_one_line(config, flag, message):
    with pytest.raises(UserError, match=message) as error:
        config(FILE, flag)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "has no function get_config"),
        ("def get_config():\n    return None\n", "gave NoneType, expected a dict"),
        ("def get_config():\n    raise ValueError('size 3')\n", "config.py: size 3"),
        ("def get_config(size):\n    return {}\n", "missing 1 required positional"),
    ],
)
def test_a_wrong_file_is_one_line(config, text, message):
    with pytest.raises(UserError, match=message) as error:
        config(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([], "--config is missing; use command"),
        (["--config"], "--config is missing; use command"),
        (["--config", "none.py"], "--config=none.py is not a file; use command"),
    ],
)
def test_a_config_that_is_not_there(line, message):
    with pytest.raises(UserError, match=message):
        parse(line, USAGE, read)


@pytest.mark.parametrize("joined", [True, False])
def test_a_config_s_path_may_have_spaces(tmp_path, joined):
    path = tmp_path / "my configs" / "a b.py"
    path.parent.mkdir()
    path.write_text("def get_config(name):\n    return dict(name=name, phases=())\n")
    config = [f"--config={path}:big"] if joined else ["--config", f"{path}:big"]
    line = parse([*config, "--config.seeds=3"], USAGE, read)
    assert (line.config.name, line.config.seeds) == ("big", (3,))
    assert line.workdir == "runs/a b-big"


@pytest.mark.parametrize("command", ["train", "finetune"])
@pytest.mark.parametrize("flag", ["--help", "--config=none.py"])
def test_a_wrong_command_line_answers_without_jax(command, flag):
    """Importing it takes a second, and more where there are accelerators."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", f"bert_jax.{command}", flag],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert done.returncode == (0 if flag == "--help" else 2)
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "ml_collections" in modules
    assert not modules & {"jax", "flax", "optax", "grain", "sklearn"}
