"""Tokenises text into a store that pretraining reads.

The same command finishes interrupted work.

usage:
  bert_jax prepare --input TEXT --vocabulary vocab.txt --output data/text
  bert_jax prepare --input wiki --vocabulary models/english --output data/text
  bert_jax prepare --input tfds:NAME --vocabulary vocab.txt --output data/text

flags:
  --vocabulary FILE  vocab.txt, spiece.model, tokenizer.json, or a checkpoint
  --output DIR       folder of the store
  --workers N        processes (one for each core, at most 4)
  --shards N         files in the store (depends on the size of the text)
  --segmenter NAME   finds Chinese words: jieba, or MODULE:FUNCTION
  --input T [T ...]  files, folders, globs, tfds:NAME or python-docs
  --input_format F   auto, paragraphs, lines, markdown, jsonl, wikiextractor
  --text_field NAME  field of the text in JSONL and tfds rows (text)
  --language CODE    language of the text, to split sentences (en)
  --beam OPTIONS     run on Apache Beam with these options

[Text and data](data.md) describes the formats.
"""

from pathlib import Path

from bert_jax.commands import cli
from bert_jax.interop.find import hub_name
from bert_jax.progress import print_line
from bert_jax.training import text_functions


def main(argv: list[str]) -> None:
    """Parses the command line and prepares."""
    defaults = {"vocabulary": str, "output": str, "workers": 0, "shards": 0}
    flags = cli.CORPUS_FLAGS | defaults | {"segmenter": "", "beam": {}}
    settings = vars(cli.argument_parser(__doc__, flags).parse_args(argv))
    cli.log_to_screen()
    report = text_functions.prepare(**settings)
    output = settings["output"]
    print_line(f"{output}: {report}")
    source, path = settings["vocabulary"], f"--data.path={output}"
    config, options = "mini", (path, f"--model.vocab_size={report.info.vocab_size}")
    if Path(source, "config.json").is_file() or hub_name(source):  # a checkpoint
        config, options = "further_pretraining", (f"--init_from={source}", path)
    cli.print_next(("train", "--config", config, *options))
