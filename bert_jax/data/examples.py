"""Sentence pairs with masks, drawn on the fly from a token store.

Every example is a pure function of (seed, stream, epoch, index): its random numbers are
a fixed block of a counter-based generator, so that it does not matter which host or
thread draws it, or with which neighbours.
"""

import dataclasses
import threading
from typing import NamedTuple

import numpy as np

from bert_jax.data import masking
from bert_jax.data.plan import EpochPlan, plan_epoch, stops_at
from bert_jax.data.sequences import pair_lengths
from bert_jax.data.store import TokenStore
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.settings import setting

MASKINGS = ("token", "whole_word", "ngram")

# Words of an example's random block: other document, its sentence, then the bits that
# cut A and B, then a key for each position and two words for each prediction.
_CUT_WORDS = 8
_FIXED_WORDS = 2 + 2 * _CUT_WORDS


@dataclasses.dataclass(frozen=True)
class ExampleConfig:
    """How pairs and masks are drawn; the defaults are the original's (A.1 and C.2)."""

    masking: str = setting(
        "token", "what is masked as one: token, whole_word or ngram (runs of words)"
    )
    mask_rate: float = setting(0.15, "share of all tokens that is predicted")
    mask_share: float = setting(0.8, "share of these that becomes [MASK]")
    random_share: float = setting(
        0.1, "share of these that becomes a random token; the rest stays"
    )
    max_ngram: int = setting(3, "ngram: words of a run, at most")
    short_sequence_rate: float = setting(
        0.1, "share of the documents that is cut to a random shorter length"
    )
    next_sentence: bool = setting(
        True,
        "half the pairs have a random second text; False: single texts, no NSP loss",
    )

    def __post_init__(self):
        if self.masking not in MASKINGS:
            raise UserError(
                f"masking={self.masking!r}, expected one of {', '.join(MASKINGS)}; set "
                "--config.data.examples.masking"
            )
        if not 0 < self.mask_rate < 1 or self.mask_share + self.random_share > 1 + 1e-9:
            raise UserError(
                f"mask_rate={self.mask_rate}, mask_share={self.mask_share}, random_share="
                f"{self.random_share}: expected a rate in (0, 1) and shares that add to "
                "at most 1; set --config.data.examples"
            )


class _Spans(NamedTuple):
    """Where the store has the pairs of a batch, and how long they are before they are cut.

    a, b: int64 (B, 2), first and stop of the sentences. a_lengths, b_lengths: int64 (B,),
    in tokens, b_lengths 0 where there is no B. random_next: bool (B,), B does not follow A.
    """

    a: np.ndarray
    b: np.ndarray
    a_lengths: np.ndarray
    b_lengths: np.ndarray
    random_next: np.ndarray

    def totals(self, L: int) -> np.ndarray:
        """Tokens of each pair that is cut to ``L``, [CLS] and [SEP] included."""
        tokens = np.minimum(self.a_lengths + self.b_lengths, L - 3)
        return tokens + 2 + (self.b_lengths > 0)


class ExampleSource:
    """All examples of one stream: documents, lengths and a seed.

    Sample number s is example s % N of epoch s // N. N, the length of an epoch, is the
    number of examples in the plan of epoch 0; another epoch's plan has a few more or
    fewer. Its examples are shuffled, and the surplus is left out or the first ones come
    again with other masks: a random share of well under a percent.

    documents: numbers of the store's documents that take part; B comes from them too.
    stream: keeps streams of one seed apart (training phases, evaluation).
    """

    def __init__(
        self,
        store: TokenStore,
        vocabulary: Tokenizer,
        config: ExampleConfig,
        *,
        sequence_length: int,
        max_predictions: int,
        seed: int,
        stream: int = 0,
        documents: np.ndarray | None = None,
    ):
        if sequence_length < 5:
            raise UserError(
                f"sequence_length={sequence_length}, expected at least 5: [CLS] A [SEP] "
                "B [SEP]; set --config.phases[0].sequence_length"
            )
        if not 1 <= max_predictions <= sequence_length - 3:
            raise UserError(
                f"max_predictions={max_predictions}, expected 1 to sequence_length - 3 = "
                f"{sequence_length - 3}; set --config.phases[0].max_predictions"
            )
        self._store = store
        self._vocabulary = vocabulary
        self._config = config
        self._length = sequence_length
        self._max_predictions = max_predictions
        self._seed = seed
        self._stream = stream
        if documents is None:
            documents = np.arange(len(store.document_sentences) - 1)
        self._documents = documents
        self._begins = store.document_sentences[documents]
        self._ends = store.document_sentences[documents + 1]
        self._plans: dict[int, tuple[EpochPlan, np.ndarray]] = {}
        self._lock = threading.Lock()
        words = _FIXED_WORDS + sequence_length + 2 * max_predictions
        self._counters = -(-words // 4)  # Philox gives four words a count
        self.epoch_size = len(self._plan(0)[0])

    def plan(self, epoch: int) -> EpochPlan:
        """The plan of ``epoch``, before shuffling."""
        return self._plan(epoch)[0]

    def draw(self, first: int, count: int) -> dict[str, np.ndarray]:
        """Draws samples [first, first + count) as one batch.

        Returns input_ids, token_type_ids, attention_mask int32 (count, L); mlm_positions,
        mlm_ids int32 and mlm_weights float32 (count, M); nsp_labels int32 (count,), 0
        where B follows A.
        """
        return self.draw_samples(np.arange(first, first + count))

    def draw_samples(self, samples_B: np.ndarray) -> dict[str, np.ndarray]:
        """Draws the samples with these numbers, ascending; returns what draw() does."""
        parts = [self._draw(*part) for part in self._by_epoch(samples_B)]
        return {k: np.concatenate([part[k] for part in parts]) for k in parts[0]}

    def lengths(self, first: int, count: int) -> np.ndarray:
        """Tokens of the samples [first, first + count), int64, without reading them."""
        parts = []
        for epoch, indices in self._by_epoch(np.arange(first, first + count)):
            spans = self._spans(epoch, indices, self._words(epoch, indices)[:, :2])
            parts.append(spans.totals(self._length))
        return np.concatenate(parts)

    def _by_epoch(self, samples: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """The epochs of ascending samples, and the examples of each epoch."""
        epochs, indices = np.divmod(samples, self.epoch_size)
        known = np.unique(epochs).tolist() or [0]  # no samples: a batch of none
        return [(epoch, indices[epochs == epoch]) for epoch in known]

    def _bits(self, purpose: int, epoch: int, counter: int = 0) -> np.random.Philox:
        # Two key words: the seed; and what the bits are for.
        key = (self._stream << 56) | (purpose << 48) | (self._length << 32) | epoch
        return np.random.Philox(key=[self._seed, key], counter=[counter, 0, 0, 0])

    def _plan(self, epoch: int) -> tuple[EpochPlan, np.ndarray]:
        """The plan of an epoch and its shuffled order; the last two are kept."""
        with self._lock:
            if epoch not in self._plans:
                while len(self._plans) > 1:
                    del self._plans[max(self._plans, key=lambda e: abs(e - epoch))]
                rng = np.random.Generator(self._bits(0, epoch))
                plan = plan_epoch(
                    self._store.sentence_offsets,
                    self._store.document_sentences,
                    self._documents,
                    rng,
                    sequence_length=self._length,
                    short_sequence_rate=self._config.short_sequence_rate,
                    next_sentence=self._config.next_sentence,
                )
                order = rng.permutation(np.arange(len(plan), dtype=np.uint32))
                self._plans[epoch] = plan, order
            return self._plans[epoch]

    def _draw(self, epoch: int, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Draws the examples of one epoch that have these numbers, ascending."""
        L, M = self._length, self._max_predictions
        words_BW = self._words(epoch, indices)
        keys_BL = words_BW[:, _FIXED_WORDS : _FIXED_WORDS + L]
        words_BM2 = words_BW[:, _FIXED_WORDS + L :][:, : 2 * M].reshape(-1, M, 2)
        spans = self._spans(epoch, indices, words_BW[:, :2])
        batch = self._pairs(spans, words_BW[:, 2:_FIXED_WORDS])
        return batch | self._mask(batch, keys_BL, words_BM2)

    def _words(self, epoch: int, indices: np.ndarray) -> np.ndarray:
        """The random block of each example: uint64 (B, words)."""
        words_BW = np.empty((len(indices), 4 * self._counters), np.uint64)
        gaps = np.flatnonzero(np.diff(indices) != 1) + 1
        for rows_CW, run in zip(
            np.split(words_BW, gaps), np.split(indices, gaps), strict=True
        ):
            first = int(run[0]) if len(run) else 0
            bits = self._bits(1, epoch, first * self._counters)
            rows_CW[:] = bits.random_raw(rows_CW.size).reshape(rows_CW.shape)
        return words_BW

    def _spans(self, epoch: int, indices: np.ndarray, words_B2: np.ndarray) -> "_Spans":
        """Where the store has A and B of these examples."""
        plan, order = self._plan(epoch)
        rows = order[indices % len(plan)]
        offsets = self._store.sentence_offsets
        a_starts = plan.first[rows].astype(np.int64)
        a_stops = a_starts + plan.a_count[rows]
        a_lengths = offsets[a_stops] - offsets[a_starts]
        b_starts, b_stops = a_stops.copy(), a_stops + plan.b_count[rows]
        random_next = plan.random_next[rows]
        others, starts = self._other_sentences(
            plan.document[rows][random_next].astype(np.int64),
            a_stops[random_next],
            words_B2[random_next],
        )
        needs = np.maximum(plan.target[rows] - a_lengths, 1)[random_next]
        b_starts[random_next] = starts
        b_stops[random_next] = stops_at(offsets, starts, self._ends[others], needs)
        b_lengths = offsets[b_stops] - offsets[b_starts]
        return _Spans(
            np.stack([a_starts, a_stops], axis=1),
            np.stack([b_starts, b_stops], axis=1),
            a_lengths,
            b_lengths,
            random_next,
        )

    def _pairs(self, spans: "_Spans", words_BW: np.ndarray) -> dict[str, np.ndarray]:
        """Reads and joins A and B, cut to the sequence length."""
        B, L = len(spans.a_lengths), self._length
        a_sizes, b_sizes = pair_lengths(spans.a_lengths, spans.b_lengths, L - 3)
        # How much of what a text loses it loses at its beginning.
        a_fronts = binomial_half(spans.a_lengths - a_sizes, words_BW[:, :_CUT_WORDS])
        b_fronts = binomial_half(spans.b_lengths - b_sizes, words_BW[:, _CUT_WORDS:])
        texts = self._store.read_sentences(np.concatenate([spans.a, spans.b]))

        vocabulary = self._vocabulary
        input_ids_BL = np.full((B, L), vocabulary.pad_id, np.int32)
        token_type_ids_BL = np.zeros((B, L), np.int32)
        totals = spans.totals(L)
        input_ids_BL[:, 0] = vocabulary.cls_id
        for i, (a, b) in enumerate(zip(texts[:B], texts[B:], strict=True)):
            a_end = 1 + a_sizes[i]
            input_ids_BL[i, 1:a_end] = a[a_fronts[i] : a_fronts[i] + a_sizes[i]]
            input_ids_BL[i, a_end] = vocabulary.sep_id
            if b_sizes[i]:
                end = totals[i]
                input_ids_BL[i, a_end + 1 : end - 1] = b[b_fronts[i] :][: b_sizes[i]]
                input_ids_BL[i, end - 1] = vocabulary.sep_id
                token_type_ids_BL[i, a_end + 1 : end] = 1
        return {
            "input_ids": input_ids_BL,
            "token_type_ids": token_type_ids_BL,
            "attention_mask": (np.arange(L) < totals[:, None]).astype(np.int32),
            "nsp_labels": spans.random_next.astype(np.int32),
        }

    def _other_sentences(
        self, documents_B: np.ndarray, a_stops_B: np.ndarray, words_B2: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Another document and a sentence of it for each row.

        With a single document B comes from it too, but never what follows A: the label
        NotNext must be true.
        """
        D = len(self._documents)
        draws_B2 = (words_B2 >> np.uint64(11)) * 2.0**-53
        if D > 1:
            others_B = documents_B + 1 + (draws_B2[:, 0] * (D - 1)).astype(np.int64)
            others_B %= D
        else:
            others_B = documents_B
        begins_B, sizes_B = (
            self._begins[others_B],
            (self._ends - self._begins)[others_B],
        )
        follows_B = (others_B == documents_B) & (a_stops_B < begins_B + sizes_B)
        offsets_B = (draws_B2[:, 1] * (sizes_B - follows_B)).astype(np.int64)
        starts_B = begins_B + offsets_B
        return others_B, starts_B + (follows_B & (starts_B >= a_stops_B))

    def _mask(
        self, batch: dict[str, np.ndarray], keys_BL: np.ndarray, words_BM2: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Chooses and replaces tokens; changes batch["input_ids"] in place."""
        config, vocabulary = self._config, self._vocabulary
        M = self._max_predictions
        input_ids_BL = batch["input_ids"]
        totals_B = batch["attention_mask"].sum(1)
        counts_B = masking.prediction_counts(totals_B, config.mask_rate, M)
        candidates_BL = (
            batch["attention_mask"].astype(bool)
            & (input_ids_BL != vocabulary.cls_id)
            & (input_ids_BL != vocabulary.sep_id)
        )
        if config.masking == "token":
            positions_BM = masking.choose_tokens(candidates_BL, keys_BL, counts_B, M)
        else:
            positions_BM = masking.choose_words(
                candidates_BL,
                vocabulary.continuation[input_ids_BL],
                keys_BL,
                counts_B,
                M,
                max_ngram=config.max_ngram if config.masking == "ngram" else 1,
            )
        return masking.replace(
            input_ids_BL,
            positions_BM,
            words_BM2,
            mask_id=vocabulary.mask_id,
            vocab_size=vocabulary.vocab_size,
            mask_share=config.mask_share,
            random_share=config.random_share,
        )


def binomial_half(sizes_B: np.ndarray, words_BW: np.ndarray) -> np.ndarray:
    """Binomial(size, 1/2) of each row, by counting random bits of its words (uint64).

    A row of more tokens than bits seeds a generator with its first word instead.
    """
    W = words_BW.shape[1]
    bits_BW = np.clip(sizes_B[:, None] - 64 * np.arange(W), 0, 64).astype(np.uint64)
    # A shift by 64 is undefined: shift by 63 and once more.
    used_BW = np.where(bits_BW == 0, np.uint64(0), words_BW)
    dropped_BW = np.where(bits_BW == 0, np.uint64(0), np.uint64(64) - bits_BW)
    counts_B = np.bitwise_count(used_BW >> dropped_BW).sum(1, dtype=np.int64)
    for i in np.flatnonzero(sizes_B > 64 * W):
        rng = np.random.Generator(np.random.Philox(key=int(words_BW[i, 0])))
        counts_B[i] = rng.binomial(int(sizes_B[i]), 0.5)
    return counts_B
