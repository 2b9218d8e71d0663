"""One run, or the paper's grid of runs, in a workdir."""

import dataclasses
import itertools
import json
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.finetuning.config import FineTuneConfig
from bert_jax.finetuning.prepare import Prepared, prepare
from bert_jax.finetuning.run import BEST, RESULTS, finetune, show, write_json
from bert_jax.training.settings import to_dict

# What may differ between the run in a workdir and the config: reports alone.
_FREE = ("log_every", "sweep")


def run_one(
    config: FineTuneConfig, workdir: Path, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Runs ``config`` in ``workdir``; a finished run is reported and not run again."""
    finished = _claim(config, workdir)
    if finished is not None:
        for split, scores in finished["scores"].items():
            say(f"finished before: {split}: {show(scores)}")
        return finished
    return _run(config, prepare(config, say), workdir, say)


def run_sweep(
    config: FineTuneConfig, workdir: Path, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Every point of the grid with every seed; runs finished before are kept.

    Prints mean and spread of each point. ``workdir``/best is the best model of all,
    sweep.json the table. Of the other runs the results stay, the weights go.
    """
    grid = config.sweep
    points = list(itertools.product(grid.batch_size, grid.learning_rate, grid.epochs))
    prepared = None
    table: dict[tuple, list[dict[str, Any]]] = {point: [] for point in points}
    best: tuple[float, str] | None = None
    for seed, point in itertools.product(grid.seeds, points):
        batch_size, rate, epochs = point
        run_config = dataclasses.replace(
            config,
            batch_size=batch_size,
            epochs=epochs,
            seed=seed,
            optimizer=dataclasses.replace(config.optimizer, learning_rate=rate),
        )
        name = f"batch{batch_size}-rate{rate:g}-epochs{epochs}-seed{seed}"
        folder = workdir / "sweep" / name
        results = _claim(run_config, folder)
        if results is None:
            prepared = prepared or prepare(config, say)
            say(f"== {name}")
            results = _run(run_config, prepared, folder, say)
        table[point].append(results)
        score = _dev_score(results)
        if best is None or score > best[0]:
            best = (score, name)
            if (folder / BEST).exists():
                _replace(folder / BEST, workdir / BEST)
        elif (folder / BEST).exists():
            shutil.rmtree(folder / BEST)
    summary = [_summary(point, runs) for point, runs in table.items()]
    metric = next(iter(table.values()))[0]["main_metric"]
    for row in sorted(summary, key=lambda row: row["mean"]):
        say(
            f"batch {row['batch_size']:<3} rate {row['learning_rate']:<7g} epochs "
            f"{row['epochs']}  {metric} {row['mean']:.2f} +- {row['deviation']:.2f}  "
            f"(best {row['best']:.2f} of {len(row['scores'])})"
        )
    say(f"best: {best[1]}, {metric} {best[0]:.2f}; its model is in {workdir / BEST}")
    content = {"metric": metric, "best_run": best[1], "points": summary}
    write_json(workdir / "sweep.json", content)
    return content


def _run(
    config: FineTuneConfig,
    prepared: Prepared,
    workdir: Path,
    say: Callable[[str], None],
) -> dict[str, Any]:
    workdir.mkdir(parents=True, exist_ok=True)
    write_json(workdir / "config.json", to_dict(config))
    return finetune(config, prepared, workdir, say)


def _claim(config: FineTuneConfig, workdir: Path) -> dict[str, Any] | None:
    """The results of a finished run of this config; None where it must (still) run.

    Raises UserError where the workdir is that of another run.
    """
    path = workdir / "config.json"
    if not path.exists():
        return None
    found, expected = json.loads(path.read_text()), to_dict(config)
    for name in expected.keys() | found.keys():
        if name not in _FREE and found.get(name) != expected.get(name):
            raise UserError(
                f"{workdir} holds another run ({name}: {found.get(name)!r} -> "
                f"{expected.get(name)!r}); use that config, or another --workdir"
            )
    results = workdir / RESULTS
    return json.loads(results.read_text()) if results.exists() else None


def _dev_score(results: dict[str, Any]) -> float:
    return next(iter(results["scores"].values()))[results["main_metric"]]


def _summary(point: tuple, runs: list[dict[str, Any]]) -> dict[str, Any]:
    scores = [_dev_score(run) for run in runs]
    return {
        "batch_size": point[0],
        "learning_rate": point[1],
        "epochs": point[2],
        "mean": statistics.mean(scores),
        "deviation": statistics.stdev(scores) if len(scores) > 1 else 0.0,
        "best": max(scores),
        "scores": scores,
    }


def _replace(source: Path, target: Path) -> None:
    """Moves a folder over another one."""
    old = target.with_name(f"{target.name}.old")
    if target.exists():
        target.rename(old)
    source.rename(target)
    shutil.rmtree(old, ignore_errors=True)
