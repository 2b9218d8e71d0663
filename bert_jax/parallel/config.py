"""The settings of a mesh, which a config file is read with before JAX is imported."""

import dataclasses

from bert_jax.settings import setting


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """How many devices lie along each axis; one axis may be -1, which fills up."""

    replica: int = setting(1, "slices joined by the data-center network")
    data: int = setting(
        -1, "devices of a slice that split the batch; -1: all that are left"
    )
    model: int = setting(
        1, "devices that split attention heads, feed-forward width and vocabulary"
    )
    fsdp: bool = setting(
        False, "devices along data share the memory of parameters and optimizer too"
    )
