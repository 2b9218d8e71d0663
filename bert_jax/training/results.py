"""Results of finished runs, and tables of several runs.

A run is finished once it has written its last file: results.json for a fine-tuning,
part.json for any other run of a study. The same command runs all runs that are not
finished.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from bert_jax.errors import DivergenceError, UserError, counted, naming
from bert_jax.files import read_json, write_json, write_text
from bert_jax.parallel.processes import on_leader
from bert_jax.progress import Log, aligned
from bert_jax.runs import RESULTS, spread
from bert_jax.schema import check
from bert_jax.settings import to_dict
from bert_jax.training.config import FineTuneConfig
from bert_jax.training.owner import NO_EFFECT, check_owner

DIVERGED = "diverged"
_COLUMNS = {"diverged": "{}", "flops": "{:.3g}", "seconds": "{:,.0f}"}

Results = dict[str, Any]


class _Diverged(TypedDict):
    """The form of the last file of a run that diverged."""

    diverged: str


class _FineTuned(TypedDict):
    """The form of a results.json: the keys that are read."""

    main_metric: str
    scores: dict[str, dict[str, float | None]]


class _Part(TypedDict):
    """The form of a part.json: the keys that are read."""

    scores: dict[str, float]


class _PretrainedPart(_Part):
    """The form of the part.json of a pretraining."""

    tokens: float
    flops: float
    seconds: float


def finished(
    workdir: Path,
    config: Any,
    free: tuple[str, ...] = (),
    content: Mapping[str, Any] | None = None,
) -> Results | None:
    """The results of a run. None if it is not finished.

    config: a config, or the settings of config.json. free: settings that may differ from
    ``config``. content: checksums of the data and the checkpoint, by their keys in
    config.json. A place whose checksum is not given is compared by its path.

    Raises UserError if the workdir belongs to a run with other settings or content.
    """
    path = workdir / _last_file(config)
    if not path.exists():
        return None
    results = read_json(path, "the results of a run; delete it to run it again")
    with naming(path):
        _check_results(results, path.name)
    # A run whose pretraining diverged did not start and has no config.json.
    if DIVERGED not in results or (workdir / "config.json").exists():
        identity = config if isinstance(config, dict) else to_dict(config)
        check_owner(workdir, identity | (content or {}), (*NO_EFFECT, *free))
    return results


def _check_results(results: Results, name: str) -> None:
    """Raises UserError unless the results in the file ``name`` have what is read."""
    if DIVERGED in results:
        check(results, _Diverged)
    elif name != RESULTS:
        form = _Part
        if "flops" in results:
            form = _PretrainedPart
        check(results, form)
    else:
        check(results, _FineTuned)
        metric = results["main_metric"]
        first = next(iter(results["scores"].values()), {})
        if first.get(metric) is None:
            raise UserError(
                f"the score {metric} is missing; delete the file to run it again"
            )


def _last_file(config: Any) -> str:
    """The file that a run writes last, which shows that the run is finished."""
    return RESULTS if isinstance(config, FineTuneConfig) else "part.json"


def scores_of(results: Results) -> dict[str, float]:
    """The scores of a run by metric. A fine-tuning has one: the main metric on dev."""
    if DIVERGED in results:
        return {}
    if metric := results.get("main_metric"):
        return {metric: next(iter(results["scores"].values()))[metric]}
    return results["scores"]


def run_part(
    workdir: Path, config: Any, train: Callable[[], Results], log: Log
) -> None:
    """Runs one of many runs, and writes its results. A run that diverges counts as
    finished.

    train: function that returns the results, or raises DivergenceError.
    """
    try:
        results = train()
    except DivergenceError as error:
        log(f"diverged: {error}")
        results = {DIVERGED: str(error)}
    path = workdir / _last_file(config)
    on_leader(functools.partial(write_json, path, results))


def table(
    variants: Mapping[str, Sequence[tuple[str, str]]],
    results: Mapping[str, Results | None],
    seeds: Sequence[int],
) -> Results:
    """The table of the finished runs, for JSON.

    variants: by variant, the task of each of its runs ("": no task) and the run's name.
    results: by the name of a run; None if it is not finished.

    "variants" contains for each variant:
      scores: by metric, the "mean", "deviation" and "scores" of the seeds, the
        "standard_error" of the mean, and the mean's "difference" from the mean of the
        first variant.
      diverged: number of runs that diverged.
      tokens, flops: of one pretraining.
      seconds: mean of the pretrainings.
    """
    finished_runs = {
        run: result for run, result in results.items() if result is not None
    }
    summaries = {}
    for variant, runs in variants.items():
        summaries[variant] = _summary(runs, finished_runs)
    first, *others = summaries.values()
    for other in others:
        scores = other["scores"]
        for metric in scores.keys() & first["scores"].keys():
            difference = _difference(scores[metric], first["scores"][metric])
            scores[metric]["difference"] = difference
    return {
        "parts": len(results),
        "finished": len(finished_runs),
        "seeds": list(seeds),
        "variants": summaries,
    }


def write_table(path: Path, content: Results, log: Log, folds: int = 0) -> None:
    """Writes a table as JSON to ``path`` and as Markdown in the same folder, and logs it.

    folds: number of folds of each variant and seed. 0: none.
    """
    error, over = "deviation", ""
    if folds:
        error, over = "standard_error", f"{counted(folds, 'fold')} and "
    variants, seeds = content["variants"], [*map(str, content["seeds"])]
    noun = "seeds"
    if len(seeds) == 1:
        noun = "seed"
    brackets = ""
    if len(variants) > 1:
        first, *_ = variants
        brackets = f"; in brackets the difference from {first} ± its standard error"
    text = "\n".join(_table_lines(variants, error)) + (
        f"\n\nMean ± {error.replace('_', ' ')} over {over}the {noun} "
        f"{', '.join(seeds)}{brackets}. {content['finished']} of "
        f"{counted(content['parts'], 'run')} finished."
    )
    write_json(path, content)
    write_text(path.with_suffix(".md"), f"{text}\n")
    log(text)


def _summary(
    runs: Sequence[tuple[str, str]], finished_runs: Mapping[str, Results]
) -> Results:
    """The entry of a variant in :func:`table`.

    runs: (task, name) of each run. finished_runs: results by the name of a run.
    """
    values: dict[str, list[float]] = {}
    counts, seconds, diverged = {}, [], 0
    for task, run in runs:
        results = finished_runs.get(run, {})
        if DIVERGED in results:
            diverged += 1
        elif results:
            for metric, value in scores_of(results).items():
                values.setdefault(f"{task} {metric}".strip(), []).append(value)
        if "flops" in results:  # a pretraining
            counts = {"tokens": results["tokens"], "flops": results["flops"]}
            seconds.append(results["seconds"])
    scores = {metric: spread(of_seeds) for metric, of_seeds in values.items()}
    counts |= {"seconds": spread(seconds)["mean"], "diverged": diverged}
    return counts | {"scores": scores}


def _difference(scores: Results, first: Results) -> Results:
    """The difference of two means; its standard error, None with a single seed."""
    error = None
    if len(scores["scores"]) > 1 and len(first["scores"]) > 1:
        error = math.hypot(scores["standard_error"], first["standard_error"])
    return {"mean": scores["mean"] - first["mean"], "standard_error": error}


def _table_lines(variants: Mapping[str, Results], error: str) -> Iterator[str]:
    """The lines of a Markdown table with a row for each variant.

    error: the value after ±, "deviation" or "standard_error".
    """
    metrics, used = {}, set()  # a set has no order, the keys of a dictionary have
    for variant in variants.values():
        metrics |= variant["scores"]
        used |= {column for column in _COLUMNS if variant.get(column)}
    columns = [column for column in _COLUMNS if column in used]
    titles = ["", *metrics, *columns]
    rows = [titles, ["---"] * len(titles)]
    for name, variant in variants.items():
        row = [name]
        row += [_cell(variant["scores"].get(metric), error) for metric in metrics]
        for column in columns:
            value = variant.get(column)
            row.append(_COLUMNS[column].format(value) if value else "-")
        rows.append(row)
    return aligned([[*(f"| {cell}" for cell in row), "|"] for row in rows])


def _cell(scores: Results | None, error: str) -> str:
    """Mean, error, difference and its standard error: "80.1 ± 2.0 (+1.5 ± 0.9)"."""
    if scores is None:
        return "-"
    cell = f"{scores['mean']:.1f}"
    if len(scores["scores"]) > 1:
        cell += f" ± {scores[error]:.1f}"
    difference = scores.get("difference")
    if difference:
        after = ""
        if difference["standard_error"] is not None:
            after = f" ± {difference['standard_error']:.1f}"
        cell += f" ({difference['mean']:+.1f}{after})"
    return cell
