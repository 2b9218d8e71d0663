"""Sources: the splits of a task and their records, in files, on a hub or in Python."""

import functools
import hashlib
import json
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.tasks import tables
from bert_jax.tasks.rows import Placed, placed_rows
from bert_jax.tasks.tables import Record

ROWS = "rows:"  # the dir of a task on rows of Python starts with it
HUB = "hf:"  # the dir of a task on a data set of Hugging Face's hub


class Source:
    """The files of a task, or a data set of Hugging Face's hub.

    A family with files of another form has a subclass.

    config: the task's. Its dir is a folder, or hf:NAME or hf:NAME:CONFIG.
    keys: the task's; the last one holds the names of the label's column.
    unlabelled: splits whose labels are not read.
    splits: all that there may be, eval_splits and predict_splits among them.
    """

    splits: tuple[str, ...] = tables.SPLITS

    def __init__(
        self,
        config: Any,
        keys: Mapping[str, tuple[str, ...]],
        unlabelled: Collection[str] = (),
    ):
        self.config, self.keys, self.unlabelled = config, keys, unlabelled

    @functools.cached_property
    def eval_splits(self) -> tuple[str, ...]:
        """The labelled splits that are scored; the first picks the checkpoint."""
        if not self.has("test"):
            return ("dev",)
        if self.on_hub:
            scored = any_label(self.keys, self.records("test"))
        else:
            scored = self.has_labels(self.path("test"))
        return ("dev", "test") if scored else ("dev",)

    @functools.cached_property
    def predict_splits(self) -> tuple[str, ...]:
        """The splits without labels, whose predictions are written."""
        labelled = ("train", *self.eval_splits)
        return tuple(s for s in self.splits if s not in labelled and self.has(s))

    @property
    def on_hub(self) -> bool:
        """Whether the rows are those of a data set of Hugging Face's hub."""
        return self.config.dir.startswith(HUB)

    @property
    def first_split(self) -> str:
        """The split whose rows show the labels of the task."""
        return "train"

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that the task has without its rows."""
        return getattr(self.config, "labels", ())

    def is_labelled(self, split: str) -> bool:
        """Whether the labels of a split are read."""
        return split not in self.unlabelled and split in ("train", *self.eval_splits)

    def place(self, split: str) -> str:
        """The file or the name of a split, for messages."""
        return f"{self.config.dir}:{split}" if self.on_hub else str(self.path(split))

    def records(self, split: str) -> Iterator[Record]:
        """The place of each row of a split and its values, by one of their names."""
        if self.on_hub:
            return _read_hub(self.config.dir, split, self.labels)
        return self.read_file(self.path(split), split)

    def read_file(self, path: Path, split: str) -> Iterator[Record]:
        """The records of a file of a split. By default the file is a table."""
        del split
        return tables.read_rows(path)

    def has_labels(self, path: Path) -> bool:
        """Whether a file has the labels of its rows."""
        *_, names = self.keys.values()
        return not set(names).isdisjoint(tables.read_columns(path))

    def has(self, split: str) -> bool:
        """Whether a split exists, or its file is named in the config."""
        if getattr(self.config, split, ""):
            return True
        if self.on_hub:
            return _hub_split(split) in _hub_splits(self.config.dir)
        return tables.find_file(self.config.dir, self.file_names(split)) is not None

    def path(self, split: str) -> Path:
        """The file of a split. Raises UserError where there is none."""
        setting = split if hasattr(self.config, split) else ""
        names = self.file_names(split)
        return tables.existing_file(self.config.dir, names, setting)

    def file_names(self, split: str) -> Sequence[str]:
        """The possible names of a split's file, below the config's dir."""
        given = getattr(self.config, split, "")
        return [given] if given else self.own_names(split)

    def own_names(self, split: str) -> Sequence[str]:
        """The file_names of a split that the config does not name."""
        return [split + end for end in tables.ENDINGS]

    def check(self) -> None:
        """Raises UserError if the file to learn from, or the file of dev, is missing."""
        for split in ("train", self.eval_splits[0]):
            if not self.on_hub:
                self.path(split)


class GivenRows(Source):
    """Rows of Python, or of other files than those of the task.

    records: of each split. labelled: the splits with labels.
    """

    def __init__(
        self,
        source: Source,
        records: dict[str, list[Record]],
        labelled: Collection[str],
    ):
        super().__init__(source.config, source.keys, source.unlabelled)
        self._records = records
        self.eval_splits = tuple(s for s in records if s != "train" and s in labelled)
        self.predict_splits = tuple(records.keys() - {"train", *labelled})

    @property
    def first_split(self) -> str:
        """Rows to be scored come without training rows."""
        return next(iter(self._records), "train")

    def place(self, split: str) -> str:
        """The name of the split."""
        return split

    def records(self, split: str) -> Iterator[Record]:
        """The records of a split."""
        if split not in self._records:
            raise UserError(
                f"there are no rows of {split}; give them, or the labels with labels="
            )
        return iter(self._records[split])

    def name(self) -> str:
        """A name that other rows do not have, because a run on them is another run."""
        content = json.dumps(self._records, sort_keys=True, default=str).encode()
        return f"{ROWS}{hashlib.sha256(content).hexdigest()[:12]}"


def given_rows(
    source: Source,
    splits: Mapping[str, Any],
    values: Callable[..., dict[str, Any]],
    held_out: float,
    seed: int,
) -> GivenRows:
    """The rows of Python or of other files in place of a source's own; see Task.with_rows.

    values: from the place and the row, such as a tuple, to the values by name.
    """
    records: dict[str, list[Record]] = {}
    labelled = ["dev"]
    for split, data in splits.items():
        if isinstance(data, str):
            raise UserError(
                f"{split} is the text {data!r}; expected rows, or Path({data!r}) for a file"
            )
        if isinstance(data, Path):
            if not data.is_file():
                raise UserError(f"{data} does not exist; expected a file of {split}")
            records[split] = list(source.read_file(data, split))
            has_labels = source.has_labels(data)
        else:
            records[split] = [
                (where, values(where, row, labelled=True))
                for where, row in _with_names(
                    placed_rows(data, split), data, source.labels
                )
            ]
            has_labels = any_label(source.keys, records[split])
        labelled += [split] * has_labels
    if held_out:
        rows = records["train"]
        count = max(round(held_out * len(rows)), 1)
        if count >= len(rows):
            raise UserError(
                f"train has {len(rows)} rows, of which {count} are held out; expected "
                "more rows, or dev="
            )
        drawn = {*np.random.default_rng(seed).permutation(len(rows))[:count].tolist()}
        records["train"] = [row for i, row in enumerate(rows) if i not in drawn]
        records["dev"] = [row for i, row in enumerate(rows) if i in drawn]
    return GivenRows(source, records, labelled)


def any_label(
    keys: Mapping[str, tuple[str, ...]], records: Iterator[Record] | list[Record]
) -> bool:
    """Whether any row has a label. Hugging Face writes -1 for none."""
    *_, names = keys.values()
    labels = (values.get(name) for _, values in records for name in names)
    return any(label is not None and label != -1 for label in labels)


def _hub_split(split: str) -> str:
    """The name that a split has on the hub."""
    return split.replace("dev", "validation")


def _datasets(directory: str) -> tuple[Any, tuple[str, ...]]:
    """The datasets library, and the name and the config that hf:NAME:CONFIG has."""
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"{directory} needs a library that reads it ({error}): pip install datasets"
        ) from error
    name, _, config = directory.removeprefix(HUB).partition(":")
    return datasets, (name, config) if config else (name,)


@functools.cache
def _hub_splits(directory: str) -> tuple[str, ...]:
    datasets, names = _datasets(directory)
    return tuple(datasets.get_dataset_split_names(*names))


def _read_hub(directory: str, split: str, labels: Sequence[str]) -> Iterator[Placed]:
    """The rows of a split; see :func:`_with_names` for their classes."""
    if _hub_split(split) not in _hub_splits(directory):
        raise UserError(
            f"{directory} has no split {_hub_split(split)}; it has "
            f"{', '.join(_hub_splits(directory))}"
        )
    datasets, names = _datasets(directory)
    data = datasets.load_dataset(*names, split=_hub_split(split))
    return _with_names(placed_rows(data, f"{directory}:{split}"), data, labels)


def _with_names(
    placed: Iterable[Placed], data: Any, labels: Sequence[str]
) -> Iterator[Placed]:
    """The rows with the names of classes, where a data set of Hugging Face has names.

    labels: of the task. The classes keep their numbers if other names are among them.
    """
    names = {}
    for column, feature in (getattr(data, "features", None) or {}).items():
        item = getattr(feature, "feature", feature)  # of a list
        classes = getattr(item, "names", None)
        if classes and (not labels or {*classes} <= {*labels}):
            names[column] = dict(enumerate(classes))
    for where, row in placed:
        if isinstance(row, dict):
            for column, classes in names.items():
                value = row.get(column)
                if isinstance(value, list):
                    row[column] = [classes.get(item, item) for item in value]
                else:
                    row[column] = classes.get(value, value)
        yield where, row
