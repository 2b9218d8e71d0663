"""Examples from several prepared texts, in random order and with fixed shares."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.examples import ExampleSource
from bert_jax.data.phases import TEXTS, RandomStream
from bert_jax.data.store import TokenStore

# Number of samples among which each text has exactly its share, rounded. The share of a
# text must be at least one sample.
BLOCK = 1 << 16


class Text(NamedTuple):
    """A prepared text, and how a run uses it.

    documents: numbers of the documents from which examples are made. weight: its share of
    the samples, relative to the weights of the other texts.
    """

    store: TokenStore
    documents: np.ndarray
    weight: float = 1.0


class Mixture:
    """The examples of several sources.

    Each block of BLOCK samples has a fixed number of samples of each source, in an order
    that depends on the seed and the number of the block. So the source of a sample, and the
    number of earlier samples of this source, follow from the number of the sample. The
    samples of a source are used in order, one epoch after the other.

    counts: number of samples of each source in a block.
    """

    def __init__(
        self,
        sources: Sequence[ExampleSource],
        weights: Sequence[float],
        random: RandomStream,
    ):
        self.sources = sources
        self.counts = block_counts(weights)
        self._random = random
        self._block = functools.lru_cache(maxsize=2)(self._make_block)

    def draw(self, samples: np.ndarray, rates_B: np.ndarray) -> dict[str, np.ndarray]:
        """A batch of ascending samples; see ExampleSource."""
        sources_B, numbers_B = self.places(samples)
        batch: dict[str, np.ndarray] = {}
        for number, source in enumerate(self.sources):
            where = np.flatnonzero(sources_B == number)
            part = source.draw(numbers_B[where], rates_B[where])
            for name, array in part.items():
                if name not in batch:
                    shape = len(samples), *array.shape[1:]
                    batch[name] = np.empty(shape, array.dtype)
                batch[name][where] = array
        return batch

    def lengths(self, samples: Sequence[int]) -> np.ndarray:
        """Number of tokens of ascending samples, int64; see ExampleSource."""
        sources_B, numbers_B = self.places(np.asarray(samples))
        lengths_B = np.empty(len(samples), np.int64)
        for number, source in enumerate(self.sources):
            where = np.flatnonzero(sources_B == number)
            lengths_B[where] = source.lengths(numbers_B[where])
        return lengths_B

    def places(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The source of each sample, and the number of the sample in this source."""
        blocks_B, offsets_B = np.divmod(samples, BLOCK)
        sources_B = np.empty(len(samples), np.int64)
        numbers_B = np.empty(len(samples), np.int64)
        for block in np.unique(blocks_B).tolist():
            here = blocks_B == block
            sources, ranks = self._block(block)
            sources_B[here] = sources[offsets_B[here]]
            numbers_B[here] = ranks[offsets_B[here]]
        return sources_B, numbers_B + blocks_B * self.counts[sources_B]

    def _make_block(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """The source of each sample of a block, and its rank among the source's samples."""
        rng = np.random.Generator(self._random.bits(TEXTS, block))
        sources = np.repeat(np.arange(len(self.counts)), self.counts)
        sources = rng.permutation(sources)
        ranks = np.empty(BLOCK, np.int64)
        for source, count in enumerate(self.counts.tolist()):
            ranks[sources == source] = np.arange(count)
        return sources, ranks


def block_counts(weights: Sequence[float]) -> np.ndarray:
    """The number of samples of each text in a block, int64. Their sum is BLOCK.

    The largest remainders are rounded up.
    """
    exact = np.array(weights) / np.sum(weights) * BLOCK
    counts = np.floor(exact).astype(np.int64)
    missing = BLOCK - int(counts.sum())
    largest = np.argsort(counts - exact, kind="stable")[:missing]
    counts[largest] += 1
    return counts
