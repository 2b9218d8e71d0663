"""Which characters of a text each token stands for, as the tokenizers' libraries say."""

import dataclasses
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
import sentencepiece
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.tokenizer_base import UNK
from bert_jax.data.wordpiece import LONGEST_WORD

# What Google's tokenizer takes for a space.
_SPACES = "\t\n\r \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_find_words = re.compile(f"[^{_SPACES}]+").finditer


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The tokens of a text.

    ids: int32 (T,). starts, ends: int32 (T,), the characters [start, end) of each token,
    both ascending; tokens overlap where one character gives several.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def encode_with_offsets(texts: Sequence[str], tokenizer: Tokenizer) -> list[Tokens]:
    """The tokens of each text, with the ids of ``tokenizer``, and their characters."""
    if tokenizer.kind == "sentencepiece":
        return _sentencepiece(texts, tokenizer)
    wordpiece = _WordPiece(tokenizer)
    rows = zip(texts, tokenizer.encode_batch(texts), strict=True)
    return [wordpiece.tokens(text, ids) for text, ids in rows]


class _WordPiece:
    """The offsets of the library tokenizers, whose ids are nearly always ours.

    On Moby-Dick and SQuAD they always are; where Google's tokenizer differs (a sigma at
    the end of a word), the text is encoded word by word, and each token of a word whose
    ids differ stands for the whole word.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.ours = tokenizer
        lower_case = tokenizer.lower_case
        self.library = tokenizers.Tokenizer(
            models.WordPiece(
                tokenizer.ids, unk_token=UNK, max_input_chars_per_word=LONGEST_WORD
            )
        )
        self.library.normalizer = normalizers.BertNormalizer(
            lowercase=lower_case, strip_accents=lower_case
        )
        self.library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def tokens(self, text: str, ids: np.ndarray) -> Tokens:
        """The tokens of a text that has these ids."""
        # The library takes no lone surrogates: they become "?".
        valid = text.encode("utf-8", "replace").decode()
        encoding = self.library.encode(valid, add_special_tokens=False)
        if encoding.ids == ids.tolist():
            offsets = [self._with_accents(text, *pair) for pair in encoding.offsets]
            return _tokens(ids, *np.array(offsets, np.int32).reshape(-1, 2).T)
        words = list(_find_words(text))
        if len(words) == 1:
            start, end = words[0].span()
            return _tokens(ids, np.full(len(ids), start), np.full(len(ids), end))
        rows = [
            (word.start(), self.tokens(word[0], self.ours.encode(word[0])))
            for word in words
        ]
        return _tokens(
            ids,
            np.concatenate([row.starts + shift for shift, row in rows]),
            np.concatenate([row.ends + shift for shift, row in rows]),
        )

    def _with_accents(self, text: str, start: int, end: int) -> tuple[int, int]:
        """A dropped accent belongs to the letter before it."""
        while (
            self.ours.lower_case
            and end < len(text)
            and unicodedata.category(text[end]) == "Mn"
        ):
            end += 1
        return start, end


def _sentencepiece(texts: Sequence[str], tokenizer: Tokenizer) -> list[Tokens]:
    """Tokens begin after the spaces that are marked in them."""
    processor = sentencepiece.SentencePieceProcessor(
        model_proto=tokenizer.vocabulary_bytes()
    )
    rows = []
    for text in texts:
        # Lower-casing may change how many bytes a character has.
        chars = [char.lower() if tokenizer.lower_case else char for char in text]
        lengths = [len(char.encode("utf-8", "replace")) for char in chars]
        character = np.append(np.repeat(np.arange(len(text)), lengths), len(text))
        cased = text.lower() if tokenizer.lower_case else text
        tokens = processor.encode(
            cased.encode("utf-8", "replace"), return_type="proto"
        ).pieces
        starts = character[[token.begin for token in tokens]]
        ends = character[[max(token.end - 1, token.begin) for token in tokens]] + 1
        words = [i for i, char in enumerate(text) if not char.isspace()]
        starts = np.append(words, len(text))[np.searchsorted(words, starts)]
        starts = np.minimum(starts, len(text) - 1)
        ends = np.minimum(np.maximum(ends, starts + 1), len(text))
        rows.append(_tokens([token.id for token in tokens], starts, ends))
    return rows


def _tokens(ids: Sequence[int], starts: np.ndarray, ends: np.ndarray) -> Tokens:
    return Tokens(*(np.asarray(array, np.int32) for array in (ids, starts, ends)))
