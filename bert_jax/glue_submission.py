"""Packs the predictions of GLUE runs as the benchmark's server takes them.

--input: a folder that is searched with its subfolders, such as runs, for CoLA.tsv,
MNLI-m.tsv, ... as python -m bert_jax.finetune writes them.

usage:
  python -m bert_jax.glue_submission --input runs --output submission.zip
"""

from pathlib import Path

from bert_jax import cli
from bert_jax.progress import print_line
from bert_jax.tasks.layouts import submission_zip


def main(argv: list[str]) -> None:
    """Parses the command line, packs, and names what is missing."""
    parser = cli.argument_parser(__doc__)
    parser.add_argument("--input", type=Path, required=True, metavar="DIR")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.zip")
    args = parser.parse_args(argv)
    missing = submission_zip(args.input, args.output)
    print_line(f"{args.output}; not found: {', '.join(missing) or 'none'}")


if __name__ == "__main__":
    cli.run(main)
