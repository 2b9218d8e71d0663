import importlib.util

import pytest

from bert_jax.errors import UserError
from bert_jax.training.absent_devices import GENERATIONS, named_slices


@pytest.mark.parametrize(
    ("name", "count", "message"),
    [
        ("v9:4x4", 1, "expected a TPU version or a GPU"),
        ("v2", 1, "such as v2:4x4"),
        ("v2:4x4x4", 1, "slices of v2 have 2 dimensions, 4x4x4 has 3"),
        ("v4:4x4", 1, "slices of v4 have 3 dimensions"),
        ("v2:4x4", 0, "--num_slices=0, expected at least 1"),
        ("h100", 1, "such as v2:4x4, v4:2x2x4 or h100:8"),
        ("h100:2x4", 1, "slices of h100 have 1 dimensions, 2x4 has 2"),
    ],
)
def test_a_wrong_name_is_one_line(name, count, message):
    with pytest.raises(UserError, match=message):
        named_slices(name, count)


@pytest.mark.parametrize(
    ("name", "count", "chips", "devices", "kind"),
    [
        ("v2:4x4", 1, 16, 32, "TPU v2"),
        ("v4:2x2x4", 1, 16, 16, "TPU v4"),
        ("v5e:4x4", 2, 32, 32, "TPU v5 lite"),
        ("v6e:4x4", 1, 16, 16, "TPU v6 lite"),
    ],
)
def test_chips_and_devices_of_slices(name, count, chips, devices, kind):
    pytest.importorskip("libtpu", reason="the TPU compiler: pip install libtpu")
    slices = named_slices(name, count)
    assert (slices.chips, len(slices.devices)) == (chips, devices)
    assert {device.device_kind for device in slices.devices} == {kind}
    assert (
        len({getattr(device, "slice_index", 0) for device in slices.devices}) == count
    )
    assert slices.generation is GENERATIONS[name.split(":")[0]]


@pytest.mark.parametrize(
    ("name", "kind", "capability"),
    [("a100-40gb:1", "NVIDIA A100", "8.0"), ("h100:8", "NVIDIA H100", "9.0")],
)
def test_gpus_of_a_host(name, kind, capability):
    """Needs the plugin, and JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 where there is no GPU."""
    pytest.importorskip("jax_cuda12_plugin", reason="CUDA: pip install 'jax[cuda12]'")
    slices = named_slices(name)
    assert slices.chips == len(slices.devices) == int(name.partition(":")[2])
    assert slices.devices[0].device_kind.startswith(kind)
    assert slices.devices[0].compute_capability == capability


@pytest.mark.parametrize(
    ("module", "name", "extra"),
    [("libtpu", "v2:4x4", "tpu"), ("jax_cuda12_plugin", "h100:8", "gpu")],
)
def test_without_the_compiler_it_says_what_to_install(module, name, extra):
    if importlib.util.find_spec(module):
        pytest.skip("the compiler is there")
    with pytest.raises(UserError, match=rf"pip install 'bert_jax\[{extra}\]'"):
        named_slices(name)
