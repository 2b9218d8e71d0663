"""Scores texts: how likely a pretrained model finds each of them.

--checkpoint: a checkpoint with an MLM head.
--text: a text, or several with a --text each; or --input: a table (.csv, .tsv, .jsonl,
.json, .parquet), or UTF-8 lines in any other file, a text each; - for stdin.
--output: a file with a JSON object for each line: "text", "log_probability" (natural,
summed over the tokens, each masked in turn), "tokens", and "id" of a table; a CSV table if
its name ends in .csv; stdout without it. An empty text has 0 tokens and the log
probability 0.
--rest_of_word: mask the tokens that follow in the word too.

usage:
  bert_jax score --checkpoint W --text TEXT|--input FILE [--output FILE]
"""

import argparse

from bert_jax.commands import cli
from bert_jax.errors import UserError
from bert_jax.files import check_output


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of every command that scores texts."""
    cli.add_checkpoint_flags(parser, batch_size=64)
    parser.add_argument("--rest_of_word", action="store_true")


def make_scorer(args: argparse.Namespace, show_progress: bool | None = None):
    """The Scorer that the flags ask for."""
    # Imported late, so that --help and errors of the command line come at once.
    from bert_jax.inference.score import Scorer

    cli.start()
    return Scorer(
        args.checkpoint,
        rest_of_word=args.rest_of_word,
        batch_size=args.batch_size,
        max_length=args.max_length,
        dtype=args.dtype,
        show_progress=show_progress,
    )


def main(argv: list[str]) -> None:
    """Parses the command line, scores and writes as it goes."""
    parser = cli.argument_parser(__doc__)
    cli.add_text_flags(parser)
    add_flags(parser)
    args = parser.parse_args(argv)
    # Imported late, so that --help and errors of the command line come at once.
    from bert_jax.inference import lines

    csv = lines.output_format(args.output) == "csv"
    check_output(args.output, args.input)
    watched = lines.on_screen(args.output)
    scorer = make_scorer(args, show_progress=False if watched else None)
    given = lines.given_rows(args.text, args.input, tabs=False)
    form = lines.CsvTable().lines if csv else lines.json_lines
    scores = scorer.stream(given.rows, given.total, tuple(args.columns))
    rows = 0
    with lines.open_output(args.output) as file:
        for part in lines.chunks(scores, 1 if watched else lines.CHUNK):
            answers = []
            for score in part:
                found = score._asdict()
                own = {} if score.id is None else {"id": score.id}
                del found["id"]
                answers.append(own | found)
            for line in form(lines.Answers(part, answers)):
                file.write(f"{line}\n")
            rows += len(part)
        if not rows:
            raise UserError(f"{given.name} is empty; expected a text a line")
