"""Seconds to embed sentences with sentence-transformers, on the same weights.

As embedding_step.py, which see. It needs an environment of its own:
  pip install torch==2.13.0 transformers==5.23.0 sentence-transformers psutil

usage:
  python benchmarks/embedding_peer.py --model DIR --texts FILE --vectors X.npy
    [--count 4000] [--batch 32] [--max_length 256] [--repeats 3]
"""

import json
import logging
import time

import numpy as np
import sentence_transformers
import torch
from workers import embedding_options, process_bytes, read_texts


def measure(options):
    """The results as a dictionary for JSON."""
    logging.disable(logging.WARNING)  # a plain BERT folder gets mean pooling: as wanted
    texts = read_texts(options.texts, options.count)
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
    return {
        "cold_seconds": seconds[0],
        "seconds": seconds[1:],
        "sentences": len(texts),
        "peak_bytes": torch.cuda.max_memory_allocated() if cuda else process_bytes(),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "versions": {
            "torch": torch.__version__,
            "sentence-transformers": sentence_transformers.__version__,
        },
    }


if __name__ == "__main__":
    print(json.dumps(measure(embedding_options(__doc__))))
