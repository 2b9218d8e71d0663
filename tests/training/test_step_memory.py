"""A compiled step: the arrays of a device, and what devices exchange."""

import math
import re

import jax
import jax.numpy as jnp
import pytest

from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig, ComputeConfig, FeatureConfig
from bert_jax.model.parameters import is_encoder_kernel
from bert_jax.objectives.causal import Causal
from bert_jax.objectives.electra import Electra, ReplacedTokens
from bert_jax.objectives.heads import HEADS
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.objectives.networks import make_model
from bert_jax.parallel.mesh import MeshConfig, batch_divisor, batch_sharding, make_mesh
from bert_jax.parallel.sharding import arrays_by_path
from bert_jax.training.estimate import collectives, named_topology
from bert_jax.training.optimizer import OptimizerConfig, bert_optimizer, make_schedule
from bert_jax.training.state import abstract_state
from bert_jax.training.step import compile_step

# The feed-forward layer has twice as many features as a token. Scores need heads * length
# numbers per token and logits 128 * predictions / length, which are fewer.
ROWS, LENGTH, FEATURES, LAYERS, PREDICTIONS = 64, 32, 64, 3, 8
OPTIMIZER = OptimizerConfig(learning_rate=1e-3)
MODES = {
    "fsdp": (MeshConfig(fsdp=True), {}, 1),
    "fsdp and scan": (MeshConfig(fsdp=True), {"scan_layers": True}, 1),
    "model": (MeshConfig(model=2), {}, 1),
    "slices and accumulation": (MeshConfig(replica=2), {"scan_layers": True}, 4),
    "model, scan and remat": (
        MeshConfig(data=2, model=4),
        {"scan_layers": True, "remat": "full"},
        1,
    ),
    "all and accumulation": (
        MeshConfig(replica=2, data=2, model=2, fsdp=True),
        {"scan_layers": True},
        2,
    ),
}
OBJECTIVES = {
    "causal": lambda *of: Causal(BertForPreTraining(*of)),
    "electra": lambda *of: ReplacedTokens(Electra(*of)),
    "masked": lambda *of: MlmNsp(BertForPreTraining(*of)),
    "sequence": lambda *of: _head("sequence", *of),
    "token": lambda *of: _head("token", *of),
}


def _head(name, config, compute):
    return HEADS[name](make_model(config, name, 3, FeatureConfig(), compute))


# Parameters that do not change the loss. Their gradient is a constant, which is not sent.
UNUSED = {"causal": ("pooler", "nsp")}
LONG = ("fsdp", "model", "model, scan and remat", "slices and accumulation")


def compiled(kind, mode, dtype, devices=None):
    """The compiled step of a mode, as text, its BertConfig, and its abstract state."""
    mesh_config, compute, accumulation = MODES[mode]
    config = BertConfig(
        vocab_size=100,
        hidden_size=FEATURES,
        num_layers=LAYERS,
        num_heads=4 if mesh_config.model == 4 or kind == "electra" else 2,
        intermediate_size=2 * FEATURES,
        max_positions=LENGTH,
        causal=kind == "causal",
    )
    objective = OBJECTIVES[kind](config, ComputeConfig(dtype=dtype, **compute))
    mesh = make_mesh(mesh_config, devices)
    optimizer = bert_optimizer(OPTIMIZER)
    state = abstract_state(objective, optimizer, mesh, fsdp=mesh_config.fsdp)
    step = compile_step(objective, OPTIMIZER, state, accumulation=accumulation)
    tokens = ("input_ids", "token_type_ids", "attention_mask", "labels")
    masked = ("mlm_positions", "mlm_ids", "mlm_weights")
    sequences = ("label", "weights")
    shapes = (
        dict.fromkeys(tokens, (ROWS, LENGTH))
        | dict.fromkeys(masked, (ROWS, PREDICTIONS))
        | dict.fromkeys(sequences, (ROWS, 1))
        | {"nsp_labels": (ROWS,)}
    )
    batch = {
        name: jax.ShapeDtypeStruct(
            shape,
            jnp.float32 if name.endswith("weights") else jnp.int32,
            sharding=batch_sharding(mesh),
        )
        for name, shape in shapes.items()
    }
    lowered = step.lower(state, batch, make_schedule(OPTIMIZER, 100))
    return lowered.compile().as_text(), config, state


def largest_array(kind, mode, dtype):
    """The size of the largest float array of a step's program, and a device's share.

    Layers stacked by a scan count separately.
    """
    program, config, _ = compiled(kind, mode, dtype)
    sizes = set()
    for shape in re.findall(r"\bb?f\d+\[([\d,]+)\]", program):
        sides = [int(side) for side in shape.split(",")]
        sizes.add(math.prod(sides[sides[0] == LAYERS :]))
    mesh_config, _, accumulation = MODES[mode]
    own_tokens = ROWS * LENGTH // accumulation // batch_divisor(make_mesh(mesh_config))
    own_features = max(FEATURES, config.intermediate_size // mesh_config.model)
    return max(sizes), own_tokens * own_features


@pytest.mark.parametrize(
    "dtype", [pytest.param("float32", marks=pytest.mark.long), "bfloat16"]
)
@pytest.mark.parametrize(
    "mode",
    [
        *("fsdp and scan", "all and accumulation"),
        *(pytest.param(mode, marks=pytest.mark.long) for mode in LONG),
    ],
)
def test_a_device_computes_only_its_rows(mode, dtype):
    """With dropout, forward and backward, for every sharding of the parameters."""
    largest, share = largest_array("masked", mode, dtype)
    assert largest <= share


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted(OBJECTIVES.keys() - {"masked"}))
def test_a_device_computes_only_its_rows_for_every_objective(kind):
    largest, share = largest_array(kind, "fsdp and scan", "bfloat16")
    assert largest <= share


def in_loops(program):
    """The lines of a program's loops, including the functions that they call."""
    functions, name = {}, ""
    for line in program.splitlines():
        start = re.match(r"(?:ENTRY )?%(\S+) \(.*\{$", line)
        if start:
            name = start[1]
        functions.setdefault(name, []).append(line)
    pending = re.findall(r"body=%([^\s,]+)", program)
    lines, visited = [], set()
    while pending:
        name = pending.pop()
        if name in visited:
            continue
        visited.add(name)
        lines += functions[name]
        text = "\n".join(functions[name])
        pending += re.findall(r"(?:body|calls|to_apply)=%([^\s,]+)", text)
    return lines


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("masked", "float32"),
        *(
            pytest.param(kind, "bfloat16", marks=pytest.mark.long)
            for kind in ("causal", "masked", "sequence", "token")
        ),
    ],
)
def test_devices_exchange_each_gradient_once(kind, dtype):
    """Including gradients of the table, which has two uses, and of microbatches.

    CPUs exchange float32 numbers with every dtype. The rest are the sums of the metrics.
    """
    program, _, state = compiled(kind, "slices and accumulation", dtype)
    parameters = 0
    for path, leaf in arrays_by_path(state.params).items():
        if set(path.split("/")).isdisjoint(UNUSED.get(kind, ())):
            parameters += leaf.size
    exchanged = collectives(program)
    assert set(exchanged) == {"all-reduce"}
    assert 4 * parameters < exchanged["all-reduce"]["bytes"] < 4 * (parameters + 20)
    lines = in_loops(program)
    assert any(" dot(" in line for line in lines)
    assert not collectives("\n".join(lines))


@pytest.mark.long
@pytest.mark.usefixtures("tpu_compiler")
def test_tpus_exchange_each_gradient_once():
    """In bfloat16 if it belongs to a kernel of the encoder, otherwise in float32."""
    devices = named_topology("v5e:2x4").devices
    mode = "slices and accumulation"
    program, _, state = compiled("masked", mode, "bfloat16", devices)
    gradients = 0
    for path, leaf in jax.tree.leaves_with_path(state.params):
        gradients += leaf.size * (2 if is_encoder_kernel(path) else 4)
    exchanged = collectives(program)
    assert set(exchanged) == {"all-reduce"}
    assert gradients < exchanged["all-reduce"]["bytes"] < gradients + 4 * 20
    assert not collectives("\n".join(in_loops(program)))
