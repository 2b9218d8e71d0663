"""SentencePiece: for languages without spaces, behind the same interface."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import sentencepiece

from bert_jax.data.tokenizer_base import (
    Tokenizer,
    check_special_tokens,
)
from bert_jax.errors import UserError

# How SentencePiece writes a space.
_SPACE = "\u2581"


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model that has BERT's special tokens.

    A word starts with the token that holds the space before it; in a language without
    spaces whole-word masking therefore masks whole sentences, so use another masking.
    """

    kind = "sentencepiece"
    file_name = "spiece.model"

    def __init__(self, model: bytes, lower_case: bool | None, path: Path):
        """Takes a .model file's content.

        lower_case: None means unless tokens have capitals. path: what errors name.
        """
        try:
            if not model:  # which the library would take, with a line on stderr
                raise RuntimeError("empty")
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise UserError(
                f"{path} is not a SentencePiece model; expected one that python -m "
                "bert_jax.vocabulary --kind sentencepiece wrote"
            ) from error
        self._model = model
        self._path = path
        processor, size = self._processor, self._processor.vocab_size()
        tokens = [processor.id_to_piece(i) for i in range(size)]
        check_special_tokens(tokens, path)
        special = [
            processor.is_control(i) or processor.is_unknown(i) for i in range(size)
        ]
        continuation = np.array(
            [
                not (own or token.startswith(_SPACE))
                for own, token in zip(special, tokens, strict=True)
            ]
        )
        self._special = frozenset(np.flatnonzero(special).tolist())
        if lower_case is None:
            lower_case = not any(
                char.isupper()
                for i, token in enumerate(tokens)
                if i not in self._special
                for char in token
            )
        super().__init__(tokens, continuation, lower_case)

    @classmethod
    def from_file(cls, path: Path, lower_case: bool | None) -> "SentencePieceTokenizer":
        """Reads a .model file."""
        return cls(path.read_bytes(), lower_case, path)

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
            f"{_SPACE}{self.tokens[i]}{_SPACE}"
            if i in self._special
            else self.tokens[i]
            for i in map(int, ids)
        )
        return " ".join(text.replace(_SPACE, " ").split())

    def scores(self) -> list[float]:
        """The log probability of each token."""
        return [self._processor.get_score(i) for i in range(self.vocab_size)]

    def vocabulary_bytes(self) -> bytes:
        """The .model file."""
        return self._model

    def __reduce__(self):
        """Pickles as its file."""
        return SentencePieceTokenizer, (self._model, self.lower_case, self._path)
