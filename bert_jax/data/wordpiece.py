"""WordPiece as google-research/bert cuts it (tokenization.py), but much faster.

The original looks at every character in Python. Here a regular expression cuts the
text into words, and a cache maps a word to its ids: most words of a text were seen
before. Only a word that is new pays for Unicode's corner cases and for the search of
its tokens. All Unicode facts come from Python's own tables, as in the original; its
output is the same string for string (tests/data/test_tokenizer.py).
"""

import functools
import re
import unicodedata
from collections.abc import Callable

import numpy as np

LONGEST_WORD = 200  # characters; a longer word is [UNK]
CACHED_WORDS = 1 << 18  # about 30 MB
PREFIX = "##"  # of a token inside a word

# Ideographs stand alone. Kana and hangul are not among them.
_CJK_RANGES = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def _stands_alone(code: int) -> bool:
    """Whether a character is a word of its own: an ideograph or punctuation."""
    if code < 128:  # every ASCII symbol counts, $ and ^ too
        return 32 < code < 127 and not chr(code).isalnum()
    if any(first <= code <= last for first, last in _CJK_RANGES):
        return True
    return unicodedata.category(chr(code)).startswith("P")


class _Clean(dict):
    """For str.translate: drops control characters, makes every space a space."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        category = unicodedata.category(char)
        if char in "\t\n\r" or category == "Zs":
            char = " "
        elif char in "\0\ufffd" or category in ("Cc", "Cf"):
            char = ""
        self[code] = char
        return char


class _Space(dict):
    """For str.translate: spaces around what stands alone, accents dropped or kept."""

    def __init__(self, drop_accents: bool):
        self.drop_accents = drop_accents

    def __missing__(self, code: int) -> str:
        char = chr(code)
        if _stands_alone(code):
            char = f" {char} "
        elif self.drop_accents and unicodedata.category(char) == "Mn":
            char = ""
        self[code] = char
        return char


@functools.cache
def _find_rough_words() -> Callable[[str], list[str]]:
    """Cuts cleaned text at spaces and around what stands alone.

    Characters beyond U+FFFF are left to Splitter.words: in a regular expression's
    character class they would slow every match down.
    """
    alone = [_stands_alone(code) for code in range(0x10000)]
    edges = [c for c in range(0x10000) if alone[c] != (c > 0 and alone[c - 1])]
    ranges = "".join(
        f"\\u{first:04x}-\\u{stop - 1:04x}"
        for first, stop in zip(edges[::2], edges[1::2], strict=True)
    )
    return re.compile(f"[^ {ranges}]+|[^ ]").findall


class Splitter:
    """Text to words, lower-cased and without accents where lower_case says so."""

    def __init__(self, lower_case: bool):
        self.lower_case = lower_case
        self._clean = _Clean()
        self._space = _Space(drop_accents=lower_case)
        self._find = _find_rough_words()

    def rough_words(self, text: str) -> list[str]:
        """Words that are final where they are ASCII; `words` finishes the others."""
        # Printable text holds no control character and no space but " ".
        if not text.isprintable() or "\ufffd" in text:
            text = text.translate(self._clean)
        # Lower-casing needs the whole text: a sigma's form depends on what follows.
        return self._find(text.lower() if self.lower_case else text)

    def words(self, rough_word: str) -> list[str]:
        """The words, none or many, that one rough word comes to."""
        if rough_word.isascii():
            return [rough_word]
        if self.lower_case:
            rough_word = unicodedata.normalize("NFD", rough_word)
        return rough_word.translate(self._space).split()


class WordIds(dict):
    """Rough word -> the bytes of its ids; works out what it has not seen."""

    def __init__(
        self, ids: dict[str, int], unk_id: int, splitter: Splitter, dtype: np.dtype
    ):
        self._ids, self._unk = ids, unk_id
        self._longest = max(map(len, ids))
        self._splitter = splitter
        self._dtype = dtype

    def __missing__(self, rough_word: str) -> bytes:
        words = self._splitter.words(rough_word)
        ids = [i for word in words for i in self._cut(word)]
        content = np.array(ids, self._dtype).tobytes()
        if len(rough_word) <= LONGEST_WORD:  # no blobs in the cache
            if len(self) >= CACHED_WORDS:
                self.clear()  # the frequent words are back at once
            self[rough_word] = content
        return content

    def _cut(self, word: str) -> list[int]:
        """Longest token first, from the left; [UNK] when that leads nowhere."""
        if len(word) > LONGEST_WORD:
            return [self._unk]
        ids, start, prefix = [], 0, ""
        while start < len(word):
            # No token is longer than the longest, so no search needs to be.
            for stop in range(min(len(word), start + self._longest), start, -1):
                token = self._ids.get(prefix + word[start:stop])
                if token is not None:
                    break
            else:
                return [self._unk]
            ids.append(token)
            start, prefix = stop, PREFIX
        return ids
