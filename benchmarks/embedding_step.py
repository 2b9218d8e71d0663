"""Seconds to embed sentences with ours; embedding.py runs it beside its peers.

Mean over all tokens of the last layer, scaled to length 1, batches of like lengths. The
last line printed is JSON: seconds of each repeat, cold_seconds of the first call with its
compilations, single_seconds of sentences one by one, sentences, peak_bytes, device. The
vectors go to --vectors, a .npy file.

usage:
  python benchmarks/embedding_step.py --model DIR --texts FILE --vectors X.npy
    [--count 4000] [--batch 32] [--max_length 256] [--dtype float32] [--singles 0]
    [--repeats 3]
"""

import json
from argparse import Namespace

import jax
from workers import embedding_parser, process_bytes, time_embedding

from bert_jax import cli
from bert_jax.inference.embed import Embedder


def measure(options: Namespace) -> dict:
    """The results as a dictionary for JSON."""
    jax.config.update("jax_enable_compilation_cache", False)  # it is measured
    cli.start()
    embed = Embedder(
        options.model,
        batch_size=options.batch,
        max_length=options.max_length,
        dtype=options.dtype,
        normalize=True,
    )
    times = time_embedding(embed, options)
    device = jax.devices()[0]
    memory = (device.memory_stats() or {}).get("peak_bytes_in_use", process_bytes())
    return times | {
        "peak_bytes": memory,
        "device": device.device_kind,
        "versions": {"jax": jax.__version__},
    }


if __name__ == "__main__":
    print(json.dumps(measure(embedding_parser(__doc__).parse_args())))
