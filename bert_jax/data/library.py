"""A tokenizer.json, run by Hugging Face's `tokenizers` library."""

import functools
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tokenizers
from tokenizers import normalizers

from bert_jax.data.text_arrays import INPUT_NAMES
from bert_jax.data.tokenizer import Tokenizer, continuations
from bert_jax.errors import UserError

T = TypeVar("T")
# Space in the tokens of SentencePiece and of byte-level BPE.
SPACE, _BYTE_SPACE = "\u2581", "\u0120"


class LibraryTokenizer(Tokenizer):
    """A tokenizer.json with all its rules and added tokens, run by `tokenizers`.

    Added tokens are matched in text with the flags of the file. Text that spells one of
    the special tokens is ordinary text. parts: the JSON object of the file. added: the
    set of added tokens.
    """

    kind = "tokenizers"
    file_name = "tokenizer.json"

    def __init__(self, content: bytes):
        """content: the bytes of a tokenizer.json."""
        self.parts = json.loads(content)
        self.library = _from_parts(self.parts, self.special)
        tokens = _by_id(self.library.get_vocab(with_added_tokens=True))
        added = self.parts.get("added_tokens") or ()
        self.added = {token["content"] for token in added}
        if prefix := self.parts["model"].get("continuing_subword_prefix"):
            continues = continuations(tokens, prefix)
        else:  # a mark starts a word, if any token has a mark
            marked = [t.startswith((SPACE, _BYTE_SPACE)) for t in tokens]
            continues = np.logical_not(marked) & any(marked)
        words = [token not in self.added for token in tokens]
        normalizer = self.library.normalizer or normalizers.Sequence([])
        lower_case = call_library(normalizer.normalize_str, "A") == "a"
        continues = np.logical_and(continues, words)
        super().__init__(content, tokens, continues, lower_case)
        self._arguments = (content,)
        plain = call_library(normalizer.normalize_str, "\u00e9")
        self.strip_accents = plain == "e"
        self._check_template()

    def _check_template(self) -> None:
        """Raises UserError if the file has other special tokens or types for a pair."""
        pair = call_library(self.library.encode, "a", "b")
        input_ids, token_type_ids = self.build(self.encode("a"), self.encode("b"))
        expected = input_ids.tolist(), token_type_ids.tolist()
        if self.library.post_processor and (pair.ids, pair.type_ids) != expected:
            cls, sep = self.special.cls, self.special.sep
            raise UserError(
                f"its post_processor makes {' '.join(pair.tokens)!r}, {pair.type_ids} of "
                f"a pair; expected {cls} a {sep} b {sep}, {expected[1]}"
            )

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text; see Tokenizer.encode_batch."""
        return [self.encode(text) for text in texts]

    def encode(self, text: str, *, allow_mask: bool = False) -> np.ndarray:
        """Ids of one text; "[MASK]" in it is ordinary text unless ``allow_mask``."""
        library = self._with_mask if allow_mask else self.library
        text = utf8(text).decode()
        ids = call_library(library.encode, text, add_special_tokens=False).ids
        return np.array(ids, self.dtype)

    def join(self, ids: Sequence[int]) -> str:
        """The text of some token ids; see Tokenizer.decode."""
        return call_library(self.library.decode, ids, skip_special_tokens=False)

    @functools.cached_property
    def _with_mask(self) -> tokenizers.Tokenizer:
        return _from_parts(self.parts, set(self.special) - {self.special.mask})

    def fingerprint(self) -> str:
        """SHA-256 of the tokenizer.json."""
        return hashlib.sha256(f"{self.kind}\n".encode() + self.content).hexdigest()

    def config(self) -> dict:
        """Settings with which transformers' AutoTokenizer reads all of tokenizer.json."""
        return super().config() | json_settings(self)


def json_settings(tokenizer: Tokenizer) -> dict[str, Any]:
    """Settings of transformers for a tokenizer.json that has all rules."""
    return tokenizer.special.settings() | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": INPUT_NAMES,
    }


def utf8(text: str) -> bytes:
    """A text as UTF-8. A lone surrogate, which UTF-8 cannot encode, becomes "?"."""
    return text.encode("utf-8", "replace")


def call_library(function: Callable[..., T], *args: Any, **options: Any) -> T:
    """Calls a function of the `tokenizers` library. A panic of it becomes a UserError.

    A panic is a BaseException, which no ``except Exception`` catches.
    """
    try:
        return function(*args, **options)
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise UserError(
            f"the tokenizers library failed ({error}); expected a tokenizer.json with "
            "which AutoTokenizer of transformers works"
        ) from error


def _from_parts(parts: dict, ordinary: Collection[str]) -> tokenizers.Tokenizer:
    """A tokenizer of the library. ordinary: special tokens that are ordinary text."""
    for token in parts.get("added_tokens") or ():
        token["special"] = token["content"] in ordinary
    library = call_library(tokenizers.Tokenizer.from_str, json.dumps(parts))
    library.encode_special_tokens = True  # as ordinary text
    library.no_truncation()
    library.no_padding()
    return library


def _by_id(ids: Mapping[str, int]) -> list[str]:
    """The tokens in the order of their ids. An id without a token has the token "".

    Raises UserError for an id of two tokens, and if most ids have no token.
    """
    size = max(ids.values()) + 1
    if len(set(ids.values())) < len(ids) or size > 2 * len(ids):
        raise UserError(
            f"its {len(ids)} tokens have ids up to {size - 1}; expected another id for "
            f"each token, below {2 * len(ids)}"
        )
    tokens = [""] * size
    for token, i in ids.items():
        tokens[i] = token
    return tokens
