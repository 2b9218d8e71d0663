"""Fine-tuning with bert_jax and with transformers' Trainer.

All train on the same rows from the same checkpoint, with the same batch size, number of
steps, learning rates and dtype. Each run has its own process, and the order of the systems
alternates from seed to seed. The Trainer runs twice: with its default, random batches, and
with batches of similar lengths (train_sampling_strategy="group_by_length").

Three settings of ours differ from the defaults, to match the Trainer: Adam's bias
correction and epsilon, the deviation of new heads (0.02; the original's distribution is
truncated, so its deviation is 0.88 of the setting), and the peak of the learning rate
(our decay starts at step 0, the Trainer's after the warmup, so a peak a ninth higher gives
the same learning rates after the warmup).

"training, s" includes our compilation. "process, s" and "CPU, s" count the whole process.

usage:
  python benchmarks/finetune.py --model all-MiniLM-L6-v2 --data DATA --workdir DIR
    [--peer_python PEER/bin/python] [--tasks sst2,mrpc] [--seeds 0,1,2]
    [--dtype float32] [--output FILE.json] [--result finetune]

DATA has glue/, ner/wnut17/, squad/, multiple_choice/ and sick/. DIR/COMMIT keeps the
results, and the same command at the same commit skips runs with results. PEER is an
environment with the packages that finetune_peer.py names. Without it only bert_jax runs.
"""

import argparse
import functools
import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from common import (
    OURS,
    ROOT,
    Worker,
    make_parser,
    markdown,
    names,
    publish,
    run_worker,
    stamp,
    write_report,
)


class Plan(NamedTuple):
    """A task: config, data folder, settings of ours, and settings of both systems.

    rows: training examples (0: all). length: longest sequence of the Trainer.
    """

    metric: str
    epochs: int
    batch: int
    rate: float
    config: str
    folder: str
    rows: int = 0
    length: int = 128
    settings: tuple[str, ...] = ()


SQUAD_SETTINGS = (
    "--data.train=dev-v1.1.json",
    "--data.dev=dev-v1.1.json",
    "--data.train_articles=0:36",
    "--data.dev_articles=36:40",
)


class Peer(NamedTuple):
    """A Trainer: its train_sampling_strategy, and the end of the names of its results."""

    sampling: str
    ending: str


PEERS = {
    "transformers' Trainer": Peer("random", ""),
    "transformers' Trainer, group_by_length": Peer("group_by_length", "grouped"),
}
TASKS = {
    "sst2": Plan("accuracy", 1, 32, 1e-4, "glue.py:sst2", "glue/SST-2", 20_000),
    "mrpc": Plan("accuracy", 4, 16, 1e-4, "glue.py:mrpc", "glue/MRPC"),
    "sick": Plan("pearson", 3, 32, 1e-4, "sick.py:relatedness", "sick"),
    "wnut17": Plan("f1", 2, 16, 3e-4, "wnut17.py", "ner/wnut17"),
    "codah": Plan("accuracy", 2, 16, 1e-4, "codah.py", "multiple_choice"),
    "squad": Plan("f1", 2, 8, 1e-4, "squad.py", "squad", 2000, 384, SQUAD_SETTINGS),
}


def run_ours(task: str, seed: int, options: argparse.Namespace) -> dict:
    """Seconds of training, padding, steps and dev score of one run of ours."""
    plan = TASKS[task]
    workdir = options.workdir.resolve() / f"{task}-{seed}"
    config = f"experiments/finetune/{plan.config}"
    flags = [
        f"--workdir={workdir}",
        f"--config={ROOT}/{config}",
        f"--init_from={options.model.resolve()}",
        f"--data.dir={options.data.resolve()}/{plan.folder}",
        f"--seed={seed}",
        f"--compute.dtype={options.dtype}",
        f"--epochs={plan.epochs}",
        f"--batch_size={plan.batch}",
        f"--train_rows={plan.rows}",
        f"--optimizer.learning_rate={plan.rate / 0.9:.4g}",
        "--optimizer.bias_correction=True",
        "--optimizer.epsilon=1e-8",
        f"--model.initializer_range={0.02 / 0.8796:.4g}",
        *plan.settings,
    ]
    given = {"flags": flags, "workdir": workdir, "metric": plan.metric}
    given["config"] = config.partition(":")[0]
    return run_worker(Worker(sys.executable, "finetune_ours.py", given))


def run_peer(
    task: str, seed: int, options: argparse.Namespace, *, sampling: str
) -> dict:
    """The results of one run of the Trainer. sampling: its train_sampling_strategy."""
    given = {"task": task, "seed": seed, "dtype": options.dtype, "sampling": sampling}
    given |= {"data": options.data.resolve(), "model": options.model.resolve()}
    plan = TASKS[task]._asdict()
    return run_worker(Worker(options.peer_python, "finetune_peer.py", plan | given))


def timed(system: Any, *arguments: Any) -> dict:
    """The results of a run with the wall and CPU seconds of its process."""

    def seconds() -> tuple[float, float]:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.perf_counter(), usage.ru_utime + usage.ru_stime

    before = seconds()
    results = system(*arguments)
    wall, cpu = (now - then for now, then in zip(seconds(), before, strict=True))
    return results | {"process_seconds": wall, "cpu_seconds": cpu}


def summary(results: dict[tuple[str, str], list[dict]]) -> list[dict]:
    """Rows of the table: means over the seeds, and ratios of times."""
    rows, ours = [], {}
    for (task, system), runs in results.items():
        row = {"task": task, "metric": TASKS[task].metric, "system": system}
        if errors := [run["error"] for run in runs if "error" in run]:
            rows.append(row | {"seeds": errors[0]})
            continue
        numbers = [name for name in runs[0] if name != "sources"]
        mean = {name: statistics.mean(run[name] for run in runs) for name in numbers}
        scores = [run["score"] for run in runs]
        spread = f" ± {statistics.stdev(scores):.1f}" if len(runs) > 1 else ""
        row |= {
            "seeds": len(runs),
            "dev score": f"{mean['score']:.1f}{spread}",
            "training, s": mean["train_seconds"],
            "process, s": mean["process_seconds"],
            "CPU, s": mean["cpu_seconds"],
            "padding": f"{mean['padding_share']:.0%}",
        }
        if system == OURS:
            ours[task] = mean
        elif task in ours:
            for name, key in (("training", "train_seconds"), ("CPU", "cpu_seconds")):
                row[f"{name} / ours"] = mean[key] / ours[task][key]
        rows.append(row)
    return rows


def publish_rows(
    rows: list[dict],
    results: dict[tuple[str, str], list[dict]],
    options: argparse.Namespace,
) -> None:
    """Publishes each task that ours and a Trainer have finished.

    results: the runs of each row by (task, system).
    """
    ours: dict[str, dict] = {}
    for row in rows:
        task, system = row["task"], row["system"]
        if system == OURS:
            ours[task] = row
        if "training / ours" not in row:
            continue
        parts = [task, options.dtype]
        if PEERS[system].ending:
            parts.append(PEERS[system].ending)
        publish(
            options.result,
            *parts,
            what=f"{task}, {TASKS[task].epochs} epochs",
            runs=results[task, OURS] + results[task, system],
            value=ours[task]["training, s"],
            unit="s",
            metric=ours[task]["metric"],
            score=ours[task]["dev score"],
            peer=system,
            peer_value=row["training, s"],
            peer_score=row["dev score"],
            ratio=row["training / ours"],
        )


def main() -> None:
    """Does the runs without results and prints the table of all runs."""
    parser = make_parser(__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--peer_python")
    parser.add_argument("--tasks", type=names, default=",".join(TASKS))
    parser.add_argument("--seeds", type=names, default="0,1,2")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options = parser.parse_args()
    # The results of another commit would be published as results of this one.
    options.workdir /= str(stamp()["commit"])
    options.workdir.mkdir(parents=True, exist_ok=True)
    systems = {OURS: run_ours}
    if options.peer_python:
        for name, peer in PEERS.items():
            systems[name] = functools.partial(run_peer, sampling=peer.sampling)
    results = {(task, system): [] for task in options.tasks for system in systems}
    for task in options.tasks:
        for seed in map(int, options.seeds):
            numbered = list(enumerate(systems))
            if seed % 2:
                numbered.reverse()
            for number, system in numbered:
                path = options.workdir / f"{task}-{seed}-{number}.json"
                if path.exists():
                    content = json.loads(path.read_text())
                else:
                    content = timed(systems[system], task, seed, options)
                    if "error" not in content:
                        path.write_text(json.dumps(content, indent=2) + "\n")
                results[task, system].append(content)
    rows = summary(results)
    print(markdown(rows))
    if options.peer_python:
        publish_rows(rows, results, options)
    runs = {" ".join(key): value for key, value in results.items()}
    write_report(options.output, rows=rows, runs=runs)


if __name__ == "__main__":
    main()
