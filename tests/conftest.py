"""Fixtures and guard rails for every test."""

import json
import os
from pathlib import Path

import jax
import pytest

from bert_jax.data.preparation import prepare
from bert_jax.data.vocabulary_training import train_vocabulary

GOLDEN = Path(__file__).parent / "golden"

# A run of 14 steps in two phases, small enough for seconds.
SMALL = """
from ml_collections import ConfigDict

def get_config():
    return ConfigDict(dict(
        model=dict(vocab_size={vocab_size}, hidden_size=16, num_layers=1, num_heads=2,
                   intermediate_size=32, max_positions=32, dtype="float32",
                   hidden_dropout=0.1, attention_dropout=0.1),
        data=dict(path="{store}", holdout=0.2, threads=1, prefetch=2, packing=False,
                  examples=dict(short_sequence_rate=0.1)),
        optimizer=dict(learning_rate=1e-3, warmup_steps=4),
        phases=(
            ConfigDict(dict(steps=9, sequence_length=16, batch_size=8,
                            max_predictions=3)),
            ConfigDict(dict(steps=5, sequence_length=32, batch_size=8,
                            max_predictions=5)),
        ),
        mesh=dict(data=-1, model=1, fsdp=False),
        seed=3, log_every=2, eval_every=6, eval_batches=2, checkpoint_every=5,
        keep_checkpoints=2, prompts=("the [MASK] of the sea",),
    ))
"""

# What depends on the clock, or on which steps a process has timed.
TIMINGS = ("tokens_per_second", "mfu", "data_wait", "padding")

# Eight devices stand in for a slice; a rank that is promoted silently is a bug.
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
# One compile serves many tests, processes and runs of the suite.
CACHE = str(Path(__file__).parent.parent / ".pytest_cache/xla")
os.environ["JAX_COMPILATION_CACHE_DIR"] = CACHE
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.5"
jax.config.update("jax_compilation_cache_dir", CACHE)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


# Files that take minutes begin first, so that no worker ends with one of them alone.
LONGEST = ("test_distributed.py", "test_train.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Orders the files; xdist hands them out in this order."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of reference outputs of the original code."""
    return GOLDEN


@pytest.fixture(scope="session")
def small_store(tmp_path_factory, golden) -> tuple[Path, int]:
    """A store of a part of Moby Dick, and the size of its vocabulary."""
    text = (golden / "pretraining_data" / "moby_dick_sentences.txt").read_text()
    directory = tmp_path_factory.mktemp("store")
    (directory / "text.txt").write_text("\n\n".join(text.split("\n\n")[:30]))
    sentences = (directory / "text.txt").read_text().split("\n")
    tokenizer = train_vocabulary(sentences, 600)
    prepare([str(directory / "text.txt")], tokenizer, directory / "store", workers=1)
    return directory / "store", tokenizer.vocab_size


@pytest.fixture(scope="session")
def config_file(small_store, tmp_path_factory) -> Path:
    """A config of a run of 14 steps on ``small_store``."""
    path = tmp_path_factory.mktemp("config") / "small.py"
    directory, vocab_size = small_store
    path.write_text(SMALL.format(store=directory, vocab_size=vocab_size))
    return path


@pytest.fixture(scope="session")
def one_phase_of(config_file, tmp_path_factory):
    """A function of a phase's number: the file of a config with that phase alone."""

    def write(number: int) -> Path:
        path = tmp_path_factory.mktemp("config") / "one_phase.py"
        one = f"""
both_phases = get_config

def get_config():
    config = both_phases()
    config.phases = config.phases[{number}:{number + 1}]
    return config
"""
        path.write_text(config_file.read_text() + one)
        return path

    return write


@pytest.fixture(scope="session")
def metric_lines():
    """A function of a workdir: its metrics.jsonl without what depends on the clock."""

    def read(workdir: Path) -> list[dict]:
        text = (workdir / "metrics.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        return [{k: v for k, v in x.items() if k not in TIMINGS} for x in lines]

    return read
