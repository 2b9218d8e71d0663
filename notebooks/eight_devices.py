# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Eight TPU devices without owning one
#
# A large BERT is trained on many devices at the same time. This notebook shows how the
# work is split: which device stores which part of a matrix, what the devices send each
# other, and whether a model fits into the memory of a TPU chip.
#
# You need no TPU, because JAX can simulate eight devices on one processor. They are slow,
# but arrays are split and exchanged as on a real slice. The TPU compiler also runs on any
# machine: it compiles a training step for a slice, and reports how much memory the step
# needs.

# %%
import dataclasses
import os

# Both must be set before JAX looks for its devices.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
SHORT = bool(os.environ.get("NOTEBOOK_SHORT"))  # the test suite runs a short form

import jax
import matplotlib.pyplot as plt
import numpy as np
from jax.sharding import NamedSharding

from bert_jax import figures
from bert_jax.errors import UserError
from bert_jax.model.config import MeshConfig
from bert_jax.parallel.mesh import batch_sharding, make_mesh, put_batch
from bert_jax.parallel.sharding import partition_spec
from bert_jax.training import estimate
from bert_jax.training.config import train_config
from bert_jax.training.optimizer import bert_optimizer, make_schedule
from bert_jax.training.pretrain import pretraining_objective
from bert_jax.training.state import abstract_state, init_state
from bert_jax.training.step import compile_step

jax.devices()

# %% [markdown]
# ## 1. A mesh is a grid of devices
#
# Each axis of the grid has a name. Devices along `data` each compute some rows of a batch,
# and devices along `model` share the large matrices of the network. The third axis,
# `replica`, is for several TPU slices, which are connected by a slower network.

# %%
MESHES = {
    "data=8": MeshConfig(data=8),
    "data=4, model=2": MeshConfig(data=4, model=2),
    "data=2, model=4": MeshConfig(data=2, model=4),
    "data=8, fsdp": MeshConfig(data=8, fsdp=True),
}
for name, config in MESHES.items():
    mesh = make_mesh(config)
    print(f"{name:16} devices {mesh.device_ids.squeeze(0).tolist()}")

# %% [markdown]
# A **sharding** assigns each part of an array to a device. bert_jax has one table of rules,
# from the name of a parameter to the axes that split its dimensions. `None` means that a
# dimension is not split.

# %%
WIDTH, WORDS = 768, 30592  # of BERT BASE; the vocabulary is padded to a multiple of 128
SHAPES = {
    "embeddings/word/embedding": (WORDS, WIDTH),
    "encoder/layer_0/attention/query/kernel": (WIDTH, 12, 64),
    "encoder/layer_0/intermediate/kernel": (WIDTH, 4 * WIDTH),
    "encoder/layer_0/feed_forward_output/kernel": (4 * WIDTH, WIDTH),
    "encoder/layer_0/attention_norm/bias": (WIDTH,),
}
for name, shape in SHAPES.items():
    print(f"{name:44} {shape!s:14} {partition_spec(name, shape)}")

# %% [markdown]
# The picture shows three arrays on the four meshes. The number in a block is the device
# that stores it. Several numbers mean several copies.

# %%
TABLE, KERNEL = "embeddings/word/embedding", "encoder/layer_0/intermediate/kernel"
arrays = {}
for name, config in MESHES.items():
    mesh = make_mesh(config)
    kernel = partition_spec(KERNEL, SHAPES[KERNEL], 8 if config.fsdp else 1)
    table = partition_spec(TABLE, SHAPES[TABLE])
    arrays[name] = {
        "batch, 256 x 512": (batch_sharding(mesh), (256, 512)),
        "word table": (NamedSharding(mesh, table), SHAPES[TABLE]),
        "feed-forward kernel": (NamedSharding(mesh, kernel), SHAPES[KERNEL]),
    }
figures.shards(arrays)

# %% [markdown]
# *Three arrays on eight devices. The rows of the batch are always split along `data`. With
# `model=2` two devices have one half each of the word table and of the feed-forward layer.
# With `fsdp` every device stores one eighth of a kernel, and gets the rest when a layer
# needs it.*
#
# ## 2. The memory of a device
#
# Training stores each parameter and Adam's two moments in float32, which is 12 bytes for
# each parameter. This sum needs only the shapes, so no memory is allocated here.


# %%
def bert(**changes):
    """The config of a pretraining run; ``changes`` replace whole groups of settings."""
    settings = dict(
        model=dict(
            vocab_size=30522,
            hidden_size=1024,
            num_layers=2 if SHORT else 24,
            num_heads=16,
            intermediate_size=4096,
        ),
        data={},
        optimizer=dict(learning_rate=1e-4),
        compute=dict(dtype="bfloat16", scan_layers=True),
        phases=(
            dict(steps=1, batch_size=128, sequence_length=512, max_predictions=77),
        ),
    )
    return train_config(settings | changes)


def state_bytes(config, mesh_config):
    """Bytes of parameters and optimizer on each device."""
    state = abstract_state(
        pretraining_objective(config),
        bert_optimizer(config.optimizer),
        make_mesh(mesh_config),
        fsdp=mesh_config.fsdp,
    )
    return sum(
        np.prod(leaf.sharding.shard_shape(leaf.shape)) * 4
        for leaf in jax.tree.leaves((state.params, state.opt_state))
    )


large = bert()
held = {name: state_bytes(large, mesh) / 2**30 for name, mesh in MESHES.items()}
fig, ax = plt.subplots(figsize=(7, 2.4), layout="constrained")
ax.bar_label(ax.barh(list(held), list(held.values())), fmt=" %.2f GiB")
ax.set(xlim=(0, max(held.values()) * 1.2), xlabel="GiB on each device")
ax.set_title("BERT LARGE, 336,226,108 parameters")
ax.invert_yaxis()
plt.show()

# %% [markdown]
# *Memory for the parameters and the optimizer of BERT LARGE on each of eight devices.
# `data` alone does not help, because every device has a copy. `model` and `fsdp` do.*
#
# ## 3. The result does not depend on the mesh
#
# Eight devices must learn the same as one. We train a small BERT on random tokens, on one
# device and on each mesh, and compare the losses.

# %%
small = bert(
    model=dict(
        vocab_size=1000,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        intermediate_size=256,
        max_positions=32,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    ),
    optimizer=dict(learning_rate=1e-3),
    compute=dict(dtype="float32"),
    phases=(dict(steps=10, batch_size=16, sequence_length=32, max_predictions=4),),
)
random = np.random.default_rng(0)
ids = random.integers(5, 1000, (16, 32), np.int32)
batch = {
    "input_ids": ids,
    "token_type_ids": np.zeros_like(ids),
    "attention_mask": np.ones_like(ids),
    "mlm_positions": np.tile(np.int32([3, 9, 20, 28]), (16, 1)),
    "mlm_ids": ids[:, [3, 9, 20, 28]],
    "mlm_weights": np.ones((16, 4), np.float32),
    "nsp_labels": random.integers(0, 2, 16, np.int32),
}


def losses(mesh_config, devices=None):
    """The losses of ten steps on a mesh."""
    mesh = make_mesh(mesh_config, devices)
    objective = pretraining_objective(small)
    optimizer = bert_optimizer(small.optimizer)
    abstract = abstract_state(objective, optimizer, mesh, fsdp=mesh_config.fsdp)
    state = init_state(objective, optimizer, abstract, seed=0)
    step = compile_step(objective, small.optimizer, abstract)
    schedule = make_schedule(small.optimizer, 10)
    found = []
    for _ in range(10):
        state, sums = step(state, put_batch(batch, mesh), schedule)
        found.append(float(sums["step_loss"]))
    return np.array(found)


alone = losses(MeshConfig(), jax.devices()[:1])
print("one device      ", *(f"{loss:.4f}" for loss in alone))
for name in ["data=4, model=2"] if SHORT else MESHES:
    found = losses(MESHES[name])
    assert np.allclose(found, alone, rtol=1e-4)
    print(f"{name:16} largest difference {np.abs(found - alone).max():.1e}")

# %% [markdown]
# The differences are rounding errors: eight devices add up the same numbers in another
# order.
#
# ## 4. Collectives
#
# The code of bert_jax sends nothing. The compiler reads the shardings of the state and the
# batch, finds the operations that need numbers from another device, and adds a
# **collective** to each:
#
# - `all-reduce`: every device gets the sum over all devices, for example of the
#   gradients.
# - `all-gather`: every device gets the parts of the other devices.
# - `reduce-scatter`: each device gets its own part of a sum.

# %%
traffic = {}
for name in ["data=8"] if SHORT else MESHES:
    config = dataclasses.replace(small, mesh=MESHES[name])
    lowered, *_ = estimate.lower_step(config, config.phases[0], make_mesh(config.mesh))
    traffic[name] = estimate.collectives(lowered.compile().as_text())
    for kind, found in sorted(traffic[name].items()):
        print(
            f"{name:16} {found['count']:3} x {kind:18} {found['bytes'] / 1e3:7,.0f} kB"
        )

# %% [markdown]
# With `data` alone the gradients are summed once, about four bytes for each parameter. With
# `model` every layer has collectives, so these devices should be neighbours. With `fsdp`
# the kernels are sent as well.
#
# ## 5. Compile for a TPU slice
#
# The TPU compiler is a Python package, `libtpu`. Its input is the name of a slice, such as
# `v5e:2x4` for eight chips, and the training step of a run. Its report lists what a chip
# must store: arguments (the state and the batch) and temporaries (activations, gradients).
# If the kernel dies here, start Jupyter after `ulimit -s unlimited`, because the compiler
# needs a large stack.

# %%
TOPOLOGY = "v5e:2x4"  # "v5e:16x16" is a whole pod, "v4:2x2x2", "v6e:2x4", ...
try:
    topology = None if SHORT else estimate.named_topology(TOPOLOGY)
except UserError as error:
    topology = print(error)

REMAT = dict(dtype="bfloat16", scan_layers=True, remat="full")
TRIES = {
    "as it is": {},
    "remat": dict(compute=REMAT),
    "remat, fsdp": dict(compute=REMAT, mesh=dict(fsdp=True)),
}
reports = {}
for name, changes in TRIES.items() if topology else ():
    config = bert(**changes)
    reports[name] = estimate.estimate_step(config, config.phases[0], topology)
    answer = "fits" if reports[name]["fits"] else "does not fit"
    print(f"{name:12} {answer}, compiled in {reports[name]['compile_seconds']:.0f} s")

# %% [markdown]
# These are three ways to train BERT LARGE on eight chips of 16 GiB, with 128 sequences of
# 512 tokens in a step. `remat` computes activations again in the backward pass instead of
# storing them. `fsdp` splits parameters and optimizer between the chips.

# %%
if reports:
    kinds = {
        "state and batch": [r["argument_bytes"] / 2**30 for r in reports.values()],
        "temporaries": [r["temp_bytes"] / 2**30 for r in reports.values()],
    }
    fig, ax = plt.subplots(figsize=(7, 2.6), layout="constrained")
    left = np.zeros(len(reports))
    for label, sizes in kinds.items():
        ax.barh(list(reports), sizes, left=left, label=label)
        left += sizes
    limit = topology.chip.memory / 2**30
    ax.axvline(limit, color="k", linestyle="--", label=f"a chip has {limit:.0f} GiB")
    ax.set(xlabel="GiB of a chip", title=f"BERT LARGE, 128 x 512, on {TOPOLOGY}")
    ax.invert_yaxis()
    ax.legend(fontsize=8)
    plt.show()

# %% [markdown]
# *Memory of one chip, as the compiler counts it. Bars that end left of the dashed line
# fit.*
#
# The report also has the collectives of a step and its FLOPs. Divided by the peak of the
# chip, the FLOPs are a lower bound for the time of a step. The collectives of a scanned
# layer are counted once, not 24 times.

# %%
PEAK = 197e12  # FLOP/s of a v5e chip
for name, report in reports.items():
    sent = {
        kind: f"{t['bytes'] / 1e6:,.0f} MB" for kind, t in report["collectives"].items()
    }
    print(f"{name:12} at least {report['flops'] / PEAK:.3f} s a step; {sent}")

# %% [markdown]
# ## Next steps
#
# - Change `TOPOLOGY` to `"v5e:16x16"`, a pod of 256 chips, and `batch_size` to 2048.
# - Leave `scan_layers` out: the step needs less memory, but compiles more slowly.
# - Estimate any config from a shell:
#   `bert_jax estimate --config large --topology v5e:4x4`.
# - On a real slice only the number of devices differs. The settings of this notebook's
#   meshes are `--mesh.fsdp=True` and `--mesh.model=2`.
