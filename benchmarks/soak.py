"""A long run of a tiny model, which must neither grow nor slow down.

Every 500 steps it notes the memory of the process, its open files and threads, and the
milliseconds of a step; at the end it says how each changed after the first quarter, and
what lies in the workdir. 20,000 steps take some two minutes on two cores.

usage:
  python benchmarks/soak.py [--steps 20000] [--workdir DIR] [--json FILE]
"""

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bert_jax import cli
from bert_jax.training.config import train_config

EVERY = 500  # steps between samples


def settings(steps: int) -> dict[str, Any]:
    """The config: saves, evaluates and reports as often as a run of days does in hours."""
    sizes = dict(hidden_size=32, num_layers=1, num_heads=2, intermediate_size=64)
    phase = dict(sequence_length=32, batch_size=8, max_predictions=5)
    return dict(
        model=dict(vocab_size=2000, max_positions=32, **sizes),
        data=dict(corpus=("python-docs",), vocabulary_size=2000, packing=True),
        optimizer=dict(learning_rate=1e-3, warmup_steps=100),
        phases=(dict(steps=steps, **phase),),
        log_every=EVERY // 5,
        eval_every=EVERY,
        eval_batches=2,
        checkpoint_every=EVERY,
        keep_checkpoints=2,
    )


def sample(step: int) -> dict[str, float]:
    """What the process holds now: MiB, open files, threads; and the time."""
    status = Path("/proc/self/status").read_text()
    values = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return {
        "step": step,
        "memory": int(values["VmRSS"].split()[0]) / 1024,
        "files": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - with its own
        "threads": int(values["Threads"]),
        "seconds": time.monotonic(),
    }


def growth(samples: list[dict[str, float]]) -> dict[str, float]:
    """Percent from the second quarter to the last, of medians; of step times too."""
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]

    def change(name: str) -> float:
        first, last = (
            statistics.median(one[name] for one in part) for part in (early, late)
        )
        return 100 * (last / first - 1)

    return {name: change(name) for name in ("memory", "files", "threads", "step_ms")}


def main(argv: list[str]) -> None:
    """Trains, samples and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--workdir", help="(a temporary folder)")
    parser.add_argument("--json", type=Path, help="a file for the samples")
    args = parser.parse_args(argv)
    config = train_config(settings(args.steps))

    from bert_jax.training.pretrain import pretrain

    cli.start()
    samples: list[dict[str, float]] = []

    def log(line: str) -> None:
        step = line.removeprefix("step ").split("/")[0]
        if line.startswith("step ") and step.isdigit() and int(step) % EVERY == 0:
            samples.append(sample(int(step)))

    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(args.workdir or folder)
        pretrain(config, workdir, log)
        for before, after in itertools.pairwise(samples):
            passed = after["seconds"] - before["seconds"]
            after["step_ms"] = 1000 * passed / (after["step"] - before["step"])
        del samples[0]  # with what was compiled
        files = {
            name: sum(p.stat().st_size for p in workdir.glob(pattern) if p.is_file())
            for name, pattern in (
                ("metrics.jsonl", "metrics.jsonl"),
                ("tensorboard", "tensorboard/*"),
                ("checkpoints", "checkpoints/**/*"),
            )
        }
        kept = sorted(path.name for path in (workdir / "checkpoints").iterdir())
    report = {"steps": args.steps, "growth": growth(samples), "bytes": files}
    report |= {"checkpoints": kept, "last": samples[-1]}
    for name, percent in report["growth"].items():
        print(f"{name}: {percent:+.2f}%, {samples[-1][name]:.1f} at the end")
    print(f"checkpoints: {', '.join(kept)}")
    print(", ".join(f"{name} {size:,} bytes" for name, size in files.items()))
    if args.json:
        args.json.write_text(json.dumps(report | {"samples": samples}, indent=1))


if __name__ == "__main__":
    cli.run(main)
