"""The checks of ``bert_jax doctor``: whether the processes of a job can train.

A check is a function that returns one line of facts, or raises an exception. All processes
of a job call the same checks in the same order.
"""

import faulthandler
import functools
import importlib.metadata
import os
import platform
import sys
import threading
import timeit
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.data.examples import ExampleConfig
from bert_jax.data.phases import Phase
from bert_jax.data.pipeline import largest_batch
from bert_jax.errors import UserError
from bert_jax.files import is_remote
from bert_jax.interop.train_state import CheckpointStore
from bert_jax.model.bert import attend_plain
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.device import activation_dtype, is_plain
from bert_jax.model.device import platform as kernel_platform
from bert_jax.model.kernels.attention import attend
from bert_jax.model.kernels.attention_fused import choose_attention
from bert_jax.model.layers import mask_function
from bert_jax.model.tokens import Tokens
from bert_jax.model.window import attend_in_blocks
from bert_jax.objectives.mlm_nsp import pretraining
from bert_jax.parallel.mesh import AXES, process_rows, put_batch, whole_mesh
from bert_jax.parallel.processes import check_same, on_leader
from bert_jax.progress import print_line
from bert_jax.training.config import OptimizerConfig
from bert_jax.training.metrics import peak_flops
from bert_jax.training.optimizer import bert_optimizer, make_schedule
from bert_jax.training.state import abstract_state, init_state
from bert_jax.training.step import compile_step
from bert_jax.training.workdir import RunFolder

_WINDOW = 64  # tokens on either side, in the check of attention
FUSED = {"tpu": "splash", "gpu": "cudnn"}  # kernels of attention
LIBRARIES = ("bert_jax", "jax", "flax", "optax", "orbax", "numpy", "libtpu", "nvidia")
# Loss and gradient norm of tiny_step() in float32 on a CPU, and the largest relative
# differences that are allowed. Programs for one to four CPU devices differ by 1e-6 in
# float32 and by 6e-3 in bfloat16.
STORED = 5.504397, 3.164875
TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-2}
_REPORT = "report it with all lines of this command"
ADVICE = {
    "devices": "pip install -e '.[gpu]' or '.[tpu]' in the folder of bert_jax, update "
    "the driver, end other programs that use the device, and start all processes",
    "product": "use another machine",
    "collective": "start the same command on all hosts, and open the ports between them",
    "attention": f"train with compute.attention_impl=plain, and {_REPORT}",
    "dropout": f"train with the other compute.dropout_impl, and {_REPORT}",
    "step in bfloat16": f"train with compute.dtype=float32, and {_REPORT}",
    "save": "use a --workdir that all hosts share and may write, or log in to the bucket",
    "processes": "install the same versions everywhere, and check its output",
}


def run_checks(
    checks: Mapping[str, Callable[[], str]],
    failed: list[str],
    log: Callable[[str], None],
    seconds: float,
) -> None:
    """Runs the checks in order, and logs a line for each.

    failed: list that receives the line of each failed check. A check that needs more than
    ``seconds`` (0: no limit) ends the process with code 2, because a driver that hangs
    cannot be stopped. Without a driver the checks after "devices" do not run.
    """

    def fail(name: str, reason: str) -> None:
        failed.append(f"{name}: {reason}; {ADVICE.get(name, _REPORT)}")
        log(f"failed {failed[-1]}")

    def give_up(name: str) -> None:
        fail(name, f"no answer in {seconds:g} s")
        log(f"not ready: {failed[0]}")
        faulthandler.dump_traceback(sys.__stderr__)
        os._exit(2)

    for name, check in checks.items():
        timer = threading.Timer(seconds or threading.TIMEOUT_MAX, give_up, [name])
        timer.daemon = True
        timer.start()
        try:
            log(f"ok {name}: {check()}")
        except UserError as error:
            fail(name, str(error))
        except Exception as error:
            print_line(traceback.format_exc().rstrip(), sys.stderr)
            fail(name, repr(error)[:500])
            if name == "devices":
                break
        finally:
            timer.cancel()


def versions() -> str:
    """The versions of Python and the libraries."""
    names = {(x.name, x.version) for x in importlib.metadata.distributions()}
    libraries = [f"{n} {v}" for n, v in sorted(names) if n.startswith(LIBRARIES)]
    return ", ".join([*libraries, f"Python {platform.python_version()}"])


def devices(drivers: Path = Path("/dev")) -> str:
    """The devices that JAX uses, and the machine.

    drivers: folder with a file for each device.
    """
    count, first = jax.device_count(), jax.local_devices()[0]
    patterns = ("nvidia[0-9]*", "accel[0-9]*", "vfio/[0-9]*")  # of GPUs, and of TPUs
    files = [file for pattern in patterns for file in drivers.glob(pattern)]
    if first.platform == "cpu" and files and not jax.config.jax_platforms:
        raise UserError(f"JAX uses the CPU, but there is {files[0]}")
    memory = (first.memory_stats() or {}).get("bytes_limit", 0) / 2**30
    facts = f"{count} x {first.device_kind}, processes: {jax.process_count()}, "
    facts += f"{memory:.1f} GiB each, " if memory else ""
    facts += f"driver: {' '.join(first.client.platform_version.split())}, "
    return facts + f"{platform.platform()}, {os.cpu_count()} cores"


def product() -> str:
    """The speed of a product of bfloat16 matrices on each device of this process."""
    local, seconds = jax.local_devices(), 0.0
    size = 512 if local[0].platform == "cpu" else 8192
    multiply = jax.jit(jnp.matmul)
    for device in local:
        ones = jax.device_put(np.ones((size, size), jnp.bfloat16), device)
        result = multiply(ones, ones)
        if not (result == size).all():
            raise UserError(f"{device} computes {result}, expected {size}")
        run = functools.partial(lambda x: multiply(x, x).block_until_ready(), ones)
        seconds = max(seconds, timeit.timeit(run, number=8) / 8)
    flops, peak = 2 * size**3 / seconds, peak_flops(local[:1])
    share = f", {flops / peak:.0%} of the peak {peak / 1e12:g}" if peak else ""
    return f"{flops / 1e12:.2f} TFLOP/s on the slowest device{share}"


def attention() -> str:
    """The attention of runs, and the device's fused kernel, over 512 tokens.

    Each is compared with the formula in float32, without and with a window. A fused kernel
    that agrees is recommended, because runs use it only on request.
    """
    dtype = activation_dtype("auto").name
    shape = {"length": 512, "dtype": dtype, "dropout_rate": 0.0, "causal": False}
    facts = _attention_of("auto", choose_attention("auto", **shape), dtype)
    kernel = FUSED.get(kernel_platform(), "auto")
    if choose_attention(kernel, **shape, required=False) == kernel:
        facts += (
            f"; {_attention_of(kernel, kernel, dtype)}; for rows of 512 tokens use it"
        )
        facts += f" with compute.attention_impl={kernel} and model.attention_dropout=0"
    return facts


def _attention_of(setting: str, name: str, dtype: str) -> str:
    """Compares compute.attention_impl=``setting`` with the formula."""
    values = np.random.RandomState(0).normal(size=(4, 2, 512, 2, 64))
    mask_BL = jnp.int32(np.arange(512) < [[512], [300]])
    tokens = Tokens.of_mask(mask_BL, mask_BL, mask_BL)
    used = mask_BL[..., None, None]  # vectors of padding have no meaning

    @functools.partial(jax.jit, static_argnums=0)
    def run(function, q, k, v, grad):
        outputs, gradients = jax.vjp(function, q, k, v)
        return outputs * used, *gradients(grad * used)

    def compare(facts: str, window: int) -> str:
        attends = tokens.attends(None, False, window)
        with jax.default_matmul_precision("highest"):
            formula = functools.partial(attend_plain, attends_BQL=attends)
            expected = run(formula, *jnp.float32(values))
        function = functools.partial(
            attend, tokens=tokens, window=window, implementation=setting
        )
        if is_plain(setting):
            function = formula
        if is_plain(setting) and window:
            function = functools.partial(
                attend_in_blocks, attend_plain, tokens=tokens, window=window
            )
        outputs = run(function, *jnp.asarray(values, dtype))
        return _compare(facts, outputs, expected, dtype)

    facts = compare(f"{name} in {dtype}", 0)
    return f"{facts}; {compare(f'with a window of {_WINDOW}', _WINDOW)}"


def dropout() -> str:
    """The share of values that each form of a dropout mask drops, and its time.

    Masks of 8 bits are recommended if they take a tenth less time, because GPUs and TPUs
    use them only on request.
    """
    facts, times, shape = [], {}, (2048, 2048)
    for name in ("plain", "bytes"):
        draw = jax.jit(functools.partial(mask_function(name), rate=0.125, shape=shape))
        kept = np.asarray(draw(jax.random.key(0)))
        share = 1 - kept.mean()
        neighbours = (kept == np.roll(kept, 1, axis=1)).mean()
        facts.append(f"{name} drops {share:.2%}, neighbours agree in {neighbours:.2%}")
        # 4 million draws: the standard errors are 0.016% and 0.02%. Both forms can drop
        # exactly an eighth; other rates of "bytes" are exact only over many keys.
        if abs(share - 1 / 8) > 0.001 or abs(neighbours - 25 / 32) > 0.0015:
            raise UserError(f"{facts[-1]}, expected 12.50% and 78.12%")
        run = functools.partial(_draw, draw)
        run()  # compiles the sum, for which otherwise only the first form would pay
        times[name] = timeit.timeit(run, number=8)
    if times["bytes"] < 0.9 * times["plain"]:
        share = times["bytes"] / times["plain"]
        facts.append(
            f"compute.dropout_impl=bytes takes {share:.0%} of the time: use it"
        )
    return ", ".join(facts)


def _draw(draw: Callable[[jax.Array], jax.Array]) -> None:
    """Draws a mask and waits for it."""
    draw(jax.random.key(1)).sum().block_until_ready()


def collective() -> str:
    """A sum over all devices of all processes."""
    numbers = _numbers()
    replicated = NamedSharding(numbers.sharding.mesh, PartitionSpec())
    add = jax.jit(lambda x: x.sum(axis=0), out_shardings=replicated)
    sums = {int(shard.data[0]) for shard in add(numbers).addressable_shards}
    count = len(numbers)
    facts = f"the sum of 1 to {count} over the devices is {', '.join(map(str, sums))}"
    if sums != {count * (count + 1) // 2}:
        raise UserError(facts)
    return facts


def step(dtype: str) -> str:
    """A training step of a tiny BERT on all devices, compared with its stored numbers."""
    numbers = tiny_step(dtype)
    facts = "loss {:.6g} and gradient norm {:.6g}, on a CPU {:.6g} and {:.6g}"
    return _compare(facts.format(*numbers, *STORED), numbers, STORED, dtype)


def tiny_step(dtype: str) -> tuple[float, float]:
    """Loss and gradient norm of a step with known parameters and tokens.

    Every device has the same rows, so the numbers do not depend on the number of devices.
    """
    mesh, settings = whole_mesh(), OptimizerConfig(learning_rate=1e-3)
    config = BertConfig(96, 128, 2, 2, 64, hidden_dropout=0, attention_dropout=0)
    objective = pretraining(config, ComputeConfig(dtype), ExampleConfig())
    optimizer = bert_optimizer(settings)
    abstract = abstract_state(objective, optimizer, mesh)
    random = np.random.RandomState(0)  # NumPy keeps its numbers in all versions
    # Two different rows with the arrays of a run. The values are below these limits.
    limits = {"input_ids": 96, "token_type_ids": 2, "mlm_positions": 300}
    limits |= {"mlm_ids": 96, "nsp_labels": 2}
    phase = Phase(steps=1, sequence_length=512, batch_size=2, max_predictions=20)
    rows = largest_batch(phase, ExampleConfig(), packs=False)
    for name, limit in limits.items():
        rows[name] = np.int32(random.randint(0, limit, rows[name].shape))
    rows["attention_mask"] = np.int32(np.arange(512) < [[512], [300]])
    rows["mlm_weights"] = np.ones_like(rows["mlm_weights"])
    local = process_rows(mesh, 2 * mesh.size) % 2
    batch = {name: array[local] for name, array in rows.items()}
    params = jax.tree.map(
        lambda x: np.float32(random.normal(0, 0.2, x.shape)), abstract.params
    )
    schedule = jax.device_put(make_schedule(settings, 1), abstract.step.sharding)
    with jax.default_matmul_precision("highest" if dtype == "float32" else None):
        state = init_state(objective, optimizer, abstract, 0, params)
        train_step = compile_step(objective, settings, abstract)
        _, sums = train_step(state, put_batch(batch, mesh), schedule)
    return float(sums["step_loss"]), float(sums["grad_norm"])


def save(workdir: str) -> str:
    """Saves and restores an array of all devices in ``workdir``, and deletes it.

    The checksum of the array proves that no bit has changed. If ``workdir`` does not exist,
    the nearest folder above it is used, so that no empty folder is left.
    """
    folder = epath.Path(RunFolder(workdir).checkpoints).parent
    while not (is_remote(workdir) or folder.exists()):
        folder = folder.parent
    place, tree = folder / ".doctor", {"numbers": _numbers()}

    def clear() -> None:
        on_leader(lambda: place.exists() and place.rmtree())

    clear()  # a killed process may have left it
    try:
        with CheckpointStore(place, 1) as store:
            store.save(1, tree, {})
            store.wait()
            if store.restore(tree, print_line) is None:
                raise UserError(f"{place} does not have the array that was saved there")
    finally:
        clear()
    return f"{tree['numbers'].nbytes / 1e6:.1f} MB saved in {place} and restored"


def processes(failed: list[str]) -> str:
    """Compares all processes. failed: lines of the failed checks of this process."""
    check_same([versions(), *failed], "their versions or checks")
    return f"{jax.process_count()} with the same versions and results"


def _compare(facts: str, numbers: Any, expected: Any, dtype: str) -> str:
    """The facts and the largest difference, relative to the largest number of an array."""
    # NumPy, because a maximum of XLA on a CPU loses NaN.
    pairs = zip(map(np.float32, numbers), map(np.float32, expected), strict=True)
    difference = np.max([np.max(np.abs(a - b)) / np.max(np.abs(b)) for a, b in pairs])
    limit = TOLERANCES[dtype]
    facts += f"; relative difference {difference:.1g}, expected at most {limit:g}"
    if not difference <= limit:
        raise UserError(facts)
    return facts


def _numbers() -> jax.Array:
    """int32 (devices, 65536): a row of ones, a row of twos and so on, for each device."""
    mesh = whole_mesh()
    rows = np.repeat(np.arange(1, mesh.size + 1, dtype=np.int32)[:, None], 1 << 16, 1)
    place = NamedSharding(mesh, PartitionSpec(AXES))
    return jax.make_array_from_callback(rows.shape, place, rows.__getitem__)
