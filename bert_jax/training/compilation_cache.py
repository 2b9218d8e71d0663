"""Compiled programs are kept on disk: a run that was compiled before begins at once."""

import hashlib
import os
import platform
from pathlib import Path

import jax


def use_compilation_cache() -> None:
    """Keeps what takes over a second to compile in ~/.cache/bert_jax, from run to run.

    $XDG_CACHE_HOME stands for ~/.cache where it is set. Does nothing where JAX was told a
    folder of its own ($JAX_COMPILATION_CACHE_DIR). A home may be shared by machines of
    different processors, whose programs do not run on each other: each kind has a folder.
    """
    if jax.config.jax_compilation_cache_dir is not None:
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "bert_jax" / f"xla-{_processor()}"
    jax.config.update("jax_compilation_cache_dir", str(folder))


def _processor() -> str:
    """Eight digits for the processor's instruction set."""
    kind = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = [platform.processor()]
    names = ("flags", "Features")  # x86, ARM
    kind += next((line for line in lines if line.startswith(names)), lines[0])
    return hashlib.sha256(kind.encode()).hexdigest()[:8]
