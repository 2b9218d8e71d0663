"""The source of a task: its splits, their rows and the names of their classes."""

import collections
import contextlib
import dataclasses
import functools
import logging
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.corpus import TFDS, find_dataset
from bert_jax.errors import UserError, listed
from bert_jax.files import reading
from bert_jax.settings import FilePath, check_ranges, setting
from bert_jax.tasks import rows as read

logger = logging.getLogger(__name__)

SPLITS = ("train", "dev", "test")
ROWS = "rows:"  # start of the dir of a task with rows from Python
HUB = "hf:"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The files of a task."""

    dir: FilePath = setting("", "folder of the files, or hf:NAME[:CONFIG] or tfds:NAME")
    train: FilePath = setting(
        "",
        "training file in dir, or split of a data set. Empty: the usual name, such as "
        "train.csv or train.jsonl of a table, or train-v1.1.json of SQuAD",
    )
    dev: FilePath = setting("", "dev file or split, as for train")
    test: FilePath = setting("", "test file or split. Its labels may be missing")

    def __post_init__(self):
        check_ranges(self, "data.")


class Source:
    """The splits of a task, and the rows of each.

    The settings dir, train, dev and test choose a folder and its files, or a data set and
    its splits; see DataConfig. A config may lack train, dev and test. A family with files
    of its own form has a subclass.

    columns: columns of the task, the label last; see Task.
    rows: rows of each split, from Python or other files, which replace the rows of dir.
    splits: names that splits may have. labels: labels that are known without rows.
    """

    splits: tuple[str, ...] = SPLITS

    def __init__(
        self,
        config: Any,
        columns: Mapping[str, tuple[str, ...]],
        rows: Mapping[str, Sequence[read.Record]] | None = None,
    ):
        self.config, self.columns, self.rows = config, columns, rows
        self.labels: tuple[str, ...] = getattr(config, "labels", ())
        self._label_names = [*columns.values()][-1]

    @functools.cached_property
    def eval_splits(self) -> tuple[str, ...]:
        """The splits with labels that are scored. The first one picks the checkpoint."""
        labelled = self.has("test") and self.any_label(self.records("test"))
        return ("dev", "test") if labelled else ("dev",)

    @functools.cached_property
    def predict_splits(self) -> tuple[str, ...]:
        """The splits without labels, whose predictions are written."""
        labelled = ("train", *self.eval_splits)
        return tuple(s for s in self.splits if s not in labelled and self.has(s))

    def any_label(self, records: Iterable[read.Record]) -> bool:
        """Whether any row has a label.

        An empty cell of a CSV file and Hugging Face's -1 are missing labels.
        """
        labels = (values.get(n) for _, values in records for n in self._label_names)
        return any(x not in (None, "") and str(x) not in ("-1", "-1.0") for x in labels)

    def records(self, split: str) -> Iterator[read.Placed]:
        """Yields the place and the values of each row of a split."""
        if self.rows is not None:
            if split not in self.rows:
                needed = "give them, or the labels with labels="
                raise UserError(f"there are no rows of {split}; {needed}")
            return iter(self.rows[split])
        data = self._data(split)
        if isinstance(data, Path):
            return self.read_file(data, split)
        return self.rows_of(data, f"{self.config.dir}:{self._hub_split(split)}")

    def rows_of(
        self, data: Any, name: str = "", *, tabs: bool = True
    ) -> Iterator[read.Placed]:
        """Yields the rows of any data; see :func:`rows.placed_rows`.

        Also reads files in a form of the family. The class numbers of a data set become
        names: the labels of the task (see :func:`in_order_of`) or the names of the data
        set. The class -1 is a missing label.
        """
        if isinstance(data, Path) and self.is_own(data):
            return self.read_file(data, "test")
        placed = read.placed_rows(data, name, tabs=tabs)
        info = getattr(data, "dataset_info", None)  # of tensorflow-datasets
        features = {**info.features} if info else getattr(data, "features", {})
        if not isinstance(features, Mapping):  # a column of a frame
            return placed
        column = next((name for name in self._label_names if name in features), "")
        feature = features.get(column)
        feature = getattr(feature, "feature", feature)  # the feature of a list's items
        names = getattr(feature, "names", None)
        return self._with_names(placed, column, names) if names else placed

    def is_own(self, path: Path) -> bool:
        """Whether a file to predict has a form of the family, by the file's name."""
        return False

    def read_file(self, path: Path, split: str) -> Iterator[read.Placed]:
        """Yields the rows of a split's file. By default the file is a table."""
        if not read.is_table(path):
            expected = f"expected {', '.join(read.FORMATS)}, with or without .gz"
            raise UserError(f"{path} is no table by its name; {expected}")
        return read.read_rows(path)

    def file_names(self, split: str) -> Sequence[str]:
        """The possible names of a split's file, if the config has no name."""
        return [split + end + packed for end in read.FORMATS for packed in ("", ".gz")]

    def has(self, split: str) -> bool:
        """Whether a split exists, or the config has a name for its file."""
        if self.rows is not None:
            return split in self.rows
        with contextlib.suppress(UserError):
            setting = getattr(self.config, split, "")
            return bool(setting) or self._data(split) is not None
        return False

    def path(self, split: str) -> Path:
        """The file of a split. Raises UserError if there is none."""
        name, folder = getattr(self.config, split, ""), Path(self.config.dir)
        names = [name] if name else self.file_names(split)
        if path := next((folder / x for x in names if (folder / x).is_file()), None):
            return path
        files = sorted(x.name for x in folder.iterdir()) if folder.is_dir() else []
        there = f"it has {listed(files)}" if files else "it is empty or does not exist"
        if folder.is_file():
            there = "it is a file"
        where = self.config.dir or "the current folder"
        raise UserError(
            f"{where} has no {listed(names)} ({there}); set data.dir to the folder, or "
            "data.train, data.dev and data.test to its files"
        )

    def check(self) -> None:
        """Raises UserError if train or dev is missing."""
        for split in ("train", self.eval_splits[0]):
            self._data(split)

    def _hub_split(self, split: str) -> str:
        return getattr(self.config, split, "") or split.replace("dev", "validation")

    def _data(self, split: str) -> Any:
        """The Path or the data set of a split. Raises UserError if there is none."""
        if self.config.dir.startswith(TFDS):
            return find_dataset(f"{self.config.dir}:{self._hub_split(split)}")
        if self.config.dir.startswith(HUB):
            return read_hub(self.config.dir, self._hub_split(split))
        return self.path(split)

    def _with_names(
        self, placed: Iterable[read.Placed], column: str, names: Sequence[str]
    ) -> Iterator[read.Placed]:
        if self.labels:
            names = in_order_of(tuple(names), self.labels)
        known = dict(enumerate(names)) | {-1: None}
        for where, row in placed:
            value = row.get(column)
            is_list = isinstance(value, list)
            label = (
                [known.get(x, x) for x in value] if is_list else known.get(value, value)
            )
            yield where, row | {column: label}


@functools.cache
def read_hub(directory: str, split: str) -> Any:
    """A split of the data set hf:NAME or hf:NAME:CONFIG."""
    with reading(directory, "a data set of the hub"):
        import datasets
    names = directory.removeprefix(HUB).split(":", 1)
    known = datasets.get_dataset_split_names(*names)
    if split.partition("[")[0] not in known:
        raise UserError(f"{directory} has no split {split}; it has {', '.join(known)}")
    return datasets.load_dataset(*names, split=split)


# Rows for dev


def share_of_rows(classes: Sequence[Hashable], share: float, seed: int) -> set[int]:
    """Numbers of the rows that become dev, chosen with ``seed``.

    Each class keeps its share of the rows (the method of Sainte-Laguë: row i of the n rows
    of a class, from 0, has the place (i + 1/2) / n, and the first places become dev). One
    row of each class always stays in train. classes: the class of each row.
    """
    order = np.random.default_rng(seed).permutation(len(classes)).tolist()
    sizes, counts, places = collections.Counter(classes), collections.Counter(), {}
    for row in order:
        name = classes[row]
        counts[name] += 1
        is_last = counts[name] == sizes[name]
        places[row] = 1 if is_last else (counts[name] - 0.5) / sizes[name]
    count = min(max(round(share * len(order)), 1), len(order) - len(sizes))
    return {*sorted(order, key=places.get)[:count]}


def fold_rows(classes: Sequence[Hashable], count: int, seed: int) -> list[set[int]]:
    """Numbers of the rows of each fold, chosen with ``seed``.

    The rows of a class go to the folds in turn. A class with one row is in no fold, so that
    the rows outside a fold have all classes. classes: the class of each row.
    """
    sizes = collections.Counter(classes)
    order = np.random.default_rng(seed).permutation(len(classes)).tolist()
    order = [row for row in order if sizes[classes[row]] > 1]
    order.sort(key=lambda row: str(classes[row]))
    return [{*order[fold::count]} for fold in range(count)]


# Names of classes


@functools.cache  # warns once
def in_order_of(outputs: tuple[str, ...], labels: tuple[str, ...]) -> tuple[str, ...]:
    """The label of a task for each class of a data set, or for each output of a head.

    Classes and labels are matched by name, and if no name is equal by name in any case.
    Names that are numbers, such as LABEL_0 or 0, are matched by position, with a warning.
    Raises UserError for other names.
    """
    by_name = {label.casefold(): label for label in labels}
    by_name |= {label: label for label in labels}
    matched = [by_name.get(name, by_name.get(name.casefold())) for name in outputs]
    if None not in matched and len({*matched}) == len(outputs):
        return tuple(matched)
    numbers = [*map(str, range(len(outputs)))]
    names = ([x.upper().removeprefix("LABEL_") for x in n] for n in (outputs, labels))
    if numbers not in names or len(outputs) != len(labels):
        actual = f"the classes are {', '.join(outputs)}, the labels of the task "
        needed = "give the task labels= with the names of the classes"
        raise UserError(f"{actual}{', '.join(labels)}; {needed}")
    shown = ", ".join(map(" is ".join, zip(outputs, labels, strict=True)))
    logger.warning(f"classes are matched by position: {shown}")
    return tuple(labels)


def has_number(labels: Sequence[str]) -> bool:
    """Whether any label is a number, such as "1" or "-0.5"."""
    return any(x.lstrip("+-").replace(".", "", 1).isdecimal() for x in labels)


def label_of(value: Any, labels: tuple[str, ...]) -> Any:
    """The label with this number. A value that is no whole number is returned as it is."""
    if type(value) is int:  # a boolean is the name of a class
        return names_by_number(labels).get(str(value), value)
    return value


@functools.cache  # warns once
def names_by_number(labels: tuple[str, ...]) -> dict[str, str]:
    """The label for each whole number, which is a text here.

    A number is the position of its label, with a warning. If any label is itself a number,
    each number is the name of its label.
    """
    if not labels or has_number(labels):
        return {label: label for label in labels}
    by_number = {str(i): label for i, label in enumerate(labels)}
    shown = f"labels {listed([*by_number])} are read as {listed(labels)}"
    logger.warning(f"{shown}, by position")
    return by_number
