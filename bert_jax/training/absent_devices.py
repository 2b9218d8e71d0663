"""TPU slices and GPUs that are not there, by name, to compile for.

A TPU's compiler is libtpu, which knows the slices by their names. A GPU's is JAX's CUDA
plugin, which is told what the GPU has.
"""

import dataclasses
import os
import re
from typing import Any, ClassVar

import jax
from jax.experimental import topologies

from bert_jax.errors import UserError

GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Tpu:
    """A TPU generation.

    devices_per_chip: as jobs see them; v4 and later fuse cores. hbm_bytes: memory of one
    device. rank: dimensions of a slice's name. clock: cycles a second. hbm_speed: bytes a
    second of one device's memory. link_speed: that a chip sends, over all its links.
    estimated: whether the compiler's estimate of seconds is of use; for v4, v5e and v6e it
    gives none, for v5p one that is four times the least there can be. options: of the
    topology's description.
    """

    devices_per_chip: int
    hbm_bytes: int
    rank: int
    clock: float
    hbm_speed: float
    link_speed: float
    estimated: bool = False
    options: dict[str, str] = dataclasses.field(default_factory=dict)

    extra: ClassVar[str] = "tpu"
    compiler_options: ClassVar[dict[str, Any]] = {}

    def describe(self, name: str, count: int) -> Any:
        """The topology of ``count`` slices called ``name``."""
        options = self.options | ({"num_slices": count} if count > 1 else {})
        # libtpu would ask a Cloud VM's metadata server where it is.
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        return topologies.get_topology_desc(name, "tpu", **options)


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A model of NVIDIA GPU, from Ampere on; a slice of them is a host.

    kind: as its driver calls it. hbm_bytes: its memory. The others are what the compiler
    asks: its capability, multiprocessors and their arithmetic units, GHz, bytes a second
    of its memory, bytes of cache, of a multiprocessor's shared memory and of the largest
    block of it.
    """

    kind: str
    hbm_bytes: int
    hbm_speed: int
    capability: int
    processors: int
    units: int
    clock: float
    cache: int
    shared: int
    shared_block: int

    extra: ClassVar[str] = "gpu"
    devices_per_chip: ClassVar[int] = 1
    rank: ClassVar[int] = 1
    estimated: ClassVar[bool] = False
    # Products written with Triton are tuned on the GPU itself.
    compiler_options: ClassVar[dict[str, Any]] = {"xla_gpu_enable_triton_gemm": False}

    def describe(self, name: str, count: int) -> Any:
        """The topology of a host with as many GPUs as ``name`` says after the colon."""
        # The plugin would look for a driver.
        os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
        return topologies.get_topology_desc(
            platform="cuda",
            target_config=_GPU_TARGET.format(**dataclasses.asdict(self)),
            topology=f"{count}x1x{name.partition(':')[2]}",
        )


# XLA's GpuTargetConfigProto, with what all of these GPUs share.
_GPU_TARGET = """
platform_name: "CUDA"
device_description_str: "{kind}"
runtime_version {{ major: 12 minor: 8 }}
dnn_version_info {{ major: 9 minor: 10 }}
gpu_device_info {{
  cuda_compute_capability {{ major: {capability} }}
  core_count: {processors}
  fpus_per_core: {units}
  clock_rate_ghz: {clock}
  memory_bandwidth: {hbm_speed}
  device_memory_size: {hbm_bytes}
  l2_cache_size: {cache}
  shared_memory_per_core: {shared}
  shared_memory_per_block_optin: {shared_block}
  shared_memory_per_block: 49152
  threads_per_block_limit: 1024
  threads_per_warp: 32
  threads_per_core_limit: 2048
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}}
"""
_AMPERE = (8, 108, 64, 1.41, 41_943_040, 167_936, 166_912)
_HOPPER = (9, 132, 128, 1.98, 52_428_800, 233_472, 232_448)

# TPUs: Cloud TPU's documentation of each version, "System architecture", November 2026.
# Clocks and links of v2 and v3: Jouppi et al. (2020), of v4: Jouppi et al. (2023); other
# clocks follow from the peak and the size of the matrix units. GPUs: what their drivers
# say, as XLA has it in xla/backends/gpu/target_config/specs.
GENERATIONS: dict[str, Tpu | Gpu] = {
    "v2": Tpu(2, 8 * GIB, 2, 0.7e9, 350e9, 248e9, estimated=True),
    "v3": Tpu(2, 16 * GIB, 2, 0.94e9, 450e9, 328e9, estimated=True),
    # Without the option the compiler shows two cores a chip, which no job uses.
    "v4": Tpu(
        *(1, 32 * GIB, 3, 1.05e9, 1228e9, 300e9),
        options={"chip_config_name": "megacore"},
    ),
    "v5e": Tpu(1, 16 * GIB, 2, 1.5e9, 819e9, 200e9),
    "v5p": Tpu(1, 95 * GIB, 3, 1.75e9, 2765e9, 600e9),
    "v6e": Tpu(1, 32 * GIB, 2, 1.75e9, 1638e9, 448e9),
    "tpu7x": Tpu(2, 96 * GIB, 3, 2.2e9, 3690e9, 1200e9),
    "a100-40gb": Gpu(
        "NVIDIA A100-SXM4-40GB", 42_331_013_120, 1_555_200_000_000, *_AMPERE
    ),
    "a100-80gb": Gpu(
        "NVIDIA A100-SXM4-80GB", 85_100_068_864, 2_039_040_000_000, *_AMPERE
    ),
    "h100": Gpu("NVIDIA H100 80GB HBM3", 84_942_979_072, 3_352_320_000_000, *_HOPPER),
    "h200": Gpu(
        "NVIDIA H200 141GB HBM3e", 151_397_597_184, 4_800_000_000_000, *_HOPPER
    ),
}


@dataclasses.dataclass(frozen=True)
class Slices:
    """``count`` slices of one kind. devices: of all of them, slice by slice."""

    name: str
    generation: Tpu | Gpu
    count: int
    devices: list[jax.Device]

    @property
    def chips(self) -> int:
        """Chips over all slices."""
        return len(self.devices) // self.generation.devices_per_chip


def named_slices(name: str, count: int = 1) -> Slices:
    """The devices of ``count`` slices called ``name``, such as v2:4x4, v5p:4x4x4 or h100:8.

    They run nothing: programs can be compiled for them. Needs the wheel of libtpu, or of
    JAX's CUDA plugin.
    """
    kind, _, shape = name.partition(":")
    generation = GENERATIONS.get(kind)
    if generation is None or not re.fullmatch(r"\d+(x\d+)*", shape):
        raise UserError(
            f"--topology={name}, expected a TPU version or a GPU "
            f"({', '.join(GENERATIONS)}) and a shape, such as v2:4x4, v4:2x2x4 or h100:8"
        )
    if shape.count("x") + 1 != generation.rank:
        raise UserError(
            f"--topology={name}: slices of {kind} have {generation.rank} dimensions, "
            f"{shape} has {shape.count('x') + 1}"
        )
    if count < 1:
        raise UserError(f"--num_slices={count}, expected at least 1")
    try:
        topology = generation.describe(name, count)
    except Exception as error:  # whatever the plugin raises, of no common type
        if "not installed" in str(error) or isinstance(error, NotImplementedError):
            extra = generation.extra
            raise UserError(
                f"compiling for a {extra.upper()} needs its compiler: "
                f"pip install 'bert_jax[{extra}]'"
            ) from error
        reason = next(iter(str(error).splitlines()), "no reason given")
        raise UserError(f"--topology={name} cannot be described ({reason})") from error
    return Slices(name, generation, count, list(topology.devices))
