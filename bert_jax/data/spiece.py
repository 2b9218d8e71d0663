"""SentencePiece models that have BERT's special tokens."""

import functools
import hashlib
import itertools
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import sentencepiece

from bert_jax.data.library import SPACE, utf8
from bert_jax.data.tokenizer import Tokenizer

# Scripts without spaces between words: first words of their letters' Unicode names.
_WITHOUT_SPACES = {
    *("CJK", "HIRAGANA", "KATAKANA"),
    *("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"),
}


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
        first, *rest = text.split(self.special.mask) if allow_mask else [text]
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
        return " ".join(text.replace(SPACE, " ").split())

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


def _starts_word(token: str) -> bool:
    """Whether a token of SentencePiece starts with a space, or needs no space before it."""
    first = token[0]
    script = unicodedata.name(first, "").partition(" ")[0]
    alone = unicodedata.category(first) == "Lo" and script in _WITHOUT_SPACES
    return first == SPACE or alone
