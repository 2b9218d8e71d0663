"""Columns of texts, and the arrays that a call to a tokenizer returns."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import UserError, counted
from bert_jax.settings import check_ranges, setting

# The arrays of a batch, by their names in transformers.
INPUT_NAMES = ["input_ids", "token_type_ids", "attention_mask"]
NAMES_WITHOUT_TYPES = ["input_ids", "attention_mask"]
_PADDING = 'True, "longest", a number, or "max_length" with a max_length'


@dataclasses.dataclass(frozen=True)
class CallOptions:
    """The options of a call to a Tokenizer."""

    padding: bool | str | int = setting(
        True,
        'True or "longest": every row is as long as the longest row. "max_length": every '
        "row has max_length tokens. A number: every row has this number of tokens",
    )
    truncation: bool | str = setting(
        True,
        "whether a row with more than max_length tokens is cut. In a pair the "
        "longer text loses one token at a time, or the second text if both have the same "
        'length, as in predict and in Google\'s code. True means "longest_first"',
        one_of=(True, False, "longest_first"),
    )
    max_length: int | None = setting(
        None,
        "maximum number of tokens of a row, with [CLS] and [SEP]. None: ``padding`` if it "
        "is a number, otherwise ``model_max_length``. A tokenizer without a model has no "
        "maximum",
        least=2,
    )
    allow_mask: bool = setting(
        True,
        'whether "[MASK]" in a text is the mask token. Text that spells another special '
        "token is ordinary text",
    )

    def __post_init__(self):
        check_ranges(self)
        is_name = self.padding in (True, "longest", "max_length")
        if not is_name and not (isinstance(self.padding, int) and self.padding >= 1):
            raise UserError(f"padding={self.padding!r}, expected {_PADDING}")

    def limit(self, model_max_length: int | None) -> int | None:
        """The maximum number of tokens of a row. None: no maximum."""
        if self.max_length is not None:
            return self.max_length
        if isinstance(self.padding, int) and self.padding is not True:
            return self.padding
        return model_max_length

    def width(self, longest: int, limit: int | None) -> int:
        """The number of tokens of every row.

        longest: tokens of the longest row. limit: see :meth:`limit`. Raises UserError if
        the longest row does not fit.
        """
        if self.padding is True or self.padding == "longest":
            return longest
        width = self.padding
        if self.padding == "max_length":
            width = limit
        if width is None:
            raise UserError(f"padding={self.padding!r}, expected {_PADDING}")
        if width < longest:
            raise UserError(
                f"the longest row has {longest} tokens, expected at most {width}; raise "
                "padding, or use truncation=True"
            )
        return width


def padded_arrays(
    rows: Sequence[tuple[np.ndarray, np.ndarray]], length: int, pad_id: int
) -> dict[str, np.ndarray]:
    """input_ids, token_type_ids and attention_mask, int32 (rows, length).

    rows: input_ids and token_type_ids of each row, (L_i,), at most ``length``.
    """
    input_ids = np.full((len(rows), length), pad_id, np.int32)
    token_type_ids = np.zeros_like(input_ids)
    attention_mask = np.zeros_like(input_ids)
    for i, (ids, types) in enumerate(rows):
        input_ids[i, : len(ids)] = ids
        token_type_ids[i, : len(ids)] = types
        attention_mask[i, : len(ids)] = 1
    arrays = input_ids, token_type_ids, attention_mask
    return dict(zip(INPUT_NAMES, arrays, strict=True))


def paired_texts(**columns: Any) -> list[tuple[str, ...]]:
    """Rows with one text of each column. A column is a text or several texts.

    Raises UserError if the columns have different numbers of texts.
    """
    lists = [_text_list(texts, name) for name, texts in columns.items()]
    counts = [len(texts) for texts in lists]
    if len({*counts}) > 1:
        pairs = zip(columns, counts, strict=True)
        actual = " and ".join(f"{name} has {counted(n, 'text')}" for name, n in pairs)
        raise UserError(f"{actual}; both must have the same number of texts")
    return [*zip(*lists, strict=True)]


def _text_list(texts: Any, name: str) -> list[str]:
    """One text, or several texts, as a list. Raises UserError for anything else."""
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):  # iterates over names
        expected = "a text, or a list, an array or a column of texts"
        raise UserError(f"{name} is a table; expected {expected}")
    if not isinstance(texts, Iterable):
        raise UserError(f"{name}={texts!r:.80}, expected a text, or several texts")
    if isinstance(texts, str):
        return [texts]
    texts = list(texts)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            advice = "drop missing values, and give second texts as pairs=[...]"
            raise UserError(f"{name}[{i}] is {text!r:.80}, expected a text; {advice}")
    return texts
