"""Tokens that start a word, in vocabularies that mark spaces."""

import functools
import unicodedata
from collections.abc import Sequence

from bert_jax.data.tokenizer_json import BYTE_SPACE, SPACE

# Scripts without spaces between words: first words of their letters' Unicode names.
_WITHOUT_SPACES = {
    *("CJK", "HIRAGANA", "KATAKANA"),
    *("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"),
}
# The smallest first byte of a character of three bytes, and of four bytes, in UTF-8. Every
# letter in these scripts has at least three bytes.
_THREE_BYTES, _FOUR_BYTES = 0xE0, 0xF0
# About how many characters are looked up for the first bytes of a character.
_LOOKED_UP = 64


def without_mark(tokens: Sequence[str]) -> list[bool]:
    """Whether each token lacks the mark of a space. All False without marks.

    A letter of a script without spaces between words needs no mark. In a byte-level BPE a
    token may be a part of a character: a first part starts a word if most characters with
    these first bytes do.
    """
    if any(token.startswith(SPACE) for token in tokens):
        return [not _starts_word(token, SPACE) for token in tokens]
    if not any(token.startswith(BYTE_SPACE) for token in tokens):
        return [False] * len(tokens)
    byte_of = {char: byte for byte, char in enumerate(_byte_letters())}
    continues = []
    for token in tokens:
        if not all(char in byte_of for char in token):  # an added token
            continues.append(not _starts_word(token, " "))
            continue
        content = bytes(byte_of[char] for char in token)
        text = content.decode("utf-8", "ignore")
        starts = _starts_word(text, " ")
        if not text:
            starts = _part_starts_word(content)
        elif content[0] in range(0x80, 0xC0):  # the rest of a character is first
            starts = False
        continues.append(not starts)
    return continues


def _byte_letters() -> str:
    """The letter for each byte in GPT-2's byte-level BPE, str (256,).

    Printable characters of Latin-1 are their own letters. Other bytes have letters from
    U+0100.
    """
    letters, next_letter = "", 0x100
    for byte in range(256):
        if 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE:
            letters += chr(byte)
        else:
            letters += chr(next_letter)
            next_letter += 1
    return letters


def _starts_word(text: str, mark: str) -> bool:
    if not text or text.startswith(mark):
        return bool(text)
    return _is_letter_without_spaces(text[0])


def _is_letter_without_spaces(char: str) -> bool:
    script = unicodedata.name(char, "").partition(" ")[0]
    return unicodedata.category(char) == "Lo" and script in _WITHOUT_SPACES


@functools.cache
def _part_starts_word(part: bytes) -> bool:
    """Whether most characters that start with ``part`` are letters that need no mark.

    part: UTF-8 bytes without a whole character.
    """
    if not part or part[0] < _THREE_BYTES:
        return False
    length, least = 3, _THREE_BYTES
    if part[0] >= _FOUR_BYTES:
        length, least = 4, _FOUR_BYTES
    code = part[0] - least
    for byte in part[1:]:
        code = code * 64 + byte % 64
    missing = 64 ** (length - len(part))
    step = max(1, missing // _LOOKED_UP)
    letters = named = 0
    for number in range(code * missing, (code + 1) * missing, step):
        if number < 0x110000 and unicodedata.name(chr(number), ""):
            named += 1
            letters += _is_letter_without_spaces(chr(number))
    return 2 * letters > named
