"""One fine-tuning run, or the paper's grid of runs, in a workdir."""

import dataclasses
import functools
import itertools
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.errors import DivergenceError, UserError, naming
from bert_jax.files import (
    is_name,
    new_folder,
    read_json,
    replace_folder,
    write_json,
)
from bert_jax.parallel.processes import from_leader, on_leader
from bert_jax.progress import Progress, print_line
from bert_jax.runs import RESULTS, spread
from bert_jax.settings import to_dict
from bert_jax.tasks.task import Task
from bert_jax.training.config import FineTuneConfig, resume_differences
from bert_jax.training.finetune import (
    BEST,
    FEATURES,
    PREDICTIONS,
    delete_checkpoints,
    finetune,
    prepare,
    show,
)
from bert_jax.training.run import Log, check_owner, open_workdir
from bert_jax.training.workdir import RunFolder

SWEEP = "sweep"  # the folder of a sweep's runs
DIVERGED = "diverged"  # in the results of a run: it has no scores
_KEPT = "kept.json"  # in it: the run whose model is in best
_GRID = ("batch_size", "optimizer.learning_rate", "epochs", "seed")

Results = dict[str, Any]
Point = tuple[int, float, int]  # batch size, learning rate, epochs
Grid = dict[str, FineTuneConfig]  # by the name of the run


def run_one(
    config: FineTuneConfig,
    workdir: Path | str,
    log: Log = print_line,
    task: Task | None = None,
    *,
    change_settings: bool = False,
) -> Results:
    """Runs ``config`` in ``workdir``; a finished run is reported and not run again.

    task: that of ``config.data``, if it has rows of its own.
    change_settings: resume an unfinished run with other settings than before.
    """
    with open_workdir(workdir, log) as (folder, log):
        finished = from_leader(lambda: _finished_run(config, folder.local, [BEST]))
        if finished is not None:
            delete_checkpoints(folder)  # where a kill came before
            for split, scores in finished["scores"].items():
                log(f"finished before: {split}: {show(scores)}")
            return finished
        prepared = prepare(config, folder.local, log, task)
        results = finetune(config, prepared, folder, log, change_settings)
        shutil.rmtree(folder.local / FEATURES, ignore_errors=True)
        return results


def run_sweep(
    config: FineTuneConfig,
    workdir: Path | str,
    log: Log = print_line,
    *,
    change_settings: bool = False,
) -> Results:
    """Every point of the grid with every seed; runs finished before are kept.

    Logs mean and spread of each point. ``workdir``/best is the best model of all runs
    there, sweep.json the table. Of the other runs the results stay, the weights go. A run
    that diverges is logged, counted, and not tried again.
    change_settings: resume an unfinished run with other settings than before.
    """
    with open_workdir(workdir, log) as (folder, log):
        return _run_sweep(config, folder, log, change_settings)


def _run_sweep(
    config: FineTuneConfig, folder: RunFolder, log: Log, change_settings: bool
) -> Results:
    runs = _grid(config)
    # All of them before the first runs: what is wrong shows at once.
    finished = from_leader(lambda: _finished_runs(config, runs, folder.local))
    prepared = None
    table: dict[Point, list[Results]] = {}
    for name, run_config in Progress("sweep", runs.items(), unit="runs"):
        results, run_folder = finished[name], folder.child(f"{SWEEP}/{name}")
        if results is None:
            prepared = prepared or prepare(config, folder.local, log)
            log(f"== {name}")
            try:
                results = finetune(
                    run_config, prepared, run_folder, log, change_settings
                )
            except DivergenceError as error:
                log(f"diverged: {error}")
                results = {"main_metric": prepared.task.main_metric, DIVERGED: True}
                on_leader(functools.partial(_write_diverged, run_folder, results))
        delete_checkpoints(run_folder)  # also where a kill came before
        table.setdefault(_point(run_config), []).append(results)
        on_leader(functools.partial(_keep_best, name, results, folder.local))
        on_leader(folder.upload)
    shutil.rmtree(folder.local / FEATURES, ignore_errors=True)
    content = from_leader(lambda: _summarise(table, folder.local, log))
    on_leader(folder.upload)
    return content


def _write_diverged(folder: RunFolder, results: Results) -> None:
    shutil.rmtree(folder.local / BEST, ignore_errors=True)
    write_json(folder.local / RESULTS, results)


def _grid(config: FineTuneConfig) -> Grid:
    """The runs of the grid: all points with the first seed, then with the next."""
    grid, runs = config.sweep, {}
    for seed, batch_size, rate, epochs in itertools.product(
        grid.seeds, grid.batch_size, grid.learning_rate, grid.epochs
    ):
        runs[f"batch{batch_size}-rate{rate:g}-epochs{epochs}-seed{seed}"] = (
            dataclasses.replace(
                config,
                batch_size=batch_size,
                optimizer=dataclasses.replace(config.optimizer, learning_rate=rate),
                epochs=epochs,
                seed=seed,
            )
        )
    return runs


def _point(config: FineTuneConfig) -> Point:
    return config.batch_size, config.optimizer.learning_rate, config.epochs


def _summarise(table: dict[Point, list[Results]], workdir: Path, log: Log) -> Results:
    """Logs the points from the worst to the best, and writes sweep.json."""
    summary = [_summary(point, results) for point, results in table.items()]
    metric = next(iter(table.values()))[0]["main_metric"]
    for row in sorted(
        summary, key=lambda row: row["mean"] if row["scores"] else -math.inf
    ):
        log(_line(row, metric))
    scores = [score for row in summary for score in row["scores"]]
    folder, kept = workdir / SWEEP, _kept(workdir)
    if not scores:
        raise UserError(f"every run in {folder} diverged; lower sweep.learning_rate")
    if kept is None or kept[1] < max(scores):
        raise UserError(
            f"the model of the best run is no longer in {workdir / BEST}; delete the "
            f"{RESULTS} of that run in {folder}, and it will run again"
        )
    with new_folder(workdir / PREDICTIONS, overwrite=True) as predictions:
        shutil.copytree(folder / kept[0] / PREDICTIONS, predictions, dirs_exist_ok=True)
    log(f"best: {kept[0]}, {metric} {kept[1]:.2f}; its model is in {workdir / BEST}")
    content = {"metric": metric, "best_run": kept[0], "points": summary}
    write_json(workdir / "sweep.json", content)
    return content


def _finished_run(
    config: FineTuneConfig, workdir: Path, names: Sequence[str] = ()
) -> Results | None:
    """The results of a finished run of this config; None where it has still to run.

    names: what it must have left beside config.json. Raises UserError where one of these
    is gone, and where the workdir is that of another run or of a sweep.
    """
    if (workdir / SWEEP).exists():
        raise UserError(
            f"{workdir} holds a sweep; add --sweep to go on with it, or use another "
            "workdir"
        )
    results = _results(workdir)
    if results is not None:
        _check_whole(workdir, ["config.json", *names])
        check_owner(workdir, to_dict(config))
    return results


def _check_whole(workdir: Path, names: Sequence[str]) -> None:
    """Raises UserError where a finished run has lost a file."""
    for name in names:
        if not (workdir / name).exists():
            raise UserError(
                f"{workdir} has the results of a run, but no {name}; put it back, or "
                f"delete {RESULTS} there, and the run will run again"
            )


def _finished_runs(
    config: FineTuneConfig, runs: Grid, workdir: Path
) -> dict[str, Results | None]:
    """The results of the runs that are finished, None for the others.

    Raises UserError where the models there are not of this sweep.
    """
    if (workdir / "config.json").exists():
        raise UserError(
            f"{workdir} holds a single run; use another workdir for a sweep"
        )
    differences = functools.partial(resume_differences, free=_GRID)
    for path in sorted((workdir / SWEEP).glob(f"*/{RESULTS}")):
        check_owner(path.parent, to_dict(config), differences)
    return {
        name: _finished_run(run, workdir / SWEEP / name) for name, run in runs.items()
    }


def _results(workdir: Path) -> Results | None:
    """The results of a finished run; None where there are none."""
    path = workdir / RESULTS
    if not path.exists():
        return None
    results = read_json(path, "the results of a run")
    if DIVERGED not in results:
        with naming(path):
            _dev_score(results)
    return results


def _kept(workdir: Path) -> tuple[str, float] | None:
    """The run whose model is in best, and its score; ends a move that was cut short."""
    record = workdir / SWEEP / _KEPT
    if not record.exists():
        return None
    name = read_json(record, "the name of a run").get("run")
    if not is_name(name):
        raise UserError(f"{record} names no run of the sweep; remove it")
    folder = workdir / SWEEP / name
    results = _results(folder)
    if results is None:  # it is to run again
        return None
    if (folder / BEST).exists():
        replace_folder(folder / BEST, workdir / BEST)
    return (name, _dev_score(results)) if (workdir / BEST).exists() else None


def _keep_best(name: str, results: Results, workdir: Path) -> None:
    """Moves the model of a run to best where it is the best so far, or deletes it."""
    kept, model = _kept(workdir), workdir / SWEEP / name / BEST
    if not model.exists() or DIVERGED in results:
        return
    if kept is not None and _dev_score(results) <= kept[1]:
        shutil.rmtree(model)
        return
    # First the record, then the move: _kept makes up for what happens in between.
    write_json(workdir / SWEEP / _KEPT, {"run": name})
    replace_folder(model, workdir / BEST)


def _dev_score(results: Results) -> float:
    try:
        return next(iter(results["scores"].values()))[results["main_metric"]]
    except (KeyError, StopIteration, TypeError) as error:
        raise UserError(
            "there is no score of the main metric; remove the file, and the run goes on"
        ) from error


def _summary(point: Point, runs: list[Results]) -> Results:
    scores = [_dev_score(run) for run in runs if DIVERGED not in run]
    return {
        "batch_size": point[0],
        "learning_rate": point[1],
        "epochs": point[2],
        **spread(scores),
        "best": max(scores, default=None),
        "diverged": len(runs) - len(scores),
    }


def _line(row: Results, metric: str) -> str:
    point = (
        f"batch {row['batch_size']:<3} rate {row['learning_rate']:<7g} "
        f"epochs {row['epochs']}"
    )
    diverged = f"  {row['diverged']} diverged" if row["diverged"] else ""
    if not row["scores"]:
        return point + diverged
    return (
        f"{point}  {metric} {row['mean']:.2f} +- {row['deviation']:.2f}  "
        f"(best {row['best']:.2f} of {len(row['scores'])}){diverged}"
    )
