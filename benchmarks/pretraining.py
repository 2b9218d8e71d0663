"""Seconds of a pretraining step of bert_jax and of transformers.

Both do the same work on the same device: MLM and NSP on random tokens without padding,
the same number of masked tokens, clipping, Adam. The case ettin_17m is a ModernBERT with
the sizes of Ettin 17M, which only learns masked tokens and needs --dropouts 0.0. Each
system runs in its own process, and the runs alternate. "s" is the median of all repeats of
all runs, and the spread is (largest - smallest) / median. "first, s" is the first step,
compilation included. MFU is the model FLOPs per second (bert_jax.model.flops.step, for both
systems) divided by the peak of the device. "its time / ours" compares float32 with float32,
and the peer's autocast and bfloat16 with our bfloat16.

usage:
  python benchmarks/pretraining.py [--peer_python PEER/bin/python] [--cases base:8x128]
    [--dtypes float32,bfloat16] [--dropouts 0.1,0.0] [--kernels plain,xla,cudnn]
    [--peer_modes eager,compile] [--peer_dtypes autocast,bfloat16] [--runs 3] [--steps 5]
    [--output FILE.json] [--result pretraining_base]

A case is SIZE:BATCHxLENGTH. A dropout is RATE or RATE/RATE_OF_ATTENTION. --kernels: values
of our compute.attention_impl; the first is "ours". --peer_dtypes: the peer's precisions
beside our bfloat16. PEER is an environment with the packages that
pretraining_peer.py names. Without it only bert_jax runs.
"""

import argparse
import sys
from collections.abc import Iterator

from common import (
    OURS,
    Worker,
    alternate,
    compare,
    comparison_parser,
    is_ours,
    markdown,
    names,
    predictions,
    publish_comparison,
    write_report,
)


def workers(case: str, dropout: str, options: argparse.Namespace) -> dict:
    """The workers of one case and dropout by (system, dtype)."""
    size, shape = case.split(":")
    batch, length = map(int, shape.split("x"))
    rates = [float(rate) for rate in dropout.split("/")]
    step = dict(
        size=size,
        batch=batch,
        length=length,
        predictions=predictions(length),
        dropout=rates[0],
        attention_dropout=rates[-1],
        steps=options.steps,
        repeats=options.repeats,
    )
    result = {}
    for kernel in options.kernels:
        system = OURS if kernel == "auto" else f"{OURS} ({kernel})"
        for dtype in options.dtypes:
            result[system, dtype] = Worker(
                sys.executable,
                "pretraining_ours.py",
                step | {"dtype": dtype, "kernel": kernel},
            )
    for ours in options.dtypes if options.peer_python else ():
        for dtype in options.peer_dtypes if ours == "bfloat16" else [ours]:
            for mode in options.peer_modes:
                system = (
                    "transformers compiled" if mode == "compile" else "transformers"
                )
                result[system, dtype] = Worker(
                    options.peer_python,
                    "pretraining_peer.py",
                    step | {"dtype": dtype, "compile": mode == "compile"},
                )
    return result


def summary(case: str, dropout: str, results: dict) -> Iterator[dict]:
    """Rows of the table. The row of a worker that failed has its error."""
    ours: dict[str, dict] = {}
    for (system, dtype), (run, *_) in results.items():
        if is_ours(system) and "error" not in run:
            ours.setdefault(dtype, run)
    for row, good in compare(results, "seconds_per_step"):
        row = {"case": case, "dropout": dropout} | row
        if good:
            row["tokens/s"] = good[0]["batch"] * good[0]["length"] / row["s"]
            run = ours.get("float32" if row["dtype"] == "float32" else "bfloat16", {})
            if peak := run.get("peak_flops"):
                row["MFU"] = f"{run['model_flops'] / row['s'] / peak:.1%}"
        yield row


def main() -> None:
    """Runs every case and prints the table."""
    parser = comparison_parser(__doc__)
    parser.add_argument("--cases", type=names, default="base:8x128")
    parser.add_argument("--dtypes", type=names, default="float32,bfloat16")
    parser.add_argument("--dropouts", type=names, default="0.1")
    parser.add_argument("--kernels", type=names, default="auto")
    parser.add_argument("--peer_modes", type=names, default="eager")
    parser.add_argument("--peer_dtypes", type=names, default="autocast,bfloat16")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    rows, runs = [], {}
    for case in options.cases:
        for dropout in options.dropouts:
            for results in alternate(workers(case, dropout, options), options.runs):
                found = list(summary(case, dropout, results))
                for system_and_dtype, its_runs in results.items():
                    runs[" ".join([case, dropout, *system_and_dtype])] = its_runs
                write_report(options.output, rows=rows + found, runs=runs)
            rows += found
            kernel = options.kernels[0]
            what = f"Pretraining step, {case}, dropout {dropout}, attention {kernel}"
            publish_comparison(options.result, what, found, results)
    print(markdown(rows))


if __name__ == "__main__":
    main()
