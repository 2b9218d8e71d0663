"""The interface of all tokenizers: text to tokens, and tokens to sequences."""

import hashlib
import os
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bert_jax.arguments import accepts
from bert_jax.data.sequences import fit
from bert_jax.data.text_arrays import (
    NAMES_WITHOUT_TYPES,
    CallOptions,
    padded_arrays,
    paired_texts,
)
from bert_jax.errors import UserError
from bert_jax.files import new_file, write_json
from bert_jax.settings import from_settings


class SpecialTokens(NamedTuple):
    """The special tokens of a tokenizer. Default: BERT's."""

    pad: str = "[PAD]"
    unk: str = "[UNK]"
    cls: str = "[CLS]"
    sep: str = "[SEP]"
    mask: str = "[MASK]"

    def settings(self) -> dict[str, str]:
        """The tokens by their names in transformers' settings, such as "pad_token"."""
        return {f"{name}_token": token for name, token in self._asdict().items()}


class Template(NamedTuple):
    """The special tokens that a tokenizer adds to one text or two texts.

    before, between, after: token ids before the first text, between the texts, and after
    the last text. second_type: token type of the second text and of the tokens after it.
    All other tokens have type 0.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    second_type: int


def bert_template(cls_id: int, sep_id: int) -> Template:
    """BERT's template: [CLS] A [SEP] B [SEP], with type 1 for B [SEP]."""
    return Template((cls_id,), (sep_id,), (sep_id,), second_type=1)


BERT_TOKENS = SpecialTokens()
# The special tokens of fairseq, which many byte-level BPEs and Unigram models have.
FAIRSEQ_TOKENS = SpecialTokens("<pad>", "<unk>", "<s>", "</s>", "<mask>")
# Names of vocabulary files in transformers. tokenizer.json is first, because it has more
# rules than the others. vocab.json needs merges.txt in the same folder.
FILES = (
    *("tokenizer.json", "vocab.txt", "spiece.model"),
    *("vocab.json", "sentencepiece.bpe.model"),
)
MERGES = "merges.txt"
LONGEST = "max_input_chars_per_word"


# Share of unknown tokens above which unknown_warning() warns.
_MOST_UNKNOWN = 0.05


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest unsigned integer type for the ids of a vocabulary."""
    if vocab_size <= 1 << 16:
        return np.dtype("<u2")
    return np.dtype("<u4")


def check_special(special: SpecialTokens, tokens: Container[str]) -> None:
    """Raises UserError if a vocabulary does not contain its special tokens."""
    missing = [token for token in special if token not in tokens]
    if missing:
        raise UserError(
            f"{' '.join(missing)} is missing; expected a vocabulary with the special "
            f"tokens {' '.join(special)}"
        )


class Tokenizer:
    """The interface of all tokenizers.

    tokens: list of tokens by id. ids: dictionary from token to id. vocab_size: number of
      tokens.
    special: the special tokens. pad_id, unk_id, cls_id, sep_id, mask_id: their ids.
    template: the special tokens of a sequence. template_ids: their ids, int (n,).
    lower_case: whether text is lower-cased first. strip_accents: whether accents and other
      marks (Unicode category Mn) are removed.
    continuation: bool (vocab_size,), whether a token continues the word before it.
      Whole-word masking masks these tokens together with their word.
    continuation_mark: the start of tokens that continue a word, such as "##". "" for
      vocabularies that mark spaces or have no marks.
    kind: "wordpiece", "sentencepiece" or "tokenizers". content: bytes of the vocabulary
      file.
    dtype: type of the ids, uint16, or uint32 for large vocabularies.
    model_max_length: maximum number of tokens of a sequence: of tokenizer_config.json, and
      at most the number of positions of the model that the tokenizer was loaded with. None
      without both.
    truncation: the part of a long text that is kept, "head" or "tail".
    """

    kind: ClassVar[str]
    file_name: ClassVar[str]  # transformers' name of the vocabulary file
    strip_accents = False
    continuation_mark = ""
    model_max_length: int | None = None
    truncation = "head"

    def __init__(
        self,
        content: bytes,
        tokens: Sequence[str],
        continuation: Sequence[bool],
        lower_case: bool,
        special: SpecialTokens = BERT_TOKENS,
        template: Template | None = None,
    ):
        """template: None means :func:`bert_template`."""
        self.content, self.tokens, self.lower_case = content, list(tokens), lower_case
        self.special = special
        self.continuation = np.array(continuation, bool)
        self.ids = {token: i for i, token in enumerate(tokens)}
        check_special(self.special, self.ids)
        self.pad_id = self.ids[self.special.pad]
        self.unk_id = self.ids[self.special.unk]
        self.cls_id = self.ids[self.special.cls]
        self.sep_id = self.ids[self.special.sep]
        self.mask_id = self.ids[self.special.mask]
        self.vocab_size = len(tokens)
        self.dtype = token_dtype(self.vocab_size)
        if template is None:
            template = bert_template(self.cls_id, self.sep_id)
        self.template = template
        self._before = np.array(template.before, self.dtype)
        self._between = np.array(template.between, self.dtype)
        self._after = np.array(template.after, self.dtype)
        gaps = [self._before, self._between, self._after]
        self.template_ids = np.unique(np.concatenate(gaps))

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, without [CLS] and [SEP]; the arrays may be read-only.

        Text that spells a special token, such as "[MASK]", is ordinary text.
        """
        raise NotImplementedError

    def spaced(self, parts: Sequence[str], *, first: bool = False) -> list[str]:
        """The sentences of a document or words, as :meth:`encode_batch` needs them.

        Each part gets a space before it if the tokens of a word depend on this space, as in
        byte-level BPE. first: whether even the first part gets a space. If not, the parts
        have the same tokens as the whole text.
        """
        return list(parts)

    def join(self, ids: Sequence[int]) -> str:
        """The text of token ids; see :meth:`decode`."""
        raise NotImplementedError

    def encode(self, text: str, *, allow_mask: bool = False) -> np.ndarray:
        """Ids of one text; its mask token is ordinary text unless ``allow_mask``."""
        texts = [text]
        if allow_mask:
            texts = text.split(self.special.mask)
        mask = np.array([self.mask_id], self.dtype)
        first, *rest = self.encode_batch(texts)
        parts = [first]
        for part in rest:
            parts += [mask, part]
        return np.concatenate(parts)

    @accepts(CallOptions)
    def __call__(
        self,
        texts: str | Iterable[str],
        pairs: str | Iterable[str] | None = None,
        **options: Any,
    ) -> dict[str, np.ndarray]:
        """Arrays for a model: rows of [CLS] text [SEP], or [CLS] text [SEP] pair [SEP].

        >>> batch = model.tokenizer(["The cat sat.", "A dog."])
        >>> batch["input_ids"].shape
        (2, 6)

        texts: one text; or a list, an array or a column of texts.
        pairs: the second text of each text.

        Returns input_ids, token_type_ids and attention_mask (0 for padding), int32 (texts,
        L), or (L,) for a single text. With BERT's template the second text and the [SEP]
        after it have type 1. Raises UserError for a missing text, if texts and pairs differ
        in number, and if a row is longer than the padding.
        """
        chosen = from_settings(CallOptions, options, "")
        limit = chosen.limit(self.model_max_length)
        columns = {"texts": texts}
        if pairs is not None:
            columns["pairs"] = pairs
        least = self.overhead(len(columns))
        if limit is not None and chosen.truncation and limit < least:
            raise UserError(f"max_length={limit}, expected at least {least}")
        rows = []
        for row in paired_texts(**columns):
            parts = [self.encode(text, allow_mask=chosen.allow_mask) for text in row]
            if limit is not None and chosen.truncation:
                parts = fit(parts, limit - least, self.truncation)
            rows.append(self.build(*parts))
        longest = max((len(ids) for ids, _ in rows), default=0)
        arrays = padded_arrays(rows, chosen.width(longest, limit), self.pad_id)
        if isinstance(texts, str):
            return {name: array[0] for name, array in arrays.items()}
        return arrays

    def build(self, *texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The sequence of one text or two texts: [CLS] A [SEP] or [CLS] A [SEP] B [SEP].

        texts: token ids of each text, (T,).

        Other templates have other special tokens; see :class:`Template`. Returns input_ids
        and token_type_ids, int32 (L,).
        """
        parts = [self._before, texts[0]]
        for text in texts[1:]:
            parts += [self._between, text]
        parts.append(self._after)
        # Unsafe, because a store marks tokens by the highest bit of an unsigned id.
        input_ids = np.concatenate(parts, dtype=np.int32, casting="unsafe")
        token_type_ids = np.zeros(len(input_ids), np.int32)
        if len(texts) == 2:
            start = self.starts(len(texts[0]), len(texts[1]))[1]
            token_type_ids[start:] = self.template.second_type
        return input_ids, token_type_ids

    def overhead(self, texts: int) -> int:
        """The number of special tokens in a sequence of ``texts`` texts, one or two."""
        between = len(self._between) * (texts - 1)
        return len(self._before) + between + len(self._after)

    def starts(self, *lengths: int) -> list[int]:
        """The position of the first token of each text in a sequence.

        lengths: number of tokens of each text.
        """
        position = len(self._before)
        positions = []
        for length in lengths:
            positions.append(position)
            position += length + len(self._between)
        return positions

    def word_starts(self, ids: np.ndarray) -> np.ndarray:
        """Whether each token of a sequence starts a word, bool (L,).

        ids: token ids of :meth:`build`, (L,). A special token is a word, and the first
        token of a text starts a word.
        """
        starts = ~self.continuation[ids]
        starts[0] = True
        starts[1:] |= np.isin(ids[:-1], self.template_ids)
        return starts

    def __len__(self) -> int:
        """The number of tokens of the vocabulary."""
        return self.vocab_size

    def __repr__(self) -> str:
        case = f"lower_case={self.lower_case}, strip_accents={self.strip_accents}"
        longest = f"model_max_length={self.model_max_length}"
        return f"{type(self).__name__}({len(self):,} tokens, {case}, {longest})"

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str | list[str]:
        """The text of an id or of several ids, or a list of texts for rows of ids.

        Joins tokens into words. skip_special_tokens: whether to leave out the tokens of
        ``special``. Raises UserError for an id without a token.
        """
        rows = np.atleast_1d(np.array(ids, object))  # rows may differ in length
        if any(map(np.ndim, rows[:1])):
            return [self.decode(row, skip_special_tokens) for row in rows]
        known = []
        for i in rows:
            if not (hasattr(i, "__index__") and 0 <= i < len(self)):
                raise UserError(
                    f"{i!r} is not a token id; expected 0 to {len(self) - 1}"
                )
            is_special = self.tokens[i] in self.special
            if not (skip_special_tokens and is_special):
                known.append(int(i))
        return self.join(known)

    def tokenize(self, text: str) -> list[str]:
        """The tokens of a text."""
        return [self.tokens[i] for i in self.encode(text)]

    def fingerprint(self) -> str:
        """SHA-256 of the vocabulary and of all rules that change ids."""
        config = self.config()
        lines = [self.kind, str(self.lower_case)]
        for name in ("strip_accents", LONGEST):
            value = config.get(name)
            if value is not None:
                lines.append(f"{name}={value}")
        lines += self.tokens
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def has_fingerprint(self, fingerprint: str) -> bool:
        """Whether a store or a run with this fingerprint has this vocabulary."""
        return fingerprint == self.fingerprint()

    def to_json(self) -> bytes:
        """The tokenizer.json with which transformers gives the same ids."""
        raise NotImplementedError

    def __reduce__(self):
        """Pickles the constructor's arguments, without caches."""
        names = "model_max_length", "truncation", "template"
        state = {name: getattr(self, name) for name in names}
        return type(self), self._arguments, state

    def config(self) -> dict:
        """The content of tokenizer_config.json, which transformers also reads."""
        settings: dict[str, Any] = {
            "kind": self.kind,
            "do_lower_case": self.lower_case,
        }
        if self.truncation == "tail":
            settings["truncation_side"] = "left"
        if self.template.second_type == 0:  # transformers fills in zeros
            settings["model_input_names"] = NAMES_WITHOUT_TYPES
        return settings

    def save(self, directory: str | os.PathLike) -> None:
        """Writes the vocabulary and tokenizer_config.json, as transformers reads them."""
        save_vocabulary(self, Path(directory) / self.file_name)


def save_vocabulary(tokenizer: Tokenizer, path: str | os.PathLike) -> None:
    """Writes the vocabulary to ``path``, and its settings to the same folder."""
    path = Path(path)
    # The vocabulary is written last, so a vocabulary file always has its settings.
    write_json(config_path(path), tokenizer.config())
    with new_file(path) as file:
        file.write(tokenizer.content)


def with_spaces(parts: Sequence[str], *, first: bool = False) -> list[str]:
    """The parts of a text with a space before each. first: whether the first gets one."""
    spaced = [f" {part}" for part in parts]
    if parts and not first:
        spaced[0] = parts[0]
    return spaced


def continuations(tokens: Sequence[str], prefix: str) -> list[bool]:
    """Whether each token starts with ``prefix``, the mark of a continuation."""
    return [token.startswith(prefix) and token != prefix for token in tokens]


def config_path(vocabulary: Path) -> Path:
    """The path of the settings that belong to a vocabulary file.

    A file whose name is not one of FILES has a settings file of its own name, so that
    cased.txt and uncased.txt can be in one folder.
    """
    if vocabulary.name in FILES:
        return vocabulary.with_name("tokenizer_config.json")
    return vocabulary.with_name(f"{vocabulary.stem}_config.json")


def count_unknown(
    sequences: Iterable[np.ndarray], tokenizer: Tokenizer
) -> tuple[int, int]:
    """The numbers of unknown tokens and of all tokens, other special tokens excluded.

    sequences: input_ids of each sequence, (L,).
    """
    ids = np.concatenate([np.zeros(0, np.int32), *sequences])
    others = [tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
    ids = ids[~np.isin(ids, others)]
    return int(np.count_nonzero(ids == tokenizer.unk_id)), len(ids)


def unknown_warning(unknown: int, tokens: int, name: object) -> str:
    """A warning if the vocabulary of checkpoint ``name`` lacks many tokens; "" otherwise.

    unknown, tokens: see :func:`count_unknown`.
    """
    if unknown <= _MOST_UNKNOWN * tokens:
        return ""
    return (
        f"{unknown / tokens:.0%} of the tokens are unknown: the vocabulary of {name} does "
        "not suit the text; use a checkpoint for the language and script of the text"
    )
