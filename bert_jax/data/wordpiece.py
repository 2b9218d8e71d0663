"""WordPiece with the output of google-research/bert (tokenization.py), but faster.

The original examines every character in Python. Here a regular expression splits the text
into words, and a cache maps words to ids, because most words of a text repeat. Only a new
word needs Unicode's special cases and a search for its tokens. As in the original, the
Unicode properties are Python's. The output is equal (tests/data/test_tokenizer.py).
"""

import functools
import re
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bert_jax.data.library import add_special_tokens
from bert_jax.data.tokenizer import LONGEST, Tokenizer, continuations

LONGEST_WORD = 200  # characters. A longer word is [UNK]
CACHED_WORDS = 1 << 18  # about 30 MB
PREFIX = "##"  # marks tokens inside a word

# Each ideograph is a word. Kana and hangul are not ideographs.
_IDEOGRAPH = re.compile(
    "[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f"
    "\U0002b740-\U0002b81f\U0002b820-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f]"
)


def _is_word(char: str) -> bool:
    """Whether a character is always a word: an ideograph or punctuation."""
    if char.isascii():  # all ASCII symbols, including $ and ^
        return "!" <= char <= "~" and not char.isalnum()
    return bool(_IDEOGRAPH.match(char)) or unicodedata.category(char).startswith("P")


class Cache(dict):
    """Cached results of a function of a character's code or of a word.

    longest: maximum number of characters of a word whose result is kept.
    """

    def __init__(self, function: Callable, longest: int = LONGEST_WORD):
        self._function = function
        self._longest = longest

    def __missing__(self, key):
        result = self._function(key)
        if isinstance(key, int) or len(key) <= self._longest:
            if len(self) >= CACHED_WORDS:
                self.clear()  # frequent words are soon cached again
            self[key] = result
        return result


def _clean(code: int) -> str:
    """Removes control characters, and replaces every kind of space by a space."""
    char = chr(code)
    category = unicodedata.category(char)
    if char in "\t\n\r" or category == "Zs":
        return " "
    if char in "\0\ufffd" or category in ("Cc", "Cf"):
        return ""
    return char


def _apart(code: int) -> str:
    """Puts spaces around ideographs and punctuation."""
    char = chr(code)
    if _is_word(char):
        return f" {char} "
    return char


def _apart_without_accents(code: int) -> str:
    if unicodedata.category(chr(code)) == "Mn":
        return ""
    return _apart(code)


@functools.cache
def _find_rough_words() -> Callable[[str], list[str]]:
    """Splits cleaned text at spaces and around ideographs and punctuation.

    Splitter.words handles characters above U+FFFF, because they would make every match of
    the regular expression slower.
    """
    alone = [_is_word(chr(code)) for code in range(0x10000)]
    edges = [c for c in range(0x10000) if alone[c] != alone[c - 1]]
    ranges = "".join(
        f"\\u{first:04x}-\\u{stop - 1:04x}"
        for first, stop in zip(edges[::2], edges[1::2], strict=True)
    )
    return re.compile(f"[^ {ranges}]+|[^ ]").findall


class Splitter:
    """Text to words.

    strip_accents: whether marks of Unicode's category Mn are removed: accents, and the
    vowel signs, virama and nukta of Indic scripts. None: the value of lower_case, as in the
    original.
    """

    def __init__(self, lower_case: bool, strip_accents: bool | None = None):
        self.lower_case = lower_case
        self.strip_accents = strip_accents
        if strip_accents is None:
            self.strip_accents = lower_case
        self._clean = Cache(_clean)
        self._apart = Cache(_apart)
        if self.strip_accents:
            self._apart = Cache(_apart_without_accents)
        self._find = _find_rough_words()

    def rough_words(self, text: str) -> list[str]:
        """Words of a text. ASCII words are final; ``words`` completes the others."""
        # Printable text has no control character and no space but " ".
        if not text.isprintable() or "\ufffd" in text:
            text = text.translate(self._clean)
        # Lower-casing needs the whole text, because a sigma's form depends on its context.
        if self.lower_case:
            text = text.lower()
        return self._find(text)

    def words(self, rough_word: str) -> list[str]:
        """The words of one rough word, which may be none or many."""
        if rough_word.isascii():
            return [rough_word]
        if self.strip_accents:
            rough_word = unicodedata.normalize("NFD", rough_word)
        return rough_word.translate(self._apart).split()


class WordPieceTokenizer(Tokenizer):
    """Greedy longest match over a vocabulary in which ## marks continuations.

    library: Hugging Face's library with the same rules, for the characters of each token.
      Its ids differ for a sigma at the end of a word and for lone surrogates.
    longest_word: maximum number of characters of a word; a longer word is [UNK].
    """

    kind = "wordpiece"
    continuation_mark = PREFIX
    file_name = "vocab.txt"

    def __init__(
        self,
        tokens: Sequence[str],
        lower_case: bool | None = None,
        strip_accents: bool | None = None,
        longest_word: int = LONGEST_WORD,
    ):
        """lower_case: None means True unless a token has a capital letter.

        Google's files have no setting for it, and every cased vocabulary of a Latin script
        has capital letters. strip_accents: see wordpiece.Splitter. longest_word:
        Google's tokenizer has 200, transformers 100.
        """
        if lower_case is None:
            lower_case = not any(re.match(r"[^\[]*[A-Z]", token) for token in tokens)
        content = "".join(f"{token}\n" for token in tokens).encode()
        super().__init__(content, tokens, continuations(tokens, PREFIX), lower_case)
        self._splitter = Splitter(lower_case, strip_accents)
        self.strip_accents = self._splitter.strip_accents
        self.longest_word = longest_word
        self._rules = lower_case, self.strip_accents, longest_word
        self._arguments = self.tokens, *self._rules
        self._model = models.WordPiece(
            self.ids, unk_token=self.special.unk, max_input_chars_per_word=longest_word
        )
        self._word_ids = Cache(self._ids_of)
        self.library = tokenizers.Tokenizer(self._model)
        self.library.normalizer = normalizers.BertNormalizer(
            lowercase=lower_case, strip_accents=self.config()["strip_accents"]
        )
        self.library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self.library.decoder = decoders.WordPiece()

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Read-only ids of each text; see Tokenizer.encode_batch."""
        words, ids = self._splitter.rough_words, self._word_ids.__getitem__
        return [np.frombuffer(b"".join(map(ids, words(t))), self.dtype) for t in texts]

    def _ids_of(self, rough_word: str) -> bytes:
        """The ids of a rough word of Splitter, as bytes."""
        ids: list[int] = []
        for word in self._splitter.words(rough_word):
            try:
                ids += [token.id for token in self._model.tokenize(word)]
            except UnicodeEncodeError:  # a lone surrogate, which no token contains
                ids.append(self.unk_id)
        return np.array(ids, self.dtype).tobytes()

    def join(self, ids: Sequence[int]) -> str:
        """The text of token ids; see Tokenizer.decode."""
        return self.library.decode(ids, skip_special_tokens=False)

    def to_json(self) -> bytes:
        """The tokenizer.json with which transformers gives the same ids."""
        library = tokenizers.Tokenizer.from_str(self.library.to_str())
        add_special_tokens(library, self.special)
        return library.to_str(pretty=True).encode()

    def config(self) -> dict:
        """Settings from which transformers' AutoTokenizer makes a BertTokenizer."""
        lower_case, accents, longest = self._rules
        # None means the value of do_lower_case, as in Google's tokenizer.
        settings = {"strip_accents": accents}
        if accents == lower_case:
            settings["strip_accents"] = None
        if longest != LONGEST_WORD:
            settings[LONGEST] = longest
        settings["tokenizer_class"] = "BertTokenizer"
        return super().config() | settings | self.special.settings()

    def with_tokens(self, tokens: Sequence[str]) -> "WordPieceTokenizer":
        """A tokenizer with other tokens and the same rules."""
        tokenizer = WordPieceTokenizer(tokens, *self._rules)
        second_type = self.template.second_type
        tokenizer.template = tokenizer.template._replace(second_type=second_type)
        tokenizer.truncation = self.truncation
        tokenizer.model_max_length = self.model_max_length
        return tokenizer
