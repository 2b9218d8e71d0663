"""Embedding sentences of mixed length side by side: bert_jax and what others run.

The same weights, sentences, pooling and batch size, in processes of their own, by turns.
Seconds are the median of all repeats of all runs once everything is compiled; "first
call, s" is with compilation, and where a persistent cache is (JAX_COMPILATION_CACHE_DIR)
without most of it. "One, ms" is the median of sentences that are embedded one by one.
"Differs" is the largest difference from the vectors of the first system and dtype.

usage:
  python benchmarks/embedding.py --model all-MiniLM-L6-v2 [--texts FILE] [--count 4000]
    [--batch 32] [--max_length 256] [--singles 200] [--dtypes float32,bfloat16]
    [--peer_python PEER/bin/python] [--peers sentence-transformers,onnxruntime,openvino]
    [--runs 3] [--output FILE.json]

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

OURS = "bert_jax"
TEXTS = HERE.parent / "tests/golden/pretraining_data/moby_dick_sentences.txt"


def summary(results: dict[tuple[str, str], list[dict]]) -> list[dict]:
    """Rows of the table; a worker that failed says why."""
    rows, ours = [], {}
    for (name, dtype), runs in results.items():
        good = [run for run in runs if "error" not in run]
        row = {"system": name, "dtype": dtype}
        if not good:
            rows.append(row | {"s": runs[0]["error"]})
            continue
        median, spread = median_and_spread(s for run in good for s in run["seconds"])
        singles = [s for run in good for s in run["single_seconds"]]
        one = median_and_spread(singles)[0] if singles else None
        times = median, one
        if name == OURS:
            ours[dtype] = times
        shares = [
            its / own if its and own and name != OURS else None
            for its, own in zip(times, ours.get(dtype, (None, None)), strict=True)
        ]
        rows.append(
            row
            | {
                "s": median,
                "spread": f"{spread:.0%}",
                "sentences/s": good[0]["sentences"] / median,
                "its time / ours": shares[0],
                "one, ms": 1000 * one if one else None,
                "its one / ours": shares[1],
                "first call, s": median_and_spread(r["cold_seconds"] for r in good)[0],
                "peak, GiB": max(run["peak_bytes"] for run in good) / 2**30,
                "differs": f"{good[0]['difference']:.1e}",
            }
        )
    return rows


def main() -> None:
    """Runs all of them, compares their vectors and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--texts", type=Path, default=TEXTS)
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--max_length", type=int, default=256)
    parser.add_argument("--singles", type=int, default=0)
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--peers", default="sentence-transformers")
    comparison_flags(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        flags = [
            *("--model", options.model.resolve(), "--texts", options.texts.resolve()),
            *("--count", options.count, "--batch", options.batch),
            *("--max_length", options.max_length, "--singles", options.singles),
            *("--repeats", options.repeats),
        ]
        systems = {OURS: [sys.executable, HERE / "embedding_step.py"]}
        if options.peer_python:
            peer = [options.peer_python, HERE / "embedding_peer.py", "--system"]
            systems |= {name: [*peer, name] for name in options.peers.split(",")}
        files = {
            (name, dtype): f"{folder}/{name}-{dtype}.npy"
            for dtype in options.dtypes.split(",")
            for name in systems
        }
        workers = {
            (name, dtype): [*systems[name], *flags, "--dtype", dtype, "--vectors", file]
            for (name, dtype), file in files.items()
        }
        results = by_turns(workers, options.runs)
        vectors = {key: np.load(f) for key, f in files.items() if Path(f).exists()}
    reference = next(iter(vectors.values()), None)
    for key, array in vectors.items():
        difference = float(np.abs(array - reference).max())
        results[key] = [run | {"difference": difference} for run in results[key]]
    rows = summary(results)
    print(markdown(rows))
    runs = {" ".join(key): value for key, value in results.items()}
    write_report(options.output, {"rows": rows, "runs": runs})


if __name__ == "__main__":
    main()
