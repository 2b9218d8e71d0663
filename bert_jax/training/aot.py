"""Compiles the train step of a config for TPUs or GPUs by name, without owning one."""

import dataclasses
import logging
import math
import re
import time
from collections import defaultdict
from collections.abc import Callable
from importlib import metadata

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.data.packing import row_limits
from bert_jax.data.pipeline import Phase
from bert_jax.parallel.mesh import batch_sharding, check_batch_size, make_mesh
from bert_jax.training import step as training_step
from bert_jax.training.absent_devices import GIB, Slices, Tpu
from bert_jax.training.config import TrainConfig
from bert_jax.training.estimate import Program, Speeds, estimate
from bert_jax.training.metrics import data_sheet_flops
from bert_jax.training.optimizer import bert_optimizer, make_schedule
from bert_jax.training.pretrain import pretraining_objective
from bert_jax.training.state import TrainState, abstract_state

_logger = logging.getLogger(__name__)
# "Ran out of memory in memory space hbm. Used 20.35G of 15.48G hbm." counts arguments too;
# "the total memory required for HLO temporaries (63.07G) exceeds available HBM" does not.
_USED = re.compile(r"Used ([\d.]+)([KMGT]?) of [\d.]+[KMGT]? hbm")
_TEMPORARIES = re.compile(r"required for HLO temporaries \(([\d.]+)([KMGT]?)\)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


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
    compiler_seconds: the compiler's own estimate of the step; it has one for v2 and v3.
    roofline_seconds: ours of the same kind, for all; estimated_seconds: with the cycles of
    vector work too. estimated_shares: what the latter are spent on. See estimate.py.
    collectives: of one device and step, by kind; a scanned body's are counted once. These
    four are empty where the step does not fit, or the program cannot be read. GPUs have
    collectives alone.
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
    compiler_seconds: float | None
    roofline_seconds: float | None
    estimated_seconds: float | None
    estimated_shares: dict[str, float]
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
    lowered, state, batch = lower_step(config, phase, mesh)
    started = time.perf_counter()
    generation = slices.generation
    hbm, peak = generation.hbm_bytes, data_sheet_flops(slices.devices[0].device_kind)
    donated, compilers = 0, 0.0
    program = roofline = whole = None
    try:
        compiled = lowered.compile(generation.compiler_options)
        seconds = time.perf_counter() - started
    except jax.errors.JaxRuntimeError as error:
        arguments = sum(
            leaf.dtype.itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape))
            for leaf in jax.tree.leaves(state)
        )
        seconds = time.perf_counter() - started
        temporary = _overflow(str(error), arguments)
        if temporary is None:
            raise
        fits = False
    else:
        memory = compiled.memory_analysis()
        arguments = memory.argument_size_in_bytes
        donated = memory.alias_size_in_bytes
        # The donated state's outputs lie where its arguments did.
        temporary = memory.temp_size_in_bytes + memory.output_size_in_bytes - donated
        fits = arguments + temporary <= hbm
        if generation.estimated:
            compilers = (compiled.cost_analysis() or {}).get("optimal_seconds", 0.0)
        program = _program(compiled)
    if program and isinstance(generation, Tpu):
        speeds = Speeds(
            peak, generation.clock, generation.hbm_speed, generation.link_speed
        )
        roofline = estimate(program, speeds, by_cycles=False)
        whole = estimate(program, speeds)
    flops = pretraining_objective(config).flops(batch) / len(slices.devices)
    return Report(
        topology=slices.name,
        num_slices=slices.count,
        chips=slices.chips,
        devices=len(slices.devices),
        sequence_length=phase.sequence_length,
        batch_size=phase.batch_size,
        argument_bytes=arguments,
        donated_bytes=donated,
        temp_bytes=temporary,
        hbm_bytes=hbm,
        fits=fits,
        model_flops_per_device=flops,
        seconds_at_peak=flops / peak,
        compiler_seconds=float(compilers) if compilers > 0 else None,
        roofline_seconds=roofline.seconds if roofline else None,
        estimated_seconds=whole.seconds if whole else None,
        estimated_shares=whole.shares if whole else {},
        collectives=collectives(program) if program else {},
        compile_seconds=round(seconds, 1),
    )


def lower_step(
    config: TrainConfig, phase: Phase, mesh: Mesh
) -> tuple[jax.stages.Lowered, TrainState, dict[str, jax.ShapeDtypeStruct]]:
    """``phase``'s step, ready to compile for ``mesh``; shapes of its state and batch."""
    objective = pretraining_objective(config)
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
    return train_step.lower(state, batch, schedule), state, batch


def abstract_batch(
    config: TrainConfig, phase: Phase, mesh: Mesh
) -> dict[str, jax.ShapeDtypeStruct]:
    """What TrainingBatches gives, as shapes split over ``mesh``.

    Packed rows are taken to be as many as the pairs, more than there will be: how many
    depends on the text.
    """
    B, L, M = phase.batch_size, phase.sequence_length, phase.max_predictions
    tokens = ["input_ids", "token_type_ids", "attention_mask"]
    labels = {"nsp_labels": (B,)}
    if config.data.packing:
        slots, M = row_limits(L, config.data.examples.mask_rate)
        tokens.append("segment_ids")
        labels = dict.fromkeys(("nsp_labels", "starts", "nsp_weights"), (B, slots))
    masked = ("mlm_positions", "mlm_ids", "mlm_weights")
    shapes = dict.fromkeys(tokens, (B, L)) | dict.fromkeys(masked, (B, M)) | labels
    return {
        name: jax.ShapeDtypeStruct(
            shape,
            jnp.float32 if name.endswith("_weights") else jnp.int32,
            sharding=batch_sharding(mesh),
        )
        for name, shape in shapes.items()
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


def _program(compiled: jax.stages.Compiled) -> Program | None:
    """The compiled program.

    None, with a warning, where JAX cannot read it: another libtpu than that of its release
    may write instructions that it does not know.
    """
    try:
        return Program(compiled.as_text())
    except jax.errors.JaxRuntimeError:
        _logger.warning(
            "no estimate and no collectives: JAX %s cannot read the program of libtpu %s; "
            "expected the libtpu of its release: pip install 'jax[tpu]==%s'",
            jax.__version__,
            metadata.version("libtpu"),
            jax.__version__,
        )
        return None


def collectives(program: Program) -> dict[str, Traffic]:
    """By kind, the collectives of a compiled program and the bytes of their results."""
    found: dict[str, Traffic] = defaultdict(Traffic)
    for computation in program.computations.values():
        for instruction in computation.values():
            if instruction.collective:
                traffic = found[instruction.collective]
                traffic.count += 1
                traffic.bytes += instruction.received
    return dict(found)


def _seconds(number: float | None) -> str:
    return "" if number is None else f"{number:.4f}"


# The table's columns, with the text of a report in each.
_COLUMNS: dict[str, Callable[[Report], str]] = {
    "topology": lambda r: f"{r.num_slices} x " * (r.num_slices > 1) + r.topology,
    "chips": lambda r: f"{r.chips}",
    "devices": lambda r: f"{r.devices}",
    "batch x length": lambda r: f"{r.batch_size} x {r.sequence_length}",
    "arguments, GiB": lambda r: f"{r.argument_bytes / GIB:.2f}",
    "temporaries, GiB": lambda r: f"{r.temp_bytes / GIB:.2f}",
    "of, GiB": lambda r: f"{r.hbm_bytes / GIB:.0f}",
    "fits, spare": lambda r: f"yes, {r.spare:.0%}" if r.fits else "no",
    "GFLOP a device": lambda r: f"{r.model_flops_per_device / 1e9:,.0f}",
    "at peak, s": lambda r: f"{r.seconds_at_peak:.4f}",
    "compiler's, s": lambda r: _seconds(r.compiler_seconds),
    "roofline, s": lambda r: _seconds(r.roofline_seconds),
    "estimate, s": lambda r: _seconds(r.estimated_seconds),
    "MFU": lambda r: (
        f"{r.seconds_at_peak / r.estimated_seconds:.0%}" if r.estimated_seconds else ""
    ),
    "of it, ms": lambda r: ", ".join(
        f"{name} {1e3 * share:.1f}" for name, share in r.estimated_shares.items()
    ),
    "collectives": lambda r: ", ".join(
        f"{traffic.count} {kind} {traffic.bytes / 1e6:,.0f} MB"
        for kind, traffic in sorted(r.collectives.items())
    ),
    "compiled in, s": lambda r: f"{r.compile_seconds:.0f}",
}


def table(reports: list[Report]) -> str:
    """Markdown: a row for each report, bytes in GiB (2**30) and seconds."""
    rows = [[text(report) for text in _COLUMNS.values()] for report in reports]
    lines = [" | ".join(row) for row in ([*_COLUMNS], *rows)]
    lines = [f"| {line} |" for line in lines]
    return "\n".join([lines[0], "|" + "---|" * len(_COLUMNS), *lines[1:]])
