"""Computes how likely texts are, and which sentence of a pair is more likely.

usage:
  bert_jax score --checkpoint runs/tiny --text "The function returns a list."
  bert_jax score --checkpoint runs/tiny --input texts.txt --output scores.csv
  bert_jax score --checkpoint runs/tiny --pairs blimp/data --json

flags:
  --checkpoint C         workdir, Hugging Face folder or name, or Google's file
  --batch_size N         rows in a batch at length 32; fewer if longer (32)
  --max_length N         maximum tokens of a row (as trained, or all positions)
  --dtype D              float32, bfloat16, auto (as the workdir, or float32)
  --text T [T ...]       one row: a text, or two; may be repeated
  --input FILE           table (.csv, .tsv, .jsonl, .json, .parquet), lines, -
  --columns C [C ...]    columns of a table with the texts (as trained, or text)
  --output FILE          a .csv or .jsonl file (stdout)
  --json                 print JSON lines instead of readable lines
  --pairs F [F ...]      files or folders of pairs: a good and a bad sentence
  --pairs_range A:B      slice of the pairs of each file, such as 500:1000 (all)
  --rest_of_word         also mask the tokens that follow in the same word

[Score sentences](guides/vectors.md#score-sentences) explains the scores and the pair files.
Logarithms are natural. With --json the answer to a text has "text", "log_probability" and
"tokens". The answer to a row of a table has the columns of the row instead of "text". If
the table has a column "tokens", the new column is "predicted_tokens". The answer to pairs
has "accuracy" (a share of 1), "by_set" (the accuracy of each set by its path) and "pairs".
"""

import functools
import json
import sys
from pathlib import Path
from typing import Any

from bert_jax.commands import cli
from bert_jax.errors import UserError, counted
from bert_jax.files import check_output
from bert_jax.progress import print_line
from bert_jax.settings import from_settings


def main(argv: list[str]) -> None:
    """Parses the command line, scores and writes."""
    pairs = {"nargs": "+", "type": Path}
    flags = {"pairs": pairs, "pairs_range": "", "rest_of_word": False}
    parser = cli.text_parser(__doc__, flags, required=False)
    args = parser.parse_args(argv)
    if bool(args.text or args.input) == bool(args.pairs):
        raise UserError("expected one of --text, --input and --pairs")
    if args.pairs:
        cli.check_unused(parser, args, "output")
    else:
        cli.check_columns(parser, args)
        cli.check_unused(parser, args, "pairs_range")
    from bert_jax.inference import lines, pretrained
    from bert_jax.inference.evaluation import OnDevices, rows_of
    from bert_jax.interop.load import load

    form = lines.output_format(args.output, as_json=args.json)
    check_output(args.output, args.input)
    sets = []
    if args.pairs:  # read first, so that a wrong pair is an error before any score
        columns = args.columns or pretrained.COLUMNS
        sets = [*pretrained.read_sets(args.pairs, columns, args.pairs_range)]
    cli.start()
    settings = cli.model_options(args) | {"rest_of_word": args.rest_of_word}
    if lines.on_screen(args.output) and not args.pairs:
        settings["show_progress"] = False
    options = from_settings(pretrained.ScoreOptions, settings, "")
    model = OnDevices(load(args.checkpoint), args.checkpoint)
    if not args.pairs:
        read = functools.partial(rows_of, columns=args.columns, tabs=False)
        rows = lines.given_rows(args.text, args.input, read)
        answer = functools.partial(pretrained.score, model, options=options)
        parts = lines.beside_columns(answer, rows, args.input)
        lines.write_answers(parts, args.output, form)
        return
    score = functools.partial(pretrained.log_probabilities, model, options)

    def report(name: str, right: Any) -> None:
        line = f"{right.mean():7.1%}  {len(right):6,}  {name}"
        print_line(line, sys.stderr if args.json else sys.stdout)

    result = pretrained.accuracy(score, sets, report)
    if args.json:
        print_line(json.dumps(result._asdict(), indent=2))
    else:
        print_line(f"{result.accuracy:.1%} of {counted(result.pairs, 'pair')}")
