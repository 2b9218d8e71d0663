"""Seconds to embed sentences of mixed length with bert_jax and with its peers.

All systems use the same weights, sentences, batch size and pooling: the mean of the last
layer over all tokens, scaled to length 1. Each system runs in its own process, and the runs
alternate. "s" is the median of all repeats of all runs. "first, s" is the first call,
compilation included. "one, ms" is the median time of sentences embedded one by one.
"differs" is the largest difference from our embeddings in the first dtype.

usage:
  python benchmarks/embedding.py --model all-MiniLM-L6-v2 [--texts FILE] [--count 4000]
    [--batch 32] [--max_length 256] [--singles 200] [--dtypes float32,bfloat16]
    [--peer_python PEER/bin/python] [--peers sentence-transformers,onnxruntime,openvino]
    [--runs 3] [--output FILE.json] [--result embedding_minilm]

PEER is an environment with the packages that embedding_peer.py names. Without it only
bert_jax runs.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from common import (
    OURS,
    SENTENCES,
    Worker,
    alternate,
    compare,
    comparison_parser,
    markdown,
    median_and_spread,
    names,
    publish,
    publish_comparison,
    write_report,
)


def summary(results: dict[tuple[str, str], list[dict]]) -> Iterator[dict]:
    """Rows of the table. The row of a worker that failed has its error."""
    ours: dict[str, float] = {}
    for row, good in compare(results, "seconds"):
        if good:
            row["sentences/s"] = good[0]["sentences"] / row["s"]
            row["differs"] = f"{good[0]['difference']:.1e}"
        if singles := [1000 * s for run in good for s in run["single_seconds"]]:
            row["one, ms"] = one = median_and_spread(singles)[0]
            if row["system"] == OURS:
                ours[row["dtype"]] = one
            elif row["dtype"] in ours:
                row["its one / ours"] = one / ours[row["dtype"]]
        yield row


def main() -> None:
    """Runs all systems, compares their vectors and prints the table."""
    parser = comparison_parser(__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--texts", type=Path, default=SENTENCES)
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--max_length", type=int, default=256)
    parser.add_argument("--singles", type=int, default=0)
    parser.add_argument("--dtypes", type=names, default="float32")
    parser.add_argument("--peers", type=names, default="sentence-transformers")
    options = parser.parse_args()
    options.model, options.texts = options.model.resolve(), options.texts.resolve()
    systems = {OURS: (sys.executable, "embedding_ours.py")}
    if options.peer_python:
        peer = options.peer_python, "embedding_peer.py"
        systems |= dict.fromkeys(options.peers, peer)
    with tempfile.TemporaryDirectory() as folder:
        workers = {
            (system, dtype): Worker(
                *worker,
                vars(options)
                | {
                    "system": system,
                    "dtype": dtype,
                    "vectors": f"{folder}/{system}-{dtype}.npy",
                },
            )
            for dtype in options.dtypes
            for system, worker in systems.items()
        }
        *_, results = alternate(workers, options.runs)
        vectors = {
            key: np.load(worker.options["vectors"])
            for key, worker in workers.items()
            if Path(worker.options["vectors"]).exists()
        }
    reference = OURS, options.dtypes[0]
    if reference not in vectors:
        sys.exit(f"{OURS}: {results[reference][0]['error']}")
    for key, array in vectors.items():
        difference = float(np.abs(array - vectors[reference]).max())
        results[key] = [run | {"difference": difference} for run in results[key]]
    rows = list(summary(results))
    print(markdown(rows))
    what = f"{options.model.name}: embedding {options.count:,} sentences"
    publish_comparison(options.result, what, rows, results)
    for row in rows:
        if "its one / ours" in row:
            publish(
                options.result,
                "one",
                row["dtype"],
                row["system"],
                what=f"{options.model.name}: embedding one sentence, {row['dtype']}",
                runs=[run for runs in results.values() for run in runs],
                value=row["one, ms"] / row["its one / ours"],
                unit="ms",
                peer=row["system"],
                peer_value=row["one, ms"],
                ratio=row["its one / ours"],
            )
    runs = {" ".join(key): value for key, value in results.items()}
    write_report(options.output, rows=rows, runs=runs)


if __name__ == "__main__":
    main()
