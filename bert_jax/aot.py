"""Compiles a config's train step for TPUs or GPUs by name; it needs none of them.

Says what lies in a device's memory, what devices send each other, and the least time a
step can take. --topology: such as v2:4x4, v4:2x2x4, v5p:4x4x4, v6e:8x8, or of one host's
GPUs a100-40gb:1, a100-80gb:4, h100:8, h200:8; several with commas. --num_slices: joined by
the data-center network; set --config.mesh.replica too. --json: one object a line. Exits
with 1 where a step does not fit. Of a GPU the whole memory counts; a run takes three
quarters of it unless XLA_PYTHON_CLIENT_MEM_FRACTION says more.

usage:
  python -m bert_jax.aot --config base --topology v2:4x4 [--json]
"""

import dataclasses
import json

from bert_jax import cli
from bert_jax.config_file import parse
from bert_jax.errors import UserError
from bert_jax.progress import print_line
from bert_jax.training.config import TrainConfig, train_config


def main(argv: list[str]) -> int:
    """Parses the command line, compiles, and prints a table or JSON."""
    own = {"topology": "", "num_slices": 1, "json": False}
    config, _, flags = parse(argv, __doc__, train_config, own, TrainConfig)
    if not flags["topology"]:
        raise UserError("--topology is missing, such as v2:4x4")
    import jax

    from bert_jax.training.absent_devices import named_slices
    from bert_jax.training.aot import advice, compile_step, table

    # It cannot read back programs for devices that are not there.
    jax.config.update("jax_enable_compilation_cache", False)
    reports = []
    for name in flags["topology"].split(","):
        slices = named_slices(name, flags["num_slices"])
        for phase in config.phases:
            report = compile_step(config, phase, slices)
            reports.append(report)
            if flags["json"]:
                print_line(json.dumps(dataclasses.asdict(report)))
    if not flags["json"]:
        print_line(table(reports))
        for report in reports:
            if not report.fits:
                print_line(f"{report.topology}: {advice(config, report)}")
    return 0 if all(report.fits for report in reports) else 1


if __name__ == "__main__":
    cli.run(main)
