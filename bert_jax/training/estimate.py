"""Memory and time of a training step on TPUs that this machine does not have."""

import math
import os
import re
import time
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from bert_jax.data.phases import Phase
from bert_jax.data.pipeline import largest_batch
from bert_jax.errors import UserError
from bert_jax.parallel.mesh import batch_sharding, check_batch_size, make_mesh
from bert_jax.training import step as training_step
from bert_jax.training.config import TrainConfig
from bert_jax.training.metrics import peak_flops
from bert_jax.training.optimizer import bert_optimizer, make_schedule
from bert_jax.training.pretrain import pretraining_objective
from bert_jax.training.state import TrainState, abstract_state
from bert_jax.unstable import topologies

GIB = 1 << 30


class Chip(NamedTuple):
    """A TPU version.

    devices: JAX devices per chip. memory: bytes per device. bandwidth: bytes/s of that
    memory.
    """

    devices: int
    memory: int
    bandwidth: float


# "System architecture" in Cloud TPU's documentation of each version.
CHIPS = {
    "v2": Chip(2, 8 * GIB, 350e9),
    "v3": Chip(2, 16 * GIB, 450e9),
    "v4": Chip(1, 32 * GIB, 1228e9),
    "v5e": Chip(1, 16 * GIB, 819e9),
    "v5p": Chip(1, 95 * GIB, 2765e9),
    "v6e": Chip(1, 32 * GIB, 1638e9),
    "tpu7x": Chip(2, 96 * GIB, 3690e9),
}


class Topology(NamedTuple):
    """Devices to compile for. They run nothing.

    name: such as v2:4x4, or 2 x v2:4x4 for two slices. devices: of all slices.
    """

    name: str
    chip: Chip
    devices: list[jax.Device]


def named_topology(name: str, num_slices: int = 1) -> Topology:
    """The devices of slices by name, such as v2:4x4 or v4:2x2x4.

    Needs the TPU's compiler (libtpu), but no TPU.
    """
    kind, _, shape = name.partition(":")
    chip = CHIPS.get(kind)
    # Without this variable libtpu queries a metadata server.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    options = {"topology_name": name}
    if num_slices > 1:
        options["num_slices"] = num_slices
    if kind == "v4":
        options["chip_config_name"] = "megacore"  # one device a chip, as in jobs
    try:
        if not chip or not re.fullmatch(r"\d+(x\d+)*", shape):
            raise ValueError("no such chip or shape")
        described = topologies.get_topology_desc(platform="tpu", **options)
    except Exception as error:  # JAX and libtpu raise several types
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(
            f"--topology={name} failed ({reason}); expected one of {', '.join(CHIPS)} and "
            "a shape that exists, such as v2:4x4 or v4:2x2x4, and the compiler: "
            "pip install -e '.[tpu]' in the folder of bert_jax"
        ) from error
    label = f"{num_slices} x {name}" if num_slices > 1 else name
    return Topology(label, chip, list(described.devices))


def estimate_step(
    config: TrainConfig, phase: Phase, topology: Topology
) -> dict[str, Any]:
    """Compiles the train step of ``phase`` with the same options as a run.

    Returns a report. Bytes and FLOPs are per device. argument_bytes: train state and batch.
    temp_bytes: all other memory. hbm_bytes: memory of the device. flops: matrix FLOPs of
    the model. bytes_accessed: memory traffic that the compiler counts. flops_seconds: flops
    at the bfloat16 peak. bytes_seconds: bytes_accessed at the memory's bandwidth.
    roofline_seconds: the larger of the two. The last two and bytes_accessed are None if the
    compiler refuses the step, and with scan_layers or accumulation, because it counts the
    body of a loop once. collectives: see :func:`collectives`.

    Raises UserError if the topology does not divide the batch.
    """
    chip, devices = topology.chip, topology.devices
    mesh = make_mesh(config.mesh, devices)
    setting = f"phases[{config.phases.index(phase)}].batch_size"
    check_batch_size(phase.batch_size, mesh, setting, config.accumulation)
    lowered, state, batch = lower_step(config, phase, mesh)
    flops = pretraining_objective(config).flops(batch) / len(devices)
    started = time.perf_counter()
    program = _compile(lowered, state)
    accessed = program.bytes_accessed
    if config.compute.scan_layers or config.accumulation > 1:
        accessed = None
    # The compiler refuses a step even if it needs a little less than a device's memory.
    compiled = program.text != ""
    fits = compiled and program.arguments + program.temporaries <= chip.memory
    flops_seconds = flops / peak_flops(devices[:1])
    bytes_seconds = roofline_seconds = None
    if accessed is not None:
        bytes_seconds = accessed / chip.bandwidth
        roofline_seconds = max(flops_seconds, bytes_seconds)
    return {
        "topology": topology.name,
        "chips": len(devices) // chip.devices,
        "model_type": config.model.model_type,
        "sequence_length": phase.sequence_length,
        "batch_size": phase.batch_size,
        "argument_bytes": program.arguments,
        "temp_bytes": program.temporaries,
        "hbm_bytes": chip.memory,
        "fits": fits,
        "flops": flops,
        "bytes_accessed": accessed,
        "flops_seconds": flops_seconds,
        "bytes_seconds": bytes_seconds,
        "roofline_seconds": roofline_seconds,
        "collectives": collectives(program.text),
        "compile_seconds": round(time.perf_counter() - started, 1),
    }


class _Program(NamedTuple):
    """A compiled step. Bytes are of a device.

    arguments: bytes of state and batch. temporaries: all other bytes. bytes_accessed:
    memory traffic; None if the compiler does not count it. text: HLO; "" if the compiler
    refuses the step.
    """

    arguments: int
    temporaries: int
    bytes_accessed: float | None
    text: str


def _compile(lowered: jax.stages.Lowered, state: TrainState) -> _Program:
    """Compiles a step. If the compiler refuses it, only its memory is known."""
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        arguments = sum(
            leaf.dtype.itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape))
            for leaf in jax.tree.leaves(state)
        )
        return _Program(arguments, _temporaries(error, arguments), None, "")
    memory = compiled.memory_analysis()
    # The new state overwrites the donated state: these outputs need no memory.
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    cost = compiled.cost_analysis() or {}
    return _Program(
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes + outputs,
        cost.get("bytes accessed"),
        compiled.as_text(),
    )


def lower_step(
    config: TrainConfig, phase: Phase, mesh: Mesh
) -> tuple[jax.stages.Lowered, TrainState, dict[str, jax.ShapeDtypeStruct]]:
    """The lowered train step of ``phase``, and the shapes of its state and batch."""
    objective = pretraining_objective(config)
    optimizer = bert_optimizer(config.optimizer, objective.frozen)
    has_average = config.average > 0
    state = abstract_state(
        objective, optimizer, mesh, fsdp=config.mesh.fsdp, average=has_average
    )
    options = {"accumulation": config.accumulation, "log_every": config.log_every}
    options["average"] = config.average
    compiled = training_step.compile_step
    train_step = compiled(objective, config.optimizer, state, **options)
    schedule = make_schedule(config.optimizer, config.total_steps)
    batch = abstract_batch(config, phase, mesh)
    return train_step.lower(state, batch, schedule), state, batch


def abstract_batch(
    config: TrainConfig, phase: Phase, mesh: Mesh
) -> dict[str, jax.ShapeDtypeStruct]:
    """The largest batch of a run, sharded over ``mesh``; see :func:`largest_batch`."""
    packs, examples = config.data.packing, config.data.examples
    batch = largest_batch(phase, examples, packs=packs)
    return {
        name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=batch_sharding(mesh))
        for name, x in batch.items()
    }


def _temporaries(error: jax.errors.JaxRuntimeError, arguments: int) -> int:
    """Bytes of temporaries in the compiler's error of a step that does not fit.

    Other errors are raised again. "Used 20.35G of 15.48G hbm." includes the arguments;
    "memory required for HLO temporaries (63.07G)" does not.
    """
    pattern = r"(Used |HLO temporaries \()([\d.]+)([KMGT]?)(?: of [\d.]+.? hbm|\))"
    match = re.search(pattern, str(error))
    if match is None:
        raise error
    size = int(float(match[2]) * 1024 ** " KMGT".index(match[3] or " "))
    return size - arguments if match[1] == "Used " else size


_COLLECTIVE = re.compile(
    r" = (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)"
    r"(-start)?\("
)
_CHANNEL = re.compile(r"channel_id=\d+")
_ARRAY = re.compile(r"[a-z]+(\d*)\w*\[([\d,]*)\]")  # bits and shape of bf16[8,512]


def collectives(program: str) -> dict[str, dict[str, int]]:
    """The "count" of the collectives of each kind, and the "bytes" of their results.

    program: HLO text. A collective in the body of a loop counts once. The TPU's compiler
    may write a collective into many fused computations, between which it runs. They have
    the same channel and arrays, and also count once.
    """
    kinds: dict[str, dict[str, int]] = {}
    counted = set()
    for line in program.splitlines():
        match = _COLLECTIVE.search(line)
        if match is None:
            continue
        result, kind, start = match.groups()
        channel = _CHANNEL.search(line)
        arrays = _ARRAY.findall(result)
        if channel:
            # Collectives of float32 and bfloat16 arrays may share a channel.
            collective = channel[0], *arrays
            if collective in counted:
                continue
            counted.add(collective)
        sizes = [
            math.prod(map(int, filter(None, shape.split(",")))) * int(bits or 8) // 8
            for bits, shape in arrays
        ]
        if start and kind in ("all-gather", "collective-permute"):
            sizes = sizes[1:2]  # the result is (operand, received array, ...)
        sums = kinds.setdefault(kind, {"count": 0, "bytes": 0})
        sums["count"] += 1
        sums["bytes"] += sum(sizes)
    return kinds
