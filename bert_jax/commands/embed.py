"""Writes the vectors of texts: of every token and layer, or one for each text.

--input: a table (.csv, .tsv, .jsonl, .json, .parquet), or UTF-8 lines in any other file,
each a text or two with a tab between them; - for stdin. An empty line is an empty text.
--output: X.npz. Pooled, it holds "embeddings", float32 (lines, width),
by default the mean of the last layer over all tokens, [CLS] and [SEP] included. With
--pooling none it holds "values", float32 (tokens of all lines, width), "input_ids", int32
(tokens,), and "offsets", int64 (lines + 1,): line i has the tokens offsets[i] to
offsets[i + 1].
--checkpoint: a Hugging Face folder, Google's bert_model.ckpt, or a workdir of bert_jax.
Inputs may be larger than memory; the disk of --output holds the arrays twice for a while.

usage:
  bert_jax embed --checkpoint DIR --input FILE --output X.npz [--pooling cls]
"""

import sys
from pathlib import Path

from bert_jax.commands import cli
from bert_jax.files import check_output
from bert_jax.progress import print_line


def _layers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main(argv: list[str]) -> None:
    """Parses the command line, embeds and writes."""
    parser = cli.argument_parser(__doc__)
    cli.add_checkpoint_flags(parser)
    parser.add_argument("--input", required=True, metavar="FILE")
    cli.add_columns_flag(parser)
    parser.add_argument("--output", type=Path, required=True, metavar="X")
    parser.add_argument(
        "--layers",
        type=_layers,
        default=[-1],
        metavar="I,J",
        help="concatenated; 0: the embeddings, -1: the last layer (--layers=-1)",
    )
    parser.add_argument(
        "--pooling",
        choices=("none", "mean", "cls", "pooler"),
        default="",
        help="default: the pooling that a model of sentence vectors was trained with, "
        "else mean",
    )
    parser.add_argument(
        "--normalize",
        action="store_true",
        default=None,
        help="scale every vector to length 1; default: as the model does",
    )
    args = parser.parse_args(argv)
    from bert_jax.inference.embed import Embedder, check_ending, write_vectors
    from bert_jax.inference.lines import given_rows

    check_ending(args.output)
    check_output(args.output, args.input)
    cli.check_columns(parser, args)
    cli.start()
    embedder = Embedder(
        args.checkpoint,
        layers=args.layers,
        pooling=args.pooling,
        normalize=args.normalize,
        **cli.model_options(args),
    )
    rows = given_rows(embedder, None, args.input)
    parts = embedder.stream(rows, columns=args.columns)
    print_line(write_vectors(embedder, parts, args.output), sys.stderr)
