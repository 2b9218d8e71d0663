"""Compares runs: the settings that differ, and what each of them reached.

RUN: a workdir of bert_jax.train or bert_jax.finetune, finished or not, or of a sweep.
--json: a list with an object for each run, instead of the table.
--output: also their curves, side by side; a name in .png, .svg or .pdf.

usage:
  python -m bert_jax.compare RUN RUN [RUN ...] [--json] [--output F.png]
"""

import json
import sys
from pathlib import Path

from bert_jax import cli, runs


def main(argv: list[str]) -> None:
    """Parses the command line, compares and draws."""
    parser = cli.argument_parser(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--output", type=Path, metavar="F.png")
    args = parser.parse_args(argv)
    compared = runs.compare(runs.read_runs(args.runs))
    if args.json:
        print(json.dumps(compared, indent=2))
    else:
        print(*runs.table(compared), sep="\n")
    if args.output:
        # Imported late: a table needs no matplotlib.
        from bert_jax import figures

        figures.check_ending(args.output)
        figures.save(figures.curves(*args.runs), args.output)
        print(args.output, file=sys.stderr)


if __name__ == "__main__":
    cli.run(main)
