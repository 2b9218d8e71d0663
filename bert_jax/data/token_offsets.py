"""The characters of a text that each token covers."""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tokenizers

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.tokenizer_files import library_tokenizer

# Characters that Google's tokenizer treats as spaces.
_SPACES = "\t\n\r \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_find_words = re.compile(f"[^{_SPACES}]+").finditer


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
    if tokenizer.kind == "sentencepiece":
        return _sentencepiece(texts, tokenizer)
    library = library_tokenizer(tokenizer)
    return [
        _tokens(ids, _places(text, ids, tokenizer, library))
        for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True)
    ]


def _places(
    text: str, ids: np.ndarray, tokenizer: Tokenizer, library: tokenizers.Tokenizer
) -> list[tuple[int, int]]:
    """The characters [start, end) of each token of a text that has these ids.

    The library gives these offsets. If its ids differ from ours (a sigma at the end of a
    word), the text is encoded word by word, and each token of a word with other ids gets
    the characters of the whole word.
    """
    # The library takes no lone surrogates: they become "?".
    valid = text.encode("utf-8", "replace").decode()
    encoding = library.encode(valid, add_special_tokens=False)
    if encoding.ids == ids.tolist():
        places = encoding.offsets
        if tokenizer.kind == "tokenizers":  # a token may include the spaces before it
            places = [(_past_spaces(text, start, end), end) for start, end in places]
        if tokenizer.strip_accents:
            places = [(start, _past_accents(text, end)) for start, end in places]
        return places
    words = list(_find_words(text))
    if len(words) == 1:
        return [words[0].span()] * len(ids)
    return [
        (word.start() + start, word.start() + end)
        for word in words
        for start, end in _places(
            word[0], tokenizer.encode(word[0]), tokenizer, library
        )
    ]


def _past_spaces(text: str, start: int, end: int) -> int:
    """The start of a token after its leading spaces; ``start`` if it is only spaces."""
    token = text[start:end]
    return start + len(token) - len(token.lstrip()) if token.strip() else start


def _past_accents(text: str, end: int) -> int:
    """The end of a token with the accents after it, which the tokenizer drops."""
    while end < len(text) and unicodedata.category(text[end]) == "Mn":
        end += 1
    return end


def _sentencepiece(texts: Sequence[str], tokenizer: Tokenizer) -> list[Tokens]:
    """Tokens start after the spaces that they mark."""
    rows = []
    for text in texts:
        # Lower-casing may change how many bytes a character has.
        chars = [char.lower() if tokenizer.lower_case else char for char in text]
        lengths = [len(char.encode("utf-8", "replace")) for char in chars]
        character = np.append(np.repeat(np.arange(len(text)), lengths), len(text))
        cased = text.lower() if tokenizer.lower_case else text
        tokens = tokenizer.library.encode(
            cased.encode("utf-8", "replace"), return_type="proto"
        ).pieces
        starts = character[[token.begin for token in tokens]]
        ends = character[[max(token.end - 1, token.begin) for token in tokens]] + 1
        words = [i for i, char in enumerate(text) if not char.isspace()]
        starts = np.append(words, len(text))[np.searchsorted(words, starts)]
        starts = np.minimum(starts, len(text) - 1)
        ends = np.minimum(np.maximum(ends, starts + 1), len(text))
        places = np.stack([starts, ends], axis=1)
        rows.append(_tokens([token.id for token in tokens], places))
    return rows


def _tokens(ids: Sequence[int], places: Sequence) -> Tokens:
    starts, ends = np.array(places, np.int32).reshape(-1, 2).T
    return Tokens(np.array(ids, np.int32), starts, ends)
