"""Minimal pairs: how often a model finds the good sentence of two more likely.

--checkpoint: a checkpoint with an MLM head.
--pairs: files, a set each: a table (.jsonl, .csv, .tsv) with the two sentences in
--fields; .txt with two columns, or with pairs of lines, the good one first; or a zip of
.jsonl, as BLiMP comes.
--rest_of_word: mask the tokens that follow in the word too.
--json: print one object with "accuracy" (a share of 1), "by_set" (the accuracy of each
set by its path) and "pairs".

usage:
  bert_jax minimal_pairs --checkpoint W --pairs BLiMP.zip [--json]
"""

import json
import sys
from pathlib import Path

from bert_jax.commands import cli
from bert_jax.commands.score import add_flags, make_scorer
from bert_jax.errors import UserError, counted
from bert_jax.progress import print_line


def main(argv: list[str]) -> None:
    """Parses the command line, scores every set, and prints the accuracies."""
    parser = cli.argument_parser(__doc__)
    parser.add_argument("--pairs", required=True, nargs="+", type=Path, metavar="FILE")
    parser.add_argument(
        "--fields",
        type=lambda text: text.split(","),
        metavar="GOOD,BAD",
        help="of JSONL, CSV and TSV (sentence_good,sentence_bad, as BLiMP)",
    )
    parser.add_argument("--json", action="store_true")
    add_flags(parser)
    args = parser.parse_args(argv)
    if args.fields and len(args.fields) != 2:
        raise UserError(f"--fields={','.join(args.fields)}, expected two, GOOD,BAD")
    # Imported late, so that --help and errors of the command line come at once.
    from bert_jax.inference import score

    scorer = make_scorer(args)
    right = []
    sets = score.read_sets(args.pairs, args.fields or score.FIELDS)
    for name, values in score.accuracy(scorer, sets):
        right.append((name, values))
        line = f"{values.mean():7.1%}  {len(values):6,}  {name}"
        print_line(line, sys.stderr if args.json else sys.stdout)
    found = score.summary(right)
    if args.json:
        print_line(json.dumps(found._asdict(), indent=2))
    else:
        print_line(f"{found.accuracy:.1%} of {counted(found.pairs, 'pair')}")
