"""Files of tokenizers, of our own and as transformers writes them."""

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from bert_jax.data.tokenizer import (
    CLS,
    FILES,
    LONGEST,
    MASK,
    SEP,
    SPECIAL_TOKENS,
    SPECIAL_TOKENS_MAP,
    UNK,
    LibraryTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    WordPieceTokenizer,
    config_path,
)
from bert_jax.data.wordpiece import LONGEST_WORD, PREFIX
from bert_jax.errors import UserError, listed, naming
from bert_jax.files import ending, is_remote, read_json, read_text

# Classes of transformers that split text as BertTokenizer does.
_BERT_CLASSES = {
    None,
    *("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"),
    *("BertTokenizerFast", "DistilBertTokenizerFast", "ElectraTokenizerFast"),
}
# Settings that change tokens, and the values with which we have the same tokens. The first
# value is Google's.
_RULES: dict[str, tuple] = {
    "do_lower_case": (True, False, None),
    "strip_accents": (None, True, False),
    "tokenize_chinese_chars": (True, False, None),
    "clean_text": (True, None),
    "do_basic_tokenize": (True, None),
    "never_split": (None, []),
    **{name: (token, None) for name, token in SPECIAL_TOKENS_MAP.items()},
}


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
            raise UserError(f"{path} has no vocabulary; expected {' or '.join(FILES)}")
        path = found
    if not path.is_file():
        raise UserError(
            f"{path} does not exist; expected a vocabulary that bert_jax vocabulary wrote"
        )
    settings = _settings(path)
    _check_settings(settings, path)
    lower = settings.get("do_lower_case") if lower_case is None else lower_case
    with naming(path):
        if ending(path) == ".json":
            tokenizer = _read_tokenizer_json(path, settings, lower_case)
        elif ending(path) == ".model":
            tokenizer = SentencePieceTokenizer(path.read_bytes(), lower)
        else:
            tokens, longest = _read_tokens(path), settings.get(LONGEST, LONGEST_WORD)
            accents = settings.get("strip_accents")
            tokenizer = WordPieceTokenizer(tokens, lower, accents, longest)
        return _with_added(tokenizer, path, settings)


def _settings(vocabulary: Path) -> dict[str, Any]:
    """The settings in the files beside a vocabulary; tokenizer_config.json decides."""
    settings: dict[str, Any] = {}
    if vocabulary.name in FILES:
        model = vocabulary.with_name("config.json")
        if model.is_file():
            name = read_json(model, "the config of a model").get("tokenizer_class")
            settings["tokenizer_class"] = name
        tokens = vocabulary.with_name("special_tokens_map.json")
        if tokens.is_file():
            settings |= read_json(tokens, "the special tokens of a tokenizer")
    for path in config_path(vocabulary), vocabulary.with_name("tokenizer_config.json"):
        if path.is_file():
            return settings | read_json(path, "the settings of a tokenizer")
    return settings


def _check_settings(settings: dict[str, Any], vocabulary: Path) -> None:
    """Raises UserError for settings that change tokens in a way that we do not know."""
    for name, values in _RULES.items():
        if (value := _content(settings.get(name))) not in values:
            raise UserError(
                f"{vocabulary} has {name}={value!r} in its settings; expected "
                f"{values[0]!r}, as Google's tokenizer has"
            )
    name = settings.get("tokenizer_class")
    if ending(vocabulary) == ".json":  # the file has all rules of these classes
        known = name == "TokenizersBackend" or str(name).endswith("Fast")
    else:
        known = settings.get("kind") == SentencePieceTokenizer.kind
    if name not in _BERT_CLASSES and not known:
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
                f"{path}: the token {token!r} is in lines {first[token]} and {line}; "
                "expected every token once, so remove or rename one"
            )
    return tokens


def _read_tokenizer_json(
    path: Path, settings: dict[str, Any], lower_case: bool | None
) -> Tokenizer:
    """A WordPieceTokenizer if the rules are Google's, otherwise a LibraryTokenizer."""
    expected = "the tokenizer.json of a BERT tokenizer"
    rules, content = read_json(path, expected), read_text(path, expected)
    try:
        tokenizer: Tokenizer = LibraryTokenizer(content)
        normalizer = rules["normalizer"] or {}
        if normalizer.get("type") == "BertNormalizer":
            _check_normalizer(normalizer, settings, lower_case)
        if _is_google(rules):
            tokenizer = WordPieceTokenizer(
                tokenizer.tokens,
                normalizer["lowercase"] if lower_case is None else lower_case,
                normalizer.get("strip_accents"),
                rules["model"].get(LONGEST, 100),  # the library's default
            )
    except UserError:
        raise
    except Exception as error:  # of no common type
        raise UserError(f"not {expected} ({error!r})") from error
    vocabulary = path.with_name("vocab.txt")
    if path.name in FILES and vocabulary.is_file():
        for i, line in enumerate(_read_tokens(vocabulary)):
            token = tokenizer.tokens[i] if i < tokenizer.vocab_size else ""
            if line and token.strip() != line:
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
    normalizer: dict[str, Any], settings: dict[str, Any], lower_case: bool | None
) -> None:
    """Raises UserError if tokenizer_config.json disagrees with a BertNormalizer."""
    lower, accents = normalizer["lowercase"], normalizer.get("strip_accents")
    rules = {
        "do_lower_case": lower if lower_case is None else settings.get("do_lower_case"),
        "strip_accents": lower if accents is None else accents,
        "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
    }
    for name, value in rules.items():
        if settings.get(name) not in (None, value):
            raise UserError(
                f"{name}={value}, but tokenizer_config.json has {settings[name]}; change "
                "the file that the model was not trained with"
            )


def _is_google(rules: dict[str, Any]) -> bool:
    """Whether a tokenizer.json splits text as Google's tokenizer does."""
    model, normalizer = rules["model"], rules["normalizer"] or {}
    added = {token["content"] for token in rules["added_tokens"]}
    return (
        model.get("type", "WordPiece") == "WordPiece"  # old files leave it out
        and (model["unk_token"], model["continuing_subword_prefix"]) == (UNK, PREFIX)
        and normalizer.get("type") == "BertNormalizer"
        and normalizer["clean_text"] is normalizer["handle_chinese_chars"] is True
        and (rules["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"
        and added <= set(SPECIAL_TOKENS)
        # A vocab.txt holds one token a line, without spaces.
        and all(
            token == token.strip() and "\n" not in token for token in model["vocab"]
        )
    )


def _with_added(
    tokenizer: Tokenizer, vocabulary: Path, settings: dict[str, Any]
) -> Tokenizer:
    """The tokenizer, or a LibraryTokenizer if the files beside it add tokens or rules.

    Raises UserError if they add a token to a SentencePiece model.
    """
    known = set(SPECIAL_TOKENS) | getattr(tokenizer, "added", set())
    added = _added_tokens(vocabulary, settings)
    new = [(i, token) for i, token in added if token.content not in known]
    if new and isinstance(tokenizer, SentencePieceTokenizer):
        tokens = listed([repr(token.content) for _, token in new])
        raise UserError(
            f"the files beside it add {tokens}; expected only BERT's special tokens beside "
            "a SentencePiece model, so remove them, or add them to a tokenizer.json"
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


def _added_tokens(
    vocabulary: Path, settings: dict[str, Any]
) -> list[tuple[int | None, AddedToken]]:
    """Tokens that the files beside a vocabulary add, with their ids if they have any."""
    path = vocabulary.with_name("added_tokens.json")
    ids = {}
    if vocabulary.name in FILES and path.is_file():
        ids = read_json(path, "the ids of added tokens")
    flags: dict[str, dict] = {token: {} for token in ids}
    for name in ("additional_special_tokens", "extra_special_tokens"):
        tokens = settings.get(name) or []
        for token in tokens.values() if isinstance(tokens, dict) else tokens:
            own = token if isinstance(token, dict) else {}
            flags[_content(token)] = own | {"special": True}
    for i, token in (settings.get("added_tokens_decoder") or {}).items():
        flags[token["content"]], ids[token["content"]] = token, int(i)
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return [
        (ids.get(token), AddedToken(token, **{n: own[n] for n in names if n in own}))
        for token, own in flags.items()
    ]


def library_tokenizer(
    tokenizer: WordPieceTokenizer | LibraryTokenizer,
) -> tokenizers.Tokenizer:
    """The same tokenizer in Hugging Face's library, which has the place of each token.

    The ids of a WordPieceTokenizer differ for a sigma at the end of a word, and for lone
    surrogates.
    """
    if isinstance(tokenizer, LibraryTokenizer):
        return tokenizer.library
    library = tokenizers.Tokenizer(tokenizer.model)
    library.normalizer = normalizers.BertNormalizer(
        lowercase=tokenizer.lower_case,
        strip_accents=tokenizer.config()["strip_accents"],
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    return library


def add_special_tokens(
    library: tokenizers.Tokenizer, tokenizer: Tokenizer, *, lstrip: bool = False
) -> None:
    """Adds BERT's special tokens, and the template that puts them around texts.

    lstrip: whether [MASK] includes the spaces before it.
    """
    library.add_special_tokens(
        [AddedToken(t, lstrip=lstrip and t == MASK) for t in SPECIAL_TOKENS]
    )
    library.post_processor = TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(CLS, tokenizer.cls_id), (SEP, tokenizer.sep_id)],
    )
