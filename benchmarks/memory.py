"""Memory of pretraining steps by batch size, of bert_jax and of transformers.

Nothing runs and no GPU is needed. Ours is the report of the compiler for GPUs
(`bert_jax aot`), the peer's is PyTorch's tracker of tensors without values. Both are
measured at two batch sizes. The straight line between them gives the largest batch for
each memory, and our step is compiled with that batch too. Needs
`pip install 'bert_jax[gpu]'`. Settings after -- are for ours.

usage:
  python benchmarks/memory.py [--sizes base,large] [--lengths 128,512]
    [--memories 16,40,80] [--topology a100-80gb:1] [--peer_python PEER/bin/python]
    [--output FILE.json] [-- --config.SETTING=VALUE ...]
"""

import argparse
import functools
import sys
from collections.abc import Callable

from common import (
    Worker,
    make_parser,
    markdown,
    names,
    predictions,
    run_json,
    run_worker,
    write_report,
)

GIB = 2**30
# The share of a GPU's memory with XLA_PYTHON_CLIENT_MEM_FRACTION=0.92.
USABLE = 0.92


def ours(options: argparse.Namespace, size: str, length: int, batch: int) -> dict:
    """Bytes of the state and of everything else in a step."""
    command = [
        *(sys.executable, "-m", "bert_jax", "aot", "--json"),
        *("--config", size, "--topology", options.topology),
        "--config.data.packing=False",
        f"--config.phases[0].batch_size={batch}",
        f"--config.phases[0].sequence_length={length}",
        f"--config.phases[0].max_predictions={predictions(length)}",
        *options.settings,
    ]
    report = run_json(command)
    if "error" in report:
        return report
    return {
        "state_bytes": report["argument_bytes"],
        "step_bytes": report["temp_bytes"],
    }


def peer(options: argparse.Namespace, size: str, length: int, batch: int) -> dict:
    """The same of transformers."""
    step = dict(size=size, length=length, batch=batch, predictions=predictions(length))
    return run_worker(Worker(options.peer_python, "memory_peer.py", step))


def measure(
    find: Callable[[int], dict], length: int, memories: list[str], *, check: bool
) -> dict:
    """The columns of a system: bytes, and the largest batch for each memory.

    find: the bytes of a batch. check: find the bytes of the largest batches too.
    """
    few, many = 4096 // length, 12288 // length
    low, high = find(few), find(many)
    if error := low.get("error") or high.get("error"):
        return {"state, GiB": error}
    each = (high["step_bytes"] - low["step_bytes"]) / (many - few)
    columns = {
        "state, GiB": low["state_bytes"] / GIB,
        "an example more, MiB": each / 2**20,
    }
    for memory in memories:
        room = int(memory) * GIB * USABLE - sum(low.values())
        largest = max(0, int(few + room / each) // 8 * 8)
        columns[f"largest batch for {memory} GB"] = largest
        if check and largest:
            columns[f"compiled for {memory} GB, GiB"] = (
                sum(find(largest).values()) / GIB
            )
    return columns


def main() -> None:
    """Measures and prints the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--peer_python")
    parser.add_argument("--sizes", type=names, default="base,large")
    parser.add_argument("--lengths", type=names, default="128,512")
    parser.add_argument("--memories", type=names, default="16,40,80")
    parser.add_argument("--topology", default="a100-80gb:1")
    parser.add_argument("settings", nargs="*")
    options = parser.parse_args()
    systems = {"bert_jax": ours} | (
        {"transformers": peer} if options.peer_python else {}
    )
    rows = []
    for size in options.sizes:
        for length in map(int, options.lengths):
            for system, needs in systems.items():
                find = functools.partial(needs, options, size, length)
                row = {"size": size, "length": length, "system": system}
                row |= measure(find, length, options.memories, check=needs is ours)
                rows.append(row)
                write_report(options.output, rows=rows)
    print(markdown(rows))


if __name__ == "__main__":
    main()
