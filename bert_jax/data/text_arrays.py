"""Columns of texts, and the arrays that a call of a tokenizer returns."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from bert_jax.errors import UserError, counted
from bert_jax.settings import check_ranges, setting


@dataclasses.dataclass(frozen=True)
class CallOptions:
    """The options of a call of a Tokenizer."""

    padding: bool | str | int = setting(
        True,
        'True or "longest": every row is as long as the longest row. "max_length": every '
        "row has max_length tokens. A number: every row has this number of tokens",
    )
    truncation: bool | str = setting(
        True,
        "whether a row with more than max_length tokens is cut. In a pair the longer text "
        'loses tokens first (True means "longest_first", as in transformers)',
        one_of=(True, False, "longest_first"),
    )
    max_length: int | None = setting(
        None,
        "maximum number of tokens of a row, with [CLS] and [SEP]. None: the number of "
        "``padding``, or else ``model_max_length``. A tokenizer without a model has no "
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
        number = isinstance(self.padding, int) and self.padding is not True
        names = True, "longest", "max_length"
        if (number and self.padding < 1) or not (number or self.padding in names):
            expected = 'True, "longest", a number, or "max_length" with a max_length'
            raise UserError(f"padding={self.padding!r}, expected {expected}")


def paired_texts(**columns: Any) -> list[tuple[str, ...]]:
    """A row for each text of all columns. Each column is a text or several texts.

    Raises UserError for columns with other numbers of texts.
    """
    lists = [_text_list(texts, name) for name, texts in columns.items()]
    counts = [len(texts) for texts in lists]
    if len({*counts}) > 1:
        pairs = zip(columns, counts, strict=True)
        actual = " and ".join(f"{name} has {counted(n, 'text')}" for name, n in pairs)
        raise UserError(f"{actual}; expected as many texts in both")
    return [*zip(*lists, strict=True)]


def _text_list(texts: Any, name: str) -> list[str]:
    """One text, or several texts, as a list. Raises UserError for anything else."""
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):  # iterates over names
        expected = "a text, or a list, an array or a column of texts"
        raise UserError(f"{name} is a table; expected {expected}")
    if not isinstance(texts, Iterable):
        raise UserError(f"{name}={texts!r:.80}, expected a text, or several texts")
    texts = [texts] if isinstance(texts, str) else [*texts]
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            advice = "drop missing values, and give second texts as pairs=[...]"
            raise UserError(f"{name}[{i}] is {text!r:.80}, expected a text; {advice}")
    return texts
