"""Text to pieces: Google's WordPiece, exactly, or SentencePiece."""

import json
from pathlib import Path

from bert_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer
from bert_jax.data.tokenizer_base import CONFIG_FILE, Tokenizer
from bert_jax.data.wordpiece import WordPieceTokenizer
from bert_jax.errors import UserError

__all__ = ["Tokenizer", "load_tokenizer"]


def load_tokenizer(path: Path | str, *, lower_case: bool | None = None) -> Tokenizer:
    """Reads a vocab.txt, a SentencePiece .model, or a directory that holds one.

    lower_case: overrides the tokenizer_config.json beside the vocabulary; without either,
    text is lower-cased, as the uncased models want.
    """
    path = Path(path)
    if path.is_dir():
        names = ("vocab.txt", "spiece.model")
        found = [path / name for name in names if (path / name).is_file()]
        if not found:
            raise UserError(
                f"{path} holds no vocabulary; expected {' or '.join(names)}"
            )
        path = found[0]
    if not path.is_file():
        raise UserError(
            f"{path} does not exist; expected a vocabulary, as python -m "
            "bert_jax.vocabulary writes it"
        )
    if lower_case is None:
        lower_case = _saved_lower_case(path.parent / CONFIG_FILE)
    if path.suffix == ".model":
        return SentencePieceTokenizer.from_file(path, lower_case)
    return WordPieceTokenizer.from_file(path, lower_case)


def _saved_lower_case(config: Path) -> bool:
    if not config.is_file():
        return True
    try:
        return bool(json.loads(config.read_text()).get("do_lower_case", True))
    except (ValueError, AttributeError) as error:
        raise UserError(f"{config} is not a JSON object ({error})") from error
