"""The steps of BASE and LARGE compiled for TPU slices by name, as one table.

Each is compiled by a process of its own, `python -m bert_jax.aot`, one after the other:
libtpu serves one at a time. FOLDER keeps what each printed and logged; what is there
already is not compiled again, so a stopped run goes on. Needs `pip install
'bert_jax[tpu]'` and no TPU; some minutes for each row.

usage:
  python benchmarks/topologies.py --output FOLDER [--only NAME,NAME] [--table]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from bert_jax.training.aot import Report, Traffic, table

ROOT = Path(__file__).parents[1]
BASE, LARGE = "experiments/base.py", "experiments/large.py"

# Name of the row: config, topology, slices. BASE on 16 chips and LARGE on 64, as in the
# paper, for each generation; LARGE over two slices joined by the data-center network.
ROWS: dict[str, tuple[str, str, int]] = {
    "base-v2": (BASE, "v2:4x4", 1),
    "base-v3": (BASE, "v3:4x4", 1),
    "base-v4": (BASE, "v4:2x2x4", 1),
    "base-v5e": (BASE, "v5e:4x4", 1),
    "base-v6e": (BASE, "v6e:4x4", 1),
    "large-v2": (LARGE, "v2:8x8", 1),
    "large-v3": (LARGE, "v3:8x8", 1),
    "large-v4": (LARGE, "v4:4x4x4", 1),
    "large-v5p": (LARGE, "v5p:4x4x4", 1),
    "large-v6e": (LARGE, "v6e:8x8", 1),
    "large-2-v5e": (LARGE, "v5e:4x8", 2),
}

# What the compiler says where a sharding makes it copy a whole tensor to every device.
REMATERIALISED = "nvoluntary full rematerialization"


def main() -> int:
    """Compiles what FOLDER does not hold and prints the table; 1 where a row is bad."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", default=",".join(ROWS), help="rows, with commas")
    parser.add_argument("--table", action="store_true", help="compile nothing")
    args = parser.parse_args()
    names = args.only.split(",")
    if unknown := set(names) - set(ROWS):
        parser.error(f"--only={sorted(unknown)[0]}: expected some of {', '.join(ROWS)}")
    args.output.mkdir(parents=True, exist_ok=True)
    for name in names:
        if not args.table and not (args.output / f"{name}.json").exists():
            print(f"{name}: compiling", file=sys.stderr, flush=True)
            _compile(name, args.output)
    results = {
        name: json.loads(path.read_text())
        for name in ROWS
        if (path := args.output / f"{name}.json").exists()
    }
    print(_markdown(results))
    bad = [name for name, result in results.items() if result["problems"]]
    for name in bad:
        print(f"{name}: {'; '.join(results[name]['problems'])}", file=sys.stderr)
    return 1 if bad or not set(names) <= set(results) else 0


def _compile(name: str, folder: Path) -> None:
    """Runs the aot command for a row; NAME.json is written last."""
    config, topology, slices = ROWS[name]
    command = [
        *(sys.executable, "-m", "bert_jax.aot", "--json"),
        *("--config", config, "--topology", topology),
        # Full rows: how many packed ones there would be depends on the text.
        "--config.data.packing=False",
    ]
    if slices > 1:
        command += ["--num_slices", str(slices), f"--config.mesh.replica={slices}"]
    logs = folder / f"{name}.logs"  # the compiler's warnings go there, not to stderr
    logs.mkdir(exist_ok=True)
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_LOG_DIR": str(logs.resolve()),
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True
    )
    (folder / f"{name}.stderr").write_text(done.stderr)
    lines = done.stdout.splitlines()
    if not lines:
        print(f"{name}: failed, see {folder}/{name}.stderr", file=sys.stderr)
        return
    report = json.loads(lines[0])
    said = [done.stderr, *(log.read_text(errors="replace") for log in logs.iterdir())]
    result = {
        "command": " ".join(["python", *command[1:]]),
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "report": report,
        "problems": _problems(report, "".join(said)),
    }
    path = folder / f"{name}.json"
    path.with_suffix(".partial").write_text(json.dumps(result, indent=2))
    path.with_suffix(".partial").rename(path)


def _problems(report: dict, said: str) -> list[str]:
    """What a row must not have."""
    problems = []
    if not report["fits"]:
        problems.append("does not fit")
    elif _report(report).spare < 0.1:
        problems.append("less than a tenth of the memory to spare")
    if report["fits"] and report["donated_bytes"] < 0.9 * report["argument_bytes"]:
        problems.append("the state is held twice")
    if REMATERIALISED in said:
        problems.append("an involuntary full rematerialisation")
    return problems


def _commit() -> str:
    """The checkout's commit, with a + where files differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True
        ).stdout.strip()

    changed = git(
        "status", "--porcelain", "--untracked-files=no", "--", "bert_jax", "experiments"
    )
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def _report(values: dict) -> Report:
    traffic = {kind: Traffic(**t) for kind, t in values["collectives"].items()}
    return Report(**values | {"collectives": traffic})


def _markdown(results: dict[str, dict]) -> str:
    """The aot command's table, led by the config and ended by date and commit."""
    head, rule, *rows = table(
        [_report(r["report"]) for r in results.values()]
    ).splitlines()
    lines = [f"| config {head} date | commit |", f"|---{rule}---|---|"]
    for (name, result), row in zip(results.items(), rows, strict=True):
        config = Path(ROWS[name][0]).stem
        lines.append(f"| {config} {row} {result['date']} | {result['commit']} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
