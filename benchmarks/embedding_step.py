"""Seconds to embed sentences with ours; embedding.py runs it beside its peer.

Mean over all tokens of the last layer, scaled to length 1, batches of like lengths. The
last line printed is JSON: seconds of each repeat, cold_seconds of the first call with its
compilations, sentences, peak_bytes, device. The vectors go to --vectors, a .npy file.

usage:
  python benchmarks/embedding_step.py --model DIR --texts FILE --vectors X.npy
    [--count 4000] [--batch 32] [--max_length 256] [--repeats 3]
"""

import json
import time
from argparse import Namespace

import jax
import numpy as np
from workers import embedding_options, process_bytes, read_texts

from bert_jax import cli
from bert_jax.inference.embed import Embedder


def measure(options: Namespace) -> dict:
    """The results as a dictionary for JSON."""
    jax.config.update("jax_enable_compilation_cache", False)  # it is measured
    cli.start()
    texts = read_texts(options.texts, options.count)
    embed = Embedder(
        options.model,
        batch_size=options.batch,
        max_length=options.max_length,
        normalize=True,
    )
    seconds = []
    for _ in range(1 + options.repeats):
        begin = time.perf_counter()
        vectors = embed(texts)
        seconds.append(time.perf_counter() - begin)
    np.save(options.vectors, vectors)
    device = jax.devices()[0]
    return {
        "cold_seconds": seconds[0],
        "seconds": seconds[1:],
        "sentences": len(texts),
        "peak_bytes": (device.memory_stats() or {}).get(
            "peak_bytes_in_use", process_bytes()
        ),
        "device": device.device_kind,
        "versions": {"jax": jax.__version__},
    }


if __name__ == "__main__":
    print(json.dumps(measure(embedding_options(__doc__))))
