"""Rows with named columns from tensorflow-datasets, without TensorFlow."""

from collections.abc import Iterator, Sequence
from typing import Any

from bert_jax.data.corpus_tfds import Dataset, find_dataset
from bert_jax.errors import UserError
from bert_jax.tasks.tables import Record, missing_column

PREFIX = "tfds:"
# Rows fetched at once: a few hundred kB.
_ROWS = 1024


def is_tfds(directory: str) -> bool:
    """Whether a folder's name is that of a data set in tensorflow-datasets."""
    return directory.startswith(PREFIX)


def has_split(name: str, split: str) -> bool:
    """Whether the data set lies on disk and has this split."""
    try:
        find_dataset(f"{name}:{split}")
    except UserError:
        return False
    return True


def read_tfds(
    name: str,
    split: str,
    columns: Sequence[str],
    *,
    optional: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> Iterator[Record]:
    """Where each row stands, and the text of its features, as tables.read_table does.

    labels: stand for the classes, by number, whose names in the data set are others.
    """
    dataset = find_dataset(f"{name}:{split}")
    features = dataset.builder.info.features
    where = f"{PREFIX}{name}:{split}"
    for column in columns:
        if column not in features:
            raise missing_column(where, column, features)
    wanted = [*columns, *(column for column in optional if column in features)]
    names = {
        column: _class_names(features[column], labels)
        for column in wanted
        if hasattr(features[column], "int2str")
    }
    empty = dict.fromkeys(optional)
    for i, example in _examples(dataset):
        yield (
            f"{where}, row {i}",
            empty
            | {c: _text(example[c], names.get(c), f"{where}, row {i}") for c in wanted},
        )


def _examples(dataset: Dataset) -> Iterator[tuple[int, dict[str, Any]]]:
    source = dataset.builder.as_data_source(split=dataset.split)
    for begin in range(0, dataset.rows, _ROWS):
        numbers = list(range(begin, min(begin + _ROWS, dataset.rows)))
        yield from zip(numbers, source.__getitems__(numbers), strict=True)


def _class_names(feature: Any, labels: Sequence[str]) -> list[str]:
    names = list(feature.names)
    if len(names) == len(labels) and not set(names) <= set(labels):
        return list(labels)
    return names


def _text(value: Any, names: list[str] | None, where: str) -> str:
    if names is not None:
        if not 0 <= value < len(names):
            raise UserError(f"{where}: class {value}, a row without a label")
        return names[value]
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, str) else str(value)
