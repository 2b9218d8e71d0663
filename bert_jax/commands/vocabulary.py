"""Makes a vocabulary from text: WordPiece like Google's, SentencePiece or BPE.

Its settings are written to tokenizer_config.json in the same folder.

usage:
  bert_jax vocabulary --input TEXT --output vocab.txt
  bert_jax vocabulary --input TEXT --output bpe/tokenizer.json --kind bpe
  bert_jax vocabulary --input TEXT --output vocab.txt --extend models/english

flags:
  --output FILE      vocab.txt; spiece.model or tokenizer.json for other kinds
  --size N           number of tokens (30522)
  --kind K           wordpiece, sentencepiece or bpe (wordpiece)
  --cased            keep capitals and accents
  --keep_accents     keep accents and vowel signs, which Hindi needs
  --extend FILE      vocabulary or checkpoint that gets more words
  --words N          maximum number of words that --extend adds (1000)
  --input T [T ...]  files, folders, globs, tfds:NAME or python-docs
  --input_format F   auto, paragraphs, lines, markdown, jsonl, wikiextractor
  --text_field NAME  field of the text in JSONL and tfds rows (text)
  --language CODE    language of the text, to split sentences (en)

For sentencepiece the output must end in .model. bpe is a byte-level BPE with RoBERTa's
special tokens, and its output must end in .json. If the output has another name than
vocab.txt, spiece.model or tokenizer.json, such as NAME.txt, its settings are in
NAME_config.json. With --extend nothing is trained: words of the text that the vocabulary
splits into several tokens, or lacks, are added to it. Only WordPiece vocabularies can be
extended.
"""

from bert_jax.commands import cli
from bert_jax.data.vocabulary_training import KINDS
from bert_jax.errors import UserError
from bert_jax.files import expanded
from bert_jax.interop.find import check_checkpoint
from bert_jax.progress import print_line
from bert_jax.training import text_functions

_FLAGS = cli.CORPUS_FLAGS | {
    "output": str,
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
    settings = vars(parser.parse_args(argv))
    cli.log_to_screen()
    tokenizer = text_functions.vocabulary(**settings)
    output = settings["output"]
    print_line(f"wrote {tokenizer.vocab_size:,} tokens to {output}")
    flags = ("input_format", "text_field", "language")
    changed = [name for name in flags if settings[name] != parser.get_default(name)]
    same = [f"--{name}={settings[name]}" for name in changed]
    made = "--vocabulary", output, "--output", "data/text"
    cli.print_next(("prepare", "--input", *settings["input"], *made, *same))
    start = settings["extend"]
    if start and _is_checkpoint(start):
        size = f"--model.vocab_size={tokenizer.vocab_size}"
        further = "train", "--config", "further_pretraining", f"--init_from={start}"
        cli.print_next((*further, "--data.path=data/text", size))


def _is_checkpoint(path: str) -> bool:
    """Whether ``path`` is a checkpoint, and not only a vocabulary or a store."""
    try:
        check_checkpoint(expanded(path))
    except UserError:
        return False
    return True
