"""What a tokenizer is, whatever its kind."""

import abc
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert_jax.errors import UserError

PAD, UNK, CLS, SEP, MASK = SPECIAL_PIECES = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
)
CONFIG_FILE = "tokenizer_config.json"


class Tokenizer(abc.ABC):
    """What every kind of tokenizer offers.

    pieces: piece of each id. lower_case: whether text is lower-cased first.
    continuation: bool (vocab_size,), pieces that continue the word before them; whole-word
    masking joins them. kind: "wordpiece" or "sentencepiece".
    """

    kind: str

    def __init__(self, pieces: list[str], continuation: np.ndarray, lower_case: bool):
        self.pieces = pieces
        self.lower_case = lower_case
        self.continuation = continuation
        self.ids = {piece: i for i, piece in enumerate(pieces)}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            self.ids[piece] for piece in SPECIAL_PIECES
        )
        self._dtype = np.uint16 if len(pieces) <= 1 << 16 else np.uint32

    @property
    def vocab_size(self) -> int:
        """The number of pieces."""
        return len(self.pieces)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, without [CLS] and [SEP]: uint16, or uint32 if need be."""
        return [np.array(ids, self._dtype) for ids in self._encode(texts)]

    def encode(self, text: str, *, allow_mask: bool = False) -> np.ndarray:
        """Ids of one text; "[MASK]" in it is ordinary text unless ``allow_mask``."""
        if not allow_mask:
            return self.encode_batch([text])[0]
        ids: list[int] = []
        for i, part in enumerate(self._encode(text.split(MASK))):
            ids += [self.mask_id, *part] if i else part
        return np.array(ids, self._dtype)

    def tokenize(self, text: str) -> list[str]:
        """The pieces of a text."""
        return [self.pieces[i] for i in self._encode([text])[0]]

    def fingerprint(self) -> str:
        """SHA-256 of the vocabulary and of what else decides the ids."""
        text = "\n".join([self.kind, str(self.lower_case), *self.pieces])
        return hashlib.sha256(text.encode()).hexdigest()

    @abc.abstractmethod
    def save(self, directory: Path) -> None:
        """Writes the vocabulary and tokenizer_config.json, as transformers reads them."""

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Pieces joined to words again; special pieces are kept."""

    @abc.abstractmethod
    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text."""


def check_special_pieces(pieces: Sequence[str], path: Path) -> None:
    """Raises where a special piece is missing or a piece stands twice."""
    missing = [piece for piece in SPECIAL_PIECES if piece not in set(pieces)]
    if missing:
        raise UserError(
            f"{path} has {len(pieces)} pieces but no {' '.join(missing)}; expected a BERT "
            "vocabulary, one piece a line"
        )
    if len(set(pieces)) < len(pieces):
        seen: set[str] = set()
        twice = next(p for p in pieces if p in seen or seen.add(p))
        raise UserError(
            f"{path} has the piece {twice!r} twice; remove one of the lines"
        )


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
