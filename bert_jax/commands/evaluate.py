"""Scores a fine-tuned checkpoint on labelled data, without training.

--checkpoint: a workdir of bert_jax finetune, or any checkpoint with a head.
--input: a file with labels: a table (.csv, .tsv, .jsonl, .json, .parquet), tagged words, or
SQuAD's JSON. Without it all labelled splits of the task are scored, from the
folder that the run read, or from --data.dir.
--columns: the columns of the text or texts, if their names are not as trained.
--output: a new folder for the predictions in the task's official form, the worst errors,
the confusion matrix, as numbers and as a picture, and scores.json.

usage:
  bert_jax evaluate --checkpoint W [--input FILE] [--output DIR]
"""

import contextlib
from pathlib import Path

from bert_jax.commands import cli
from bert_jax.progress import print_line


def main(argv: list[str]) -> None:
    """Parses the command line, scores each split, and writes the --output."""
    parser = cli.argument_parser(__doc__)
    cli.add_checkpoint_flags(parser, max_length="as trained")
    parser.add_argument("--input", type=Path, metavar="FILE")
    parser.add_argument("--data.dir", dest="folder", default="", metavar="DIR")
    cli.add_columns_flag(parser)
    parser.add_argument("--output", type=Path, metavar="DIR")
    args = parser.parse_args(argv)
    from bert_jax import figures
    from bert_jax.files import new_folder, write_json
    from bert_jax.inference.mistakes import write_mistakes
    from bert_jax.inference.predict import Predictor

    cli.start()
    # A folder that is not empty is refused before the model is loaded.
    output = new_folder(args.output) if args.output else contextlib.nullcontext()
    with output as folder:
        predictor = Predictor(args.checkpoint, **cli.model_options(args))
        columns = tuple(args.columns)
        found = [
            *predictor.evaluate(args.input, directory=args.folder, columns=columns)
        ]
        scores = {split.name: evaluation.scores for _, split, evaluation in found}
        if folder:
            for task, split, evaluation in found:
                content = split.rows, evaluation.predictions
                task.write(*content, split.name, folder)
                write_mistakes(folder, task, split.name, *content)
            figures.save_confusions(folder)
            write_json(folder / "scores.json", scores)
    for name, values in scores.items():
        print_line(" ".join([f"{name}:", *(f"{k} {v:.2f}" for k, v in values.items())]))
