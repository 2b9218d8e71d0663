"""Predicts labels, tags, answers or choices for texts; fills in each [MASK].

usage:
  bert_jax predict --checkpoint runs/tiny --text "Returns a [MASK] of names."
  bert_jax predict --checkpoint runs/table --input new.csv --output out.csv
  bert_jax predict --checkpoint runs/tiny --next_sentence --text "Stay." "I go."

flags:
  --checkpoint C       workdir, Hugging Face folder or name, or Google's file
  --batch_size N       rows in a batch at length 32; fewer if longer (32)
  --max_length N       maximum tokens of a row (as trained, or all positions)
  --dtype D            float32, bfloat16, auto (as the workdir, or float32)
  --text T [T ...]     one row: a text, or two; may be repeated
  --input FILE         table (.csv, .tsv, .jsonl, .json, .parquet), lines, or -
  --columns C [C ...]  columns of a table with the texts (as trained, or text)
  --output FILE        a .csv file, or another for JSON lines (stdout)
  --json               print JSON lines instead of readable lines
  --top K              likeliest tokens of a [MASK] (5), labels or spans (all)
  --next_sentence      probability that the second text follows the first

[Tasks](tasks.md#forms-of-data) describes the rows and the answers. `--input` also reads a
SQuAD file, and a .conll or .conllu file with a word and its tag on each line. Rows without
columns have the id of their row in the answer.
"""

from pathlib import Path

from bert_jax.commands import cli
from bert_jax.files import check_output


def main(argv: list[str]) -> None:
    """Parses the command line, predicts and writes each answer as soon as it is known."""
    parser = cli.text_parser(__doc__, {"top": 0, "next_sentence": False})
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
        top=args.top or None,
        next_sentence=args.next_sentence,
        show_progress=False if lines.on_screen(args.output) else None,
        **cli.model_options(args),
    )
    rows = lines.given_rows(predict, args.text, args.input)
    path, stream = Path(args.input or ""), predict.stream
    if isinstance(predict, Predictor) and is_table(path):
        stream = stream if predict.task.form.is_own(path) else predict.beside
    parts = stream(rows, columns=args.columns)
    lines.write_answers(parts, args.output, form)
