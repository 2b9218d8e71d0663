"""The device for which a computation is traced, and the dtypes in which it is fast."""

import functools
import logging
import math
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

_logger = logging.getLogger(__name__)

# The axes of a mesh that divide the rows of a batch.
ROW_AXES = ("replica", "data")


def platform() -> str:
    """cpu, gpu or tpu: the platform of the current mesh, or of the default device."""
    mesh = jax.sharding.get_abstract_mesh()
    return jax.default_backend() if mesh.empty else mesh.abstract_device.platform


def row_parts() -> int:
    """The number of parts into which devices divide the rows of a batch."""
    mesh = jax.sharding.get_abstract_mesh()
    return math.prod(mesh.shape.get(axis, 1) for axis in ROW_AXES)


def has_own_rows() -> bool:
    """Whether arrays have the rows of one device, not of the whole batch.

    This is the case within parallel.mesh.summed_over_devices.
    """
    return "data" in jax.sharding.get_abstract_mesh().manual_axes


def on_one_cpu() -> bool:
    """Whether a single CPU device computes the arrays."""
    mesh = jax.sharding.get_abstract_mesh()
    devices = mesh.size
    if has_own_rows():
        devices //= row_parts()
    return platform() == "cpu" and (mesh.empty or devices == 1)


def is_plain(setting: str) -> bool:
    """Whether to compute the plain formula.

    setting: ComputeConfig.attention_impl or dropout_impl. "auto" is a faster form on CPUs,
    where its speed was measured, and "plain" on all other devices.
    """
    return setting == "plain" or (setting == "auto" and platform() != "cpu")


def drawn_by_rows(
    draw: Callable[[jax.Array, tuple[int, ...]], jax.Array],
    key: jax.Array,
    shape: tuple[int, ...],
) -> jax.Array:
    """Random numbers of a shape. Each device draws only its own rows of the batch.

    The compiler would let each device draw all rows, which happens here only if the number
    of devices does not divide the number of rows.

    draw: function of a seed, uint32 (4,), and a shape. The seed of a device is the key plus
      the device's number, so the result depends on how many devices share the batch.
    """
    # A key of rbg has four words, a key of threefry two.
    seed = jnp.resize(jax.random.key_data(key), 4)
    rows, *rest = shape

    def own_rows(seed: jax.Array, rows: int) -> jax.Array:
        number = jax.lax.axis_index(ROW_AXES).astype(seed.dtype)
        return draw(seed + number, (rows, *rest))

    if has_own_rows():
        return own_rows(seed, rows)
    parts = row_parts()
    if parts == 1 or rows % parts:
        return draw(seed, shape)
    divided = jax.shard_map(
        functools.partial(own_rows, rows=rows // parts),
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(ROW_AXES),
        check_vma=False,
    )
    return divided(seed)


def drawn_for_all_rows(
    draw: Callable[[tuple[int, ...]], jax.Array], shape: tuple[int, ...]
) -> jax.Array:
    """``draw(shape)``, which does not depend on how many devices share the batch.

    A device that has only its own rows draws all rows of the batch, and returns its own.
    """
    if not has_own_rows():
        return draw(shape)
    rows, *rest = shape
    drawn = draw((rows * row_parts(), *rest))
    first = jax.lax.axis_index(ROW_AXES) * rows
    return jax.lax.dynamic_slice_in_dim(drawn, first, rows)


def capability() -> float:
    """The compute capability of an NVIDIA GPU; 0 for other devices.

    GPUs of another machine, for which training.estimate compiles, count as 8.0 (Ampere).
    """
    device, mesh = jax.devices()[0], jax.sharding.get_abstract_mesh()
    if not mesh.empty and mesh.abstract_device.device_kind != device.device_kind:
        return 8.0 if platform() == "gpu" else 0.0
    try:
        return float(getattr(device, "compute_capability", 0))
    except ValueError:  # the name of an AMD GPU
        return 0.0


def activation_dtype(setting: str) -> jnp.dtype:
    """The dtype of the activations. setting: ComputeConfig.dtype.

    "auto" is bfloat16 if its products are faster than products of float32: on TPUs, on
    NVIDIA GPUs from Ampere on, on CPUs with AMX, and on AMD CPUs from Zen 4 on. Otherwise
    it is float32.
    """
    if setting != "auto":
        return jnp.dtype(setting)
    is_fast = {
        "tpu": lambda: True,
        "gpu": lambda: capability() >= 8,
        "cpu": _cpu_is_fast,
    }
    name = "bfloat16" if is_fast[platform()]() else "float32"
    _logger.debug("dtype auto: %s", name)
    return jnp.dtype(name)


def _cpu_is_fast() -> bool:
    """Whether bfloat16 products are faster than float32 products on this processor.

    AVX512-BF16 without AMX is faster on AMD's and slower on Intel's (benchmarks/LOG.md).
    """
    words = _cpu_words()
    return "amx_bf16" in words or {"AuthenticAMD", "avx512_bf16"} <= words


@functools.cache
def _cpu_words() -> frozenset[str]:
    """Vendor and flags of the first processor on Linux. Empty on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    return frozenset(text.partition("\n\n")[0].split())
