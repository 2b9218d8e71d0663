"""Pretraining steps side by side: bert_jax and transformers' BertForPreTraining.

The same work on the same device: MLM and NSP, clipping, Adam, the same tokens masked.
Every system runs in a process of its own, by turns; seconds are the median of all
repeats of all runs, the spread (largest - smallest) / median. MFU is model FLOPs, ours
for both (BertConfig.step_flops), a second, over the device's peak. A row of the
table is a setting of one system; "its time / ours" is to ours of the same size, length,
dropout and of the dtype that stands beside it (autocast and bfloat16: ours in bfloat16).

usage:
  python benchmarks/pretraining.py [--peer_python PEER/bin/python] [--cases base:8x128]
    [--dtypes float32,bfloat16] [--dropouts 0.1,0.0] [--attention auto]
    [--peer_modes eager,compile] [--peer_dtypes autocast,bfloat16] [--runs 3]
    [--steps 5] [--output FILE.json]

A case is SIZE:BATCHxLENGTH. PEER: an environment as pretraining_peer.py says; without it
ours run alone. --peer_dtypes: what stands beside ours in bfloat16. --dropouts: RATE, or
RATE/RATE OF ATTENTION.
"""

import argparse
import sys
from typing import Any

from measure import (
    HERE,
    by_turns,
    comparison_flags,
    markdown,
    median_and_spread,
    write_report,
)

# Of a sequence: the original's max_predictions_per_seq; 15% for other lengths.
PREDICTIONS = {128: 20, 512: 77}


def workers(case: str, dropout: str, options: argparse.Namespace) -> dict[str, list]:
    """Commands by name, "SYSTEM DTYPE", of one case and rate."""
    size, shape = case.split(":")
    batch, length = map(int, shape.split("x"))
    rates = dropout.split("/")
    flags = [
        *("--size", size, "--batch", batch, "--length", length),
        *("--predictions", PREDICTIONS.get(length) or max(1, length * 15 // 100)),
        *("--dropout", rates[0], "--attention_dropout", rates[-1]),
        *("--steps", options.steps, "--repeats", options.repeats),
    ]
    result = {}
    for dtype in options.dtypes.split(","):
        for attention in options.attention.split(","):
            result[f"bert_jax {attention} {dtype}"] = [
                *(sys.executable, f"{HERE}/pretraining_step.py", *flags),
                *("--dtype", dtype, "--attention", attention),
            ]
    if not options.peer_python:
        return result
    for dtype in options.dtypes.split(","):
        beside = options.peer_dtypes if dtype == "bfloat16" else dtype
        for theirs in beside.split(","):
            for mode in options.peer_modes.split(","):
                result[f"transformers {mode} {theirs}"] = [
                    *(options.peer_python, f"{HERE}/pretraining_peer.py", *flags),
                    *("--dtype", theirs, *["--compile"] * (mode == "compile")),
                ]
    return result


def summary(case: str, dropout: str, results: dict[str, list[dict]]) -> list[dict]:
    """Rows of the table for one case and rate; a worker that failed says why."""
    rows: list[dict[str, Any]] = []
    ours: dict[str, tuple[float, dict]] = {}
    for name, runs in results.items():
        system, *mode, dtype = name.split()
        row = {"case": case, "dropout": dropout, "system": " ".join([system, *mode])}
        row |= {"dtype": dtype}
        good = [run for run in runs if "error" not in run]
        if not good:
            rows.append(row | {"s/step": runs[0]["error"]})
            continue
        times = [seconds for run in good for seconds in run["seconds_per_step"]]
        median, spread = median_and_spread(times)
        counterpart = "float32" if dtype == "float32" else "bfloat16"
        if system == "bert_jax" and (dtype not in ours or median < ours[dtype][0]):
            ours[dtype] = median, good[0]
        fastest, reference = ours.get(counterpart, (None, {}))
        peak = reference.get("peak_flops")
        rows.append(
            row
            | {
                "s/step": median,
                "spread": f"{spread:.0%}",
                "tokens/s": good[0]["batch"] * good[0]["length"] / median,
                "MFU": f"{reference['model_flops'] / median / peak:.1%}"
                if peak
                else None,
                "its time / ours": (
                    median / fastest if fastest and system != "bert_jax" else None
                ),
                "start, s": median_and_spread(r["start_seconds"] for r in good)[0],
                "peak, GiB": max(run["peak_bytes"] for run in good) / 2**30,
            }
        )
    return rows


def main() -> None:
    """Runs every case and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default="base:8x128")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--dropouts", default="0.1")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--peer_modes", default="eager")
    parser.add_argument("--peer_dtypes", default="autocast,bfloat16")
    parser.add_argument("--steps", type=int, default=5)
    comparison_flags(parser)
    options = parser.parse_args()
    rows, details = [], []
    for case in options.cases.split(","):
        for dropout in options.dropouts.split(","):
            results = by_turns(workers(case, dropout, options), options.runs)
            rows += summary(case, dropout, results)
            details.append({"case": case, "dropout": dropout, "runs": results})
            write_report(options.output, {"rows": rows, "details": details})
    print(markdown(rows))


if __name__ == "__main__":
    main()
