"""What a tokenizer is, whatever its kind."""

import abc
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from bert_jax.errors import UserError
from bert_jax.files import write_bytes, write_json

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
)
# The same under transformers' names.
SPECIAL_TOKENS_MAP = dict(
    zip(
        ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"),
        SPECIAL_TOKENS,
        strict=True,
    )
)


class Tokenizer(abc.ABC):
    """What every kind of tokenizer offers.

    tokens: token of each id. ids: id of each token. lower_case: whether text is
    lower-cased first. continuation: bool (vocab_size,), tokens that continue the word
    before them; whole-word masking joins them. kind: "wordpiece" or "sentencepiece".
    dtype: of the ids, uint16, or uint32 where the vocabulary needs it.
    """

    kind: ClassVar[str]
    file_name: ClassVar[str]  # of the vocabulary, as transformers names it

    def __init__(
        self, tokens: Sequence[str], continuation: np.ndarray, lower_case: bool
    ):
        self.tokens = list(tokens)
        self.lower_case = lower_case
        self.continuation = continuation
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            self.ids[token] for token in SPECIAL_TOKENS
        )
        self.dtype = np.dtype(np.uint16 if len(tokens) <= 1 << 16 else np.uint32)

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return len(self.tokens)

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

    def tokenize(self, text: str) -> list[str]:
        """The tokens of a text."""
        return [self.tokens[i] for i in self.encode(text)]

    def fingerprint(self) -> str:
        """SHA-256 of the vocabulary and of what else decides the ids."""
        text = "\n".join([self.kind, str(self.lower_case), *self.tokens])
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
        path.parent.mkdir(parents=True, exist_ok=True)
        # The vocabulary last: whoever finds it finds its settings too.
        write_json(config_path(path), self.config())
        write_bytes(path, self.vocabulary_bytes())


def config_path(vocabulary: Path) -> Path:
    """Where the settings of a vocabulary file lie.

    A file of another name than transformers' own has settings of its own: cased.txt and
    uncased.txt can share a folder.
    """
    if vocabulary.name in ("vocab.txt", "spiece.model", "tokenizer.json"):
        return vocabulary.with_name("tokenizer_config.json")
    return vocabulary.with_name(f"{vocabulary.stem}_config.json")


def check_special_tokens(tokens: Sequence[str], path: Path) -> None:
    """Raises where a special token is missing or a token stands twice."""
    missing = [token for token in SPECIAL_TOKENS if token not in set(tokens)]
    if missing:
        raise UserError(
            f"{path} has {len(tokens)} tokens but no {' '.join(missing)}; expected a BERT "
            "vocabulary, one token a line"
        )
    first: dict[str, int] = {}
    for i, token in enumerate(tokens):
        # An empty line keeps its id, which no text ever gets.
        if token and first.setdefault(token, i) != i:
            raise UserError(
                f"{path} has the token {token!r} twice, as ids {first[token]} and {i}; "
                "expected every token once, so remove or rename one of them"
            )
