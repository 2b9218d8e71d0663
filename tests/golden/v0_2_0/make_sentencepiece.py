"""Makes sentencepiece/, text that bert_jax 0.2.0 (0d29e5c5) prepared with SentencePiece.

The scores are chosen so that "seat" has two best splits, up to the last bit of their sums.
0.2.0 encoded with the sentencepiece package, which splits it in another way than the
tokenizers library.

    python tests/golden/v0_2_0/make_sentencepiece.py     (in a checkout of 0d29e5c5)
"""

import os
import shutil
from pathlib import Path

from sentencepiece.sentencepiece_model_pb2 import ModelProto

from bert_jax.data.preparation import prepare
from bert_jax.data.tokenizer import SentencePieceTokenizer

FOLDER = Path(__file__).parent / "sentencepiece"
SCORES = {
    "▁": -2.6,
    "e": -2.2,
    "a": -2.7,
    "t": -2.3,
    "h": -2.4,
    "▁s": -2.7,
    "▁cat": -2.4,
    "▁whale": -2.7,
    "s": -2.1,
    "f": -2.1,
    "i": -2.6,
    "o": -2.2,
    "w": -2.7,
    "▁sa": -2.3,
    "l": -2.2,
    "c": -2.2,
    "▁sat": -2.2,
    "at": -2.7,
    "ca": -2.4,
    "▁ca": -2.4,
    "sa": -2.7,
    "se": -2.7,
    "ea": -2.6,
    "▁c": -2.4,
}
TEXT = "seat at a cat\na cat sat\n\nease a seat\na sea\n"


def model() -> bytes:
    """The .model file, without a normalisation table."""
    proto = ModelProto()
    proto.trainer_spec.model_type = proto.trainer_spec.UNIGRAM
    proto.trainer_spec.pad_id, proto.trainer_spec.unk_id = 0, 1
    proto.trainer_spec.bos_id = proto.trainer_spec.eos_id = -1
    proto.trainer_spec.unk_piece = "[UNK]"
    proto.trainer_spec.pad_piece = "[PAD]"
    proto.normalizer_spec.name = "identity"
    kinds = proto.SentencePiece
    for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"):
        kind = kinds.UNKNOWN if token == "[UNK]" else kinds.CONTROL
        proto.pieces.add(piece=token, score=0, type=kind)
    for token, score in SCORES.items():
        proto.pieces.add(piece=token, score=score)
    return proto.SerializeToString()


def main() -> None:
    """Writes text.txt and store/."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    os.chdir(FOLDER)
    Path("text.txt").write_text(TEXT)
    tokenizer = SentencePieceTokenizer(model(), lower_case=True)
    prepare(["text.txt"], tokenizer, Path("store"), workers=1, format="lines")


if __name__ == "__main__":
    main()
