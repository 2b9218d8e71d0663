"""Which characters of a text a piece stands for, exactly."""

import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.wordpiece import Splitter

# What the original run_squad.py takes for a space between words.
_SPACES = " \t\r\n\u202f"


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The pieces of a text.

    ids: int32 (T,). starts, ends: int32 (T,), the characters [start, end) of each piece,
    both ascending; pieces overlap where one character gives several.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def encode_with_offsets(texts: Sequence[str], tokenizer: Tokenizer) -> list[Pieces]:
    """The pieces of each text with their characters.

    Lower-casing and the loss of accents change a text's length, so each character is
    normalised by itself and the pieces are matched with the result. A word for which that
    fails (the rules of a SentencePiece model need not be known) is the range of all of
    its pieces. Every distinct word is encoded and matched once.
    """
    rules = _Characters(tokenizer)
    find = rules.word_pattern(set().union(*texts)).finditer
    index: dict[str, int] = {}
    texts_words, texts_starts = [], []
    for text in texts:
        matches = list(find(text))
        words = [index.setdefault(match[0], len(index)) for match in matches]
        texts_words.append(np.array(words, np.int64))
        texts_starts.append(np.array([match.start() for match in matches], np.int32))
    words = list(index)
    encoded = [ids.tolist() for ids in tokenizer.encode_batch(words)]
    ranges = [
        _align(word, ids, tokenizer, rules)
        for word, ids in zip(words, encoded, strict=True)
    ]
    flat_ids = _flat(encoded)
    flat_starts = _flat(starts for starts, _ in ranges)
    flat_ends = _flat(ends for _, ends in ranges)
    counts = np.array([len(ids) for ids in encoded], np.int64)
    first = np.cumsum(counts) - counts
    result = []
    for of_words, starts in zip(texts_words, texts_starts, strict=True):
        length = counts[of_words]
        # The pieces of word after word, as places in the flat arrays.
        within = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
        places = np.repeat(first[of_words], length) + within
        shift = np.repeat(starts, length)
        result.append(
            Pieces(
                flat_ids[places],
                flat_starts[places] + shift,
                flat_ends[places] + shift,
            )
        )
    return result


class _Characters(dict):
    """Character -> what the tokenizer makes of it, "" where it drops it."""

    def __init__(self, tokenizer: Tokenizer):
        self.lower_case = tokenizer.lower_case
        self.alone: set[str] = set()  # of the characters seen, words of their own
        self.spaces = set(_SPACES)
        self._splitter = (
            Splitter(tokenizer.lower_case) if tokenizer.kind == "wordpiece" else None
        )

    def __missing__(self, char: str) -> str:
        if self._splitter is None:
            # SentencePiece's own rules are a variation of NFKC.
            lower = char.lower() if self.lower_case else char
            self[char] = "".join(unicodedata.normalize("NFKC", lower).split())
            return self[char]
        # Between two letters a character shows how WordPiece treats it.
        words = [
            word
            for rough in self._splitter.rough_words(f"a{char}a")
            for word in self._splitter.words(rough)
        ]
        if len(words) == 3:
            self.alone.add(char)
        elif len(words) == 2:
            self.spaces.add(char)
        self[char] = "".join(words)[1:-1]
        return self[char]

    def word_pattern(self, chars: set[str]) -> re.Pattern[str]:
        """What finds the words of a text that holds only these characters.

        Where WordPiece starts a new word there is a new word here: what it finds does
        not depend on the text around it. SentencePiece words lie between spaces.
        """
        for char in chars:
            self[char]
        alone = "".join(map(re.escape, sorted(self.alone)))
        spaces = "".join(map(re.escape, sorted(self.spaces)))
        apart = f"|[{alone}]" if alone else ""
        return re.compile(f"[^{spaces}{alone}]+{apart}")


def _align(
    word: str, ids: list[int], tokenizer: Tokenizer, rules: _Characters
) -> tuple[list[int], list[int]]:
    """Starts and ends of the pieces within their word."""
    if len(ids) <= 1:
        return [0] * len(ids), [len(word)] * len(ids)
    text, origin = [], []
    for i, char in enumerate(word):
        normal = rules[char]
        text.append(normal)
        origin += [i] * len(normal)
    spans = _match("".join(text), ids, tokenizer)
    if spans is None:
        return [0] * len(ids), [len(word)] * len(ids)
    starts = [origin[first] for first, _ in spans]
    ends = [origin[stop - 1] + 1 for _, stop in spans]
    for i, end in enumerate(ends):
        # An accent that was dropped belongs to the letter before it.
        while end < len(word) and not rules[word[end]] and _is_mark(word[end]):
            end += 1
        ends[i] = end
    return starts, ends


def _is_mark(char: str) -> bool:
    return unicodedata.category(char).startswith("M")


def _match(
    text: str, ids: list[int], tokenizer: Tokenizer
) -> list[tuple[int, int]] | None:
    """The part of the normalised text that each piece is; None where they differ."""
    # A sigma at the end of a word has a form of its own, which it has not by itself.
    text = text.replace("ς", "σ")
    pieces = [
        None if i == tokenizer.unk_id else _surface(i, tokenizer).replace("ς", "σ")
        for i in ids
    ]
    spans, at = [], 0
    for i, piece in enumerate(pieces):
        if piece is None:
            # Unknown characters reach to where the next known piece is found.
            known = next((p for p in pieces[i + 1 :] if p), None)
            stop = text.find(known, at + 1) if known else len(text)
        else:
            stop = at + len(piece) if text.startswith(piece, at) else -1
        if stop < at:
            return None
        # The mark of a space alone shares the first character of its word.
        span = (at, max(stop, at + 1))
        if span[1] > len(text):
            return None
        spans.append(span)
        at = stop
    return spans if at == len(text) else None


def _surface(piece_id: int, tokenizer: Tokenizer) -> str:
    """The characters of a piece without what marks its place in a word."""
    piece = tokenizer.pieces[piece_id]
    if tokenizer.kind == "wordpiece":
        return piece[2:] if tokenizer.continuation[piece_id] else piece
    return piece.replace("\u2581", "")


def _flat(rows: Iterable[Iterable[int]]) -> np.ndarray:
    return np.fromiter(itertools.chain.from_iterable(rows), np.int32)
