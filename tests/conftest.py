"""Fixtures and guard rails for every test."""

from pathlib import Path

import jax
import pytest

from bert_jax.data.preparation import prepare
from bert_jax.data.vocabulary_training import train_vocabulary

GOLDEN = Path(__file__).parent / "golden"

# Eight devices stand in for a slice; a rank that is promoted silently is a bug.
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
# One compile serves many tests and many runs of the suite.
jax.config.update(
    "jax_compilation_cache_dir", str(Path(__file__).parent.parent / ".pytest_cache/xla")
)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


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
