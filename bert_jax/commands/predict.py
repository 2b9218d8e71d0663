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
  --output FILE        a .csv or .jsonl file (stdout)
  --json               print JSON lines instead of readable lines
  --top K              likeliest tokens of a [MASK] (5), labels or spans (all)
  --next_sentence      probability that the second text follows the first

[Tasks](tasks.md#forms-of-data) describes the rows and the answers. `--input` also reads a
SQuAD file, and a .conll or .conllu file with a word and its tag on each line. The answer to
a row without columns has the id of the row.
"""

import argparse
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bert_jax.commands import cli
from bert_jax.files import check_output
from bert_jax.settings import from_settings

if TYPE_CHECKING:  # imports JAX
    from bert_jax.inference.evaluation import OnDevices, Part


def main(argv: list[str]) -> None:
    """Parses the command line, predicts, and writes each answer when it is ready."""
    parser = cli.text_parser(__doc__, {"top": {"type": int}, "next_sentence": False})
    args = parser.parse_args(argv)
    from bert_jax.inference import lines
    from bert_jax.inference.evaluation import OnDevices
    from bert_jax.interop.load import load

    form = lines.output_format(args.output, as_json=args.json)
    check_output(args.output, args.input)
    cli.check_columns(parser, args)
    if args.next_sentence:
        cli.check_unused(parser, args, "top")
    cli.start()
    model = OnDevices(load(args.checkpoint), args.checkpoint)
    lines.write_answers(_answers(model, args), args.output, form)


def _answers(model: "OnDevices", args: argparse.Namespace) -> Iterator["Part"]:
    """The answers to the rows of a command line.

    A model that is only pretrained fills in each [MASK]. The answer to a row of a table
    has the columns of the row.
    """
    from bert_jax.inference import evaluation, lines, predict, pretrained
    from bert_jax.tasks.rows import is_table

    settings = cli.model_options(args)
    if lines.on_screen(args.output):
        settings["show_progress"] = False
    if args.top is not None:
        settings["top"] = args.top
    if args.next_sentence:
        read = functools.partial(evaluation.rows_of, columns=args.columns)
        rows = lines.given_rows(args.text, args.input, read)
        options = from_settings(evaluation.Options, settings, "")
        answer = functools.partial(pretrained.next_sentence, model, options=options)
        return lines.beside_columns(answer, rows, args.input)
    if pretrained.fills_masks(model.loaded):
        read = functools.partial(evaluation.rows_of, columns=args.columns, tabs=False)
        rows = lines.given_rows(args.text, args.input, read)
        options = from_settings(pretrained.FillMaskOptions, settings, "")
        answer = functools.partial(pretrained.fill_mask, model, options=options)
        return lines.beside_columns(answer, rows, args.input)
    options = from_settings(predict.PredictOptions, settings, "")
    task = predict.fine_tuned(model, options).task
    read = functools.partial(predict.task_rows, task, columns=args.columns)
    rows = lines.given_rows(args.text, args.input, read)
    path = Path(args.input or "")
    if is_table(path) and not task.form.is_own(path):
        return predict.beside(model, rows, options)
    return predict.predict(model, rows, options)
