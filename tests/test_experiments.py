"""Every experiment describes itself, and has the paper's numbers."""

import ast
import json
import math
import re
from pathlib import Path

import pytest

from bert_jax.commands import cli, finetune, train
from bert_jax.commands import study as study_command
from bert_jax.commands.config_file import parse
from bert_jax.data.corpus import read_documents
from bert_jax.data.phases import Phase
from bert_jax.errors import UserError
from bert_jax.interop.checkpoint import parameter_shapes
from bert_jax.interop.config_json import exported_config, read_config
from bert_jax.model.config import BertConfig
from bert_jax.settings import describe, differences, to_dict
from bert_jax.training.config import DataConfig, train_config
from bert_jax.training.study import Study, flops

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
FILES = sorted(EXPERIMENTS.glob("*.py"))
STUDIES = sorted(EXPERIMENTS.glob("ablations/*.py"))


# A checkpoint with 19 positions for the experiment of further pretraining.
CHECKPOINT = Path(__file__).parent / "golden/huggingface/pretraining"
FURTHER = f"--init_from={CHECKPOINT}", "--model.max_positions=128"


def load(name, *flags):
    flags = [*FURTHER, *flags] if name == "further_pretraining.py" else flags
    line = ["--config", f"{EXPERIMENTS}/{name}", *flags]
    return parse(line, "bert_jax train", train_config).config


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_an_experiment_describes_model_data_result_and_command(path):
    text = ast.get_docstring(ast.parse(path.read_text()))
    for word in (
        "What:",
        "On:",
        "Result:",
        "Run:",
        f"bert_jax train --config {path.stem}",
    ):
        assert word in text, word
    assert load(path.name).total_steps > 0


@pytest.mark.parametrize("path", STUDIES, ids=lambda p: p.stem)
def test_a_study_describes_model_data_result_and_command(path, tmp_path, monkeypatch):
    monkeypatch.setattr(DataConfig, "check_text", lambda self: None)
    text = ast.get_docstring(ast.parse(path.read_text()))
    for word in ("What:", "On:", "Result:", "Run:", f"{path.stem}:DATA"):
        assert word in text, word
    study, folder = study_command._open(f"{path}:{tmp_path}")
    assert folder == Path("runs", path.stem)
    assert study_command._open(f"{path.stem}:{tmp_path}")[0] == study
    configs = Study(study, tmp_path).configs
    works = [configs[name] for name in configs if name.startswith("pretrain/")]
    different = {repr(variant.pretrain) for variant in study.variants.values()}
    assert len(works) == 3 * len(different)
    if study.equal_compute:
        most, least = (f(map(flops, works)) for f in (max, min))
        assert most / least < 1.002


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_setting_can_be_changed_from_the_command_line(path):
    """Sets each setting to its value, even if the file does not name it."""
    config = load(path.name)
    flags = []
    for line in describe(config):
        name, _, value = line.partition("  # ")[0].partition(" = ")
        # Tuples are written as tuples, and strings without quotes.
        plain = value
        if value != "inf":
            plain = ast.literal_eval(value)
        flags.append(f"--{name}={plain if isinstance(plain, str) else value}")
    assert len(flags) > 50
    assert load(path.name, *flags) == config
    changed = load(path.name, "--data.examples.mask_rate=0.2", *flags[:1])
    assert changed.data.examples.mask_rate == 0.2


@pytest.mark.parametrize(
    ("name", "model"), [("base", BertConfig.base()), ("large", BertConfig.large())]
)
def test_experiments_have_the_papers_numbers(name, model):
    config = load(f"{name}.py")
    optimizer, (phase,) = config.optimizer, config.phases
    assert config.model == model
    assert (model.hidden_dropout, model.attention_dropout) == (0.1, 0.1)
    assert (phase.batch_size, phase.sequence_length, phase.steps) == (256, 512, 10**6)
    assert (optimizer.learning_rate, optimizer.warmup_steps) == (1e-4, 10_000)
    assert (optimizer.weight_decay, optimizer.clip_norm) == (0.01, 1.0)
    assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon) == (0.9, 0.999, 1e-6)
    assert not optimizer.bias_correction


@pytest.mark.parametrize(
    ("name", "millions", "learning_rate", "decay", "warmup", "steps"),
    [
        ("modernbert.py", 149, 8e-4, 1e-5, 636, 364_304),
        ("modernbert.py:large", 395, 5e-4, 1e-5, 424, 364_304),
        ("modernbert.py:ettin_17m", 17, 3e-3, 3e-4, 848, 360_277),
        ("modernbert.py:ettin_32m", 32, 3e-3, 3e-4, 848, 360_277),
        ("roberta.py", 124, 6e-4, 6e-6, 24_000, 500_000),
        ("roberta.py:large", 354, 4e-4, 4e-6, 30_000, 500_000),
    ],
)
def test_later_encoders_have_the_numbers_of_their_sources(
    name, millions, learning_rate, decay, warmup, steps
):
    """millions: of the encoder's parameters. decay: of a step with the peak rate."""
    config = load(name)
    optimizer, (phase,) = config.optimizer, config.phases
    shapes = parameter_shapes(config.model, outputs=0)
    parts = [shape for path, shape in shapes.items() if path.startswith("bert/e")]
    assert round(sum(map(math.prod, parts)) / 1e6) == millions
    assert (optimizer.learning_rate, optimizer.warmup_steps) == (learning_rate, warmup)
    assert optimizer.learning_rate * optimizer.weight_decay == pytest.approx(decay)
    assert (optimizer.beta2, optimizer.epsilon) == (0.98, 1e-6)
    assert phase.steps == steps
    if name.startswith("modernbert"):
        assert (optimizer.name, optimizer.schedule) == ("stable_adamw", "wsd_sqrt")
        assert optimizer.decay_steps == 10_596  # 50 billion tokens
    exported = exported_config(config.model, "pretraining", ["mlm"])
    assert exported.model_type == config.model.model_type
    assert not config.data.examples.next_sentence


def test_each_option_changes_its_setting():
    mini = load("mini.py")
    with pytest.raises(UserError, match="expected one of") as error:
        load("options.py:?")
    names = ast.literal_eval(re.search(r"\[.*\]", str(error.value))[0])
    configs = {name: load(f"options.py:{name}") for name in names}
    for name, config in configs.items():
        other = [d[0] for d in differences(to_dict(mini), to_dict(config))]
        # Mini has the paper's mix.
        assert bool(other) == (name != "mix_80_10_10"), name
        sizes = re.fullmatch(r"(\d+)x(\d+)x(\d+)", name)
        if sizes:
            model = config.model
            model_sizes = model.num_layers, model.hidden_size, model.num_heads
            assert model_sizes == tuple(map(int, sizes.groups()))
            assert model.intermediate_size == 4 * model.hidden_size
    examples = configs["mix_80_20_0"].data.examples
    assert (examples.mask_share, examples.random_share) == (0.8, 0.0)
    assert configs["mask_40"].phases[0].max_predictions == round(0.4 * 128 + 0.5)
    assert configs["sinusoidal"].model.positions == "sinusoidal"
    assert configs["muon"].optimizer.name == "muon"


def test_two_phases_share_one_schedule():
    config = load("base.py:two_phase")
    lengths = [(phase.steps, phase.sequence_length) for phase in config.phases]
    assert lengths == [(900_000, 128), (100_000, 512)]
    assert config.total_steps == 10**6


@pytest.mark.long  # reads the whole text
def test_tiny_fills_in_sentences_that_it_did_not_train_on():
    config = load("tiny.py")
    assert len(config.prompts) >= 3
    corpus = [s for d in read_documents(config.data.corpus) for s in d]
    for prompt in config.prompts:
        before, after = map(re.escape, prompt.rstrip(".").split("[MASK]"))
        pattern = re.compile(f"{before}.*{after}", re.IGNORECASE)
        assert not any(pattern.search(sentence) for sentence in corpus), prompt


def test_what_pretraining_is_worth_has_the_model_of_the_record():
    """models/english has the parameters of one of the study's variants."""
    study, _ = study_command._open(f"{EXPERIMENTS}/ablations/pretrained.py:data")
    record = load("speedrun.py")
    english = EXPERIMENTS.parent / "models/english/config.json"
    assert read_config(english) == record.model
    for variant in study.variants.values():
        assert BertConfig(**variant.pretrain["model"]) == record.model


def points_above_baseline(nsp_accuracy, nsp_majority):
    """Points above the baseline, less two standard errors of 3,200 pairs."""
    error = (nsp_accuracy * (1 - nsp_accuracy) / 3200) ** 0.5
    return 100 * (nsp_accuracy - nsp_majority - 2 * error)


@pytest.mark.parametrize(
    "name, dtype", [("tiny_seeds", "float32"), ("tiny_seeds_bfloat16", "bfloat16")]
)
def test_tiny_learns_both_objectives_with_every_seed(name, dtype):
    path = EXPERIMENTS.parent / f"results/{name}.json"
    published = json.loads(path.read_text())
    *seeds, (_, mlm_majority, nsp_majority) = published["rows"]
    names = {f"seed {seed}, {dtype}" for seed in range(5)}
    assert {name for name, _, _ in seeds} == names
    for _, mlm, nsp in seeds:
        assert mlm > mlm_majority + 20
        assert points_above_baseline(nsp / 100, nsp_majority / 100) > 5


def test_the_published_run_of_tiny_is_of_its_recipe():
    config = to_dict(load("tiny.py"))
    assert config["eval_batches"] * config["phases"][-1]["batch_size"] == 3200

    folder = EXPERIMENTS / "references/tiny"
    run = json.loads((folder / "config.json").read_text())
    phases = [to_dict(Phase(**phase)) for phase in run["phases"]]
    assert phases == [dict(phase) for phase in config["phases"]]
    for part in ("model", "optimizer"):
        assert run[part].items() <= config[part].items()
    assert run["data"]["examples"].items() <= config["data"]["examples"].items()
    lines = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["split"] == "eval"][-1]
    assert last["step"] == sum(phase["steps"] for phase in run["phases"])
    assert points_above_baseline(last["nsp_accuracy"], last["nsp_majority"]) > 5


@pytest.mark.parametrize("name", ["base.py", "finetune/glue.py:mrpc"])
def test_the_command_prints_every_setting_and_ends(name, capsys, monkeypatch):
    command = finetune if "finetune" in name else train
    monkeypatch.delattr(cli, "start")  # start() would initialise devices
    line = ["--config", f"{EXPERIMENTS}/{name}", "--compute.dtype=float32"]
    with pytest.raises(SystemExit):
        command.main([*line, "--print_config"])
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("compute.dtype = 'float32'  # ") for line in lines) == 1
    assert all(re.fullmatch(r"[\w.\[\]]+ = .+  # .{6,}", line) for line in lines)
    with pytest.raises(UserError, match=r"did you mean --compute\.dtype"):
        command.main([*line, "--model.dtype=bfloat16"])
