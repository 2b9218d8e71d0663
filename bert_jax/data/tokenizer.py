"""Text to tokens: Google's WordPiece, exactly, or SentencePiece."""

from pathlib import Path
from typing import Any

from bert_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer
from bert_jax.data.tokenizer_base import (
    UNK,
    Tokenizer,
    check_special_tokens,
    config_path,
)
from bert_jax.data.wordpiece import PREFIX, WordPieceTokenizer
from bert_jax.errors import UserError
from bert_jax.files import read_json

__all__ = ["Tokenizer", "find_vocabulary", "load_tokenizer"]

_FILES = ("vocab.txt", "spiece.model", "tokenizer.json")


def find_vocabulary(directory: Path) -> Path | None:
    """The file in a folder that ``load_tokenizer`` reads; None where there is none."""
    return next((directory / n for n in _FILES if (directory / n).is_file()), None)


def load_tokenizer(path: Path | str, *, lower_case: bool | None = None) -> Tokenizer:
    """Reads a vocab.txt, a SentencePiece .model, a tokenizer.json, or a folder of one.

    lower_case: overrides the tokenizer_config.json beside the vocabulary. Without either,
    a tokenizer.json says it itself, and for the others the tokens tell: text is
    lower-cased unless some of them have capitals.
    """
    path = Path(path)
    if path.is_dir():
        found = find_vocabulary(path)
        if found is None:
            raise UserError(
                f"{path} holds no vocabulary; expected {' or '.join(_FILES)}"
            )
        path = found
    if not path.is_file():
        raise UserError(
            f"{path} does not exist; expected a vocabulary, as python -m "
            "bert_jax.vocabulary writes it"
        )
    if lower_case is None:
        lower_case = _saved_lower_case(path)
    if path.suffix == ".model":
        return SentencePieceTokenizer.from_file(path, lower_case)
    if path.suffix == ".json":
        tokens, its_lower_case = _read_tokenizer_json(path)
        return WordPieceTokenizer(
            tokens, its_lower_case if lower_case is None else lower_case
        )
    return WordPieceTokenizer.from_file(path, lower_case)


def _saved_lower_case(vocabulary: Path) -> bool | None:
    """What the settings beside a vocabulary say; None where they say nothing."""
    for path in (
        config_path(vocabulary),
        vocabulary.with_name("tokenizer_config.json"),
    ):
        if path.is_file():
            break
    else:
        return None
    settings = read_json(path, "the settings of a tokenizer")
    lower_case = settings.get("do_lower_case")
    _refuse_other_rules(settings, lower_case, path)
    return lower_case


def _refuse_other_rules(settings: dict, lower_case: bool | None, path: Path) -> None:
    """Refuses settings under which transformers cuts text in other ways than Google."""
    rules = {
        "do_lower_case": (True, False, None),
        "tokenize_chinese_chars": (True, None),
    }
    if lower_case is not None:
        rules["strip_accents"] = (lower_case, None)
    for name, known in rules.items():
        value = settings.get(name)
        if not any(value is rule for rule in known):
            raise UserError(
                f"{path} asks for {name}={value!r}; expected {known[0]}, as Google's "
                "tokenizer works; change it, or take another vocabulary"
            )


def _read_tokenizer_json(path: Path) -> tuple[list[str], bool]:
    """The tokens of a tokenizer.json by their ids, and whether text is lower-cased.

    Raises UserError for any tokenizer which cuts text in another way than Google's.
    """
    settings = read_json(path, "the tokenizer.json of a WordPiece tokenizer")
    try:
        model, normalizer = settings["model"], settings["normalizer"]
        ids = dict(model["vocab"])
        ids |= {t["content"]: t["id"] for t in settings.get("added_tokens", ())}
        _check_rules(settings, model, normalizer, path)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is not the tokenizer.json of a WordPiece tokenizer ({error!r}); "
            "expected BertTokenizerFast's, or put its vocab.txt there"
        ) from error
    tokens = sorted(ids, key=ids.get)
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise UserError(
            f"{path}: the ids of its {len(tokens)} tokens are not 0 to "
            f"{len(tokens) - 1}; expected every id once"
        )
    check_special_tokens(tokens, path)
    return tokens, normalizer["lowercase"]


def _check_rules(
    settings: dict[str, Any],
    model: dict[str, Any],
    normalizer: dict[str, Any],
    path: Path,
) -> None:
    lower_case = normalizer.get("lowercase")
    strip_accents = normalizer.get("strip_accents")
    ideographs = normalizer.get("handle_chinese_chars")
    prefix = model.get("continuing_subword_prefix")
    pre_tokenizer = settings["pre_tokenizer"]
    rules = [
        ("model.type", model.get("type", "WordPiece"), ("WordPiece",)),
        ("model.unk_token", model.get("unk_token"), (UNK,)),
        ("model.continuing_subword_prefix", prefix, (PREFIX,)),
        ("normalizer.type", normalizer.get("type"), ("BertNormalizer",)),
        ("normalizer.lowercase", lower_case, (True, False)),
        ("normalizer.clean_text", normalizer.get("clean_text"), (True,)),
        ("normalizer.handle_chinese_chars", ideographs, (True,)),
        ("normalizer.strip_accents", strip_accents, (None, lower_case)),
        ("pre_tokenizer.type", pre_tokenizer.get("type"), ("BertPreTokenizer",)),
    ]
    for name, value, known in rules:
        if value not in known:
            raise UserError(
                f"{path} asks for {name}={value!r}; expected {known[0]!r}, as Google's "
                "tokenizer works; take a WordPiece vocabulary made for it"
            )
