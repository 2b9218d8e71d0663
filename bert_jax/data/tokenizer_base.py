"""What every kind of tokenizer shares: its pieces, its checks, its files."""

import abc
import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from bert_jax.errors import UserError

PAD, UNK, CLS, SEP, MASK = SPECIAL_PIECES = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
)


class Tokenizer(abc.ABC):
    """Text to piece ids and back.

    pieces: id -> piece. continuation: bool [vocab_size], True where a piece goes on
    with the word before it. dtype: of the ids, uint16 where the vocabulary fits.
    """

    kind: ClassVar[str]
    file_name: ClassVar[str]  # of the vocabulary, as transformers names it

    def __init__(
        self, pieces: Sequence[str], *, lower_case: bool, continuation: np.ndarray
    ):
        self.pieces = list(pieces)
        self.vocab_size = len(self.pieces)
        self.lower_case = lower_case
        self.continuation = continuation
        self.dtype = np.dtype(np.uint16 if self.vocab_size <= 65536 else np.uint32)
        ids = {piece: i for i, piece in enumerate(self.pieces)}
        missing = [piece for piece in SPECIAL_PIECES if piece not in ids]
        if missing:
            raise UserError(
                f"a vocabulary needs {' '.join(SPECIAL_PIECES)}; this one of "
                f"{self.vocab_size} pieces has no {' '.join(missing)}: add it, or train "
                "a vocabulary with python -m bert_jax.vocabulary"
            )
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            ids[piece] for piece in SPECIAL_PIECES
        )

    @abc.abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, without [CLS] and [SEP]; the arrays may be read-only.

        Text that spells a special piece, such as "[MASK]", is ordinary text.
        """

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text that the ids spell, words parted by single spaces."""

    @abc.abstractmethod
    def vocabulary_bytes(self) -> bytes:
        """The content of the vocabulary file."""

    def encode(self, text: str, *, allow_mask: bool = False) -> np.ndarray:
        """Ids of one text; with allow_mask the text "[MASK]" becomes mask_id."""
        parts = self.encode_batch(text.split(MASK) if allow_mask else [text])
        mask = np.array([self.mask_id], self.dtype)
        between = [part for ids in parts for part in (mask, ids)][1:]
        return np.concatenate(between)

    def tokenize(self, text: str) -> list[str]:
        """The pieces of one text."""
        return [self.pieces[i] for i in self.encode(text)]

    def fingerprint(self) -> str:
        """Sha256 of the vocabulary and its settings, in hex."""
        settings = f"{self.kind} lower_case={self.lower_case}\n".encode()
        return hashlib.sha256(settings + self.vocabulary_bytes()).hexdigest()

    def config(self) -> dict:
        """What tokenizer_config.json holds; transformers reads the same file."""
        return {"kind": self.kind, "do_lower_case": self.lower_case}

    def save(self, directory: str | os.PathLike) -> None:
        """Writes the vocabulary and tokenizer_config.json into the directory."""
        self.save_as(Path(directory) / self.file_name)

    def save_as(self, path: str | os.PathLike) -> None:
        """Writes the vocabulary to this file and its settings beside it."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        config = json.dumps(self.config(), indent=2) + "\n"
        # The vocabulary comes last: whoever finds it also finds its settings.
        _write(config_path(path), config.encode())
        _write(path, self.vocabulary_bytes())


def config_path(vocabulary: Path) -> Path:
    """Where the settings of a vocabulary file lie.

    A file of another name than transformers' own gets a settings file of its own, so
    that cased.txt and uncased.txt can share a folder.
    """
    if vocabulary.name in ("vocab.txt", "spiece.model"):
        return vocabulary.with_name("tokenizer_config.json")
    return vocabulary.with_name(f"{vocabulary.stem}_config.json")


def looks_lower_case(pieces: Sequence[str]) -> bool:
    """Whether a vocabulary that does not say so is of lower-cased text.

    A cased one of any Latin text has capitals A-Z outside its [special] pieces.
    """
    return not any(re.match(r"[^\[]*[A-Z]", piece) for piece in pieces)


def _write(path: Path, content: bytes) -> None:
    """Writes a file so that a reader sees all of it or none."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
