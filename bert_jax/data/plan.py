"""The sentences of each example of an epoch, chosen as by create_pretraining_data.py.

The original cuts every document into chunks of about the target length, splits each chunk
into A and B, and reuses the sentences after A if B is random. This depends only on sentence
lengths, so an epoch is planned without reading tokens: all documents at once, one chunk of
each document in a round of vectorised steps.
"""

import dataclasses

import numpy as np

# Documents are planned in groups of about this many sentences, which bounds the memory
# of the temporary arrays.
_GROUP_SENTENCES = 1 << 21


@dataclasses.dataclass(frozen=True)
class EpochPlan:
    """One entry for each example; all arrays (n,).

    document: position in the list of planned documents. first: first sentence of A (number
    in the store). a_count, b_count: numbers of sentences of A, and of the B that follows A.
    random_next: B is random, and b_count is 0; or A and B are swapped. target: desired
    number of tokens.
    """

    document: np.ndarray  # uint32
    first: np.ndarray  # uint32 or int64
    a_count: np.ndarray  # uint16
    b_count: np.ndarray  # uint16
    random_next: np.ndarray  # bool
    target: np.ndarray  # uint16

    def __len__(self) -> int:
        return len(self.document)


def plan_epoch(
    sentence_offsets: np.ndarray,
    document_sentences: np.ndarray,
    documents: np.ndarray,
    rng: np.random.Generator,
    *,
    sequence_length: int,
    short_sequence_rate: float,
    next_sentence: bool,
    sentence_order: bool = False,
) -> EpochPlan:
    """Plans all examples that one pass over ``documents`` gives.

    sentence_offsets, document_sentences: see TokenStore.
    A document's target is sequence_length - 3 tokens or, with ``short_sequence_rate``,
    uniform in [2, sequence_length - 3]. Without ``next_sentence`` B always follows A, and
    is absent if the chunk has a single sentence. With ``sentence_order`` the B of every
    chunk of several sentences follows A, and A and B are swapped in half the chunks.
    """
    begins = document_sentences[documents]
    ends = document_sentences[documents + 1]
    groups = np.searchsorted(
        np.cumsum(ends - begins) // _GROUP_SENTENCES,
        np.arange(1, int((ends - begins).sum()) // _GROUP_SENTENCES + 1),
    )
    longest = sequence_length - 3
    targets = np.full(len(documents), longest)
    position = begins.copy()
    rounds = []  # the columns of EpochPlan
    for active in np.split(np.arange(len(documents)), groups):
        short = active[rng.random(len(active)) < short_sequence_rate]
        targets[short] = rng.integers(2, longest, len(short), endpoint=True)
        while len(active):
            start, target = position[active], targets[active]
            # The chunk ends with the sentence that reaches the target, or the document.
            stop = stops_at(sentence_offsets, start, ends[active], target)
            count = stop - start
            several = count > 1
            a_count = np.ones(len(active), np.int64)
            a_count[several] = rng.integers(1, count[several])
            random_next = np.zeros(len(active), bool)
            if next_sentence:
                random_next = ~several | (rng.random(len(active)) < 0.5)
            elsewhere = random_next & ~(several & sentence_order)
            b_count = np.where(elsewhere, 0, count - a_count)
            rounds.append((active, start, a_count, b_count, random_next, target))
            # The sentences after A go back where they were not used.
            position[active] = start + a_count + b_count
            active = active[position[active] < ends[active]]
    sentence = np.uint32 if len(sentence_offsets) < 1 << 32 else np.int64
    dtypes = (np.uint32, sentence, np.uint16, np.uint16, bool, np.uint16)
    columns = map(np.concatenate, zip(*rounds, strict=True))
    return EpochPlan(*(c.astype(t) for c, t in zip(columns, dtypes, strict=True)))


def stops_at(
    sentence_offsets: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    tokens: np.ndarray,
) -> np.ndarray:
    """The sentence after the one that reaches ``tokens`` from each start, or the end.

    starts < ends, both sentences; tokens >= 1. A binary search of all at once, which
    touches the index near the starts alone: no sentence is empty.
    """
    reach = sentence_offsets[starts] + tokens
    low, high = starts + 1, np.minimum(ends, starts + tokens)
    while (low < high).any():
        middle = (low + high) // 2
        reached = sentence_offsets[middle] >= reach
        low = np.where(reached, low, middle + 1)
        high = np.where(reached, middle, high)
    return high
