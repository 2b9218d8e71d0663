"""Predicts labels, tags, answers or choices, with probabilities, for rows of text.

--checkpoint: a workdir of bert_jax finetune, or any checkpoint with a head. With a
pretrained checkpoint the command fills in each [MASK].
--text: a line, or several with a --text each; or --input: a table (.csv, .tsv, .jsonl,
.json, .parquet) with the columns that the checkpoint was trained with, a SQuAD file, a
file with a word and its tag on each line (.conll), or UTF-8 lines in any other file; - for
stdin. A line is a text, two texts with a tab between them, words to tag, question TAB
context, or context TAB choice TAB choice (fill_mask reads every line as a text). JSON
objects are read from .jsonl and .json files alone.
--output: the file of the answers, which is replaced if it exists; stdout without it.
--format: an aligned table, the default on a terminal, a JSON object for each row, the
default for an --output in .jsonl, or csv, the default for one in .csv. Answers have the
id of their row.

usage:
  bert_jax predict --checkpoint W --text TEXT|--input FILE [--output FILE]
"""

import sys

from bert_jax.commands import cli
from bert_jax.errors import UserError, counted, printable
from bert_jax.files import check_output
from bert_jax.progress import print_line


def main(argv: list[str]) -> None:
    """Parses the command line, predicts and writes as it goes."""
    answer(argv, __doc__)


def answer(argv: list[str], usage: str, family: str = "") -> None:
    """The command of ``usage``; ``family``: the only one it is for, see Predictor."""
    parser = cli.argument_parser(usage)
    cli.add_checkpoint_flags(parser, batch_size=32, max_length="as trained")
    cli.add_text_flags(parser)
    parser.add_argument("--format", choices=("table", "jsonl", "csv"))
    parser.add_argument(
        "--top", type=int, default=5, metavar="K", help="tokens for a [MASK]"
    )
    args = parser.parse_args(argv)
    # Imported late, so that --help and errors of the command line come at once.
    from bert_jax.inference import lines
    from bert_jax.inference.predict import Predictor

    watched = lines.on_screen(args.output)
    form = args.format or ("table" if watched else "")
    form = form or lines.output_format(args.output, "; change it, or set --format")
    check_output(args.output, args.input)
    cli.start()
    predictor = Predictor(
        args.checkpoint,
        batch_size=args.batch_size,
        max_length=args.max_length,
        dtype=args.dtype,
        top=args.top,
        show_progress=False if watched else None,
    )
    if family and predictor.family != family:
        raise UserError(
            f"{args.checkpoint} is a checkpoint for {predictor.family}, expected one for "
            f"{family}; use bert_jax predict"
        )
    given = lines.given_rows(
        args.text, args.input, tabs=predictor.tabs, read=predictor.placed
    )
    write = {
        "table": lines.AnswerTable().lines,
        "csv": lines.CsvTable().lines,
        "jsonl": lines.json_lines,
    }[form]
    rows = truncated = 0
    with lines.open_output(args.output) as file:
        parts = predictor.stream(
            given.rows, total=given.total, columns=tuple(args.columns)
        )
        for part in parts:
            for line in write(part):
                file.write(f"{printable(line) if watched else line}\n")
            file.flush()
            rows += len(part.rows)
            truncated += part.truncated
        if not rows:
            raise UserError(f"{given.name} is empty; expected rows")
    print_line(counted(rows, "row"), sys.stderr)
    if truncated:
        line = lines.truncation(truncated, rows, "row", predictor.max_length)
        print_line(line, sys.stderr)
