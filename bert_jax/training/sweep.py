"""Fine-tuning runs in workdirs: a single run, or a sweep over the paper's grid.

A finished run has a results.json, which is written last. The same command runs what is not
finished. A sweep trains every point of the grid with every seed and keeps the best model.
"""

import functools
import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from bert_jax.errors import DivergenceError, UserError
from bert_jax.files import new_folder, read_json, reading, replace_folder, write_json
from bert_jax.parallel.processes import from_leader, on_leader
from bert_jax.progress import Progress, print_line
from bert_jax.runs import RESULTS, spread
from bert_jax.settings import to_dict
from bert_jax.tasks.task import Task
from bert_jax.training.config import (
    FineTuneConfig,
    SweepConfig,
    resume_differences,
)
from bert_jax.training.finetune import (
    BEST,
    FEATURES,
    PREDICTIONS,
    delete_checkpoints,
    finetune,
    prepare,
    show,
)
from bert_jax.training.run import Differences, Log, check_owner, open_workdir
from bert_jax.training.workdir import RunFolder

SWEEP = "sweep"  # the folder of a sweep's runs
DIVERGED = "diverged"  # key in the results of a run that has no scores
_GRID = ("batch_size", "optimizer.learning_rate", "epochs", "seed")
_KEPT = "kept.json"  # in the folder of the runs: the run whose model is in best/

Results = dict[str, Any]


def run_one(
    config: FineTuneConfig,
    workdir: Path | str,
    log: Log = print_line,
    task: Task | None = None,
    *,
    change_settings: bool = False,
) -> Results:
    """Runs ``config`` in ``workdir`` and returns its results. Only reports a finished run.

    task: the task of ``config.data``, if it has rows of its own.
    change_settings: resume an unfinished run with other settings than before.
    """
    with open_workdir(workdir, log) as (folder, log):
        results = from_leader(lambda: _finished_runs({"": config}, folder.local, SWEEP))
        results = results[""]
        if results is None:
            prepared = prepare(config, folder.local, log, task)
            results = finetune(config, prepared, folder, log, change_settings)
        else:
            delete_checkpoints(folder)  # a killed run may have left them
            for split, scores in results["scores"].items():
                log(f"finished before: {split}: {show(scores)}")
        shutil.rmtree(folder.local / FEATURES, ignore_errors=True)
        return results


def run_sweep(
    config: FineTuneConfig,
    workdir: Path | str,
    log: Log = print_line,
    *,
    change_settings: bool = False,
) -> Results:
    """Runs every point of the grid with every seed, and returns the table of sweep.json.

    Logs the mean and the deviation of each point. ``workdir``/best is the best model of all
    runs there. The other runs keep their results, but not their weights. A run that
    diverges is counted and not run again.
    change_settings: resume an unfinished run with other settings than before.
    """
    grid = _grid(config)
    with open_workdir(workdir, log) as (folder, log):
        results = from_leader(lambda: _finished_runs(grid, folder.local, "config.json"))
        prepared = None
        for name, run_config in Progress("sweep", grid.items(), unit="runs"):
            run_folder = folder.child(f"{SWEEP}/{name}")
            if results[name] is None:
                prepared = prepared or prepare(config, folder.local, log)
                log(f"== {name}")
                arguments = run_config, prepared, run_folder, log, change_settings
                try:
                    results[name] = finetune(*arguments)
                except DivergenceError as error:
                    log(f"diverged: {error}")
                    metric = prepared.task.main_metric
                    results[name] = {"main_metric": metric, DIVERGED: True}
                    path = run_folder.local / RESULTS
                    on_leader(functools.partial(write_json, path, results[name]))
            delete_checkpoints(run_folder)
            on_leader(functools.partial(_keep_best, results, folder))
        shutil.rmtree(folder.local / FEATURES, ignore_errors=True)
        return from_leader(lambda: _write_table(config.sweep, results, folder, log))


def _grid(config: FineTuneConfig) -> dict[str, FineTuneConfig]:
    """The runs of the grid by name: all points with the first seed, then the next."""
    grid, runs = config.sweep, {}
    for seed, *point in itertools.product(grid.seeds, *_points(grid)):
        batch_size, rate, epochs = point
        own = {"seed": seed, "batch_size": batch_size, "epochs": epochs}
        optimizer = replace(config.optimizer, learning_rate=rate)
        runs[_name(seed, *point)] = replace(config, optimizer=optimizer, **own)
    return runs


def _points(grid: SweepConfig) -> tuple[tuple, tuple, tuple]:
    return grid.batch_size, grid.learning_rate, grid.epochs


def _name(seed: int, batch_size: int, rate: float, epochs: int) -> str:
    return f"batch{batch_size}-rate{rate:g}-epochs{epochs}-seed{seed}"


def finished(
    workdir: Path,
    identity: dict[str, Any],
    marker: str = RESULTS,
    differences: Differences = resume_differences,
) -> Results | None:
    """The content of ``marker``, a run's last file. None if the run is not finished.

    Raises UserError if the workdir belongs to a run whose settings differ from
    ``identity``, or if it has lost its config.json.
    """
    path = workdir / marker
    if not path.exists():
        return None
    with reading(path, "the results of a run; delete it to run it again"):
        results = read_json(path, "the results of a run")
        if marker == RESULTS and DIVERGED not in results:
            _dev_score(results)
    if DIVERGED not in results and not (workdir / "config.json").exists():
        raise UserError(
            f"{path} is the result of a run, but there is no config.json; put it back, or "
            f"delete {marker} to run it again"
        )
    check_owner(workdir, identity, differences)
    return results


def _finished_runs(
    runs: dict[str, FineTuneConfig], workdir: Path, other: str
) -> dict[str, Results | None]:
    """The results of each run, None if it is not finished.

    Raises UserError if ``other`` exists: a sweep in the workdir of a single run, or the
    opposite, would replace its best model. Also if a finished run of the sweep has settings
    outside the grid that differ from those of ``runs``.
    """
    if (workdir / other).exists():
        raise UserError(
            f"{workdir} holds a {'sweep' if other == SWEEP else 'single run'}; use "
            "another workdir (--sweep resumes a sweep)"
        )
    folder = workdir
    if other != SWEEP:
        folder, identity = workdir / SWEEP, to_dict(next(iter(runs.values())))
        differences = functools.partial(resume_differences, free=_GRID)
        for path in sorted(folder.glob(f"*/{RESULTS}")):  # also those of other points
            check_owner(path.parent, identity, differences)
    return {name: finished(folder / name, to_dict(runs[name])) for name in runs}


def _dev_score(results: Results) -> float:
    return next(iter(results["scores"].values()))[results["main_metric"]]


def _best_run(results: dict[str, Results | None]) -> str:
    """The first run with the best dev score; "" if no run has a score."""
    scores = {
        name: _dev_score(found)
        for name, found in results.items()
        if found is not None and DIVERGED not in found
    }
    return max(scores, key=scores.__getitem__, default="")


def _with_kept(results: dict[str, Results | None], runs: Path) -> dict[str, Any]:
    """Also the run whose model is in best/, which may be of an earlier grid."""
    if not (runs / _KEPT).exists():
        return results
    name = read_json(runs / _KEPT, "the name of the best run").get("run")
    # Only folders of this sweep: a path such as ../other would lose the model there.
    for path in runs.glob(f"*/{RESULTS}"):
        if path.parent.name == name:
            return {name: read_json(path, "the results of a run")} | results
    return results


def _keep_best(results: dict[str, Results | None], folder: RunFolder) -> None:
    """Moves the model of the best run to best/. Deletes models of other finished runs."""
    runs = folder.local / SWEEP
    results = _with_kept(results, runs)
    best = _best_run(results)
    for name, found in results.items():
        model = runs / name / BEST
        if name == best and model.exists():
            # First the record: after a kill the next call finds the model and moves it.
            write_json(runs / _KEPT, {"run": name})
            replace_folder(model, folder.local / BEST)
        elif found is not None:
            shutil.rmtree(model, ignore_errors=True)
    folder.upload()


def _write_table(
    grid: SweepConfig, results: dict[str, Results], folder: RunFolder, log: Log
) -> Results:
    """Logs the points from the worst to the best, and writes sweep.json."""
    workdir, runs = folder.local, folder.local / SWEEP
    every = _with_kept(results, runs)
    best = _best_run(every)
    metric, rows = next(iter(results.values()))["main_metric"], []
    for point in itertools.product(*_points(grid)):
        found = [results[_name(seed, *point)] for seed in grid.seeds]
        scores = [_dev_score(run) for run in found if DIVERGED not in run]
        row = dict(zip(("batch_size", "learning_rate", "epochs"), point, strict=True))
        row |= spread(scores) | {"best": max(scores, default=None)}
        rows.append(row | {"diverged": len(found) - len(scores)})
    for row in sorted(rows, key=lambda row: (bool(row["scores"]), row["mean"] or 0)):
        log(_line(row, metric))
    if not best:
        raise UserError(f"every run in {runs} diverged; lower sweep.learning_rate")
    kept = read_json(runs / _KEPT, "the name of the best run").get("run")
    if kept != best or not (workdir / BEST).exists():
        raise UserError(
            f"the model of the best run is no longer in {workdir / BEST}; delete "
            f"{runs / best / RESULTS} to run it again"
        )
    with new_folder(workdir / PREDICTIONS, overwrite=True) as predictions:
        shutil.copytree(runs / best / PREDICTIONS, predictions, dirs_exist_ok=True)
    score = _dev_score(every[best])
    log(f"best: {best}, {metric} {score:.2f}; its model is in {workdir / BEST}")
    content = {"metric": metric, "best_run": best, "points": rows}
    write_json(workdir / "sweep.json", content)
    folder.upload()
    return content


def _line(row: Results, metric: str) -> str:
    point = "batch {batch_size:<3} rate {learning_rate:<7g} epochs {epochs}"
    line = point.format(**row)
    if row["scores"]:
        line += f"  {metric} {row['mean']:.2f} +- {row['deviation']:.2f}"
        line += f"  (best {row['best']:.2f} of {len(row['scores'])})"
    return line + f"  {row['diverged']} diverged" * bool(row["diverged"])
