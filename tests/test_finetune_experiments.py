"""Every fine-tuning config is whole, runs a task, and has the paper's settings."""

import ast
import dataclasses
from pathlib import Path

import pytest

from bert_jax.config_file import parse
from bert_jax.tasks.families import FAMILIES
from bert_jax.training.finetune_config import FineTuneConfig, finetune_config

FOLDER = Path(__file__).parent.parent / "experiments" / "finetune"
FILES = sorted(p for p in FOLDER.glob("*.py") if p.stem != "defaults")
GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")


def load(path, *arguments):
    settings, *_ = parse(["--config", str(path), *arguments], "usage: x")
    return settings, finetune_config(settings)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_config_says_its_data_result_and_command(path):
    text = ast.get_docstring(ast.parse(path.read_text()))
    for word in ("Data:", "Result:", "Run:", f"experiments/finetune/{path.name}"):
        assert word in text, word


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_setting_can_be_changed_and_the_task_is_built(path):
    settings, config = load(path)
    assert set(settings) == {f.name for f in dataclasses.fields(FineTuneConfig)}
    for group in ("optimizer", "model", "mesh", "features", "sweep"):
        fields = dataclasses.fields(getattr(config, group))
        assert set(settings[group]) == {field.name for field in fields}, group
    _, changed = load(path, "--config.data.max_length=77", "--config.seed=5")
    assert (changed.data.max_length, changed.seed) == (77, 5)
    task = FAMILIES[config.family](config.data)
    heads = {
        "classification": "sequence",
        "tagging": "token",
        "multiple_choice": "choice",
        "question_answering": "span",
    }
    assert task.head == heads[config.family]


def test_every_family_and_every_task_of_glue_has_a_config():
    assert {load(path)[1].family for path in FILES} == set(FAMILIES)
    assert {path.stem for path in FILES} >= set(GLUE)


@pytest.mark.parametrize("name", [*GLUE, "squad", "swag"])
def test_the_paper_s_settings(name):
    """Appendix A.3; the optimizer is that of pretraining."""
    _, config = load(FOLDER / f"{name}.py")
    assert config.batch_size in (16, 32)
    assert config.optimizer.learning_rate in (5e-5, 3e-5, 2e-5)
    assert config.epochs == 3
    assert config.optimizer.warmup == 0.1
    assert (config.optimizer.weight_decay, config.optimizer.clip_norm) == (0.01, 1.0)
    assert not config.optimizer.bias_correction
    assert (config.model.hidden_dropout, config.model.attention_dropout) == (0.1, 0.1)
    grid = config.sweep
    assert sorted(grid.batch_size) == [16, 32]
    assert sorted(grid.learning_rate) == [2e-5, 3e-5, 5e-5]
    assert sorted(grid.epochs) == [3, 4]


def test_the_windows_of_squad():
    """run_squad.py."""
    for name, version_2 in (("squad", False), ("squad2", True)):
        data = load(FOLDER / f"{name}.py")[1].data
        assert (data.max_length, data.stride, data.max_question_length) == (
            384,
            128,
            64,
        )
        assert (data.max_answer_length, data.n_best) == (30, 20)
        assert data.version_2 is version_2
