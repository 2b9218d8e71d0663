"""Masked LM: which tokens are predicted, and what replaces them.

B is the number of rows, L the length of a row, and M the maximum number of predictions in
a row. See section 3.1 and A.1 of the paper, and create_masked_lm_predictions in Google's
create_pretraining_data.py.
"""

import itertools

import numpy as np


def choose_tokens(
    candidates_BL: np.ndarray, keys_BL: np.ndarray, counts_B: np.ndarray, M: int
) -> np.ndarray:
    """Chooses ``counts_B`` candidates of each row at random, or all if it has fewer.

    keys_BL: random uint64. The candidates with the smallest keys are chosen.
    Returns the positions in ascending order, (B, M). Unused places contain L.
    """
    L = candidates_BL.shape[1]
    counts_B = np.minimum(counts_B, candidates_BL.sum(axis=1))
    keys_BL = np.where(candidates_BL, keys_BL, np.iinfo(np.uint64).max)
    smallest_BM = np.argpartition(keys_BL, M - 1, axis=1)[:, :M]
    order_BM = np.argsort(np.take_along_axis(keys_BL, smallest_BM, 1), axis=1)
    chosen_BM = np.take_along_axis(smallest_BM, order_BM, 1)
    return np.sort(np.where(np.arange(M) < counts_B[:, None], chosen_BM, L), axis=1)


def choose_words(
    candidates_BL: np.ndarray,
    continuation_BL: np.ndarray,
    keys_BL: np.ndarray,
    counts_B: np.ndarray,
    M: int,
    max_ngram: int = 1,
) -> np.ndarray:
    """Chooses whole words of each row at random, with ``counts_B`` tokens or fewer.

    A word is a token and the continuation tokens after it. A continuation token at the
    start of a segment starts a new word, whereas Google's code joins it to the word before
    [SEP]. Words are tried in random order. A word with too many tokens is skipped, so a row
    may get fewer predictions than its count.
    max_ngram: maximum number of words in a run. A run starts at each chosen word. Its
      length is n with a probability proportional to 1/n (ALBERT, section 4.2). A run that
      does not fit is shortened.
    Returns positions as choose_tokens does. If every token is a word, as in Chinese, and
    max_ngram is 1, this is the same as token masking.
    """
    B, L = candidates_BL.shape
    before_BL = np.zeros_like(candidates_BL)
    before_BL[:, 1:] = candidates_BL[:, :-1]
    starts_BL = candidates_BL & ~(continuation_BL & before_BL)
    # The low 32 bits of a key choose the length of a run. The bounds divide the numbers
    # from 0 to 1 into the ranges of the lengths 1, 2, ...
    shares = np.cumsum(1 / np.arange(1, max_ngram + 1))
    bounds = shares[:-1] / shares[-1]
    chosen_BM = np.full((B, M), L)
    # A word ends before the next word, or at the end of its segment.
    stops_BL = candidates_BL & np.append(
        starts_BL[:, 1:] | ~candidates_BL[:, 1:], np.ones((B, 1), bool), axis=1
    )
    rows, starts = np.nonzero(starts_BL)
    sizes = np.nonzero(stops_BL)[1] + 1 - starts
    keys = keys_BL[rows, starts]
    runs = 1 + np.searchsorted(bounds, (keys & 0xFFFF_FFFF) / 2.0**32, "right")
    begins = np.searchsorted(rows, np.arange(B + 1)).tolist()
    starts, sizes, runs = starts.tolist(), sizes.tolist(), runs.tolist()
    taken = [False] * len(starts)
    each_row = zip(
        chosen_BM, itertools.pairwise(begins), counts_B.tolist(), strict=True
    )
    for chosen_M, (begin, end), count in each_row:
        picked: list[int] = []
        for word in (begin + np.argsort(keys[begin:end])).tolist():
            free = count - len(picked)
            if free <= 0:
                break
            for i in range(word, min(word + runs[word], end)):
                # A run ends before a word that is already chosen, does not fit, or is in
                # the other segment.
                apart = i > word and starts[i] != starts[i - 1] + sizes[i - 1]
                if taken[i] or sizes[i] > free or apart:
                    break
                taken[i] = True
                free -= sizes[i]
                picked += range(starts[i], starts[i] + sizes[i])
        chosen_M[: len(picked)] = sorted(picked)
    return chosen_BM


def uniform(words: np.ndarray) -> np.ndarray:
    """Converts random uint64 to float64 in [0, 1), from their upper 53 bits."""
    return (words >> np.uint64(11)) * 2.0**-53


def prediction_counts(
    tokens_B: np.ndarray, mask_rate: float | np.ndarray, max_predictions: int
) -> np.ndarray:
    """The number of predictions of each row: ``mask_rate`` times its tokens, rounded.

    It is at least 1 and at most ``max_predictions``. [CLS] and [SEP] count as tokens.
    mask_rate: one rate for all rows, or the rate of each row.
    """
    return np.clip(np.rint(tokens_B * mask_rate), 1, max_predictions).astype(np.int64)


def replace(
    input_ids_BL: np.ndarray,
    positions_BM: np.ndarray,
    words_BM2: np.ndarray,
    mask_id: int,
    vocab_size: int,
    mask_share: float,
    random_share: float,
) -> dict[str, np.ndarray]:
    """Replaces the chosen tokens in ``input_ids_BL``, in place, and returns the labels.

    Each chosen token becomes [MASK] with probability ``mask_share``, and a random token of
    the vocabulary with probability ``random_share``. Otherwise it stays.
    positions_BM: positions of the chosen tokens. Unused places contain L.
    words_BM2: two random uint64 for each place, which choose the kind of replacement and
    the random token.
    Returns a dictionary of arrays (B, M): mlm_positions, mlm_ids (the original tokens) and
    mlm_weights. Unused places contain 0 in all three.
    """
    L = input_ids_BL.shape[1]
    used_BM = positions_BM < L
    positions_BM = np.where(used_BM, positions_BM, 0)
    labels_BM = np.where(used_BM, np.take_along_axis(input_ids_BL, positions_BM, 1), 0)
    choice_BM, token_BM = np.moveaxis(uniform(words_BM2), -1, 0)
    random_BM = (token_BM * vocab_size).astype(np.int64)
    is_random_BM = choice_BM < mask_share + random_share
    input_BM = np.where(is_random_BM, random_BM, labels_BM)
    input_BM = np.where(choice_BM < mask_share, mask_id, input_BM)
    rows, columns = np.nonzero(used_BM)
    input_ids_BL[rows, positions_BM[rows, columns]] = input_BM[rows, columns]
    return {
        "mlm_positions": positions_BM.astype(np.int32),
        "mlm_ids": labels_BM.astype(np.int32),
        "mlm_weights": used_BM.astype(np.float32),
    }
