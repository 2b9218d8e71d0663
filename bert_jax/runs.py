"""Reads runs from their workdirs, and compares their settings, metrics and results."""

import itertools
import json
import logging
import math
import operator
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from bert_jax.errors import UserError
from bert_jax.files import expanded, is_remote, open_remote, parse_json
from bert_jax.progress import aligned
from bert_jax.schema import check
from bert_jax.settings import flat
from bert_jax.tasks.data_sets import ERRORS

METRICS, CURVES, RESULTS = "metrics.jsonl", "curves.png", "results.json"
_SWEEP = "sweep"  # the folder of a sweep's runs
NO_SCORES = ("step", "split", "seconds", "sequence_length")
_LOSSES = ("loss", "perplexity")  # endings of metrics where lower is better
_ACCURACY = "accuracy"
_BASELINE = "majority"  # ending of the accuracy of predicting the most frequent answer
Values = dict[str, Any]


class _Line(TypedDict):
    """The form of a line of metrics.jsonl. Its other values are numbers or null."""

    step: int
    split: str


class _Sizes(TypedDict):
    """The settings that each phase of a pretraining has."""

    steps: int
    batch_size: int
    sequence_length: int


class _Phase(_Sizes, total=False):
    """A phase of a pretraining. Older versions do not write ``causal``."""

    causal: bool


class _Config(TypedDict, total=False):
    """The form of the config.json of a run: the keys that are read."""

    phases: list[_Phase]


class _Results(TypedDict, total=False):
    """The form of results.json: the keys that are read."""

    scores: dict[str, dict[str, float | None]]
    train_seconds: float


@dataclass(frozen=True)
class Run:
    """A run, finished or not.

    name: the part of its path that distinguishes it from the other runs. config: content of
    config.json. metrics: lines of metrics.jsonl. results: content of results.json, empty
    without the file.
    """

    name: str
    config: Values
    metrics: list[Values]
    results: Values

    def series(self, split: str, metric: str) -> tuple[list[int], list[float]]:
        """The steps at which a metric was reported, and its values."""
        steps, values = [], []
        for line in self.metrics:
            value = line.get(metric)
            if line["split"] == split and value is not None:
                steps.append(line["step"])
                values.append(value)
        return steps, values

    @property
    def splits(self) -> list[str]:
        """The splits that have metrics, first "train"."""
        splits = ["train"]
        for line in self.metrics:
            if line["split"] not in splits:
                splits.append(line["split"])
        return splits

    @property
    def scores(self) -> list[str]:
        """Metrics of evaluations, and accuracies. Lower is better only for ERRORS."""
        names: dict[str, None] = {}
        for line in self.metrics:
            for name in line:
                if name in NO_SCORES or name.endswith((*_LOSSES, _BASELINE)):
                    continue
                if line["split"] != "train" or name.endswith(_ACCURACY):
                    names[name] = None
        return list(names)

    @property
    def losses(self) -> list[str]:
        """Metrics where lower is better: the loss, its parts, perplexity."""
        names: dict[str, None] = {}
        for line in self.metrics:
            for name in line:
                if name.endswith(_LOSSES):
                    names[name] = None
        return list(names)

    def tokens(self, steps: Sequence[int]) -> list[int]:
        """Number of tokens after each step of a pretraining, padding included."""
        if not self.config.get("phases"):
            raise UserError(
                f"{self.name} is not a pretraining run; compare it without references"
            )
        reported, tokens = self.series("train", "computed_tokens")
        if reported:  # older versions did not write it
            ends, tokens = [0, *reported], [0, *tokens]
            return [round(n) for n in np.interp(steps, ends, tokens)]
        ends, tokens = [0.0], [0.0]  # the product of damaged numbers may be large
        for phase in self.config["phases"]:
            ends.append(ends[-1] + phase["steps"])
            size = phase["batch_size"] * phase["sequence_length"]
            tokens.append(tokens[-1] + phase["steps"] * size)
        return [round(n) for n in np.interp(steps, ends, tokens)]

    def percent(self, metric: str) -> float:
        """The factor from a metric to percent: 100 for shares, 1 for other metrics.

        Accuracies of pretraining are shares. Fine-tuning reports percent.
        """
        is_pretraining = "family" not in self.config
        if is_pretraining and metric.endswith((_ACCURACY, _BASELINE)):
            return 100
        return 1

    def baseline(self, split: str, metric: str) -> tuple[list[int], list[float]]:
        """Steps and accuracies of always predicting the most frequent answer, if known."""
        if not metric.endswith(_ACCURACY):
            return [], []
        return self.series(split, metric.removesuffix(_ACCURACY) + _BASELINE)

    @property
    def new_lengths(self) -> list[tuple[int, bool]]:
        """The steps after which the sequence length changes, and whether it is larger."""
        changes, end = [], 0
        for phase, following in itertools.pairwise(self.config.get("phases", ())):
            end += phase["steps"]
            old, new = phase["sequence_length"], following["sequence_length"]
            if new != old:
                changes.append((end, new > old))
        return changes

    @property
    def new_tasks(self) -> list[int]:
        """The steps after which losses and scores belong to another task.

        The sequence length changes, or the model starts or stops reading from left to
        right.
        """
        changes, end = [], 0
        for phase, following in itertools.pairwise(self.config.get("phases", ())):
            end += phase["steps"]
            old = phase["sequence_length"], phase.get("causal", False)
            new = following["sequence_length"], following.get("causal", False)
            if new != old:
                changes.append(end)
        return changes


def read_metrics(path: Path) -> list[Values]:
    """The lines of a metrics.jsonl. A damaged line is logged and left out, and so is a line
    with a value that is neither a number nor null.

    A last line without a line feed is left out, because the run is writing it or was
    killed.
    """
    lines = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        try:
            values = json.loads(line)
            check(values, _Line)
            numbers = dict(values)
            del numbers["split"]
            check(numbers, dict[str, float | None])
            lines.append(values)
        except (ValueError, UserError):
            if line.endswith(b"\n"):
                logging.getLogger(__name__).warning(
                    f"{path}:{number} is damaged and left out; expected step, split "
                    "and numbers"
                )
    return lines


def read_runs(paths: Iterable[os.PathLike | str]) -> list[Run]:
    """The runs in workdirs, local or in an object store. For a sweep, all its runs.

    Raises UserError for a folder without a run, and for a run that has not reported yet.
    """
    folders: list[Path] = []
    for path in paths:
        for folder in _folders(path):
            if folder not in folders:
                folders.append(folder)
    # os.path.commonpath fails for a mixture of paths and URLs.
    parents = [f"{os.path.dirname(folder)}/" for folder in folders]  # noqa: PTH120
    common = os.path.commonprefix(parents).rpartition("/")[0]  # noqa: RUF071
    runs = []
    for folder in folders:
        name = os.fspath(folder)[len(common) :].strip("/")
        runs.append(_read(folder, name))
    return runs


def read_references(paths: Iterable[os.PathLike | str]) -> list[Run]:
    """Runs to compare others with; their names start with "reference"."""
    runs: list[Run] = []
    paths = list(paths)
    for path in paths:
        runs += read_runs([path])
    if len({run.name for run in runs}) < len(runs):
        runs = read_runs(paths)  # with more folders in their names
    return [replace(run, name=f"reference {run.name}") for run in runs]


def _folders(path: os.PathLike | str) -> Iterator[Path]:
    path = expanded(path)
    folder = open_remote(path) if is_remote(path) else Path(path).absolute()
    sweep = folder / _SWEEP
    if sweep.exists():
        runs = sorted(run for run in sweep.iterdir() if (run / METRICS).exists())
        if not runs:
            raise UserError(f"no run of the sweep {path} has reported yet; try later")
        yield from runs
    elif (folder / METRICS).exists():
        yield folder
    elif folder.exists():
        raise UserError(f"{path} has no {METRICS}; expected the workdir of a run")
    else:
        raise UserError(f"{path} does not exist; expected the workdir of a run")


def _read(folder: Path, name: str) -> Run:
    def content(path: Path, form: type) -> Values:
        if not path.exists():
            return {}
        return parse_json(path.read_bytes(), path, f"the {path.name} of a run", form)

    metrics = read_metrics(folder / METRICS)
    if not metrics:
        raise UserError(f"the run in {folder} has not reported yet; try again later")
    config = content(folder / "config.json", _Config)
    results = content(folder / RESULTS, _Results)
    return Run(name, config, metrics, results)


def compare(runs: Sequence[Run]) -> list[Values]:
    """The differences between runs: a dictionary for JSON for each run.

    "run": name of the run. Settings that differ, by full name: None if a config does not
    have the setting. A run that was resumed with other settings also has "changes[0].step",
    and so on. "steps": number of steps done. A loss or score, such as "eval loss": a
    dictionary with the "last" value, the "best" value at the last sequence length and in
    the last direction (causal or not), its "step", and the "baseline" if known. "seconds":
    wall time. "tokens per second": median over the reports. For a run with results.json,
    scores of the best model, such as "best model: dev f1", and "seconds of training".
    """
    settings = [dict(flat(run.config)) for run in runs]
    differing = _differing(settings)
    rows = []
    for run, values in zip(runs, settings, strict=True):
        row = {"run": run.name}
        for name in differing:
            row[name] = values.get(name)
        row["steps"] = run.metrics[-1]["step"]
        rows.append(row | _summaries(run) | _times(run) | _best_model(run))
    return rows


def _differing(settings: Sequence[Values]) -> list[str]:
    """The names of settings that are not equal in all runs."""
    names: dict[str, None] = {}
    for values in settings:
        names |= dict.fromkeys(values)
    differing = []
    for name in names:
        values = {repr(of_run.get(name)) for of_run in settings}
        if len(values) > 1:
            differing.append(name)
    return differing


def _summaries(run: Run) -> Values:
    """The losses and scores of a run by the names of :func:`compare`."""
    summaries = {}
    # Scores of another task, such as another sequence length, are not compared.
    start, last = -1, run.metrics[-1]["step"]
    for step in run.new_tasks:
        if step < last:
            start = step
    for split, name in itertools.product(run.splits, [*run.losses, *run.scores]):
        lines = []
        for step, value in zip(*run.series(split, name), strict=True):
            if step > start:
                lines.append((value, step))
        if not lines:
            continue
        if name in (*run.losses, *ERRORS):
            best, step = min(lines, key=operator.itemgetter(0))
        else:
            best, step = max(lines, key=operator.itemgetter(0))
        last_value, _ = lines[-1]
        summary = {"last": last_value, "best": best, "step": step}
        _, baselines = run.baseline(split, name)
        if baselines:
            summary["baseline"] = baselines[-1]
        summaries[f"{split} {name}"] = summary
    return summaries


def _times(run: Run) -> Values:
    """The wall time of a run and its throughput, if they were reported."""
    times = {}
    _, seconds = run.series("train", "seconds")
    if seconds:
        times["seconds"] = max(seconds)
    _, throughputs = run.series("train", "tokens_per_second")
    if throughputs:
        times["tokens per second"] = statistics.median(throughputs)
    return times


def _best_model(run: Run) -> Values:
    """The content of results.json by the names of :func:`compare`."""
    values = {}
    for split, scores in run.results.get("scores", {}).items():
        for name, score in scores.items():
            values[f"best model: {split} {name}"] = score
    if "train_seconds" in run.results:
        values["seconds of training"] = run.results["train_seconds"]
    return values


def spread(scores: Sequence[float]) -> Values:
    """Statistics of the "scores" of seeds: "mean", its "standard_error" and "deviation".

    Without scores the mean is None; the deviation of a single score is 0. With a score that
    is NaN, all three are NaN.
    """
    mean, deviation = None, 0.0
    if scores:
        mean = statistics.mean(scores)
    if any(map(math.isnan, scores)):
        deviation = math.nan  # statistics.stdev raises AttributeError for NaN
    elif len(scores) > 1:
        deviation = statistics.stdev(scores)
    return {
        "mean": mean,
        "standard_error": deviation / max(len(scores), 1) ** 0.5,
        "deviation": deviation,
        "scores": list(scores),
    }


def table(rows: Sequence[Values]) -> Iterator[str]:
    """The lines of a table of :func:`compare`'s rows, with a column for each run."""
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(row)
    lines = []
    for name in names:
        cells = [_shown(row.get(name)) for row in rows]
        lines.append([name, *cells])
    lines[0][0] = ""
    yield from aligned(lines)


def _shown(value: Any) -> str:
    """A cell of the table."""
    if isinstance(value, dict):
        cell = _shown(value["last"])
        if value["best"] != value["last"]:
            cell += f" (best {_shown(value['best'])} at step {value['step']:,})"
        if "baseline" in value:
            cell += f", baseline {_shown(value['baseline'])}"
        return cell
    if isinstance(value, float) and abs(value) >= 1000:
        return f"{value:,.0f}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if value is None:
        return "-"
    if isinstance(value, str) and value:
        return value
    return json.dumps(value)
