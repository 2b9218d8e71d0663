"""The engine: the training loop of every objective, and the workdir that it writes.

A workdir contains config.json, the vocabulary, metrics.jsonl, tensorboard/ and
checkpoints/. The same command on the same workdir resumes from the newest checkpoint. On
the same kind and number of devices the results are the same, bit for bit. On other devices
the run uses the same examples in the same order, and only rounding errors differ.

config.json contains the settings that the run uses now. If a run is resumed with other
settings, the list "changes" gets an entry: the last step with the old settings, and the old
and the new value of each changed setting.
"""

import collections
import contextlib
import dataclasses
import functools
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.data.pipeline import drawn_ahead
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import DivergenceError, UserError, naming
from bert_jax.files import read_json, reading, write_json
from bert_jax.interop.train_state import CheckpointStore, newest_step
from bert_jax.model.kernels.device import activation_dtype
from bert_jax.objectives.objective import Batch, Objective, Params
from bert_jax.parallel.mesh import put_batch, steps_ahead
from bert_jax.parallel.processes import (
    StopRequested,
    check_same,
    is_leader,
    on_leader,
    stop_requests,
)
from bert_jax.runs import CURVES, METRICS, RESULTS
from bert_jax.training import metrics
from bert_jax.training.config import Change, RunConfig, changed_settings, shown
from bert_jax.training.metrics import MetricWriter, Reporter
from bert_jax.training.optimizer import bert_optimizer, make_schedule
from bert_jax.training.state import (
    TrainState,
    abstract_state,
    init_state,
    new_parameters,
)
from bert_jax.training.step import Sums, compile_step
from bert_jax.training.workdir import RunFolder

# Checksums in config.json that must not change, not even with change_settings. With
# another vocabulary the parameters have no meaning. With other rows the best score has no
# meaning.
_FIXED = ("text.vocabulary", "rows")
# A run that ends with this many skipped batches has diverged.
_SKIPPED = 10

HostBatch = dict[str, np.ndarray]
Log = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Job:
    """A run: its objective, its data and its settings.

    batches: one batch for each step. Item t contains this process's rows of the batch of
      step t, and depends only on t.
    evaluates: function of the step number. If it returns True, ``evaluate`` runs after that
      step. Number 0 means the state before the first step.
    evaluate: function of (step, params, reporter). If it returns True in all processes, the
      run ends after this step. It raises DivergenceError if a loss or output is not
      finite. ``reporter.progress`` is a dictionary of JSON values that
      is saved in checkpoints. Put values there that a resumed run needs, such as the best
      score so far.
    identity: the settings, as config.json contains them.
    change_settings: resume an unfinished run with other settings. The vocabulary, and the
      rows of a fine-tuning, must be the same.
    initial_params: parameters from a checkpoint, for any part of the model. All other
      parameters are randomly initialised.
    keep_checkpoints, threads, prefetch: see TrainConfig.
    check_data: function that raises UserError if the data are damaged. All processes call
      it after each report with wait=False, and before each save with wait=True, which waits
      until all data are checked. It returns whether this call may have waited.
    """

    config: RunConfig
    objective: Objective
    batches: Sequence[HostBatch]
    mesh: Mesh
    identity: dict[str, Any]
    evaluates: Callable[[int], bool]
    evaluate: Callable[[int, Params, Reporter], bool | None]
    change_settings: bool = False
    tokenizer: Tokenizer | None = None
    initial_params: Params | None = None
    keep_checkpoints: int = 1
    threads: int = 1
    prefetch: int = 8
    check_data: Callable[..., bool] = lambda *, wait: False


@contextlib.contextmanager
def open_workdir(
    workdir: str | os.PathLike, log: Log
) -> Iterator[tuple[RunFolder, Log]]:
    """Locks a workdir for one run, and copies its small files from a bucket.

    Yields the folder, and a ``log`` that prints in process 0 only.
    Raises UserError that names the other process if another run has the lock.
    """
    folder = RunFolder(workdir)
    with folder.held():
        folder.fetch()
        yield folder, log if is_leader() else lambda line: None


def run(
    job: Job, folder: RunFolder, log: Log
) -> tuple[TrainState, dict[str, Any], int]:
    """Trains from the newest undamaged checkpoint, until the last step or an early end.

    Returns the state, the progress, and the step at which this call started. If an
    evaluation ended the run early, ``progress["stopped_at"]`` is its last step.
    Nothing is written before all checks have passed, or if no step is left. A workdir
    without checkpoints or results can be reused.

    Raises UserError if the workdir belongs to a run with other settings and
    ``job.change_settings`` is False. Raises DivergenceError if a number is not finite.
    Raises Preempted after a SIGTERM, and KeyboardInterrupt after a Ctrl-C, once the state
    is saved.
    """
    config, total = job.config, len(job.batches)
    check_same(job.identity, "config or data; start all with the same command")
    on_leader(lambda: _check_folder(job, folder))
    optimizer = bert_optimizer(config.optimizer, getattr(job.objective, "frozen", ""))
    abstract = abstract_state(job.objective, optimizer, job.mesh, fsdp=config.mesh.fsdp)
    schedule = make_schedule(config.optimizer, total)
    options = {"accumulation": config.accumulation, "log_every": config.log_every}
    train_step = compile_step(job.objective, config.optimizer, abstract, **options)
    with contextlib.ExitStack() as stack:
        stack.callback(folder.upload)
        # The signals are handled until the last save is complete.
        stop_requested = stack.enter_context(stop_requests())
        store = CheckpointStore(folder.checkpoints, job.keep_checkpoints)
        stack.push(store)
        if restored := store.restore(abstract, log):
            state, saved = restored
            log(f"resuming at step {int(state.step):,}")
        else:
            params, saved = job.initial_params, {}
            state = init_state(job.objective, optimizer, abstract, config.seed, params)
            if params and (new := new_parameters(abstract, params)):
                log(f"initialised at random: {', '.join(new)}")
        first, progress = int(state.step), saved.get("progress", {})
        if first > total:
            raise UserError(f"the run has done {first:,} steps, expected {total:,}")
        if first == total or "stopped_at" in progress:
            return state, progress, first
        identity, changes = job.identity, []
        if saved:
            before = saved["config"]
            history = before.get("changes", [])
            if changes := changed_settings(before, identity):
                if fixed := [change for change in changes if change[0] in _FIXED]:
                    kept = "a run keeps its vocabulary and rows; use another workdir"
                    raise UserError(f"{shown(fixed)}: {kept}")
                steps = f"the learning rate follows the schedule of {total:,} steps"
                log(f"settings change after step {first:,}: {shown(changes)}; {steps}")
                values = {name: {"from": old, "to": new} for name, old, new in changes}
                history = [*history, {"step": first, "settings": values}]
            identity = identity | ({"changes": history} if history else {})

        def open_writer() -> MetricWriter:
            if job.tokenizer is not None:
                job.tokenizer.save(folder.local)
            # Written before the first step, so that the same command resumes without
            # change_settings even if no step with changed settings is saved.
            write_json(folder.local / "config.json", identity)
            tracker = None
            if name := config.tracker:
                run_id = progress.setdefault("tracker_id", secrets.token_hex(8))
                place = folder.local.name, run_id
                tracker = metrics.open_tracker(name, *place, identity)
            writer = MetricWriter(folder.local, first, tracker)
            stack.callback(writer.close)
            return writer

        writer = on_leader(open_writer)
        folder.check_shared("config.json")
        reporter = Reporter(
            config, job.objective, schedule, writer, log, progress, first
        )
        stack.callback(reporter.bar.close)

        def write_small_files() -> None:
            writer.sync()
            write_json(folder.local / "config.json", identity)
            folder.upload()

        def save(step: int, state: TrainState) -> None:
            if job.check_data(wait=True):
                reporter.start_window()  # the wait is not counted as training time
            on_leader(write_small_files)
            store.save(step, state, {"config": identity, "progress": progress})

        scheduled = jax.device_put(schedule, NamedSharding(job.mesh, PartitionSpec()))
        train_step = functools.partial(train_step, schedule=scheduled)
        try:
            state = _loop(
                job, folder, state, train_step, reporter, save, stop_requested
            )
        except DivergenceError as error:
            store.wait()
            advice = divergence_advice(config, store.steps())
            raise DivergenceError(f"{error}; {advice}") from error
        return state, progress, first


def divergence_advice(config: RunConfig, checkpoints: Sequence[int]) -> str:
    """What a user can do after a run diverged. checkpoints: their steps, newest first."""
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
    resume = f"{change}, and resume with change_settings"
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
    folder: RunFolder,
    state: TrainState,
    train_step: Callable[[TrainState, Batch], tuple[TrainState, Sums]],
    reporter: Reporter,
    save: Callable[[int, TrainState], None],
    stop_requested: StopRequested,
) -> TrainState:
    """Runs all steps that are left.

    The order in each round is step, report, evaluation, checkpoint. A checkpoint is written
    after the metrics of its step, so a resumed run does not write them again.

    After a skipped batch the parameters may be destroyed, although they are finite. They
    are saved only if an evaluation of this step was finite. Otherwise the save waits for a
    step whose batch is not skipped. The last step cannot wait; see _may_be_saved.
    """
    config, progress = job.config, reporter.progress
    shapes = progress.setdefault("shapes", {})
    total, first = len(job.batches), int(state.step)
    save_every = config.steps_between_saves(total)
    data = drawn_ahead(
        job.batches,
        first=first,
        threads=job.threads,
        prefetch=job.prefetch,
        timeout=config.data_timeout,
    )
    in_flight: collections.deque[jax.Array] = collections.deque()
    skipped: collections.deque[jax.Array] = collections.deque(maxlen=_SKIPPED)
    due = False  # whether a save was postponed
    ahead = steps_ahead(job.mesh)
    norm_fn = jax.jit(optax.tree.norm)
    compiled: set[str] = set()
    profile_from, profile_to = map(int, (config.profile_steps or "0:0").split(":"))
    if not first and job.evaluates(0):
        job.evaluate(0, state.params, reporter)
        reporter.start_window()
    with contextlib.closing(data), contextlib.ExitStack() as profile:
        for step in range(first + 1, total + 1):
            if step == profile_from and is_leader():
                jax.block_until_ready(state)
                profile.enter_context(
                    jax.profiler.trace(folder.local / metrics.TENSORBOARD)
                )
            started = time.perf_counter()
            host_batch = next(data)
            waited = time.perf_counter() - started
            with jax.transfer_guard("disallow"):
                batch = put_batch(host_batch, job.mesh)
                if step == first + 1:
                    reporter.expect(batch)
                state, sums = train_step(state, batch)
            in_flight.append(sums["steps"])
            skipped.append(sums["last_skipped"])
            if len(in_flight) > ahead:
                jax.block_until_ready(in_flight.popleft())
            shape = "x".join(map(str, batch["input_ids"].shape))
            shapes[shape] = shapes.get(shape, 0) + 1
            if shape not in compiled:  # this step compiled: its time is not reported
                compiled.add(shape)
                jax.block_until_ready(sums)
                reporter.start_window()
            else:
                reporter.add_step(step, batch, waited, sums)
            reporter.bar.update()
            last = step == total
            if step == profile_to or last:
                jax.block_until_ready(state)
                profile.close()
            if step % config.log_every == 0 or last:
                reporter.report(step, sums)
                job.check_data(wait=False)
            evaluates = job.evaluates(step)
            # A run also obeys a stop request after its last step, because the caller may
            # still score the model or start more runs.
            stops = stop_requested()
            due = due or step % save_every == 0 or last or stops is not None
            if evaluates or due:
                norm = norm_fn(state.params)
                may_save = _may_be_saved(
                    step, sums, norm, skipped, last and not evaluates
                )
                may_save = may_save or evaluates
            ends = evaluates and job.evaluate(step, state.params, reporter) and not last
            if ends:
                progress["stopped_at"] = step
            if ends and step % config.log_every:
                reporter.start_window()  # the evaluation is not counted as training time
                reporter.report(step, sums)
            saves = (due or ends) and may_save
            if saves:
                progress["seconds"] = reporter.seconds
                save(step, state)
                due = False
            if stops is not None:
                again = "saved: the same command resumes there"
                if not saves:
                    again = (
                        "not saved, because its batch was skipped: the same command "
                        "resumes at the last checkpoint"
                    )
                raise stops(f"asked to stop after step {step} of {total}; {again}")
            if ends:
                break
            if evaluates:
                reporter.start_window()
    return state


def _may_be_saved(
    step: int,
    sums: Sums,
    norm: jax.Array,
    skipped: Sequence[jax.Array],
    must_save: bool,
) -> bool:
    """Whether the state after ``step`` may be saved, because its batch was not skipped.

    norm: of the parameters. The sums are computed with the parameters before this step, so
    the new parameters are also checked. skipped: 1 for each skipped batch of the last
    _SKIPPED batches or fewer. must_save: no later step can be saved instead.

    Raises DivergenceError if a number is not finite, or if ``must_save`` and the last
    _SKIPPED batches were all skipped.
    """
    values = jax.device_get(sums | {"norm of the parameters": norm})
    metrics.check_finite(step, values)
    if must_save:
        latest = jax.device_get(list(skipped))
        if len(latest) == _SKIPPED and all(latest):
            raise DivergenceError(f"the last {_SKIPPED} batches were skipped")
        return True
    return not values["last_skipped"]


def is_drawn(folder: RunFolder) -> bool:
    """Whether the workdir's curves.png is newer than its metrics.

    It is not if the run was killed between its last checkpoint and its pictures.
    """
    picture, numbers = folder.local / CURVES, folder.local / METRICS
    if not picture.exists() or not numbers.exists():
        return False
    return picture.stat().st_mtime_ns >= numbers.stat().st_mtime_ns


def draw_run(folder: RunFolder, log: Log) -> None:
    """Draws the workdir's curves.png and its confusion matrices. Only process 0 calls it.

    A run does not fail because of its pictures: an error, such as a missing matplotlib, is
    logged.
    """
    try:
        from bert_jax import figures

        figures.save_confusions(folder.local / "predictions")
        figures.save(figures.curves(folder.local), folder.local / CURVES)
        log(f"picture: {folder.local / CURVES}")
    except Exception as error:
        log(f"no picture: {error}")
    folder.upload()


def has_run(folder: RunFolder) -> bool:
    """Whether a workdir has a checkpoint or results."""
    results = [folder.local / name for name in ("best", RESULTS)]
    newest = newest_step(folder.checkpoints)
    return bool(newest) or any(path.exists() for path in results)


def _check_folder(job: Job, folder: RunFolder) -> None:
    """Raises UserError if the workdir contains files of another run."""
    path = folder.local / "config.json"
    if path.exists() and "hidden_size" in read_json(path, "the config of a run"):
        raise UserError(f"{path} is the config of a checkpoint; use another --workdir")
    if has_run(folder) and not job.change_settings:
        check_owner(folder.local, job.identity)


def owner_changes(
    workdir: Path, identity: dict[str, Any], free: tuple[str, ...] = ()
) -> list[Change]:
    """The settings that differ from those of the run in ``workdir``.

    identity: the settings. free: settings that may differ, see :func:`changed_settings`.
    """
    path = workdir / "config.json"
    expected = "the config of a run; put it back, or use another workdir"
    with naming(path), reading(path, expected):
        return changed_settings(read_json(path, expected), identity, free)


def _has_rows_of_0_2(workdir: Path) -> bool:
    """Whether a run of version 0.2 has rows of Python or of a fold, not files."""
    settings = read_json(workdir / "config.json", "the config of a run")
    of_rows = str(settings.get("data", {}).get("dir", "")).startswith("rows:")
    return of_rows and "labels" not in settings


def check_owner(
    workdir: Path, identity: dict[str, Any], free: tuple[str, ...] = ()
) -> None:
    """Raises UserError if ``workdir`` contains a run with other settings.

    See :func:`owner_changes`.
    """
    changes = owner_changes(workdir, identity, free)
    names = [name for name, *_ in changes]
    if "data.dir" in names and "rows" not in names and _has_rows_of_0_2(workdir):
        advice = "finish it with version 0.2, or use another workdir"
        raise UserError(
            f"{workdir} holds a run of version 0.2 on rows of Python or on a fold, whose "
            f"checksums differ from those of this version; {advice}"
        )
    if changes:
        advice = (
            "use its settings, another workdir, or change_settings to change the run"
        )
        if (workdir / RESULTS).exists():
            advice = (
                f"use another workdir, with init_from={workdir} to continue its model"
            )
        raise UserError(f"{workdir} holds another run ({shown(changes)}); {advice}")
