"""Scores texts by a pretrained model, or finds the better sentence of minimal pairs.

--checkpoint: a checkpoint with an MLM head.
--text: a text, or several with a --text each; or --input: a table (.csv, .tsv, .jsonl,
.json, .parquet), or UTF-8 lines in any other file, a text each; - for stdin.
--output: a file with a JSON object for each text: "text", "log_probability" (natural,
summed over the tokens, each masked in turn), "tokens", and "id" of a table; a CSV table if
its name ends in .csv. An empty text has 0 tokens and the log probability 0.
--rest_of_word: mask the tokens that follow in the word too.
--pairs: files, a set each: a table (.jsonl, .csv, .tsv) with the good and the bad sentence
in two --columns (default: sentence_good sentence_bad); lines of text with a tab between the
two; or a folder of .jsonl files, such as BLiMP's data. The command prints how often the
good sentence is more likely.
--json: print the objects of texts instead of lines to read; with --pairs, one object with
"accuracy" (a share of 1), "by_set" (the accuracy of each set by its path) and "pairs".

usage:
  bert_jax score --checkpoint W --text TEXT|--input FILE|--pairs blimp/data
"""

import json
import sys
from pathlib import Path
from typing import Any

from bert_jax.commands import cli
from bert_jax.errors import UserError, counted
from bert_jax.files import check_output
from bert_jax.progress import print_line


def main(argv: list[str]) -> None:
    """Parses the command line, scores and writes."""
    parser = cli.argument_parser(__doc__)
    cli.add_checkpoint_flags(parser)
    cli.add_text_flags(parser, required=False)
    parser.add_argument("--rest_of_word", action="store_true")
    parser.add_argument("--pairs", nargs="+", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    if bool(args.text or args.input) == bool(args.pairs):
        raise UserError("expected one of --text, --input and --pairs")
    if args.pairs:
        cli.check_unused(parser, args, "output")
    else:
        cli.check_columns(parser, args)
    from bert_jax.inference import lines
    from bert_jax.inference.pretrained import COLUMNS, Scorer, accuracy, read_sets

    form = lines.output_format(args.output, as_json=args.json)
    check_output(args.output, args.input)
    # A wrong pair is found before any score.
    sets = list(read_sets(args.pairs or (), args.columns or COLUMNS))
    watched = lines.on_screen(args.output) and not args.pairs
    cli.start()
    scorer = Scorer(
        args.checkpoint,
        rest_of_word=args.rest_of_word,
        show_progress=False if watched else None,
        **cli.model_options(args),
    )
    if not args.pairs:
        rows = lines.given_rows(scorer, args.text, args.input)
        parts = scorer.stream(rows, columns=args.columns)
        lines.write_answers(parts, args.output, form)
        return

    def report(name: str, right: Any) -> None:
        line = f"{right.mean():7.1%}  {len(right):6,}  {name}"
        print_line(line, sys.stderr if args.json else sys.stdout)

    found = accuracy(scorer, sets, report)
    if args.json:
        print_line(json.dumps(found._asdict(), indent=2))
    else:
        print_line(f"{found.accuracy:.1%} of {counted(found.pairs, 'pair')}")
