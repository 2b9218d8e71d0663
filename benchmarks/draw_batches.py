"""How fast pretraining batches are drawn, against drawing them as the original does.

Ours reads a token store, pairs and masks for each epoch anew; the peer is reference_data's
re-statement of create_pretraining_data.py's loops over the same tokens in memory. CPU
seconds of one core, so that a busy machine counts less.

usage:
  python benchmarks/draw_batches.py [--json] [--runs 5]
"""

import argparse
import itertools
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from reference_data import ReferenceTokenizer, instances

from bert_jax.data.examples import ExampleConfig, ExampleSource
from bert_jax.data.preparation import prepare
from bert_jax.data.store import TokenStore
from bert_jax.data.tokenizer import load_tokenizer

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"
TEXT = GOLDEN / "pretraining_data" / "moby_dick_sentences.txt"
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


def peer(documents, tokenizer, length, predictions) -> float:
    """Sequences a CPU second of one pass over the documents, token masking."""
    rng = random.Random(0)
    start = time.process_time()
    count = sum(
        1
        for number in range(len(documents))
        for _ in instances(documents, number, tokenizer, rng, length, predictions)
    )
    return count / (time.process_time() - start)


def main():
    """Prints a table, or with --json one object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    vocabulary = GOLDEN / "tokenizer" / "uncased_vocab.txt"
    tokenizer, reference = load_tokenizer(vocabulary), ReferenceTokenizer(vocabulary)
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        prepare([str(TEXT)], tokenizer, Path(directory), workers=1)
        store = TokenStore(directory)
        sentences = store.read_sentences(
            [(i, i + 1) for i in range(store.info.sentences)]
        )
        bounds = store.document_sentences
        documents = [
            [[tokenizer.pieces[i] for i in ids] for ids in sentences[a:b]]
            for a, b in itertools.pairwise(bounds)
        ]
        for length, predictions, masking in CASES:
            rates = [
                ours(store, tokenizer, length, predictions, masking)
                for _ in range(args.runs)
            ]
            row = {"length": length, "masking": masking, "sequences_per_second": rates}
            if masking == "token":
                row["peer"] = [
                    peer(documents, reference, length, predictions)
                    for _ in range(args.runs)
                ]
            rows.append(row)
    if args.json:
        print(json.dumps(rows))
        return
    print("sequences per CPU second, median of", args.runs, "runs (spread)")
    for row in rows:
        mine = statistics.median(row["sequences_per_second"])
        spread = np.ptp(row["sequences_per_second"]) / mine
        line = f"{row['length']:4d} {row['masking']:11s} {mine:9,.0f} ({spread:.0%})"
        if "peer" in row:
            other = statistics.median(row["peer"])
            line += (
                f"   as the original draws: {other:7,.0f}   ratio {mine / other:.1f}"
            )
        print(line)


if __name__ == "__main__":
    main()
