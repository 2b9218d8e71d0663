"""A single fine-tuning, and a sweep: a grid of fine-tunings with a folder each.

A sweep trains every point of a grid with every seed and, with ``sweep.folds``, on every
fold of the training rows. Its runs are in sweep/, and sweep.json and sweep.md contain the
table. best/ and predictions/ belong to the best run. The weights of all other runs are
deleted. The same command runs all runs that are not finished.
"""

import functools
import itertools
import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.errors import UserError
from bert_jax.files import (
    check_link,
    delete_folder,
    new_folder,
    replace_folder,
)
from bert_jax.interop.find import BEST
from bert_jax.parallel.processes import from_leader, on_leader
from bert_jax.progress import Log, Progress, print_line
from bert_jax.runs import RESULTS
from bert_jax.settings import to_dict
from bert_jax.tasks.families import FAMILIES
from bert_jax.tasks.splits import check_splits
from bert_jax.tasks.task import Task
from bert_jax.training import finetune as tuning
from bert_jax.training import finetune_data as data
from bert_jax.training.config import FineTuneConfig
from bert_jax.training.finetune_outputs import show
from bert_jax.training.owner import (
    NO_EFFECT,
    PLACES,
    check_owner,
    check_rows,
    check_same_start,
    owner_changes,
)
from bert_jax.training.results import (
    DIVERGED,
    Results,
    finished,
    run_part,
    scores_of,
    table,
    write_table,
)
from bert_jax.training.workdir import PREDICTIONS, RunFolder, open_workdir

SWEEP = "sweep"
# The settings in the name of a run of a sweep.
_GRID = ("batch_size", "optimizer.learning_rate", "epochs", "seed")


def run_one(
    config: FineTuneConfig,
    workdir: Path | str,
    log: Log = print_line,
    task: Task | None = None,
    *,
    change_settings: bool = False,
    callback: tuning.Callback | None = None,
) -> Results:
    """Runs ``config`` in ``workdir``, unless the run is finished. Returns its results.

    task: replaces the task of ``config.data``, for rows from Python.
    change_settings: resume an unfinished run with other settings than before.
    callback: see ``bert_jax.finetune``.
    """
    with open_workdir(workdir, log) as (folder, log):
        place = folder.local
        if (place / SWEEP).exists():
            raise UserError(f"{workdir} contains a sweep; use another workdir")
        results = from_leader(lambda: finished(place, config, PLACES))
        moved = from_leader(lambda: is_moved(place, config))
        if results is not None and DIVERGED in results:  # one of a sweep's runs
            advice = "use another workdir and a lower learning_rate"
            raise UserError(f"{workdir} diverged: {results[DIVERGED]}; {advice}")
        if results is None:
            data.check_accumulation(
                config, task or FAMILIES[config.family](config.data)
            )
            on_leader(lambda: check_link(place / BEST))
            on_leader(config.tracker_library)
        if results is None or moved:
            prepared = data.prepare(config, place, log, task, folder)
        if moved:
            identity = data.identity(config, prepared)
            on_leader(lambda: check_owner(place, identity, NO_EFFECT))
        elif results is not None:
            on_leader(lambda: check_files([place], config, task))
            on_leader(lambda: check_starts([place], config))
        if results is None:
            run = prepared, folder, log
            results = tuning.finetune(config, *run, change_settings, callback)
        else:
            on_leader(folder.delete_checkpoints)  # a killed run may have left them
            for split, scores in results["scores"].items():
                log(f"already finished: {split}: {show(scores)}")
        if config.features.layers:
            delete_folder(place / data.FEATURES)
        return results


def is_moved(workdir: Path, config: FineTuneConfig, free: tuple[str, ...] = ()) -> bool:
    """Whether a finished run has other names for its data or its checkpoint.

    free: settings that may differ. False without a finished run.
    """
    if not (workdir / RESULTS).exists() or not (workdir / "config.json").exists():
        return False
    return bool(owner_changes(workdir, to_dict(config), (*NO_EFFECT, *free)))


def check_files(
    workdirs: Iterable[Path], config: FineTuneConfig, task: Task | None = None
) -> None:
    """Raises UserError if the files of finished runs were changed in place.

    Reads the rows, but tokenises nothing. Data sets and rows from Python have no folder,
    and files may have been deleted after the run. task: replaces the task of
    ``config.data``.
    """
    if not Path(config.data.dir).is_dir():
        return
    task = task or FAMILIES[config.family](config.data)
    try:
        check_splits(config.data, task.form)
    except UserError:  # a file was deleted
        return
    for workdir in workdirs:
        check_rows(workdir, task.splits.checksum)


def check_starts(workdirs: Iterable[Path], config: FineTuneConfig) -> None:
    """Raises UserError if ``init_from`` has other weights than at the start of the runs.

    Reads only a local checkpoint, which may have been deleted after the runs.
    """
    if not Path(config.init_from).exists():
        return
    try:
        start = data.params_checksum(data.load_start(config).params)
    except UserError:  # its weights were deleted
        return
    for workdir in workdirs:
        check_same_start(workdir, start)


class _Run(NamedTuple):
    """A run of a sweep.

    point: name of the point of the grid. name: the point, seed and fold, which is the name
    of the run's folder in sweep/. fold: task with the rows of a fold; None without folds.
    """

    point: str
    name: str
    config: FineTuneConfig
    fold: Task | None


def run_sweep(
    config: FineTuneConfig,
    workdir: Path | str,
    log: Log = print_line,
    task: Task | None = None,
    *,
    change_settings: bool = False,
) -> Results:
    """Runs every point of the grid with every seed, and returns the table of sweep.json.

    ``workdir``/best is the best model of all runs there, including runs of earlier grids. A
    run that diverges is counted and not run again.
    task: replaces the task of ``config.data``, for rows from Python. It needs folds.
    change_settings: resume an unfinished run with other settings than before.
    """
    with open_workdir(workdir, log) as (folder, log):
        runs = _expand(config, task)
        missing = from_leader(lambda: _missing(runs, config, folder))
        left = [run for run in runs if run.name in missing]

        def prepare(run: _Run) -> data.Prepared:
            own = folder.child(f"{SWEEP}/{run.name}")
            prepared = data.prepare(config, folder.local, log, run.fold, own)
            content = prepared.content
            on_leader(lambda: _check_content(runs, config, content, folder.local))
            return prepared

        if not left:
            if from_leader(lambda: _has_moved(runs, config, folder.local)):
                prepare(runs[0])
            elif not config.sweep.folds:  # the name of a fold's rows is their checksum
                finished_runs = _finished_folders(folder.local)
                on_leader(lambda: check_files(finished_runs, config))
                on_leader(lambda: check_starts(finished_runs, config))
        if left:
            on_leader(config.tracker_library)
        prepared, shared = None, None  # runs on the same rows share what is prepared
        for run in Progress("runs", left, unit="runs"):
            log(f"== {run.name}")
            own = folder.child(f"{SWEEP}/{run.name}")
            rows = run.fold, from_leader(functools.partial(data.recorded_labels, own))
            if prepared is None or shared != rows:
                prepared, shared = prepare(run), rows
            train = functools.partial(
                tuning.finetune,
                run.config,
                prepared,
                own,
                log,
                change_settings,
                keep_answers=run.fold is not None,
            )
            run_part(own.local, run.config, train, log)
            on_leader(lambda: _keep_best(config, folder))
        if config.features.layers:
            delete_folder(folder.local / data.FEATURES)
        content = from_leader(lambda: _finish(runs, config, folder, log))
        on_leader(folder.upload)
        return content


def run_names(config: FineTuneConfig, task: Task | None = None) -> list[str]:
    """The names of all runs of a sweep, which are folders in sweep/, in their order."""
    return [run.name for run in _expand(config, task)]


def _expand(config: FineTuneConfig, task: Task | None) -> list[_Run]:
    """All runs of the grid. Runs on the same fold follow each other.

    Raises UserError if two runs have one name, because names shorten learning rates, and
    for a batch size that ``accumulation`` cannot split.
    """
    grid, task = config.sweep, task or FAMILIES[config.family](config.data)
    runs = []
    for seed in grid.seeds:
        folds = task.folds(grid.folds, seed) if grid.folds else [None]
        for (number, fold), size, rate, epochs in itertools.product(
            enumerate(folds), grid.batch_size, grid.learning_rate, grid.epochs
        ):
            optimizer = replace(config.optimizer, learning_rate=rate)
            own = replace(
                config, optimizer=optimizer, batch_size=size, epochs=epochs, seed=seed
            )
            point = f"batch{size}-rate{rate:g}-epochs{epochs}"
            name = f"{point}-seed{seed}"
            if fold is not None:
                name = f"{name}-fold{number}"
                own = replace(own, data=fold.config)
            data.check_accumulation(own, task)
            runs.append(_Run(point, name, own, fold))
    names = [run.name for run in runs]
    for name in names:
        if names.count(name) > 1:
            advice = "give each value once; only six digits of a rate count"
            raise UserError(f"two runs of the sweep have the name {name}; {advice}")
    return runs


def _missing(
    runs: Sequence[_Run], config: FineTuneConfig, folder: RunFolder
) -> list[str]:
    """The names of the runs that are not finished. Only process 0 calls it.

    Raises UserError if the workdir or a run's folder contains another run.
    """
    workdir = folder.local
    if (workdir / "config.json").exists():
        raise UserError(f"{workdir} contains a single run; use another workdir")
    check_link(workdir / BEST)
    _keep_best(config, folder)
    results = _results(runs, workdir)
    return [name for name, result in results.items() if result is None]


def _has_moved(runs: Sequence[_Run], config: FineTuneConfig, workdir: Path) -> bool:
    """Whether a finished run has other names for its data or its checkpoint."""
    return any(
        owner_changes(place, identity, free)
        for place, identity, free in _finished_runs(runs, config, workdir)
    )


def _check_content(
    runs: Sequence[_Run], config: FineTuneConfig, content: dict[str, Any], workdir: Path
) -> None:
    """Raises UserError if a finished run has other rows, or started with other parameters.

    content: ``Prepared.content``. Runs that compare points or folds must start with the
    same parameters. Only process 0 calls it.
    """
    for place, identity, free in _finished_runs(runs, config, workdir):
        known = {"start": content["start"], "content": content["content"]}
        check_owner(place, known | identity, free)
        if not config.sweep.folds:
            check_rows(place, content["content"])


def _finished_runs(
    runs: Sequence[_Run], config: FineTuneConfig, workdir: Path
) -> Iterator[tuple[Path, dict[str, Any], tuple[str, ...]]]:
    """The finished runs of this grid and of earlier grids.

    Yields the folder of a run, its settings with the "content" of a fold, and the settings
    that may differ.
    """
    of_grid = {run.name: run for run in runs}
    for place in _finished_folders(workdir):
        run = of_grid.get(place.name)
        if run is None:
            yield place, to_dict(config), (*NO_EFFECT, *_free(config))
            continue
        identity = to_dict(run.config)
        if run.fold is not None:
            identity["content"] = run.fold.splits.checksum
        yield place, identity, NO_EFFECT


def _finished_folders(workdir: Path) -> list[Path]:
    """The folders of all finished runs that started, in the order of their names."""
    folders = [path.parent for path in sorted((workdir / SWEEP).glob(f"*/{RESULTS}"))]
    return [folder for folder in folders if (folder / "config.json").exists()]


def _results(runs: Sequence[_Run], workdir: Path) -> dict[str, Results | None]:
    """The results of the runs of the grid by name. Places may differ."""
    results = {}
    for run in runs:
        results[run.name] = finished(workdir / SWEEP / run.name, run.config, PLACES)
    return results


def _free(config: FineTuneConfig) -> tuple[str, ...]:
    """The settings that differ between grids. Folds of another seed are other rows."""
    if config.sweep.folds:
        return (*_GRID, "data.dir")
    return _GRID


def _finished_run(name: str, config: FineTuneConfig, workdir: Path) -> Results:
    """The results of a finished run of this grid or of an earlier one."""
    return finished(workdir / SWEEP / name, config, (*_GRID, *PLACES))


def _keep_best(config: FineTuneConfig, folder: RunFolder) -> str:
    """Moves the model of the best run to best/. Deletes other weights of finished runs.

    Returns the name of the best run of this grid and earlier grids; "" if no run has a
    score. If several runs have the best score, the first name wins. Only process 0 calls
    it.
    """
    workdir, best, highest, names = folder.local, "", None, []
    for path in sorted((workdir / SWEEP).glob(f"*/{RESULTS}")):
        name = path.parent.name
        names.append(name)
        for score in scores_of(_finished_run(name, config, workdir)).values():
            if highest is None or math.isnan(highest) or score > highest:
                best, highest = name, score
    for name in names:
        model = workdir / SWEEP / name / BEST
        if name == best and model.exists():
            replace_folder(model, workdir / BEST)
        delete_folder(model)
        # A run that diverged, or was killed after its results, has checkpoints.
        folder.child(f"{SWEEP}/{name}").delete_checkpoints()
    folder.upload()
    return best


def _finish(
    runs: Sequence[_Run], config: FineTuneConfig, folder: RunFolder, log: Log
) -> Results:
    """Writes the table, and the predictions of the best run. Only process 0 calls it."""
    best, workdir = _keep_best(config, folder), folder.local
    if not best:
        every = f"every run in {workdir / SWEEP} diverged"
        raise UserError(f"{every}; lower learning_rate")
    if not (workdir / BEST).exists():
        results_file = workdir / SWEEP / best / RESULTS
        again = f"put it back, or delete {results_file} to run it again"
        raise UserError(f"{workdir / BEST} is missing; {again}")
    with new_folder(workdir / PREDICTIONS, overwrite=True) as predictions:
        source = workdir / SWEEP / best / PREDICTIONS
        shutil.copytree(source, predictions, dirs_exist_ok=True)
    ((metric, value),) = scores_of(_finished_run(best, config, workdir)).items()
    points: dict[str, list[tuple[str, str]]] = {}
    for run in runs:
        points.setdefault(run.point, []).append(("", run.name))
    content = table(points, _results(runs, workdir), config.sweep.seeds)
    content |= {"metric": metric, "best_run": best}
    write_table(workdir / "sweep.json", content, log, config.sweep.folds)
    log(f"best: {best}, {metric} {value:.2f}; model: {workdir / BEST}")
    return content
