"""Runs as their workdirs tell of them: settings, metrics and results, side by side."""

import contextlib
import json
import logging
import math
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.files import (
    is_remote,
    open_remote,
    parse_json,
    read_json,
    write_text,
)
from bert_jax.inference.lines import aligned

METRICS, CURVES, RESULTS = "metrics.jsonl", "curves.png", "results.json"
_SWEEP = "sweep"  # the folder of a sweep's runs
_NO_SCORES = ("step", "split", "seconds")
_LESS_IS_BETTER = ("loss", "perplexity")  # what such metrics end with
_BASELINE = "_majority"  # what always the most frequent answer reaches
# Metrics that depend on the clock, or on which steps a process has timed.
TIMES = ("tokens_per_second", "mfu", "data_wait", "seconds_left", "seconds")
Values = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A run, which may not have ended.

    name: the end of its path, as long as needed to tell it from the others. config: as
    config.json has it. metrics: the lines of metrics.jsonl. results: of results.json,
    empty for a run without one. majorities: percent of a split's rows that have its most
    frequent label, of a classification that has ended.
    """

    name: str
    config: Values
    metrics: list[Values]
    results: Values
    majorities: dict[str, float]

    def series(self, split: str, metric: str) -> tuple[list[int], list[float]]:
        """The steps that report a metric, and its values there."""
        found = [
            (line["step"], line[metric])
            for line in self.metrics
            if line["split"] == split and line.get(metric) is not None
        ]
        return [step for step, _ in found], [value for _, value in found]

    @property
    def splits(self) -> list[str]:
        """Those that metrics are of: "train", then those that are only evaluated."""
        return list(dict.fromkeys(["train", *(line["split"] for line in self.metrics)]))

    @property
    def scores(self) -> list[str]:
        """Metrics that more of is better: what evaluations report, and accuracies."""
        names = dict.fromkeys(
            name
            for line in self.metrics
            for name in line
            if line["split"] != "train" or name.endswith("accuracy")
        )
        others = (*_LESS_IS_BETTER, _BASELINE)
        return [n for n in names if n not in _NO_SCORES and not n.endswith(others)]

    @property
    def losses(self) -> list[str]:
        """Metrics that less of is better: the sum of all losses, its parts, perplexity."""
        names = dict.fromkeys(name for line in self.metrics for name in line)
        return [name for name in names if name.endswith(_LESS_IS_BETTER)]

    def tokens(self, steps: Sequence[int]) -> list[int]:
        """Tokens of the rows seen by these steps of a pretraining, padding too."""
        phases = self.config.get("phases")
        if not phases:
            raise UserError(
                f"{self.name} is no pretraining; expected one to draw by its tokens"
            )
        ends, seen = [0], [0]
        try:
            for phase in phases:
                sizes = [phase[n] for n in ("steps", "batch_size", "sequence_length")]
                if not all(map(is_number, sizes)):
                    raise TypeError("its sizes are no numbers")
                ends.append(ends[-1] + sizes[0])
                seen.append(seen[-1] + math.prod(sizes))
            return [round(n) for n in np.interp(steps, ends, seen)]
        except (TypeError, KeyError, ValueError, OverflowError) as error:
            raise UserError(
                f"the config of {self.name} has damaged phases ({error!r}); copy it from "
                "where the run was"
            ) from error

    def percent(self, metric: str) -> float:
        """100 for a share, which is shown in percent, as pretraining's accuracies; else 1.

        Fine-tuning reports percent.
        """
        share = metric.endswith(("accuracy", _BASELINE)) and "family" not in self.config
        return 100 if share else 1

    def baseline(self, split: str, metric: str) -> float | None:
        """What always the most frequent answer reaches, where that is known."""
        if metric == "accuracy":
            return self.majorities.get(split)
        name = metric.removesuffix("_accuracy") + _BASELINE
        values = self.series(split, name)[1]
        return values[-1] if values else None


def read_metrics(path: Path) -> list[Values]:
    """The lines of a metrics.jsonl, without a torn last one.

    One that is damaged is logged and left out; those after it are not.
    """
    lines = []
    *whole, torn = path.read_bytes().split(b"\n")
    for number, line in enumerate([*whole, torn] if torn else whole, 1):
        with contextlib.suppress(UserError):
            if _is_report(values := parse_json(line, path, "")):
                lines.append(values)
                continue
        if number <= len(whole):
            logging.getLogger(__name__).warning(
                f"{path}:{number} is damaged and left out; expected an object with step, "
                "split and numbers"
            )
    return lines


def _is_report(values: Any) -> bool:
    """Whether this may be a line of metrics.jsonl."""
    return (
        isinstance(values, dict)
        and type(values.get("step")) is int
        and isinstance(values.get("split"), str)
        and all(
            value is None or is_number(value)
            for name, value in values.items()
            if name != "split"
        )
    )


def is_number(value: Any) -> bool:
    """Whether this is a float, or a whole number that becomes one."""
    return isinstance(value, float) or (type(value) is int and abs(value) < 1 << 63)


def read_results(path: Path) -> Values:
    """The results.json of a run; raises UserError where it is not one."""
    expected = "the results of a run"
    results = parse_json(path.read_bytes(), path, expected)
    scores, seconds = results.get("scores", {}), results.get("train_seconds", 0)
    with contextlib.suppress(AttributeError):
        numbers = [score for split in scores.values() for score in split.values()]
        if all(map(is_number, [*numbers, seconds])):
            return results
    raise UserError(
        f"{path} has scores that are no numbers, or such seconds; expected {expected}"
    )


def read_runs(paths: Sequence[os.PathLike | str]) -> list[Run]:
    """The runs in some workdirs, local or in an object store; of a sweep, each of its runs.

    Raises UserError where a folder holds no run, or none that has reported yet.
    """
    folders = [run for path in paths for run in _folders(path)]
    folders = list(dict.fromkeys(folders))
    names = _names([os.fspath(folder) for folder in folders])
    return [_read(folder, name) for folder, name in zip(folders, names, strict=True)]


def read_reference(path: os.PathLike | str) -> Run:
    """The run that a file of :func:`write_reference` tells of."""
    values = read_json(
        Path(path), "a reference curve, as compare --as_reference writes"
    )
    config, metrics = values.get("config"), values.get("metrics")
    fits = isinstance(config, dict) and isinstance(metrics, list) and metrics
    if not (fits and all(map(_is_report, metrics))):
        raise UserError(
            f"{path} is no reference curve; expected a file that python -m "
            "bert_jax.compare RUN --as_reference writes"
        )
    name = f"reference {Path(path).stem}"
    return Run(name, config, metrics, {}, {})


def write_reference(run: Run, path: Path, points: int = 40) -> None:
    """Writes a run's curve, small: settings, and metrics of so many steps a split.

    Steps are spaced by a constant factor, since curves bend early. Left out is what depends
    on the machine: paths and times.
    """
    config = run.config | {"init_from": ""}
    config["data"] = config["data"] | {"path": "", "corpus": []}
    metrics = []
    for split in run.splits:
        lines = [line for line in run.metrics if line["split"] == split]
        if not lines:
            raise UserError(
                f"{run.name} has no line of {split} in {METRICS}; train it for at least "
                "log_every steps"
            )
        steps = [line["step"] for line in lines]
        wanted = np.geomspace(max(steps[0], 1), max(steps[-1], 1), points)
        after = np.searchsorted(steps, np.round(wanted))
        kept = np.unique([0, *np.minimum(after, len(steps) - 1)])
        for line in (lines[i] for i in kept):
            numbers = {k: v for k, v in line.items() if k not in ("step", "split")}
            metrics.append(
                {"step": line["step"], "split": split}
                | {k: float(f"{numbers[k]:.4g}") for k in numbers if k not in TIMES}
            )
    lines = ",\n".join(map(json.dumps, metrics))
    start = f'{{"config": {json.dumps(config)},\n"metrics": [\n'
    write_text(path, f"{start}{lines}\n]}}\n")


def _folders(path: os.PathLike | str) -> Iterator[Path]:
    folder = open_remote(path) if is_remote(path) else Path(path).absolute()
    sweep = folder / _SWEEP
    if sweep.exists():
        runs = sorted(run for run in sweep.iterdir() if (run / METRICS).exists())
        if not runs:
            raise UserError(f"no run of the sweep {path} has reported yet; try later")
        yield from runs
        return
    if not (folder / METRICS).exists():
        what = f"holds no {METRICS}" if folder.exists() else "does not exist"
        raise UserError(f"{path} {what}; expected the workdir of a run")
    yield folder


def _names(paths: Sequence[str]) -> list[str]:
    """The ends of paths, of as many parts as it takes to tell them apart."""
    parts = [path.rstrip("/").split("/") for path in paths]
    names: list[str] = []
    for count in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return names


def _read(folder: Path, name: str) -> Run:
    config, results = folder / "config.json", folder / RESULTS
    config = (
        parse_json(config.read_bytes(), config, "the config of a run")
        if config.exists()
        else {}
    )
    results = read_results(results) if results.exists() else {}
    metrics = read_metrics(folder / METRICS)
    if not metrics:
        raise UserError(
            f"{folder / METRICS} is empty: the run has not reported yet; try again after "
            "--config.log_every steps"
        )
    return Run(name, config, metrics, results, dict(_majorities(folder)))


def _majorities(folder: Path) -> Iterator[tuple[str, float]]:
    for path in (folder / "predictions").glob("*.confusion.json"):
        expected = "counts of gold and predicted labels"
        found = parse_json(path.read_bytes(), path, expected)
        try:
            if found["of"] == "rows":
                totals = [sum(row) for row in found["counts"]]
                yield str(found["split"]), 100 * max(totals) / max(sum(totals), 1)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} is damaged; expected {expected}") from error


def compare(runs: Sequence[Run]) -> list[Values]:
    """What tells runs apart, and how they went: a JSON-able dictionary of each.

    "settings": settings that differ between the runs; None if a config does not have the
    setting. A setting that was changed when a run was resumed is a text with all values.
    "steps": number of steps done. "seconds": wall time of the run, or None.
    "tokens_per_second": median over the reports. "metrics": for each split and metric the
    "last" value, the "best" value and its "step". The split "train" has only losses and
    scores. "results": scores of the best model on each split and the seconds of training,
    for a run with results.json.
    """
    settings = [_settings(run) for run in runs]
    names = dict.fromkeys(name for values in settings for name in values)
    differing = [
        name
        for name in names
        if any(values.get(name) != settings[0].get(name) for values in settings)
    ]
    return [
        {
            "run": run.name,
            "settings": {name: values.get(name) for name in differing},
            "steps": run.metrics[-1]["step"],
            "seconds": max(run.series("train", "seconds")[1], default=None),
            "tokens_per_second": _median(run.series("train", "tokens_per_second")[1]),
            "metrics": {split: _summary(run, split) for split in run.splits},
            "results": {
                name: run.results[name]
                for name in ("scores", "train_seconds")
                if name in run.results
            },
        }
        for run, values in zip(runs, settings, strict=True)
    ]


def spread(scores: Sequence[float]) -> Values:
    """The "mean" and the "deviation" of the "scores" of several seeds.

    Without scores the mean is None; the deviation of a single one is 0.
    """
    return {
        "mean": statistics.mean(scores) if scores else None,
        "deviation": statistics.stdev(scores) if len(scores) > 1 else 0.0,
        "scores": list(scores),
    }


def _settings(run: Run) -> Values:
    """The value of each setting by full name, with its changes during the run."""
    values = dict(_flat({k: v for k, v in run.config.items() if k != "changes"}))
    histories: dict[str, str] = {}
    try:
        for change in run.config.get("changes", ()):
            for name, value in change["settings"].items():
                start = histories.get(name, f"{value['from']}")
                histories[name] = f"{start}, from step {change['step']:,} {value['to']}"
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise UserError(
            f"the config of {run.name} has damaged changes ({error!r}); copy it from where "
            "the run was"
        ) from error
    return values | histories


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The full name and the value of each setting."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for i, item in enumerate(value):
            yield from _flat(item, f"{name}[{i}]")
    else:
        yield name, value


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _summary(run: Run, split: str) -> Values:
    """The last and the best value of each loss and score."""
    summary = {}
    for name in [*run.losses, *run.scores]:
        steps, values = run.series(split, name)
        if values:
            best = (min if name in run.losses else max)(values)
            step = steps[values.index(best)]
            summary[name] = {"last": values[-1], "best": best, "step": step}
            if (baseline := run.baseline(split, name)) is not None:
                summary[name]["baseline"] = baseline
    return summary


def table(rows: Sequence[Values]) -> Iterator[str]:
    """The lines of a table of what :func:`compare` gives: a column for each run."""
    columns = [dict(_cells(row)) for row in rows]
    names = list(dict.fromkeys(name for column in columns for name in column))
    cells = [[name, *(column.get(name, "-") for column in columns)] for name in names]
    cells.insert(0, ["", *(row["run"] for row in rows)])
    yield from aligned(cells)


def _cells(row: Values) -> Iterator[tuple[str, str]]:
    for name, value in row["settings"].items():
        yield name, "-" if value is None else _shown(value)
    yield "steps", f"{row['steps']:,}"
    for split, metrics in row["metrics"].items():
        for name, found in metrics.items():
            cell = _shown(found["last"])
            if found["best"] != found["last"]:
                cell += f" (best {_shown(found['best'])} at step {found['step']:,})"
            yield f"{split} {name}", cell
            if "baseline" in found:
                yield f"{split} {name}, baseline", _shown(found["baseline"])
    if row["seconds"] is not None:
        yield "seconds", f"{row['seconds']:,.0f}"
    if row["tokens_per_second"] is not None:
        yield "tokens per second", f"{row['tokens_per_second']:,.0f}"
    for split, scores in row["results"].get("scores", {}).items():
        for name, score in scores.items():
            yield f"best model: {split} {name}", _shown(score)
    if "train_seconds" in row["results"]:
        yield "seconds of training", f"{row['results']['train_seconds']:,.0f}"


def _shown(value: Any) -> str:
    if isinstance(value, str) and len(value) == 64 and value.isalnum():
        return value[:12]  # of a fingerprint
    if not isinstance(value, float):
        return value if isinstance(value, str) and value else json.dumps(value)
    return f"{value:.4g}" if math.isfinite(value) else str(value)
