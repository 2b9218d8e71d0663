"""Tokenises text into a store that pretraining reads.

The same command finishes interrupted work.

usage:
  bert_jax prepare --input TEXT --vocabulary vocab.txt --output data/text
  bert_jax prepare --input wiki --vocabulary CHECKPOINT --output data/text
  bert_jax prepare --input tfds:NAME --vocabulary vocab.txt --output data/text

flags:
  --vocabulary FILE  vocab.txt, spiece.model, or the folder of either
  --output DIR       folder of the store
  --workers N        processes (as many as there are cores, at most 4)
  --shards N         files in the store (by the size of the text)
  --segmenter NAME   finds Chinese words: jieba, or MODULE:FUNCTION
  --input T [T ...]  files, folders, globs, tfds:NAME or python-docs
  --input_format F   auto, paragraphs, lines, markdown, jsonl, wikiextractor
  --text_field NAME  field of the text in JSONL and tfds rows (text)
  --language CODE    language of the text, to split sentences (en)
  --beam OPTIONS     run on Apache Beam with these options

[Text and data](data.md) describes the formats.
"""

import shlex
from pathlib import Path

from bert_jax.commands import cli
from bert_jax.data.beam import prepare_with_beam
from bert_jax.data.preparation import prepare
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.files import is_remote
from bert_jax.progress import print_line


def main(argv: list[str]) -> None:
    """Parses the command line and prepares."""
    defaults = {"vocabulary": str, "output": str, "workers": 0, "shards": 0}
    flags = cli.CORPUS_FLAGS | defaults | {"segmenter": "", "beam": {}}
    settings = vars(cli.argument_parser(__doc__, flags).parse_args(argv))
    inputs, output, beam = (settings.pop(name) for name in ("input", "output", "beam"))
    settings["format"] = settings.pop("input_format")
    cli.log_to_screen()
    tokenizer = load_tokenizer(settings.pop("vocabulary"))
    if beam is not None:
        options = shlex.split(beam)
        report = prepare_with_beam(inputs, tokenizer, output, options, **settings)
    elif is_remote(output):
        raise UserError(f"--output={output} is in an object store, which needs --beam")
    else:
        report = prepare(inputs, tokenizer, Path(output), **settings)
    print_line(f"{output}: {report}")
    size = f"--model.vocab_size={tokenizer.vocab_size}"
    cli.print_next(("train", "--config", "mini", f"--data.path={output}", size))
