"""Fixtures and guard rails for every test."""

from pathlib import Path

import jax
import pytest

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
