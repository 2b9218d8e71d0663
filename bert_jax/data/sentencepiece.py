"""SentencePiece as a second kind of tokenizer, for languages without spaces."""

import functools
from collections.abc import Sequence

import numpy as np
import sentencepiece

from bert_jax.data.tokenizer_base import Tokenizer, looks_lower_case
from bert_jax.errors import UserError

SPACE = "\u2581"  # what SentencePiece writes for a space; it opens a word


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model with BERT's special pieces among its own.

    model: the content of the .model file. lower_case: lower-cases text before it is
    encoded (accents stay); None infers it from the pieces.
    """

    kind = "sentencepiece"
    file_name = "spiece.model"

    def __init__(self, model: bytes, *, lower_case: bool | None = None):
        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            if not model or not self._processor.LoadFromSerializedProto(model):
                raise RuntimeError
        except RuntimeError:
            raise UserError(
                f"expected a SentencePiece model, got {len(model)} bytes that are none; "
                "train one with python -m bert_jax.vocabulary --kind sentencepiece"
            ) from None
        processor, size = self._processor, self._processor.vocab_size()
        pieces = [processor.id_to_piece(i) for i in range(size)]
        ordinary = [
            not (processor.is_control(i) or processor.is_unknown(i))
            for i in range(size)
        ]
        continuation = [
            own and not piece.startswith(SPACE)
            for own, piece in zip(ordinary, pieces, strict=True)
        ]
        if lower_case is None:
            lower_case = looks_lower_case(pieces)
        super().__init__(
            pieces, lower_case=lower_case, continuation=np.array(continuation, bool)
        )

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text; see Tokenizer.encode_batch."""
        if self.lower_case:
            texts = [text.lower() for text in texts]
        try:
            rows = self._processor.encode(list(texts), out_type=int, num_threads=1)
        except UnicodeEncodeError:  # a lone surrogate, which UTF-8 cannot hold
            whole = [text.encode("utf-8", "replace").decode() for text in texts]
            rows = self._processor.encode(whole, out_type=int, num_threads=1)
        return [np.array(row, self.dtype) for row in rows]

    def decode(self, ids: Sequence[int]) -> str:
        """The text that the pieces spell; special pieces stand as words."""
        text = "".join(
            self.pieces[i] if self._is_text(i) else f"{SPACE}{self.pieces[i]}{SPACE}"
            for i in map(int, ids)
        )
        return " ".join(text.replace(SPACE, " ").split())

    def _is_text(self, piece_id: int) -> bool:
        processor = self._processor
        return not (processor.is_control(piece_id) or processor.is_unknown(piece_id))

    def vocabulary_bytes(self) -> bytes:
        """The .model file."""
        return self._model

    def __reduce__(self):
        """Pickles as the model file."""
        return functools.partial(
            SentencePieceTokenizer, self._model, lower_case=self.lower_case
        ), ()
