"""Named TPU slices: their devices, for compiling without owning one."""

import dataclasses
import os
import re

import jax
from jax.experimental import topologies

from bert_jax.errors import UserError

GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Generation:
    """A TPU generation. devices_per_chip: as jobs see them; v4 and later fuse cores.

    hbm_bytes: memory of one device. rank: dimensions of a slice's name. estimated: whether
    the compiler's estimate of seconds is of use; for v4, v5e and v6e it gives none, for v5p
    one that is four times the least there can be. options: of the topology's description.
    """

    devices_per_chip: int
    hbm_bytes: int
    rank: int
    estimated: bool = False
    options: dict[str, str] = dataclasses.field(default_factory=dict)


# Cloud TPU's documentation of each version, "System architecture", November 2026.
GENERATIONS = {
    "v2": Generation(2, 8 * GIB, 2, estimated=True),
    "v3": Generation(2, 16 * GIB, 2, estimated=True),
    # Without it the compiler shows two cores a chip, which no job uses.
    "v4": Generation(1, 32 * GIB, 3, options={"chip_config_name": "megacore"}),
    "v5e": Generation(1, 16 * GIB, 2),
    "v5p": Generation(1, 95 * GIB, 3),
    "v6e": Generation(1, 32 * GIB, 2),
    "tpu7x": Generation(2, 96 * GIB, 3),
}


@dataclasses.dataclass(frozen=True)
class Slices:
    """``count`` slices of one kind. devices: of all of them, slice by slice."""

    name: str
    generation: Generation
    count: int
    devices: list[jax.Device]

    @property
    def chips(self) -> int:
        """Chips over all slices."""
        return len(self.devices) // self.generation.devices_per_chip


def named_slices(name: str, count: int = 1) -> Slices:
    """The devices of ``count`` slices called ``name``, such as v2:4x4 or v5p:4x4x4.

    They run nothing: programs can be compiled for them. Needs the libtpu wheel.
    """
    kind, _, shape = name.partition(":")
    generation = GENERATIONS.get(kind)
    if generation is None or not re.fullmatch(r"\d+(x\d+)*", shape):
        raise UserError(
            f"--topology={name}, expected a TPU version ({', '.join(GENERATIONS)}) and a "
            "shape, such as v2:4x4 or v4:2x2x4"
        )
    if shape.count("x") + 1 != generation.rank:
        raise UserError(
            f"--topology={name}: slices of {kind} have {generation.rank} dimensions, "
            f"{shape} has {shape.count('x') + 1}"
        )
    if count < 1:
        raise UserError(f"--num_slices={count}, expected at least 1")
    options = generation.options | ({"num_slices": count} if count > 1 else {})
    try:
        # libtpu would ask a Cloud VM's metadata server where it is.
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        topology = topologies.get_topology_desc(name, "tpu", **options)
    except Exception as error:  # whatever the plugin raises, of no common type
        if "not installed" in str(error):
            raise UserError(
                "compiling for a TPU needs its compiler: pip install 'bert_jax[tpu]'"
            ) from error
        reason = next(iter(str(error).splitlines()), "no reason given")
        raise UserError(f"--topology={name} cannot be described ({reason})") from error
    return Slices(name, generation, count, list(topology.devices))
