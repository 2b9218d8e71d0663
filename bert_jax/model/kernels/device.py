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
    GPUs from Ampere on, on CPUs with AMX and on AMD's since Zen 4. Elsewhere it is
    float32.
    """
    if setting != "auto":
        return jnp.dtype(setting)
    has_units = {
        "tpu": lambda: True,
        "gpu": lambda: capability() >= 8,
        "cpu": _cpu_has_units,
    }
    name = "bfloat16" if has_units[platform()]() else "float32"
    _log_once(name)
    return jnp.dtype(name)


@functools.cache
def _log_once(name: str) -> None:
    _logger.info("dtype auto: %s", name)


def _cpu_has_units() -> bool:
    """Whether bfloat16 products are faster than float32's on this processor.

    Without AMX they were on AMD (1.6 times, a step of 4 layers of width 256), but not on
    Intel (0.67 times), though both have AVX512-BF16: docs/log.md.
    """
    vendor, flags = _processor()
    amd = vendor == "AuthenticAMD" and "avx512_bf16" in flags
    return amd or "amx_bf16" in flags


@functools.cache
def _processor() -> tuple[str, frozenset[str]]:
    """Maker and instruction sets of the processor as Linux names them; else nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    pairs = [line.partition(":") for line in reversed(lines)]
    about = {name.strip(): value.strip() for name, _, value in pairs}  # the first wins
    return about.get("vendor_id", ""), frozenset(about.get("flags", "").split())
