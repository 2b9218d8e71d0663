"""Shared code: flags, worker processes, alternating runs, medians, tables, reports.

It needs only the standard library, because bert_jax and its peers run in different Python
environments. A benchmark starts each system as a worker process and passes its options as
JSON, and the worker prints its results as one line of JSON.
"""

import argparse
import json
import math
import os
import platform
import re
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

OURS = "bert_jax"
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = ROOT / "results"
SENTENCES = ROOT / "tests/golden/pretraining_data/moby_dick_sentences.txt"
VOCABULARY = ROOT / "tests/golden/tokenizer/uncased_vocab.txt"

# Sizes of models, with the names of Hugging Face's config.json.
SIZES = {
    size: {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
    }
    for size, width, layers, heads in (
        ("base", 768, 12, 12),
        ("large", 1024, 24, 16),
        ("mini", 64, 2, 2),
    )
}
# ModernBERT at the sizes of Ettin 17M (experiments/modernbert.py).
SIZES["ettin_17m"] = {
    "model_type": "modernbert",
    "vocab_size": 50_368,
    "hidden_size": 256,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "intermediate_size": 384,
    "max_position_embeddings": 1024,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
}


class Worker(NamedTuple):
    """Python interpreter, script in this folder, and the options of a worker process."""

    python: str
    script: str
    options: Mapping[str, Any]


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with --output and --result. Its --help is the docstring of the script."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, help="JSON file of the report")
    parser.add_argument("--result", help="start of the names in results/")
    return parser


def comparison_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser for benchmarks that alternate runs of ours and of peers."""
    parser = make_parser(description)
    parser.add_argument("--peer_python", help="Python interpreter of the peers")
    parser.add_argument("--runs", type=int, default=3, help="processes of each system")
    parser.add_argument("--repeats", type=int, default=3, help="timings in a process")
    return parser


def names(text: str) -> list[str]:
    """The parts of a flag's value that are separated by commas."""
    return text.split(",")


def predictions(length: int) -> int:
    """Masked tokens of a sequence: 20 of 128 and 77 of 512, as in the original."""
    return math.ceil(0.15 * length)


def run_worker(worker: Worker) -> dict[str, Any]:
    """The results of a worker process, or {"error": the last line of its stderr}.

    The process uses no compilation cache and no network.
    """
    options = json.dumps(worker.options, default=str)
    done = subprocess.run(
        [worker.python, HERE / worker.script, options],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ
        | {
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",
            "JAX_ENABLE_COMPILATION_CACHE": "false",
        },
    )
    if not done.returncode:
        return json.loads(done.stdout.splitlines()[-1])
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return {"error": lines[-1]}


def answer(measure: Callable[[SimpleNamespace], dict[str, Any]]) -> None:
    """In a worker: measures with the options of the command line, prints the results.

    "sources" of the results are the files of this project that the process ran. measure
    returns the sources that are not modules.
    """
    results = measure(SimpleNamespace(**json.loads(sys.argv[1])))
    sources = {*results.get("sources", []), *loaded_files()}
    print(json.dumps(results | {"sources": sorted(sources)}))


def loaded_files() -> list[str]:
    """The modules of this project that this process has imported, as paths from ROOT.

    The list has all modules whose code may have run, and some of which only a name was
    needed. It does not record which functions ran, because a profiler would slow down the
    measurement. A change may therefore make an unrelated figure old, but no figure seems
    current whose code has changed.
    """
    files = set()
    for module in list(sys.modules.values()):
        path = Path(getattr(module, "__file__", None) or "/").resolve()
        if path.is_relative_to(ROOT):
            file = path.relative_to(ROOT)
            if file.parts[0] in ("bert_jax", "benchmarks"):  # the rest is .venv
                files.add(str(file))
    return sorted(files)


def alternate(
    workers: Mapping[Any, Worker], runs: int
) -> Iterator[dict[Any, list[dict]]]:
    """Runs every worker ``runs`` times, in the order A B, B A, A B ...

    A slow phase of the machine then slows down all systems. Yields all results so far
    after each process, so that an interrupted benchmark has written its measurements.
    """
    results: dict[Any, list[dict]] = {}
    for turn in range(runs):
        for name in list(workers)[:: -1 if turn % 2 else 1]:
            results.setdefault(name, []).append(run_worker(workers[name]))
            yield results


def median_and_spread(values: Iterable[float]) -> tuple[float, float]:
    """The median, and (largest - smallest) / median."""
    values = list(values)
    median = statistics.median(values)
    return median, (max(values) - min(values)) / median


def is_ours(system: str) -> bool:
    """Whether a system is bert_jax, perhaps with another kernel of attention."""
    return system.startswith(OURS)


def compare(
    results: Mapping[tuple[str, str], list[dict]], seconds: str
) -> Iterator[tuple[dict[str, Any], list[dict]]]:
    """For each system and dtype a row of a table, and the runs that did not fail.

    seconds: the name of the timings in the results of a run. A system is compared with the
    first of ours: float32 with float32, every other dtype with our bfloat16.
    """
    ours: dict[str, float] = {}
    for (system, dtype), runs in results.items():
        row = {"system": system, "dtype": dtype}
        good = [run for run in runs if "error" not in run]
        if not good:
            yield row | {"s": runs[0]["error"]}, good
            continue
        median, spread = median_and_spread(s for run in good for s in run[seconds])
        base = ours.get("float32" if dtype == "float32" else "bfloat16")
        if base is None and is_ours(system):
            ours[dtype] = median
        yield (
            row
            | {
                "s": median,
                "spread": f"{spread:.0%}",
                "its time / ours": median / base if base else None,
                "first, s": median_and_spread(r["first_seconds"] for r in good)[0],
                "peak, GiB": max(run["peak_bytes"] for run in good) / 2**30,
            },
            good,
        )


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table. The longest row has the columns. Floats have three significant digits."""
    columns = max(rows, key=len)
    lines = [columns, ["---"] * len(columns)]
    lines += [[_cell(row.get(name)) for name in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return "" if value is None else str(value)


def stamp() -> dict[str, str | None]:
    """Today's date and the commit, which ends in a plus if files have changed.

    results/ may change, because a benchmark publishes several figures.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    commit = git("rev-parse", "--short=7", "HEAD")
    if git("status", "--porcelain", "--untracked-files=no", ".", ":!results"):
        commit += "+"
    return {"date": date.today().isoformat(), "commit": commit or None}


def write_report(path: Path | None, **content: Any) -> None:
    """Writes the content, the date and the commit to a JSON file, if there is a path."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(stamp() | content, indent=2) + "\n")


def machine() -> str:
    """The names of the GPUs, or the number of cores and the name of the processor."""
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        gpus = subprocess.run(query, capture_output=True, text=True).stdout
        return ", ".join(gpus.splitlines())
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    name = re.search(r"^model name\s*: (.*)$", text, flags=re.M)
    return f"{os.cpu_count()} cores of {name[1] if name else platform.machine()}"


def publish(
    start: str | None,
    *parts: str,
    what: str,
    runs: Iterable[Mapping[str, Any]] = (),
    **measured: Any,
) -> None:
    """Writes a figure to results/NAME.json, if --result gives the start of NAME.

    parts: the other words of NAME, such as dtype and peer. runs: the results of the
    workers, of ours and of the peer. The new file keeps "what" and the "table" of
    docs/results.md from an old one. "sources" are the files of this project that this
    process and the workers have imported. docs/scripts/write_results.py reads the file.
    """
    if start is None:
        return
    path = RESULTS / (re.sub(r"\W+", "_", "_".join([start, *parts])) + ".json")
    old = json.loads(path.read_text()) if path.exists() else {}
    result = {"what": what, "table": start}
    result |= {key: value for key, value in old.items() if key in result}
    sources = set(loaded_files())
    for run in runs:
        sources.update(run.get("sources", []))
    result["sources"] = sorted(sources)
    for key, value in measured.items():
        if value is not None:
            number = isinstance(value, float)
            result[key] = float(f"{value:.3g}") if number else value
    # Readers cannot use folders of this machine.
    words = [re.sub(r"(^|=)/.*/", r"\1", word) for word in sys.argv]
    command = f"python benchmarks/{Path(words[0]).stem}.py {shlex.join(words[1:])}"
    result |= {"machine": machine()} | stamp() | {"command": command}
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(result, indent=2, ensure_ascii=False)
    path.write_text(f"{text}\n")


def publish_comparison(
    start: str | None,
    what: str,
    rows: Sequence[Mapping],
    results: Mapping[tuple[str, str], list[dict]],
) -> None:
    """Publishes each row of `compare` with a peer, beside our row of the same dtype.

    results: the argument of `compare`.
    """
    runs = [run for runs in results.values() for run in runs]
    ours: dict[str, Mapping] = {}
    for row in rows:
        if is_ours(row["system"]) and "spread" in row:  # its worker did not fail
            ours.setdefault(row["dtype"], row)
        if row.get("its time / ours"):
            dtype = "float32" if row["dtype"] == "float32" else "bfloat16"
            publish(
                start,
                row["dtype"],
                row["system"],
                what=f"{what}, {row['dtype']}",
                runs=runs,
                value=ours[dtype]["s"],
                spread=ours[dtype]["spread"],
                unit="s",
                peer=row["system"],
                peer_value=row["s"],
                ratio=row["its time / ours"],
            )


def process_bytes() -> int:
    """The peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
