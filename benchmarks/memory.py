"""Memory of pretraining steps by batch size, without a GPU; and transformers' beside it.

Ours is what the compiler for GPUs says: for each size and length the step of one GPU is
compiled at two batch sizes, the straight line between them says which batch is the largest
for each memory, and that one is compiled too. The peer's is memory_peer.py's at the same
two batch sizes. Needs `pip install 'bert_jax[gpu]'`. FOLDER keeps what was found, so a
stopped run goes on. Settings after -- are for ours.

usage:
  python benchmarks/memory.py --output FOLDER [--sizes base,large] [--lengths 128,512]
    [--memories 16,40,80] [--topology a100-80gb:1] [--peer_python PEER/bin/python]
    [-- --config.SETTING=VALUE ...]
"""

import argparse
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path

from measure import HERE, markdown, run_worker
from pretraining import PREDICTIONS

from bert_jax.training.aot import GIB

# What a program has of a GPU's memory with XLA_PYTHON_CLIENT_MEM_FRACTION=0.92. A GPU of
# so many GB has about as many GiB.
USABLE = 0.92
# Rows of a batch, by length, between which the line is drawn.
ROWS = {128: (32, 96), 512: (8, 24)}


def ours(
    options: argparse.Namespace, size: str, length: int, rows: int
) -> tuple[int, int]:
    """Bytes of state and batch, and of what a step needs beside them."""
    words = [*options.settings, options.topology, size, f"{rows}x{length}"]
    command = [
        *(sys.executable, "-m", "bert_jax.aot", "--json"),
        *("--config", size, "--topology", options.topology),
        "--config.data.packing=False",
        f"--config.phases[0].batch_size={rows}",
        f"--config.phases[0].sequence_length={length}",
        f"--config.phases[0].max_predictions={PREDICTIONS[length]}",
        *options.settings,
    ]
    report = _kept(options.output / _name(words), command)
    return report["argument_bytes"], report["temp_bytes"]


def peers(
    options: argparse.Namespace, size: str, length: int, rows: int
) -> tuple[int, int]:
    """As :func:`ours`."""
    command = [
        *(options.peer_python, f"{HERE}/memory_peer.py"),
        *("--size", size, "--batch", str(rows), "--length", str(length)),
        *("--predictions", str(PREDICTIONS[length])),
    ]
    report = _kept(options.output / _name(["peer", size, f"{rows}x{length}"]), command)
    return report["state_bytes"], report["step_bytes"]


def _name(words: list[str]) -> str:
    return "_".join(words).replace("/", "-") + ".json"


def _kept(path: Path, command: list[str]) -> dict:
    """What a command printed last, as a file keeps it."""
    if not path.exists():
        result = run_worker(command)
        if "error" in result:
            sys.exit(f"{path.name}: {result['error']}")
        path.write_text(json.dumps(result))
    return json.loads(path.read_text())


def main() -> None:
    """Finds what is not kept yet and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--sizes", default="base,large")
    parser.add_argument("--lengths", default="128,512")
    parser.add_argument("--memories", default="16,40,80")
    parser.add_argument("--topology", default="a100-80gb:1")
    parser.add_argument("--peer_python")
    parser.add_argument("settings", nargs="*")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    systems = {"bert_jax": ours} | (
        {"transformers": peers} if options.peer_python else {}
    )
    rows = []
    for size in options.sizes.split(","):
        for length in map(int, options.lengths.split(",")):
            for system, needs in systems.items():
                find = functools.partial(needs, options, size, length)
                row = {"size": size, "length": length, "system": system}
                row |= _row(find, ROWS[length], options.memories, check=needs is ours)
                rows.append(row)
    print(markdown(rows))


def _row(
    find: Callable, few_and_many: tuple[int, int], memories: str, *, check: bool
) -> dict:
    """The columns of a system: bytes, and the largest batches of a multiple of eight.

    check: find what those batches need, too.
    """
    few, many = few_and_many
    state, low = find(few)
    each = (find(many)[1] - low) / (many - few)
    row = {"state, GiB": state / GIB, "a row more, MiB": each / (1 << 20)}
    for memory in map(int, memories.split(",")):
        room = memory * GIB * USABLE - state - low
        largest = max(0, int(few + room / each) // 8 * 8)
        row[f"largest for {memory} GB"] = largest
        if check and largest:
            row[f"compiled for {memory} GB, GiB"] = sum(find(largest)) / GIB
    return row


if __name__ == "__main__":
    main()
