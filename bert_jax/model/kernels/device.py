"""The device that a computation is traced for, and what it is good at."""

import functools
import logging
from pathlib import Path

import jax
import jax.numpy as jnp

_logger = logging.getLogger(__name__)


def platform() -> str:
    """cpu, gpu or tpu: of the mesh in use, or of the devices at hand."""
    mesh = jax.sharding.get_abstract_mesh()
    return jax.default_backend() if mesh.empty else mesh.abstract_device.platform


def capability() -> float:
    """The compute capability of an NVIDIA GPU, 0 of other devices."""
    try:
        return float(getattr(jax.devices()[0], "compute_capability", 0))
    except ValueError:  # AMD's are names
        return 0.0


def activation_dtype(setting: str) -> jnp.dtype:
    """The dtype that ``setting``, ComputeConfig.dtype, stands for on this device.

    "auto" is bfloat16 where matrices of it have units of their own: on TPUs, on NVIDIA
    GPUs from Ampere on, and on CPUs with AMX. Elsewhere it is float32.
    """
    if setting != "auto":
        return jnp.dtype(setting)
    has_units = {
        "tpu": lambda: True,
        "gpu": lambda: capability() >= 8,
        "cpu": lambda: "amx_bf16" in _cpu_flags(),
    }
    name = "bfloat16" if has_units[platform()]() else "float32"
    _log_once(name)
    return jnp.dtype(name)


@functools.cache
def _log_once(name: str) -> None:
    _logger.info("dtype auto: %s", name)


@functools.cache
def _cpu_flags() -> frozenset[str]:
    """The processor's instruction sets as Linux names them; none elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.split())
