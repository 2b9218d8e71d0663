"""The characters of a text that each token covers."""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.library import call_library, utf8
from bert_jax.data.tokenizer import Tokenizer

# Characters that Google's tokenizer treats as spaces.
_SPACES = "\t\n\r \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_find_words = re.compile(f"[^{_SPACES}]+").finditer
# Characters [start, end) of each token.
_Places = Sequence[tuple[int, int]]


class Tokens(NamedTuple):
    """The tokens of a text.

    ids: int32 (T,). starts, ends: int32 (T,), the characters [start, end) of each token,
    both ascending. Tokens overlap if one character becomes several tokens.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def encode_with_offsets(texts: Sequence[str], tokenizer: Tokenizer) -> list[Tokens]:
    """The tokens of each text with their characters."""
    rows = []
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        places = _library(text, ids, tokenizer)
        starts, ends = np.array(places, np.int32).reshape(-1, 2).T
        if tokenizer.kind != "wordpiece":
            # A token may include the spaces before it. A token of only spaces gets the next
            # character that is not a space.
            words = [i for i, char in enumerate(text) if not char.isspace()]
            starts = np.append(words, len(text))[np.searchsorted(words, starts)]
            starts = np.minimum(starts, len(text) - 1)
            ends = np.maximum(ends, starts + 1)
        rows.append(Tokens(*(x.astype(np.int32) for x in (ids, starts, ends))))
    return rows


def _library(text: str, ids: np.ndarray, tokenizer: Tokenizer) -> _Places:
    """The offsets that Hugging Face's library finds.

    If its ids differ from ours (a sigma at the end of a word), the text is encoded word by
    word, and each token of a word with other ids gets the characters of the whole word.
    """
    plain = utf8(text).decode()
    encode = tokenizer.library.encode
    encoding = call_library(encode, plain, add_special_tokens=False)
    if encoding.ids == ids.tolist():
        return _with_marks(text, encoding.offsets)
    words = list(_find_words(text))
    if len(words) == 1:
        return [words[0].span()] * len(ids)
    return [
        (word.start() + start, word.start() + end)
        for word in words
        for start, end in _library(word[0], tokenizer.encode(word[0]), tokenizer)
    ]


def _with_marks(text: str, places: _Places) -> _Places:
    """The places with the marks and the Korean vowels and finals after each token.

    A tokenizer removes such a character, or composes it with the character before it.
    """
    if text.isascii():
        return places
    following = [start for start, _ in places[1:]]
    following.append(len(text))
    longer = []
    for (start, end), stop in zip(places, following, strict=False):
        while end < stop and _joins(text[end]):
            end += 1
        longer.append((start, end))
    return longer


def _joins(char: str) -> bool:
    """Whether a character can be composed with the character before it."""
    return unicodedata.category(char)[0] == "M" or "\u1160" <= char <= "\u11ff"
