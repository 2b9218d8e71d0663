"""Sentence pairs with masks, made on the fly from a token store.

Every example is a pure function of (seed, stream, epoch, index). Its random numbers are a
fixed block of a counter-based generator, so it does not depend on hosts, threads or the
other examples of a batch.
"""

import dataclasses
import functools
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data import masking
from bert_jax.data.phases import CONTENT, PLACES, PLAN, RandomStream
from bert_jax.data.sequences import pair_lengths
from bert_jax.data.store import TokenStore
from bert_jax.data.text_arrays import padded_arrays
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.settings import check_ranges, setting

MASKINGS = ("token", "whole_word", "ngram")

# Number of random words for the document and the sentence of B.
_PLACE_WORDS = 2
# The CONTENT words of an example: this many words of bits for the cut of A and as many for
# B, then a key for each position, and two words for each prediction.
_CUT_WORDS = 8
# Number of sentences in the documents that are planned together, which limits the memory of
# temporary arrays.
_GROUP_SENTENCES = 1 << 21


@dataclasses.dataclass(frozen=True)
class ExampleConfig:
    """How pairs and masks are made. The defaults are the original's (A.1 and C.2)."""

    masking: str = setting(
        "token", "unit of masks: token, whole_word or ngram", one_of=MASKINGS
    )
    mask_rate: float = setting(0.15, "share of tokens to mask", above=0, below=1)
    mask_share: float = setting(
        0.8, "share of the predicted tokens that become [MASK]", least=0, most=1
    )
    random_share: float = setting(
        0.1, "share of the predicted tokens that become random tokens", least=0, most=1
    )
    max_ngram: int = setting(3, "maximum number of words of an ngram", least=1)
    short_sequence_rate: float = setting(
        0.1,
        "probability of a random, shorter target length; unused with single_sentences",
        least=0,
        most=1,
    )
    next_sentence: bool = setting(
        True,
        "half of the pairs have a random second text, for next sentence prediction. "
        "False: the second text always follows the first, and there is no NSP",
    )
    sentence_order: bool = setting(
        False,
        "swap the two texts in half of the pairs, instead of random second texts (SOP of "
        "ALBERT)",
    )
    single_sentences: bool = setting(
        False,
        "each example is one sentence, without a second text (BabyBERTa; Huebner et al., "
        "2021). Needs next_sentence=False; use data.packing, because sentences are short",
    )

    def __post_init__(self):
        check_ranges(self, "data.examples.")
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise UserError(
                f"data.examples.mask_share={self.mask_share} and random_share="
                f"{self.random_share} add up to more than 1; expected at most 1"
            )
        if self.sentence_order and not self.next_sentence:
            raise UserError("data.examples.sentence_order needs next_sentence=True")
        if self.single_sentences and self.next_sentence:
            raise UserError("data.examples.single_sentences needs next_sentence=False")


class EpochPlan(NamedTuple):
    """One entry for each example. All arrays are (n,).

    document: position in the list of planned documents; unused without random texts.
    first: number of A's first sentence in the store. a_count, b_count: numbers of sentences
    of A, and of B if it follows A. random_next: whether B is random (b_count is 0), or A
    and B are swapped. target: desired number of tokens.
    """

    document: np.ndarray  # uint32
    first: np.ndarray  # uint32 or int64
    a_count: np.ndarray  # uint16
    b_count: np.ndarray  # uint16
    random_next: np.ndarray  # bool
    target: np.ndarray  # uint16

    def take(self, where: np.ndarray) -> "EpochPlan":
        """A part of the plan. where: indices of its examples, or a mask."""
        return EpochPlan(*(column[where] for column in self))


@dataclasses.dataclass(eq=False)
class ExampleSource:
    """All examples of one stream.

    Sample number s is example s % N of epoch s // N. N, the length of an epoch, is the
    number of examples in the plan of epoch 0. The plans of other epochs have a few examples
    more or fewer. After shuffling, additional examples are dropped, or the first examples
    repeat with other masks. This affects much less than a percent of the examples.

    documents: numbers of the documents in the store for A and B. Default: all documents.
    stream: number that separates the random streams of one seed (phases, evaluation).
    """

    store: TokenStore
    vocabulary: Tokenizer
    config: ExampleConfig
    _: dataclasses.KW_ONLY
    sequence_length: int
    max_predictions: int
    seed: int
    stream: int = 0
    documents: np.ndarray | None = None

    def __post_init__(self):
        most = self._room
        if most < 2:
            least = self.sequence_length - most + 2
            actual = f"a phase has sequence_length={self.sequence_length}"
            raise UserError(f"{actual}, expected at least {least}")
        if not 1 <= self.max_predictions <= most:
            phase = f"a phase with sequence_length={self.sequence_length}"
            actual = f"max_predictions={self.max_predictions} of {phase}"
            raise UserError(f"{actual}, expected 1 to {most}")
        bounds = self.store.document_sentences
        if self.documents is None:
            self.documents = np.arange(len(bounds) - 1)
        self._begins, self._ends = bounds[self.documents], bounds[self.documents + 1]
        self._plan = functools.lru_cache(maxsize=2)(self._make_plan)
        self._lock = threading.Lock()
        self._random = RandomStream(self.seed, self.stream, self.sequence_length)
        self.epoch_size = len(self.plan(0)[1])

    @property
    def _room(self) -> int:
        """Maximum number of tokens of an example's texts together."""
        texts = 1 if self.config.single_sentences else 2
        return self.sequence_length - self.vocabulary.overhead(texts)

    def plan(self, epoch: int) -> tuple[EpochPlan, np.ndarray]:
        """The plan of an epoch and its shuffled order. The last two plans are kept."""
        with self._lock:  # only one thread makes a plan
            return self._plan(epoch)

    def draw(
        self, samples: Sequence[int], rates_B: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """A batch of the samples with these numbers, in ascending order.

        rates_B: the mask rate of each sample. None: config.mask_rate for all.
        Returns input_ids, token_type_ids, attention_mask int32 (B, L); mlm_positions,
        mlm_ids int32 and mlm_weights float32 (B, M); nsp_labels int32 (B,), 0 if B follows
        A.
        """
        L, M = self.sequence_length, self.max_predictions
        if rates_B is None:
            rates_B = np.full(len(samples), self.config.mask_rate)
        parts, first = [], 0
        ends = np.cumsum([2 * _CUT_WORDS, L, 2 * M])
        for epoch, indices in self._by_epoch(samples):
            words_BW = self._random.words(CONTENT, epoch, indices, ends[-1])
            cuts_BW, keys_BL, choices_BW, _ = np.split(words_BW, ends, axis=1)
            batch = self._pairs(*self._spans(epoch, indices), cuts_BW)
            words_BM2 = choices_BW.reshape(-1, M, 2)
            rates = rates_B[first : first + len(indices)]
            first += len(indices)
            parts.append(batch | self._mask(batch, rates, keys_BL, words_BM2))
        return {k: np.concatenate([part[k] for part in parts]) for k in parts[0]}

    def lengths(self, samples: Sequence[int]) -> np.ndarray:
        """Number of tokens of samples, int64, without reading the tokens."""
        lengths_B2 = self.text_lengths(samples)
        overhead = self.vocabulary.overhead
        special_B = np.where(lengths_B2[:, 1] > 0, overhead(2), overhead(1))
        return lengths_B2.sum(1) + special_B

    def text_lengths(self, samples: Sequence[int]) -> np.ndarray:
        """Number of tokens of A and B of samples, int64 (B, 2). 0 for an absent B."""
        parts = [self._spans(*part)[0] for part in self._by_epoch(samples)]
        return self._cut_lengths(np.concatenate(parts))

    def _cut_lengths(self, spans: np.ndarray) -> np.ndarray:
        """Number of tokens of A and B, cut to the sequence length, int64 (B, 2)."""
        return np.stack(pair_lengths(*self._tokens(spans).T, self._room), 1)

    def _tokens(self, spans: np.ndarray) -> np.ndarray:
        """Number of tokens of each span of sentences."""
        return np.diff(self.store.sentence_offsets[spans])[..., 0]

    def _by_epoch(self, samples: Sequence[int]) -> list[tuple[int, np.ndarray]]:
        """The epochs of ascending samples, and the examples of each epoch."""
        epochs, indices = np.divmod(samples, self.epoch_size)
        known = np.unique(epochs).tolist() or [0]  # an empty batch if no samples
        return [(epoch, indices[epochs == epoch]) for epoch in known]

    def _make_plan(self, epoch: int) -> tuple[EpochPlan, np.ndarray]:
        rng = np.random.Generator(self._random.bits(PLAN, epoch))
        if self.config.single_sentences:
            plan = plan_sentences(self.store, self.documents, self._room)
        else:
            plan = plan_epoch(self.store, self.documents, rng, self._room, self.config)
        return plan, rng.permutation(np.arange(len(plan.first), dtype=np.uint32))

    def _spans(self, epoch: int, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The sentences of A and B of the given examples of an epoch.

        Returns the first sentence and the stop of A and of B, int64 (B, 2, 2), and whether
        B does not follow A, bool (B,).
        """
        words_BW = self._random.words(PLACES, epoch, indices, _PLACE_WORDS)
        plan, order = self.plan(epoch)
        plan = plan.take(order[indices % len(order)])
        middle_B = plan.first.astype(np.int64) + plan.a_count
        spans = np.stack([plan.first, middle_B, middle_B, middle_B + plan.b_count], 1)
        spans = spans.reshape(-1, 2, 2)
        elsewhere_B = plan.random_next & (plan.b_count == 0)
        swapped_B = plan.random_next & ~elsewhere_B
        spans[swapped_B] = spans[swapped_B][:, ::-1]
        spans[elsewhere_B, 1] = self._other_sentences(
            plan.take(elsewhere_B), spans[elsewhere_B, 0], words_BW[elsewhere_B]
        )
        return spans, plan.random_next

    def _other_sentences(
        self, plan: EpochPlan, a_spans: np.ndarray, words_BW: np.ndarray
    ) -> np.ndarray:
        """The sentences of a random B for each example of ``plan``: int64 (B, 2).

        If there is a single document, B is from the same document, but never starts with
        the sentence after A, because the label is NotNext.
        """
        D = len(self.documents)
        document_B, text_B = masking.uniform(words_BW)[:, :2].T
        others_B = (plan.document + 1 + (document_B * (D - 1)).astype(np.int64)) % D
        begins_B, ends_B = self._begins[others_B], self._ends[others_B]
        follows_B = (others_B == plan.document) & (a_spans[:, 1] < ends_B)
        sizes_B = ends_B - begins_B - follows_B
        starts_B = begins_B + (text_B * sizes_B).astype(np.int64)
        starts_B += follows_B & (starts_B >= a_spans[:, 1])
        needs_B = np.maximum(plan.target - self._tokens(a_spans), 1)
        offsets = self.store.sentence_offsets
        return np.stack([starts_B, stops_at(offsets, starts_B, ends_B, needs_B)], 1)

    def _pairs(
        self, spans: np.ndarray, random_next: np.ndarray, words_BW: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Reads A and B, cuts them to the sequence length and joins them.

        Raises UserError for a token id that is not in the vocabulary.
        """
        B, L = len(spans), self.sequence_length
        lengths_B2 = self._tokens(spans)
        sizes_B2 = self._cut_lengths(spans)
        # Number of tokens that a text loses at its start.
        words_BW = words_BW.reshape(2 * B, _CUT_WORDS)
        fronts = binomial_half((lengths_B2 - sizes_B2).ravel(), words_BW)
        texts = self.store.read_sentences(spans.reshape(-1, 2))

        stops = (fronts + sizes_B2.ravel()).tolist()
        fronts = fronts.tolist()
        has_b = (sizes_B2[:, 1] > 0).tolist()
        rows = []
        for i in range(B):
            a, b = 2 * i, 2 * i + 1
            parts = [texts[a][fronts[a] : stops[a]]]
            if has_b[i]:
                parts.append(texts[b][fronts[b] : stops[b]])
            rows.append(self.vocabulary.build(*parts))
        batch = padded_arrays(rows, L, self.vocabulary.pad_id)
        limit = self.vocabulary.vocab_size
        # Unsigned, because a damaged id of four bytes may have the bit of the sign.
        ids_BL = (batch["input_ids"] & ~self.store.word_bit).view(np.uint32)
        if ids_BL.max(initial=0) >= limit:
            self.store.check_ids(spans.reshape(-1, 2), limit)
        return batch | {"nsp_labels": random_next.astype(np.int32)}

    def _mask(
        self,
        batch: dict[str, np.ndarray],
        rates_B: np.ndarray,
        keys_BL: np.ndarray,
        words_BM2: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """Chooses and replaces tokens. Changes batch["input_ids"] in place."""
        config, vocabulary, M = self.config, self.vocabulary, self.max_predictions
        input_ids_BL, bit = batch["input_ids"], self.store.word_bit
        marked_BL = (input_ids_BL & bit) > 0  # continuations of a segmenter's words
        input_ids_BL &= ~bit
        totals_B = batch["attention_mask"].sum(1)
        counts_B = masking.prediction_counts(totals_B, rates_B, M)
        special_BL = np.isin(input_ids_BL, vocabulary.template_ids)
        candidates_BL = (batch["attention_mask"] > 0) & ~special_BL
        if config.masking == "token":
            positions_BM = masking.choose_tokens(candidates_BL, keys_BL, counts_B, M)
        else:
            continues_BL = marked_BL if bit else vocabulary.continuation[input_ids_BL]
            longest = config.max_ngram if config.masking == "ngram" else 1
            positions_BM = masking.choose_words(
                candidates_BL, continues_BL, keys_BL, counts_B, M, longest
            )
        shares = config.mask_share, config.random_share
        mask_id, size = vocabulary.mask_id, vocabulary.vocab_size
        return masking.replace(
            input_ids_BL, positions_BM, words_BM2, mask_id, size, *shares
        )


def plan_epoch(
    store: TokenStore,
    documents: np.ndarray,
    rng: np.random.Generator,
    room: int,
    config: ExampleConfig,
) -> EpochPlan:
    """Plans all examples of one pass over ``documents``, as in the original.

    create_pretraining_data.py cuts every document into chunks of about the target length,
    splits each chunk into A and B, and reuses the sentences after A if B is random. The
    plan depends only on sentence lengths, so an epoch is planned without reading tokens.
    Each round of vectorised steps plans one chunk of every document.

    room: maximum number of tokens of A and B together. A document's target is ``room``
    tokens or, with ``short_sequence_rate``, uniform in [2, room]. Without
    ``next_sentence`` B always follows A, and is absent if the chunk has a single sentence.
    With ``sentence_order`` the B of every chunk of several sentences follows A, and A and
    B are swapped in half the chunks.
    """
    bounds = store.document_sentences
    begins, ends = bounds[documents], bounds[documents + 1]
    group = np.cumsum(ends - begins) // _GROUP_SENTENCES
    groups = np.flatnonzero(np.diff(group, prepend=0))
    targets = np.full(len(documents), room)
    position = begins.copy()
    rounds = []  # the columns of EpochPlan
    for active in np.split(np.arange(len(documents)), groups):
        short = active[rng.random(len(active)) < config.short_sequence_rate]
        targets[short] = rng.integers(2, room, len(short), endpoint=True)
        while len(active):
            start, target = position[active], targets[active]
            # The chunk ends at the sentence that reaches the target, or with the document.
            stop = stops_at(store.sentence_offsets, start, ends[active], target)
            count = stop - start
            several = count > 1
            a_count = np.ones(len(active), np.int64)
            a_count[several] = rng.integers(1, count[several])
            random_next = np.zeros(len(active), bool)
            if config.next_sentence:
                random_next = ~several | (rng.random(len(active)) < 0.5)
            elsewhere = random_next & ~(several & config.sentence_order)
            b_count = np.where(elsewhere, 0, count - a_count)
            rounds.append((active, start, a_count, b_count, random_next, target))
            # The next chunk starts with the first sentence that was not used.
            position[active] = start + a_count + b_count
            active = active[position[active] < ends[active]]
    dtypes = (np.uint32, _sentence_dtype(store), np.uint16, np.uint16, bool, np.uint16)
    columns = map(np.concatenate, zip(*rounds, strict=True))
    return EpochPlan(*(c.astype(t) for c, t in zip(columns, dtypes, strict=True)))


def plan_sentences(store: TokenStore, documents: np.ndarray, room: int) -> EpochPlan:
    """Plans one example for each sentence of ``documents``.

    room: maximum number of tokens of a sentence. Longer sentences are cut. Only the column
    ``first`` needs memory, because the others have one value.
    """
    begins = store.document_sentences[documents]
    counts = store.document_sentences[documents + 1] - begins
    before = np.cumsum(counts) - counts  # sentences of the documents before
    dtype = _sentence_dtype(store)
    first = np.repeat((begins - before).astype(dtype), counts)
    first += np.arange(len(first), dtype=dtype)
    constants = np.uint32(0), np.uint16(1), np.uint16(0), np.False_, np.uint16(room)
    columns = (np.broadcast_to(value, first.shape) for value in constants)
    document, a_count, b_count, random_next, target = columns
    return EpochPlan(document, first, a_count, b_count, random_next, target)


def _sentence_dtype(store: TokenStore) -> type[np.integer]:
    """The smaller of the two dtypes of EpochPlan.first that has all sentences."""
    return np.uint32 if len(store.sentence_offsets) < 1 << 32 else np.int64


def stops_at(
    sentence_offsets: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    tokens: np.ndarray,
) -> np.ndarray:
    """The stop of the shortest run of sentences from each start with ``tokens`` tokens.

    A run that does not reach this number stops at the end.

    starts, ends: numbers of sentences, starts < ends. tokens: at least 1.
    """
    reach = sentence_offsets[starts] + tokens
    return np.minimum(np.searchsorted(sentence_offsets, reach), ends)


def binomial_half(sizes_B: np.ndarray, words_BW: np.ndarray) -> np.ndarray:
    """Binomial(size, 1/2) for each row: the number of ones in random bits of its words.

    words_BW: uint64. A row with a size above the number of bits seeds a generator with its
    first word.
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
