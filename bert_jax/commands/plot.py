"""Draws the curves of runs, and prints how their settings and scores differ.

A run may be finished or not. With --reference the picture is reference.png,
and its x axis is the number of tokens.

usage:
  bert_jax plot runs/tiny
  bert_jax plot runs/tiny --reference tiny
  bert_jax plot runs/a runs/b --output curves.svg

flags:
  RUN               workdir of bert_jax train or finetune, or of a sweep
  --output FILE     .png, .svg or .pdf (curves.png in the workdir of one run)
  --json            print an object for each run instead of the table
  --reference NAME  name of a reference run, or a workdir; may be repeated
"""

import json
import sys
from pathlib import Path

from bert_jax import runs
from bert_jax.commands import cli
from bert_jax.commands.config_file import named_references
from bert_jax.files import is_remote
from bert_jax.progress import print_line


def main(argv: list[str]) -> None:
    """Parses the command line, prints the table and draws the picture."""
    reference = {"action": "append", "default": []}
    flags = {"output": "", "json": False, "reference": reference}
    parser = cli.argument_parser(__doc__, flags)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    args = parser.parse_args(argv)
    known = named_references()
    references = [known.get(name, name) for name in args.reference]
    all_runs = [*runs.read_runs(args.runs), *runs.read_references(references)]
    compared = runs.compare(all_runs)
    table = "\n".join(runs.table(compared))
    print_line(json.dumps(compared, indent=2) if args.json else table)
    from bert_jax import figures

    single = len(args.runs) == 1 and not is_remote(args.runs[0])
    name = "reference.png" if references else runs.CURVES
    output = Path(args.output or Path(args.runs[0] if single else "", name))
    figures.save(figures.curves(*args.runs, references=references), output)
    print_line(str(output), sys.stderr)
