"""Phases of pretraining: their sizes, mask rates and random numbers."""

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from bert_jax.data.masking import uniform
from bert_jax.settings import setting

# Purposes of random numbers. PLAN: an epoch's examples and their order. CONTENT: cuts and
# masks, which a host draws only for its own examples. PLACES: document and sentence of B,
# which every host draws for all examples. RATES: mask rates. TEXTS: the text of each sample
# of a mixture.
PLAN, CONTENT, PLACES, RATES, TEXTS = range(5)
_LENGTH = 128  # default number of tokens of a sequence


class RandomStream(NamedTuple):
    """Random numbers as a pure function of seed, number and sequence length.

    number: separates the streams of one seed (phases, evaluation).
    """

    seed: int
    number: int
    sequence_length: int

    def bits(self, purpose: int, epoch: int = 0, counter: int = 0) -> np.random.Philox:
        """A generator of random bits that starts at ``counter``."""
        # The key has two words: the seed, and the purpose of the bits.
        key = (
            (self.number << 56) | (purpose << 48) | (self.sequence_length << 32) | epoch
        )
        return np.random.Philox(key=[self.seed, key], counter=[counter, 0, 0, 0])

    def words(
        self, purpose: int, epoch: int, indices: np.ndarray, count: int
    ) -> np.ndarray:
        """At least ``count`` random words of each example: uint64 (B, words)."""
        counters = -(-int(count) // 4)  # Philox makes four words from each counter
        parts = [np.empty(0, np.uint64)]
        for run in np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1):
            if len(run):
                bits = self.bits(purpose, epoch, int(run[0]) * counters)
                parts.append(bits.random_raw(len(run) * 4 * counters))
        return np.concatenate(parts).reshape(len(indices), 4 * counters)


class MaskRates(NamedTuple):
    """The mask rate of each sequence of a phase: the share of its tokens to mask.

    It changes linearly from ``first`` in the first step to ``last`` in the last step. With
    a ``spread`` each sequence draws its rate uniformly, from ``spread`` below the rate of
    its step to ``spread`` above it.
    """

    first: float
    last: float
    spread: float
    steps: int
    batch_size: int

    @property
    def smallest(self) -> float:
        """The smallest possible rate."""
        return min(self.first, self.last) - self.spread

    @property
    def largest(self) -> float:
        """The largest possible rate."""
        return max(self.first, self.last) + self.spread

    def of(self, samples: np.ndarray, random: RandomStream) -> np.ndarray:
        """The rates of samples of the phase, float64 (B,). random: the phase's stream."""
        progress_B = (samples // self.batch_size) / max(self.steps - 1, 1)
        rates_B = self.first + progress_B * (self.last - self.first)
        if self.spread:
            words_BW = random.words(RATES, 0, samples, 1)
            rates_B += self.spread * (2 * uniform(words_BW[:, 0]) - 1)
        return rates_B


@dataclasses.dataclass(frozen=True)
class Phase:
    """Steps at one batch size and sequence length. All phases share one schedule."""

    steps: int = setting(doc="number of training steps", least=1)
    batch_size: int = setting(32, "sequences of a step, over all devices", least=1)
    sequence_length: int = setting(
        0,
        "maximum number of tokens of a sequence, with [CLS] and two [SEP], at least 5; 0: "
        "128, or the number of positions of the model if that is smaller",
        least=0,
    )
    max_predictions: int = setting(
        0,
        "maximum number of masked tokens of a sequence; 0: the largest mask rate of the "
        "phase times sequence_length, rounded up",
        least=0,
    )
    mask_rate: float = setting(
        0.0, "share of tokens to mask; 0: data.examples.mask_rate", least=0, below=1
    )
    last_mask_rate: float = setting(
        0.0,
        "share of tokens to mask in the last step, to which mask_rate changes linearly; "
        "0: mask_rate",
        least=0,
        below=1,
    )
    mask_rate_spread: float = setting(
        0.0,
        "each sequence draws its share of masked tokens uniformly, from this much below "
        "the mask rate of the step to this much above it",
        least=0,
        below=1,
    )

    causal: bool = setting(
        False,
        "train this phase left to right, as objectives.causal does. The other phases train "
        "objective. The model is causal if the last phase is",
    )

    def mask_rates(self, default: float) -> MaskRates:
        """The mask rates. default: the rate if the phase has none of its own."""
        first = self.mask_rate or default
        last = self.last_mask_rate or first
        return MaskRates(
            first, last, self.mask_rate_spread, self.steps, self.batch_size
        )

    def predictions(self, mask_rate: float) -> int:
        """The number of masked tokens of a sequence of full length."""
        masked = math.ceil(round(mask_rate * self.sequence_length, 6))
        return max(1, min(masked, self.sequence_length - 3))

    def places(self, default: float) -> int:
        """The number of places for masked tokens in a sequence.

        default: the mask rate if the phase has none of its own.
        """
        largest = self.mask_rates(default).largest
        return self.max_predictions or self.predictions(largest)

    def completed(self, max_positions: int) -> "Phase":
        """The phase with its sequence length in place of 0."""
        length = self.sequence_length or min(_LENGTH, max_positions)
        return dataclasses.replace(self, sequence_length=length)
