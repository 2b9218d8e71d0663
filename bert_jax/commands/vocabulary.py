"""Makes a vocabulary from text: WordPiece as Google's, or SentencePiece.

Its settings are written beside it, in tokenizer_config.json.

usage:
  bert_jax vocabulary --input TEXT --output vocab.txt
  bert_jax vocabulary --input TEXT --output spiece.model --kind sentencepiece
  bert_jax vocabulary --input TEXT --output vocab.txt --extend CHECKPOINT

flags:
  --output FILE      vocab.txt, or spiece.model for sentencepiece
  --size N           number of tokens (30522)
  --kind K           wordpiece or sentencepiece (wordpiece)
  --cased            keep capitals and accents
  --keep_accents     keep accents and vowel signs, as Hindi needs
  --extend FILE      vocabulary or checkpoint that gets more words
  --words N          number of words that --extend adds (1000)
  --input T [T ...]  files, folders, globs, tfds:NAME or python-docs
  --input_format F   auto, paragraphs, lines, markdown, jsonl, wikiextractor
  --text_field NAME  field of the text in JSONL and tfds rows (text)
  --language CODE    language of the text, to split sentences (en)

If the output has another name than vocab.txt or spiece.model, such as NAME.txt, its
settings are in NAME_config.json. With --extend nothing is trained: words of the text that
the vocabulary splits into several tokens, or does not know, are added to it. Only WordPiece
vocabularies can be extended.
"""

import argparse
import itertools
from pathlib import Path

from bert_jax.commands import cli
from bert_jax.data.corpus import left_out, read_documents
from bert_jax.data.corpus_formats import Reading
from bert_jax.data.tokenizer import save_vocabulary
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.data.vocabulary_training import KINDS, extend_vocabulary, train_vocabulary
from bert_jax.errors import UserError
from bert_jax.files import check_output, ending
from bert_jax.progress import print_line

_ENDINGS = {"wordpiece": ".txt", "sentencepiece": ".model"}
_FLAGS = cli.CORPUS_FLAGS | {
    "output": Path,
    "size": 30522,
    "kind": KINDS,
    "cased": False,
    "keep_accents": False,
    "extend": "",
    "words": 1000,
}


def main(argv: list[str]) -> None:
    """Parses the command line, trains and writes."""
    parser = cli.argument_parser(__doc__, _FLAGS)
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
    save_vocabulary(tokenizer, args.output)
    print_line(
        f"wrote {tokenizer.vocab_size:,} tokens to {args.output}; "
        f"{left_out(reading.dropped)}"
    )
    given, flags = vars(args), ("input_format", "text_field", "language")
    changed = [x for x in flags if given[x] != parser.get_default(x)]
    same = [f"--{x}={given[x]}" for x in changed]
    made = "--vocabulary", str(args.output), "--output", "data/text"
    cli.print_next(("prepare", "--input", *args.input, *made, *same))


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
