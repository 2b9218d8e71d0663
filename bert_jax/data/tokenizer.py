"""Tokenizers, whatever their kind: load_tokenizer reads what others and we wrote."""

import json
import os
from pathlib import Path

from bert_jax.data.sentencepiece import SentencePieceTokenizer
from bert_jax.data.tokenizer_base import Tokenizer, config_path, looks_lower_case
from bert_jax.data.wordpiece import WordPieceTokenizer, read_pieces
from bert_jax.errors import UserError

__all__ = ["Tokenizer", "load_tokenizer"]

_FILE_NAMES = ("vocab.txt", "spiece.model", "tokenizer.json")


def load_tokenizer(
    path: str | os.PathLike, *, lower_case: bool | None = None
) -> Tokenizer:
    """The tokenizer of a folder, a vocab.txt, a SentencePiece model or a tokenizer.json.

    path: a folder that Tokenizer.save or transformers wrote, or one such file, also
      under another name (.model means SentencePiece, .json a tokenizer.json).
    lower_case: None takes what tokenizer_config.json beside it says, or else, as with
      Google's own files, what the pieces look like: lower-cased unless some of them
      have capitals A-Z.
    Raises UserError for a missing or unusable file.
    """
    path = _find(Path(path))
    settings = _settings(path)
    if lower_case is None:
        lower_case = settings.get("do_lower_case")
    try:
        if path.suffix == ".model":
            return SentencePieceTokenizer(path.read_bytes(), lower_case=lower_case)
        pieces = _json_pieces(path) if path.suffix == ".json" else read_pieces(path)
        if lower_case is None:
            lower_case = looks_lower_case(pieces)
        _refuse_other_rules(settings, lower_case)
        return WordPieceTokenizer(pieces, lower_case=lower_case)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _find(path: Path) -> Path:
    """The vocabulary file that path means."""
    if path.is_dir():
        for name in _FILE_NAMES:
            if (path / name).is_file():
                return path / name
        raise UserError(
            f"{path}: expected {', '.join(_FILE_NAMES[:2])} or {_FILE_NAMES[2]} in this "
            "folder and found none; name the vocabulary file itself"
        )
    if not path.is_file():
        raise UserError(
            f"{path}: no such vocabulary; train one with python -m bert_jax.vocabulary "
            "or name an existing vocab.txt"
        )
    return path


def _settings(path: Path) -> dict:
    """The settings beside a vocabulary file, under transformers' names."""
    for beside in (config_path(path), path.with_name("tokenizer_config.json")):
        if beside.is_file():
            return _read_json(beside)
    if path.suffix != ".json":
        return {}
    normalizer = _read_json(path).get("normalizer") or {}
    names = {
        "lowercase": "do_lower_case",
        "strip_accents": "strip_accents",
        "handle_chinese_chars": "tokenize_chinese_chars",
    }
    return {
        ours: normalizer[name] for name, ours in names.items() if name in normalizer
    }


def _refuse_other_rules(settings: dict, lower_case: bool) -> None:
    """Refuses settings under which transformers would cut text in other ways."""
    rules = {"strip_accents": lower_case, "tokenize_chinese_chars": True}
    for name, ours in rules.items():
        theirs = settings.get(name)
        if theirs is not None and theirs != ours:
            raise UserError(
                f"its settings ask for {name}={theirs}, but Google's rules, the only "
                f"ones here, mean {ours} where do_lower_case={lower_case}; take another "
                f"vocabulary, or change {name} in its tokenizer_config.json"
            )


def _json_pieces(path: Path) -> list[str]:
    """The pieces of a tokenizer.json, for folders that have no vocab.txt."""
    model = _read_json(path).get("model") or {}
    vocabulary = model.get("vocab")
    if model.get("type") != "WordPiece" or not isinstance(vocabulary, dict):
        raise UserError(
            "expected a tokenizer.json with a WordPiece model, got "
            f"{model.get('type')!r}; name a vocab.txt or a SentencePiece model"
        )
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise UserError(
            f"expected the ids 0 to {len(vocabulary) - 1}, each once; some are missing "
            "or stand twice"
        )
    return sorted(vocabulary, key=vocabulary.get)


def _read_json(path: Path) -> dict:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path}: expected JSON: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content
