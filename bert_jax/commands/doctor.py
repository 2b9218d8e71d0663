"""Checks whether this machine, or a job of several, can train.

Run it before a long run, and paste its lines into a bug report. The last
line is "ready", or "not ready: ..." with exit code 2.

usage:
  bert_jax doctor
  bert_jax doctor --workdir gs://BUCKET/runs
  bert_jax doctor --distributed --workdir gs://BUCKET/runs

flags:
  --distributed              join the hosts of Cloud TPU, GKE, Slurm or MPI
  --coordinator_address A:P  other systems: host and port of process 0
  --num_processes N          other systems: number of processes
  --process_id I             other systems: number of this process, from 0
  --join_timeout S           seconds until all processes are connected (300)
  --heartbeat_timeout S      a process is lost after S seconds of silence (30)
  --step_timeout S           a check fails after S seconds (120)
  --workdir DIR              folder or bucket of future runs (runs)

[Hardware](guides/hardware.md#check-the-machine-first) explains each line. In a job of
several hosts, start the command on each host. Process 0 prints all lines, and the others
print their failed checks.
"""

import logging

from bert_jax.commands import cli
from bert_jax.files import reading
from bert_jax.progress import print_line


def main(argv: list[str]) -> int:
    """Parses the command line and runs all checks."""
    defaults = cli.JOB_FLAGS | {"workdir": "runs", "step_timeout": 120}
    flags = vars(cli.argument_parser(__doc__, defaults).parse_args(argv))
    workdir, seconds = flags.pop("workdir"), flags.pop("step_timeout")
    with reading("JAX", "libraries that fit: pip install -c constraints.txt -e ."):
        import jax

        from bert_jax.training import checks

    def devices() -> str:
        cli.start(flags | {"step_timeout": 0})
        flags["process_id"] = jax.process_index()
        logging.getLogger("bert_jax").setLevel(logging.WARNING)
        return checks.devices()

    def log(line: str) -> None:
        if flags["process_id"] < 1 or line.startswith("failed"):
            print_line(line)

    failed: list[str] = []
    every = {
        "versions": checks.versions,
        "devices": devices,
        "product": checks.product,
        "attention": checks.attention,
        "dropout": checks.dropout,
        "collective": checks.collective,
        "step in float32": lambda: checks.step("float32"),
        "step in bfloat16": lambda: checks.step("bfloat16"),
        "save": lambda: checks.save(workdir),
        "processes": lambda: checks.processes(failed),
    }
    checks.run_checks(every, failed, log, seconds)
    log(f"not ready: {failed[0]}" if failed else "ready")
    if failed:
        return 2
    cli.print_next(("train", "--config", "tiny", "--workdir", f"{workdir}/tiny"))
    return 0
