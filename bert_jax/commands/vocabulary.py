"""Makes a vocabulary from text: WordPiece as Google's, or SentencePiece.

--input: files, folders, globs, tfds:NAME or python-docs; plain, WikiExtractor, Markdown
or JSONL text, gzipped or not. --output: vocab.txt (WordPiece) or spiece.model. Its
settings are beside it in tokenizer_config.json (NAME_config.json beside a file of another
name). --extend: a vocabulary, or the folder of a checkpoint, that --words
words of the text are added to; nothing else is trained.

usage:
  bert_jax vocabulary --input TEXT [TEXT ...] --output vocab.txt [--size 30522]
"""

import argparse
import itertools
from pathlib import Path

from bert_jax.commands import cli
from bert_jax.data.corpus import left_out, read_documents
from bert_jax.data.corpus_formats import Reading
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.data.vocabulary_training import KINDS, extend_vocabulary, train_vocabulary
from bert_jax.errors import UserError
from bert_jax.files import check_output, ending
from bert_jax.progress import print_line

_ENDINGS = {"wordpiece": ".txt", "sentencepiece": ".model"}


def main(argv: list[str]) -> None:
    """Parses the command line, trains and writes."""
    parser = cli.argument_parser(__doc__)
    cli.add_corpus_flags(parser)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--size", type=int, default=30522, help="tokens (%(default)s)")
    parser.add_argument("--extend", metavar="FILE")
    parser.add_argument("--words", type=int, default=1000, help="(%(default)s)")
    parser.add_argument("--kind", choices=KINDS, default="wordpiece")
    parser.add_argument(
        "--cased", action="store_true", help="keep capitals and accents"
    )
    parser.add_argument(
        "--keep_accents",
        action="store_true",
        help="lower-case text, but keep accents and vowel signs (Hindi, Arabic, ...)",
    )
    args = parser.parse_args(argv)
    _check(args, parser)
    cli.log_to_screen()
    reading = Reading(args.input_format, args.text_field, args.language)
    documents = read_documents(args.input, reading)
    sentences = itertools.chain.from_iterable(documents)
    if args.extend:
        old = load_tokenizer(args.extend)
        tokenizer = extend_vocabulary(old, sentences, args.words)
    else:
        tokenizer = train_vocabulary(
            sentences,
            args.size,
            kind=args.kind,
            lower_case=not args.cased,
            keep_accents=args.keep_accents,
        )
    tokenizer.save_as(args.output)
    print_line(
        f"wrote {tokenizer.vocab_size:,} tokens to {args.output}; "
        f"{left_out(reading.dropped)}"
    )


def _check(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Raises UserError for a flag without effect, and for a wrong --output."""
    unused = {"size", "kind", "cased", "keep_accents"} if args.extend else {"words"}
    if args.cased or args.kind == "sentencepiece":
        unused.add("keep_accents")
    cli.check_unused(parser, args, *unused)
    if ending(args.output) != _ENDINGS[args.kind]:
        raise UserError(
            f"--output={args.output}, expected a {_ENDINGS[args.kind]} file for {args.kind}"
        )
    check_output(args.output, *args.input, args.extend)
