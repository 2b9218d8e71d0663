"""The engine: the one loop that every objective trains in, and the workdir it leaves.

A workdir holds config.json, the vocabulary, metrics.jsonl, tensorboard/ and checkpoints/.
The same command on the same workdir goes on from the newest checkpoint, bit for bit, on
any number of processes.
"""

import collections
import copy
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax
from etils import epath
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.data.pipeline import training_iterator
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import Preempted, UserError
from bert_jax.files import read_json, write_json
from bert_jax.interop.checkpoints import CheckpointStore
from bert_jax.objectives.objective import Batch, Objective, Params
from bert_jax.parallel.distributed import StopRequests, check_same, is_leader
from bert_jax.parallel.mesh import put_batch, steps_ahead
from bert_jax.parallel.remote import RunFolder
from bert_jax.training.metrics import (
    MetricWriter,
    NoWriter,
    Reporter,
    check_finite,
)
from bert_jax.training.optimizer import OptimizerConfig, bert_optimizer, make_schedule
from bert_jax.training.state import (
    TrainState,
    abstract_state,
    init_state,
    new_parameters,
)
from bert_jax.training.step import compile_step

HostBatch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Job:
    """What the engine is to do.

    batches: item t is this process's rows of the batch of step t, for all steps of the
      run; a pure function of t. given: parameters to begin with, for any part of the
      model; the others are drawn.
    evaluates: whether a step is followed by ``evaluate(step, params, reporter,
      progress)``. What must outlive the process, such as the best score so far, it keeps
      in ``progress``, a JSON-able dictionary that checkpoints hold too.
    identity: what config.json says of the run. differences: of the identity in a workdir
      and this one, those that keep the run from going on there.
    accumulation, log_every, checkpoint_every, keep_checkpoints, threads, prefetch: see
      TrainConfig. one_program: see compile_step. flops: see Reporter.
    """

    objective: Objective
    optimizer: OptimizerConfig
    batches: Sequence[HostBatch]
    mesh: Mesh
    identity: dict[str, Any]
    differences: Callable[[dict[str, Any], dict[str, Any]], list[str]]
    evaluates: Callable[[int], bool]
    evaluate: Callable[[int, Params, Reporter, dict[str, Any]], None]
    flops: Callable[[Batch], float]
    tokenizer: Tokenizer | None = None
    given: Params | None = None
    fsdp: bool = False
    seed: int = 0
    accumulation: int = 1
    log_every: int = 100
    checkpoint_every: int = 1000
    keep_checkpoints: int = 3
    threads: int = 1
    prefetch: int = 8
    one_program: bool = True


def run(
    job: Job, folder: RunFolder, log: Callable[[str], None]
) -> tuple[TrainState, dict[str, Any]]:
    """Trains to the last step, from the newest checkpoint; returns state and progress.

    Nothing is written before everything was checked, and a workdir in which no checkpoint
    or result lies belongs to nobody: a run that failed before its first step does not
    keep the corrected one out. Raises Preempted, with the state saved, where the
    processes are asked to stop, and DivergenceError where a number is not finite.
    """
    check_same(job.identity, "config or data; start all with the same command")
    if is_leader():
        _check_owner(job, folder)
    optimizer = bert_optimizer(job.optimizer)
    abstract = abstract_state(job.objective, optimizer, job.mesh, fsdp=job.fsdp)
    checkpoints = CheckpointStore(folder.checkpoints, job.keep_checkpoints)
    stop_requests = StopRequests()
    writer: MetricWriter | NoWriter = NoWriter()
    try:
        first = checkpoints.latest_step or 0
        if first:
            state, saved = checkpoints.restore(abstract)
            progress = saved.get("progress", {})
            log(f"resuming at step {first:,}")
        else:
            state = init_state(
                job.objective,
                optimizer,
                job.mesh,
                job.seed,
                fsdp=job.fsdp,
                given=job.given,
            )
            progress = {}
            if job.given and (new := new_parameters(abstract, job.given)):
                log(f"initialised at random: {', '.join(new)}")
        if is_leader():
            _claim(job, folder)
        folder.check_shared("config.json")
        if is_leader():
            writer = MetricWriter(folder.local, first)
        schedule = make_schedule(job.optimizer, len(job.batches))
        reporter = Reporter(job.objective, schedule, writer, log, job.flops)
        state = _loop(
            job, state, abstract, progress, reporter, checkpoints, stop_requests, folder
        )
    finally:
        stop_requests.close()
        checkpoints.close()
        writer.close()
        folder.upload()
    return state, progress


def _loop(
    job: Job,
    state: TrainState,
    abstract: TrainState,
    progress: dict[str, Any],
    reporter: Reporter,
    checkpoints: CheckpointStore,
    stop_requests: StopRequests,
    folder: RunFolder,
) -> TrainState:
    """All steps that are left.

    The order at each is: step, report, evaluation, checkpoint. So a checkpoint of step n
    finds all metrics up to n written, and a resumed run repeats none.
    """
    train_step = compile_step(
        job.objective,
        job.optimizer,
        abstract,
        accumulation=job.accumulation,
        log_every=job.log_every,
        whole=job.one_program,
    )
    total, first = len(job.batches), int(state.step)
    schedule = _everywhere(make_schedule(job.optimizer, total), job.mesh)
    data = training_iterator(
        job.batches, first=first, threads=job.threads, prefetch=job.prefetch
    )
    in_flight: collections.deque[jax.Array] = collections.deque()
    ahead = steps_ahead(job.mesh)
    norm_fn = jax.jit(optax.tree.norm)
    started = time.perf_counter()
    for step in range(first + 1, total + 1):
        asked = time.perf_counter()
        host_batch = next(data)
        waited = time.perf_counter() - asked
        with jax.transfer_guard("disallow"):
            batch = put_batch(host_batch, job.mesh)
            state, sums = train_step(state, batch, schedule)
        _flush(reporter, progress)  # of the step before: this one keeps the device busy
        in_flight.append(sums["steps"])
        if len(in_flight) > ahead:
            jax.block_until_ready(in_flight.popleft())
        if step == first + 1:  # compilation is not throughput
            jax.block_until_ready(sums)
            reporter.start_window()
        else:
            reporter.add_step(batch, waited)
        shape = "x".join(map(str, batch["input_ids"].shape))
        shapes = progress.setdefault("shapes", {})
        shapes[shape] = shapes.get(shape, 0) + 1

        last = step == total
        if step % job.log_every == 0 or last:
            reporter.report(step, sums)
        evaluates = job.evaluates(step)
        stops = stop_requests.reached(step) and not last
        saves = step % job.checkpoint_every == 0 or last or stops
        if evaluates or saves:
            _flush(reporter, progress)
            # A bad state must never replace a good checkpoint or be called the best. The
            # sums tell of the parameters before this step, the norm of those after it.
            norm = {"norm of the parameters": norm_fn(state.params)}
            check_finite(step, jax.device_get(sums | norm))
        if evaluates:
            job.evaluate(step, state.params, reporter, progress)
        if saves:
            now = time.perf_counter()
            progress["seconds"] = progress.get("seconds", 0.0) + now - started
            started = now
            reporter.writer.sync()
            folder.upload()
            # A copy: it is written in the background.
            notes = {"config": job.identity, "progress": copy.deepcopy(progress)}
            checkpoints.save(step, state, notes)
        if stops:
            raise Preempted(
                f"asked to stop after step {step} of {total}; saved: the same command "
                "goes on from there"
            )
        if evaluates:
            reporter.start_window()
    return state


def _flush(reporter: Reporter, progress: dict[str, Any]) -> None:
    """Writes the pending report; adds its tokens to those of the whole run."""
    sums = reporter.flush()
    for name in ("tokens", "computed_tokens") if sums else ():
        progress[name] = progress.get(name, 0.0) + sums[name]


def _everywhere(tree: Any, mesh: Mesh) -> Any:
    """Host values, the same in each process, as arrays on all devices."""
    whole = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(
        lambda x: jax.make_array_from_callback(np.shape(x), whole, lambda _: x), tree
    )


def _check_owner(job: Job, folder: RunFolder) -> None:
    """Raises UserError where the workdir holds another run that has something to lose."""
    path = folder.local / "config.json"
    if not path.exists() or not _has_results(folder):
        return
    saved = read_json(path, "the config of a run")
    found = job.differences(saved, job.identity)
    if found:
        raise UserError(
            f"{folder.local} holds another run ({'; '.join(found)}); use that config, or "
            "another --workdir"
        )


def _has_results(folder: RunFolder) -> bool:
    """Whether a checkpoint, a best model or the results of a run lie in the workdir."""
    if any((folder.local / name).exists() for name in ("best", "results.json")):
        return True
    checkpoints = epath.Path(folder.checkpoints)
    return checkpoints.exists() and any(p.name.isdigit() for p in checkpoints.iterdir())


def _claim(job: Job, folder: RunFolder) -> None:
    """Writes the vocabulary and config.json, which says whose workdir it is."""
    if job.tokenizer is not None:
        job.tokenizer.save(folder.local)
    write_json(folder.local / "config.json", job.identity)
