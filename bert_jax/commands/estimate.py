"""Estimates memory and time of a training step on TPUs that you do not have.

Compiles the step of a pretraining for a TPU slice, and prints the memory of a
device, its collectives and its time. The exit code is 1 if it does not fit.

usage:
  bert_jax estimate --config base --topology v2:4x4
  bert_jax estimate --config large --topology v4:2x2x4,v5p:4x4x4
  bert_jax estimate --config base --topology v6e:8x8 --mesh.fsdp=True

flags:
  --config NAME    a file, or a name such as tiny or base:lamb
  --workdir DIR    run with the sizes of the model, if init_from was deleted
  --print_config   print all settings of this run, and exit
  --help_settings  list the settings with their meaning, and exit
  --topology T     TPU slice; several are separated by commas
  --num_slices N   number of slices; mesh.replica of several slices (1)
  --json           print a JSON object for each topology and phase

Bytes, FLOPs and seconds are per device. argument_bytes is the train state and a batch.
temp_bytes is all other memory, such as activations. Collectives exchange data between
devices; a collective in a loop counts once.

A step takes at least flops_seconds, the model's FLOPs at the peak speed of the chip.
bytes_seconds is the memory traffic at the chip's bandwidth, and roofline_seconds is the
larger of the two. The traffic is unknown with scan_layers or accumulation, because the
compiler does not count all of it. It includes traffic that stays inside the chip, so a step
may be faster than bytes_seconds.

With data.packing the step has a row for each example, the largest batch that is possible. A
run has fewer rows, with single_sentences far fewer.
"""

import json
from typing import Any

from bert_jax.commands import startup
from bert_jax.commands.config_file import parse
from bert_jax.errors import UserError
from bert_jax.progress import print_line
from bert_jax.training.config import train_config

# Settings that lower the memory of a step, cheapest first.
_SMALLER = (
    "--compute.dtype=bfloat16, --compute.scan_layers=False, --accumulation=2, "
    "--compute.remat=full, --mesh.fsdp=True, --mesh.model=2"
)


def main(argv: list[str]) -> int:
    """Parses the command line, compiles, and prints the reports."""
    defaults = {"topology": "", "num_slices": 1, "json": False}
    config, _, flags = parse(argv, __doc__, train_config, defaults)
    if not flags["topology"]:
        raise UserError("--topology is missing; give a TPU slice, such as v2:4x4")
    import jax

    from bert_jax.training.estimate import estimate_step, named_topology

    startup.quiet_libtpu()
    # JAX cannot read cached programs of devices that it does not have.
    jax.config.update("jax_enable_compilation_cache", False)
    code = 0
    for name in flags["topology"].split(","):
        topology = named_topology(name, flags["num_slices"])
        for phase in config.phases:
            report = estimate_step(config, phase, topology)
            print_line(json.dumps(report) if flags["json"] else text(report))
            code = code if report["fits"] else 1
    return code


def text(report: dict[str, Any]) -> str:
    """A report in lines. GiB are 2**30 bytes; TFLOP and MB are powers of ten."""
    shown = dict(report)
    for name, value in report.items():
        if value is None:
            shown[name] = "unknown"
        elif name.endswith("seconds"):
            shown[name] = f"{value:.4f} s"
        elif "bytes" in name:
            shown[name] = f"{value / (1 << 30):.2f} GiB"
    shown["flops"] = f"{report['flops'] / 1e12:.3g} TFLOP"
    shown["collectives"] = ", ".join(
        f"{sums['count']} {kind} {sums['bytes'] / 1e6:,.0f} MB"
        for kind, sums in sorted(report["collectives"].items())
    )
    shown["fits"] = "yes" if report["fits"] else f"no; try in this order: {_SMALLER}"
    return "\n".join(f"{name:18} {line}" for name, line in shown.items())
