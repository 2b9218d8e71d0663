"""The worker of embedding.py that times bert_jax."""

import functools
from types import SimpleNamespace

import jax
from common import answer, process_bytes
from embedding_timing import time_embedding

import bert_jax
from bert_jax.commands import cli


def measure(options: SimpleNamespace) -> dict:
    """The timings, and the peak memory of the device."""
    cli.start()
    embed = functools.partial(
        bert_jax.load(options.model).encode,
        batch_size=options.batch,
        max_length=options.max_length,
        dtype=options.dtype,
        normalize=True,
    )
    times = time_embedding(embed, options)
    device = jax.devices()[0]
    memory = device.memory_stats() or {}
    return times | {
        "peak_bytes": memory.get("peak_bytes_in_use", process_bytes()),
        "device": device.device_kind,
        "versions": {"jax": jax.__version__},
    }


if __name__ == "__main__":
    answer(measure)
