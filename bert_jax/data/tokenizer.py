"""Text to tokens: Google's WordPiece, SentencePiece, or any other tokenizer.json."""

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bert_jax.data.wordpiece import LONGEST_WORD, PREFIX, Cache, Splitter
from bert_jax.errors import UserError, counted
from bert_jax.files import new_file, write_json
from bert_jax.settings import check_ranges, from_settings, setting, with_arguments

T = TypeVar("T")
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS
# Special tokens by their names in transformers' settings.
SPECIAL_TOKENS_MAP = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS}
# Names of vocabulary files in transformers. A tokenizer.json has more rules than a
# vocab.txt.
FILES = ("tokenizer.json", "vocab.txt", "spiece.model")
# Settings of transformers for a tokenizer.json that has all rules.
JSON_SETTINGS = SPECIAL_TOKENS_MAP | {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
}
LONGEST = "max_input_chars_per_word"
# Space in the tokens of SentencePiece and of byte-level BPE.
_SPACE, _BYTE_SPACE = "\u2581", "\u0120"
# Scripts without spaces between words: first words of their letters' Unicode names.
_WITHOUT_SPACES = {
    *("CJK", "HIRAGANA", "KATAKANA"),
    *("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"),
}


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest unsigned integer type for the ids of a vocabulary."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


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


@dataclasses.dataclass(frozen=True)
class CallOptions:
    """The options of a call of a Tokenizer."""

    padding: bool | str | int = setting(
        True,
        'True or "longest": every row is as long as the longest row. "max_length": every '
        "row has max_length tokens. A number: every row has this number of tokens",
    )
    truncation: bool | str = setting(
        True,
        "whether a row with more than max_length tokens is cut. In a pair the longer text "
        'loses tokens first (True means "longest_first", as in transformers)',
        one_of=(True, False, "longest_first"),
    )
    max_length: int | None = setting(
        None,
        "maximum number of tokens of a row, with [CLS] and [SEP]. None: the number of "
        "``padding``, or else ``model_max_length``. A tokenizer without a model has no "
        "maximum",
        least=2,
    )
    allow_mask: bool = setting(
        True,
        'whether "[MASK]" in a text is the mask token. Text that spells another special '
        "token is ordinary text",
    )

    def __post_init__(self):
        check_ranges(self)
        number = isinstance(self.padding, int) and self.padding is not True
        names = True, "longest", "max_length"
        if (number and self.padding < 1) or not (number or self.padding in names):
            expected = 'True, "longest", a number, or "max_length" with a max_length'
            raise UserError(f"padding={self.padding!r}, expected {expected}")


class Tokenizer:
    """The interface of all tokenizers.

    tokens: list of tokens by id. ids: dictionary from token to id. vocab_size: number of
      tokens.
    lower_case: whether text is lower-cased first. strip_accents: whether accents and other
      marks (Unicode category Mn) are removed.
    continuation: bool (vocab_size,), whether a token continues the word before it.
      Whole-word masking masks these tokens together with their word.
    kind: "wordpiece", "sentencepiece" or "tokenizers". content: bytes of the vocabulary
      file.
    dtype: type of the ids, uint16, or uint32 for large vocabularies.
    model_max_length: size of the position table of the model that the tokenizer was loaded
      with. None without a model.
    """

    kind: ClassVar[str]
    file_name: ClassVar[str]  # transformers' name of the vocabulary file
    strip_accents = False
    model_max_length: int | None = None

    def __init__(
        self,
        content: bytes,
        tokens: Sequence[str],
        continuation: Sequence[bool],
        lower_case: bool,
    ):
        self.content, self.tokens, self.lower_case = content, list(tokens), lower_case
        self.continuation = np.array(continuation, bool)
        self.ids = {token: i for i, token in enumerate(tokens)}
        if missing := [token for token in SPECIAL_TOKENS if token not in self.ids]:
            raise UserError(
                f"{' '.join(missing)} is missing; expected BERT's tokens, one in each line"
            )
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            self.ids[token] for token in SPECIAL_TOKENS
        )
        self.vocab_size = len(tokens)
        self.dtype = token_dtype(self.vocab_size)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, without [CLS] and [SEP]; the arrays may be read-only.

        Text that spells a special token, such as "[MASK]", is ordinary text.
        """
        raise NotImplementedError

    def join(self, ids: Sequence[int]) -> str:
        """The text of some token ids; see :meth:`decode`."""
        return call_library(self.library.decode, ids, skip_special_tokens=False)

    def encode(self, text: str, *, allow_mask: bool = False) -> np.ndarray:
        """Ids of one text; "[MASK]" in it is ordinary text unless ``allow_mask``."""
        parts = self.encode_batch(text.split(MASK) if allow_mask else [text])
        mask = np.array([self.mask_id], self.dtype)
        return np.concatenate([ids for part in parts for ids in (mask, part)][1:])

    @with_arguments(CallOptions)
    def __call__(
        self,
        texts: str | Iterable[str],
        pairs: str | Iterable[str] | None = None,
        **options: Any,
    ) -> dict[str, np.ndarray]:
        """Arrays for a model: rows of [CLS] text [SEP], or [CLS] text [SEP] pair [SEP].

        >>> batch = model.tokenizer(["The cat sat.", "A dog."])
        >>> batch["input_ids"].shape
        (2, 6)

        texts: one text; or a list, an array or a column of texts.
        pairs: the second text of each text.

        Returns input_ids, token_type_ids (1 for the second text and the [SEP] after it) and
        attention_mask (0 for padding), int32 (texts, L), or (L,) for a single text. Raises
        UserError for a missing text, for other numbers of texts and pairs, and for rows
        that are longer than the padding.
        """
        chosen = from_settings(CallOptions, options, "")
        padding, limit = chosen.padding, chosen.max_length
        columns = (
            {"texts": texts} if pairs is None else {"texts": texts, "pairs": pairs}
        )
        number = padding if type(padding) is int else None  # excludes True
        if limit is None:
            limit = number or self.model_max_length
        cut = limit if chosen.truncation else None
        allow_mask = chosen.allow_mask
        rows = [self._row(row, cut, allow_mask) for row in paired_texts(**columns)]
        longest = max((len(ids) for ids, _ in rows), default=0)
        widths = {"True": longest, "longest": longest, "max_length": limit}
        width = widths.get(str(padding), number)
        if width is None:
            expected = 'True, "longest", a number, or "max_length" with a max_length'
            raise UserError(f"padding={padding!r}, expected {expected}")
        if width < longest:
            raise UserError(
                f"the longest row has {longest} tokens, expected at most {width}; raise "
                "padding, or use truncation=True"
            )
        arrays = np.zeros((3, len(rows), width), np.int32)
        arrays[0] = self.pad_id
        for i, (ids, types) in enumerate(rows):
            arrays[:, i, : len(ids)] = ids, types, [1] * len(ids)
        arrays = arrays[:, 0] if isinstance(texts, str) else arrays
        return dict(zip(JSON_SETTINGS["model_input_names"], arrays, strict=True))

    def _row(
        self, texts: Sequence[str], limit: int | None, allow_mask: bool
    ) -> tuple[list[int], list[int]]:
        """Token ids and token types of a text or a pair, at most ``limit`` tokens."""
        parts = [self.encode(text, allow_mask=allow_mask) for text in texts]
        if limit is not None:
            room = limit - 1 - len(parts)
            if room < 0:
                raise UserError(f"max_length={limit}, expected at least {limit - room}")
            lengths = _longest_first(*map(len, parts), room=room)
            parts = [part[:n] for part, n in zip(parts, lengths, strict=False)]
        ids, types = [self.cls_id], [0]
        for number, part in enumerate(parts):
            ids += [*part.tolist(), self.sep_id]
            types += [number] * (len(part) + 1)
        return ids, types

    def __len__(self) -> int:
        """The number of tokens of the vocabulary."""
        return self.vocab_size

    def __repr__(self) -> str:
        names = "lower_case", "strip_accents", "model_max_length"
        rules = (f"{name}={getattr(self, name)}" for name in names)
        return f"{type(self).__name__}({len(self):,} tokens, {', '.join(rules)})"

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str | list[str]:
        """The text of an id or of several ids, or a list of texts for rows of ids.

        Tokens are joined to words again. skip_special_tokens: whether to leave out [CLS],
        [SEP], [PAD], [MASK] and [UNK]. Raises UserError for an id without a token.
        """
        rows = np.atleast_1d(np.array(ids, object))  # rows may differ in length
        if any(map(np.ndim, rows[:1])):
            return [self.decode(row, skip_special_tokens) for row in rows]
        return self.join(self._known_ids(rows, skip_special_tokens))

    def convert_ids_to_tokens(
        self, ids: Any, skip_special_tokens: bool = False
    ) -> str | list[str]:
        """The token of an id, or the tokens of several ids."""
        if np.ndim(ids) == 0:
            return self.tokens[self._known_ids([ids])[0]]
        return [self.tokens[i] for i in self._known_ids(ids, skip_special_tokens)]

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | list[int]:
        """The id of a token, or the ids of several tokens. Unknown tokens become [UNK]."""
        if isinstance(tokens, str):
            return self.ids.get(tokens, self.unk_id)
        return [self.ids.get(token, self.unk_id) for token in tokens]

    def _known_ids(self, ids: Iterable, skip_special_tokens: bool = False) -> list[int]:
        """The ids as integers. Raises UserError for an id without a token."""
        for i in ids:
            if not (hasattr(i, "__index__") and 0 <= i < len(self)):
                raise UserError(f"{i!r} is no token id; expected 0 to {len(self) - 1}")
        skipped = {self.ids[token] for token in SPECIAL_TOKENS * skip_special_tokens}
        return [int(i) for i in ids if int(i) not in skipped]

    def tokenize(self, text: str) -> list[str]:
        """The tokens of a text."""
        return [self.tokens[i] for i in self.encode(text)]

    def fingerprint(self) -> str:
        """SHA-256 of the vocabulary and of all rules that change ids."""
        config = self.config()
        rules = [
            f"{name}={config[name]}"
            for name in ("strip_accents", LONGEST)
            if config.get(name) is not None
        ]
        text = "\n".join([self.kind, str(self.lower_case), *rules, *self.tokens])
        return hashlib.sha256(text.encode()).hexdigest()

    def has_fingerprint(self, fingerprint: str) -> bool:
        """Whether a store or a run with this fingerprint has this vocabulary."""
        return fingerprint == self.fingerprint()

    def __reduce__(self):
        """Pickles the constructor's arguments, without caches."""
        return type(self), self._arguments, {"model_max_length": self.model_max_length}

    def config(self) -> dict:
        """The content of tokenizer_config.json, which transformers also reads."""
        return {"kind": self.kind, "do_lower_case": self.lower_case}

    def save(self, directory: str | os.PathLike) -> None:
        """Writes the vocabulary and tokenizer_config.json, as transformers reads them."""
        self.save_as(Path(directory) / self.file_name)

    def save_as(self, path: str | os.PathLike) -> None:
        """Writes the vocabulary to ``path``, and its settings to the same folder."""
        path = Path(path)
        # The vocabulary is written last, so a vocabulary file always has its settings.
        write_json(config_path(path), self.config())
        with new_file(path) as file:
            file.write(self.content)


class WordPieceTokenizer(Tokenizer):
    """Greedy longest match over a vocabulary in which ## marks continuations.

    library: Hugging Face's library with the same rules, for the characters of each token.
      Its ids differ for a sigma at the end of a word and for lone surrogates.
    longest_word: maximum number of characters of a word; a longer word is [UNK].
    """

    kind = "wordpiece"
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
        super().__init__(content, tokens, _continue(tokens, PREFIX), lower_case)
        self._splitter = Splitter(lower_case, strip_accents)
        self.strip_accents = self._splitter.strip_accents
        self.longest_word = longest_word
        self._rules = lower_case, self.strip_accents, longest_word
        self._arguments = self.tokens, *self._rules
        self._model = models.WordPiece(
            self.ids, unk_token=UNK, max_input_chars_per_word=longest_word
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

    def config(self) -> dict:
        """Settings from which transformers' AutoTokenizer makes a BertTokenizer."""
        lower_case, accents, longest = self._rules
        # None means the value of do_lower_case, as in Google's tokenizer.
        settings = {"strip_accents": None if accents == lower_case else accents}
        if longest != LONGEST_WORD:
            settings[LONGEST] = longest
        settings["tokenizer_class"] = "BertTokenizer"
        return super().config() | settings | SPECIAL_TOKENS_MAP

    def with_tokens(self, tokens: Sequence[str]) -> "WordPieceTokenizer":
        """A tokenizer of other tokens and the same rules."""
        return WordPieceTokenizer(tokens, *self._rules)


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model that has BERT's special tokens.

    A word starts with the token that includes the space before it. In scripts without
    spaces between words, such as Chinese, Japanese or Thai, each token is a word.
    """

    kind = "sentencepiece"
    file_name = "spiece.model"

    def __init__(self, model: bytes, lower_case: bool | None = None):
        """model: content of a .model file. lower_case: see WordPieceTokenizer."""
        if not model:  # the library accepts an empty file and prints a line
            raise ValueError("an empty file")
        library = sentencepiece.SentencePieceProcessor(model_proto=model)
        ids = list(range(library.vocab_size()))
        tokens = library.id_to_piece(ids)
        starts = np.array([_starts_word(token) for token in tokens])
        self.library = library
        self._special = np.logical_or(library.is_control(ids), library.is_unknown(ids))
        if lower_case is None:
            text = "".join(itertools.compress(tokens, ~self._special))
            lower_case = not any(map(str.isupper, text))
        super().__init__(model, tokens, ~self._special & ~starts, lower_case)
        self._arguments = model, self.lower_case

    def cased(self, text: str) -> str:
        """The text, in lower case if the model has only lower-case tokens."""
        return text.lower() if self.lower_case else text

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text; see Tokenizer.encode_batch."""
        rows = self.library.encode([utf8(self.cased(t)) for t in texts], num_threads=1)
        return [np.array(row, self.dtype) for row in rows]

    def encode(self, text: str, *, allow_mask: bool = False) -> np.ndarray:
        """Ids of one text. A part after [MASK] keeps the spaces of the text."""
        first, *rest = text.split(MASK) if allow_mask else [text]
        ids = self.library.encode(utf8(self.cased(first)))
        for part in rest:
            library = self.library if part[:1].isspace() else self._inside
            ids += [self.mask_id, *library.encode(utf8(self.cased(part)))]
        return np.array(ids, self.dtype)

    @functools.cached_property
    def _inside(self) -> sentencepiece.SentencePieceProcessor:
        """The model without the rule that puts a space before a text."""
        model = self.proto()
        model.normalizer_spec.add_dummy_prefix = False
        return sentencepiece.SentencePieceProcessor(
            model_proto=model.SerializeToString()
        )

    def join(self, ids: Sequence[int]) -> str:
        """The joined tokens, with spaces around special tokens."""
        text = "".join(
            f" {self.tokens[i]} " if self._special[i] else self.tokens[i] for i in ids
        )
        return " ".join(text.replace(_SPACE, " ").split())

    def proto(self) -> Any:
        """The model as a protobuf message, ModelProto of sentencepiece."""
        # Imported late, because it needs a newer protobuf than Apache Beam allows.
        from sentencepiece import sentencepiece_model_pb2

        return sentencepiece_model_pb2.ModelProto.FromString(self.content)

    def fingerprint(self) -> str:
        """SHA-256 of lower_case and of the .model file with its scores and rules."""
        rules = f"{self.kind}\n{self.lower_case}\n".encode()
        return hashlib.sha256(rules + self.content).hexdigest()

    def has_fingerprint(self, fingerprint: str) -> bool:
        """See Tokenizer.has_fingerprint. Version 0.1.0 left out scores and rules."""
        return fingerprint in (self.fingerprint(), super().fingerprint())


class LibraryTokenizer(Tokenizer):
    """A tokenizer.json with all its rules and added tokens, run by `tokenizers`.

    Added tokens are matched in text with the flags of the file. Text that spells one of
    BERT's special tokens is ordinary text. parts: the JSON object of the file. added: the
    set of added tokens.
    """

    kind = "tokenizers"
    file_name = "tokenizer.json"

    def __init__(self, content: bytes):
        """content: the bytes of a tokenizer.json."""
        self.parts = json.loads(content)
        self.library = _from_parts(self.parts, SPECIAL_TOKENS)
        tokens = _by_id(self.library.get_vocab(with_added_tokens=True))
        added = self.parts.get("added_tokens") or ()
        self.added = {token["content"] for token in added}
        if prefix := self.parts["model"].get("continuing_subword_prefix"):
            continues = _continue(tokens, prefix)
        else:  # a mark starts a word, if any token has a mark
            marked = [t.startswith((_SPACE, _BYTE_SPACE)) for t in tokens]
            continues = np.logical_not(marked) & any(marked)
        words = [token not in self.added for token in tokens]
        normalizer = self.library.normalizer or normalizers.Sequence([])
        lower_case = call_library(normalizer.normalize_str, "A") == "a"
        continues = np.logical_and(continues, words)
        super().__init__(content, tokens, continues, lower_case)
        self._arguments = (content,)
        plain = call_library(normalizer.normalize_str, "\u00e9")
        self.strip_accents = plain == "e"
        pair = call_library(self.library.encode, "a", "b")
        expected = [*self._row(("a", "b"), None, False)]
        if self.library.post_processor and [pair.ids, pair.type_ids] != expected:
            raise UserError(
                f"its post_processor makes {' '.join(pair.tokens)!r}, {pair.type_ids} of "
                f"a pair; expected {CLS} a {SEP} b {SEP}, {expected[1]}"
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

    @functools.cached_property
    def _with_mask(self) -> tokenizers.Tokenizer:
        return _from_parts(self.parts, set(SPECIAL_TOKENS) - {MASK})

    def fingerprint(self) -> str:
        """SHA-256 of the tokenizer.json."""
        return hashlib.sha256(f"{self.kind}\n".encode() + self.content).hexdigest()

    def config(self) -> dict:
        """Settings with which transformers' AutoTokenizer reads all of tokenizer.json."""
        return super().config() | JSON_SETTINGS


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


def paired_texts(**columns: Any) -> list[tuple[str, ...]]:
    """A row for each text of all columns. Each column is a text or several texts.

    Raises UserError for columns with other numbers of texts.
    """
    lists = [_text_list(texts, name) for name, texts in columns.items()]
    counts = [len(texts) for texts in lists]
    if len({*counts}) > 1:
        pairs = zip(columns, counts, strict=True)
        actual = " and ".join(f"{name} has {counted(n, 'text')}" for name, n in pairs)
        raise UserError(f"{actual}; expected as many texts in both")
    return [*zip(*lists, strict=True)]


def _text_list(texts: Any, name: str) -> list[str]:
    """One text, or several texts, as a list. Raises UserError for anything else."""
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):  # iterates over names
        expected = "a text, or a list, an array or a column of texts"
        raise UserError(f"{name} is a table; expected {expected}")
    if not isinstance(texts, Iterable):
        raise UserError(f"{name}={texts!r:.80}, expected a text, or several texts")
    texts = [texts] if isinstance(texts, str) else [*texts]
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            advice = "drop missing values, and give second texts as pairs=[...]"
            raise UserError(f"{name}[{i}] is {text!r:.80}, expected a text; {advice}")
    return texts


def _longest_first(first: int, second: int = 0, *, room: int) -> tuple[int, int]:
    """Numbers of tokens that two texts keep, by the rule of transformers.

    Each text keeps at least half of the room, or all of its tokens. With an odd room the
    longer text keeps one token more. Google's rule (see data/sequences.py) gives this
    token to the first text.
    """
    if first + second <= room:
        return first, second
    shorter = min(first, second, room // 2)
    return (shorter, room - shorter) if first <= second else (room - shorter, shorter)


def _continue(tokens: Sequence[str], prefix: str) -> list[bool]:
    """Whether each token starts with ``prefix``, the mark of a continuation."""
    return [token.startswith(prefix) and token != prefix for token in tokens]


def _starts_word(token: str) -> bool:
    """Whether a token of SentencePiece starts with a space, or needs no space before it."""
    first = token[0]
    script = unicodedata.name(first, "").partition(" ")[0]
    alone = unicodedata.category(first) == "Lo" and script in _WITHOUT_SPACES
    return first == _SPACE or alone


def config_path(vocabulary: Path) -> Path:
    """The path of the settings that belong to a vocabulary file.

    A file whose name is not one of FILES has settings under its own name, so that cased.txt
    and uncased.txt can be in one folder.
    """
    if vocabulary.name in FILES:
        return vocabulary.with_name("tokenizer_config.json")
    return vocabulary.with_name(f"{vocabulary.stem}_config.json")
