"""SentencePiece: for languages without spaces, behind the same interface."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import sentencepiece

from bert_jax.data.tokenizer_base import (
    CONFIG_FILE,
    SPECIAL_PIECES,
    Tokenizer,
    check_special_pieces,
    write_text,
)
from bert_jax.errors import UserError

# How SentencePiece writes a space.
_SPACE = "\u2581"


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model that has BERT's special pieces.

    A word starts with the piece that holds the space before it; in a language without
    spaces whole-word masking therefore masks whole sentences, so use another masking.
    """

    kind = "sentencepiece"

    def __init__(self, model: bytes, lower_case: bool, path: Path):
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise UserError(f"{path} is not a SentencePiece model") from error
        self._model = model
        size = self._processor.vocab_size()
        pieces = [self._processor.id_to_piece(i) for i in range(size)]
        check_special_pieces(pieces, path)
        continuation = np.array(
            [not p.startswith(_SPACE) and p not in SPECIAL_PIECES for p in pieces]
        )
        super().__init__(pieces, continuation, lower_case)

    @classmethod
    def from_file(cls, path: Path, lower_case: bool) -> "SentencePieceTokenizer":
        """Reads a .model file."""
        return cls(path.read_bytes(), lower_case, path)

    def save(self, directory: Path) -> None:
        """Writes spiece.model and tokenizer_config.json."""
        temporary = directory / "spiece.model.tmp"
        temporary.write_bytes(self._model)
        shutil.move(temporary, directory / "spiece.model")
        config = {"kind": self.kind, "do_lower_case": self.lower_case}
        write_text(directory / CONFIG_FILE, json.dumps(config, indent=2) + "\n")

    def decode(self, ids: Sequence[int]) -> str:
        """Pieces joined, spaces where the pieces have them."""
        return "".join(self.pieces[i] for i in ids).replace(_SPACE, " ").strip()

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        if self.lower_case:
            texts = [text.lower() for text in texts]
        return self._processor.encode(list(texts), num_threads=1)
