from pathlib import Path

import jax
import pytest

from bert_jax.training.compilation_cache import use_compilation_cache


@pytest.fixture
def configured():
    """The folder that JAX is told, as it was before and after the test."""
    before = jax.config.jax_compilation_cache_dir
    yield lambda folder: jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_compilation_cache_dir", before)


def test_programs_are_kept_below_the_users_cache(configured, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    configured(None)
    use_compilation_cache()
    folder = Path(jax.config.jax_compilation_cache_dir)
    assert folder.parent == tmp_path / "bert_jax"
    assert folder.name.startswith("xla-") and len(folder.name) == 12
    configured(None)
    use_compilation_cache()
    assert Path(jax.config.jax_compilation_cache_dir) == folder


def test_a_folder_of_the_users_own_stays(configured, tmp_path):
    configured(str(tmp_path))
    use_compilation_cache()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path)
