"""Tokenises text into a store that pretraining reads.

--input: files, folders, globs, tfds:NAME[/CONFIG][:SPLIT] or python-docs; plain text,
WikiExtractor, Markdown or JSONL, gzipped or not. Interrupted, the same command finishes
the work. docs/data.md tells what becomes of each format.

usage:
  python -m bert_jax.prepare --input TEXT [TEXT ...] --vocabulary vocab.txt --output DIR
"""

import sys
from pathlib import Path

from bert_jax import cli
from bert_jax.data.corpus import FORMATS
from bert_jax.data.preparation import prepare
from bert_jax.data.tokenizer import load_tokenizer


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
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--format", choices=("auto", *FORMATS), default="auto", help="(%(default)s)"
    )
    parser.add_argument("--text_field", default="text", help="of JSONL and tfds rows")
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
    args = parser.parse_args(argv)

    cli.log_plainly()
    try:
        report = prepare(
            args.input,
            load_tokenizer(args.vocabulary),
            args.output,
            format=args.format,
            text_field=args.text_field,
            workers=args.workers,
            shards=args.shards,
            segmenter=args.segmenter,
        )
    except KeyboardInterrupt:
        print("interrupted; the same command finishes the work", file=sys.stderr)
        return 130
    print(f"{args.output}: {report}")
    return 0


if __name__ == "__main__":
    cli.run(main)
