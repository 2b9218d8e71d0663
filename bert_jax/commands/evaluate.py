"""Scores a checkpoint on labelled data, or on a search, without training.

usage:
  bert_jax evaluate --checkpoint runs/table
  bert_jax evaluate --checkpoint runs/table --input new.csv --columns review
  bert_jax evaluate --checkpoint NAME --search scifact --output scores

flags:
  --checkpoint C       workdir, Hugging Face folder or name, or Google's file
  --batch_size N       rows in a batch at length 32; fewer if longer (32)
  --max_length N       maximum tokens of a row (as trained, or all positions)
  --dtype D            float32, bfloat16, auto (as the workdir, or float32)
  --input FILE         table, tagged words or SQuAD's JSON (all splits)
  --data.dir DIR       folder of the splits (as trained)
  --search DIR         folder of queries, corpus and qrels, as in BEIR
  --query_prompt T     text before each query (the model's prompt)
  --document_prompt T  text before each text of the corpus (the model's prompt)
  --output DIR         new folder for predictions, errors and scores
  --columns C [C ...]  columns of a table with the texts (as trained, or text)

Without `--input` and `--search` the command scores all labelled splits of the run's folder,
or of `--data.dir`. `--output` contains scores.json and the
[predictions](tasks.md#prediction-files).
[Evaluate a search](guides/vectors.md#evaluate-a-search) explains `--search`.
"""

import argparse
import contextlib
from pathlib import Path

from bert_jax.commands import cli
from bert_jax.progress import print_line
from bert_jax.settings import from_settings

_FLAGS = cli.MODEL_FLAGS | {
    "input": "",
    "data.dir": "",
    "search": "",
    "query_prompt": {},
    "document_prompt": {},
    "output": "",
}


def main(argv: list[str]) -> None:
    """Parses the command line, scores each split, and writes the --output."""
    parser = cli.argument_parser(__doc__, _FLAGS)
    args = parser.parse_args(argv)
    _check(parser, args)
    from bert_jax.files import new_folder, write_json

    cli.start()
    # A folder that is not empty is refused before the model is loaded.
    output = new_folder(Path(args.output)) if args.output else contextlib.nullcontext()
    with output as folder:
        if args.search:
            scores = {"search": _search_scores(args)}
        else:
            scores = _split_scores(args, folder)
        if folder:
            write_json(folder / "scores.json", scores)
    for name, values in scores.items():
        print_line(" ".join([f"{name}:", *(f"{k} {v:.2f}" for k, v in values.items())]))
    if not args.output:
        cli.print_next(("evaluate", *argv, "--output", "scores"))


def _check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Ends the command if flags have no effect together."""
    if args.search and (args.input or vars(args)["data.dir"] or args.columns):
        parser.error(
            "--search cannot be combined with --input, --data.dir or --columns"
        )
    if args.input and vars(args)["data.dir"]:
        parser.error("--input cannot be combined with --data.dir")
    if not args.search and (args.query_prompt, args.document_prompt) != (None, None):
        parser.error("--query_prompt and --document_prompt need --search")


def _search_scores(args: argparse.Namespace) -> dict[str, float]:
    """The scores of a search in the files of --search."""
    from bert_jax.inference.model import load
    from bert_jax.inference.search_files import read_search

    queries, corpus, relevant, excluded = read_search(Path(args.search))
    options = cli.model_options(args)
    options["excluded"] = excluded
    options["query_prompt"] = args.query_prompt
    options["document_prompt"] = args.document_prompt
    return load(args.checkpoint).evaluate_search(queries, corpus, relevant, **options)


def _split_scores(
    args: argparse.Namespace, folder: Path | None
) -> dict[str, dict[str, float]]:
    """The scores of all labelled splits. Writes predictions into a folder."""
    from bert_jax import figures
    from bert_jax.inference.evaluation import OnDevices, Options
    from bert_jax.inference.mistakes import write_mistakes
    from bert_jax.inference.scores import evaluate
    from bert_jax.interop.load import load
    from bert_jax.tasks.task import write_answers

    options = from_settings(Options, cli.model_options(args), "")
    model = OnDevices(load(args.checkpoint), args.checkpoint)
    data = None
    if args.input:
        data = Path(args.input)
    more = {"directory": vars(args)["data.dir"], "columns": tuple(args.columns)}
    evaluations = [*evaluate(model, data, options, **more)]
    if folder:
        for task, split, evaluation in evaluations:
            content = split.rows, evaluation.predictions
            write_answers(task, *content, split.name, folder)
            write_mistakes(folder, task, split.name, *content)
        figures.save_confusions(folder)
    return {split.name: evaluation.scores for _, split, evaluation in evaluations}
