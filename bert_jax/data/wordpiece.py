"""WordPiece as Google's tokenization.py has it.

Clean, split, lower-case and strip accents here, for the Rust normaliser differs from the
original in several scripts; match pieces with the ``tokenizers`` package. Text repeats
its words, so each word between spaces is looked up once and remembered.
"""

import json
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import tokenizers

from bert_jax.data.tokenizer_base import (
    CONFIG_FILE,
    MASK,
    PAD,
    UNK,
    Tokenizer,
    check_special_pieces,
    write_text,
)
from bert_jax.errors import UserError

# A longer word is [UNK] (tokenization.py; Hugging Face: 100).
LONGEST_WORD = 200
# Remembered words; past this the memory starts anew.
_REMEMBERED = 1 << 20
# str.split takes these for spaces, the original drops them as control characters.
_NOT_SPACES = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
_ASCII_WORDS = re.compile(r"[A-Za-z0-9]+|[!-/:-@\[-`{-~]")
_CJK = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


@lru_cache(maxsize=1 << 16)
def _kind(char: str) -> str:
    """Of one character: "drop", "alone" (a CJK ideograph), "space" or "keep"."""
    code = ord(char)
    if char in "\t\n\r" or unicodedata.category(char) == "Zs":
        return "space"
    if code in (0, 0xFFFD) or unicodedata.category(char) in ("Cc", "Cf"):
        return "drop"
    if any(first <= code <= last for first, last in _CJK):
        return "alone"
    return "keep"


@lru_cache(maxsize=1 << 16)
def _is_punctuation(char: str) -> bool:
    """ASCII that is no letter, digit or space, and Unicode's P categories."""
    code = ord(char)
    if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
        return True
    return unicodedata.category(char).startswith("P")


def split_words(text: str, lower_case: bool) -> list[str]:
    """Cleans and splits ``text`` into words and punctuation (BasicTokenizer)."""
    if text.isascii() and text.isprintable():
        return _ASCII_WORDS.findall(text.lower() if lower_case else text)
    cleaned = []
    for char in text:
        kind = _kind(char)
        if kind == "keep":
            cleaned.append(char)
        elif kind == "space":
            cleaned.append(" ")
        elif kind == "alone":
            cleaned.append(f" {char} ")
    words: list[str] = []
    for word in "".join(cleaned).split():
        if lower_case:
            # Word by word: the final sigma of Greek depends on where a word ends.
            word = unicodedata.normalize("NFD", word.lower())
            word = "".join(c for c in word if unicodedata.category(c) != "Mn")
        words += "".join(f" {c} " if _is_punctuation(c) else c for c in word).split()
    return words


class WordPieceTokenizer(Tokenizer):
    """Greedy longest match over a vocabulary whose continuations start with ##."""

    kind = "wordpiece"

    def __init__(self, pieces: list[str], lower_case: bool):
        continuation = np.array([piece.startswith("##") for piece in pieces])
        super().__init__(pieces, continuation, lower_case)
        self._matcher = tokenizers.models.WordPiece(
            self.ids, unk_token=UNK, max_input_chars_per_word=LONGEST_WORD
        )
        self._remembered: dict[str, list[int]] = {}

    @classmethod
    def from_file(cls, path: Path, lower_case: bool) -> "WordPieceTokenizer":
        """Reads a vocab.txt: one piece a line, its id the line's number from 0."""
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path} is not UTF-8 at byte {error.start}; expected a vocabulary, one "
                "piece a line"
            ) from error
        # Only line feeds end a line: a piece may be any other separator of Unicode.
        pieces = [line.rstrip("\r") for line in text.rstrip("\r\n").split("\n")]
        check_special_pieces(pieces, path)
        return cls(pieces, lower_case)

    def save(self, directory: Path) -> None:
        """Writes vocab.txt and tokenizer_config.json."""
        write_text(directory / "vocab.txt", "\n".join([*self.pieces, ""]))
        config = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self.lower_case,
            "mask_token": MASK,
            "pad_token": PAD,
            "unk_token": UNK,
        }
        write_text(directory / CONFIG_FILE, json.dumps(config, indent=2) + "\n")

    def decode(self, ids: Sequence[int]) -> str:
        """Pieces joined by spaces, continuations to the word before them."""
        return " ".join(self.pieces[i] for i in ids).replace(" ##", "")

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        if len(self._remembered) > _REMEMBERED:
            self._remembered.clear()
        remembered = self._remembered
        result = []
        for text in texts:
            if _NOT_SPACES.search(text):
                text = _NOT_SPACES.sub("", text)
            ids: list[int] = []
            for word in text.split():
                known = remembered.get(word)
                if known is None:
                    known = remembered[word] = self._encode_word(word)
                ids += known
            result.append(ids)
        return result

    def _encode_word(self, text: str) -> list[int]:
        """Ids of a run of characters without spaces."""
        ids = []
        for word in split_words(text, self.lower_case):
            if len(word) > LONGEST_WORD:
                ids.append(self.unk_id)
            else:
                ids += [token.id for token in self._matcher.tokenize(word)]
        return ids
