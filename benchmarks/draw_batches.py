"""How fast pretraining batches are drawn, against drawing them as the original does.

Ours reads a token store, pairs and masks for each epoch anew; the peer is a plain Python
re-statement of create_pretraining_data.py's loops over the same tokens in memory, one
random number at a time. CPU seconds of one core, so that a busy machine counts less.

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
    count = 0
    for number, document in enumerate(documents):
        for a, b in peer_pairs(rng, documents, number, document, length - 3):
            peer_mask(rng, tokenizer, a, b, predictions)
            count += 1
    return count / (time.process_time() - start)


def peer_pairs(rng, documents, number, document, longest):
    """Token lists A and B, cut to ``longest`` together."""
    target = longest if rng.random() >= 0.1 else rng.randint(2, longest)
    chunk, size, i = [], 0, 0
    while i < len(document):
        chunk.append(document[i])
        size += len(document[i])
        if i == len(document) - 1 or size >= target:
            cut = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
            a = [token for sentence in chunk[:cut] for token in sentence]
            b = []
            if len(chunk) == 1 or rng.random() < 0.5:
                other = number
                while other == number:
                    other = rng.randrange(len(documents))
                first = rng.randrange(len(documents[other]))
                for sentence in documents[other][first:]:
                    b.extend(sentence)
                    if len(b) >= target - len(a):
                        break
                i -= len(chunk) - cut
            else:
                b = [token for sentence in chunk[cut:] for token in sentence]
            while len(a) + len(b) > longest:
                side = a if len(a) > len(b) else b
                side.pop(0 if rng.random() < 0.5 else -1)
            yield a, b
            chunk, size = [], 0
        i += 1


def peer_mask(rng, tokenizer, a, b, predictions):
    """The masked sequence and its labels."""
    tokens = [tokenizer.cls_id, *a, tokenizer.sep_id, *b, tokenizer.sep_id]
    places = [i for i in range(1, len(tokens) - 1) if i != len(a) + 1]
    rng.shuffle(places)
    labels = {}
    for place in sorted(places[: min(predictions, max(1, round(len(tokens) * 0.15)))]):
        labels[place] = tokens[place]
        draw = rng.random()
        if draw < 0.8:
            tokens[place] = tokenizer.mask_id
        elif draw < 0.9:
            tokens[place] = rng.randrange(tokenizer.vocab_size)
    return tokens, labels


def main():
    """Prints a table, or with --json one object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    tokenizer = load_tokenizer(GOLDEN / "tokenizer" / "uncased_vocab.txt")
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        prepare([str(TEXT)], tokenizer, Path(directory), workers=1)
        store = TokenStore(directory)
        sentences = store.read_sentences(
            [(i, i + 1) for i in range(store.info.sentences)]
        )
        bounds = store.document_sentences
        documents = [
            [ids.tolist() for ids in sentences[a:b]]
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
                    peer(documents, tokenizer, length, predictions)
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
