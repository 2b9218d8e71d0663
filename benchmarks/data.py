"""CPU seconds to tokenise and prepare text and to draw pretraining batches.

Our tokenizer and the tokenizers library use the same vocabulary. The table also has the
time of the original's create_pretraining_data.py, which also draws pairs and masks, five
times over. Packed batches have a multiple of --rows rows. All times are CPU seconds of all
threads of one process, the minimum of --repeats measurements.

usage:
  python benchmarks/data.py [--text FILE --format NAME] [--vocabulary vocab.txt]
    [--repeats 3] [--batch 256] [--batches 16] [--rows 1] [--output FILE.json]
    [--result data]

Without --text the benchmark reads Moby-Dick, with one sentence on each line and as
paragraphs. --format: --input_format of `bert_jax prepare`.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from common import (
    SENTENCES,
    VOCABULARY,
    make_parser,
    markdown,
    publish,
    write_report,
)

from bert_jax.data.examples import ExampleConfig
from bert_jax.data.mixture import Text
from bert_jax.data.phases import Phase
from bert_jax.data.pipeline import TrainingBatches
from bert_jax.data.preparation import prepare
from bert_jax.data.store import TokenStore
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.progress import show_progress

# Tokenising and drawing Moby-Dick at length 128 with dupe_factor 5, in TensorFlow 1 on one
# core of an Intel Xeon.
ORIGINAL_SECONDS = 7.0
# Length, masked tokens, masking.
CASES = ((128, 20, "token"), (512, 77, "token"), (128, 20, "whole_word"))


def least_seconds(repeats: int, work: Callable, *arguments: Any) -> tuple[float, Any]:
    """The minimum of the CPU seconds of a function, and its result."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        result = work(*arguments)
        seconds.append(time.process_time() - start)
    return min(seconds), result


# A tokenizer remembers words, so each measurement loads its own.


def tokenise(vocabulary: Path, texts: list[str]) -> None:
    """Our tokenizer."""
    load_tokenizer(vocabulary).encode_batch(texts)


def tokenise_peer(vocabulary: Path, texts: list[str]) -> None:
    """The tokenizers library."""
    library = tokenizers.BertWordPieceTokenizer(str(vocabulary))
    library.encode_batch(texts, add_special_tokens=False)


def prepare_text(vocabulary: Path, text: Path, format: str, folder: str) -> TokenStore:
    """Reads, splits and tokenises a text, and writes a new store into a folder."""
    store = Path(tempfile.mkdtemp(dir=folder))
    prepare([str(text)], load_tokenizer(vocabulary), store, format=format, workers=1)
    return TokenStore(store)


def draw(batches: TrainingBatches, count: int) -> list[np.ndarray]:
    """Draws batches and returns their attention masks."""
    return [batches[i]["attention_mask"] for i in range(count)]


def draw_rows(store: TokenStore, options: argparse.Namespace) -> Iterator[dict]:
    """Rows of drawing batches from a store."""
    tokenizer = load_tokenizer(options.vocabulary)
    for length, predictions, masking in CASES:
        for packing in (0, options.rows):
            batches = TrainingBatches(
                [Text(store, np.arange(store.info.documents))],
                tokenizer,
                (Phase(options.batches, options.batch, length, predictions),),
                ExampleConfig(masking=masking),
                seed=0,
                packing=packing,
            )
            seconds, masks = least_seconds(
                options.repeats, draw, batches, options.batches
            )
            tokens = sum(map(np.count_nonzero, masks))
            yield {
                "length": length,
                "masking": masking,
                "pairs": options.batch,
                "packed": "yes" if packing else "no",
                "rows": ", ".join(map(str, sorted({len(mask) for mask in masks}))),
                "padding": f"{1 - tokens / sum(mask.size for mask in masks):.1%}",
                "CPU ms a batch": 1000 * seconds / options.batches,
            }


def to_paragraphs(content: str) -> str:
    """The same documents with eight sentences in a paragraph."""
    documents = []
    for document in content.strip().split("\n\n"):
        sentences = document.split("\n")
        parts = [" ".join(sentences[i : i + 8]) for i in range(0, len(sentences), 8)]
        documents.append("\n\n".join(parts))
    return "\n\n\n".join(documents) + "\n"


def publish_tables(table: list[dict], rows: list[dict], start: str | None) -> None:
    """Publishes the preparation, the tokenizer beside its peer, and each draw."""
    *prepared, ours, peer = table
    publish(
        start,
        "prepare",
        what=f"{prepared[0]['MB']:.3g} MB of text split, tokenised and stored",
        value=prepared[0]["CPU s"],
        unit="CPU s",
    )
    publish(
        start,
        "tokenise",
        what=f"{ours['MB']:.3g} MB of text tokenised",
        value=ours["CPU s"],
        unit="CPU s",
        peer="tokenizers",
        peer_value=peer["CPU s"],
        ratio=peer["CPU s"] / ours["CPU s"],
    )
    for row in rows:
        packed = "packed" if row["packed"] == "yes" else "unpacked"
        publish(
            start,
            *("draw", str(row["length"]), row["masking"], packed),
            what=f"{row['pairs']} pairs of length {row['length']} drawn with masks "
            f"({row['masking']}, {packed})",
            value=row["CPU ms a batch"],
            unit="CPU ms",
        )


def main() -> None:
    """Measures and prints the two tables."""
    parser = make_parser(__doc__)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--format", default="auto")
    parser.add_argument("--vocabulary", type=Path, default=VOCABULARY)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--rows", type=int, default=1)
    options = parser.parse_args()
    show_progress(False)
    table = []

    def add(what: str, path: Path, seconds: float) -> None:
        size = path.stat().st_size / 1e6
        row = {"what": what, "CPU s": seconds, "MB": size, "MB/s": size / seconds}
        table.append(row)

    with tempfile.TemporaryDirectory() as folder:
        paragraphs = Path(folder) / "paragraphs.txt"
        paragraphs.write_text(to_paragraphs(SENTENCES.read_text()))
        texts = [(paragraphs, "paragraphs"), (SENTENCES, "lines")]
        if options.text:
            texts = [(options.text, options.format)]
        for path, format in texts:
            case = options.vocabulary, path, format, folder
            seconds, store = least_seconds(options.repeats, prepare_text, *case)
            add(f"prepare {path.name}: bert_jax", path, seconds)
        if not options.text:
            add("prepare: create_pretraining_data.py", SENTENCES, ORIGINAL_SECONDS)
        lines = path.read_text().splitlines()
        for name, work in (("bert_jax", tokenise), ("tokenizers", tokenise_peer)):
            seconds, _ = least_seconds(options.repeats, work, options.vocabulary, lines)
            add(f"tokenise: {name}", path, seconds)
        print(markdown(table), end="\n\n")
        rows = list(draw_rows(store, options))
    print(markdown(rows))
    publish_tables(table, rows, options.result)
    write_report(options.output, text=table, draw=rows)


if __name__ == "__main__":
    main()
