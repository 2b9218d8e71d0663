"""What the benchmarks share: runs by turns, medians with their spread, ratios, tables."""

import argparse
import json
import os
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def run_worker(command: Sequence[str]) -> dict:
    """Runs a process whose last line is a JSON object; a failure becomes {"error": ...}."""
    here = {"PYTHONPATH": str(HERE.parent), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        cwd=HERE.parent,
        env=os.environ | here,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"error": lines[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def by_turns(
    workers: Mapping[Any, Sequence[str]], runs: int
) -> dict[Any, list[dict[str, Any]]]:
    """Every worker ``runs`` times, A B B A ..., so that a slow hour falls on all."""
    results: dict[Any, list[dict[str, Any]]] = {name: [] for name in workers}
    for turn in range(runs):
        for name in list(workers)[:: -1 if turn % 2 else 1]:
            results[name].append(run_worker(workers[name]))
    return results


def median_and_spread(values: Iterable[float]) -> tuple[float, float]:
    """The median, and (largest - smallest) / median."""
    values = list(values)
    median = statistics.median(values)
    return median, (max(values) - min(values)) / median


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table; the longest row names the columns. Floats have three significant digits."""
    columns = max(rows, key=len)
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    lines += [
        f"| {' | '.join(_cell(row.get(name)) for name in columns)} |" for row in rows
    ]
    return "\n".join(lines)


def comparison_flags(parser: argparse.ArgumentParser) -> None:
    """What every benchmark that has a peer takes."""
    parser.add_argument("--peer_python")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def write_report(path: Path | None, content: Mapping[str, Any]) -> None:
    """Writes JSON with the date and the commit that were measured, if ``path`` is given."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    stamp = {"date": date.today().isoformat(), "commit": commit()}
    path.write_text(json.dumps(stamp | dict(content), indent=2) + "\n")


def commit() -> str | None:
    """The commit of the checkout, with a plus where it was changed; None without git."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=7"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE)
    return done.stdout.strip() or None
