"""Draws the curves of runs, and prints how their settings and scores differ.

RUN: a workdir of bert_jax train or bert_jax finetune, finished or not, or of a sweep.
--output: name of the picture in .png, .svg or .pdf. The default is curves.png (or
reference.png with --reference) in the folder of a single run, or else in this folder.
--json: print a list with an object for each run instead of the table.
--reference: a run to compare pretraining with: a name, such as tiny, or a workdir; may be
repeated. The picture then shows metrics by the number of tokens.

usage:
  bert_jax plot RUN [RUN ...] [--output F.png] [--json] [--reference NAME]
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
    parser = cli.argument_parser(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--output", type=Path, metavar="F.png")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--reference", action="append", default=[], metavar="NAME")
    args = parser.parse_args(argv)
    known = named_references()
    references = [known.get(name, name) for name in args.reference]
    found = [*runs.read_runs(args.runs), *runs.read_references(references)]
    compared = runs.compare(found)
    table = "\n".join(runs.table(compared))
    print_line(json.dumps(compared, indent=2) if args.json else table)
    from bert_jax import figures

    single = len(args.runs) == 1 and not is_remote(args.runs[0])
    name = "reference.png" if references else runs.CURVES
    output = args.output or Path(args.runs[0] if single else "", name)
    figures.save(figures.curves(*args.runs, references=references), output)
    print_line(str(output), sys.stderr)
