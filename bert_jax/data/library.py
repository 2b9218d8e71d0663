"""A tokenizer.json, run by Hugging Face's `tokenizers` library."""

import functools
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tokenizers
from tokenizers import AddedToken, normalizers
from tokenizers.processors import BertProcessing

from bert_jax.data.text_arrays import INPUT_NAMES
from bert_jax.data.tokenizer import (
    BERT_TOKENS,
    SpecialTokens,
    Template,
    Tokenizer,
    check_special,
    continuations,
    with_spaces,
)
from bert_jax.data.word_marks import without_mark
from bert_jax.errors import UserError

T = TypeVar("T")
# Maximum number of texts that the library encodes at once, on all cores. Its results need
# about 80 bytes for each token.
_BATCH = 1000


class LibraryTokenizer(Tokenizer):
    """A tokenizer.json with all its rules and added tokens, run by `tokenizers`.

    Added tokens are matched in text according to their flags. Text that spells a
    special token is ordinary text. In scripts without spaces between words, such as
    Chinese, Japanese or Thai, each token of a vocabulary that marks spaces is a word.

    parts: the JSON object of the file. added: the set of added tokens.
    """

    kind = "tokenizers"
    file_name = "tokenizer.json"

    def __init__(
        self,
        content: bytes,
        special: SpecialTokens = BERT_TOKENS,
        control: Collection[str] = (),
    ):
        """content: the bytes of a tokenizer.json.

        control: other tokens that, like the special tokens, are never found in text.
        """
        self.parts = json.loads(content)
        self._content, self._ordinary = content, {*special, *control}
        self.library = _library(content, self._ordinary)
        tokens = _tokens(self.library, self._ordinary)
        prefix = self.parts["model"].get("continuing_subword_prefix")
        self.continuation_mark = prefix or ""
        added = self.parts.get("added_tokens") or ()
        self.added = {token["content"] for token in added}
        normalizer = self.library.normalizer or normalizers.Sequence([])
        lower_case = call_library(normalizer.normalize_str, "A") == "a"
        continues = self._continuation(tokens)
        template = _template(self.library)
        super().__init__(content, tokens, continues, lower_case, special, template)
        self._arguments = content, special, control
        plain = call_library(normalizer.normalize_str, "\u00e9")
        self.strip_accents = plain == "e"
        self._check_template()
        # A space at the start of a text changes its tokens.
        self._marks_spaces = self.encode("a").tolist() != self.encode(" a").tolist()

    def _continuation(self, tokens: Sequence[str]) -> list[bool]:
        """Whether each token continues a word.

        If the model has a mark of continuations, such as ##, the tokens with this mark do.
        Otherwise, if tokens have the mark of a space, the tokens without it do. Without
        any marks each token is a word.
        """
        continues = without_mark(tokens)
        if self.continuation_mark:
            continues = continuations(tokens, self.continuation_mark)
        words = self.added | self._ordinary
        for i, token in enumerate(tokens):
            if token in words:
                continues[i] = False
        return continues

    def _check_template(self) -> None:
        """Raises UserError if :meth:`build` does not make the sequences of the file."""
        template, library = self.template, self.library
        for texts in (("a", "a"), ("a",)):
            theirs = call_library(library.encode, *texts)
            input_ids, token_type_ids = self.build(*map(self.encode, texts))
            ours = input_ids.tolist(), token_type_ids.tolist()
            same = ours == (theirs.ids, theirs.type_ids)
            if not (same and template.before and template.after):
                actual = f"{' '.join(theirs.tokens)!r}, {theirs.type_ids}"
                raise UserError(
                    f"its post_processor makes {actual} of {' and '.join(texts)}; expected "
                    "special tokens before, between and after the texts, the same for a "
                    "single text, and type 0 up to the second text"
                )

    def spaced(self, parts: Sequence[str], *, first: bool = False) -> list[str]:
        """The sentences of a document or words; see Tokenizer.spaced."""
        if not self._marks_spaces:
            return list(parts)
        return with_spaces(parts, first=first)

    def of_words(self) -> "LibraryTokenizer":
        """The tokenizer for the export of a tagging model: it puts a space before texts.

        transformers encodes each word of a list by itself (is_split_into_words), so with
        the space the words get the tokens of :meth:`spaced`. A pre_tokenizer of several
        steps has no setting for it, and then the tokenizer is unchanged.
        """
        rules = self.parts.get("pre_tokenizer") or {}
        if not self._marks_spaces or rules.get("type") != "ByteLevel":
            return self
        rules = rules | {"add_prefix_space": True}
        content = json.dumps(self.parts | {"pre_tokenizer": rules}).encode()
        return LibraryTokenizer(content, *self._arguments[1:])

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text; see Tokenizer.encode_batch."""
        rows = []
        for start in range(0, len(texts), _BATCH):
            part = [utf8(text).decode() for text in texts[start : start + _BATCH]]
            encode = self.library.encode_batch_fast  # finds no offsets
            encodings = call_library(encode, part, add_special_tokens=False)
            rows += [np.array(encoding.ids, self.dtype) for encoding in encodings]
        return rows

    def encode(self, text: str, *, allow_mask: bool = False) -> np.ndarray:
        """Ids of one text; its mask token is ordinary text unless ``allow_mask``."""
        library = self.library
        if allow_mask:
            library = self._with_mask
        text = utf8(text).decode()
        ids = call_library(library.encode, text, add_special_tokens=False).ids
        return np.array(ids, self.dtype)

    def join(self, ids: Sequence[int]) -> str:
        """The text of token ids; see Tokenizer.decode."""
        return call_library(self._plain.decode, ids, skip_special_tokens=False)

    @functools.cached_property
    def _with_mask(self) -> tokenizers.Tokenizer:
        return _library(self._content, self._ordinary - {self.special.mask})

    @functools.cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        return call_library(tokenizers.Tokenizer.from_str, self._content.decode())

    def to_json(self) -> bytes:
        """The tokenizer.json with which transformers gives the same ids."""
        return self._content

    def fingerprint(self) -> str:
        """SHA-256 of the tokenizer.json, and of special tokens that are not BERT's."""
        lines = [self.kind]
        if self.special != BERT_TOKENS:
            lines += self.special
        rules = "".join(f"{line}\n" for line in lines)
        return hashlib.sha256(rules.encode() + self.content).hexdigest()

    def config(self) -> dict:
        """Settings with which transformers' AutoTokenizer reads all of tokenizer.json."""
        settings = super().config() | self.special.settings()
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        # This class has no types unless its settings name them.
        settings.setdefault("model_input_names", INPUT_NAMES)
        return settings


def _template(library: tokenizers.Tokenizer) -> Template:
    """The special tokens around two texts of one or more tokens, measured.

    LibraryTokenizer._check_template checks the result.
    """
    pair = call_library(library.encode, "a", "a")
    texts = pair.sequence_ids  # 0 and 1 for the tokens of the texts, otherwise None
    if not {0, 1} <= {*texts}:
        raise UserError(
            "it has no token for 'a'; expected a vocabulary that contains this letter"
        )
    first, second = texts.index(0), texts.index(1)
    return Template(
        before=tuple(pair.ids[:first]),
        between=tuple(pair.ids[first + texts.count(0) : second]),
        after=tuple(pair.ids[second + texts.count(1) :]),
        second_type=pair.type_ids[second],
    )


def utf8(text: str) -> bytes:
    """A text as UTF-8. A lone surrogate, which UTF-8 cannot encode, becomes "?"."""
    return text.encode("utf-8", "replace")


def call_library(function: Callable[..., T], *args: Any, **options: Any) -> T:
    """Calls a function of the `tokenizers` library, and turns a panic into a UserError.

    A panic is a BaseException, which ``except Exception`` does not catch.
    """
    try:
        return function(*args, **options)
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise UserError(
            f"the tokenizers library failed ({error}); expected a tokenizer.json that "
            "transformers' AutoTokenizer can read"
        ) from error


def _library(content: bytes, ordinary: Collection[str]) -> tokenizers.Tokenizer:
    """A tokenizer of the library.

    ordinary: tokens that are ordinary text if a text spells them.
    """
    parts = json.loads(content)
    hidden = _hide(parts, ordinary)
    added = []
    for token in parts.get("added_tokens") or ():
        if token["content"] not in hidden:
            token["special"] = token["content"] in ordinary
            added.append(token)
    parts["added_tokens"] = added
    library = call_library(tokenizers.Tokenizer.from_str, json.dumps(parts))
    library.encode_special_tokens = True  # as ordinary text
    library.no_truncation()
    library.no_padding()
    return library


def _hide(parts: dict[str, Any], tokens: Collection[str]) -> set[str]:
    """Renames tokens of a Unigram model, which matches any text that spells a token.

    A space in its name hides a token, because texts are split at spaces before they reach
    the model. Returns the renamed tokens.
    """
    model = parts["model"]
    hidden = set()
    if isinstance(model, dict) and isinstance(model.get("vocab"), list):  # Unigram
        for entry in model["vocab"]:
            if entry[0] in tokens:
                hidden.add(entry[0])
                entry[0] = f" {entry[0]}"
    return hidden


def _tokens(library: tokenizers.Tokenizer, hidden: Collection[str]) -> list[str]:
    """All tokens of a library's tokenizer by id, under their names before _hide."""
    ids = library.get_vocab(with_added_tokens=True)
    for token in hidden:
        if f" {token}" in ids:
            ids[token] = ids.pop(f" {token}")
    return _by_id(ids)


def add_special_tokens(
    library: tokenizers.Tokenizer, special: SpecialTokens, *, lstrip: bool = False
) -> None:
    """Adds the special tokens of a vocabulary, and BERT's template.

    lstrip: whether the mask token includes the spaces before it. Raises UserError if the
    vocabulary lacks one of these tokens.
    """
    check_special(special, library.get_vocab())
    tokens = []
    for token in special:
        before = lstrip and token == special.mask
        tokens.append(AddedToken(token, lstrip=before))
    library.add_special_tokens(tokens)
    sep = special.sep, library.token_to_id(special.sep)
    cls = special.cls, library.token_to_id(special.cls)
    library.post_processor = BertProcessing(sep, cls)


def _by_id(ids: Mapping[str, int]) -> list[str]:
    """The tokens in the order of their ids. An id without a token has the token "".

    Raises UserError if two tokens share an id, or if most ids have no token.
    """
    size = max(ids.values()) + 1
    if len(set(ids.values())) < len(ids) or size > 2 * len(ids):
        raise UserError(
            f"its {len(ids)} tokens have ids up to {size - 1}; expected a different id for "
            f"each token, below {2 * len(ids)}"
        )
    tokens = [""] * size
    for token, i in ids.items():
        tokens[i] = token
    return tokens
