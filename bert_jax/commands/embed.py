"""Writes text embeddings: a vector for each text, or for each token.

usage:
  bert_jax embed --checkpoint C --input texts.txt --output vectors.npz
  bert_jax embed --checkpoint C --input texts.csv --output x.npz --pooling cls
  bert_jax embed --checkpoint C --input texts.txt --output x.npz --pooling none

flags:
  --checkpoint C       workdir, Hugging Face folder or name, or Google's file
  --batch_size N       rows in a batch at length 32; fewer if longer (32)
  --max_length N       maximum tokens of a row (as trained, or all positions)
  --dtype D            float32, bfloat16, auto (as the workdir, or float32)
  --input FILE         table (.csv, .tsv, .jsonl, .json, .parquet), lines, or -
  --output X.npz       file of the vectors
  --pooling P          none, mean, cls, pooler (as trained, or mean)
  --columns C [C ...]  columns of a table with the texts (as trained, or text)
  --layers I,J         layers to concatenate, 0: embeddings (--layers=-1)
  --normalize          scale every vector to length 1 (as the model does)
  --prompt TEXT        text before each text (the model's default prompt)
  --prompt_name NAME   name of a prompt of the model, such as query

A row is a text, or two texts with a tab between them. An empty line is an empty text. The
mean is over all tokens, [CLS] and [SEP] included. Inputs may be larger than memory. The
disk needs space for two copies of the [arrays](checkpoints.md#the-folder-that-is-written).
"""

import functools
import sys
from pathlib import Path

from bert_jax.commands import cli
from bert_jax.errors import UserError
from bert_jax.files import check_output
from bert_jax.progress import print_line
from bert_jax.settings import from_settings


def _layers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(f"--layers {text}, expected numbers such as -2,-1") from error


_FLAGS = cli.MODEL_FLAGS | {
    "input": str,
    "output": Path,
    "layers": {"type": _layers, "default": [-1]},
    "pooling": ("", "none", "mean", "cls", "pooler"),
    "normalize": {"action": "store_true", "default": None},
    "prompt": {},
    "prompt_name": {},
}


def main(argv: list[str]) -> None:
    """Parses the command line, embeds and writes."""
    parser = cli.argument_parser(__doc__, _FLAGS)
    args = parser.parse_args(argv)
    from bert_jax.inference import embed
    from bert_jax.inference.evaluation import OnDevices, rows_of
    from bert_jax.inference.lines import given_rows
    from bert_jax.interop.load import load

    embed.check_ending(args.output)
    check_output(args.output, args.input)
    cli.check_columns(parser, args)
    cli.start()
    settings = cli.model_options(args)
    for name in ("layers", "pooling", "normalize", "prompt", "prompt_name"):
        settings[name] = getattr(args, name)
    options = from_settings(embed.EncodeOptions, settings, "")
    model = OnDevices(load(args.checkpoint), args.checkpoint)
    read = functools.partial(rows_of, columns=args.columns)
    rows = given_rows(None, args.input, read)
    parts = embed.encode(model, rows, options)
    print_line(embed.write_vectors(parts, args.output), sys.stderr)
