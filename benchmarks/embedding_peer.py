"""Seconds to embed sentences with sentence-transformers, on the same weights.

As embedding_step.py, which see. It needs an environment of its own:
  pip install torch==2.13.0 transformers==5.23.0 sentence-transformers

usage:
  python benchmarks/embedding_peer.py --model DIR --texts FILE --vectors X.npy
    [--count 4000] [--batch 32] [--max_length 256] [--repeats 3]
"""

import argparse
import json
import logging
import resource
import time
from pathlib import Path

import numpy as np
import sentence_transformers
import torch


def measure(options):
    """The results as a dictionary for JSON."""
    logging.disable(logging.WARNING)  # a plain BERT folder gets mean pooling: as wanted
    lines = options.texts.read_text().splitlines()
    texts = [line for line in lines if line.strip()][: options.count]
    model = sentence_transformers.SentenceTransformer(str(options.model))
    model.max_seq_length = options.max_length
    seconds = []
    for _ in range(1 + options.repeats):
        begin = time.perf_counter()
        vectors = model.encode(
            texts, batch_size=options.batch, normalize_embeddings=True
        )
        seconds.append(time.perf_counter() - begin)
    np.save(options.vectors, vectors)
    cuda = torch.cuda.is_available()
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "cold_seconds": seconds[0],
        "seconds": seconds[1:],
        "sentences": len(texts),
        "peak_bytes": torch.cuda.max_memory_allocated() if cuda else own,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "versions": {
            "torch": torch.__version__,
            "sentence-transformers": sentence_transformers.__version__,
        },
    }


def parse_options():
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--max_length", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    print(json.dumps(measure(parse_options())))
