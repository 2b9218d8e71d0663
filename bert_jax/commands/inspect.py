"""Shows a checkpoint or prepared text.

For a checkpoint it prints the origin, config and parameters. For prepared text
it prints counts, lengths and training examples. shown{right} is a token that
the model has to predict: what the model sees, and in braces the right token.
Checkpoints with these model_types load: bert, megatron-bert, roberta,
xlm-roberta, camembert, distilbert, electra, modernbert, nomic_bert, gte.

usage:
  bert_jax inspect runs/tiny
  bert_jax inspect data/text --examples 5 --masking whole_word
  bert_jax inspect runs/tiny --json

flags:
  PATH                 a checkpoint, or the output of bert_jax prepare
  --json               print one JSON object with everything
  --examples N         prepared text: number of examples (3)
  --sequence_length N  prepared text: tokens of an example (128)
  --masking M          prepared text: token, whole_word, ngram (token)
  --seed N             prepared text: seed of the examples (0)
  --checksums          prepared text: check its files, add missing checksums
"""

import json
from pathlib import Path

from bert_jax.commands import cli, startup
from bert_jax.data.examples import MASKINGS
from bert_jax.inference.inspection import describe, inspect
from bert_jax.interop.find import check_checkpoint
from bert_jax.progress import print_line


def main(argv: list[str]) -> None:
    """Parses the command line and prints the summary."""
    text = {"examples": 3, "sequence_length": 128, "masking": MASKINGS, "seed": 0}
    text["checksums"] = False
    parser = cli.argument_parser(__doc__, {"json": False, **text})
    parser.add_argument("path", metavar="PATH")
    args = parser.parse_args(argv)
    options = dict(vars(args))
    as_json = options.pop("json")
    path = options.pop("path")
    if not Path(path, "index.json").is_file():  # prepared text needs no JAX
        cli.check_unused(parser, args, *text)
        check_checkpoint(path)
        startup.quiet_libtpu()
    summary = inspect(path, **options)
    text = json.dumps(summary, indent=2) if as_json else "\n".join(describe(summary))
    print_line(text)
