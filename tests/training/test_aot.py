import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from bert_jax.data.pipeline import Phase
from bert_jax.parallel.mesh import make_mesh
from bert_jax.training import aot
from bert_jax.training.aot import collectives, lower_step
from bert_jax.training.config import train_config
from bert_jax.training.estimate import Program

pytestmark = pytest.mark.usefixtures("optimized")


def test_the_new_state_is_written_over_the_old_one(small_model_config):
    """On each of 8 devices all arguments but batch and schedule are donated."""
    phase = Phase(steps=1, sequence_length=16, batch_size=16, max_predictions=4)
    config = train_config(
        {
            "model": dataclasses.asdict(small_model_config),
            "data": {},
            "optimizer": {"learning_rate": 1e-3, "warmup_steps": 1},
            "phases": [dataclasses.asdict(phase)],
            "mesh": {"fsdp": True},
        }
    )
    lowered, state, _ = lower_step(config, phase, make_mesh(config.mesh))
    memory = lowered.compile().memory_analysis()
    arrays = jax.tree.leaves((state.params, state.opt_state))
    kept = sum(4 * math.prod(a.sharding.shard_shape(a.shape)) for a in arrays)
    schedule = 3 * 4
    batch = 2 * 4 * (3 * 16 + 3 * 4 + 1)  # two rows a device
    assert memory.argument_size_in_bytes - memory.alias_size_in_bytes == (
        batch + schedule
    )
    assert memory.alias_size_in_bytes >= kept


@pytest.fixture(scope="module")
def temporary_bytes(small_model_config):
    """A function of (accumulation, compute settings): bytes beside state and batch."""

    def compute(accumulation=1, **changes):
        phase = Phase(steps=1, sequence_length=64, batch_size=64, max_predictions=4)
        sizes = {"num_layers": 4, "max_positions": 64}
        model = dataclasses.asdict(small_model_config) | sizes
        config = train_config(
            {
                "model": model,
                "compute": {"scan_layers": True, **changes},
                "data": {},
                "optimizer": {"learning_rate": 1e-3, "warmup_steps": 1},
                "phases": [dataclasses.asdict(phase)],
                "accumulation": accumulation,
            }
        )
        mesh = make_mesh(config.mesh, jax.devices()[:1])
        lowered, _, _ = lower_step(config, phase, mesh)
        # The buffers are those of users; the machine code matters to nobody here.
        compiled = lowered.compile(
            {
                "xla_llvm_disable_expensive_passes": True,
                "xla_backend_optimization_level": 0,
            }
        )
        return compiled.memory_analysis().temp_size_in_bytes

    return compute


def test_microbatches_and_remat_spare_the_memory_of_activations(temporary_bytes):
    """Of 8 microbatches one is kept at a time; of 4 layers, their inputs."""
    whole = temporary_bytes()
    assert temporary_bytes(accumulation=8) < whole / 4
    assert temporary_bytes(remat=True) < whole / 2


# In the forms that the TPU compiler writes.
HLO = """
ENTRY %main {
  %all-reduce.1 = f32[768,12]{1,0:T(8,128)} all-reduce(f32[768,12]{1,0} %a), to_apply=%add
  %all-reduce.2 = (bf16[8]{0}, f32[2,3]{1,0}) all-reduce(bf16[8]{0} %b, f32[2,3]{1,0} %c)
  %ag = (bf16[4,8]{1,0}, bf16[64,8]{1,0}) all-gather-start(bf16[4,8]{1,0} %d)
  %agd = bf16[64,8]{1,0} all-gather-done((bf16[4,8]{1,0}, bf16[64,8]{1,0}) %ag)
  %rs = f32[16]{0} reduce-scatter(f32[256]{0} %e), dimensions={0}
  %cp = (u32[2]{0}, u32[2]{0}, u32[], u32[]) collective-permute-start(u32[2]{0} %f)
  %add.5 = f32[768,12]{1,0} add(f32[768,12]{1,0} %all-reduce.1, f32[768,12]{1,0} %g)
}
"""


@pytest.mark.parametrize(
    ("kind", "count", "size"),
    [
        ("all-reduce", 2, 768 * 12 * 4 + 8 * 2 + 6 * 4),
        ("all-gather", 1, 64 * 8 * 2),
        ("reduce-scatter", 1, 16 * 4),
        ("collective-permute", 1, 2 * 4),
    ],
)
def test_results_are_counted_once(kind, count, size):
    found = collectives(Program(HLO))
    assert (found[kind].count, found[kind].bytes) == (count, size)


def test_other_instructions_are_none():
    assert set(collectives(Program(HLO))) == {
        "all-reduce",
        "all-gather",
        "reduce-scatter",
        "collective-permute",
    }
    text = "ENTRY %x {\n  %x = f32[4]{0} add(f32[4]{0} %a, f32[4]{0} %b)\n}"
    assert collectives(Program(text)) == {}


def test_a_program_that_jax_cannot_read_is_left_out_with_a_warning(monkeypatch, caplog):
    def as_text(self):
        raise jax.errors.JaxRuntimeError("INTERNAL: should have 1 operands but sees 3")

    monkeypatch.setattr(aot.metadata, "version", lambda name: "0.0.52")
    compiled = jax.jit(jnp.sin).lower(1.0).compile()
    assert aot._program(compiled).entry
    monkeypatch.setattr(jax.stages.Compiled, "as_text", as_text)
    assert aot._program(compiled) is None
    assert "cannot read the program of libtpu 0.0.52; expected" in caplog.text
