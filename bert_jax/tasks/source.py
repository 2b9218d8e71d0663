"""Sources: the splits of a task, their rows and the names of their classes."""

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
from bert_jax.settings import check_ranges, setting
from bert_jax.tasks.rows import (
    FORMATS,
    Placed,
    Record,
    is_table,
    placed_rows,
    read_rows,
)

logger = logging.getLogger(__name__)

SPLITS = ("train", "dev", "test")
ROWS = "rows:"  # start of the dir of a task with rows from Python
HUB = "hf:"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The files of a task."""

    dir: str = setting(
        "", "the folder of the files, hf:NAME, hf:NAME:CONFIG or tfds:NAME"
    )
    train: str = setting(
        "",
        "a file in dir, or a split of hf or tfds; empty: the data set's own name, such as "
        "train-v1.1.json, or train.csv, train.jsonl and so on for a table",
    )
    dev: str = setting("", "as train")
    test: str = setting("", "as train; scored if it has labels, otherwise predicted")

    def __post_init__(self):
        check_ranges(self, "data.")


class Source:
    """The splits of a task, and the rows of each.

    The dir of the config is a folder of files, hf:NAME or hf:NAME:CONFIG (a data set of
    Hugging Face's hub), or tfds:NAME (a data set of tensorflow-datasets). The settings
    train, dev and test, if the config has them, name a file or a split. A family with files
    of its own form has a subclass.

    columns: the columns of the task, the label last; see Task.
    given: rows of each split, from Python or other files, which replace the rows of dir.
    splits: the names that splits may have. labels: the labels that are known without rows.
    """

    splits: tuple[str, ...] = SPLITS

    def __init__(
        self,
        config: Any,
        columns: Mapping[str, tuple[str, ...]],
        given: Mapping[str, Sequence[Record]] | None = None,
    ):
        self.config, self.columns, self.given = config, columns, given
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

    def any_label(self, records: Iterable[Record]) -> bool:
        """Whether any row has a label. Hugging Face writes -1 for a missing label."""
        labels = (values.get(n) for _, values in records for n in self._label_names)
        # An empty cell of a CSV file is a missing value.
        return any(x not in (None, "") and str(x) not in ("-1", "-1.0") for x in labels)

    def records(self, split: str) -> Iterator[Placed]:
        """The place of each row of a split, and its values by name."""
        if self.given is not None:
            if split not in self.given:
                needed = "give them, or the labels with labels="
                raise UserError(f"there are no rows of {split}; {needed}")
            return iter(self.given[split])
        found = self._data(split)
        if isinstance(found, Path):
            return self.read_file(found, split)
        return self.rows_of(found, f"{self.config.dir}:{self._hub_split(split)}")

    def rows_of(
        self, data: Any, name: str = "", *, tabs: bool = True
    ) -> Iterator[Placed]:
        """The rows of any data; see :func:`rows.placed_rows`.

        Also reads files in a form of the family. Class numbers of a data set become class
        names: the task's names, see :func:`in_order_of`, or else the data set's. The class
        -1 is a missing label.
        """
        if isinstance(data, Path) and self.is_own(data):
            return self.read_file(data, "test")
        placed = placed_rows(data, name, tabs=tabs)
        info = getattr(data, "dataset_info", None)  # of tensorflow-datasets
        features = {**info.features} if info else getattr(data, "features", {})
        if not isinstance(features, Mapping):  # a column of a frame
            return placed
        column = next((name for name in self._label_names if name in features), "")
        feature = features.get(column)
        names = getattr(
            getattr(feature, "feature", feature), "names", None
        )  # of a list
        return self._with_names(placed, column, names) if names else placed

    def is_own(self, path: Path) -> bool:
        """Whether a file to predict has a form of the family, by the file's name."""
        del path
        return False

    def read_file(self, path: Path, split: str) -> Iterator[Placed]:
        """The rows of a split's file. By default the file is a table."""
        del split
        if not is_table(path):
            raise UserError(
                f"{path} is no table by its name; expected one of {', '.join(FORMATS)}, "
                "with or without .gz"
            )
        return read_rows(path)

    def file_names(self, split: str) -> Sequence[str]:
        """The possible names of a split's file, if the config names none."""
        return [split + end + packed for end in FORMATS for packed in ("", ".gz")]

    def has(self, split: str) -> bool:
        """Whether a split exists, or the config names its file."""
        if self.given is not None:
            return split in self.given
        with contextlib.suppress(UserError):
            return bool(
                getattr(self.config, split, "") or self._data(split) is not None
            )
        return False

    def path(self, split: str) -> Path:
        """The file of a split. Raises UserError if there is none."""
        given, folder = getattr(self.config, split, ""), Path(self.config.dir)
        names = [given] if given else self.file_names(split)
        if path := next((folder / x for x in names if (folder / x).is_file()), None):
            return path
        there = "it does not exist"
        if folder.is_dir():
            files = sorted(path.name for path in folder.iterdir())
            there = f"it has {listed(files) or 'no files'}"
        raise UserError(
            f"{self.config.dir or 'data.dir'} has no {listed(names)} ({there}); "
            "set data.dir to the folder of the data set, or data.train, data.dev and "
            "data.test to its files; in Python task.with_rows(train=rows) needs no files"
        )

    def check(self) -> None:
        """Raises UserError if the file of train or dev is missing."""
        for split in ("train", self.eval_splits[0]) if self._in_files else ():
            self.path(split)

    @property
    def _in_files(self) -> bool:
        return not self.config.dir.startswith((HUB, TFDS))

    def _hub_split(self, split: str) -> str:
        return getattr(self.config, split, "") or split.replace("dev", "validation")

    def _data(self, split: str) -> Any:
        """The Path or the data set of a split. Raises UserError if there is none."""
        if self._in_files:
            return self.path(split)
        if self.config.dir.startswith(TFDS):
            return find_dataset(f"{self.config.dir}:{self._hub_split(split)}")
        return read_hub(self.config.dir, self._hub_split(split))

    def _with_names(
        self, placed: Iterable[Placed], column: str, names: Sequence[str]
    ) -> Iterator[Placed]:
        if self.labels:
            names = in_order_of(tuple(names), self.labels)
        known = dict(enumerate(names)) | {-1: None}
        for where, row in placed:
            value = row.get(column)
            several = isinstance(value, list)
            found = [known.get(x, x) for x in (value if several else [value])]
            yield where, row | {column: found if several else found[0]}


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
    """Numbers of the rows that become dev, drawn with ``seed``.

    Each class keeps its share of the rows (the method of Sainte-Laguë: row i of the n rows
    of a class, from 0, has the place (i + 1/2) / n, and the first places become dev). One
    row of each class is always left. classes: the class of each row.
    """
    order = np.random.default_rng(seed).permutation(len(classes)).tolist()
    sizes, drawn, places = collections.Counter(classes), collections.Counter(), {}
    for row in order:
        name = classes[row]
        drawn[name] += 1
        is_last = drawn[name] == sizes[name]
        places[row] = 1 if is_last else (drawn[name] - 0.5) / sizes[name]
    count = min(max(round(share * len(order)), 1), len(order) - len(sizes))
    return {*sorted(order, key=places.get)[:count]}


def fold_rows(classes: Sequence[Hashable], count: int, seed: int) -> list[set[int]]:
    """Numbers of the rows of each fold, drawn with ``seed``.

    The rows of a class are dealt to the folds in turn. A class with one row is in no fold,
    so that the rows outside a fold have all classes. classes: the class of each row.
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

    They are matched by name. If no name is equal, a name in another case matches. Names
    that are numbers, such as LABEL_0 or 0, are matched by position, with a warning. Raises
    UserError for other names.
    """
    by_name = {label.casefold(): label for label in labels}
    by_name |= {label: label for label in labels}
    found = [by_name.get(name, by_name.get(name.casefold())) for name in outputs]
    if None not in found and len({*found}) == len(outputs):
        return tuple(found)
    numbers = [str(i) for i in range(len(outputs))]
    given = [
        [x.upper().removeprefix("LABEL_") for x in own] for own in (outputs, labels)
    ]
    if numbers not in given or len(outputs) != len(labels):
        came = f"the classes are {', '.join(outputs)}, the labels of the task "
        needed = "give the task labels= with the names of the classes"
        raise UserError(f"{came}{', '.join(labels)}; {needed}")
    shown = ", ".join(map(" is ".join, zip(outputs, labels, strict=True)))
    logger.warning(f"classes are matched by position: {shown}")
    return tuple(labels)


def has_number(labels: Sequence[str]) -> bool:
    """Whether the name of any label is a number."""
    return any(x.lstrip("+-").replace(".", "", 1).isdecimal() for x in labels)


def label_of(value: Any, labels: tuple[str, ...]) -> Any:
    """The label with this number, if the value is a whole number; else the value."""
    if type(value) is int:  # a boolean is not a number here
        return names_by_number(labels).get(str(value), value)
    return value


@functools.cache  # warns once
def names_by_number(labels: tuple[str, ...]) -> dict[str, str]:
    """The label for each whole number, as text.

    A number is the position of its label, with a warning. But if the name of any label is a
    number, each number is the name of its label.
    """
    if not labels or has_number(labels):
        return {label: label for label in labels}
    numbers = [*map(str, range(len(labels)))]
    logger.warning(
        f"labels {listed(numbers)} are read as {listed(labels)}, by position"
    )
    return dict(zip(numbers, labels, strict=True))
