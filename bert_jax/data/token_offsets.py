"""The characters of a text that each token covers."""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.tokenizer import Tokenizer, utf8

# Characters that Google's tokenizer treats as spaces.
_SPACES = "\t\n\r \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_find_words = re.compile(f"[^{_SPACES}]+").finditer
# Characters [start, end) of each token.
_Places = Sequence[tuple[int, int]]


class Tokens(NamedTuple):
    """The tokens of a text.

    ids: int32 (T,). starts, ends: int32 (T,), the characters [start, end) of each token,
    both ascending. Tokens overlap if one character gives several tokens.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def encode_with_offsets(texts: Sequence[str], tokenizer: Tokenizer) -> list[Tokens]:
    """The tokens of each text, with the ids of ``tokenizer``, and their characters."""
    rows = []
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        if tokenizer.kind == "sentencepiece":
            places = _sentencepiece(text, tokenizer)
        else:
            places = _library(text, ids, tokenizer)
        starts, ends = np.array(places, np.int32).reshape(-1, 2).T
        if tokenizer.kind != "wordpiece":
            # A token may include the spaces before it. One that is only spaces gets the
            # character behind them.
            words = [i for i, char in enumerate(text) if not char.isspace()]
            starts = np.append(words, len(text))[np.searchsorted(words, starts)]
            starts = np.minimum(starts, len(text) - 1)
            ends = np.maximum(ends, starts + 1)
        rows.append(Tokens(*(x.astype(np.int32) for x in (ids, starts, ends))))
    return rows


def _library(text: str, ids: np.ndarray, tokenizer: Tokenizer) -> _Places:
    """The library gives these offsets.

    If its ids differ from ours (a sigma at the end of a word), the text is encoded word by
    word, and each token of a word with other ids gets the characters of the whole word.
    """
    encoding = tokenizer.library.encode(utf8(text).decode(), add_special_tokens=False)
    if encoding.ids == ids.tolist():
        if not tokenizer.strip_accents:
            return encoding.offsets
        return [(start, _past_accents(text, end)) for start, end in encoding.offsets]
    words = list(_find_words(text))
    if len(words) == 1:
        return [words[0].span()] * len(ids)
    return [
        (word.start() + start, word.start() + end)
        for word in words
        for start, end in _library(word[0], tokenizer.encode(word[0]), tokenizer)
    ]


def _past_accents(text: str, end: int) -> int:
    """The end of a token with the accents after it, which the tokenizer drops."""
    while end < len(text) and unicodedata.category(text[end]) == "Mn":
        end += 1
    return end


def _sentencepiece(text: str, tokenizer: Tokenizer) -> _Places:
    """The library gives the characters of the lower-cased text, which may be more."""
    text_of = np.repeat(np.arange(len(text)), [len(tokenizer.cased(c)) for c in text])
    text_of = np.append(text_of, len(text))
    cased = utf8(tokenizer.cased(text)).decode()
    found = tokenizer.library.encode(cased, return_type="offset_mapping")["offsets"]
    return [(text_of[a], text_of[max(b - 1, a)] + 1) for a, b in found]
