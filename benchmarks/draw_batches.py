"""How fast pretraining batches are drawn, against drawing them as the original does.

Ours reads a token store, pairs and masks for each epoch anew. One peer is reference_data's
re-statement of create_pretraining_data.py's loops over the same tokens in memory, another,
with --peer_python (see draw_batches_peer.py), transformers' collator, which only masks. CPU
seconds of one core, so that a busy machine counts less.

usage:
  python benchmarks/draw_batches.py [--repeats 5] [--peer_python PEER/bin/python]
    [--output FILE.json]
"""

import argparse
import itertools
import random
import tempfile
import time
from pathlib import Path

import numpy as np
from measure import (
    HERE,
    markdown,
    median_and_spread,
    run_worker,
    write_report,
)
from reference_data import ReferenceTokenizer, instances

from bert_jax.data.examples import ExampleConfig, ExampleSource
from bert_jax.data.preparation import prepare
from bert_jax.data.store import TokenStore
from bert_jax.data.tokenizer import load_tokenizer

GOLDEN = HERE.parent / "tests" / "golden"
TEXT = GOLDEN / "pretraining_data" / "moby_dick_sentences.txt"
VOCABULARY = GOLDEN / "tokenizer" / "uncased_vocab.txt"
CASES = (
    (128, 20, "token"),
    (512, 77, "token"),
    (128, 20, "whole_word"),
    (512, 77, "whole_word"),
    (128, 20, "ngram"),
)


def ours(
    store, tokenizer, length, predictions, masking, count=4096, batch=256
) -> float:
    """Sequences a CPU second, the plan of the epoch included."""
    config = ExampleConfig(masking=masking)
    start = time.process_time()
    source = ExampleSource(
        store,
        tokenizer,
        config,
        sequence_length=length,
        max_predictions=predictions,
        seed=0,
    )
    for first in range(0, count, batch):
        source.draw(first, batch)
    return count / (time.process_time() - start)


def original(documents, tokenizer, length, predictions) -> float:
    """Sequences a CPU second of one pass over the documents, token masking."""
    rng = random.Random(0)
    start = time.process_time()
    count = sum(
        1
        for number in range(len(documents))
        for _ in instances(documents, number, tokenizer, rng, length, predictions)
    )
    return count / (time.process_time() - start)


def collator(sentences, tokenizer, length, python, folder, repeats) -> dict:
    """What draw_batches_peer.py gives for the text in blocks of ``length``."""
    tokens = np.concatenate(sentences)
    blocks = len(tokens) // (length - 2)
    text = np.reshape(tokens[: blocks * (length - 2)], (blocks, length - 2))
    ends = [np.full((blocks, 1), i) for i in (tokenizer.cls_id, tokenizer.sep_id)]
    path = folder / f"blocks{length}.npy"
    np.save(path, np.concatenate([ends[0], text, ends[1]], axis=1))
    return run_worker(
        [
            *(python, HERE / "draw_batches_peer.py", "--blocks", path),
            *("--vocabulary", VOCABULARY, "--repeats", repeats),
        ]
    )


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer_python")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    tokenizer, reference = load_tokenizer(VOCABULARY), ReferenceTokenizer(VOCABULARY)
    rows, table = [], []
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        prepare([str(TEXT)], tokenizer, folder / "store", workers=1)
        store = TokenStore(folder / "store")
        sentences = store.read_sentences(
            [(i, i + 1) for i in range(store.info.sentences)]
        )
        documents = [
            [[tokenizer.tokens[i] for i in ids] for ids in sentences[a:b]]
            for a, b in itertools.pairwise(store.document_sentences)
        ]
        for length, predictions, masking in CASES:
            case = (length, predictions)
            row = {"length": length, "masking": masking, "ours": [], "original": []}
            for _ in range(options.repeats):
                row["ours"].append(ours(store, tokenizer, *case, masking))
                if masking == "token":
                    row["original"].append(original(documents, reference, *case))
            if masking == "token" and options.peer_python:
                row["collator"] = collator(
                    sentences,
                    tokenizer,
                    length,
                    options.peer_python,
                    folder,
                    options.repeats,
                )
            rows.append(row)
            table.append(summary(row))
    print(f"sequences a CPU second, median of {options.repeats} (spread)")
    print(markdown(table))
    write_report(options.output, {"rows": rows})


def summary(row: dict) -> dict:
    """A line of the table."""
    mine, spread = median_and_spread(row["ours"])
    line = {
        "length": row["length"],
        "masking": row["masking"],
        "ours": f"{mine:,.0f} ({spread:.0%})",
    }
    peers = {"as the original draws": row["original"]}
    if "collator" in row:
        found = row["collator"]
        if "error" in found:
            return line | {"transformers' collator": found["error"]}
        peers["transformers' collator, no pairs"] = found["sequences_per_second"]
    for name, rates in peers.items():
        if rates:
            median, spread = median_and_spread(rates)
            line |= {
                name: f"{median:,.0f} ({spread:.0%})",
                f"ours / {name}": mine / median,
            }
    return line


if __name__ == "__main__":
    main()
