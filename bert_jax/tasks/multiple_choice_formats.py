"""Rows of multiple choice: SWAG's csv, CODAH's tsv, and JSONL with any choices."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.files import parse_json
from bert_jax.tasks import tables

FOLDS = 5
_SWAG_ENDINGS = ("ending0", "ending1", "ending2", "ending3")
_CODAH_CHOICES = ("choice0", "choice1", "choice2", "choice3")
_CODAH_COLUMNS = ("category", "prompt", *_CODAH_CHOICES, "label")


@dataclasses.dataclass(frozen=True, slots=True)
class ChoiceRow:
    """A context and what may follow it. label: which one does, from 0."""

    where: str
    context: str
    choices: tuple[str, ...]
    label: int | None = None
    id: str | None = None


def read_swag(path: Path, *, labelled: bool) -> Iterator[ChoiceRow]:
    """SWAG (Zellers et al. 2018): the context is sent1, a choice is sent2 + ending."""
    columns = ["sent1", "sent2", *_SWAG_ENDINGS, *(["label"] if labelled else [])]
    for where, row in tables.read_table(path, columns, optional=["fold-ind"]):
        starts = [row["sent2"], *(row[ending] for ending in _SWAG_ENDINGS)]
        choices = tuple(f"{starts[0]} {ending}".strip() for ending in starts[1:])
        label = _label(where, row["label"], len(choices)) if labelled else None
        _check(where, row["sent1"], choices)
        yield ChoiceRow(where, row["sent1"], choices, label, row["fold-ind"])


def read_codah(path: Path) -> Iterator[ChoiceRow]:
    """CODAH (Chen et al. 2019): category, prompt, four choices, label; no header."""
    rows = tables.read_table(
        path, ["prompt", *_CODAH_CHOICES, "label"], header=_CODAH_COLUMNS
    )
    for where, row in rows:
        choices = tuple(row[name] for name in _CODAH_CHOICES)
        _check(where, row["prompt"], choices)
        label = _label(where, row["label"], len(choices))
        yield ChoiceRow(where, row["prompt"], choices, label)


def in_fold(number: int, split: str, fold: int) -> bool:
    """Whether row ``number`` of a file without splits is in this one.

    Of each five rows one is test (number % 5 == fold), the next dev, the rest train:
    the shares of the paper's cross-validation, each row once in the five test sets.
    """
    place = (number - fold) % FOLDS
    return split == {0: "test", 1: "dev"}.get(place, "train")


def read_jsonl(path: Path, *, labelled: bool) -> Iterator[ChoiceRow]:
    """Objects {"context": "...", "choices": ["...", ...], "label": 0, "id": ...}."""
    for where, value in tables.read_objects(path):
        yield _from_object(value, where, labelled=labelled)


def parse_choices(lines: Iterable[str], name: str, first: int) -> list[ChoiceRow]:
    """Rows without labels: context and choices with tabs between, or JSON objects."""
    rows = []
    for number, line in enumerate(lines, first):
        where = f"{name}:{number}"
        line = line.rstrip("\r\n")
        if number == 1:
            line = line.removeprefix("\ufeff")
        if line.lstrip().startswith("{"):
            value = parse_json(line, where, "one object a line")
            rows.append(_from_object(value, where, labelled=False))
            continue
        context, *choices = line.split("\t")
        _check(where, context, choices)
        rows.append(ChoiceRow(where, context, tuple(choices)))
    return rows


def _from_object(value: dict[str, Any], where: str, *, labelled: bool) -> ChoiceRow:
    for name in ("context", "choices", *(["label"] if labelled else [])):
        if value.get(name) is None:
            raise tables.missing_column(where, name, value)
    context, choices = value["context"], value["choices"]
    if not isinstance(choices, list) or not all(
        isinstance(text, str) for text in [context, *choices]
    ):
        raise UserError(
            f"{where}: expected a string as 'context' and a list of strings as 'choices'"
        )
    _check(where, context, choices)
    label = None
    if labelled:
        label = _label(where, tables.cell(value["label"]), len(choices))
    index = value.get("id")
    return ChoiceRow(
        where,
        context,
        tuple(choices),
        label,
        None if index is None else tables.cell(index),
    )


def _check(where: str, context: str, choices: Sequence[str]) -> None:
    if len(choices) < 2:
        raise UserError(
            f"{where}: number of choices is {len(choices)}; expected two or more after "
            "the context"
        )
    if not context.strip() or not all(choice.strip() for choice in choices):
        raise UserError(
            f"{where}: empty text; expected words as context and in every choice"
        )


def _label(where: str, text: str, choices: int) -> int:
    if not (text.isdecimal() and int(text) < choices):
        raise UserError(
            f"{where}: label {text!r} is not in the label set 0 to {choices - 1}, the "
            "number of the right choice"
        )
    return int(text)
