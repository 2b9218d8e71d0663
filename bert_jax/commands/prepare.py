"""Tokenises text into a store that pretraining reads.

--input: files, folders, globs, tfds:NAME[/CONFIG][:SPLIT] or python-docs; plain text,
WikiExtractor, Markdown or JSONL, gzipped or not. Interrupted, the same command finishes
the work. docs/data.md tells what becomes of each format.

usage:
  bert_jax prepare --input TEXT [TEXT ...] --vocabulary vocab.txt --output DIR
"""

import shlex
import sys
from pathlib import Path

from bert_jax.commands import cli
from bert_jax.data.beam import prepare_with_beam
from bert_jax.data.corpus import FORMATS
from bert_jax.data.preparation import prepare
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.files import is_remote
from bert_jax.progress import print_line


def main(argv: list[str]) -> int:
    """Parses the command line and prepares; 130 after Ctrl-C."""
    parser = cli.argument_parser(__doc__)
    parser.add_argument("--input", nargs="+", required=True, metavar="TEXT")
    parser.add_argument(
        "--vocabulary",
        required=True,
        metavar="FILE",
        help="vocab.txt, a SentencePiece .model, or the folder of one",
    )
    parser.add_argument("--output", required=True, metavar="DIR")
    parser.add_argument(
        "--format", choices=("auto", *FORMATS), default="auto", help="(%(default)s)"
    )
    parser.add_argument("--text_field", default="text", help="of JSONL and tfds rows")
    parser.add_argument(
        "--language",
        default="en",
        metavar="CODE",
        help="language whose abbreviations do not end a sentence (%(default)s)",
    )
    parser.add_argument(
        "--workers", type=int, default=0, help="processes (the cores, at most 4)"
    )
    parser.add_argument("--shards", type=int, default=0, help="files in the store")
    parser.add_argument(
        "--segmenter",
        default="",
        metavar="NAME",
        help="what finds words without spaces between them: jieba, or MODULE:FUNCTION",
    )
    parser.add_argument(
        "--beam",
        metavar="OPTIONS",
        help='run as an Apache Beam pipeline: --beam="--runner=DataflowRunner ..."',
    )
    args = parser.parse_args(argv)

    cli.log_plainly()
    given = (args.input, load_tokenizer(args.vocabulary))
    settings = {
        name: getattr(args, name)
        for name in (
            *("format", "text_field", "language", "workers", "shards", "segmenter"),
        )
    }
    try:
        if args.beam is not None:
            options = shlex.split(args.beam)
            report = prepare_with_beam(*given, args.output, options, **settings)
        elif is_remote(args.output):
            raise UserError(
                f"--output={args.output}, expected a folder of this machine; only --beam "
                "writes to an object store"
            )
        else:
            report = prepare(*given, Path(args.output), **settings)
    except KeyboardInterrupt:
        print_line("interrupted; the same command finishes the work", sys.stderr)
        return 130
    print_line(f"{args.output}: {report}")
    return 0
