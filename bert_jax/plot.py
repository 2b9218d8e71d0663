"""Draws loss, scores, learning rate and throughput of one run or several.

RUN: a workdir of bert_jax.train or bert_jax.finetune, finished or not, or of a sweep.
--output: a name in .png, .svg or .pdf; without it RUN/curves.png, of several runs
curves.png in this folder.

usage:
  python -m bert_jax.plot RUN [RUN ...] [--output F.png]
"""

from pathlib import Path

from bert_jax import cli
from bert_jax.progress import print_line
from bert_jax.runs import CURVES


def main(argv: list[str]) -> None:
    """Parses the command line and draws."""
    parser = cli.argument_parser(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--output", type=Path, metavar="F.png")
    args = parser.parse_args(argv)
    # Imported late, so that --help and errors of the command line come at once.
    from bert_jax import figures

    folder = Path(args.runs[0] if len(args.runs) == 1 else "")
    output = args.output or folder / CURVES
    figures.check_ending(output)
    figures.save(figures.curves(*args.runs), output)
    print_line(str(output))


if __name__ == "__main__":
    cli.run(main)
