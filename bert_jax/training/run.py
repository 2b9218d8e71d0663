"""The engine: the training loop of every objective, and the workdir that it writes.

A workdir contains config.json, the vocabulary, metrics.jsonl, tensorboard/ and
checkpoints/. The same command on the same workdir resumes from the newest checkpoint. On
the same kind and number of devices the results are the same, bit for bit. On other devices
the run uses the same examples in the same order, and only rounding errors differ.
"""

import collections
import contextlib
import dataclasses
import functools
import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.data.pipeline import drawn_ahead
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import DivergenceError, UserError
from bert_jax.files import write_json
from bert_jax.interop.train_state import CheckpointStore
from bert_jax.model.device import activation_dtype
from bert_jax.objectives.objective import Batch, Objective, Params
from bert_jax.parallel.mesh import put_batch, steps_ahead
from bert_jax.parallel.processes import (
    StopRequested,
    check_same,
    on_leader,
    stop_requests,
)
from bert_jax.progress import Log
from bert_jax.training import hooks, metrics
from bert_jax.training.config import RunConfig
from bert_jax.training.hooks import Hook, Profile, Saver, Training, call_hooks
from bert_jax.training.metrics import MetricWriter, Reporter, RunProgress
from bert_jax.training.optimizer import Schedule, bert_optimizer, make_schedule
from bert_jax.training.owner import check_folder, with_changes
from bert_jax.training.state import (
    TrainState,
    abstract_state,
    init_state,
    new_parameters,
)
from bert_jax.training.step import Sums, compile_step
from bert_jax.training.workdir import RunFolder

HostBatch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Job:
    """A run: its objective, its data and its settings.

    batches: one batch for each step. Item t contains this process's rows of the batch of
      step t, and depends only on t.
    identity: the settings, as config.json contains them.
    hooks: what the run does after a step besides reports and saves, such as an evaluation;
      see ``training.hooks``. They run after the report and before the save.
    change_settings: resume an unfinished run with other settings. The vocabulary, and the
      rows of a fine-tuning, must be the same.
    initial_params: parameters from a checkpoint, for any part of the model. All other
      parameters are randomly initialised.
    start_state: folder of the checkpoints of another run, and the step of a checkpoint, or
      None for the newest. The run resumes there if it has no checkpoint itself.
    average, keep_checkpoints, keep_checkpoints_every, threads, prefetch: see TrainConfig.
    check_data: function that raises UserError if the data are damaged. All processes call
      it after each report with wait=False, and before each save with wait=True, which waits
      until all data are checked. It returns whether this call may have waited.
    """

    config: RunConfig
    objective: Objective
    batches: Sequence[HostBatch]
    mesh: Mesh
    identity: dict[str, Any]
    hooks: Sequence[Hook] = ()
    change_settings: bool = False
    tokenizer: Tokenizer | None = None
    initial_params: Params | None = None
    start_state: tuple[os.PathLike, int | None] | None = None
    average: float = 0.0
    keep_checkpoints: int = 1
    keep_checkpoints_every: int = 0
    threads: int = 1
    prefetch: int = 8
    check_data: Callable[..., bool] = lambda *, wait: False


def run(job: Job, folder: RunFolder, log: Log) -> tuple[TrainState, RunProgress, int]:
    """Trains from the newest undamaged checkpoint, until the last step or an early end.

    Returns the state, the progress, and the step at which this call started. If an
    evaluation ended the run early, ``progress.stopped_at`` is its last step.
    Nothing is written before all checks have passed, or if no step is left. A workdir
    without checkpoints or results can be reused.

    Raises UserError if the workdir belongs to a run with other settings and
    ``job.change_settings`` is False. Raises DivergenceError if a number is not finite.
    Raises Preempted after a SIGTERM, and KeyboardInterrupt after a Ctrl-C, once the state
    is saved.
    """
    began = time.perf_counter()
    config, total = job.config, len(job.batches)
    schedule = make_schedule(config.optimizer, total)
    check_same(job.identity, "config or data; start all with the same command")
    on_leader(lambda: check_folder(folder, job.identity, job.change_settings))
    optimizer = bert_optimizer(config.optimizer, job.objective.frozen)
    abstract = abstract_state(
        job.objective,
        optimizer,
        job.mesh,
        fsdp=config.mesh.fsdp,
        average=job.average > 0,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(folder.upload)
        # The signals are handled until the last save is complete.
        stop_requested = stack.enter_context(stop_requests())
        stack.enter_context(hooks.profiler_server(config.profile_port))
        save_every = config.steps_between_saves(total)
        keep = job.keep_checkpoints, job.keep_checkpoints_every, save_every
        store = CheckpointStore(folder.checkpoints, *keep)
        stack.push(store)
        state, saved = _first_state(job, store, optimizer, abstract, log)
        first, progress = int(state.step), RunProgress(**saved.get("progress", {}))
        if first > total:
            actual = f"the run has already done {first:,} steps"
            raise UserError(f"{actual}, but its config has {total:,}; add steps")
        if first == total or progress.stopped_at is not None:
            return state, progress, first
        identity = job.identity
        if saved:
            identity = with_changes(identity, saved["config"], first, total, log)
        writer = on_leader(lambda: _open_writer(job, folder, identity, progress, first))
        if writer is not None:
            stack.callback(writer.close)
            # The lines also have the losses of processes that were killed before a save.
            lost = max(progress.lost_seconds, writer.lost_seconds)
            lost += max(0.0, writer.last_seconds - progress.seconds)
            progress.lost_seconds = lost
        if saved:
            progress.lost_seconds += time.perf_counter() - began
        folder.check_shared("config.json")
        late = steps_ahead(job.mesh) > 0
        observers = writer, log, progress, first, late
        reporter = Reporter(config, job.objective, schedule, *observers)
        stack.callback(reporter.bar.close)
        training = Training(reporter, total, first, state)
        profile = Profile(config.profile_steps, folder.local / metrics.TENSORBOARD)
        stack.callback(profile.close)
        saver = Saver(
            (save_every, job.keep_checkpoints_every),
            functools.partial(_save, job, folder, store, identity, reporter),
        )
        train_step = _train_step(job, abstract, schedule)
        try:
            profile(training)  # the first step may be the first profiled one
            if not first:
                call_hooks(job.hooks, training)
            all_hooks = _hooks(job, profile, stop_requested, saver)
            _loop(job, training, train_step, all_hooks)
            with reporter.timed("save_seconds"):
                store.wait()
            reporter.log_time()
        except DivergenceError as error:
            store.wait()
            advice = divergence_advice(config, store.steps())
            raise DivergenceError(f"{error}; {advice}") from error
        return training.state, progress, first


def _first_state(
    job: Job,
    store: CheckpointStore,
    optimizer: optax.GradientTransformation,
    abstract: TrainState,
    log: Log,
) -> tuple[TrainState, dict[str, Any]]:
    """State and notes of the newest checkpoint, or a new state and {}."""
    is_new = not store.steps()
    restored = store.restore(abstract, log, job.start_state)
    if restored is not None:
        state, notes = restored
        state = state.completed(abstract)
        if notes["progress"].get("reported") == int(state.step):
            # The last step of a run is reported even if it is not a multiple of log_every.
            state = state.without_sums(state.sums)
        if not job.config.optimizer.skip_spikes:  # an earlier setting allowed them
            state = state.without_sums(["skipped"])
        if is_new:  # the state of another run
            _check_steps_left(job, int(state.step))
            notes["progress"]["tracker_id"] = ""  # the other run keeps its tracker
        log(f"resuming at step {int(state.step):,}")
        return state, notes
    params = job.initial_params
    state = init_state(job.objective, optimizer, abstract, job.config.seed, params)
    if params:
        # An objective of version 0.2 has no base class, and so no attribute ``unused``.
        unused = getattr(job.objective, "unused", ())
        new = {*new_parameters(abstract, params)} - {*unused}
        if new:
            log(f"initialised at random: {', '.join(sorted(new))}")
    return state, {}


def _check_steps_left(job: Job, done: int) -> None:
    """Raises UserError if a run would start with the state of its last step or later."""
    total = len(job.batches)
    if done >= total:
        actual = f"{job.start_state[0]}: a checkpoint after step {done:,}"
        raise UserError(
            f"{actual}, but this run ends at step {total:,}; add steps, because its phases "
            "also count the steps before the checkpoint"
        )


def _open_writer(
    job: Job,
    folder: RunFolder,
    identity: dict[str, Any],
    progress: RunProgress,
    first: int,
) -> MetricWriter:
    """Writes the vocabulary and config.json, and opens the metrics, in process 0."""
    if job.tokenizer is not None:
        job.tokenizer.save(folder.local)
    # Written before the first step, so that the same command resumes without
    # change_settings even if no step with changed settings is saved.
    write_json(folder.local / "config.json", identity)
    tracker = job.config.tracker_library()
    if tracker is not None:
        progress.tracker_id = progress.tracker_id or secrets.token_hex(8)
        place = folder.local.name, progress.tracker_id
        metrics.open_tracker(tracker, *place, identity)
    return MetricWriter(folder.local, first, tracker)


def _save(
    job: Job,
    folder: RunFolder,
    store: CheckpointStore,
    identity: dict[str, Any],
    reporter: Reporter,
    step: int,
    state: TrainState,
) -> None:
    """Saves the state, and the metrics until ``step``.

    The small files are uploaded before the state is saved: a run that resumes at ``step``
    keeps the metrics until then.
    """
    if job.check_data(wait=True):
        reporter.start_window()  # the wait is not counted as training time

    def upload_small_files() -> None:
        reporter.writer.sync()
        folder.upload()

    on_leader(upload_small_files)
    progress = dataclasses.asdict(reporter.progress)
    store.save(step, state, {"config": identity, "progress": progress})


def _train_step(
    job: Job, abstract: TrainState, schedule: Schedule
) -> Callable[[TrainState, Batch], tuple[TrainState, Sums]]:
    """The compiled step with its schedule."""
    config = job.config
    train_step = compile_step(
        job.objective,
        config.optimizer,
        abstract,
        accumulation=config.accumulation,
        log_every=config.log_every,
        average=job.average,
    )
    place = NamedSharding(job.mesh, PartitionSpec())
    return functools.partial(train_step, schedule=jax.device_put(schedule, place))


def _hooks(
    job: Job, profile: Profile, stop_requested: StopRequested, saver: Saver
) -> list[Hook]:
    """All hooks of a run, in their order.

    A checkpoint is written after the metrics of its step, so a resumed run does not write
    them again.
    """
    every, total = job.config.log_every, len(job.batches)

    def reports(step: int) -> bool:
        return step > 0 and (step % every == 0 or step == total)

    def report_rest(training: Training) -> None:
        if training.ends and not reports(training.step):  # an evaluation ended the run
            hooks.report(training)

    return [
        (1, profile),
        (reports, hooks.report),
        (reports, lambda training: job.check_data(wait=False)),
        (1, hooks.request(stop_requested)),
        *job.hooks,
        (1, report_rest),
        (1, saver),
        (1, hooks.stop),
    ]


def divergence_advice(config: RunConfig, checkpoints: Sequence[int]) -> str:
    """Advice after a run diverged. checkpoints: their steps, newest first."""
    changes = ["lower optimizer.learning_rate"]
    if config.optimizer.spike_norm:
        changes.append("raise optimizer.spike_norm")
    if activation_dtype(config.compute.dtype) != np.float32:
        changes.append("set compute.dtype=float32")
    if not config.optimizer.skip_spikes:
        changes.append("set optimizer.skip_spikes=True")
    change = " or ".join(changes)
    if not checkpoints:
        return f"no checkpoint was saved: {change}, and start again"
    resume = f"{change}, and resume with change_settings=True"
    if len(checkpoints) == 1:
        return f"the checkpoint of step {checkpoints[0]:,} is kept: {resume}"
    newest, *older = checkpoints
    steps = ", ".join(f"{step:,}" for step in reversed(older))
    return (
        f"the checkpoints of steps {steps} and {newest:,} are kept: {resume}; if the run "
        f"diverges again at once, delete checkpoint {newest}"
    )


def _loop(
    job: Job,
    training: Training,
    train_step: Callable[[TrainState, Batch], tuple[TrainState, Sums]],
    after_step: Sequence[Hook],
) -> None:
    """Runs all steps that are left, and the hooks of each step."""
    reporter, first = training.reporter, training.step
    shapes = training.progress.shapes
    data = drawn_ahead(
        job.batches,
        first=first,
        threads=job.threads,
        prefetch=job.prefetch,
        timeout=job.config.data_timeout,
    )
    in_flight: collections.deque[jax.Array] = collections.deque()
    ahead = steps_ahead(job.mesh)
    compiled: set[tuple[Any, ...]] = set()
    with contextlib.closing(data):
        while not training.ends:
            started = time.perf_counter()
            host_batch = next(data)
            waited = time.perf_counter() - started
            with jax.transfer_guard("disallow"):
                batch = put_batch(host_batch, job.mesh)
                training.advance(*train_step(training.state, batch))
            reporter.finish_report()
            in_flight.append(training.sums["steps"])
            if len(in_flight) > ahead:
                jax.block_until_ready(in_flight.popleft())
            shape = "x".join(map(str, batch["input_ids"].shape))
            shapes[shape] = shapes.get(shape, 0) + 1
            program = tuple((name, x.shape) for name, x in sorted(batch.items()))
            if program not in compiled:  # this step compiled: its time is not reported
                compiled.add(program)
                jax.block_until_ready(training.sums)
                seconds = time.perf_counter() - started - waited
                reporter.progress.compile_seconds += seconds
                reporter.start_window()
            else:
                reporter.add_step(training.step, batch, waited, training.sums)
            reporter.bar.update()
            call_hooks(after_step, training)
