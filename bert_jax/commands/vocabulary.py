"""Makes a vocabulary from text: WordPiece as Google's, or SentencePiece.

--input: files, folders, globs, tfds:NAME or python-docs; plain, WikiExtractor, Markdown
or JSONL text, gzipped or not. --output: vocab.txt (WordPiece) or spiece.model; the
tokenizer_config.json beside it tells cased from uncased (NAME_config.json beside a file
of another name). --extend: a vocabulary, or the folder of a checkpoint, that --words
words of the text are added to; nothing else is trained.

usage:
  bert_jax vocabulary --input TEXT [TEXT ...] --output vocab.txt [--size 30522]
"""

import collections
import itertools
from collections.abc import Sequence
from pathlib import Path

from bert_jax.commands import cli
from bert_jax.data.corpus import FORMATS, left_out, read_documents
from bert_jax.data.corpus_formats import Documents
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.data.vocabulary_training import (
    KINDS,
    balanced,
    extend_vocabulary,
    train_vocabulary,
)
from bert_jax.errors import UserError
from bert_jax.files import check_output, ending
from bert_jax.progress import print_line


def main(argv: list[str]) -> None:
    """Parses the command line, trains and writes."""
    parser = cli.argument_parser(__doc__)
    parser.add_argument("--input", nargs="+", required=True, metavar="TEXT")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--size", type=int, default=30522, help="tokens (%(default)s)")
    parser.add_argument("--extend", metavar="FILE")
    parser.add_argument("--words", type=int, default=1000, help="(%(default)s)")
    parser.add_argument(
        "--smoothing",
        type=float,
        metavar="0.7",
        help="each --input is a language; its share is to the power of this",
    )
    parser.add_argument("--kind", choices=KINDS, default="wordpiece")
    parser.add_argument(
        "--cased", action="store_true", help="keep capitals and accents"
    )
    parser.add_argument(
        "--keep_accents",
        action="store_true",
        help="lower-case text, but keep accents and vowel signs (Hindi, Arabic, ...)",
    )
    parser.add_argument("--min_frequency", type=int, default=2, metavar="N")
    parser.add_argument("--format", choices=("auto", *FORMATS), default="auto")
    parser.add_argument("--text_field", default="text", help="of JSONL and tfds rows")
    parser.add_argument(
        "--language",
        default="en",
        metavar="CODE",
        help="language whose abbreviations do not end a sentence (%(default)s)",
    )
    args = parser.parse_args(argv)
    for case, applies, names in (
        ("with --extend", args.extend, ("size", "kind", "cased", "keep_accents")),
        ("without --extend", not args.extend, ("words",)),
        ("with --cased", args.cased, ("keep_accents",)),
        (
            "with --kind sentencepiece",
            args.kind == "sentencepiece",
            ("keep_accents", "min_frequency"),
        ),
    ):
        for name in names if applies else ():
            if getattr(args, name) != parser.get_default(name):
                raise UserError(f"--{name} changes nothing {case}; leave it out")
    suffix = {"wordpiece": ".txt", "sentencepiece": ".model"}[args.kind]
    if ending(args.output) != suffix:
        raise UserError(
            f"--output={args.output}, expected a {suffix} file for {args.kind}"
        )
    check_output(args.output, *args.input, args.extend)
    cli.log_plainly()
    groups = [args.input] if args.smoothing is None else [[x] for x in args.input]
    dropped: collections.Counter[str] = collections.Counter()
    documents = [
        read_documents(
            group,
            format=args.format,
            text_field=args.text_field,
            language=args.language,
            dropped=dropped,
        )
        for group in groups
    ]
    # Errors in the inputs are found before a folder is made.
    languages = [
        itertools.chain(_first(own, group), itertools.chain.from_iterable(own))
        for own, group in zip(documents, groups, strict=True)
    ]
    args.output.parent.mkdir(parents=True, exist_ok=True)
    sentences = languages[0]
    if args.smoothing is not None:
        sentences = balanced(languages, args.smoothing)
    if args.extend:
        tokenizer = extend_vocabulary(
            load_tokenizer(args.extend),
            sentences,
            args.words,
            min_frequency=args.min_frequency,
        )
    else:
        tokenizer = train_vocabulary(
            sentences,
            args.size,
            kind=args.kind,
            lower_case=not args.cased,
            keep_accents=args.keep_accents,
            min_frequency=args.min_frequency,
        )
        if tokenizer.vocab_size < args.size:
            print_line(
                f"the text gives {tokenizer.vocab_size:,} tokens, fewer than "
                f"{args.size:,}"
            )
    tokenizer.save_as(args.output)
    print_line(
        f"wrote {tokenizer.vocab_size:,} tokens to {args.output}; {left_out(dropped)}"
    )


def _first(documents: Documents, inputs: Sequence[str]) -> list[str]:
    """The first document; UserError if there is none."""
    if document := next(documents, None):
        return document
    raise UserError(
        f"no text was found in {', '.join(inputs)}; expected at least one sentence: check "
        "--input and --format"
    )
