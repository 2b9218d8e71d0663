import dataclasses
import importlib.util
import math
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from bert_jax.data.phases import Phase
from bert_jax.errors import UserError
from bert_jax.model.bert import BertForPreTraining
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.parallel.mesh import make_mesh
from bert_jax.training import estimate
from bert_jax.training.config import train_config
from bert_jax.training.estimate import CHIPS, Chip, Topology, collectives, lower_step


@pytest.fixture(scope="module")
def config_of(small_model_config):
    """A function of (phase, sizes, settings) that returns a config of the small model."""

    def make(phase, sizes=None, **settings):
        return train_config(
            {
                "model": dataclasses.asdict(small_model_config) | (sizes or {}),
                "data": {},
                "optimizer": {"learning_rate": 1e-3, "warmup_steps": 1},
                "phases": [dataclasses.asdict(phase)],
                **settings,
            }
        )

    return make


# These passes need most of the time and do not change the buffers.
FAST = {"xla_llvm_disable_expensive_passes": True, "xla_backend_optimization_level": 0}


@pytest.mark.usefixtures("optimized")
def test_the_new_state_reuses_the_memory_of_the_old_state(config_of):
    """On each of 8 devices all arguments except batch and schedule are donated."""
    phase = Phase(steps=1, sequence_length=16, batch_size=16, max_predictions=4)
    config = config_of(phase, {"num_layers": 1}, mesh={"fsdp": True})
    lowered, state, _ = lower_step(config, phase, make_mesh(config.mesh))
    memory = lowered.compile(FAST).memory_analysis()
    arrays = jax.tree.leaves((state.params, state.opt_state))
    kept = sum(4 * math.prod(a.sharding.shard_shape(a.shape)) for a in arrays)
    schedule = 3 * 4
    batch = 2 * 4 * (3 * 16 + 3 * 4 + 1)  # two rows per device
    assert memory.argument_size_in_bytes - memory.alias_size_in_bytes == (
        batch + schedule
    )
    assert memory.alias_size_in_bytes >= kept


class Frozen(MlmNsp):
    frozen = "^bert/embeddings/"


def test_the_step_of_an_objective_with_frozen_parameters_is_lowered(
    config_of, monkeypatch
):
    monkeypatch.setattr(
        estimate,
        "pretraining_objective",
        lambda config: Frozen(BertForPreTraining(config.model, config.compute)),
    )
    phase = Phase(steps=1, sequence_length=16, batch_size=8, max_predictions=4)
    config = config_of(phase, {"num_layers": 1})
    lowered, state, _ = lower_step(config, phase, make_mesh(config.mesh))
    new_state, _ = lowered.out_info
    assert jax.tree.structure(new_state) == jax.tree.structure(state)


@pytest.fixture(scope="module")
def temporary_bytes(config_of):
    """A function of (accumulation, compute settings) that returns temporary bytes."""

    def compute(accumulation=1, **changes):
        phase = Phase(steps=1, sequence_length=64, batch_size=64, max_predictions=4)
        config = config_of(
            phase,
            {"num_layers": 4, "max_positions": 64},
            compute={"scan_layers": True, **changes},
            accumulation=accumulation,
        )
        mesh = make_mesh(config.mesh, jax.devices()[:1])
        lowered, _, _ = lower_step(config, phase, mesh)
        compiled = lowered.compile(FAST)
        return compiled.memory_analysis().temp_size_in_bytes

    return compute


@pytest.mark.long
@pytest.mark.usefixtures("optimized")
def test_microbatches_and_remat_save_the_memory_of_activations(temporary_bytes):
    """Memory has one of 8 microbatches at a time; with remat, the inputs of 4 layers."""
    unsplit = temporary_bytes()
    assert temporary_bytes(accumulation=8) < unsplit / 4
    assert temporary_bytes(remat="full") < unsplit / 2


@pytest.fixture
def report_of(config_of, monkeypatch):
    """A function of a chip, error and settings that reports a step on one device.

    The step has a state of 1,000 bytes. Its program needs 700 more bytes and has 8,000
    bytes of traffic, or the compiler raises the error.
    """
    devices = jax.devices()[:1]
    phase = Phase(steps=1, sequence_length=16, batch_size=4, max_predictions=4)
    compiled = SimpleNamespace(
        memory_analysis=lambda: SimpleNamespace(
            argument_size_in_bytes=1000,
            output_size_in_bytes=1100,
            alias_size_in_bytes=1000,
            temp_size_in_bytes=600,
        ),
        cost_analysis=lambda: {"bytes accessed": 8000.0},
        as_text=lambda: HLO,
    )

    def compute(chip, error=None, **settings):
        def compiler():
            if error:
                raise jax.errors.JaxRuntimeError(error)
            return compiled

        def lower(config, phase, mesh):
            sharding = jax.sharding.SingleDeviceSharding(devices[0])
            state = jax.ShapeDtypeStruct((250,), jnp.float32, sharding=sharding)
            batch = estimate.abstract_batch(config, phase, mesh)
            return SimpleNamespace(compile=compiler), state, batch

        monkeypatch.setattr(estimate, "lower_step", lower)
        monkeypatch.setattr(estimate, "peak_flops", lambda devices: 1e9)
        config = config_of(phase, **settings)
        return estimate.estimate_step(config, phase, Topology("v2:1", chip, devices))

    return compute


def test_the_roofline_is_the_longer_of_work_and_traffic(report_of):
    report = report_of(Chip(1, 2000, 1e15))
    assert report["flops_seconds"] == report["flops"] / 1e9 > 0
    assert report["bytes_seconds"] == 8000 / 1e15
    assert report["roofline_seconds"] == report["flops_seconds"]
    report = report_of(Chip(1, 2000, 1.0))
    assert report["roofline_seconds"] == report["bytes_seconds"] == 8000


def test_the_new_state_needs_no_memory(report_of):
    report = report_of(Chip(1, 1700, 1.0))
    assert (report["argument_bytes"], report["temp_bytes"]) == (1000, 700)
    assert report["fits"]
    assert not report_of(Chip(1, 1699, 1.0))["fits"]


def test_the_traffic_of_a_loop_is_unknown(report_of):
    for loop in ({"accumulation": 2}, {"compute": {"scan_layers": True}}):
        report = report_of(CHIPS["v2"], **loop)
        assert report["bytes_accessed"] is report["roofline_seconds"] is None
        assert report["bytes_seconds"] is None and report["flops_seconds"] > 0
        assert report["collectives"]


def test_a_step_that_does_not_fit_has_its_size_reported(report_of):
    for message, temporaries in (
        ("Ran out of memory in hbm. Used 2.50K of 2.00K hbm. Exceeded", 2560 - 1000),
        ("memory required for HLO temporaries (1.5G) exceeds", 3 * 2**29),
    ):
        report = report_of(Chip(1, 2048, 1.0), message)
        assert (report["fits"], report["argument_bytes"]) == (False, 1000)
        assert report["temp_bytes"] == temporaries
        assert report["roofline_seconds"] is None
    used = "Ran out of memory in hbm. Used 2.50K of 2.40K hbm. Exceeded"
    assert not report_of(Chip(1, 4096, 1.0), used)["fits"]
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        report_of(Chip(1, 2048, 1.0), "INTERNAL: Used 3 of it")


# Forms in the TPU compiler's programs.
HLO = """
ENTRY %main {
  %all-reduce.1 = f32[768,12]{1,0:T(8,128)} all-reduce(f32[768,12]{1,0} %a), to_apply=%add
  %all-reduce.2 = (bf16[8]{0}, f32[2,3]{1,0}) all-reduce(bf16[8]{0} %b, f32[2,3]{1,0} %c)
  %ag = (bf16[4,8]{1,0}, bf16[64,8]{1,0}) all-gather-start(bf16[4,8]{1,0} %d)
  %agd = bf16[64,8]{1,0} all-gather-done((bf16[4,8]{1,0}, bf16[64,8]{1,0}) %ag)
  %rs = f32[16]{0} reduce-scatter(f32[256]{0} %e), dimensions={0}
  %cp = (u32[2]{0}, u32[2]{0}, u32[], u32[]) collective-permute-start(u32[2]{0} %f)
  ROOT %all-to-all = pred[5]{0} all-to-all(pred[5]{0} %h)
  %add.5 = f32[768,12]{1,0} add(f32[768,12]{1,0} %all-reduce.1, f32[768,12]{1,0} %g)
}
"""


def test_collectives_of_a_program_are_counted():
    counts = {kind: tuple(own.values()) for kind, own in collectives(HLO).items()}
    assert counts == {
        "all-reduce": (2, 768 * 12 * 4 + 8 * 2 + 6 * 4),
        "all-gather": (1, 64 * 8 * 2),
        "reduce-scatter": (1, 16 * 4),
        "collective-permute": (1, 2 * 4),
        "all-to-all": (1, 5),
    }
    # A gather that runs during other computations is written into each computation.
    gather = "%ag = bf16[64,8]{1,0} all-gather(bf16[4,8]{1,0} %d), channel_id="
    parts = [
        f"%fused.{i} {{\n  {gather}{i // 3 + 7}, dimensions={{0}}\n}}" for i in range(6)
    ]
    assert collectives("\n".join(parts)) == {"all-gather": {"count": 2, "bytes": 2048}}
    # A sum of two dtypes is two collectives of one channel.
    sums = [
        f"  %r = {dtype}[8]{{0}} all-reduce({dtype}[8]{{0}} %a), channel_id=1"
        for dtype in ("f32", "bf16")
    ]
    assert collectives("\n".join(sums)) == {"all-reduce": {"count": 2, "bytes": 48}}
    assert collectives("ENTRY %x {\n  %x = f32[4]{0} add(f32[4]{0} %a)\n}") == {}


@pytest.mark.parametrize("name", ["v9:4x4", "v2", "v2:2y4"])
def test_a_wrong_topology_is_a_one_line_error(name):
    with pytest.raises(
        UserError, match=f"--topology={name} failed .*expected one of v2, .*v4:2x2x4"
    ):
        estimate.named_topology(name)


@pytest.mark.parametrize(
    ("name", "count", "chips", "devices", "kind"),
    [
        ("v2:4x4", 1, 16, 32, "TPU v2"),
        ("v4:2x2x4", 1, 16, 16, "TPU v4"),
        ("v5e:4x4", 2, 32, 32, "TPU v5 lite"),
        ("v6e:4x4", 1, 16, 16, "TPU v6 lite"),
    ],
)
def test_slices_have_their_chips_and_devices(name, count, chips, devices, kind):
    pytest.importorskip("libtpu", reason="the TPU compiler: pip install libtpu")
    topology = estimate.named_topology(name, count)
    assert len(topology.devices) == devices == chips * topology.chip.devices
    assert {device.device_kind for device in topology.devices} == {kind}
    slices = {getattr(device, "slice_index", 0) for device in topology.devices}
    assert len(slices) == count


def test_chips_have_the_memory_of_their_data_sheets():
    """GiB and GB/s of a chip, which has one or two devices."""
    per_chip = {
        name: (chip.devices * chip.memory >> 30, chip.devices * chip.bandwidth / 1e9)
        for name, chip in CHIPS.items()
    }
    assert per_chip == {
        "v2": (16, 700),
        "v3": (32, 900),
        "v4": (32, 1228),
        "v5e": (16, 819),
        "v5p": (95, 2765),
        "v6e": (32, 1638),
        "tpu7x": (192, 7380),
    }


def test_a_missing_compiler_is_a_one_line_error():
    if importlib.util.find_spec("libtpu"):
        pytest.skip("the compiler is installed")
    with pytest.raises(UserError, match=r"pip install -e '\.\[tpu\]'"):
        estimate.named_topology("v2:4x4")


@pytest.mark.long
@pytest.mark.parametrize("fsdp", [False, True])
@pytest.mark.usefixtures("tpu_compiler")
def test_each_device_draws_the_dropout_masks_of_its_rows(config_of, fsdp):
    """Of 16 devices each generates a sixteenth of the batch's random words."""
    B, L, M = 32, 128, 16
    phase = Phase(steps=1, sequence_length=L, batch_size=B, max_predictions=M)
    sizes = {"hidden_size": 128, "num_heads": 2, "num_layers": 2, "max_positions": L}
    settings = {"mesh": {"fsdp": fsdp}, "compute": {"dtype": "bfloat16"}}
    config = config_of(phase, sizes, **settings)
    topology = estimate.named_topology("v5e:4x4")
    lowered, _, _ = lower_step(config, phase, make_mesh(config.mesh, topology.devices))
    program = lowered.compile().as_text()
    shapes = re.findall(r"u32\[([\d,]+)\]\S*\)? rng-bit-generator\(", program)
    words = sum(math.prod(map(int, shape.split(","))) for shape in shapes)
    # Embeddings; in each layer attention, its output and the feed-forward layer. The last
    # layer computes the predictions and [CLS].
    D, N = config.model.hidden_size, config.model.num_heads
    queries = L, M + 1
    total = B * (L * D + sum(N * Q * L + 2 * Q * D for Q in queries))
    assert words == total / 16


@pytest.mark.long
@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.usefixtures("tpu_compiler")
def test_groups_of_eight_gather_the_kernels_of_fsdp(config_of, scan):
    """64 devices gather a kernel as a sum of slices that are padded with zeros."""
    phase = Phase(steps=1, sequence_length=128, batch_size=64, max_predictions=16)
    D, F, layers = 512, 2048, 2
    sizes = {"hidden_size": D, "intermediate_size": F, "num_heads": 8}
    sizes |= {"num_layers": layers, "max_positions": 128}
    compute = {"dtype": "bfloat16", "scan_layers": scan}

    def gathered(replica):
        mesh = {"fsdp": True, "replica": replica}
        config = config_of(phase, sizes, mesh=mesh, compute=compute)
        devices = estimate.named_topology("v5e:8x8").devices
        lowered, _, _ = lower_step(config, phase, make_mesh(config.mesh, devices))
        program = lowered.compile().as_text()
        return collectives(program).get("all-gather", {"bytes": 0})["bytes"]

    # The text of a scan has one layer, forward and backward.
    kernels = 2 * (4 * D * D + 2 * D * F) * (2 if scan else layers)
    assert gathered(1) < kernels / 2
    assert gathered(8) >= kernels
