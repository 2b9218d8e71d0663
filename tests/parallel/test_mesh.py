from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.parallel.mesh import (
    MeshConfig,
    batch_divisor,
    batch_sharding,
    check_batch_size,
    make_mesh,
    process_rows,
    steps_ahead,
)


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (MeshConfig(), (1, 8, 1)),
        (MeshConfig(data=4, model=2), (1, 4, 2)),
        (MeshConfig(replica=2, data=-1, model=2), (2, 2, 2)),
        (MeshConfig(replica=-1, data=1), (8, 1, 1)),
    ],
)
def test_minus_one_fills_the_mesh(config, shape):
    mesh = make_mesh(config)
    assert tuple(mesh.shape.values()) == shape
    assert batch_divisor(mesh) == shape[0] * shape[1]


@pytest.mark.parametrize(
    "config",
    [
        MeshConfig(data=3),
        MeshConfig(data=-1, model=3),
        MeshConfig(replica=-1, data=-1),
        MeshConfig(model=0),
    ],
)
def test_a_mesh_that_does_not_fit_names_the_settings(config):
    with pytest.raises(UserError, match=r"mesh\.replica"):
        make_mesh(config)


class Device:
    """A device with the attributes that make_mesh reads."""

    def __init__(self, number, platform, slice_index, coords):
        self.id, self.process_index = number, slice_index
        self.platform, self.slice_index = platform, slice_index
        self.device_kind = {"tpu": "TPU v4", "gpu": "NVIDIA H100"}[platform]
        self.coords, self.core_on_chip = coords, 0


def devices_of(platform):
    """Eight devices with two values of slice_index."""
    return [Device(i, platform, i // 4, (i % 2, i // 2 % 2, 0)) for i in range(8)]


def test_gpus_of_several_hosts_are_one_slice():
    """XLA sets slice_index to the number of a GPU's host."""
    devices = devices_of("gpu")
    mesh = make_mesh(MeshConfig(), devices)
    assert tuple(mesh.shape.values()) == (1, 8, 1)
    assert list(mesh.devices.flat) == devices


def test_tpu_slices_are_replicas():
    mesh = make_mesh(MeshConfig(replica=2), devices_of("tpu"))
    assert tuple(mesh.shape.values()) == (2, 4, 1)
    assert [{d.slice_index for d in row.flat} for row in mesh.devices] == [{0}, {1}]
    with pytest.raises(UserError, match=r"8 devices of 2 slices; .*set mesh\.replica"):
        make_mesh(MeshConfig(), devices_of("tpu"))


def test_rows_are_split_only_over_replica_and_data():
    mesh = make_mesh(MeshConfig(replica=2, data=2, model=2))
    rows = jax.device_put(jax.numpy.arange(8).reshape(8, 1), batch_sharding(mesh))
    by_device = {s.device: s.data.ravel().tolist() for s in rows.addressable_shards}
    for r in range(2):
        for d in range(2):
            for m in range(2):
                start = 2 * (2 * r + d)
                assert by_device[mesh.devices[r, d, m]] == [start, start + 1]


def test_the_only_process_has_all_rows():
    for config in (MeshConfig(), MeshConfig(data=2, model=4)):
        assert process_rows(make_mesh(config), 16).tolist() == list(range(16))


def test_an_undividable_batch_is_refused():
    mesh = make_mesh(MeshConfig(data=4, model=2))
    check_batch_size(12, mesh, "phases[0].batch_size")
    check_batch_size(24, mesh, "batch_size", accumulation=3)
    with pytest.raises(UserError, match=r"batch_size=30 is not a multiple of 4,"):
        check_batch_size(30, mesh, "phases[0].batch_size")
    with pytest.raises(UserError, match=r"=20 is not a multiple of 12, "):
        check_batch_size(20, mesh, "batch_size", accumulation=3)


@pytest.mark.parametrize(("platform", "ahead"), [("cpu", 0), ("gpu", 2), ("tpu", 2)])
def test_steps_are_dispatched_ahead_only_on_accelerators(platform, ahead):
    devices = np.full((1, 2, 1), SimpleNamespace(platform=platform))
    assert steps_ahead(SimpleNamespace(devices=devices)) == ahead
