"""Timing of embedding, shared by the workers of ours and of the peers."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np


def time_embedding(
    embed: Callable[[list[str]], np.ndarray], options: SimpleNamespace
) -> dict:
    """Seconds of all sentences and of single ones; writes the vectors to a file."""

    def seconds(texts: list[str]) -> float:
        nonlocal vectors
        start = time.perf_counter()
        vectors = embed(texts)
        return time.perf_counter() - start

    vectors = np.empty(0)
    lines = Path(options.texts).read_text().splitlines()
    texts = [line for line in lines if line.strip()][: options.count]
    first, *times = [seconds(texts) for _ in range(1 + options.repeats)]
    np.save(options.vectors, vectors)
    # The first call of each sentence may compile.
    singles = [seconds([text]) for text in 2 * texts[: options.singles]]
    return {
        "first_seconds": first,
        "seconds": times,
        "single_seconds": singles[options.singles :],
        "sentences": len(texts),
    }
