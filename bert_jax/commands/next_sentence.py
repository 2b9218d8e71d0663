"""Tells how likely a second text follows a first one, by the NSP head.

--checkpoint: a pretrained checkpoint, one with an NSP head.
--text: the two texts; may be repeated. Or --input: a table (.csv, .tsv, .jsonl, .json,
.parquet), or UTF-8 lines of two texts with a tab between them; - for stdin.
--output: a file with a JSON object for each pair: "first", "second" and "probability"
that the second follows; a CSV table if its name ends in .csv; stdout without it, and a
table on a terminal.

usage:
  bert_jax next_sentence --checkpoint W --text "Open it." "Then read the file."
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bert_jax.commands import cli
from bert_jax.errors import UserError, printable
from bert_jax.files import check_output

if TYPE_CHECKING:
    from bert_jax.inference.lines import Answers


def main(argv: list[str]) -> None:
    """Parses the command line, asks the model and writes."""
    parser = cli.argument_parser(__doc__)
    cli.add_checkpoint_flag(parser)
    given = parser.add_mutually_exclusive_group(required=True)
    pair = ("FIRST", "SECOND")
    given.add_argument("--text", nargs=2, action="append", metavar=pair, type=cli.text)
    given.add_argument("--input", metavar="FILE")
    cli.add_columns_flag(parser)
    parser.add_argument("--output", default="-", metavar="FILE")
    args = parser.parse_args(argv)
    # Imported late, so that --help and errors of the command line come at once.
    from bert_jax.inference import lines
    from bert_jax.inference.model import load
    from bert_jax.tasks.rows import row_texts

    csv = lines.output_format(args.output) == "csv"
    check_output(args.output, args.input)
    cli.start()
    model = load(args.checkpoint, **({"dtype": args.dtype} if args.dtype else {}))
    pairs = args.text or []
    if args.input:
        rows = lines.given_rows(None, args.input).rows
        for where, texts, _ in row_texts(rows, args.columns):
            if len(texts) != 2:
                raise UserError(f"{where} has 1 value; expected two texts")
            pairs.append(texts)
    if not pairs:
        raise UserError(f"{lines.input_name(args.input)} is empty; expected two texts")
    probabilities = model.next_sentence(*map(list, zip(*pairs, strict=True)))
    answers = [
        {"first": first, "second": second, "probability": probability}
        for (first, second), probability in zip(
            pairs, probabilities.tolist(), strict=True
        )
    ]
    form = lines.CsvTable().lines if csv else lines.json_lines
    if lines.on_screen(args.output):
        form = _shown
    with lines.open_output(args.output) as file:
        for line in form(lines.Answers(pairs, answers)):
            file.write(f"{line}\n")


def _shown(part: "Answers") -> Iterator[str]:
    """A line for each pair on a terminal."""
    for answer in part.answers:
        texts = f"{answer['first']}  |  {answer['second']}"
        yield printable(f"{answer['probability']:7.2%}  {texts}")
