"""Reads runs from their workdirs, and compares their settings, metrics and results."""

import itertools
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
    reading,
    write_text,
)
from bert_jax.progress import aligned

METRICS, CURVES, RESULTS = "metrics.jsonl", "curves.png", "results.json"
_SWEEP = "sweep"  # the folder of a sweep's runs
_NO_SCORES = ("step", "split", "seconds")
_LOSSES = ("loss", "perplexity")  # endings of metrics where lower is better
_BASELINE = "_majority"  # ending of the score of always giving the most frequent answer
# Metrics that depend on the clock, or on which steps a process has timed.
TIMES = ("tokens_per_second", "mfu", "data_wait", "seconds_left", "seconds")
Values = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A run, finished or not.

    name: the end of its path, as long as needed to distinguish the runs. config: the object
    in config.json. metrics: the lines of metrics.jsonl. results: the object in
    results.json, empty without one. majorities: percent of a split's rows that have the
    most frequent label, for a classification with results.
    """

    name: str
    config: Values
    metrics: list[Values]
    results: Values
    majorities: dict[str, float]

    def series(self, split: str, metric: str) -> tuple[list[int], list[float]]:
        """The steps that report a metric, and its values."""
        lines = [line for line in self.metrics if line["split"] == split]
        found = [x for x in lines if x.get(metric) is not None]
        return [x["step"] for x in found], [x[metric] for x in found]

    @property
    def splits(self) -> list[str]:
        """The splits that have metrics, first "train"."""
        return list(dict.fromkeys(["train", *(line["split"] for line in self.metrics)]))

    @property
    def scores(self) -> list[str]:
        """Metrics where higher is better: metrics of evaluations, and accuracies."""
        names = dict.fromkeys(
            name
            for line in self.metrics
            for name in line
            if line["split"] != "train" or name.endswith("accuracy")
        )
        others = (*_LOSSES, _BASELINE)
        return [n for n in names if n not in _NO_SCORES and not n.endswith(others)]

    @property
    def losses(self) -> list[str]:
        """Metrics where lower is better: the loss, its parts, perplexity."""
        names = dict.fromkeys(name for line in self.metrics for name in line)
        return [name for name in names if name.endswith(_LOSSES)]

    def tokens(self, steps: Sequence[int]) -> list[int]:
        """Number of tokens after each step of a pretraining, padding included."""
        if not self.config.get("phases"):
            raise UserError(
                f"{self.name} is no pretraining; expected one to draw by its tokens"
            )
        ends, seen = [0], [0]
        for phase in self.config["phases"]:
            ends.append(ends[-1] + phase["steps"])
            size = phase["batch_size"] * phase["sequence_length"]
            seen.append(seen[-1] + phase["steps"] * size)
        return [round(n) for n in np.interp(steps, ends, seen)]

    def percent(self, metric: str) -> float:
        """The factor from a metric to percent: 100 for shares, 1 for all else.

        Accuracies of pretraining are shares. Fine-tuning reports percent.
        """
        share = metric.endswith(("accuracy", _BASELINE)) and "family" not in self.config
        return 100 if share else 1

    def baseline(self, split: str, metric: str) -> float | None:
        """The score of always giving the most frequent answer, if known."""
        if metric == "accuracy":
            return self.majorities.get(split)
        name = metric.removesuffix("_accuracy") + _BASELINE
        values = self.series(split, name)[1]
        return values[-1] if values else None


def read_metrics(path: Path) -> list[Values]:
    """The lines of a metrics.jsonl; a damaged line is logged and left out.

    A last line without its end is left out: the run is writing it, or was killed.
    """
    lines = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        try:
            values = json.loads(line)
            values["step"], values["split"]
            lines.append(values)
        except (ValueError, TypeError, KeyError):
            if line.endswith(b"\n"):
                logging.getLogger(__name__).warning(
                    f"{path}:{number} is damaged and left out; expected a JSON object "
                    "with step and split"
                )
    return lines


def read_runs(paths: Sequence[os.PathLike | str]) -> list[Run]:
    """The runs in workdirs, local or in an object store; a sweep gives all its runs.

    Raises UserError for a folder without a run, or whose run has not reported yet.
    """
    folders = list(dict.fromkeys(run for path in paths for run in _folders(path)))
    # Paths and URLs have no commonpath.
    parents = [f"{os.path.dirname(folder)}/" for folder in folders]  # noqa: PTH120
    common = os.path.commonprefix(parents).rpartition("/")[0]  # noqa: RUF071
    return [_read(run, os.fspath(run)[len(common) :].strip("/")) for run in folders]


def _folders(path: os.PathLike | str) -> Iterator[Path]:
    folder = open_remote(path) if is_remote(path) else Path(path).absolute()
    sweep = folder / _SWEEP
    if sweep.exists():
        runs = sorted(run for run in sweep.iterdir() if (run / METRICS).exists())
        if not runs:
            raise UserError(f"no run of the sweep {path} has reported yet; try later")
        yield from runs
    elif (folder / METRICS).exists():
        yield folder
    else:
        what = f"holds no {METRICS}" if folder.exists() else "does not exist"
        raise UserError(f"{path} {what}; expected the workdir of a run")


def _read(folder: Path, name: str) -> Run:
    def content(path: Path) -> Values:
        expected = f"the {path.name} of a run"
        return parse_json(path.read_bytes(), path, expected) if path.exists() else {}

    metrics = read_metrics(folder / METRICS)
    if not metrics:
        raise UserError(
            f"{folder / METRICS} is empty: the run has not reported yet; try again after "
            "log_every steps"
        )
    majorities = {}
    for path in (folder / "predictions").glob("*.confusion.json"):
        with reading(path, "counts of gold and predicted labels"):
            found = content(path)
            if found["of"] == "rows":
                totals = [sum(row) for row in found["counts"]]
                majorities[found["split"]] = 100 * max(totals) / max(sum(totals), 1)
    config, results = (content(folder / file) for file in ("config.json", RESULTS))
    return Run(name, config, metrics, results, majorities)


def read_reference(path: os.PathLike | str) -> Run:
    """The run in a file of :func:`write_reference`."""
    expected = "a file that bert_jax plot RUN --as_reference writes"
    values = read_json(Path(path), expected)
    with reading(path, expected):
        metrics = [line | {"step": int(line["step"])} for line in values["metrics"]]
        config = values["config"]
    return Run(f"reference {Path(path).stem}", config, metrics, {}, {})


def write_reference(run: Run, path: Path, points: int = 40) -> None:
    """Writes a run's curve as a small file: settings, and ``points`` steps a split.

    A constant factor separates the steps, because curves bend early. Paths and times are
    left out, because they depend on the machine.
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
        for i in np.unique([0, *np.minimum(after, len(steps) - 1)]):
            own = {"step": steps[i], "split": split}
            names = lines[i].keys() - {*own, *TIMES}
            own |= {k: float(f"{lines[i][k]:.4g}") for k in lines[i] if k in names}
            metrics.append(own)
    lines = ",\n".join(map(json.dumps, metrics))
    start = f'{{"config": {json.dumps(config)},\n"metrics": [\n'
    write_text(path, f"{start}{lines}\n]}}\n")


def compare(runs: Sequence[Run]) -> list[Values]:
    """The differences between runs: a JSON-able dictionary for each run.

    "run": name of the run. Settings that differ, by full name: None if a config does not
    have the setting; a text with all values if a resumed run changed the setting. "steps":
    number of steps done. A loss or score, such as "eval loss": a dictionary with the "last"
    value, the "best" value and its "step", and the "baseline" if known. "seconds": wall
    time. "tokens per second": median over the reports. For a run with results.json, scores
    of the best model, such as "best model: dev f1", and "seconds of training".
    """
    settings = [_settings(run) for run in runs]
    names = dict.fromkeys(name for values in settings for name in values)
    differing = [n for n in names if len({repr(x.get(n)) for x in settings}) > 1]
    return [
        {"run": run.name, **{name: values.get(name) for name in differing}}
        | {"steps": run.metrics[-1]["step"], **dict(_outcome(run))}
        for run, values in zip(runs, settings, strict=True)
    ]


def _outcome(run: Run) -> Iterator[tuple[str, Any]]:
    """The losses, scores and times of a run by the names of :func:`compare`."""
    for split, name in itertools.product(run.splits, [*run.losses, *run.scores]):
        steps, values = run.series(split, name)
        if values:
            best = (min if name in run.losses else max)(values)
            step = steps[values.index(best)]
            found = {"last": values[-1], "best": best, "step": step}
            baseline = run.baseline(split, name)
            known = {} if baseline is None else {"baseline": baseline}
            yield f"{split} {name}", found | known
    if seconds := run.series("train", "seconds")[1]:
        yield "seconds", max(seconds)
    if throughputs := run.series("train", "tokens_per_second")[1]:
        yield "tokens per second", statistics.median(throughputs)
    for split, scores in run.results.get("scores", {}).items():
        for name, score in scores.items():
            yield f"best model: {split} {name}", score
    if "train_seconds" in run.results:
        yield "seconds of training", run.results["train_seconds"]


def spread(scores: Sequence[float]) -> Values:
    """The "mean" and the "deviation" of the "scores" of several seeds.

    Without scores the mean is None; the deviation of a single score is 0.
    """
    return {
        "mean": statistics.mean(scores) if scores else None,
        "deviation": statistics.stdev(scores) if len(scores) > 1 else 0.0,
        "scores": list(scores),
    }


def _settings(run: Run) -> Values:
    """The value of each setting by full name, with its changes during the run."""
    values = dict(_flat({k: v for k, v in run.config.items() if k != "changes"}))
    changed: dict[str, str] = {}
    for change in run.config.get("changes", ()):
        for name, value in change["settings"].items():
            start = changed.get(name, value["from"])
            changed[name] = f"{start}, from step {change['step']:,} {value['to']}"
    return values | changed


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


def table(rows: Sequence[Values]) -> Iterator[str]:
    """The lines of a table of :func:`compare`'s rows, with a column for each run."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[name, *(_shown(row.get(name)) for row in rows)] for name in names]
    cells[0][0] = ""
    yield from aligned(cells)


def _shown(value: Any) -> str:
    """A cell of the table."""
    if isinstance(value, dict):
        cell = _shown(value["last"])
        if value["best"] != value["last"]:
            cell += f" (best {_shown(value['best'])} at step {value['step']:,})"
        if "baseline" in value:
            cell += f", baseline {_shown(value['baseline'])}"
        return cell
    if value is None:
        return "-"
    if isinstance(value, str):
        # A text of 64 letters and digits is a fingerprint.
        return value[:12] if len(value) == 64 and value.isalnum() else value or '""'
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < math.inf else f"{value:.4g}"
    return json.dumps(value)
