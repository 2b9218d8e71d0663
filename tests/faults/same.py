"""Runs all commands from text to predictions, and compares digests of the results.

``same.py FOLDER`` trains vocabularies, prepares text, pretrains, fine-tunes, embeds and
predicts in a new folder, and prints a JSON object of SHA-256 sums. No command may leave a
port open. ``same.py`` starts a process with each of VARIANTS, which share no compiled
program, and prints the differences from the first variant. ``--python`` adds other
Pythons with the same JAX.

usage:
  python tests/faults/same.py [--python PYTHON ...] [--only NAME ...]
"""

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).parent.parent.parent
TEXT = ROOT / "tests/golden/pretraining_data/moby_dick_sentences.txt"
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
# Environment variables of each variant. The sums of the last four may differ: see
# docs/reliability.md.
VARIANTS: dict[str, dict[str, str]] = {
    "as it is": {},
    "once more": {},
    "hash seed 0": {"PYTHONHASHSEED": "0"},
    "hash seed 4294967295": {"PYTHONHASHSEED": "4294967295"},
    "time zone +14": {"TZ": "Pacific/Kiritimati"},
    "time zone -11": {"TZ": "Pacific/Pago_Pago"},
    "locale C, no UTF-8": {
        **{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        "PYTHONIOENCODING": "ascii",
    },
    "a leap day": {"FAKETIME": "@2028-02-29 23:59:50"},
    "after 2038": {"FAKETIME": "@2040-01-01 00:00:00"},
    "5 reading threads": {"SAME_THREADS": "5"},
    "4 workers prepare": {"SAME_WORKERS": "4"},
    "1 thread of OpenMP and Rust": {
        **{"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        **{"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
    },
    "one core": {"SAME_CORES": "1"},
    "two devices of one machine": {"SAME_DEVICES": "2"},
    "no AMX": {"XLA_FLAGS": "--xla_cpu_max_isa=AVX512_BF16"},
    "no AVX-512, no AMX": {"XLA_FLAGS": "--xla_cpu_max_isa=AVX2"},
}

CONFIG = """
def get_config():
    return dict(
        model=dict(vocab_size=600, hidden_size=64, num_layers={layers}, num_heads=2,
                   intermediate_size=256, max_positions=64),
        data=dict(path="store", holdout=0.2, threads={threads}, prefetch=2),
        optimizer=dict(learning_rate=1e-3, warmup_steps=4),
        phases=(dict(steps={steps}, sequence_length=64, batch_size=16,
                     max_predictions=9),),
        seed=3, log_every=2, eval_every=6, eval_batches=2, checkpoint_every=5,
        keep_checkpoints=2, prompts=("the [MASK] of the sea",),
    )
"""
TASK = """
def get_config():
    return dict(
        family="classification", init_from="run",
        data=dict(dir="data", task="table", max_length=64),
        epochs=2, batch_size=8, seed=1,
    )
"""


def run(module: str, *argv: object) -> None:
    """A command, in this process."""
    import importlib

    importlib.import_module(f"bert_jax.commands.{module}").main([*map(str, argv)])
    assert not listening(), f"{module} left a port open"


def listening() -> bool:
    """Whether this process waits for connections, by Linux's /proc."""
    descriptors = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of the folder itself
            descriptors.add(str(path.readlink()))
    rows = []
    for kind in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            rows += map(str.split, Path("/proc/net", kind).read_text().splitlines()[1:])
    return any(row[3] == "0A" and f"socket:[{row[9]}]" in descriptors for row in rows)


def work(folder: Path, steps: int, threads: int, workers: int) -> None:
    """Runs all commands in ``folder``, which becomes the current folder."""
    os.chdir(folder)
    sentences = TEXT.read_text("utf-8").split("\n")[: 200 * steps]
    words = "\n".join(sentences)
    Path("a.txt").write_text(words, "utf-8")
    Path("b.txt").write_text(
        "La mer est belle \u2014 \u00e9t\u00e9, \u6d77.\n" * 20, "utf-8"
    )
    run(
        "vocabulary",
        "--input",
        "a.txt",
        "b.txt",
        "--size",
        600,
        "--output",
        "vocab.txt",
    )
    run(
        *("vocabulary", "--input", "a.txt", "b.txt", "--size", 400),
        *("--kind", "sentencepiece", "--output", "pieces/spiece.model"),
    )
    run(
        *("prepare", "--input", "a.txt", "b.txt", "--vocabulary", "vocab.txt"),
        *("--output", "store", "--shards", 3, "--workers", workers),
    )
    config = CONFIG.format(threads=threads, steps=steps, layers=2 if steps > 6 else 1)
    Path("config.py").write_text(config, "utf-8")
    run("train", "--config", "config.py", "--workdir", "run")
    Path("data").mkdir()
    lines = [line for line in sentences if 20 < len(line) < 200][:80]
    rows = [f'"{line}",{"abc"[len(line) % 3]}' for line in lines if '"' not in line]
    for name, part in (("train", rows[20:]), ("dev", rows[:20])):
        table = "\n".join(["text,label", *part, ""])
        Path("data", f"{name}.csv").write_text(table, "utf-8")
    Path("task.py").write_text(TASK, "utf-8")
    run("finetune", "--config", "task.py", "--workdir", "tuned")
    Path("lines.txt").write_text("\n".join([*lines, "\u00e9t\u00e9"]) + "\n", "utf-8")
    run(
        "embed",
        "--checkpoint",
        "run",
        "--input",
        "lines.txt",
        "--output",
        "x.npz",
    )
    run(
        "predict",
        "--checkpoint",
        "tuned",
        "--input",
        "lines.txt",
        "--output",
        "p.jsonl",
    )


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 sums of the files of :func:`work`, without times."""
    rates = ("tokens_per_second", "mfu", "data_wait", "seconds_left")
    times = (*rates, "seconds", "lost_seconds")

    def lines(path: Path) -> list[dict]:
        all_digests = map(json.loads, path.read_text("utf-8").splitlines())
        return [{k: v for k, v in x.items() if k not in times} for x in all_digests]

    def below(path: Path) -> dict[str, str]:
        """The sums of all files but pictures, and stamps of checks, which have times."""
        sums = {}
        for p in sorted(path.rglob("*")):
            name = str(p.relative_to(path))
            if p.is_file() and p.suffix != ".png" and not name.startswith(".checked"):
                sums[name] = hashlib.sha256(p.read_bytes()).hexdigest()
        return sums

    checkpoints = {}
    for path in sorted((folder / "run/checkpoints").iterdir()):
        saved = json.loads((path / "_CHECKPOINT_METADATA").read_text())
        content = json.loads(saved["custom_metadata"]["content"])
        checkpoints[path.name] = content["arrays"]  # their checksums
    results = json.loads((folder / "tuned/results.json").read_text("utf-8"))
    all_digests = {
        "vocab.txt": (folder / "vocab.txt").read_bytes(),
        "spiece.model": (folder / "pieces/spiece.model").read_bytes(),
        "prepared text": below(folder / "store"),
        "checkpoints": checkpoints,
        "metrics": lines(folder / "run/metrics.jsonl"),
        "fine-tuned metrics": lines(folder / "tuned/metrics.jsonl"),
        "scores": {k: v for k, v in results.items() if not k.endswith("_seconds")},
        "best model": below(folder / "tuned/best"),
        "predictions of dev": below(folder / "tuned/predictions"),
        "embeddings": (folder / "x.npz").read_bytes(),
        "predictions": (folder / "p.jsonl").read_bytes(),
    }
    return {
        name: hashlib.sha256(
            value
            if isinstance(value, bytes)
            else json.dumps(value, sort_keys=True).encode()
        ).hexdigest()
        for name, value in all_digests.items()
    }


def start(python: str, variant: dict[str, str], steps: int) -> dict[str, str]:
    """The digests of a new process."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    environment = kept | {"PYTHONPATH": str(ROOT)} | variant
    if "FAKETIME" in variant:
        environment["LD_PRELOAD"] = str(FAKETIME)
    command = [python, __file__, "--steps", str(steps)]
    if "SAME_CORES" in variant:
        command = ["taskset", "-c", "0", *command]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, folder], env=environment, capture_output=True, text=True
        )
        if done.returncode:
            return {"error": done.stderr[-2000:]}
        return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--python", nargs="+", default=[], metavar="PYTHON")
    parser.add_argument("--only", nargs="+", default=[*VARIANTS], metavar="NAME")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument(
        "--years", type=int, default=0, help="years that the clock is ahead"
    )
    args = parser.parse_args()
    if args.folder:
        real, ahead = time.time, args.years * 31_556_952
        devices = os.environ.get("SAME_DEVICES")
        if devices:
            import jax

            jax.config.update("jax_num_cpu_devices", int(devices))
        clock = mock.patch.object(time, "time", lambda: real() + ahead)
        threads, workers = (
            os.environ.get(f"SAME_{x}", 1) for x in ("THREADS", "WORKERS")
        )
        with clock if ahead else mock.MagicMock():
            work(args.folder.absolute(), args.steps, int(threads), int(workers))
        print(json.dumps(digests(args.folder.absolute())))
        return
    first = start(sys.executable, {}, args.steps)
    runs = {name: (sys.executable, VARIANTS[name]) for name in args.only}
    runs |= {python: (python, {}) for python in args.python}
    for name, (python, variant) in runs.items():
        if name == "as it is":
            continue
        if "FAKETIME" in variant and not FAKETIME.exists():
            print(f"{name}: left out, because libfaketime is missing")
            continue
        sums = start(python, variant, args.steps)
        same = sum(first[what] == sums.get(what) for what in first)
        other = [what for what in first if first[what] != sums.get(what)]
        print(f"{name}: {same} of {len(first)} the same", *other, sep="; ", flush=True)
        if "error" in sums:
            print(sums["error"], file=sys.stderr)


if __name__ == "__main__":
    main()
