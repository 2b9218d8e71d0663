"""Files of tokenizers, of our own and as transformers writes them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from bert_jax.data.tokenizer import (
    CLS,
    FILES,
    LONGEST,
    SEP,
    SPECIAL_TOKENS,
    SPECIAL_TOKENS_MAP,
    UNK,
    LibraryTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    WordPieceTokenizer,
    add_special_tokens,
    check_template,
    config_path,
    from_json,
    library_tokenizer,
)
from bert_jax.data.wordpiece import LONGEST_WORD, PREFIX
from bert_jax.errors import UserError, listed, naming
from bert_jax.files import ending, is_remote, read_json, read_text

# Classes of transformers that split text as BertTokenizer does.
_BERT_CLASSES = {
    f"{model}Tokenizer{end}"
    for model in ("Bert", "DistilBert", "Electra")
    for end in ("", "Fast")
}
# Classes that read every rule from tokenizer.json.
_JSON_CLASSES = {"PreTrainedTokenizerFast", "TokenizersBackend"}


def find_vocabulary(directory: Path) -> Path | None:
    """The file in a folder that ``load_tokenizer`` reads; None without one.

    Our own SentencePiece model is preferred to the tokenizer.json in the same folder.
    """
    names = FILES
    if _settings(directory / FILES[-1]).get("kind") == SentencePieceTokenizer.kind:
        names = FILES[::-1]
    return next((directory / n for n in names if (directory / n).is_file()), None)


def load_tokenizer(path: Path | str, *, lower_case: bool | None = None) -> Tokenizer:
    """Reads a vocab.txt, a SentencePiece .model, a tokenizer.json, or a folder of one.

    Also reads tokenizer_config.json, added_tokens.json and special_tokens_map.json in the
    same folder. lower_case: overrides do_lower_case. Without both, the rule of
    tokenizer.json decides. Without a tokenizer.json, text is lower-cased unless a token has
    a capital letter. Raises UserError if the files disagree, or for a tokenizer of another
    class than BERT's.
    """
    is_remote(path)  # raises UserError for a web address
    path = Path(path)
    if path.name == "vocab.txt" and path.with_name("tokenizer.json").is_file():
        path = path.parent
    if path.is_dir():
        found = find_vocabulary(path)
        if found is None:
            raise UserError(
                f"{path} holds no vocabulary; expected {' or '.join(FILES)}"
            )
        path = found
    if not path.is_file():
        raise UserError(
            f"{path} does not exist; expected a vocabulary, as "
            "bert_jax vocabulary writes it"
        )
    settings = _settings(path)
    _check_class(settings, path)
    if ending(path) == ".json":
        tokenizer = _read_tokenizer_json(path, settings, lower_case)
    if lower_case is None:
        lower_case = settings.get("do_lower_case")
    with naming(path):
        if ending(path) == ".model":
            tokenizer = SentencePieceTokenizer(path.read_bytes(), lower_case)
        elif ending(path) != ".json":
            tokenizer = WordPieceTokenizer(
                _read_tokens(path),
                lower_case,
                settings.get("strip_accents"),
                settings.get(LONGEST, LONGEST_WORD),
            )
        return _with_added(tokenizer, _added_tokens(path, settings), settings)


def _settings(vocabulary: Path) -> dict[str, Any]:
    """The tokenizer_config.json and special_tokens_map.json beside a vocabulary."""
    paths = config_path(vocabulary), vocabulary.with_name("tokenizer_config.json")
    path = next(filter(Path.is_file, paths), None)
    tokens = vocabulary.with_name("special_tokens_map.json")
    settings = {}
    if vocabulary.name in FILES and tokens.is_file():
        settings |= read_json(tokens, "the special tokens of a tokenizer")
    if path is not None:
        settings |= read_json(path, "the settings of a tokenizer")
    return settings


def _check_class(settings: dict[str, Any], vocabulary: Path) -> None:
    """Raises UserError for settings that change how text is split, unless we know them."""
    name = settings.get("tokenizer_class")
    model = vocabulary.with_name("config.json")
    if name is None and vocabulary.name in FILES and model.is_file():
        name = read_json(model, "the config of a model").get("tokenizer_class")
    known = name in _BERT_CLASSES or name is None
    if ending(vocabulary) == ".json":
        known = known or name in _JSON_CLASSES or str(name).endswith("Fast")
    elif ending(vocabulary) == ".model":
        known = name is None or settings.get("kind") == SentencePieceTokenizer.kind
    rules = {
        "do_lower_case": (True, False, None),
        "strip_accents": (None, True, False),
        "tokenize_chinese_chars": (True, False, None),
        "clean_text": (True, None),
        "do_basic_tokenize": (True, None),
        "never_split": (None, []),
    }
    for key, values in rules.items():
        if repr(settings.get(key)) not in map(repr, values):  # 1 is not True
            raise UserError(
                f"{vocabulary} has {key}={settings[key]!r} in its settings; expected "
                f"{values[0]!r}, as Google's tokenizer works"
            )
    for key, token in SPECIAL_TOKENS_MAP.items():
        if settings.get(key) is not None and _content(settings[key]) != token:
            raise UserError(
                f"{vocabulary} has {key}={_content(settings[key])!r} in its settings; "
                f"expected {token!r}, as BERT's tokenizer has"
            )
    if not known:
        raise UserError(
            f"{vocabulary} belongs to a {name}; expected a BertTokenizer, or a "
            "tokenizer.json that holds all rules"
        )


def _content(token: Any) -> Any:
    """A token that settings name, or describe."""
    return token.get("content") if isinstance(token, dict) else token


def _read_tokens(path: Path) -> list[str]:
    """The tokens of a vocab.txt: one a line, its id the line's number from 0."""
    text = read_text(path, "a vocabulary, one token a line").rstrip()
    if not text:
        raise UserError(f"{path} is empty; expected a vocabulary, one token a line")
    # Only line feeds end a line: a token may be any other separator of Unicode. Google
    # strips each line, carriage return included.
    tokens = [line.strip() for line in text.split("\n")]
    first: dict[str, int] = {}
    for line, token in enumerate(tokens, 1):
        # An empty line keeps its id, which no text ever gets.
        if token and first.setdefault(token, line) != line:
            raise UserError(
                f"the token {token!r} is in lines {first[token]} and {line}; expected "
                "every token once, so remove or rename one"
            )
    return tokens


def _read_tokenizer_json(
    path: Path, settings: dict[str, Any], lower_case: bool | None
) -> Tokenizer:
    """A WordPieceTokenizer if the rules are Google's, otherwise a LibraryTokenizer."""
    expected = "the tokenizer.json of a BERT tokenizer"
    rules = read_json(path, expected)
    vocabulary = path.with_name("vocab.txt")
    beside = path.name in FILES and vocabulary.is_file()
    lines = _read_tokens(vocabulary) if beside else []
    with naming(path):
        try:
            _check_normalizer(rules["normalizer"], settings, lower_case)
            if _is_google(rules):
                tokenizer = _google_tokenizer(rules, lower_case, lines)
            else:
                tokenizer = LibraryTokenizer(read_text(path, expected))
        except UserError:
            raise
        except Exception as error:  # of no common type
            raise UserError(f"not {expected} ({error!r})") from error
        for i, line in enumerate(lines):
            token = tokenizer.tokens[i] if i < tokenizer.vocab_size else None
            if line and (token or "").strip() != line:
                raise UserError(
                    f"token {i} is {token!r}, but {line!r} in {vocabulary.name}; remove "
                    "the file that the model was not trained with"
                )
        if lower_case not in (None, tokenizer.lower_case):
            raise UserError(
                f"lower_case={lower_case}, but the file has another rule; leave it out"
            )
    return tokenizer


def _check_normalizer(
    normalizer: dict[str, Any] | None, settings: dict[str, Any], lower_case: bool | None
) -> None:
    """Raises UserError if tokenizer_config.json disagrees with a BertNormalizer."""
    normalizer = normalizer or {}
    if normalizer.get("type") != "BertNormalizer":
        return
    names = {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
    }
    if lower_case is not None:
        del names["do_lower_case"]
    for name, key in names.items():
        value, other = settings.get(name), normalizer.get(key)
        other = normalizer.get("lowercase") if other is None else other
        if value is not None and value != other:
            raise UserError(
                f"{key}={other}, but tokenizer_config.json has {name}={value}; change the "
                "file that the model was not trained with"
            )


def _is_google(rules: dict[str, Any]) -> bool:
    """Whether a tokenizer.json splits text as Google's tokenizer does."""
    model, normalizer = rules["model"], rules["normalizer"] or {}
    tokens = [*model["vocab"], *(token["content"] for token in rules["added_tokens"])]
    return (
        model.get("type", "WordPiece") == "WordPiece"  # old files leave it out
        and (model["unk_token"], model["continuing_subword_prefix"]) == (UNK, PREFIX)
        and normalizer.get("type") == "BertNormalizer"
        and normalizer["clean_text"] is normalizer["handle_chinese_chars"] is True
        and (rules["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"
        and {t["content"] for t in rules["added_tokens"]} <= set(SPECIAL_TOKENS)
        # A vocab.txt holds one token a line, without spaces.
        and all(token == token.strip() and "\n" not in token for token in tokens)
    )


def _google_tokenizer(
    rules: dict[str, Any], lower_case: bool | None, lines: Sequence[str]
) -> WordPieceTokenizer:
    """lines: the lines of the vocab.txt in the same folder, with its empty tokens."""
    model, normalizer = rules["model"], rules["normalizer"]
    added = {token["content"]: token["id"] for token in rules["added_tokens"]}
    ids = model["vocab"] | added
    tokens = dict(enumerate(lines)) | {i: token for token, i in ids.items()}
    if sorted(tokens) != list(range(len(tokens))) or len(tokens) < len(ids):
        raise UserError(
            f"the ids of its {len(ids)} tokens are not 0 to {len(ids) - 1}; expected "
            "every id once"
        )
    few = rules | {"model": model | {"vocab": {t: ids[t] for t in SPECIAL_TOKENS}}}
    check_template(from_json(json.dumps(few), SPECIAL_TOKENS), ids[CLS], ids[SEP])
    return WordPieceTokenizer(
        [tokens[i] for i in range(len(tokens))],
        normalizer["lowercase"] if lower_case is None else lower_case,
        normalizer.get("strip_accents"),
        model.get(LONGEST, 100),  # the library's default
    )


def _added_tokens(
    vocabulary: Path, settings: dict[str, Any]
) -> list[tuple[int | None, AddedToken]]:
    """Tokens that other files of the folder add, with their ids if they have any."""
    if vocabulary.name not in FILES:
        return []
    path = vocabulary.with_name("added_tokens.json")
    ids = read_json(path, "the ids of added tokens") if path.is_file() else {}
    extra = settings.get("extra_special_tokens") or []
    special = [
        *(settings.get("additional_special_tokens") or []),
        *(extra.values() if isinstance(extra, dict) else extra),
    ]
    found = {token: {"content": token, "normalized": True} for token in ids}
    for token in special:
        flags = token if isinstance(token, dict) else {"content": token}
        found[_content(token)] = {"normalized": False, **flags, "special": True}
    decoder = settings.get("added_tokens_decoder") or {}
    found |= {flags["content"]: flags for flags in decoder.values()}
    ids = ids | {flags["content"]: int(i) for i, flags in decoder.items()}
    names = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    return [
        (ids.get(token), AddedToken(**{n: flags[n] for n in names if n in flags}))
        for token, flags in found.items()
    ]


def _with_added(
    tokenizer: Tokenizer,
    added: Sequence[tuple[int | None, AddedToken]],
    settings: dict[str, Any],
) -> Tokenizer:
    """The tokenizer, or a LibraryTokenizer if it lacks a token or splits otherwise.

    Raises UserError for a SentencePiece model that lacks a token.
    """
    known = set(SPECIAL_TOKENS)
    if isinstance(tokenizer, LibraryTokenizer):
        known |= tokenizer.added
    new = [(i, token) for i, token in added if token.content not in known]
    if new and isinstance(tokenizer, SentencePieceTokenizer):
        tokens = listed([repr(token.content) for _, token in new])
        raise UserError(
            f"the files beside it add {tokens}; expected none but BERT's special tokens "
            "beside a SentencePiece model, so remove them, or add them to a tokenizer.json"
        )
    joined = settings.get("tokenize_chinese_chars") is False
    if isinstance(tokenizer, WordPieceTokenizer) and (new or joined):
        library = library_tokenizer(tokenizer)
        add_special_tokens(library, tokenizer)
        library.normalizer.handle_chinese_chars = not joined
    elif new:
        library = tokenizers.Tokenizer.from_str(tokenizer.vocabulary_bytes().decode())
    else:
        return tokenizer
    for i, token in sorted(new, key=lambda pair: (pair[0] is None, pair[0] or 0)):
        (library.add_special_tokens if token.special else library.add_tokens)([token])
        if i not in (None, own := library.token_to_id(token.content)):
            raise UserError(
                f"the added token {token.content!r} has the id {i}; expected {own}, which "
                "follows the vocabulary"
            )
    return LibraryTokenizer(library.to_str())
