"""Reports of compiled steps as a Markdown table."""

from bert_jax.training.aot import Report

GIB = 1 << 30
HEAD = (
    "topology",
    "chips",
    "devices",
    "batch x length",
    "arguments, GiB",
    "temporaries, GiB",
    "of, GiB",
    "fits, spare",
    "GFLOP a device",
    "at peak, s",
    "estimate, s",
    "collectives",
    "compiled in, s",
)


def table(reports: list[Report]) -> str:
    """A row for each report, bytes in GiB (2**30) and seconds."""
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    lines += [f"| {' | '.join(_row(report))} |" for report in reports]
    return "\n".join(lines)


def _row(report: Report) -> list[str]:
    slices = f"{report.num_slices} x " if report.num_slices > 1 else ""
    estimate = report.estimated_seconds
    return [
        f"{slices}{report.topology}",
        f"{report.chips}",
        f"{report.devices}",
        f"{report.batch_size} x {report.sequence_length}",
        f"{report.argument_bytes / GIB:.2f}",
        f"{report.temp_bytes / GIB:.2f}",
        f"{report.hbm_bytes / GIB:.0f}",
        f"yes, {report.spare:.0%}" if report.fits else "no",
        f"{report.model_flops_per_device / 1e9:,.0f}",
        f"{report.seconds_at_peak:.4f}",
        "" if estimate is None else f"{estimate:.4f}",
        ", ".join(
            f"{traffic.count} {kind} {traffic.bytes / 1e6:,.0f} MB"
            for kind, traffic in sorted(report.collectives.items())
        ),
        f"{report.compile_seconds:.0f}",
    ]
