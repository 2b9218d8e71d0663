"""Predicts labels, tags, answers or choices, with probabilities, for lines of text.

--checkpoint: a workdir of bert_jax.finetune, or any checkpoint with a head. With a
pretrained checkpoint the command fills in each [MASK].
--text: a line, or several with a --text each; or --input: UTF-8 lines, or - for stdin. A
line is a text, two texts with a tab between them, words to tag, question TAB context (or
a SQuAD file), context TAB choice TAB choice, or a JSON object.
--output: a new file, which is complete or not there; stdout without it.
--format: an aligned table, the default on a terminal, or a JSON object for each line.

usage:
  python -m bert_jax.predict --checkpoint W --text TEXT|--input FILE [--output FILE]
"""

import sys

from bert_jax import cli
from bert_jax.errors import UserError
from bert_jax.progress import print_line


def main(argv: list[str]) -> None:
    """Parses the command line, predicts and writes as it goes."""
    answer(argv, __doc__)


def answer(argv: list[str], usage: str, family: str = "") -> None:
    """The command of ``usage``; ``family``: the only one it is for, see Predictor."""
    parser = cli.argument_parser(usage)
    cli.add_checkpoint_flags(parser, batch_size=32, max_length="as trained")
    cli.add_text_flags(parser)
    parser.add_argument("--format", choices=("table", "jsonl"))
    parser.add_argument(
        "--top", type=int, default=5, metavar="K", help="tokens for a [MASK]"
    )
    args = parser.parse_args(argv)
    # Imported late, so that --help and errors of the command line come at once.
    from bert_jax.inference import lines
    from bert_jax.inference.predict import Predictor

    cli.start()
    watched = lines.on_screen(args.output)
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
    given = lines.given_lines(args.text, args.input)
    as_table = (args.format or ("table" if watched else "jsonl")) == "table"
    form = lines.AnswerTable().lines if as_table else lines.json_lines
    rows = truncated = 0
    with lines.open_output(args.output) as file:
        for part in predictor.stream(given.lines, given.name, total=given.total):
            file.writelines(f"{line}\n" for line in form(part))
            file.flush()
            rows += len(part.rows)
            truncated += part.truncated
        if not rows:
            raise UserError(f"{given.name} is empty; expected a row a line")
    print_line(
        f"{rows:,} rows; {truncated:,} of them are not seen whole at max_length="
        f"{predictor.max_length}",
        sys.stderr,
    )


if __name__ == "__main__":
    cli.run(main)
