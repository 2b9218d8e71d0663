"""Studies: variants of pretraining, fine-tuned on tasks and scored on minimal pairs.

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
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bert_jax import errors
from bert_jax.data.pipeline import largest_batch
from bert_jax.files import LOCK, delete_folder, locked, write_json
from bert_jax.inference.evaluation import OnDevices
from bert_jax.inference.pretrained import (
    ScoreOptions,
    accuracy,
    log_probabilities,
    read_sets,
)
from bert_jax.interop.find import BEST, CHECKPOINTS
from bert_jax.interop.load import load
from bert_jax.progress import Log, Progress, print_line
from bert_jax.runs import read_runs
from bert_jax.settings import merged, to_dict
from bert_jax.tasks.families import FAMILIES
from bert_jax.tasks.splits import check_splits
from bert_jax.training.config import (
    FineTuneConfig,
    StudyConfig,
    TrainConfig,
    finetune_config,
    train_config,
)
from bert_jax.training.pretrain import pretrain, pretraining_objective
from bert_jax.training.pretrain_data import text_of
from bert_jax.training.results import (
    DIVERGED,
    Results,
    finished,
    run_part,
    table,
    write_table,
)
from bert_jax.training.sweep import check_files, is_moved, run_one


class Study:
    """A study in a folder on a disk.

    configs: the config of each run by its name, in the order in which they run. A name is
      the path of the run's folder. The config of a run that scores pairs is a dictionary.
    variants: task and name of each run of a variant. The task is "" for a run without a
      task. Several variants may share a run.
    pretraining: name of the pretraining that a run needs.

    seeds: replace the seeds of the config. Raises UserError, which names the variant and
    the task whose settings are wrong.
    """

    def __init__(
        self,
        config: StudyConfig,
        folder: Path,
        log: Log = print_line,
        seeds: Sequence[int] = (),
    ):
        self.config, self.folder, self.log = config, folder, log
        self.seeds = seeds or config.seeds
        self.configs: dict[str, Any] = {}
        self.variants: dict[str, list[tuple[str, str]]] = {}
        self.pretraining: dict[str, str] = {}
        pretrainings = _pretrainings(config)
        for seed, variant in itertools.product(self.seeds, pretrainings):
            self._add_variant(variant, seed, pretrainings)

    def _add_variant(
        self, variant: str, seed: int, pretrainings: dict[str, TrainConfig]
    ) -> None:
        """Adds the runs of a variant with a seed. pretrainings: of all variants."""
        runs = self.variants.setdefault(variant, [])
        own = pretrainings[variant]
        # Variants with the same pretraining share it.
        shared = next(other for other in pretrainings if pretrainings[other] == own)
        pretraining = f"pretrain/{shared}-seed{seed}"
        self.configs[pretraining] = replace(own, seed=seed)
        runs.append(("", pretraining))
        for task, settings in self.config.tasks.items():
            changed = merged(settings, self.config.variants[variant].finetune)
            changed |= {"init_from": str(self.folder / pretraining), "seed": seed}
            run = f"finetune/{variant}-{task}-seed{seed}"
            with errors.naming(f"{variant}, {task}"):
                self.configs[run] = finetune_config(changed)
            runs.append((task, run))
            self.pretraining[run] = pretraining
        if self.config.pairs:
            run = f"pairs/{shared}-seed{seed}"
            files, first = list(self.config.pairs), self.config.pairs_per_set
            self.configs[run] = {"files": files, "first": first}
            runs.append(("", run))
            self.pretraining[run] = pretraining

    def result(self, name: str) -> Results | None:
        """The results of a run. None if it is not finished.

        Raises UserError if its folder contains a run with other settings. A study can be
        moved, so ``init_from`` may differ. A small corpus may yield fewer tokens than
        ``vocab_size``. A prepared text and the files of a task may also be moved, because
        their content is compared.
        """
        config, free, content = self.configs[name], (), {}
        folder = self.folder / name
        if isinstance(config, FineTuneConfig):
            free = ("init_from",)
            if is_moved(folder, config, free):
                task = FAMILIES[config.family](config.data)
                content = {"content": task.splits.checksum}
        elif isinstance(config, TrainConfig):
            if config.data.corpus:
                free = ("model.vocab_size",)
            else:
                content = {"text": text_of(config.data)}
        else:
            content = self._pairs
        return finished(folder, config, free, content)

    @functools.cached_property
    def _pairs(self) -> dict[str, str]:
        """A checksum of the minimal pairs, by its name in config.json.

        Empty if a file is missing, so that a finished study can be read without its pairs.
        """
        files = self.config.pairs
        if not all(Path(file).exists() for file in files):
            return {}
        most = self.config.pairs_per_set or None
        checksum = 0
        for _, pairs in read_sets(files):
            checksum = zlib.crc32(repr(pairs[:most]).encode(), checksum)
        return {"rows": f"{checksum:08x}"}

    def missing(self) -> list[str]:
        """The names of the runs that are not finished."""
        return [name for name in self.configs if self.result(name) is None]

    def run(self) -> None:
        """Runs all runs that are not finished. Raises UserError if a run fails.

        Locks the seeds of this study in its folder, so that two processes can run different
        seeds at the same time.
        """
        with contextlib.ExitStack() as stack:
            for seed in self.seeds:
                name = f"seed {seed} of {self.folder}"
                lock = locked(self.folder, name=name, file_name=f"{LOCK}-seed{seed}")
                stack.enter_context(lock)
            missing = self.missing()
            self._check_starts(missing)
            self._check_rows(missing)
            self._check_files(missing)
            write_json(self.folder / "study.json", to_dict(self.config))
            self.run_all(missing)

    def _check_starts(self, missing: Sequence[str]) -> None:
        """Raises UserError if the pretraining of a finished run is missing."""
        done = [name for name in self.configs if name not in missing]
        alone = [name for name in done if self.pretraining.get(name) in missing]
        if alone:
            folders = [str(self.folder / name) for name in alone]
            raise errors.UserError(
                f"the pretraining of {errors.listed(folders)} is missing; put it back, or "
                "delete these folders to run all of them again"
            )

    def _check_rows(self, missing: Sequence[str]) -> None:
        """Raises UserError if the files of finished fine-tunings were changed in place."""
        tasks: dict[str, tuple[FineTuneConfig, list[Path]]] = {}
        for name, config in self.configs.items():
            if isinstance(config, FineTuneConfig) and name not in missing:
                task = f"{config.family} {config.data}"
                _, folders = tasks.setdefault(task, (config, []))
                folders.append(self.folder / name)
        for config, folders in tasks.values():
            check_files(folders, config)

    def _check_files(self, names: Sequence[str]) -> None:
        """Raises UserError if a file that the runs need is missing."""
        for name in names:
            config = self.configs[name]
            if isinstance(config, FineTuneConfig):
                check_splits(config.data, FAMILIES[config.family](config.data).form)
            elif isinstance(config, dict):
                next(read_sets(config["files"]))

    def run_all(self, names: Sequence[str]) -> None:
        """Runs several runs. A run that diverges counts as finished."""
        for name in Progress("runs", names, unit="runs"):
            self.log(f"== {name}")
            folder, config = self.folder / name, self.configs[name]
            run_part(folder, config, functools.partial(self._run, name), self.log)
            if isinstance(config, FineTuneConfig):
                for part in (BEST, CHECKPOINTS):
                    delete_folder(folder / part)

    def _run(self, name: str) -> Results:
        config, folder = self.configs[name], self.folder / name
        pretraining = self.pretraining.get(name)
        if pretraining and DIVERGED in self.result(pretraining):
            raise errors.DivergenceError(f"{pretraining} diverged")
        if isinstance(config, FineTuneConfig):
            return run_one(config, folder, self.log)
        if isinstance(config, TrainConfig):
            pretrain(config, folder, self.log)
            return _pretrained(config, folder)
        results = _scored_pairs(config, self.folder / pretraining, self.log)
        write_json(folder / "config.json", config | self._pairs)
        return results

    def table(self) -> Results:
        """The table of the finished runs; see :func:`bert_jax.training.results.table`."""
        results = {name: self.result(name) for name in self.configs}
        return table(self.variants, results, self.seeds)

    def write_table(self) -> None:
        """Writes table.json and table.md, and logs the table."""
        write_table(self.folder / "table.json", self.table(), self.log)


def _pretrainings(study: StudyConfig) -> dict[str, TrainConfig]:
    """The config of each variant's pretraining.

    With ``equal_compute`` the steps are changed so that all variants use the same compute.
    """
    configs: dict[str, TrainConfig] = {}
    for name, variant in study.variants.items():
        with errors.naming(name):
            config = train_config(variant.pretrain)
            config.data.check_text()
            if study.equal_compute:
                config.data.check_rows()
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
    """Floating point operations of a whole pretraining with a row for each example."""
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
        steps, values = run.series("eval", name)
        # A score of an earlier, left-to-right phase is not a score of the model.
        if steps and steps[-1] == config.total_steps:
            scores[f"held-out {name}"] = values[-1] * run.percent(name)
    (tokens,) = run.tokens([config.total_steps])
    full = sum(p.steps * p.batch_size * p.sequence_length for p in config.phases)
    return {
        "scores": scores,
        "tokens": tokens,
        "flops": flops(config) * tokens / full,
        "seconds": max(run.series("train", "seconds")[1]),
    }


def _scored_pairs(config: dict[str, Any], pretraining: Path, log: Log) -> Results:
    """The accuracy of a pretrained model on minimal pairs; no score without MLM head."""
    checkpoint = load(pretraining)
    if "mlm" not in checkpoint.params:
        log(f"{pretraining.name} has no MLM head, so it scores no pairs")
        return {"scores": {}}
    most = config["first"] or None
    sets = ((name, pairs[:most]) for name, pairs in read_sets(config["files"]))
    score_texts = functools.partial(
        log_probabilities, OnDevices(checkpoint), ScoreOptions()
    )
    score = accuracy(score_texts, sets)
    log(f"minimal pairs: {score.accuracy:.1%} of {score.pairs:,}")
    return {"scores": {"minimal pairs": 100 * score.accuracy}, "by_set": score.by_set}
