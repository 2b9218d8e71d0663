"""How much of pretraining's batches is padding, with pairs in rows of their own and packed.

usage:
  python benchmarks/padding.py --text PATH [--vocabulary vocab.txt] [--batch 256]
    [--batches 32] [--multiples 1,32] [--output FILE.json]

--text: as python -m bert_jax.prepare takes it. --multiples: of which the number of rows is
one, as that of the devices. Drawing is timed too: milliseconds of wall time a batch.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from measure import HERE, markdown, write_report

from bert_jax.data.examples import ExampleConfig
from bert_jax.data.pipeline import Phase, TrainingBatches
from bert_jax.data.preparation import prepare
from bert_jax.data.store import TokenStore
from bert_jax.data.tokenizer_files import load_tokenizer

VOCABULARY = HERE.parent / "tests/golden/tokenizer/uncased_vocab.txt"
LENGTHS = ((128, 20), (512, 77))


def measure(store: TokenStore, tokenizer, options: argparse.Namespace) -> list[dict]:
    """A row for each length and way."""
    rows = []
    documents = np.arange(store.info.documents)
    for length, predictions in LENGTHS:
        for multiple in (0, *map(int, options.multiples.split(","))):
            batches = TrainingBatches(
                store,
                tokenizer,
                (Phase(options.batches, options.batch, length, predictions),),
                ExampleConfig(),
                seed=0,
                documents=documents,
                packing=multiple,
            )
            begin = time.perf_counter()
            masks = [batches[i]["attention_mask"] for i in range(options.batches)]
            seconds = time.perf_counter() - begin
            tokens = sum(map(np.count_nonzero, masks))
            rows.append(
                {
                    "length": length,
                    "pairs": options.batch,
                    "rows": ", ".join(map(str, sorted({len(mask) for mask in masks}))),
                    "rows are a multiple of": multiple or None,
                    "padding": f"{1 - tokens / sum(mask.size for mask in masks):.1%}",
                    "ms a batch": 1e3 * seconds / options.batches,
                }
            )
    return rows


def main() -> None:
    """Prepares the text, draws, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", required=True)
    parser.add_argument("--vocabulary", type=Path, default=VOCABULARY)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--batches", type=int, default=32)
    parser.add_argument("--multiples", default="1,32")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    tokenizer = load_tokenizer(options.vocabulary)
    with tempfile.TemporaryDirectory() as folder:
        prepare([options.text], tokenizer, Path(folder) / "store", workers=1)
        store = TokenStore(Path(folder) / "store")
        info = {"documents": store.info.documents, "tokens": store.info.tokens}
        rows = measure(store, tokenizer, options)
    print(info)
    print(markdown(rows))
    write_report(options.output, info | {"rows": rows})


if __name__ == "__main__":
    main()
