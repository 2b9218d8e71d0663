"""Every fine-tuning experiment runs a task, and has the paper's settings."""

import ast
from pathlib import Path

import pytest

from bert_jax.commands.config_file import parse
from bert_jax.errors import UserError
from bert_jax.tasks.families import FAMILIES
from bert_jax.training.config import finetune_config

FOLDER = Path(__file__).parent.parent / "experiments" / "finetune"
FILES = sorted(FOLDER.glob("*.py"))
GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
ARGUMENTS = {
    "glue": GLUE,
    "sick": ("entailment", "relatedness"),
    "squad": ("v1", "v2"),
    "sentence_vectors": ("sick", "stsb", "table"),
    "conll2003": ("", "features"),
    "wnut17": ("", "features"),
}
CONFIGS = [
    f"{path.name}:{argument}".rstrip(":")
    for path in FILES
    for argument in ARGUMENTS.get(path.stem, ("",))
]


def load(name, *arguments):
    line = ["--config", f"{FOLDER}/{name}", *arguments]
    return parse(line, "bert_jax finetune", finetune_config).config


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_config_describes_data_result_and_command(path):
    text = ast.get_docstring(ast.parse(path.read_text()))
    for word in ("Data:", "Result:", "Run:", "bert_jax finetune --config "):
        assert word in text, word


@pytest.mark.parametrize("name", CONFIGS)
def test_every_setting_can_be_changed_and_the_task_is_built(name):
    config = load(name)
    changed = load(
        name,
        "--data.max_length=77",
        "--seed=5",
        "--sweep.seeds=(3, 4)",
        "--compute.dtype=bfloat16",
    )
    assert (changed.data.max_length, changed.seed) == (77, 5)
    assert (changed.sweep.seeds, changed.compute.dtype) == ((3, 4), "bfloat16")
    task = FAMILIES[config.family](config.data)
    heads = {
        "classification": "sequence",
        "multi_label": "sequence",
        "sentence_vectors": "mean",
        "tagging": "token",
        "multiple_choice": "choice",
        "question_answering": "span",
    }
    assert task.head == heads[config.family]


def test_every_family_has_a_config():
    assert {load(name).family for name in CONFIGS} == set(FAMILIES)


@pytest.mark.parametrize(
    "name",
    ["glue.py", "glue.py:ax", "squad.py:v3", "sick.py:x", "wnut17.py:x"],
)
def test_an_unknown_argument_of_a_config_is_refused(name):
    with pytest.raises(UserError, match="expected"):
        load(name)


@pytest.mark.parametrize(
    "name", [*(f"glue.py:{task}" for task in GLUE), "squad.py", "swag.py"]
)
def test_experiments_have_the_papers_settings(name):
    """Appendix A.3. The optimizer is the same as in pretraining."""
    config = load(name)
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


def test_squad_has_the_originals_windows():
    """As in run_squad.py."""
    for name, version_2 in (("squad.py", False), ("squad.py:v2", True)):
        data = load(name).data
        assert (data.max_length, data.stride, data.max_question_length) == (
            384,
            128,
            64,
        )
        assert (data.max_answer_length, data.n_best) == (30, 20)
        assert data.version_2 is version_2
