"""Labelled texts: how a data set of them lies in files, and its rows."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bert_jax.errors import UserError
from bert_jax.tasks import tables


@dataclasses.dataclass(frozen=True)
class Split:
    """Where the rows of a split are.

    files: names below the data set's folder; the first that exists is read.
    text_a, text_b, label: columns by name; "" where there is no such column.
    header: names of the columns where the file has no header line.
    submission: name of the file in which the task's server wants predictions.
    skip_short: the published file has rows of too few columns; leave them out.
    tfds: the split's name in tensorflow-datasets.
    tfds_dataset: the data set's name there, if not the one that the user gives.
    """

    files: tuple[str, ...]
    text_a: str
    text_b: str = ""
    label: str = ""
    index: str = "index"
    header: tuple[str, ...] = ()
    submission: str = ""
    skip_short: bool = False
    tfds: str = ""
    tfds_dataset: str = ""


@dataclasses.dataclass(frozen=True)
class Layout:
    """A data set and its task.

    labels: in the order of the outputs; empty for regression, or where the training
      rows tell. For F1 the second label is the positive one.
    metrics: names as in classification.py; the first picks the checkpoint.
    tfds: features in tensorflow-datasets: first text, second text, label.
    limits: of the values that a regression's server takes.
    gaps: the published rows may lack one text of the two.
    """

    splits: dict[str, Split]
    metrics: tuple[str, ...]
    labels: tuple[str, ...] = ()
    regression: bool = False
    eval_splits: tuple[str, ...] = ("dev",)
    predict_splits: tuple[str, ...] = ()
    tfds: tuple[str, str, str] = ("", "", "label")
    limits: tuple[float, float] | None = None
    gaps: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A text or two. label: None where unknown. id: as the file has it, if it has one."""

    where: str
    text_a: str
    text_b: str | None = None
    label: str | float | None = None
    id: str | None = None


def has_rows(directory: str, split: Split) -> bool:
    """Whether the split is there at all."""
    if tables.is_tfds(directory):
        name, subset = _tfds_name(directory, split)
        return tables.has_split(name, subset)
    return tables.find_file(directory, split.files) is not None


def read_rows(
    directory: str, name: str, layout: Layout, labels: Sequence[str], *, labelled: bool
) -> list[Row]:
    """The rows of a split.

    labels: the label set; empty where any label will do.
    labelled: whether the label column is read; without it labels are None.
    """
    split = layout.splits[name]
    known = set(labels)
    rows = []
    for where, texts, label, index in _records(directory, split, layout, labelled):
        _check_texts(where, texts, gaps=layout.gaps)
        if labelled and layout.regression:
            label = _number(where, label)
        elif labelled and known and label not in known:
            raise UserError(
                f"{where}: label {label!r} is not in the label set {', '.join(labels)}"
            )
        rows.append(Row(where, *texts, label=label, id=index))
    if not rows:
        raise UserError(f"{directory}: the {name} split has no rows; expected some")
    return rows


def parse_rows(
    lines: Iterable[str], name: str, start: int, layout: Layout
) -> list[Row]:
    """Rows of plain lines (a tab between two texts) or JSON objects, without labels.

    An object's texts are under "text_a" (or "text") and "text_b", or under the names of
    the data set's columns; its "id" or "index" is kept.
    """
    splits = layout.splits.values()
    first = ["text_a", "text", *(s.text_a for s in splits), layout.tfds[0]]
    second = ["text_b", *(s.text_b for s in splits), layout.tfds[1]]
    ids = [*(s.index for s in splits), "id", "idx"]
    pair = any(s.text_b for s in splits)
    rows = []
    for where, value in tables.parse_lines(lines, name, start):
        texts, index = value, None
        if isinstance(value, dict):
            texts = [
                _one_of(value, names, where) for names in (first, second)[: 1 + pair]
            ]
            index = next((tables.cell(value[key]) for key in ids if key in value), None)
        if len(texts) != 1 + pair:
            expected = "two, with a tab between them" if pair else "one"
            raise UserError(
                f"{where}: number of texts is {len(texts)}, the task reads {expected}; "
                "change the line, or give a JSON object"
            )
        _check_texts(where, texts, gaps=False)
        rows.append(Row(where, *texts, id=index))
    return rows


def _records(
    directory: str, split: Split, layout: Layout, labelled: bool
) -> Iterator[tuple[str, list[str], str | None, str | None]]:
    """The place of each row, its texts, label and id, from files or tfds."""
    text_a, text_b, label, index = split.text_a, split.text_b, split.label, split.index
    in_tfds = tables.is_tfds(directory)
    if in_tfds:
        text_a, text_b, label, index = *layout.tfds, "idx"
    texts = [text_a, text_b] if text_b else [text_a]
    columns = [*texts, label] if labelled else texts
    if in_tfds:
        name, subset = _tfds_name(directory, split)
        records = tables.read_tfds(
            name, subset, columns, optional=[index], labels=layout.labels
        )
    else:
        records = tables.read_table(
            tables.existing_file(directory, split.files),
            columns,
            optional=[index],
            header=split.header,
            skip_short=split.skip_short,
        )
    for where, values in records:
        yield (
            where,
            [values[column] for column in texts],
            values[label] if labelled else None,
            values[index],
        )


def _tfds_name(directory: str, split: Split) -> tuple[str, str]:
    """Name of the data set and of the split, as tensorflow-datasets has them."""
    name = split.tfds_dataset or directory.removeprefix(tables.TFDS)
    return name, split.tfds


def _check_texts(where: str, texts: Sequence[str], *, gaps: bool) -> None:
    """Raises for an empty text; with ``gaps`` only where all of them are empty."""
    filled = [bool(text.strip()) for text in texts]
    if not (any(filled) if gaps else all(filled)):
        raise UserError(f"{where}: empty text; expected words, mend or drop the row")


def _number(where: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{where}: label {text!r} is not a number; expected one")
    return value


def _one_of(value: dict[str, Any], names: Iterable[str], where: str) -> str:
    names = list(dict.fromkeys(name for name in names if name))
    for name in names:
        if name in value:
            if isinstance(value[name], str):
                return value[name]
            raise UserError(f"{where}: {name!r} is not a string; expected text")
    raise UserError(
        f"{where}: no column {' or '.join(map(repr, names))}; the columns are "
        f"{', '.join(value)}"
    )
