"""Shows what is at PATH: a checkpoint, prepared text or a vocabulary.

Of a checkpoint (a workdir, a Hugging Face folder, Google's files, a name on a hub): what it
is, its config, and a table of its parameters. Of text that bert_jax prepare
wrote: counts, lengths, and examples as training draws them; shown{right} is a token that
the model has to predict. Of a vocabulary: its size, and how many tokens a word takes.

usage:
  bert_jax inspect PATH [--json]
"""

import json

from bert_jax.commands import cli
from bert_jax.data.examples import MASKINGS
from bert_jax.inference.inspection import describe, inspect
from bert_jax.progress import print_line


def main(argv: list[str]) -> None:
    """Parses the command line, looks and prints."""
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
    vocabulary = parser.add_argument_group("of a vocabulary")
    vocabulary.add_argument(
        "--input",
        nargs="+",
        default=["python-docs"],
        metavar="TEXT",
        help="whose words are cut, named as for prepare (python-docs)",
    )
    vocabulary.add_argument(
        "--text_field", default="text", help="of JSONL and tfds rows (%(default)s)"
    )
    args = parser.parse_args(argv)
    found = inspect(
        args.path,
        sample=args.input,
        text_field=args.text_field,
        examples=args.examples,
        sequence_length=args.sequence_length,
        seed=args.seed,
        masking=args.masking,
    )
    text = json.dumps(found, indent=2) if args.json else "\n".join(describe(found))
    print_line(text)
