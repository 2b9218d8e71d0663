"""Text to tokens: Google's WordPiece, exactly, or SentencePiece."""

import abc
import hashlib
import itertools
import os
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bert_jax.data.wordpiece import LONGEST_WORD, PREFIX, Splitter, WordIds
from bert_jax.errors import UserError, naming
from bert_jax.files import is_remote, read_json, read_text, write_bytes, write_json

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS
# The same under transformers' names.
SPECIAL_TOKENS_MAP = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS}
# The vocabulary files, as transformers names them, in the order of preference.
_FILES = ("vocab.txt", "spiece.model", "tokenizer.json")
# How SentencePiece writes a space.
_SPACE = "\u2581"
# Scripts without spaces between words, by the names that Unicode gives their letters.
_WITHOUT_SPACES = {
    *("CJK", "HIRAGANA", "KATAKANA"),
    *("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"),
}


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest type that holds every id."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


class Tokenizer(abc.ABC):
    """What every kind of tokenizer offers.

    tokens: token of each id, vocab_size of them. ids: id of each token. lower_case:
    whether text is lower-cased first. continuation: bool (vocab_size,), tokens that
    continue the word before them; whole-word masking joins them. strip_accents: whether
    accents and other marks (Unicode's Mn) are removed. kind: "wordpiece" or
    "sentencepiece". dtype: of the ids, uint16, or uint32 where the vocabulary needs it.
    """

    kind: ClassVar[str]
    file_name: ClassVar[str]  # of the vocabulary, as transformers names it
    strip_accents = False

    def __init__(
        self, tokens: Sequence[str], continuation: np.ndarray, lower_case: bool
    ):
        _check_tokens(tokens)
        self.tokens = list(tokens)
        self.lower_case = lower_case
        self.continuation = continuation
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            self.ids[token] for token in SPECIAL_TOKENS
        )
        self.vocab_size = len(tokens)
        self.dtype = token_dtype(self.vocab_size)

    @abc.abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, without [CLS] and [SEP]; the arrays may be read-only.

        Text that spells a special token, such as "[MASK]", is ordinary text.
        """

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Tokens joined to words again; special tokens are kept."""

    @abc.abstractmethod
    def vocabulary_bytes(self) -> bytes:
        """The content of the vocabulary file."""

    def encode(self, text: str, *, allow_mask: bool = False) -> np.ndarray:
        """Ids of one text; "[MASK]" in it is ordinary text unless ``allow_mask``."""
        parts = self.encode_batch(text.split(MASK) if allow_mask else [text])
        mask = np.array([self.mask_id], self.dtype)
        return np.concatenate([ids for part in parts for ids in (mask, part)][1:])

    def __call__(self, text: str, pair: str | None = None) -> dict[str, list[int]]:
        """input_ids, token_type_ids and attention_mask of [CLS] text [SEP] (pair [SEP])."""
        ids, types = [self.cls_id], [0]
        for number, tokens in enumerate(
            self.encode_batch([text] if pair is None else [text, pair])
        ):
            ids += [*tokens.tolist(), self.sep_id]
            types += [number] * (len(tokens) + 1)
        ones = [1] * len(ids)
        return {"input_ids": ids, "token_type_ids": types, "attention_mask": ones}

    def tokenize(self, text: str) -> list[str]:
        """The tokens of a text."""
        return [self.tokens[i] for i in self.encode(text)]

    def fingerprint(self) -> str:
        """SHA-256 of the vocabulary and of what else decides the ids."""
        rules = [self.kind, str(self.lower_case)]
        if self.config().get("strip_accents") is not None:
            rules.append(f"strip_accents={self.strip_accents}")
        text = "\n".join([*rules, *self.tokens])
        return hashlib.sha256(text.encode()).hexdigest()

    def config(self) -> dict:
        """What tokenizer_config.json holds; transformers reads the same file."""
        return {"kind": self.kind, "do_lower_case": self.lower_case}

    def save(self, directory: str | os.PathLike) -> None:
        """Writes the vocabulary and tokenizer_config.json, as transformers reads them."""
        self.save_as(Path(directory) / self.file_name)

    def save_as(self, path: str | os.PathLike) -> None:
        """Writes the vocabulary to this file and its settings beside it."""
        path = Path(path)
        # The vocabulary last: whoever finds it finds its settings too.
        write_json(config_path(path), self.config())
        write_bytes(path, self.vocabulary_bytes())


class WordPieceTokenizer(Tokenizer):
    """Greedy longest match over a vocabulary whose continuations start with ##."""

    kind = "wordpiece"
    file_name = "vocab.txt"

    def __init__(
        self,
        tokens: Sequence[str],
        lower_case: bool | None = None,
        strip_accents: bool | None = None,
    ):
        """lower_case: None means True unless a token has a capital letter.

        Every cased vocabulary of a Latin script has some. Google's own files have no
        setting for it. strip_accents: see wordpiece.Splitter.
        """
        if lower_case is None:
            lower_case = not any(re.match(r"[^\[]*[A-Z]", token) for token in tokens)
        continuation = np.array(
            [p.startswith(PREFIX) and p != PREFIX for p in tokens], bool
        )
        super().__init__(tokens, continuation, lower_case)
        self._splitter = Splitter(lower_case, strip_accents)
        self.strip_accents = self._splitter.strip_accents
        self.model = models.WordPiece(
            self.ids, unk_token=UNK, max_input_chars_per_word=LONGEST_WORD
        )
        self._word_ids = WordIds(self.model, self.unk_id, self._splitter, self.dtype)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, read-only; see Tokenizer.encode_batch."""
        words, ids = self._splitter.rough_words, self._word_ids.__getitem__
        return [np.frombuffer(b"".join(map(ids, words(t))), self.dtype) for t in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """Tokens joined by spaces, continuations to the word before them."""
        return " ".join(self.tokens[i] for i in ids).replace(f" {PREFIX}", "")

    def vocabulary_bytes(self) -> bytes:
        """One token a line."""
        return "".join(f"{token}\n" for token in self.tokens).encode()

    def config(self) -> dict:
        """Settings that transformers' AutoTokenizer makes a BertTokenizer of."""
        own = {
            "tokenizer_class": "BertTokenizer",
            # None: the same as do_lower_case, as in Google's tokenizer.
            "strip_accents": (
                None if self.strip_accents == self.lower_case else self.strip_accents
            ),
        }
        return super().config() | own | SPECIAL_TOKENS_MAP

    def __reduce__(self):
        """Pickles without the cache."""
        rules = self.lower_case, self.strip_accents
        return WordPieceTokenizer, (self.tokens, *rules)


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model that has BERT's special tokens.

    A word starts with the token that holds the space before it. Where a script has no
    spaces between words, as that of Chinese, Japanese or Thai, each token is a word.
    """

    kind = "sentencepiece"
    file_name = "spiece.model"

    def __init__(self, model: bytes, lower_case: bool | None = None):
        """model: the content of a .model file. lower_case: as of WordPieceTokenizer."""
        try:
            if not model:  # which the library would take, with a line on stderr
                raise RuntimeError("empty")
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            ids = list(range(processor.vocab_size()))
            tokens = processor.id_to_piece(ids)
        except (RuntimeError, ValueError) as error:  # ValueError: not UTF-8
            raise UserError(
                "not a SentencePiece model; expected one that python -m "
                "bert_jax.vocabulary --kind sentencepiece wrote"
            ) from error
        self._model, self._processor = model, processor
        self._special = np.logical_or(
            processor.is_control(ids), processor.is_unknown(ids)
        )
        if "" in tokens:
            raise UserError("an empty token; expected a model as its trainer wrote it")
        starts = np.array([_starts_word(token) for token in tokens])
        if lower_case is None:
            text = "".join(itertools.compress(tokens, ~self._special))
            lower_case = not any(map(str.isupper, text))
        super().__init__(tokens, ~self._special & ~starts, lower_case)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text; see Tokenizer.encode_batch."""
        if self.lower_case:
            texts = [text.lower() for text in texts]
        # A lone surrogate becomes "?": UTF-8 cannot hold it.
        content = [text.encode("utf-8", "replace") for text in texts]
        rows = self._processor.encode(content, num_threads=1)
        return [np.array(row, self.dtype) for row in rows]

    def decode(self, ids: Sequence[int]) -> str:
        """Tokens joined, spaces where the tokens have them and around special ones."""
        text = "".join(
            f" {self.tokens[i]} " if self._special[i] else self.tokens[i] for i in ids
        )
        return " ".join(text.replace(_SPACE, " ").split())

    def scores(self) -> list[float]:
        """The log probability of each token."""
        return self._processor.get_score(list(range(self.vocab_size)))

    def vocabulary_bytes(self) -> bytes:
        """The .model file."""
        return self._model

    def __reduce__(self):
        """Pickles as its file."""
        return SentencePieceTokenizer, (self._model, self.lower_case)


def _starts_word(token: str) -> bool:
    """Whether a token of SentencePiece begins with a space, or needs none before it."""
    first = token[0]
    script = unicodedata.name(first, "").partition(" ")[0]
    alone = unicodedata.category(first) == "Lo" and script in _WITHOUT_SPACES
    return first == _SPACE or alone


def find_vocabulary(directory: Path) -> Path | None:
    """The file in a folder that ``load_tokenizer`` reads; None where there is none."""
    return next((directory / n for n in _FILES if (directory / n).is_file()), None)


def load_tokenizer(path: Path | str, *, lower_case: bool | None = None) -> Tokenizer:
    """Reads a vocab.txt, a SentencePiece .model, a tokenizer.json, or a folder of one.

    lower_case: overrides the tokenizer_config.json beside the vocabulary. Without either,
    a tokenizer.json says it itself, and for the others the tokens tell: text is
    lower-cased unless some of them have capitals.
    """
    is_remote(path)  # raises UserError for a web address
    path = Path(path)
    other = None  # a second form of the vocabulary, which transformers may read
    if path.is_dir():
        found = find_vocabulary(path)
        if found is None:
            raise UserError(
                f"{path} holds no vocabulary; expected {' or '.join(_FILES)}"
            )
        if found.name == WordPieceTokenizer.file_name:
            other = path / "tokenizer.json"
        path = found
    if not path.is_file():
        raise UserError(
            f"{path} does not exist; expected a vocabulary, as python -m "
            "bert_jax.vocabulary writes it"
        )
    saved = _saved_rules(path)
    if lower_case is None:
        lower_case = saved.get("do_lower_case")
    strip_accents = saved.get("strip_accents")
    if path.suffix == ".model":
        with naming(path):
            return SentencePieceTokenizer(path.read_bytes(), lower_case)
    if path.suffix == ".json":
        content, rules = _read_tokenizer_json(path)
        lower_case = rules["lowercase"] if lower_case is None else lower_case
        if strip_accents is None:
            strip_accents = rules.get("strip_accents")
    else:
        content = _read_tokens(path)
    if other is not None and other.is_file():
        _check_same(content, path, other)
    with naming(path):
        return WordPieceTokenizer(content, lower_case, strip_accents)


def _check_same(tokens: list[str], path: Path, other: Path) -> None:
    """Raises where a vocab.txt and the tokenizer.json beside it have other tokens."""
    settings = read_json(other, "the tokenizer.json of this vocabulary")
    ids = _json_ids(settings, other)
    # Ids beyond are tokens of one's own, which the word table's size tells of.
    found = {ids[t]: t for t in sorted(ids, key=ids.get) if ids[t] < len(tokens)}
    for i, token in found.items():
        if tokens[i] and token.strip() != tokens[i]:
            raise UserError(
                f"{path} and {other.name} disagree: token {i} is {tokens[i]!r} in the one "
                f"and {token!r} in the other; remove the one that the model was not "
                "trained with"
            )


def _read_tokens(path: Path) -> list[str]:
    """The tokens of a vocab.txt: one a line, its id the line's number from 0."""
    text = read_text(path, "a vocabulary, one token a line").rstrip()
    if not text:
        raise UserError(f"{path} is empty; expected a vocabulary, one token a line")
    # Only line feeds end a line: a token may be any other separator of Unicode. Google
    # strips each line, carriage return included.
    return [line.strip() for line in text.split("\n")]


def _saved_rules(vocabulary: Path) -> dict[str, Any]:
    """The tokenizer_config.json beside a vocabulary; empty where there is none."""
    paths = config_path(vocabulary), vocabulary.with_name("tokenizer_config.json")
    path = next(filter(Path.is_file, paths), None)
    if path is None:
        return {}
    settings = read_json(path, "the settings of a tokenizer")
    rules = {
        "do_lower_case": (True, False, None),
        "strip_accents": (None, True, False),
        "tokenize_chinese_chars": (True, None),
    }
    _check_rules(settings, rules, path)
    return settings


def _read_tokenizer_json(path: Path) -> tuple[list[str], dict[str, Any]]:
    """The tokens of a tokenizer.json, and the settings of its normalizer.

    Raises UserError for any tokenizer that cuts text in another way than Google's.
    """
    settings = read_json(path, "the tokenizer.json of a WordPiece tokenizer")
    ids = _json_ids(settings, path)
    try:
        model, normalizer = settings["model"], settings["normalizer"]
        rules = {
            "model.type": ("WordPiece",),
            "model.unk_token": (UNK,),
            "model.continuing_subword_prefix": (PREFIX,),
            "normalizer.type": ("BertNormalizer",),
            "normalizer.lowercase": (True, False),
            "normalizer.clean_text": (True,),
            "normalizer.handle_chinese_chars": (True,),
            "normalizer.strip_accents": (None, True, False),
            "pre_tokenizer.type": ("BertPreTokenizer",),
        }
        model.setdefault("type", "WordPiece")  # old files leave it out
        _check_rules(settings, rules, path)
    except (KeyError, TypeError, AttributeError) as error:
        raise _not_wordpiece(path, error) from error
    tokens = sorted(ids, key=ids.get)
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise UserError(
            f"{path}: the ids of its {len(ids)} tokens are not 0 to {len(ids) - 1}; "
            "expected every id once"
        )
    return tokens, normalizer


def _json_ids(settings: dict[str, Any], path: Path) -> dict[str, int]:
    """The id of each token of a tokenizer.json, added ones too."""
    try:
        vocabulary = settings["model"]["vocab"]
        if isinstance(vocabulary, list):
            raise ValueError("a list of tokens with scores, as of a Unigram model")
        ids = dict(vocabulary)
        ids |= {t["content"]: t["id"] for t in settings.get("added_tokens") or ()}
        if odd := [i for i in ids.values() if type(i) is not int or i < 0]:
            raise ValueError(f"an id is {str(odd[0])[:40]}")
        if odd := [t for t in ids if not isinstance(t, str) or "\n" in t]:
            raise ValueError(f"a token is {str(odd[0])[:40]!r}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _not_wordpiece(path, error) from error
    return ids


def _not_wordpiece(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path} is not the tokenizer.json of a WordPiece tokenizer ({error!r}); "
        "expected BertTokenizerFast's, or put its vocab.txt there"
    )


def _check_rules(settings: dict[str, Any], rules: dict[str, tuple], path: Path) -> None:
    """Raises where a setting has none of its known values: text would be cut otherwise.

    rules: the known values of each setting; a dot leads into a nested object.
    """
    for name, known in rules.items():
        value: Any = settings
        for key in name.split("."):
            value = value.get(key)
        if repr(value) not in map(repr, known):  # 1 is not True
            raise UserError(
                f"{path} asks for {name}={value!r}; expected {known[0]!r}, as Google's "
                "tokenizer works; change it, or take another vocabulary"
            )


def config_path(vocabulary: Path) -> Path:
    """Where the settings of a vocabulary file lie.

    A file of another name than transformers' own has settings of its own: cased.txt and
    uncased.txt can share a folder.
    """
    if vocabulary.name in _FILES:
        return vocabulary.with_name("tokenizer_config.json")
    return vocabulary.with_name(f"{vocabulary.stem}_config.json")


def _check_tokens(tokens: Sequence[str]) -> None:
    """Raises where a special token is missing or a token stands twice."""
    missing = [token for token in SPECIAL_TOKENS if token not in set(tokens)]
    if missing:
        raise UserError(
            f"{len(tokens)} tokens but no {' '.join(missing)}; expected a BERT vocabulary, "
            "one token a line"
        )
    first: dict[str, int] = {}
    for i, token in enumerate(tokens):
        # An empty line keeps its id, which no text ever gets.
        if token and first.setdefault(token, i) != i:
            raise UserError(
                f"the token {token!r} is there twice, as ids {first[token]} and {i}; "
                "expected every token once, so remove or rename one of them"
            )


def library_tokenizer(tokenizer: WordPieceTokenizer) -> tokenizers.Tokenizer:
    """The same tokenizer in Hugging Face's library, which knows the place of each token.

    Its ids differ for a sigma at the end of a word, and for lone surrogates.
    """
    library = tokenizers.Tokenizer(tokenizer.model)
    library.normalizer = normalizers.BertNormalizer(
        lowercase=tokenizer.lower_case,
        strip_accents=tokenizer.config()["strip_accents"],
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    return library
