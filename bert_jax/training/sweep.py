"""One run, or the paper's grid of runs, in a workdir."""

import dataclasses
import itertools
import json
import math
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bert_jax.errors import DivergenceError, UserError
from bert_jax.settings import differences, to_dict
from bert_jax.training.finetune import (
    BEST,
    PREDICTIONS,
    RESULTS,
    finetune,
    show,
    write_json,
)
from bert_jax.training.finetune_config import FineTuneConfig, check
from bert_jax.training.finetune_data import FEATURES, Prepared, prepare

SWEEP = "sweep"  # the folder of a sweep's runs
_DIVERGED = "diverged"  # in the results of a run: it has no scores
_KEPT = "kept.json"  # in it: the run whose model is in best
# What may differ between the run in a workdir and the config: reports alone.
_FREE = ("log_every", "sweep")
_GRID = ("batch_size", "optimizer.learning_rate", "epochs", "seed")


def run_one(
    config: FineTuneConfig, workdir: Path, log: Callable[[str], None] = print
) -> dict[str, Any]:
    """Runs ``config`` in ``workdir``; a finished run is reported and not run again."""
    if (workdir / SWEEP).exists():
        raise UserError(
            f"{workdir} holds a sweep; add --sweep to go on with it, or use another "
            "--workdir"
        )
    finished = _claim(config, workdir)
    if finished is not None:
        for split, scores in finished["scores"].items():
            log(f"finished before: {split}: {show(scores)}")
        return finished
    results = _run(config, prepare(config, workdir, log), workdir, log)
    shutil.rmtree(workdir / FEATURES, ignore_errors=True)
    return results


def run_sweep(
    config: FineTuneConfig, workdir: Path, log: Callable[[str], None] = print
) -> dict[str, Any]:
    """Every point of the grid with every seed; runs finished before are kept.

    Prints mean and spread of each point. ``workdir``/best is the best model of all runs
    there, sweep.json the table. Of the other runs the results stay, the weights go. A run
    that diverges is told, counted, and not tried again.
    """
    grid, folder = config.sweep, workdir / SWEEP
    points = list(itertools.product(grid.batch_size, grid.learning_rate, grid.epochs))
    runs = {
        _name(point, seed): (point, _point_config(config, point, seed))
        for seed, point in itertools.product(grid.seeds, points)
    }
    _check_workdir(config, workdir)
    # All of them before the first runs: what is wrong shows at once.
    finished = {name: _claim(run, folder / name) for name, (_, run) in runs.items()}
    kept = _kept(workdir)
    prepared = None
    table: dict[tuple, list[dict[str, Any]]] = {point: [] for point in points}
    for name, (point, run_config) in runs.items():
        results = finished[name]
        if results is None:
            prepared = prepared or prepare(config, workdir, log)
            log(f"== {name}")
            try:
                results = _run(run_config, prepared, folder / name, log)
            except DivergenceError as error:
                log(f"diverged: {error}")
                results = _diverged(folder / name, prepared.task.main_metric)
        table[point].append(results)
        if _DIVERGED not in results:
            kept = _keep_better(workdir, (name, _dev_score(results)), kept)
    shutil.rmtree(workdir / FEATURES, ignore_errors=True)
    summary = [_summary(point, results) for point, results in table.items()]
    metric = next(iter(table.values()))[0]["main_metric"]
    for row in sorted(
        summary, key=lambda row: row["mean"] if row["scores"] else -math.inf
    ):
        log(_line(row, metric))
    scores = [score for row in summary for score in row["scores"]]
    if not scores:
        raise UserError(
            f"every run in {folder} diverged; lower --config.sweep.learning_rate"
        )
    if kept is None or kept[1] < max(scores):
        raise UserError(
            f"the model of the best run is no longer in {workdir / BEST}; delete the "
            f"{RESULTS} of that run in {folder}, and it will run again"
        )
    shutil.copytree(
        folder / kept[0] / PREDICTIONS, workdir / PREDICTIONS, dirs_exist_ok=True
    )
    log(f"best: {kept[0]}, {metric} {kept[1]:.2f}; its model is in {workdir / BEST}")
    content = {"metric": metric, "best_run": kept[0], "points": summary}
    write_json(workdir / "sweep.json", content)
    return content


def _name(point: tuple, seed: int) -> str:
    batch_size, rate, epochs = point
    return f"batch{batch_size}-rate{rate:g}-epochs{epochs}-seed{seed}"


def _point_config(config: FineTuneConfig, point: tuple, seed: int) -> FineTuneConfig:
    batch_size, rate, epochs = point
    optimizer = dataclasses.replace(config.optimizer, learning_rate=rate)
    changed = dataclasses.replace(
        config, batch_size=batch_size, epochs=epochs, seed=seed, optimizer=optimizer
    )
    check(changed)
    return changed


def _run(
    config: FineTuneConfig,
    prepared: Prepared,
    workdir: Path,
    log: Callable[[str], None],
) -> dict[str, Any]:
    workdir.mkdir(parents=True, exist_ok=True)
    write_json(workdir / "config.json", to_dict(config))
    return finetune(config, prepared, workdir, log)


def _diverged(workdir: Path, metric: str) -> dict[str, Any]:
    """The results of a run that diverged: no scores, and no model."""
    shutil.rmtree(workdir / BEST, ignore_errors=True)
    results = {"main_metric": metric, _DIVERGED: True}
    write_json(workdir / RESULTS, results)
    return results


def _claim(config: FineTuneConfig, workdir: Path) -> dict[str, Any] | None:
    """The results of a finished run of this config; None where it must (still) run.

    Raises UserError where the workdir is that of another run. One that failed before
    its first evaluation left nothing to lose.
    """
    results, path = _results(workdir), workdir / "config.json"
    if path.exists() and (results is not None or (workdir / BEST).exists()):
        _refuse_another(path, config, _FREE)
    return results


def _check_workdir(config: FineTuneConfig, workdir: Path) -> None:
    """Raises where the models there are not of this sweep."""
    if (workdir / "config.json").exists():
        raise UserError(
            f"{workdir} holds a single run; use another --workdir for a sweep"
        )
    for path in sorted((workdir / SWEEP).glob("*/config.json")):
        if (path.parent / RESULTS).exists():
            _refuse_another(path, config, (*_FREE, *_GRID))


def _refuse_another(path: Path, config: FineTuneConfig, free: tuple[str, ...]) -> None:
    found = differences(json.loads(path.read_text()), to_dict(config))
    changes = [
        f"{name}: {old!r} -> {new!r}"
        for name, old, new in found
        if not any(name == f or name.startswith((f"{f}.", f"{f}[")) for f in free)
    ]
    if changes:
        raise UserError(
            f"{path.parent} holds another run ({'; '.join(changes)}); use that config, "
            "or another --workdir"
        )


def _results(workdir: Path) -> dict[str, Any] | None:
    path = workdir / RESULTS
    return json.loads(path.read_text()) if path.exists() else None


def _kept(workdir: Path) -> tuple[str, float] | None:
    """The run whose model is in best, and its score; ends a move that was cut short."""
    record = workdir / SWEEP / _KEPT
    if not record.exists():
        return None
    name = json.loads(record.read_text())["run"]
    folder = workdir / SWEEP / name
    results = _results(folder)
    if results is None:  # it is to run again
        return None
    if (folder / BEST).exists():
        _replace(folder / BEST, workdir / BEST)
    return (name, _dev_score(results)) if (workdir / BEST).exists() else None


def _keep_better(
    workdir: Path, run: tuple[str, float], kept: tuple[str, float] | None
) -> tuple[str, float] | None:
    """Moves the model of ``run`` to best, or deletes it; the run that is kept now."""
    name, score = run
    model = workdir / SWEEP / name / BEST
    if not model.exists():
        return kept
    if kept is not None and score <= kept[1]:
        shutil.rmtree(model)
        return kept
    # First the record, then the move: _kept makes up for what happens in between.
    write_json(workdir / SWEEP / _KEPT, {"run": name})
    _replace(model, workdir / BEST)
    return run


def _dev_score(results: dict[str, Any]) -> float:
    return next(iter(results["scores"].values()))[results["main_metric"]]


def _summary(point: tuple, runs: list[dict[str, Any]]) -> dict[str, Any]:
    scores = [_dev_score(run) for run in runs if _DIVERGED not in run]
    return {
        "batch_size": point[0],
        "learning_rate": point[1],
        "epochs": point[2],
        "mean": statistics.mean(scores) if scores else None,
        "deviation": statistics.stdev(scores) if len(scores) > 1 else 0.0,
        "best": max(scores, default=None),
        "scores": scores,
        "diverged": len(runs) - len(scores),
    }


def _line(row: dict[str, Any], metric: str) -> str:
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


def _replace(source: Path, target: Path) -> None:
    """Moves a folder over another one."""
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)  # of a move that was cut short
    if target.exists():
        target.rename(old)
    source.rename(target)
    shutil.rmtree(old, ignore_errors=True)
