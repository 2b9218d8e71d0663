"""The device mesh: axes replica (between slices), data (batch) and model."""

import dataclasses

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bert_jax.errors import UserError

AXES = ("replica", "data", "model")


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """How many devices lie along each axis; one axis may be -1, which fills up.

    replica: slices joined by the data-center network; data: the batch within a slice;
    model: attention heads, feed-forward width and vocabulary.
    """

    replica: int = 1
    data: int = -1
    model: int = 1


def make_mesh(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """Lays ``devices`` (default: all) out as (replica, data, model)."""
    devices = jax.devices() if devices is None else devices
    shape = [config.replica, config.data, config.model]
    if shape.count(-1) > 1 or any(size < 1 and size != -1 for size in shape):
        raise UserError(
            f"mesh {dict(zip(AXES, shape, strict=True))}: expected positive sizes and "
            "at most one -1; set --config.mesh.replica, .data and .model"
        )
    known = int(np.prod([size for size in shape if size != -1]))
    filled = [len(devices) // known if size == -1 else size for size in shape]
    if int(np.prod(filled)) != len(devices):
        raise UserError(
            f"mesh {dict(zip(AXES, shape, strict=True))} does not use exactly the "
            f"{len(devices)} devices; set --config.mesh.replica, .data and .model"
        )
    # make_mesh defaults to Explicit axes, which put shardings into the types of every
    # array; here the compiler propagates them from the rules and the batch.
    return jax.make_mesh(
        tuple(filled), AXES, axis_types=(AxisType.Auto,) * 3, devices=devices
    )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows are split over replica and data; devices along model see the same rows."""
    return NamedSharding(mesh, PartitionSpec(("replica", "data")))


def put_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Puts this host's rows on its devices, as its part of the global batch."""
    sharding = batch_sharding(mesh)
    return {
        name: jax.make_array_from_process_local_data(sharding, rows)
        for name, rows in batch.items()
    }


def batch_divisor(mesh: Mesh) -> int:
    """Into how many parts the rows of a batch are split."""
    return mesh.shape["replica"] * mesh.shape["data"]


def check_batch_size(batch_size: int, mesh: Mesh, setting: str) -> None:
    """Raises when the devices do not divide ``batch_size``; ``setting`` names it."""
    parts = batch_divisor(mesh)
    if batch_size % parts:
        raise UserError(
            f"{setting}={batch_size} is not a multiple of the {parts} devices that "
            f"share a batch; set --config.{setting} to a multiple of {parts}"
        )
