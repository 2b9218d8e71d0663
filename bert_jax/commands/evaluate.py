"""Scores a fine-tuned checkpoint on labelled data, without training.

usage:
  bert_jax evaluate --checkpoint runs/table
  bert_jax evaluate --checkpoint runs/table --input new.csv --columns review
  bert_jax evaluate --checkpoint runs/table --output scores

flags:
  --checkpoint C       workdir, Hugging Face folder or name, or Google's file
  --batch_size N       rows in a batch at length 32; fewer if longer (32)
  --max_length N       maximum tokens of a row (as trained, or all positions)
  --dtype D            float32, bfloat16, auto (as the workdir, or float32)
  --input FILE         table, tagged words or SQuAD's JSON (all splits)
  --data.dir DIR       folder of the splits (as trained)
  --output DIR         new folder for predictions, errors and scores
  --columns C [C ...]  columns of a table with the texts (as trained, or text)

Without `--input` the command scores all labelled splits of the run's folder, or of
`--data.dir`. `--output` gets scores.json and the
[predictions](tasks.md#files-of-predictions).
"""

import contextlib
from pathlib import Path

from bert_jax.commands import cli
from bert_jax.progress import print_line
from bert_jax.settings import from_settings


def main(argv: list[str]) -> None:
    """Parses the command line, scores each split, and writes the --output."""
    flags = cli.MODEL_FLAGS | {"input": "", "data.dir": "", "output": ""}
    args = cli.argument_parser(__doc__, flags).parse_args(argv)
    from bert_jax import figures
    from bert_jax.files import new_folder, write_json
    from bert_jax.inference.evaluation import OnDevices, Options
    from bert_jax.inference.mistakes import write_mistakes
    from bert_jax.inference.scores import evaluate
    from bert_jax.interop.load import load
    from bert_jax.tasks.task import write_answers

    cli.start()
    # A folder that is not empty is refused before the model is loaded.
    output = new_folder(Path(args.output)) if args.output else contextlib.nullcontext()
    with output as folder:
        options = from_settings(Options, cli.model_options(args), "")
        model = OnDevices(load(args.checkpoint), args.checkpoint)
        data = None
        if args.input:
            data = Path(args.input)
        more = {"directory": vars(args)["data.dir"], "columns": tuple(args.columns)}
        evaluations = [*evaluate(model, data, options, **more)]
        scores = {split.name: evaluation.scores for _, split, evaluation in evaluations}
        if folder:
            for task, split, evaluation in evaluations:
                content = split.rows, evaluation.predictions
                write_answers(task, *content, split.name, folder)
                write_mistakes(folder, task, split.name, *content)
            figures.save_confusions(folder)
            write_json(folder / "scores.json", scores)
    for name, values in scores.items():
        print_line(" ".join([f"{name}:", *(f"{k} {v:.2f}" for k, v in values.items())]))
    if not args.output:
        cli.print_next(("evaluate", *argv, "--output", "scores"))
