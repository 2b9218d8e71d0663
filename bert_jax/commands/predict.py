"""Predicts labels, tags, answers or choices, with probabilities, for rows of text.

--checkpoint: a workdir of bert_jax finetune, or any checkpoint with a head. A pretrained
checkpoint fills in each [MASK]; with --next_sentence it gives the probability that the
second of two texts follows the first.
--text: a row, or several with a --text each; or --input: a table (.csv, .tsv, .jsonl,
.json, .parquet) with the columns that the checkpoint was trained with, a SQuAD file, a
file with a word and its tag on each line (.conll), or UTF-8 lines in any other file; - for
stdin. A row is a text, two texts, words to tag, a question and its context, or a context
and its choices; a line separates texts by tabs. JSON objects are read from .jsonl and
.json files alone.
--output: the file of the answers, which is replaced if it exists; stdout without it.
--format: an aligned table, the default on a terminal, a JSON object for each row, the
default for an --output in .jsonl, or csv, the default for one in .csv. Answers have the
id of their row.

usage:
  bert_jax predict --checkpoint W --text TEXT [TEXT ...]|--input FILE [--output FILE]
"""

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bert_jax.commands import cli
from bert_jax.errors import UserError, counted, printable
from bert_jax.files import check_output
from bert_jax.progress import print_line

if TYPE_CHECKING:
    from bert_jax.inference.lines import Answers


def main(argv: list[str]) -> None:
    """Parses the command line, predicts and writes each answer as soon as it is known."""
    parser = cli.argument_parser(__doc__)
    cli.add_checkpoint_flags(parser, batch_size=32, max_length="as trained")
    cli.add_text_flags(parser)
    parser.add_argument("--format", choices=("table", "jsonl", "csv"))
    parser.add_argument(
        "--top", type=int, default=5, metavar="K", help="tokens for a [MASK]"
    )
    parser.add_argument("--next_sentence", action="store_true")
    args = parser.parse_args(argv)
    from bert_jax.inference import lines

    watched = lines.on_screen(args.output)
    form = args.format or ("table" if watched else "")
    form = form or lines.output_format(args.output, "; change it, or set --format")
    write = {
        "table": lines.table_lines,
        "csv": lines.CsvTable().lines,
        "jsonl": lines.json_lines,
    }[form]
    check_output(args.output, args.input)
    cli.start()
    rows = truncated = 0
    with lines.open_output(args.output) as file:
        for part in (_next_sentence if args.next_sentence else _answers)(args, watched):
            for line in write(part):
                file.write(f"{printable(line) if watched else line}\n")
            file.flush()
            rows += len(part.rows)
            truncated += part.truncated
        if not rows:
            name = lines.input_name(args.input or "--text")
            raise UserError(f"{name} is empty; expected rows")
    print_line(counted(rows, "row"), sys.stderr)
    if truncated:
        line = lines.truncation(truncated, rows, "row", part.task.config.max_length)
        print_line(line, sys.stderr)


def _answers(args: argparse.Namespace, watched: bool) -> Iterator["Answers"]:
    """The answers of the checkpoint's own task, or of filling in [MASK]."""
    from bert_jax.inference.lines import given_rows
    from bert_jax.inference.predict import Predictor

    predictor = Predictor(
        args.checkpoint,
        top=args.top,
        show_progress=False if watched else None,
        **cli.model_options(args),
    )
    texts = args.text and ["\t".join(row) for row in args.text]
    given = given_rows(texts, args.input, tabs=predictor.tabs, read=predictor.placed)
    columns = tuple(args.columns)
    yield from predictor.stream(given.rows, total=given.total, columns=columns)


class _NextSentence:
    """How a pair and its probability are shown in a table."""

    def cells(self, row: Any, answer: dict[str, Any]) -> list[dict[str, str]]:
        return [answer | {"probability": f"{answer['probability']:.4f}"}]


def _next_sentence(args: argparse.Namespace, watched: bool) -> Iterator["Answers"]:
    """The probability that the second text of each pair follows the first."""
    from bert_jax.inference.lines import Answers, given_rows
    from bert_jax.inference.model import load
    from bert_jax.tasks.rows import row_texts

    texts = args.text and ["\t".join(row) for row in args.text]
    rows = given_rows(texts, args.input).rows
    pairs = []
    for where, row, _ in row_texts(rows, args.columns):
        if len(row) != 2:
            raise UserError(f"{where} has 1 value; expected two texts")
        pairs.append(row)
    if not pairs:
        return
    first, second = map(list, zip(*pairs, strict=True))
    found = load(args.checkpoint).next_sentence(
        first, second, **cli.model_options(args)
    )
    answers = [
        {"first": row[0], "second": row[1], "probability": probability}
        for row, probability in zip(pairs, found.tolist(), strict=True)
    ]
    yield Answers(pairs, answers, _NextSentence())
