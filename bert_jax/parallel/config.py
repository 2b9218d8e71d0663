"""Settings of a mesh. Commands read them before they import JAX."""

import dataclasses

from bert_jax.settings import setting


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Number of devices along each axis. One axis may be -1: all other devices."""

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
