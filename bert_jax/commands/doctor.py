"""Checks whether this machine, or a job of several, can train. Run it before a long run.

Each check prints a line: versions, the devices that JAX sees, the speed of a product, the
chosen attention, a sum over all devices, a training step whose numbers are known, a save
and a restore. The last line is "ready", or the first failed check, and then the exit code
is 2. The files in the workdir stay as they were. Paste all lines into a bug report.

--workdir: folder or bucket of the runs to come (runs).
--step_timeout: seconds after which a check without an end fails (120; 0: never).
On several hosts start the command on each host, with the flags of bert_jax train. Process 0
prints all lines, and the others print their failed checks.

usage:
  bert_jax doctor [--workdir D]
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
        "collective": checks.collective,
        "step in float32": lambda: checks.step("float32"),
        "step in bfloat16": lambda: checks.step("bfloat16"),
        "save": lambda: checks.save(workdir),
        "processes": lambda: checks.processes(failed),
    }
    checks.run_checks(every, failed, log, seconds)
    log(f"not ready: {failed[0]}" if failed else "ready")
    return 2 if failed else 0
