"""Embedding sentences of mixed length side by side: bert_jax and sentence-transformers.

The same weights, sentences, pooling and batch size, in processes of their own, by turns.
Seconds are the median of all repeats of all runs once everything is compiled; "first
call, s" is with compilation, and where a persistent cache is (JAX_COMPILATION_CACHE_DIR)
without most of it. The largest difference between both systems' vectors is told.

usage:
  python benchmarks/embedding.py --model all-MiniLM-L6-v2 [--texts FILE] [--count 4000]
    [--batch 32] [--max_length 256] [--peer_python PEER/bin/python] [--runs 3]
    [--output FILE.json]

PEER: an environment as embedding_peer.py says; without it ours runs alone.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from measure import (
    HERE,
    by_turns,
    comparison_flags,
    markdown,
    median_and_spread,
    write_report,
)

TEXTS = HERE.parent / "tests/golden/pretraining_data/moby_dick_sentences.txt"


def summary(results: dict[str, list[dict]]) -> list[dict]:
    """Rows of the table; a worker that failed says why."""
    rows, ours = [], None
    for name, runs in results.items():
        good = [run for run in runs if "error" not in run]
        if not good:
            rows.append({"system": name, "s": runs[0]["error"]})
            continue
        median, spread = median_and_spread(s for run in good for s in run["seconds"])
        ours = median if name == "bert_jax" else ours
        rows.append(
            {
                "system": name,
                "s": median,
                "spread": f"{spread:.0%}",
                "sentences/s": good[0]["sentences"] / median,
                "its time / ours": (
                    median / ours if ours and name != "bert_jax" else None
                ),
                "first call, s": median_and_spread(r["cold_seconds"] for r in good)[0],
                "peak, GiB": max(run["peak_bytes"] for run in good) / 2**30,
            }
        )
    return rows


def main() -> None:
    """Runs both, compares their vectors and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--texts", type=Path, default=TEXTS)
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--max_length", type=int, default=256)
    comparison_flags(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        flags = [
            *("--model", options.model.resolve(), "--texts", options.texts.resolve()),
            *("--count", options.count, "--batch", options.batch),
            *("--max_length", options.max_length, "--repeats", options.repeats),
        ]
        systems = {"bert_jax": (sys.executable, "embedding_step.py")}
        if options.peer_python:
            peer = options.peer_python, "embedding_peer.py"
            systems["sentence-transformers"] = peer
        workers = {
            name: [python, HERE / script, *flags, "--vectors", f"{folder}/{name}.npy"]
            for name, (python, script) in systems.items()
        }
        results = by_turns(workers, options.runs)
        arrays = [np.load(path) for path in Path(folder).glob("*.npy")]
    rows = summary(results)
    print(markdown(rows))
    report = {"rows": rows, "runs": results}
    if len(arrays) == 2:
        difference = float(np.abs(arrays[0] - arrays[1]).max())
        report["largest_difference"] = difference
        print(f"largest difference between the vectors: {difference:.1e}")
    write_report(options.output, report)


if __name__ == "__main__":
    main()
