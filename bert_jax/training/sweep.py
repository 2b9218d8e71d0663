"""Many runs with a folder each and one table: sweeps and studies.

A run writes a file last, which shows that it is finished: results.json of a fine-tuning,
part.json of another run of a study. The same command runs all runs that are not finished.

A sweep trains every point of a grid with every seed and, with ``sweep.folds``, on every
fold of the training rows. Its runs are in sweep/, and sweep.json and sweep.md contain the
table. best/ and predictions/ are the best run's. The weights of all other runs are deleted.

A study pretrains variants with several seeds, fine-tunes them and scores minimal pairs. Its
folder contains
  study.json: all settings of the study. It can be run again from this file.
  pretrain/VARIANT-seedS, finetune/VARIANT-TASK-seedS, pairs/VARIANT-seedS: the runs.
    The weights of fine-tunings are deleted.
  table.json and table.md: the table.
"""

import contextlib
import functools
import itertools
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from ml_collections import ConfigDict

from bert_jax.data.pipeline import largest_batch
from bert_jax.errors import DivergenceError, UserError, naming
from bert_jax.files import (
    LOCK,
    check_link,
    delete_folder,
    locked,
    new_folder,
    read_json,
    replace_folder,
    write_json,
    write_text,
)
from bert_jax.inference.evaluation import OnDevices
from bert_jax.inference.pretrained import (
    ScoreOptions,
    accuracy,
    log_probabilities,
    read_sets,
)
from bert_jax.interop.load import load
from bert_jax.parallel.processes import from_leader, on_leader
from bert_jax.progress import Progress, aligned, print_line
from bert_jax.runs import RESULTS, read_runs, spread
from bert_jax.schema import check
from bert_jax.settings import to_dict
from bert_jax.tasks.families import FAMILIES
from bert_jax.tasks.splits import check_splits
from bert_jax.tasks.task import Task
from bert_jax.training import finetune as tuning
from bert_jax.training.config import (
    NO_EFFECT,
    PLACES,
    FineTuneConfig,
    StudyConfig,
    TrainConfig,
    finetune_config,
    train_config,
)
from bert_jax.training.pretrain import pretrain, pretraining_objective
from bert_jax.training.run import Log, check_owner, open_workdir, owner_changes
from bert_jax.training.workdir import CHECKPOINTS, RunFolder

SWEEP, DIVERGED = "sweep", "diverged"
# The settings in the name of a run of a sweep.
_GRID = ("batch_size", "optimizer.learning_rate", "epochs", "seed")
_COLUMNS = {"diverged": "{}", "flops": "{:.3g}", "seconds": "{:,.0f}"}

Results = dict[str, Any]


class _Diverged(TypedDict):
    """The form of the last file of a run that diverged."""

    diverged: str


class _FineTuned(TypedDict):
    """The form of a results.json: the keys that are read."""

    main_metric: str
    scores: dict[str, dict[str, float | None]]


class _Part(TypedDict, total=False):
    """The form of a part.json: the keys that are read."""

    scores: dict[str, float]
    tokens: float
    flops: float
    seconds: float


def finished(workdir: Path, config: Any, free: tuple[str, ...] = ()) -> Results | None:
    """The results of a run. None if it is not finished.

    config: a config, or the content of config.json. free: settings that may differ from
    ``config``. Raises UserError if the workdir belongs to a run with other settings.
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
        check_owner(workdir, identity, (*NO_EFFECT, *free))
    return results


def _check_results(results: Results, name: str) -> None:
    """Raises UserError unless the results in the file ``name`` have what is read."""
    if DIVERGED in results:
        check(results, _Diverged)
    elif name != RESULTS:
        check(results, _Part)
    else:
        check(results, _FineTuned)
        metric = results["main_metric"]
        first = next(iter(results["scores"].values()), {})
        if first.get(metric) is None:
            raise UserError(f"there is no score {metric}; delete it to run it again")


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
            raise UserError(f"{workdir} holds a sweep; use another workdir, or --sweep")
        results = from_leader(lambda: finished(place, config, PLACES))
        moved = results is not None and from_leader(lambda: _is_moved(place, config))
        if results is None:
            on_leader(lambda: check_link(place / tuning.BEST))
        if results is None or moved:
            prepared = tuning.prepare(config, place, log, task, folder)
        if moved:
            identity = tuning.identity(config, prepared)
            on_leader(lambda: check_owner(place, identity, NO_EFFECT))
        if results is None:
            run = prepared, folder, log
            results = tuning.finetune(config, *run, change_settings, callback)
        else:
            on_leader(folder.delete_checkpoints)  # a killed run may have left them
            for split, scores in results["scores"].items():
                log(f"finished before: {split}: {tuning.show(scores)}")
        delete_folder(place / tuning.FEATURES)
        return results


def _is_moved(workdir: Path, config: FineTuneConfig) -> bool:
    """Whether a finished run has other names for its data or its checkpoint."""
    return bool(owner_changes(workdir, to_dict(config), NO_EFFECT))


class _Runs:
    """Runs in a folder, and a table of their scores.

    A subclass has the methods _run(name), which returns the results of a run, and
    _end(name), which deletes weights that are not needed any more.
    configs: the config of each run by the run's name, in the order in which they run. A
      name is the path of the run's folder.
    folds: number of folds that the runs of a variant and a seed have; 0: none.
    variants: task and name of each run of a variant; "" for a run without a task.
    """

    def __init__(self, folder: Path, log: Log, seeds: Sequence[int], folds: int = 0):
        self.folder, self.log, self.seeds, self.folds = folder, log, seeds, folds
        self.configs: dict[str, Any] = {}
        self.variants: dict[str, list[tuple[str, str]]] = {}

    def add(self, variant: str, task: str, name: str, config: Any) -> None:
        """Adds a run, which several variants may share, to a variant."""
        self.configs[name] = config
        self.variants.setdefault(variant, []).append((task, name))

    def result(self, name: str) -> Results | None:
        """The results of a run. None if it is not finished.

        Raises UserError if its folder contains a run with other settings.
        """
        return finished(self.folder / name, self.configs[name])

    def missing(self) -> list[str]:
        """The names of the runs that are not finished."""
        return [name for name in self.configs if self.result(name) is None]

    def run_all(self, names: Sequence[str]) -> None:
        """Runs several runs. A run that diverges counts as finished."""
        for name in Progress("runs", names, unit="runs"):
            self.log(f"== {name}")
            try:
                results = self._run(name)
            except DivergenceError as error:
                self.log(f"diverged: {error}")
                results = {DIVERGED: str(error)}
            path = self.folder / name / _last_file(self.configs[name])
            on_leader(functools.partial(write_json, path, results))
            self._end(name)

    def table(self) -> Results:
        """The table of the finished runs, for JSON.

        "variants" contains for each variant:
          scores: by metric, the "mean", "deviation" and "scores" of the seeds, the
            "standard_error" of the mean, and the mean's "difference" from the mean of the
            first variant.
          diverged: number of runs that diverged.
          tokens, flops: of one pretraining.
          seconds: mean of the pretrainings.
        """
        results = {name: self.result(name) for name in self.configs}
        variants = {
            name: _summary([(task, results[run] or {}) for task, run in runs])
            for name, runs in self.variants.items()
        }
        first, *others = (variant["scores"] for variant in variants.values())
        for scores in others:
            for metric in scores.keys() & first.keys():
                difference = _difference(scores[metric], first[metric])
                scores[metric]["difference"] = difference
        return {
            "parts": len(results),
            "finished": sum(result is not None for result in results.values()),
            "seeds": list(self.seeds),
            "variants": variants,
        }

    def write_table(self, path: Path, **more: Any) -> Results:
        """Writes the table, with more values, as JSON and as Markdown, and logs it."""
        content, error, over = self.table() | more, "deviation", ""
        if self.folds:
            error, over = "standard_error", f"{self.folds} folds and "
        text = "\n".join(_table_lines(content["variants"], error)) + (
            f"\n\nMean ± {error.replace('_', ' ')} over {over}the seeds "
            f"{', '.join(map(str, self.seeds))}; in brackets the difference from "
            f"{next(iter(self.variants))} ± its standard error. {content['finished']} of "
            f"{content['parts']} runs are finished."
        )
        write_json(path, content)
        write_text(path.with_suffix(".md"), f"{text}\n")
        self.log(text)
        return content


def _summary(runs: Sequence[tuple[str, Results]]) -> Results:
    """The entry of a variant in :meth:`_Runs.table`. runs: (task, results)."""
    scores: dict[str, list[float]] = {}
    for task, results in runs:
        for metric, value in scores_of(results).items() if results else ():
            scores.setdefault(f"{task} {metric}".strip(), []).append(value)
    pretrainings = [results for _, results in runs if "flops" in results]
    counts = {n: results[n] for results in pretrainings for n in ("tokens", "flops")}
    return counts | {
        "seconds": spread([results["seconds"] for results in pretrainings])["mean"],
        "diverged": sum(DIVERGED in results for _, results in runs),
        "scores": {metric: spread(values) for metric, values in scores.items()},
    }


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
    metrics = list(dict.fromkeys(m for v in variants.values() for m in v["scores"]))
    columns = [n for n in _COLUMNS if any(v.get(n) for v in variants.values())]
    titles = ["", *metrics, *columns]
    rows = [titles, ["---"] * len(titles)]
    for name, variant in variants.items():
        cells = [_cell(variant["scores"].get(metric), error) for metric in metrics]
        values = ((_COLUMNS[n], variant.get(n)) for n in columns)
        cells += [form.format(value) if value else "-" for form, value in values]
        rows.append([name, *cells])
    return aligned([[*(f"| {cell}" for cell in row), "|"] for row in rows])


def _cell(scores: Results | None, error: str) -> str:
    """Mean, error, difference and its standard error: "80.1 ± 2.0 (+1.5 ± 0.9)"."""
    if scores is None:
        return "-"
    cell = f"{scores['mean']:.1f}"
    if len(scores["scores"]) > 1:
        cell += f" ± {scores[error]:.1f}"
    if difference := scores.get("difference"):
        known = difference["standard_error"] is not None
        after = f" ± {difference['standard_error']:.1f}" if known else ""
        cell += f" ({difference['mean']:+.1f}{after})"
    return cell


def run_sweep(
    config: FineTuneConfig,
    workdir: Path | str,
    log: Log = print_line,
    *,
    change_settings: bool = False,
) -> Results:
    """Runs every point of the grid with every seed, and returns the table of sweep.json.

    ``workdir``/best is the best model of all runs there, also of runs of earlier grids. A
    run that diverges is counted and not run again.
    change_settings: resume an unfinished run with other settings than before.
    """
    with open_workdir(workdir, log) as (folder, log):
        sweep = _Sweep(config, folder, log, change_settings)
        sweep.run_all(from_leader(sweep.missing))
        delete_folder(folder.local / tuning.FEATURES)
        table = from_leader(sweep.finish)
        on_leader(folder.upload)
        return table


class _Sweep(_Runs):
    """The runs of a sweep in the folder sweep/ of its workdir."""

    def __init__(
        self, config: FineTuneConfig, workdir: RunFolder, log: Log, change: bool
    ):
        grid, task = config.sweep, FAMILIES[config.family](config.data)
        super().__init__(workdir.local / SWEEP, log, grid.seeds, grid.folds)
        self.config, self.workdir, self.change = config, workdir, change
        # Settings that differ between the runs.
        self.free = (*_GRID, *["data.dir"] * bool(grid.folds))
        self.tasks: dict[str, Task | None] = {}  # a task if the run is on a fold
        self.prepared: Any = None  # key and Prepared of the last run
        for seed in grid.seeds:
            folds = task.folds(grid.folds, seed) if grid.folds else [None]
            for (number, fold), size, rate, epochs in itertools.product(
                enumerate(folds), grid.batch_size, grid.learning_rate, grid.epochs
            ):
                optimizer = replace(config.optimizer, learning_rate=rate)
                settings = {"batch_size": size, "epochs": epochs, "seed": seed}
                point = f"batch{size}-rate{rate:g}-epochs{epochs}"
                name = f"{point}-seed{seed}"
                if fold:
                    name, settings["data"] = f"{name}-fold{number}", fold.config
                self.tasks[name] = fold
                run_config = replace(config, optimizer=optimizer, **settings)
                self.add(point, "", name, run_config)

    def missing(self) -> list[str]:
        folder = self.workdir.local
        if (folder / "config.json").exists():
            raise UserError(f"{folder} holds a single run; use another workdir")
        check_link(folder / tuning.BEST)
        self._keep_best()
        return super().missing()

    def _run(self, name: str) -> Results:
        fold, folder = self.tasks[name], self.workdir.child(f"{SWEEP}/{name}")
        key = fold, from_leader(lambda: tuning.recorded_labels(folder))
        if self.prepared is None or self.prepared[0] != key:
            run = self.config, self.workdir.local, self.log, fold, folder
            self.prepared = key, tuning.prepare(*run)
        arguments = self.prepared[1], folder, self.log, self.change
        return tuning.finetune(self.configs[name], *arguments)

    def _end(self, name: str) -> None:
        on_leader(self._keep_best)

    def _keep_best(self) -> str:
        """Moves the model of the best run to best/. Deletes other weights of finished runs.

        Returns the name of the best run, also of earlier grids; "" if no run has a score.
        If several runs have the best score, it is the first of them by name.
        """
        scores = {}
        for path in sorted(self.folder.glob(f"*/{RESULTS}")):
            results = finished(path.parent, self.config, self.free)
            scores[path.parent.name] = [*scores_of(results).values()]
        best = max(filter(scores.get, scores), key=scores.get, default="")
        for name in scores:
            model = self.folder / name / tuning.BEST
            if name == best and model.exists():
                replace_folder(model, self.workdir.local / tuning.BEST)
            delete_folder(model)
            # A run that diverged, or was killed after its results, has checkpoints.
            self.workdir.child(f"{SWEEP}/{name}").delete_checkpoints()
        self.workdir.upload()
        return best

    def finish(self) -> Results:
        """Writes the table, and the predictions of the best run."""
        best, workdir = self._keep_best(), self.workdir.local
        if not best:
            raise UserError(f"every run in {self.folder} diverged; lower learning_rate")
        results = finished(self.folder / best, self.config, self.free)
        if not (workdir / tuning.BEST).exists():
            again = (
                f"put it back, or delete {self.folder / best / RESULTS} to run it again"
            )
            raise UserError(f"{workdir / tuning.BEST} is missing; {again}")
        with new_folder(workdir / tuning.PREDICTIONS, overwrite=True) as predictions:
            source = self.folder / best / tuning.PREDICTIONS
            shutil.copytree(source, predictions, dirs_exist_ok=True)
        ((metric, value),) = scores_of(results).items()
        table = self.write_table(workdir / "sweep.json", metric=metric, best_run=best)
        self.log(f"best: {best}, {metric} {value:.2f}; model: {workdir / tuning.BEST}")
        return table


class Study(_Runs):
    """A study in a folder on a disk.

    seeds: replace the seeds of the config. Raises UserError that names the variant and the
    task whose settings are wrong.
    """

    def __init__(
        self,
        config: StudyConfig,
        folder: Path,
        log: Log = print_line,
        seeds: Sequence[int] = (),
    ):
        super().__init__(folder, log, seeds or config.seeds)
        self.config = config
        self.pretraining: dict[str, str] = {}  # run -> the pretraining that it needs
        configs = _pretrainings(config)
        for seed, name in itertools.product(self.seeds, configs):
            # Variants with the same pretraining share it.
            shared = next(other for other in configs if configs[other] == configs[name])
            pretraining = f"pretrain/{shared}-seed{seed}"
            self.add(name, "", pretraining, replace(configs[name], seed=seed))
            for task, settings in config.tasks.items():
                merged = ConfigDict(settings, type_safe=False)
                merged.update(config.variants[name].finetune)
                merged.update({"init_from": str(folder / pretraining), "seed": seed})
                with naming(f"{name}, {task}"):
                    tuned = finetune_config(merged.to_dict())
                run = f"finetune/{name}-{task}-seed{seed}"
                self.add(name, task, run, tuned)
                self.pretraining[run] = pretraining
            if config.pairs:
                pairs = {"files": list(config.pairs), "first": config.pairs_per_set}
                run = f"pairs/{shared}-seed{seed}"
                self.add(name, "", run, pairs)
                self.pretraining[run] = pretraining

    def result(self, name: str) -> Results | None:
        """See :meth:`_Runs.result`. A study can be moved, so ``init_from`` may differ.

        A small corpus gives fewer tokens than ``vocab_size``.
        """
        config, free = self.configs[name], ()
        if isinstance(config, FineTuneConfig):
            free = ("init_from",)
        elif isinstance(config, TrainConfig) and config.data.corpus:
            free = ("model.vocab_size",)
        return finished(self.folder / name, config, free)

    def run(self) -> None:
        """Runs all parts that are not finished. Raises UserError if a part fails.

        Locks the seeds of this study in its folder, so that two processes can run different
        seeds at the same time.
        """
        with contextlib.ExitStack() as stack:
            for seed in self.seeds:
                name = f"seed {seed} of {self.folder}"
                lock = locked(self.folder, name=name, file_name=f"{LOCK}-seed{seed}")
                stack.enter_context(lock)
            self._run_missing()

    def _run_missing(self) -> None:
        missing = self.missing()
        for config in map(self.configs.get, missing):  # finds missing files now
            if isinstance(config, FineTuneConfig):
                check_splits(config.data, FAMILIES[config.family](config.data).form)
            elif isinstance(config, dict):
                next(read_sets(config["files"]))
        write_json(self.folder / "study.json", to_dict(self.config))
        self.run_all(missing)

    def _run(self, name: str) -> Results:
        config, folder = self.configs[name], self.folder / name
        pretraining = self.pretraining.get(name)
        if pretraining and DIVERGED in self.result(pretraining):
            raise DivergenceError(f"{pretraining} diverged")
        if isinstance(config, FineTuneConfig):
            return run_one(config, folder, self.log)
        if isinstance(config, TrainConfig):
            pretrain(config, folder, self.log)
            return _pretrained(config, folder)
        results = _scored_pairs(config, self.folder / pretraining, self.log)
        write_json(folder / "config.json", config)
        return results

    def _end(self, name: str) -> None:
        if isinstance(self.configs[name], FineTuneConfig):
            for part in (tuning.BEST, CHECKPOINTS):
                delete_folder(self.folder / name / part)


def _pretrainings(study: StudyConfig) -> dict[str, TrainConfig]:
    """The config of each variant's pretraining.

    With ``equal_compute`` the steps are changed so that all variants compute equally much.
    """
    configs: dict[str, TrainConfig] = {}
    for name, variant in study.variants.items():
        with naming(name):
            config = train_config(variant.pretrain)
            config.data.check_text()
            work = flops(config)
        if study.equal_compute and configs:
            share = flops(next(iter(configs.values()))) / work
            phases = (
                replace(phase, steps=max(1, round(phase.steps * share)))
                for phase in config.phases
            )
            config = replace(config, phases=tuple(phases))
        configs[name] = config
    return configs


def flops(config: TrainConfig) -> float:
    """Floating point operations of a whole pretraining, without packing."""
    objective, total = pretraining_objective(config), 0.0
    for phase in config.phases:
        batch = largest_batch(phase, config.data.examples, packs=False)
        total += phase.steps * objective.flops(batch)
    return total


def _pretrained(config: TrainConfig, folder: Path) -> Results:
    """The results of a pretraining: its last evaluation, and its cost."""
    (run,) = read_runs([folder])
    scores = {}
    for name in run.scores:
        if values := run.series("eval", name)[1]:
            scores[f"held-out {name}"] = values[-1] * run.percent(name)
    return {
        "scores": scores,
        "tokens": run.tokens([config.total_steps])[0],
        "flops": flops(config),
        "seconds": max(run.series("train", "seconds")[1]),
    }


def _scored_pairs(config: dict[str, Any], pretraining: Path, log: Log) -> Results:
    """The accuracy of a pretrained model on minimal pairs; no score without MLM head."""
    checkpoint = load(pretraining)
    if "mlm" not in checkpoint.params:
        log(f"{pretraining.name} has no MLM head, and scores no pairs")
        return {"scores": {}}
    most = config["first"] or None
    sets = ((name, pairs[:most]) for name, pairs in read_sets(config["files"]))
    score_texts = functools.partial(
        log_probabilities, OnDevices(checkpoint), ScoreOptions()
    )
    score = accuracy(score_texts, sets)
    log(f"minimal pairs: {score.accuracy:.1%} of {score.pairs:,}")
    return {"scores": {"minimal pairs": 100 * score.accuracy}, "by_set": score.by_set}
