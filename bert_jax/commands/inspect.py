"""Shows a checkpoint or prepared text.

PATH: a checkpoint (a workdir, a Hugging Face folder, Google's files, a name on a hub). The
command prints its origin, its config, and a table of its parameters. Or a folder that
bert_jax prepare wrote. The command prints counts, lengths, and training examples, in which
shown{right} is a token that the model has to predict.

usage:
  bert_jax inspect PATH [--json]
"""

import json

from bert_jax.commands import cli
from bert_jax.data.examples import MASKINGS
from bert_jax.inference.inspection import describe, inspect
from bert_jax.progress import print_line


def main(argv: list[str]) -> None:
    """Parses the command line and prints the summary."""
    parser = cli.argument_parser(__doc__)
    parser.add_argument("path", metavar="PATH")
    parser.add_argument("--json", action="store_true", help="one object, with all")
    text = parser.add_argument_group("of text")
    text.add_argument("--examples", type=int, default=3, help="to draw (%(default)s)")
    text.add_argument(
        "--sequence_length", type=int, default=128, help="tokens (%(default)s)"
    )
    text.add_argument("--masking", choices=MASKINGS, default="token")
    text.add_argument("--seed", type=int, default=0, help="of a run (%(default)s)")
    args = parser.parse_args(argv)
    found = inspect(
        args.path,
        examples=args.examples,
        sequence_length=args.sequence_length,
        seed=args.seed,
        masking=args.masking,
    )
    text = json.dumps(found, indent=2) if args.json else "\n".join(describe(found))
    print_line(text)
