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
--output: a file for the answers, which is replaced if it exists: a table if its name ends
in .csv, else a JSON object for each row. --json: print these objects instead of lines to
read. A fine-tuned checkpoint's answers to a table are written beside the columns of the
table, with names such as predicted_label. Other answers have the id of their row.

usage:
  bert_jax predict --checkpoint W --text TEXT [TEXT ...]|--input FILE [--output FILE]
"""

from pathlib import Path

from bert_jax.commands import cli
from bert_jax.files import check_output


def main(argv: list[str]) -> None:
    """Parses the command line, predicts and writes each answer as soon as it is known."""
    parser = cli.argument_parser(__doc__)
    cli.add_checkpoint_flags(parser, max_length="as trained")
    cli.add_text_flags(parser)
    about = "tokens for a [MASK] (5), or the likeliest labels, choices or spans (all)"
    parser.add_argument("--top", type=int, metavar="K", help=about)
    parser.add_argument("--next_sentence", action="store_true")
    args = parser.parse_args(argv)
    from bert_jax.inference import lines
    from bert_jax.inference.predict import Predictor, predictor
    from bert_jax.interop.load import load
    from bert_jax.tasks.rows import is_table

    form = lines.output_format(args.output, as_json=args.json)
    check_output(args.output, args.input)
    cli.check_columns(parser, args)
    if args.next_sentence:
        cli.check_unused(parser, args, "top")
    cli.start()
    predict = predictor(
        load(args.checkpoint),
        top=args.top,
        next_sentence=args.next_sentence,
        show_progress=False if lines.on_screen(args.output) else None,
        **cli.model_options(args),
    )
    rows = lines.given_rows(predict, args.text, args.input)
    path, stream = Path(args.input or ""), predict.stream
    if isinstance(predict, Predictor) and is_table(path):
        stream = stream if predict.task.source.is_own(path) else predict.beside
    parts = stream(rows, columns=args.columns)
    lines.write_answers(parts, args.output, form)
