"""A config file names some settings, and the command line can change all settings."""

import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.commands import config_file
from bert_jax.commands.config_file import parse
from bert_jax.errors import UserError
from bert_jax.interop.config_json import read_config
from bert_jax.interop.load import load
from bert_jax.settings import from_settings, setting, to_dict
from bert_jax.training.config import finetune_config, train_config

USAGE = "usage:\n  bert_jax command"
EXPERIMENTS = Path(__file__).parent.parent.parent / "experiments"


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
    labels: tuple[str, ...] = setting((), "of the classes")
    name: str = setting("", "of the run")


def read(given):
    return from_settings(Config, given, "")


@pytest.fixture
def config(tmp_path):
    """A function of a file's text and flags that returns the config."""

    def settings(text, *flags, argument=""):
        path = tmp_path / "config.py"
        path.write_text(text)
        line = ["--config", f"{path}:{argument}".rstrip(":"), *flags]
        return parse(line, USAGE, read).config

    return settings


FILE = "def get_config():\n    return dict(phases=(dict(steps=3), dict(steps=4)))\n"


def test_settings_missing_in_the_file_have_their_defaults(config):
    assert config(FILE) == Config((Phase(3, 0.1), Phase(4, 0.1)), Mesh(1), (0,), False)


def test_settings_missing_in_the_file_can_be_changed(config):
    changed = config(
        FILE,
        "--config.phases[1].steps=9",
        "--config.phases[0].learning_rate=1",
        "--mesh.model=2",
        *("--config.seeds", "(4, 5)"),
        "--config.packing",
        *("--name", "a b"),
    )
    assert changed == config(
        FILE,
        *("--phases[1].steps=9", "--phases[0].learning-rate=1", "--mesh.model", "2"),
        *("--seeds", "(4, 5)", "--packing", "--name", "a b"),
    )
    phases = Phase(3, 1.0), Phase(9, 0.1)
    assert changed == Config(phases, Mesh(2), (4, 5), True, (), "a b")
    assert config(FILE, "--config.seeds=7").seeds == (7,)
    assert config(FILE, "--config.packing=true").packing
    for flags in (["4,-5"], ["4, -5"], ["4", "-5"], ["[4, -5]"]):
        assert config(FILE, "--seeds", *flags, "--packing").seeds == (4, -5)
    assert config(FILE, "--seeds=").seeds == ()
    for flags in (["neg,1"], ["neg", "1"], ["neg, 1"], ["('neg', '1')"]):
        assert config(FILE, "--labels", *flags).labels == ("neg", "1")
    for flag in ("(none)", "neg", "1"):
        assert config(FILE, f"--labels={flag}").labels == (flag,)
    assert config(FILE, "--labels='a,b'").labels == ("a,b",)
    assert config(FILE, "--labels=('a,b', 'c')").labels == ("a,b", "c")
    assert not config(FILE, "--packing", "False").packing


def test_a_file_may_return_any_mapping_and_import_its_neighbours(config, tmp_path):
    """Such as a ConfigDict of ml_collections, which is not a dictionary."""
    (tmp_path / "neighbour_of_config.py").write_text("STEPS = 5\n")
    text = """
from neighbour_of_config import STEPS

class ConfigDict:
    def __init__(self, **values):
        self.items = values.items

def get_config(name):
    phase = ConfigDict(steps=STEPS, learning_rate=1)
    return ConfigDict(phases=(phase,), name=name)
"""
    path = list(sys.path)
    settings = config(text, "--config.phases[0].learning_rate=0.5", argument="x:y")
    assert settings.phases == (Phase(5, 0.5),)
    assert settings.name == "x:y"
    assert sys.path == path


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--config.mesh.mdel=2", r"'--config\.mesh\.mdel=2'; .* mean --mesh\.model\?"),
        ("--config.optim.model=2", r"did you mean --mesh\.model\?"),
        ("--config.phases[2].steps=1", r"did you mean --phases\[0\]\.steps\?"),
        ("--config.seeds[0]=1", r"did you mean --seeds\?"),
        ("--config.name", "^argument --name: expected one argument; "),
        ("--config.name --packing", "^argument --name: expected one argument; "),
        (
            f"--workdir={__file__}",
            r"^--workdir=.*\.py must be a folder, but is a file",
        ),
        ("mesh.model=2", r"argument 'mesh\.model=2'; did you mean --mesh\.model\?"),
        ("--config.mesh=2", "did you mean --mesh.model"),
        ("--config.mesh.model=x", r"mesh\.model='x', expected a value of type int"),
        ("--config.packing=perhaps", "packing='perhaps', expected"),
        ("more", "argument 'more'; bert_jax command --help lists all"),
        ("--output_dir=runs", r"did you mean --workdir\?$"),
        ("--fp16", r"the setting is compute\.dtype: auto, bfloat16 or float32"),
        ("--learning_rat=1", r"did you mean --phases\[.\]\.learning_rate\?"),
        ("--mesh.modl=2", r"'--mesh\.modl=2'; did you mean --mesh\.model\?"),
        ("--mesh.modl 2", r"'--mesh\.modl'; did you mean --mesh\.model\?"),
        ("--LEARNING-RATE=1", r"did you mean --phases\[.\]\.learning_rate\?"),
        ("--Mesh.Model=2", r"'--Mesh\.Model=2'; did you mean --mesh\.model\?"),
    ],
)
def test_a_wrong_argument_is_a_one_line_error(config, flag, message):
    with pytest.raises(UserError, match=message) as error:
        config(FILE, *flag.split())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", r"config.py: KeyError\('get_config'\); expected get_config\(\)"),
        ("def get_config():\n    raise ValueError('size 3')\n", "'size 3'"),
        ("a,b\nc d,1\n", "config.py: SyntaxError.*invalid syntax"),
        ("def get_config(size):\n    return {}\n", "missing 1 required positional"),
        ("import absent_file\n", "No module named 'absent_file'; put the files that"),
    ],
)
def test_a_wrong_file_is_a_one_line_error(config, text, message):
    with pytest.raises(UserError, match=message) as error:
        config(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "required: --config; bert_jax command --help lists all arguments"),
        ("--config", "--config: expected one argument"),
        ("--config none.py", "none.py is not a file or the name of a config; known"),
        ("--config sst", r"did you mean sst2\?$"),
        ("--config bert-base", r"did you mean base\?$"),
        ("--config bert-base-uncased", r"did you mean base\?$"),
        ("--config BERT_large", r"did you mean large\?$"),
        ("--config sst-2", r"did you mean sst2\?$"),
        ("--config squad-v2", r"did you mean squad2\?$"),
        ("--config sst2:rte", "task 'sst2:rte', expected"),
        ("--config experiments/finetune/swga.py", r"did you mean swag\?$"),
    ],
)
def test_a_missing_config_is_a_one_line_error(line, message):
    with pytest.raises(UserError, match=message):
        parse(line.split(), USAGE, read)


@pytest.mark.parametrize(
    ("name", "file", "argument", "workdir"),
    [
        ("tiny", "tiny.py", "", "runs/tiny"),
        ("base:lamb", "base.py", "lamb", "runs/base-lamb"),
        ("sst2", "finetune/glue.py", "sst2", "runs/sst2"),
        ("glue:mrpc", "finetune/glue.py", "mrpc", "runs/glue-mrpc"),
        ("squad2", "finetune/squad.py", "v2", "runs/squad2"),
    ],
)
def test_a_config_is_found_by_its_name_from_anywhere(
    name, file, argument, workdir, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    config_type = finetune_config if "finetune" in file else train_config
    parsed = parse(["--config", name], USAGE, config_type)
    there = parse([f"--config={EXPERIMENTS / file}:{argument}"], USAGE, config_type)
    assert parsed.config == there.config
    assert parsed.workdir == workdir


def test_a_users_file_takes_precedence_over_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny.py").write_text(FILE)
    assert parse(["--config", "tiny.py"], USAGE, read).config.phases[0].steps == 3
    tiny = parse(["--config", str(EXPERIMENTS / "tiny.py")], USAGE, train_config)
    assert parse(["--config", "tiny"], USAGE, train_config).config == tiny.config


def test_configs_of_a_wheel_are_found(tmp_path, monkeypatch):
    (tmp_path / "experiments" / "finetune").mkdir(parents=True)
    (tmp_path / "experiments" / "finetune" / "own.py").write_text(FILE)
    monkeypatch.setattr(
        config_file, "__file__", str(tmp_path / "commands/config_file.py")
    )
    assert parse(["--config", "own"], USAGE, read).config.phases[1].steps == 4


@pytest.mark.parametrize("joined", [True, False])
def test_a_configs_path_may_have_spaces(tmp_path, joined):
    path = tmp_path / "my configs" / "a b.py"
    path.parent.mkdir()
    path.write_text("def get_config(name):\n    return dict(name=name, phases=())\n")
    config = [f"--config={path}:big"] if joined else ["--config", f"{path}:big"]
    line = parse([*config, "--config.seeds=3"], USAGE, read)
    assert (line.config.name, line.config.seeds) == ("big", (3,))
    assert line.workdir == "runs/a b-big"


@pytest.mark.parametrize(
    ("command", "flags", "message"),
    [
        ("train", "--config=none.py", "none.py is not a file"),
        ("finetune", "--config=sst2 --init_from={} --data.dir=none", "no train.tsv"),
    ],
)
def test_a_wrong_command_line_is_an_error_before_jax_is_imported(
    command, flags, message, golden
):
    """The import of JAX needs a second, and longer with accelerators."""
    flags = flags.format(golden / "google_bert").split()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "bert_jax", command, *flags],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "bert_jax.settings" in modules
    assert not modules & {"jax", "flax", "optax", "sklearn"}


def test_infinity_is_a_number():
    assert config_file._value("inf", 1.0) == math.inf
    assert config_file._value("inf", "a") == "inf"


def test_sizes_missing_in_a_config_come_from_the_checkpoint(
    golden, tmp_path, monkeypatch, capsys
):
    """Dropout is read from the config. A started run has saved its sizes."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(golden / "huggingface/pretraining", "checkpoint")
    file = Path("checkpoint/config.json")
    settings = json.loads(file.read_text()) | {"hidden_dropout_prob": 0.3}
    file.write_text(json.dumps(settings))
    line = ["--config", "further_pretraining", "--config.init_from=checkpoint"]

    def model(*flags):
        return parse([*line, "--phases[0].sequence_length=16", *flags], USAGE, read)

    read = train_config
    model_sizes = model().config.model
    known = read_config(Path("checkpoint/config.json"))
    assert model_sizes == dataclasses.replace(
        known, hidden_dropout=0.1, attention_dropout=0.1
    )
    changed = model(
        "--model.max_positions=64", "--model.hidden_dropout=0.2"
    ).config.model
    assert changed == dataclasses.replace(
        model_sizes, max_positions=64, hidden_dropout=0.2
    )
    with pytest.raises(SystemExit):
        model("--print_config")
    assert "\nmodel.hidden_size = 24  # " in capsys.readouterr().out
    (phase,) = parse(line, USAGE, read).config.phases
    assert phase.sequence_length == 19  # all positions, which are fewer than 128
    with pytest.raises(
        UserError,
        match=r"^missing: model\.vocab_size, .*; set each of them, or init_from",
    ):
        parse(line[:2], USAGE, read)
    with pytest.raises(UserError, match=r"did you mean --model\.hidden_size"):
        model("--model.hiden_size=24")
    # The vocabulary has fewer tokens than the word table has rows.
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    Path("checkpoint/vocab.txt").write_text("\n".join(tokens))
    assert model().config.model == dataclasses.replace(model_sizes, vocab_size=6)
    Path("runs/further_pretraining").mkdir(parents=True)
    saved = json.dumps(to_dict(model().config))
    Path("runs/further_pretraining/config.json").write_text(saved)
    shutil.rmtree("checkpoint")
    assert model().config.model == dataclasses.replace(model_sizes, vocab_size=6)
    for flag in ("--workdir=runs/other", "--init_from=./other"):
        with pytest.raises(
            UserError, match=r"checkpoint does not|other does not exist"
        ):
            model(flag)


@pytest.mark.parametrize("old", ["further", "experiments/further.py"])
def test_an_old_name_of_a_config_works_and_the_new_name_is_printed(old, golden, capsys):
    """The workdir keeps the old name, so that the same command resumes a run."""
    flags = f"--init_from={golden}/huggingface/pretraining", "--model.max_positions=128"
    line = parse(["--config", old, *flags], USAGE, train_config)
    new = parse(["--config", "further_pretraining", *flags], USAGE, train_config)
    assert line.config == new.config
    assert (line.workdir, new.workdir) == ("runs/further", "runs/further_pretraining")
    errors = capsys.readouterr().err
    assert errors == "the config further is now called further_pretraining\n"


@pytest.mark.parametrize("kind", ["run", "google"])
def test_a_checkpoint_of_any_origin_gives_its_sizes(kind, golden):
    path = golden / {"run": "v0_1_0/runs/mlm_nsp", "google": "google_bert"}[kind]
    read = load(path, weights=False)
    model = load(path)
    assert (read.config, read.params) == (model.config, {})
    assert (read.tokenizer is None) == (model.tokenizer is None)


def test_prompts_of_a_config_are_asked_of_its_own_text_only():
    tiny = ["--config", "tiny"]
    own = parse(tiny, USAGE, train_config).config
    assert "thread" in own.prompts[0]
    other = [*tiny, "--data.corpus=novel.txt"]
    assert parse(other, USAGE, train_config).config.prompts == ()
    prepared = parse([*tiny, "--data.path=prepared"], USAGE, train_config).config
    assert (prepared.data.path, prepared.data.corpus) == ("prepared", ())
    assert prepared.prompts == ()
    with_both = [*tiny, "--data.path=prepared", "--data.corpus=novel.txt"]
    both = parse(with_both, USAGE, train_config).config.data
    assert (both.path, both.corpus) == ("prepared", ("novel.txt",))
    chosen = [*other, "--prompts", "The [MASK] sank."]
    assert parse(chosen, USAGE, train_config).config.prompts == ("The [MASK] sank.",)
    with_commas = ["A cat, a [MASK], sat.", "The [MASK] sank."]
    assert parse([*tiny, "--prompts="], USAGE, train_config).config.prompts == ()
    chosen = [*other, "--prompts", *with_commas]
    assert parse(chosen, USAGE, train_config).config.prompts == (*with_commas,)
