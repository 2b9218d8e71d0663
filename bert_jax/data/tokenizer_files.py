"""Files of tokenizers: our own, and those that transformers writes."""

import collections
import itertools
import json
import logging
from collections.abc import Container
from pathlib import Path
from typing import Any, Required, TypedDict

from tokenizers import models

from bert_jax.data import tokenizer_json
from bert_jax.data.class_rules import BERT, GENERAL, unused_rules, with_class_rules
from bert_jax.data.library import LibraryTokenizer
from bert_jax.data.spiece import SentencePieceTokenizer, fairseq_json
from bert_jax.data.text_arrays import INPUT_NAMES
from bert_jax.data.tokenizer import (
    BERT_TOKENS,
    FAIRSEQ_TOKENS,
    FILES,
    LONGEST,
    MERGES,
    SpecialTokens,
    Tokenizer,
    bert_template,
    config_path,
)
from bert_jax.data.wordpiece import LONGEST_WORD, PREFIX, WordPieceTokenizer
from bert_jax.errors import UserError, listed, naming
from bert_jax.files import ending, expanded, read_json, read_text, reading

# Settings that change tokens, and their supported values, Google's first. For a
# tokenizer.json only _WORD_RULES are checked, because it has its own form of the others.
_WORD_RULES: dict[str, tuple] = {
    "clean_text": (True, None),
    "do_basic_tokenize": (True, None),
    "never_split": (None, []),
}
_RULES: dict[str, tuple] = {
    "do_lower_case": (True, False, None),
    "strip_accents": (None, True, False),
    "tokenize_chinese_chars": (True, None),
    **_WORD_RULES,
    **{name: (token, None) for name, token in BERT_TOKENS.settings().items()},
    "tokenizer_class": (
        *BERT,
        *(f"{name}Fast" for name in BERT),
        None,
    ),
}
# Settings with added tokens. The first setting is the content of added_tokens.json.
_ADDED = (
    "added_tokens",
    "additional_special_tokens",
    "extra_special_tokens",
    "added_tokens_decoder",
)
# Classes that a vocab.json with merges.txt may have. Other classes split text differently.
_BYTE_LEVEL = ("RobertaTokenizer", "RobertaTokenizerFast", *GENERAL, None)
# Settings that name a special token if its own setting does not.
_OTHER_NAMES = {"cls_token": "bos_token", "sep_token": "eos_token"}
_NO_LIMIT = 1e9  # transformers writes 1e30
_EXPECTED = f"the {' or '.join(FILES)} of a tokenizer"

logger = logging.getLogger(__name__)


class _AddedToken(TypedDict, total=False):
    """A token as an object. The flags control how an added token is matched in text."""

    content: Required[str]
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool


_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


_Token = str | _AddedToken | None


class _SpecialTokens(TypedDict, total=False):
    """The form of special_tokens_map.json."""

    unk_token: _Token
    pad_token: _Token
    cls_token: _Token
    sep_token: _Token
    mask_token: _Token
    bos_token: _Token
    eos_token: _Token
    additional_special_tokens: list[_Token] | None
    extra_special_tokens: list[_Token] | dict[str, _Token] | None


class _Settings(_SpecialTokens, total=False):
    """The form of tokenizer_config.json: the keys that are read."""

    kind: str
    do_lower_case: bool | None
    strip_accents: bool | None
    tokenize_chinese_chars: bool | None
    clean_text: bool | None
    do_basic_tokenize: bool | None
    never_split: list[str] | None
    add_prefix_space: bool | None
    tokenizer_class: str | None
    max_input_chars_per_word: int
    added_tokens_decoder: dict[str, _AddedToken] | None
    model_max_length: float | None
    model_input_names: list[str] | None
    truncation_side: str | None


class _Class(TypedDict, total=False):
    """The form of config.json: the keys that are read."""

    model_type: str
    tokenizer_class: str | None
    vocab_size: int


def find_vocabulary(directory: Path) -> Path | None:
    """The file in a folder that ``load_tokenizer`` reads. None without a vocabulary.

    Our own SentencePiece model takes precedence over tokenizer.json in the same folder.
    """
    names = list(FILES)
    own = SentencePieceTokenizer
    if _settings(directory / own.file_name).get("kind") == own.kind:
        names.insert(0, own.file_name)
    for name in names:
        if (directory / name).is_file():
            return directory / name
    return None


def find_tokenizer(directory: Path) -> Tokenizer | None:
    """The tokenizer in a folder. None without a vocabulary."""
    if find_vocabulary(directory) is None:
        return None
    return load_tokenizer(directory)


def load_tokenizer(path: Path | str) -> Tokenizer:
    """Reads one of FILES, or the first one in a folder, with the settings in its folder.

    A tokenizer.json in the same folder takes precedence over a file, except over our own
    .model. do_lower_case and strip_accents of tokenizer_config.json take precedence over
    the rules of a BERT tokenizer's tokenizer.json, as in transformers. Without both, text
    is lower-cased unless a token has a capital letter. Raises UserError if other files in
    the folder add tokens or rules that the vocabulary does not have.
    """
    path = Path(expanded(path))
    plain = path.name in FILES and path.name != SentencePieceTokenizer.file_name
    if plain and path.with_name("tokenizer.json").is_file():
        path = path.parent
    if path.is_dir():
        path = find_vocabulary(path) or path
    if not path.is_file():
        raise UserError(f"no vocabulary at {path}; expected {_EXPECTED}")
    settings = _settings(path)
    with naming(path), reading(path, _EXPECTED):
        content = _tokenizer_json(path, settings)
        if content is not None:
            tokenizer = _read_tokenizer_json(content, path, settings)
        else:
            tokenizer = _read_own(path, settings)
    longest = settings.get("model_max_length")
    if longest and 1 <= longest < _NO_LIMIT:
        tokenizer.model_max_length = int(longest)
    if settings.get("truncation_side") == "left":
        tokenizer.truncation = "tail"
    names = settings.get("model_input_names") or INPUT_NAMES
    if INPUT_NAMES[1] not in names:  # the types: transformers' models then use type 0
        tokenizer.template = tokenizer.template._replace(second_type=0)
    return tokenizer


def _tokenizer_json(path: Path, settings: dict[str, Any]) -> bytes | None:
    """The content of a tokenizer.json, which is built for files without rules.

    These files are the vocab.json of a byte-level BPE and sentencepiece.bpe.model, in the
    layouts of fairseq. None for a vocab.txt and our own .model.
    """
    class_name = settings.get("tokenizer_class")
    space = settings.get("add_prefix_space")
    if path.name == "vocab.json":
        if class_name not in _BYTE_LEVEL:
            raise UserError(
                f"tokenizer_class={class_name} in its settings; expected "
                f"{_BYTE_LEVEL[0]}, or a tokenizer.json from save_pretrained() of "
                "AutoTokenizer"
            )
        merges = path.with_name(MERGES)
        if not merges.is_file():
            raise UserError(f"{MERGES} is missing; expected it in the same folder")
        model = tokenizer_json.bpe_model(*models.BPE.read_file(str(path), str(merges)))
        rules = tokenizer_json.byte_level_rules(add_prefix_space=bool(space))
        return tokenizer_json.new_json(model, rules, FAIRSEQ_TOKENS)
    if path.name == "sentencepiece.bpe.model":
        size = settings.get("vocab_size")
        space = space is not False
        return fairseq_json(path.read_bytes(), class_name, size, space=space)
    if ending(path) == ".json":
        return _with_settings(path, settings)
    return None


def _read_own(path: Path, settings: dict[str, Any]) -> Tokenizer:
    """Reads a vocab.txt or our own .model, whose rules are Google's."""
    rules = dict(_RULES)
    if settings.get("kind") == SentencePieceTokenizer.kind:
        rules.pop("tokenizer_class")
    _check_rules(settings, rules)
    _check_added(settings, set(BERT_TOKENS))
    lower_case = settings.get("do_lower_case")
    if ending(path) == ".model":
        return SentencePieceTokenizer(path.read_bytes(), lower_case)
    tokens, longest = _read_tokens(path), settings.get(LONGEST, LONGEST_WORD)
    accents = settings.get("strip_accents")
    return WordPieceTokenizer(tokens, lower_case, accents, longest)


def _settings(vocabulary: Path) -> dict[str, Any]:
    """The settings in a vocabulary's files. tokenizer_config.json takes precedence."""

    def read(name: str, form: Any) -> dict[str, Any]:
        path = vocabulary.with_name(name)
        if not path.is_file():
            return {}
        return read_json(path, "settings of a tokenizer", form)

    config = read(config_path(vocabulary).name, _Settings)
    if not config:
        config = read("tokenizer_config.json", _Settings)
    if vocabulary.name not in FILES:
        return config
    model = read("config.json", _Class)
    return {
        "model_type": model.get("model_type"),
        "tokenizer_class": model.get("tokenizer_class"),
        "vocab_size": model.get("vocab_size"),
        "added_tokens": list(read("added_tokens.json", dict[str, int])),
        **read("special_tokens_map.json", _SpecialTokens),
        **config,
    }


def _check_rules(settings: dict[str, Any], rules: dict[str, tuple]) -> None:
    """Raises UserError for a setting whose value is not in ``rules``."""
    for name, values in rules.items():
        value = _content(settings.get(name))
        if value not in values:
            raise UserError(f"{name}={value!r} in its settings; expected {values[0]!r}")


def _check_added(settings: dict[str, Any], known: set[str]) -> None:
    """Raises UserError if files in the folder add tokens that are not in ``known``."""
    added = []
    for name in _ADDED:
        tokens = settings.get(name) or []
        if isinstance(tokens, dict):
            tokens = tokens.values()
        added += tokens
    new = sorted({*map(_content, added)} - known)
    if new:
        raise UserError(
            f"the other files add {listed(list(map(repr, new)))}; expected a "
            "tokenizer.json with these tokens, from save_pretrained() of AutoTokenizer"
        )


def _content(token: Any) -> Any:
    """The text of a token in settings, which may be an object."""
    if isinstance(token, dict):
        return token.get("content")
    return token


def _special_tokens(
    settings: dict[str, Any], vocabulary: Container[str]
) -> SpecialTokens:
    """The special tokens that settings name, otherwise BERT's or fairseq's.

    bos_token and eos_token name the tokens for cls and sep, if the settings have no others.
    """
    found = []
    usual = zip(BERT_TOKENS.settings().items(), FAIRSEQ_TOKENS, strict=True)
    for (name, token), other in usual:
        named = _content(settings.get(name))
        if named is None and name in _OTHER_NAMES:
            named = _content(settings.get(_OTHER_NAMES[name]))
        if named is None:
            named = token
            if token not in vocabulary and other in vocabulary:
                named = other
        found.append(named)
    return SpecialTokens(*found)


def _read_tokens(path: Path) -> list[str]:
    """The tokens of a vocab.txt, one in each line. The id is the line's number from 0."""
    text = read_text(path, _EXPECTED).rstrip()
    # Only line feeds end a line, because a token may be another separator of Unicode.
    # Like Google's code, strips each line, including its carriage return.
    tokens = [line.strip() for line in text.split("\n")]
    # An empty line keeps its id, which never occurs in encoded text.
    counts = collections.Counter(filter(None, tokens))
    for token, count in counts.items():
        if count > 1:
            raise UserError(f"{path}: {token!r} is on several lines; expected one line")
    return tokens


def _read_tokenizer_json(
    content: bytes, path: Path, settings: dict[str, Any]
) -> Tokenizer:
    """A WordPieceTokenizer if the rules are Google's, otherwise a LibraryTokenizer.

    content: the tokenizer.json of ``path``.
    """
    special = _special_tokens(settings, _vocabulary(json.loads(content)))
    tokenizer = LibraryTokenizer(content, special)
    _check_rules(settings, _WORD_RULES)
    _check_added(settings, tokenizer.added | {*special})
    vocabulary = path.with_name("vocab.txt")
    if path.name in FILES and vocabulary.is_file():
        pairs = itertools.zip_longest(_read_tokens(vocabulary), tokenizer.tokens)
        for i, (line, token) in enumerate(pairs):
            if line and line != (token or "").strip():
                raise UserError(
                    f"token {i} is {token!r}, but {line!r} in vocab.txt; remove one of the "
                    "files"
                )
    if _is_google(tokenizer):
        normalizer = tokenizer.parts["normalizer"]
        lower_case, accents = normalizer["lowercase"], normalizer.get("strip_accents")
        longest = tokenizer.parts["model"][LONGEST]
        return WordPieceTokenizer(tokenizer.tokens, lower_case, accents, longest)
    return tokenizer


def _vocabulary(parts: dict[str, Any]) -> set[str]:
    """The tokens of a tokenizer.json."""
    model = parts.get("model")
    if not isinstance(model, dict):
        raise UserError(f"it has no model of tokens; expected {_EXPECTED}")
    if "type" in model and model["type"] is None:
        raise UserError(
            'its model has "type": null; expected "BPE", "Unigram" or another'
        )
    tokens = {token["content"] for token in parts.get("added_tokens") or ()}
    for entry in model["vocab"]:
        if isinstance(entry, list):  # of a Unigram model: the token and its score
            entry = entry[0]
        tokens.add(entry)
    return tokens


def _with_settings(path: Path, settings: dict[str, Any]) -> bytes:
    """A tokenizer.json with the rules and the template that transformers uses."""
    content = path.read_bytes()
    parts = json.loads(content)
    special = _special_tokens(settings, _vocabulary(parts))
    new = with_class_rules(parts, settings, special)
    new = _with_flags(new, settings)
    if new == parts:
        return content
    for name in unused_rules(parts, new):
        logger.warning(
            f"{path}: its {name} is not used, because {settings['tokenizer_class']} has "
            f"its own, as in transformers 5; tokenizer_class={GENERAL[0]} would use it"
        )
    return json.dumps(new).encode()


def _with_flags(parts: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json whose added tokens have the flags of tokenizer_config.json."""
    named = settings.get("added_tokens_decoder") or {}
    tokens = []
    for token in parts.get("added_tokens") or ():
        other = named.get(str(token["id"]), {})
        if other.get("content") == token["content"]:
            flags = {flag: other[flag] for flag in _FLAGS if flag in other}
            token = token | flags
        tokens.append(token)
    if not tokens:
        return parts
    return parts | {"added_tokens": tokens}


def _is_google(tokenizer: LibraryTokenizer) -> bool:
    """Whether a tokenizer.json splits text and joins texts as Google's tokenizer does."""
    parts = tokenizer.parts
    model, normalizer = parts["model"], parts["normalizer"] or {}
    added = {token["content"] for token in parts["added_tokens"]}
    template = bert_template(tokenizer.cls_id, tokenizer.sep_id)
    return (
        # The library's model, because old files leave its type out.
        isinstance(tokenizer.library.model, models.WordPiece)
        and (tokenizer.special, tokenizer.template) == (BERT_TOKENS, template)
        and (model["unk_token"], model["continuing_subword_prefix"])
        == (BERT_TOKENS.unk, PREFIX)
        and normalizer.get("type") == "BertNormalizer"
        and normalizer["clean_text"] is normalizer["handle_chinese_chars"] is True
        and (parts["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"
        and added <= set(BERT_TOKENS)
        # A vocab.txt has one token in each line, without spaces around it.
        and all(
            token == token.strip() and "\n" not in token for token in model["vocab"]
        )
    )


def config_token_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """The ids of the first and last token of a text, by their keys in config.json."""
    return {
        "bos_token_id": tokenizer.cls_id,
        "eos_token_id": tokenizer.sep_id,
        "cls_token_id": tokenizer.cls_id,
        "sep_token_id": tokenizer.sep_id,
    }
