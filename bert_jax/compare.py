"""Compares runs: the settings that differ, and what each of them reached.

RUN: a workdir of bert_jax.train or bert_jax.finetune, finished or not, or of a sweep.
--json: a list with an object for each run, instead of the table.
--output: also their curves, side by side; a name in .png, .svg or .pdf.
--reference: a curve to compare pretrainings with, such as tiny, or a file; may be repeated.
The picture, by the tokens seen, is RUN/reference.png if --output says no other.
--as_reference: write the curve of one run as such a file, and nothing else.

usage:
  python -m bert_jax.compare RUN RUN [RUN ...] [--json] [--output F.png]
"""

import json
import sys
from pathlib import Path

from bert_jax import cli, runs
from bert_jax.config_file import named_references
from bert_jax.progress import print_line


def main(argv: list[str]) -> None:
    """Parses the command line, compares and draws."""
    parser = cli.argument_parser(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--output", type=Path, metavar="F.png")
    parser.add_argument("--reference", action="append", default=[], metavar="NAME")
    parser.add_argument("--as_reference", type=Path, metavar="F.json")
    args = parser.parse_args(argv)
    found = runs.read_runs(args.runs)
    if args.as_reference:
        runs.write_reference(found[0], args.as_reference)
        return
    known = named_references()
    references = [known.get(name, name) for name in args.reference]
    compared = runs.compare([*found, *map(runs.read_reference, references)])
    if args.json:
        print_line(json.dumps(compared, indent=2))
    else:
        print_line("\n".join(runs.table(compared)))
    output = args.output
    if references and not output:
        output = Path(args.runs[0], "reference.png")
    if output:
        # Imported late: a table needs no matplotlib.
        from bert_jax import figures

        figures.check_ending(output)
        figures.save(figures.curves(*args.runs, references=references), output)
        print_line(str(output), sys.stderr)


if __name__ == "__main__":
    cli.run(main)
