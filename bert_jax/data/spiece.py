"""SentencePiece models, converted for Hugging Face's `tokenizers` library."""

import hashlib
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bert_jax.data.library import LibraryTokenizer, add_special_tokens, call_library
from bert_jax.data.tokenizer import (
    BERT_TOKENS,
    FAIRSEQ_TOKENS,
    Tokenizer,
    check_special,
)
from bert_jax.data.tokenizer_json import (
    SPACE,
    new_json,
    precompiled,
    unigram_model,
    unigram_rules,
)
from bert_jax.data.wordpiece import Cache
from bert_jax.errors import UserError
from bert_jax.protobuf import last_value, read_message

# Longer words are not cached, because in scripts without spaces a word is a whole sentence.
_LONGEST_CACHED = 40
# Rules of a model that can be converted: the field of the message, the field of the rule in
# it, and the rule's default and required value (sentencepiece_model.proto).
_TRAINER, _NORMALIZER = 2, 3
_RULES = {
    "model_type": (_TRAINER, 3, 1, 1),  # 1 is unigram
    "treat_whitespace_as_suffix": (_TRAINER, 24, 0, 0),
    "byte_fallback": (_TRAINER, 35, 0, 0),
    "add_dummy_prefix": (_NORMALIZER, 3, 1, 1),
    "remove_extra_whitespaces": (_NORMALIZER, 4, 1, 1),
    "escape_whitespaces": (_NORMALIZER, 5, 1, 1),
}
_ADVICE = "save the tokenizer as tokenizer.json, for example with transformers"
_CHARACTERS = 2  # field of the normalisation table
_TILDE = "\uff5e"  # fullwidth
_NO_CHARACTER = "\ufdd0"  # Unicode reserves it, so no text contains it
_PIECE, _TYPE = 1, 3
_NORMAL, _USER_DEFINED = 1, 4  # types of a token


class _Model(NamedTuple):
    """A SentencePiece model.

    tokens, scores: by id. control: tokens that no text contains. unk_id: the id of the
    unknown token. characters: the table that normalises characters, or b"".
    """

    tokens: list[str]
    scores: list[float]
    control: set[str]
    unk_id: int
    characters: bytes


class _Layout(NamedTuple):
    """How fairseq numbers the tokens of a SentencePiece model.

    first: tokens that it puts before the tokens of the model. skipped: number of first
    tokens of the model that it leaves out. <mask> is the last token.
    """

    first: Sequence[tuple[str, float]]
    skipped: int

    @property
    def more(self) -> int:
        """How many more tokens there are than in the SentencePiece model."""
        return len(self.first) - self.skipped + 1


_XLM_R = _Layout([("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)], 3)
# The model's own <s> and </s> follow. The tokens with NOTUSED never occur in text.
_CAMEMBERT = _Layout(
    [
        *[("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0)],
        ("<unk>NOTUSED", -100.0),
    ],
    1,
)

# Layouts by transformers' tokenizer class.
_LAYOUTS = {"XLMRobertaTokenizer": _XLM_R, "CamembertTokenizer": _CAMEMBERT}


class SentencePieceTokenizer(LibraryTokenizer):
    """A SentencePiece model that has BERT's special tokens.

    Its ids equal the ids of an exported tokenizer.json. The sentencepiece package, which
    encoded texts up to version 0.2.0, has other ids where two splits have equal scores (in
    one of 6,000 sentences), for combining marks that are rare, out of Unicode's order or
    after a ligature, and for a sigma at the end of a word in capitals.
    """

    kind = "sentencepiece"
    file_name = "spiece.model"

    def __init__(self, model: bytes, lower_case: bool | None = None):
        """model: content of a .model file. lower_case: see WordPieceTokenizer."""
        parts = _read_model(model)
        check_special(BERT_TOKENS, parts.tokens)
        if lower_case is None:
            words = [token for token in parts.tokens if token not in parts.control]
            lower_case = not any(char.isupper() for char in "".join(words))
        self._word_ids = Cache(self._ids_of, _LONGEST_CACHED)
        super().__init__(_to_json(parts, lower_case), control=parts.control)
        self.content, self.lower_case = model, lower_case
        self._arguments = model, lower_case

    def encode(self, text: str, *, allow_mask: bool = False) -> np.ndarray:
        """Read-only ids of one text; see Tokenizer.encode.

        Caches the ids of short words. The library takes several times as long, because it
        normalises each text again and finds offsets.
        """
        has_mask = allow_mask and self.special.mask in text
        # The library splits at its mark of a space as well, and strips all kinds of space.
        if has_mask or SPACE in text or not text.isprintable():
            return super().encode(text, allow_mask=allow_mask)
        ids = map(self._word_ids.__getitem__, text.split(" "))
        return np.frombuffer(b"".join(ids), self.dtype)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Read-only ids of each text; see Tokenizer.encode_batch."""
        return [self.encode(text) for text in texts]

    def _ids_of(self, word: str) -> bytes:
        """The ids of a text without spaces, as bytes."""
        plain = call_library(self.library.normalizer.normalize_str, word)
        ids: list[int] = []
        for part in filter(
            None, plain.split(" ")
        ):  # "\u00b4" becomes a space and a mark
            tokens = self.library.model.tokenize(f"{SPACE}{part}")
            ids += [token.id for token in tokens]
        return np.array(ids, self.dtype).tobytes()

    def fingerprint(self) -> str:
        """SHA-256 of lower_case and of the .model file with its scores and rules."""
        rules = f"{self.kind}\ntokenizers\n{self.lower_case}\n".encode()
        return hashlib.sha256(rules + self.content).hexdigest()

    def has_fingerprint(self, fingerprint: str) -> bool:
        """See Tokenizer.has_fingerprint.

        A store of version 0.2.0 has the ids of the sentencepiece package, and keeps them.
        The fingerprints of version 0.1.0 left out scores and rules.
        """
        rules = f"{self.kind}\n{self.lower_case}\n".encode()
        of_0_2_0 = hashlib.sha256(rules + self.content).hexdigest()
        of_0_1_0 = Tokenizer.fingerprint(self)
        return fingerprint in (self.fingerprint(), of_0_2_0, of_0_1_0)


def _read_model(content: bytes) -> _Model:
    """Reads a .model file. Raises UserError if it cannot be converted."""
    if not content:  # the package accepts an empty file and prints a line
        raise ValueError("an empty file")
    # The package has no functions that return a model's rules, and its message class needs
    # a newer protobuf than Apache Beam allows.
    fields = read_message(content)
    _check_rules(fields)
    package = sentencepiece.SentencePieceProcessor(model_proto=content)
    ids = list(range(package.vocab_size()))
    tokens, scores = package.id_to_piece(ids), package.get_score(ids)
    control = set()
    for token, score, piece in zip(tokens, scores, fields[_PIECE], strict=True):
        if score == 0:  # as all symbols that were not learned from text
            kind = last_value(read_message(piece), _TYPE, _NORMAL)
            if kind == _USER_DEFINED and token not in BERT_TOKENS:
                raise UserError(
                    f"{token!r} is a user-defined symbol, which is not supported; {_ADVICE}"
                )
            if kind != _NORMAL:
                control.add(token)
    rules = read_message(last_value(fields, _NORMALIZER, b""))
    characters = last_value(rules, _CHARACTERS, b"")
    return _Model(tokens, scores, control, package.unk_id(), characters)


def fairseq_json(
    content: bytes, class_name: str | None, vocab_size: int | None, *, space: bool
) -> bytes:
    """The tokenizer.json of a sentencepiece.bpe.model, whose ids fairseq has renumbered.

    class_name: transformers' class of the tokenizer, which chooses between the layouts of
    XLM-R and CamemBERT. vocab_size: vocab_size in config.json, which chooses if class_name
    is None. space: see unigram_rules. Raises UserError if neither chooses a layout.
    """
    model = _read_model(content)
    layout = _layout(class_name, vocab_size, len(model.tokens))
    pieces = [*layout.first]
    learned = zip(model.tokens, model.scores, strict=True)
    pieces += itertools.islice(learned, layout.skipped, None)
    pieces.append((FAIRSEQ_TOKENS.mask, 0.0))
    unk_id = [token for token, _ in pieces].index(FAIRSEQ_TOKENS.unk)
    rules = unigram_rules(precompiled(model.characters), add_prefix_space=space)
    return new_json(unigram_model(pieces, unk_id), rules, FAIRSEQ_TOKENS)


def _layout(class_name: str | None, vocab_size: int | None, size: int) -> _Layout:
    """The layout of a sentencepiece.bpe.model with ``size`` tokens; see fairseq_json."""
    for name, layout in _LAYOUTS.items():
        if class_name in (name, f"{name}Fast"):
            return layout
    if class_name is None:
        for layout in _LAYOUTS.values():
            if vocab_size == size + layout.more:
                return layout
    names = " or ".join(_LAYOUTS)
    raise UserError(
        f"tokenizer_class={class_name} in its settings and vocab_size={vocab_size} in "
        f"config.json; expected tokenizer_class {names}, or without a class the vocab_size "
        f"{size + _XLM_R.more} as in XLM-R, or {size + _CAMEMBERT.more} as in CamemBERT"
    )


def _check_rules(fields: dict[int, list]) -> None:
    """Raises UserError for rules that the library does not have."""
    for name, (message, field, default, needed) in _RULES.items():
        rules = read_message(last_value(fields, message, b""))
        value = last_value(rules, field, default)
        if value != needed:
            raise UserError(f"its {name} is {value}, expected {needed}; {_ADVICE}")


def _before_table(table: normalizers.Normalizer) -> list[normalizers.Normalizer]:
    """Steps before a table that composes letters, as Unicode's NFC or NFKC does.

    The library looks up the start of a letter with all its marks, or else one character at
    a time. So it loses the second mark of a letter and each mark of a fullwidth letter, and
    does not compose Korean and Japanese.
    """
    # NFKC would make capitals, and a table that folds case would then lose their marks.
    if table.normalize_str("\uff21") != "A":
        return [normalizers.NFC()]
    if table.normalize_str(_TILDE) != _TILDE:
        return [normalizers.NFKC()]
    # The rules nmt_nfkc differ from NFKC only for this tilde.
    return [
        normalizers.Replace(_TILDE, _NO_CHARACTER),
        normalizers.NFKC(),
        normalizers.Replace(_NO_CHARACTER, _TILDE),
    ]


def _to_json(model: _Model, lower_case: bool) -> bytes:
    """The tokenizer.json of a model."""
    pieces = list(zip(model.tokens, model.scores, strict=True))
    result = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=model.unk_id))
    steps = []
    if lower_case:
        steps.append(normalizers.Lowercase())
    if model.characters:
        table = normalizers.Precompiled(model.characters)
        composes = table.normalize_str("e\u0301") == "\u00e9"
        if composes:
            steps += _before_table(table)
        steps.append(table)
        if composes:
            steps.append(normalizers.NFC())  # the table widens halfwidth Japanese
    # A text after [MASK] keeps its first space, and no space is added.
    steps.append(normalizers.Replace(tokenizers.Regex(" {2,}"), " "))
    steps.append(normalizers.Strip(left=False))
    result.normalizer = normalizers.Sequence(steps)
    result.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    result.decoder = decoders.Metaspace()
    add_special_tokens(result, BERT_TOKENS, lstrip=True)
    return result.to_str(pretty=True).encode()
