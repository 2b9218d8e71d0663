"""The tokenizer.json of the tokenizers library, where it is Google's WordPiece."""

from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.data.tokenizer_base import UNK, check_special_tokens
from bert_jax.data.wordpiece import PREFIX
from bert_jax.errors import UserError
from bert_jax.files import read_json


class TokenizerJson(NamedTuple):
    """The tokens in the order of their ids, and whether text is lower-cased."""

    tokens: list[str]
    lower_case: bool


def read_tokenizer_json(path: Path) -> TokenizerJson:
    """Reads the vocabulary of a tokenizer.json.

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
    return TokenizerJson(tokens, normalizer["lowercase"])


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
