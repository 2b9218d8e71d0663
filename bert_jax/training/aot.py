"""Compiles the train step of a config for TPU slices that are not there."""

import dataclasses
import math
import re
import time
from collections import defaultdict
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.data.packing import row_limits
from bert_jax.data.pipeline import Phase
from bert_jax.model.bert import BertForPreTraining
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.parallel.mesh import batch_sharding, check_batch_size, make_mesh
from bert_jax.parallel.topology import GIB, Slices
from bert_jax.training import step as training_step
from bert_jax.training.config import TrainConfig
from bert_jax.training.flops import PEAK_FLOPS, step_flops
from bert_jax.training.optimizer import bert_optimizer, make_schedule
from bert_jax.training.state import TrainState, abstract_state

# "Ran out of memory in memory space hbm. Used 20.35G of 15.48G hbm." counts arguments too;
# "the total memory required for HLO temporaries (63.07G) exceeds available HBM" does not.
_USED = re.compile(r"Used ([\d.]+)([KMGT]?) of [\d.]+[KMGT]? hbm")
_TEMPORARIES = re.compile(r"required for HLO temporaries \(([\d.]+)([KMGT]?)\)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
# Instructions of an HLO module that send arrays between devices.
_KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
_COLLECTIVE = re.compile(
    rf"= (?P<result>\(.*?\)|\S+) (?P<kind>{'|'.join(_KINDS)})(?P<start>-start)?\("
)
_HLO_ARRAY = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
_BITS = re.compile(r"\d+")
_HEAD = (
    "topology",
    "chips",
    "devices",
    "batch x length",
    "arguments, GiB",
    "temporaries, GiB",
    "of, GiB",
    "fits, spare",
    "GFLOP a device",
    "at peak, s",
    "estimate, s",
    "collectives",
    "compiled in, s",
)


@dataclasses.dataclass
class Traffic:
    """count: instructions; a scanned body's are counted once. bytes: of their results."""

    count: int = 0
    bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Report:
    """What the compiler says of one phase's step. Bytes and FLOPs are of one device.

    argument_bytes: state and batch, the state donated and so counted once.
    donated_bytes: of the arguments, what the new state is written over.
    hbm_bytes: the memory of a device. fits: arguments and temporaries are within it.
    seconds_at_peak: model_flops_per_device at the chip's peak, the least there can be.
    estimated_seconds: the compiler's own estimate of the step; it has one for v2 and v3.
    collectives: of one device and step, by kind; a scanned body's are counted once.
    """

    topology: str
    num_slices: int
    chips: int
    devices: int
    sequence_length: int
    batch_size: int
    argument_bytes: int
    donated_bytes: int
    temp_bytes: int
    hbm_bytes: int
    fits: bool
    model_flops_per_device: float
    seconds_at_peak: float
    estimated_seconds: float | None
    collectives: dict[str, Traffic]
    compile_seconds: float

    @property
    def spare(self) -> float:
        """The share of a device's memory that is left; negative where it does not fit."""
        return 1 - (self.argument_bytes + self.temp_bytes) / self.hbm_bytes


def compile_step(config: TrainConfig, phase: Phase, slices: Slices) -> Report:
    """Compiles ``phase``'s update for ``slices`` as the run itself would.

    Raises UserError where the slices do not divide the batch.
    """
    mesh = make_mesh(config.mesh, slices.devices)
    check_batch_size(phase.batch_size, mesh, "batch_size", config.accumulation)
    lowered, state = lower_step(config, phase, mesh)
    started = time.perf_counter()
    hbm = slices.generation.hbm_bytes
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        temporary = _overflow(str(error), _argument_bytes(state))
        if temporary is None:
            raise
        found: dict[str, Any] = {
            "argument_bytes": _argument_bytes(state),
            "donated_bytes": 0,
            "temp_bytes": temporary,
            "fits": False,
            "estimated_seconds": None,
            "collectives": {},
        }
    else:
        memory = compiled.memory_analysis()
        # The donated state's outputs lie where its arguments did.
        kept = memory.output_size_in_bytes - memory.alias_size_in_bytes
        arguments = memory.argument_size_in_bytes
        temporary = memory.temp_size_in_bytes + kept
        found = {
            "argument_bytes": arguments,
            "donated_bytes": memory.alias_size_in_bytes,
            "temp_bytes": temporary,
            "fits": arguments + temporary <= hbm,
            "estimated_seconds": (
                _estimate(compiled) if slices.generation.estimated else None
            ),
            "collectives": collectives(compiled.as_text()),
        }
    seconds = time.perf_counter() - started
    batch = abstract_batch(config, phase, mesh)
    flops = step_flops(
        config.model,
        phase.sequence_length,
        batch["mlm_ids"].shape[1],
        phase.batch_size,
        math.prod(batch["nsp_labels"].shape[1:]),
        scan_layers=config.compute.scan_layers,
    ) / len(slices.devices)
    kind = slices.devices[0].device_kind
    return Report(
        topology=slices.name,
        num_slices=slices.count,
        chips=slices.chips,
        devices=len(slices.devices),
        sequence_length=phase.sequence_length,
        batch_size=phase.batch_size,
        hbm_bytes=hbm,
        model_flops_per_device=flops,
        seconds_at_peak=flops / PEAK_FLOPS[kind],
        compile_seconds=round(seconds, 1),
        **found,
    )


def lower_step(
    config: TrainConfig, phase: Phase, mesh: Mesh
) -> tuple[jax.stages.Lowered, TrainState]:
    """``phase``'s step, ready to compile for ``mesh``, and the shapes of its state."""
    objective = MlmNsp(
        BertForPreTraining(config.model, config.compute),
        config.data.examples.next_sentence,
    )
    optimizer = bert_optimizer(config.optimizer)
    state = abstract_state(objective, optimizer, mesh, fsdp=config.mesh.fsdp)
    train_step = training_step.compile_step(
        objective,
        config.optimizer,
        state,
        accumulation=config.accumulation,
        log_every=config.log_every,
    )
    schedule = make_schedule(config.optimizer, config.total_steps)
    batch = abstract_batch(config, phase, mesh)
    return train_step.lower(state, batch, schedule), state


def abstract_batch(
    config: TrainConfig, phase: Phase, mesh: Mesh
) -> dict[str, jax.ShapeDtypeStruct]:
    """What TrainingBatches gives, as shapes split over ``mesh``.

    Packed rows are taken to be as many as the pairs, more than there will be: how many
    depends on the text.
    """
    B, L, M = phase.batch_size, phase.sequence_length, phase.max_predictions
    labels: tuple[int, ...] = (B,)
    packed = {}
    if config.data.packing:
        slots, M = row_limits(L, config.data.examples.mask_rate)
        labels = (B, slots)
        packed = {
            "segment_ids": ((B, L), jnp.int32),
            "starts": (labels, jnp.int32),
            "nsp_weights": (labels, jnp.float32),
        }
    shapes = packed | {
        "input_ids": ((B, L), jnp.int32),
        "token_type_ids": ((B, L), jnp.int32),
        "attention_mask": ((B, L), jnp.int32),
        "mlm_positions": ((B, M), jnp.int32),
        "mlm_ids": ((B, M), jnp.int32),
        "mlm_weights": ((B, M), jnp.float32),
        "nsp_labels": (labels, jnp.int32),
    }
    sharding = batch_sharding(mesh)
    return {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
        for name, (shape, dtype) in shapes.items()
    }


def advice(config: TrainConfig, report: Report) -> str:
    """Which setting to change where the step does not fit, the cheapest first."""
    settings = []
    if config.compute.dtype == "float32":
        settings.append("--config.compute.dtype=bfloat16")
    if config.compute.scan_layers:
        settings.append("--config.compute.scan_layers=False")
    rows = report.batch_size // report.devices
    if rows > config.accumulation:
        settings.append(f"--config.accumulation={config.accumulation * 2}")
    if not config.compute.remat:
        settings.append("--config.compute.remat=True")
    if not config.mesh.fsdp:
        settings.append("--config.mesh.fsdp=True")
    settings.append("--config.mesh.model=2")
    return "does not fit; try " + ", then ".join(settings)


def _overflow(message: str, arguments: int) -> int | None:
    """Bytes of temporaries that the compiler wanted, read from what it says."""
    for pattern, counted in ((_USED, arguments), (_TEMPORARIES, 0)):
        if found := pattern.search(message):
            return int(float(found[1]) * _UNITS[found[2]]) - counted
    return None


def collectives(hlo: str) -> dict[str, Traffic]:
    """By kind, the collectives of a compiled module and the bytes of their results."""
    found: dict[str, Traffic] = defaultdict(Traffic)
    for match in _COLLECTIVE.finditer(hlo):
        arrays = [_array_bytes(*a) for a in _HLO_ARRAY.findall(match["result"])]
        if match["start"] and match["kind"] in ("all-gather", "collective-permute"):
            # (operands, results, contexts): only the results.
            arrays = arrays[1:2]
        traffic = found[match["kind"]]
        traffic.count += 1
        traffic.bytes += sum(arrays)
    return dict(found)


def _array_bytes(dtype: str, dimensions: str) -> int:
    """Bytes of an array such as bf16[8,128]; a pred is a byte."""
    bits = _BITS.search(dtype)
    size = int(bits[0]) if bits else 8
    for dimension in filter(None, dimensions.split(",")):
        size *= int(dimension)
    return size // 8


def _argument_bytes(state: Any) -> int:
    """Bytes of the state on one device."""
    return sum(
        leaf.dtype.itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape))
        for leaf in jax.tree.leaves(state)
    )


def _estimate(compiled: Any) -> float | None:
    """The compiler's seconds for the program, if it gives any."""
    analysis = compiled.cost_analysis() or {}
    seconds = float(analysis.get("optimal_seconds", 0.0))
    return seconds if seconds > 0 else None


def table(reports: list[Report]) -> str:
    """Markdown: a row for each report, bytes in GiB (2**30) and seconds."""
    lines = [f"| {' | '.join(_HEAD)} |", "|" + "---|" * len(_HEAD)]
    lines += [f"| {' | '.join(_row(report))} |" for report in reports]
    return "\n".join(lines)


def _row(report: Report) -> list[str]:
    slices = f"{report.num_slices} x " if report.num_slices > 1 else ""
    estimate = report.estimated_seconds
    return [
        f"{slices}{report.topology}",
        f"{report.chips}",
        f"{report.devices}",
        f"{report.batch_size} x {report.sequence_length}",
        f"{report.argument_bytes / GIB:.2f}",
        f"{report.temp_bytes / GIB:.2f}",
        f"{report.hbm_bytes / GIB:.0f}",
        f"yes, {report.spare:.0%}" if report.fits else "no",
        f"{report.model_flops_per_device / 1e9:,.0f}",
        f"{report.seconds_at_peak:.4f}",
        "" if estimate is None else f"{estimate:.4f}",
        ", ".join(
            f"{traffic.count} {kind} {traffic.bytes / 1e6:,.0f} MB"
            for kind, traffic in sorted(report.collectives.items())
        ),
        f"{report.compile_seconds:.0f}",
    ]
