"""The device mesh: axes replica (between slices), data (batch) and model."""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bert_jax.errors import UserError, counted
from bert_jax.model.config import MeshConfig
from bert_jax.model.device import ROW_AXES
from bert_jax.parallel.sharding import ACTIVATIONS, WITHOUT_ROWS
from bert_jax.unstable import mesh_utils

AXES = (*ROW_AXES, "model")


def make_mesh(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """Lays ``devices`` (default: all) out as (replica, data, model)."""
    devices = jax.devices() if devices is None else devices
    shape = [config.replica, config.data, config.model]
    known = [size for size in shape if size != -1]
    rest = len(devices) // max(math.prod(known), 1)
    filled = [rest if size == -1 else size for size in shape]
    number = slices(devices)
    wrong = len(known) < 2 or min(filled) < 1 or math.prod(filled) != len(devices)
    if wrong or number not in (1, filled[0]):
        raise UserError(
            f"mesh {dict(zip(AXES, shape, strict=True))} does not use exactly the "
            f"{len(devices)} devices of {counted(number, 'slice')}; set mesh.replica to "
            "the number of slices, mesh.data and mesh.model; one may be -1 for the rest"
        )
    options = {"allow_split_physical_axes": True}
    if number == 1:
        grid = mesh_utils.create_device_mesh(filled, devices, **options)
    else:
        parts = (1, *filled[1:]), (number, 1, 1)  # of a slice; of all slices
        grid = mesh_utils.create_hybrid_device_mesh(*parts, devices, **options)
    # The compiler propagates shardings from the rules and the batch. Explicit axes would
    # put shardings into the types of all arrays.
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 3)


def whole_mesh() -> Mesh:
    """All devices, each of which computes a part of a batch."""
    return make_mesh(MeshConfig(replica=slices(jax.devices())))


def slices(devices: list[jax.Device]) -> int:
    """Number of TPU slices; 1 for other devices."""
    # XLA gives the GPUs of each host a slice_index of their own. Hosts are not slices.
    if devices[0].platform != "tpu":
        return 1
    return len({getattr(device, "slice_index", 0) for device in devices})


def traced_on(mesh: Mesh, function: Callable) -> Callable:
    """``function``, traced with ``mesh`` and the rules of ACTIVATIONS.

    Within it ``split`` constrains activations, and dropout, products and attention kernels
    see how many devices share the rows.
    """

    def traced(*args, **kwargs):
        with (
            jax.sharding.use_abstract_mesh(mesh.abstract_mesh),
            nn.logical_axis_rules(ACTIVATIONS),
        ):
            return function(*args, **kwargs)

    # Profiles show the name. A partial has the name of its function.
    traced.__name__ = getattr(function, "func", function).__name__
    return traced


def summed_over_devices(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of (batch, *whole), computed by each device for its rows, and summed.

    Call it under :func:`traced_on`. The compiler would add up the devices' parts of each
    array immediately, and in each pass of a loop. Here ``function`` adds up its own parts
    first, and then the devices exchange each array of its result once, in its dtype.

    batch: arrays of rows. whole: arrays that the devices along replica and data have whole.
    The compiler still splits arrays over the devices along model.
    """

    def own_rows(batch: Any, *whole: Any) -> Any:
        with nn.logical_axis_rules(WITHOUT_ROWS):
            return jax.lax.psum(function(batch, *whole), ROW_AXES)

    def summed(batch: Any, *whole: Any) -> Any:
        divided = jax.shard_map(
            own_rows,
            in_specs=(PartitionSpec(ROW_AXES), *[PartitionSpec()] * len(whole)),
            out_specs=PartitionSpec(),
            axis_names=set(ROW_AXES),
            check_vma=False,
        )
        return divided(batch, *whole)

    return summed


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows are split over replica and data; devices along model see the same rows."""
    return NamedSharding(mesh, PartitionSpec(ROW_AXES))


def process_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """Rows of the global batch on the devices of this process, ascending.

    Processes with devices along 'model' have the same rows.
    """
    places = batch_sharding(mesh).addressable_devices_indices_map((batch_size,))
    rows = np.arange(batch_size)
    return np.unique(np.concatenate([rows[place] for place in places.values()]))


def put_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Puts the rows of this process, see process_rows(), on its devices.

    Returns the global batch. If 'model' spans several processes, their common rows are in
    the batch only once.
    """
    sharding, parts = batch_sharding(mesh), batch_divisor(mesh)
    if jax.process_count() == 1:  # one transfer for all arrays
        return jax.device_put(batch, sharding)
    local_parts = len(process_rows(mesh, parts))
    # With several processes JAX treats this transfer as an implicit one.
    with jax.transfer_guard("allow"):
        return {
            name: jax.make_array_from_process_local_data(
                sharding, rows, (len(rows) * parts // local_parts, *rows.shape[1:])
            )
            for name, rows in batch.items()
        }


def steps_ahead(mesh: Mesh) -> int:
    """How many steps may be started before the host waits for one.

    Two on accelerators, so that the device never idles and the batches need little memory.
    None on CPUs, because a step allocates its buffers when it starts: a run of BASE, 8 x
    128, needs 2.6 GiB instead of 3.7 GiB.
    """
    return 0 if mesh.devices.flat[0].platform == "cpu" else 2


def batch_divisor(mesh: Mesh) -> int:
    """Number of parts that the rows of a batch are split into."""
    return mesh.shape["replica"] * mesh.shape["data"]


def check_batch_size(
    batch_size: int, mesh: Mesh, setting: str, accumulation: int = 1
) -> None:
    """Raises UserError unless all devices have equally many rows in each microbatch.

    setting: name of the batch size. accumulation: microbatches of a step.
    """
    parts = batch_divisor(mesh) * accumulation
    if batch_size % parts:
        raise UserError(
            f"{setting}={batch_size} is not a multiple of {parts}, the number of devices "
            "that share a batch times accumulation"
        )
