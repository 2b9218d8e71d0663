"""Tokenises text into a store that pretraining reads.

--input: files, folders, globs, tfds:NAME[/CONFIG][:SPLIT] or python-docs; plain text,
WikiExtractor, Markdown or JSONL, gzipped or not. docs/data.md describes the formats.
After an interruption the same command finishes the work.

usage:
  bert_jax prepare --input TEXT [TEXT ...] --vocabulary vocab.txt --output DIR
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
    parser = cli.argument_parser(__doc__)
    cli.add_corpus_flags(parser)
    parser.add_argument(
        "--vocabulary",
        required=True,
        metavar="FILE",
        help="vocab.txt, a SentencePiece .model, or the folder of one",
    )
    parser.add_argument("--output", required=True, metavar="DIR")
    parser.add_argument("--workers", type=int, default=0, help="processes (at most 4)")
    parser.add_argument("--shards", type=int, default=0, help="files in the store")
    parser.add_argument(
        "--segmenter",
        default="",
        metavar="NAME",
        help="finds words without spaces between them: jieba, or MODULE:FUNCTION",
    )
    parser.add_argument(
        "--beam",
        metavar="OPTIONS",
        help='run as an Apache Beam pipeline: --beam="--runner=DataflowRunner ..."',
    )
    settings = vars(parser.parse_args(argv))
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
