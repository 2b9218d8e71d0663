"""A study: variants of pretraining, fine-tuned and scored with several seeds, in a table.

Each part of a study is a run in its own folder: the preparation of a text, a pretraining,
a fine-tuning, the scoring of minimal pairs. A finished part has a part.json. The same
command runs the parts that are not finished. A study's folder contains:
  study.json: all settings of the study. It can be run again from this file.
  text/: the prepared text, if the pretrainings name a corpus.
  pretrain/VARIANT-seedS, finetune/VARIANT-TASK-seedS, pairs/VARIANT-seedS: the parts.
    Fine-tunings keep no weights.
  table.json, table.md and table.png: the results.
"""

import itertools
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.corpus import find_sources
from bert_jax.errors import DivergenceError, UserError, naming
from bert_jax.files import write_json, write_text
from bert_jax.inference.pretrained import Scorer, accuracy, read_sets
from bert_jax.interop.load import load
from bert_jax.progress import Progress, print_line
from bert_jax.runs import read_runs, spread
from bert_jax.settings import to_dict
from bert_jax.tasks.families import FAMILIES
from bert_jax.training.config import (
    DataConfig,
    FineTuneConfig,
    StudyConfig,
    TrainConfig,
    finetune_config,
    resume_differences,
    train_config,
)
from bert_jax.training.finetune import BEST
from bert_jax.training.pretrain import prepare_corpus, pretrain, pretraining_objective
from bert_jax.training.run import Log
from bert_jax.training.sweep import DIVERGED, finished, run_one

STUDY = "study.json"
_PART = "part.json"
_PAIRS = "minimal pairs"  # name of their accuracy
# The settings that a prepared text depends on.
_TEXT = ("corpus", "language", "vocabulary_size", "lower_case", "keep_accents")

Result = dict[str, Any]


class Part(NamedTuple):
    """A part of a study; its name is the path of its folder in the study's folder.

    config: config of a run or of a text, or a dictionary with the files of minimal pairs.
    after: name of the part that must be finished before, or "".
    """

    config: TrainConfig | FineTuneConfig | DataConfig | dict[str, Any]
    after: str = ""


class Study:
    """A study in a folder: its parts, what has been run, and the table.

    parts: the parts by name, in an order in which they can run. variants: for each variant
    its parts, as pairs of a task ("" without one) and a name. change_settings: resume
    unfinished parts with other settings than before. Raises UserError that names the
    variant and the task whose settings are wrong.
    """

    def __init__(
        self,
        config: StudyConfig,
        folder: Path,
        log: Log = print_line,
        change_settings: bool = False,
    ):
        self.config, self.folder = config, folder
        self.log, self.change_settings = log, change_settings
        self.parts: dict[str, Part] = {}
        self.variants: dict[str, list[tuple[str, str]]] = {}
        configs = _pretrainings(config)
        for seed, name in itertools.product(config.seeds, configs):
            # Variants with the same pretraining share it.
            first = next(other for other in configs if configs[other] == configs[name])
            own = self._plan(name, first, replace(configs[name], seed=seed))
            self.variants.setdefault(name, []).extend(own)
            self.parts |= {part: content for (_, part), content in own.items()}

    def _plan(
        self, name: str, pretrained: str, config: TrainConfig
    ) -> dict[tuple[str, str], Part]:
        """The parts of a variant and a seed, by task and name."""
        study, seed, text = self.config, config.seed, ""
        if not config.data.path:
            own = DataConfig(**{n: getattr(config.data, n) for n in _TEXT})
            texts = [
                part.config for name, part in self.parts.items() if "/" not in name
            ]
            number = texts.index(own) if own in texts else len(texts)
            text = f"text{number or ''}"
            self.parts[text] = Part(own)
            data = replace(config.data, path=str(self.folder / text), corpus=())
            config = replace(config, data=data)
        before = f"pretrain/{pretrained}-seed{seed}"
        parts = {("", before): Part(config, text)}
        changes = study.variants[name].finetune
        for task, settings in study.tasks.items():
            given = {"init_from": str(self.folder / before), "seed": seed}
            with naming(f"{name}, {task}"):
                tuned = finetune_config(_merged(settings, changes) | given)
            parts[task, f"finetune/{name}-{task}-seed{seed}"] = Part(tuned, before)
        if study.pairs:
            pairs = {"files": list(study.pairs), "first": study.pairs_per_set}
            parts["", f"pairs/{pretrained}-seed{seed}"] = Part(pairs, before)
        return parts

    def run(self) -> None:
        """Runs all parts that are not finished. Raises UserError if a part fails."""
        missing = [name for name in self.parts if self.result(name) is None]
        for name in missing:
            _check_files(self.parts[name].config)
        write_json(self.folder / STUDY, to_dict(self.config))
        total = len(self.parts)
        with Progress(
            "study", missing, total=total, initial=total - len(missing), unit="parts"
        ) as names:
            for name in names:
                self.run_part(name)

    def run_part(self, name: str) -> Result:
        """Runs a part and returns its result. If it diverges, so do parts that need it."""
        if name not in self.parts:
            raise UserError(
                f"{name} is no part of the study; expected one of {', '.join(self.parts)}"
            )
        result = self.result(name)
        if result is not None:
            return result
        part, directory = self.parts[name], self.folder / name
        before = self.result(part.after) if part.after else {}
        if before is None:
            raise UserError(
                f"{name} needs {part.after}, which is not finished; run it first"
            )
        self.log(f"== {name}")
        started = time.monotonic()
        try:
            if DIVERGED in before:
                raise DivergenceError(f"{part.after} diverged")
            result = self._run(part.config, directory, self.folder / part.after)
        except DivergenceError as error:
            self.log(f"diverged: {error}")
            result = {DIVERGED: str(error)}
        result.setdefault("seconds", round(time.monotonic() - started, 1))
        write_json(directory / _PART, result)
        shutil.rmtree(directory / BEST, ignore_errors=True)
        return result

    def _run(self, config: Any, directory: Path, before: Path) -> Result:
        settings = {"change_settings": self.change_settings}
        if isinstance(config, TrainConfig):
            pretrain(config, directory, self.log, **settings)
            return _pretrained(config, directory)
        if isinstance(config, FineTuneConfig):
            found = run_one(config, directory, self.log, **settings)
            scores, metric = next(iter(found["scores"].values())), found["main_metric"]
            seconds = found["train_seconds"] + found["evaluation_seconds"]
            return {"scores": {metric: scores[metric]}, "seconds": seconds}
        if isinstance(config, DataConfig):
            prepare_corpus(config, directory, self.log)
            result = {}
        else:
            result = _scored_pairs(config, before, self.log)
        write_json(directory / "config.json", _identity(config))
        return result

    def result(self, name: str) -> Result | None:
        """The result of a part. None if it is not finished.

        Raises UserError if its folder contains a part with other settings.
        """
        return finished(
            self.folder / name,
            _identity(self.parts[name].config),
            marker=_PART,
            differences=_differences,
        )

    def table(self) -> Result:
        """The content of table.json: the results of the finished parts.

        "variants" has for each variant: "scores" by metric, each with "mean", "deviation"
        and "scores" of the finished seeds, and the "difference" of its mean from the first
        variant's; "diverged", the number of parts that diverged; "flops", "tokens" and
        "steps" of one pretraining; "seconds", the mean of the pretrainings.
        """
        results = {name: self.result(name) for name in self.parts}
        variants = {
            name: _variant([(task, results[part] or {}) for task, part in own])
            for name, own in self.variants.items()
        }
        first, *others = (variant["scores"] for variant in variants.values())
        for scores in others:
            for metric in scores.keys() & first.keys():
                difference = _difference(scores[metric], first[metric])
                scores[metric]["difference"] = difference
        return {
            "parts": len(self.parts),
            "finished": sum(result is not None for result in results.values()),
            "seeds": list(self.config.seeds),
            "variants": variants,
        }

    def write_table(self) -> None:
        """Writes and logs the table of the finished parts."""
        content = self.table()
        text = table_text(content)
        write_json(self.folder / "table.json", content)
        write_text(self.folder / "table.md", text)
        self.log(text.rstrip())
        try:
            from bert_jax import figures

            figures.save(figures.study(content), self.folder / "table.png")
            self.log(f"picture: {self.folder / 'table.png'}")
        except UserError as error:  # without matplotlib
            self.log(f"no picture: {error}")


def _pretrainings(study: StudyConfig) -> dict[str, TrainConfig]:
    """The config of each variant's pretraining, with the steps of equal compute."""
    configs = {}
    for name, variant in study.variants.items():
        with naming(name):
            config = configs[name] = train_config(variant.pretrain)
            config.data.check_text()
            work = flops(config)
        if study.equal_compute:
            share = flops(next(iter(configs.values()))) / work
            phases = tuple(
                replace(phase, steps=max(1, round(phase.steps * share)))
                for phase in config.phases
            )
            configs[name] = replace(config, phases=phases)
    return configs


def flops(config: TrainConfig) -> float:
    """Floating point operations of a whole pretraining, without packing."""
    objective = pretraining_objective(config)
    total = 0.0
    for phase in config.phases:
        shapes = {
            "input_ids": (phase.batch_size, phase.sequence_length),
            "mlm_ids": (phase.batch_size, phase.max_predictions),
            "nsp_labels": (phase.batch_size,),
        }
        batch = {name: np.broadcast_to(0, shape) for name, shape in shapes.items()}
        total += phase.steps * objective.flops(batch)
    return total


def _merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with changes, also in nested groups."""
    return dict(settings) | {
        name: _merged(settings.get(name, {}), value)
        if isinstance(value, Mapping)
        else value
        for name, value in changes.items()
    }


def _check_files(config: Any) -> None:
    """Raises UserError if the files of a part's data do not exist."""
    if isinstance(config, FineTuneConfig):
        FAMILIES[config.family](config.data).source.check()
    elif isinstance(config, dict):
        next(read_sets(map(Path, config["files"])))
    elif isinstance(config, DataConfig):
        find_sources(config.corpus, language=config.language)


def _pretrained(config: TrainConfig, directory: Path) -> Result:
    """The result of a pretraining: its last evaluation, and its cost."""
    (run,) = read_runs([directory])
    scores = {name: run.series("eval", name)[1] for name in run.scores}
    phases = config.phases
    return {
        "scores": {
            f"held-out {name}": values[-1] * run.percent(name)
            for name, values in scores.items()
            if values
        },
        "steps": config.total_steps,
        "tokens": sum(p.steps * p.batch_size * p.sequence_length for p in phases),
        "flops": flops(config),
        "seconds": max(run.series("train", "seconds")[1]),
    }


def _scored_pairs(config: dict[str, Any], before: Path, log: Log) -> Result:
    """The accuracy of a pretrained model on minimal pairs; no score without MLM."""
    checkpoint = load(before)
    if "mlm" not in checkpoint.params:
        log(f"{before.name} has no MLM head, and scores no pairs")
        return {"scores": {}}
    sets = (
        (name, pairs[: config["first"] or None])
        for name, pairs in read_sets(map(Path, config["files"]))
    )
    found = accuracy(Scorer(checkpoint), sets)
    log(f"{_PAIRS}: {found.accuracy:.1%} of {found.pairs:,}")
    return {"scores": {_PAIRS: 100 * found.accuracy}, "by_set": found.by_set}


def _identity(config: Any) -> dict[str, Any]:
    """The content of config.json of a part."""
    if isinstance(config, DataConfig):
        return {name: to_dict(config)[name] for name in _TEXT}
    return config if isinstance(config, dict) else to_dict(config)


def _differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    if "corpus" in new:  # older versions wrote fewer settings of a text
        old = _identity(DataConfig()) | old
    # The folder of the study may have moved.
    free = ("init_from", "text")
    return resume_differences(old, new, free=free, same_scores=True)


def _variant(results: Sequence[tuple[str, Result]]) -> Result:
    """A summary of pairs of a task and a result."""
    scores: dict[str, list[float]] = {}
    for task, result in results:
        for metric, value in result.get("scores", {}).items():
            scores.setdefault(f"{task} {metric}".strip(), []).append(value)
    pretrainings = [result for _, result in results if "flops" in result]
    known = pretrainings[0] if pretrainings else {}
    return {
        **{name: known.get(name) for name in ("steps", "tokens", "flops")},
        "seconds": spread([result["seconds"] for result in pretrainings])["mean"],
        "diverged": sum(DIVERGED in result for _, result in results),
        "scores": {metric: spread(values) for metric, values in scores.items()},
    }


def _difference(own: Result, first: Result) -> Result:
    """The difference of two means, and its standard error for several seeds."""
    error, both = None, (own, first)
    if all(len(one["scores"]) > 1 for one in both):
        error = math.hypot(*(s["deviation"] / len(s["scores"]) ** 0.5 for s in both))
    return {"mean": own["mean"] - first["mean"], "standard_error": error}


def table_text(content: Result) -> str:
    """A Markdown table with a row for each variant."""
    variants = content["variants"]
    metrics = list(dict.fromkeys(m for own in variants.values() for m in own["scores"]))
    rows = [["", *metrics, "PFLOP", "seconds"]]
    for name, own in variants.items():
        cells = [_cell(own["scores"].get(metric)) for metric in metrics]
        work, seconds = own["flops"], own["seconds"]
        cells.append("-" if work is None else f"{work / 1e15:.3g}")
        cells.append("-" if seconds is None else f"{seconds:,.0f}")
        rows.append([name, *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    lines = [
        f"| {' | '.join(map(str.ljust, row, widths))} |"  # aligned for terminals
        for row in rows
    ]
    first, *others = variants
    note = f"Mean ± deviation over the seeds {', '.join(map(str, content['seeds']))}"
    if others:
        note += f"; in brackets the difference from {first} ± its standard error"
    note += f". {content['finished']} of {content['parts']} parts are finished."
    if diverged := sum(own["diverged"] for own in variants.values()):
        note += f" {diverged} parts diverged and are left out."
    return "\n".join([*lines, "", note, ""])


def _cell(found: Result | None) -> str:
    if found is None:
        return "-"
    cell = f"{found['mean']:.1f}"
    if len(found["scores"]) > 1:
        cell += f" ± {found['deviation']:.1f}"
    if "difference" in found:
        error = found["difference"]["standard_error"]
        cell += f" ({found['difference']['mean']:+.1f}"
        cell += ")" if error is None else f" ± {error:.1f})"
    return cell
