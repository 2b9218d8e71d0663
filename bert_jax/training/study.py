"""A study: variants of pretraining times tasks times seeds, each part a run of its own.

Each part of a study is a run that goes on where it was stopped: a pretraining, a
fine-tuning, the scores of minimal pairs. A part that is finished has a part.json, and that
is all a study needs to know to go on. The folder of a study holds:
  study.json: all of its settings, from which it can be run again;
  text/: the prepared text, where the pretrainings name a corpus;
  pretrain/VARIANT-seedS and finetune/VARIANT-TASK-seedS: workdirs of runs, without the
    weights of the fine-tunings; pairs/VARIANT-seedS;
  table.json, table.txt, table.md and table.png: what came out (study_table.py).
"""

import dataclasses
import functools
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.corpus import find_sources
from bert_jax.errors import DivergenceError, Preempted, UserError, naming
from bert_jax.files import read_json, write_json
from bert_jax.inference import score
from bert_jax.interop.load import load
from bert_jax.locks import locked
from bert_jax.progress import Progress, print_line
from bert_jax.runs import read_runs
from bert_jax.settings import differences, to_dict
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
from bert_jax.training.run import Log, check_owner
from bert_jax.training.sweep import DIVERGED, run_one

STUDY = "study.json"
_PART = "part.json"
_PAIRS = "minimal pairs"  # the name of their accuracy
# The settings that a prepared text depends on.
_TEXT = ("corpus", "language", "vocabulary_size", "lower_case", "keep_accents")

Result = dict[str, Any]


class Part(NamedTuple):
    """A part of a study; its name is that of its folder.

    config: of the run, of the text, or what the study says of minimal pairs. after: the
    part that has to be finished before, or "".
    """

    config: TrainConfig | FineTuneConfig | DataConfig | dict[str, Any]
    after: str = ""


class Plan(NamedTuple):
    """What a study is to do.

    parts: by name, each after the one that it needs, and a seed's before the next one's.
    variants: of each variant the parts that tell of it, as (task or "", part).
    """

    parts: dict[str, Part]
    variants: dict[str, list[tuple[str, str]]]


def plan_study(study: StudyConfig, folder: Path) -> Plan:
    """The parts of a study that lies in ``folder``.

    Raises UserError that names the variant and the task whose settings are wrong.
    """
    configs = _pretrainings(study)
    texts = {
        text: f"text{i or ''}"
        for i, text in enumerate(dict.fromkeys(map(_text, configs.values())))
        if text is not None
    }
    parts = {name: Part(text) for text, name in texts.items()}
    variants: dict[str, list[tuple[str, str]]] = {name: [] for name in configs}
    for seed, (name, variant) in itertools.product(study.seeds, study.variants.items()):
        shared = next(other for other in configs if configs[other] == configs[name])
        config = dataclasses.replace(configs[name], seed=seed)
        text = texts.get(_text(config), "")
        if text:
            path = str(folder / text)
            data = dataclasses.replace(config.data, path=path, corpus=())
            config = dataclasses.replace(config, data=data)
        pretrained = f"pretrain/{shared}-seed{seed}"
        own = {("", pretrained): Part(config, text)}
        for task, settings in study.tasks.items():
            begin = {"init_from": str(folder / pretrained), "seed": seed}
            with naming(f"{name}, {task}"):
                config = finetune_config(_merged(settings, variant.finetune) | begin)
            part = f"finetune/{name}-{task}-seed{seed}"
            own[task, part] = Part(config, pretrained)
        if study.pairs:
            pairs = {"files": list(study.pairs), "first": study.pairs_per_set}
            own["", f"pairs/{shared}-seed{seed}"] = Part(pairs, pretrained)
        parts |= {part: what for (_, part), what in own.items()}
        variants[name] += own
    return Plan(parts, variants)


def _pretrainings(study: StudyConfig) -> dict[str, TrainConfig]:
    """The config of each variant's pretraining, with the steps of equal compute."""
    configs = {}
    for name, variant in study.variants.items():
        with naming(name):
            config = train_config(variant.pretrain)
            pretraining_objective(config)
            config.data.check_text()
            configs[name] = config
    if not study.equal_compute:
        return configs
    reference = flops(next(iter(configs.values())))
    for name, config in configs.items():
        share = reference / flops(config)
        phases = tuple(
            dataclasses.replace(phase, steps=max(1, round(phase.steps * share)))
            for phase in config.phases
        )
        configs[name] = dataclasses.replace(config, phases=phases)
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


def _text(config: TrainConfig) -> DataConfig | None:
    """The text that a study prepares for a pretraining; None where it is prepared."""
    data = config.data
    if data.path:
        return None
    return DataConfig(**{name: getattr(data, name) for name in _TEXT})


def _merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with some of them changed, in groups too."""
    return {
        name: _merged(settings.get(name, {}), value)
        if isinstance(value, Mapping)
        else value
        for name, value in {**settings, **changes}.items()
    }


def run_study(
    study: StudyConfig,
    folder: Path,
    *,
    jobs: int = 1,
    change_settings: bool = False,
    log: Log = print_line,
) -> None:
    """Runs all parts that are not finished.

    jobs: number of parts that run at a time, each in its own process with its share of the
    GPUs. change_settings: resume unfinished parts with other settings than before. Raises
    UserError if a part fails, or if another study runs in ``folder``. The same call
    resumes the study.
    """
    parts = plan_study(study, folder).parts
    with locked(folder):
        missing = [name for name in parts if finished(folder, name, parts) is None]
        for name in missing:
            _check_files(parts[name].config)
        write_json(folder / STUDY, to_dict(study))
        done = len(parts) - len(missing)
        with Progress(
            "study", total=len(parts), initial=done, unit="parts"
        ) as progress:
            if jobs == 1:
                for name in missing:
                    log(f"== {name}")
                    run_part(name, parts, folder, log, change_settings=change_settings)
                    progress.update()
            else:
                flags = ["--change_settings"] if change_settings else []
                for name in _in_processes(missing, parts, folder, jobs, flags):
                    log(f"finished: {name}")
                    progress.update()


def _check_files(config: Any) -> None:
    """Raises UserError if the files of a part's data do not exist."""
    if isinstance(config, FineTuneConfig):
        FAMILIES[config.family](config.data).source.check()
    elif isinstance(config, dict):
        next(score.read_sets(map(Path, config["files"])))
    elif isinstance(config, DataConfig):
        find_sources(config.corpus, language=config.language)


def run_part(
    name: str,
    parts: Mapping[str, Part],
    folder: Path,
    log: Log = print_line,
    *,
    change_settings: bool = False,
) -> Result:
    """Runs one part, whose predecessor is finished, and returns its result.

    change_settings: resume an unfinished part with other settings than before.
    A run that diverges is a result: of it, and of those that begin with it.
    """
    if name not in parts:
        raise UserError(
            f"{name} is no part of the study; expected one of {', '.join(parts)}"
        )
    part, directory = parts[name], folder / name
    result = finished(folder, name, parts)
    if result is not None:
        return result
    before = finished(folder, part.after, parts) if part.after else {}
    if before is None:
        raise UserError(
            f"{name} needs {part.after}, which is not finished; run it first"
        )
    started = time.monotonic()
    try:
        if DIVERGED in before:
            raise DivergenceError(f"{part.after} diverged")
        # Locks the folder of the part.
        result = _run(part, directory, folder / part.after, log, change_settings)
    except DivergenceError as error:
        log(f"diverged: {error}")
        result = {DIVERGED: str(error)}
    result.setdefault("seconds", round(time.monotonic() - started, 1))
    write_json(directory / _PART, result)
    if isinstance(part.config, FineTuneConfig):
        shutil.rmtree(directory / BEST, ignore_errors=True)
    return result


def _run(
    part: Part, directory: Path, before: Path, log: Log, change_settings: bool
) -> Result:
    config = part.config
    if isinstance(config, TrainConfig):
        pretrain(config, directory, log, change_settings=change_settings)
        (run,) = read_runs([directory])
        return {
            "scores": {
                f"held-out {name}": values[-1] * run.percent(name)
                for name in run.scores
                if (values := run.series("eval", name)[1])
            },
            "steps": config.total_steps,
            "tokens": sum(
                p.steps * p.batch_size * p.sequence_length for p in config.phases
            ),
            "flops": flops(config),
            "seconds": max(run.series("train", "seconds")[1]),
        }
    if isinstance(config, FineTuneConfig):
        results = run_one(config, directory, log, change_settings=change_settings)
        scores, metric = next(iter(results["scores"].values())), results["main_metric"]
        return {
            "scores": {metric: scores[metric]},
            "seconds": results["train_seconds"] + results["evaluation_seconds"],
        }
    if isinstance(config, DataConfig):
        prepare_corpus(config, directory, log)
        write_json(directory / "config.json", _identity(config))
        return {}
    write_json(directory / "config.json", config)
    checkpoint = load(before)
    if "mlm" not in checkpoint.params:
        log(f"{before.name} has no MLM head, and scores no pairs")
        return {"scores": {}}
    sets = (
        (name, pairs[: config["first"] or None])
        for name, pairs in score.read_sets(map(Path, config["files"]))
    )
    found = score.summary(score.accuracy(score.Scorer(checkpoint), sets))
    log(f"{_PAIRS}: {found.accuracy:.1%} of {found.pairs:,}")
    return {"scores": {_PAIRS: 100 * found.accuracy}, "by_set": found.by_set}


def finished(folder: Path, name: str, parts: Mapping[str, Part]) -> Result | None:
    """The result of a part; None where it has still to run.

    Raises UserError where its folder holds that of another study.
    """
    config, directory = parts[name].config, folder / name
    path = directory / _PART
    if not path.exists():
        return None
    result = read_json(path, "the result of a part of a study")
    scores, others = result.get("scores", {}), ("steps", "tokens", "flops")
    numbers = [result.get("seconds"), *(result.get(name, 0) for name in others)]
    if not isinstance(scores, dict) or not all(
        isinstance(number, int | float) for number in (*numbers, *scores.values())
    ):
        raise UserError(f"{path} is damaged; remove it, and the part runs again")
    if DIVERGED in result and not (directory / "config.json").exists():
        return result
    if isinstance(config, TrainConfig | FineTuneConfig):
        # The folder of the study and of its text may have moved.
        free = ("init_from", "text")
        same = functools.partial(resume_differences, free=free, same_scores=True)
    elif isinstance(config, DataConfig):
        same = _differing_text
    else:
        same = _differing
    check_owner(directory, _identity(config), same)
    # A run may go on to more steps, but what began with it would not.
    steps = getattr(config, "total_steps", None)
    if steps is not None and result.get("steps", steps) != steps:
        raise UserError(
            f"{directory} was trained for {result['steps']:,} steps, and the study says "
            f"{steps:,}; use that study, or another workdir"
        )
    return result


def _identity(config: Any) -> dict[str, Any]:
    """What config.json says of a part."""
    if isinstance(config, DataConfig):
        return {name: to_dict(config)[name] for name in _TEXT}
    return config if isinstance(config, dict) else to_dict(config)


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [f"{name}: {a!r} -> {b!r}" for name, a, b in differences(old, new)]


def _differing_text(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """As _differing. A setting that an older version did not have had its default."""
    return _differing({**_identity(DataConfig()), **old}, new)


def _in_processes(
    missing: Sequence[str],
    parts: Mapping[str, Part],
    folder: Path,
    jobs: int,
    flags: Sequence[str] = (),
) -> Iterator[str]:
    """Runs parts in ``jobs`` processes at a time; yields the names of finished parts.

    flags: further flags of each process.
    The output of a process is in log.txt of the part's folder. SIGTERM is passed on, so
    that every run saves. Every process ends when this process ends.
    """
    waiting, running = list(missing), {}
    free = _shares_of_gpus(jobs)
    # No other process has the second end: it is closed when this process ends.
    stdin, end = os.pipe()

    def stop(*_: Any) -> None:
        raise Preempted("asked to stop; the same command goes on from there")

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        while waiting or running:
            ready = [n for n in waiting if parts[n].after not in (*waiting, *running)]
            for name in ready[: len(free)]:
                waiting.remove(name)
                gpus = free.pop()
                running[name] = _start(name, folder, gpus, stdin, flags), gpus
            time.sleep(0.2)
            for name, (process, gpus) in list(running.items()):
                if process.poll() is None:
                    continue
                del running[name]
                free.append(gpus)
                if process.returncode:
                    log = folder / name / "log.txt"
                    last = log.read_text(encoding="utf-8").strip().rpartition("\n")[2]
                    raise UserError(f"{name}: {last} (the whole log: {log})")
                yield name
    finally:
        signal.signal(signal.SIGTERM, previous)
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.wait()
        os.close(stdin)
        os.close(end)


def _start(
    name: str, folder: Path, gpus: str, stdin: int, flags: Sequence[str]
) -> subprocess.Popen:
    """A process that runs one part, and ends when ``stdin`` is closed."""
    log = folder / name / "log.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    # A new file: an older process of the part may still write to the old one.
    log.unlink(missing_ok=True)
    command = [sys.executable, "-m", "bert_jax", "experiment", str(folder / STUDY)]
    command += ["--workdir", str(folder), "--part", name, "--end_with_stdin"]
    with log.open("xb") as file:
        return subprocess.Popen(
            [*command, *flags],
            stdin=stdin,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | ({"CUDA_VISIBLE_DEVICES": gpus} if gpus else {}),
        )


def _shares_of_gpus(jobs: int) -> list[str]:
    """For each of several processes the GPUs that it sees; "" where there are none."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        try:
            listed = subprocess.run(
                ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
                capture_output=True,
                text=True,
            )
        except OSError:  # there is no such command
            return [""] * jobs
        given = ",".join(listed.stdout.split()) if not listed.returncode else ""
    gpus = [gpu for gpu in given.split(",") if gpu]
    if 0 < len(gpus) < jobs:
        raise UserError(
            f"--jobs={jobs}, but there are {len(gpus)} GPUs; expected one for each job at "
            "least"
        )
    return [",".join(gpus[i::jobs]) for i in range(jobs)]
