"""What a worker and its peer share: flags, sizes, sentences, memory, time.

The standard library, numpy and psutil alone: the two run in environments of their own.
"""

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil

# Under the names of Hugging Face's config.json, what is not BASE.
SIZES = {
    "base": {},
    "large": dict(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
    ),
    "mini": dict(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
    ),
}


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser whose --help is the script's docstring."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def step_parser(
    description: str | None, dtypes: tuple[str, ...], attention: str
) -> argparse.ArgumentParser:
    """The flags of pretraining steps; ``attention``: the default."""
    flags = parser(description)
    flags.add_argument("--size", choices=SIZES, required=True)
    flags.add_argument("--batch", type=int, required=True)
    flags.add_argument("--length", type=int, required=True)
    flags.add_argument("--predictions", type=int, required=True)
    flags.add_argument("--dropout", type=float, default=0.1)
    flags.add_argument("--attention_dropout", type=float, default=0.1)
    flags.add_argument("--dtype", choices=dtypes, default="float32")
    flags.add_argument("--attention", default=attention)
    flags.add_argument("--steps", type=int, default=5, help="timed together")
    flags.add_argument("--repeats", type=int, default=3)
    return flags


def embedding_parser(description: str | None) -> argparse.ArgumentParser:
    """The flags of embedding."""
    flags = parser(description)
    flags.add_argument("--model", type=Path, required=True)
    flags.add_argument("--texts", type=Path, required=True)
    flags.add_argument("--vectors", type=Path, required=True)
    flags.add_argument("--count", type=int, default=4000)
    flags.add_argument("--batch", type=int, default=32)
    flags.add_argument("--max_length", type=int, default=256)
    flags.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    flags.add_argument("--singles", type=int, default=0, help="one by one, too")
    flags.add_argument("--repeats", type=int, default=3)
    return flags


def time_embedding(
    embed: Callable[[list[str]], np.ndarray], options: argparse.Namespace
) -> dict:
    """What a worker of embedding prints, but for its memory and device.

    Writes the vectors to options.vectors.
    """
    texts = read_texts(options.texts, options.count)
    seconds = []
    for _ in range(1 + options.repeats):
        begin = time.perf_counter()
        vectors = embed(texts)
        seconds.append(time.perf_counter() - begin)
    np.save(options.vectors, vectors)
    singles = []
    for text in 2 * texts[: options.singles]:  # the first time they are compiled
        begin = time.perf_counter()
        embed([text])
        singles.append(time.perf_counter() - begin)
    return {
        "cold_seconds": seconds[0],
        "seconds": seconds[1:],
        "single_seconds": singles[options.singles :],
        "sentences": len(texts),
    }


def read_texts(path: Path, count: int) -> list[str]:
    """The first lines with text."""
    return [line for line in path.read_text().splitlines() if line.strip()][:count]


def process_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def process_seconds() -> float:
    """Since this process was started."""
    return time.time() - psutil.Process().create_time()
