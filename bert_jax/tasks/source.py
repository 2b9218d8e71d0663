"""Sources: the splits of a task and their records, in files, on a hub or in Python."""

import copy
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

from bert_jax.errors import UserError, counted
from bert_jax.tasks import tables
from bert_jax.tasks.class_names import in_order_of
from bert_jax.tasks.rows import Placed, Row, placed_rows
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
    trains: bool = True  # whether a model learns from the rows; else it is only scored

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
        return ("dev", "test") if self.any_label(self.records("test")) else ("dev",)

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

    @property
    def label_names(self) -> tuple[str, ...]:
        """The possible names of the label's column."""
        return [*self.keys.values()][-1]

    def any_label(self, records: Iterable[Record]) -> bool:
        """Whether any row has a label. Hugging Face writes -1 for none."""
        labels = (values.get(n) for _, values in records for n in self.label_names)
        # A cell of a CSV file that is empty is a missing value.
        return any(x not in (None, "") and str(x) not in ("-1", "-1.0") for x in labels)

    def is_labelled(self, split: str) -> bool:
        """Whether the labels of a split are read."""
        return split not in self.unlabelled and split in ("train", *self.eval_splits)

    def place(self, split: str) -> str:
        """The file or the name of a split, for messages."""
        return f"{self.config.dir}:{split}" if self.on_hub else str(self.path(split))

    def records(self, split: str) -> Iterator[Record]:
        """The place of each row of a split and its values, by one of their names."""
        if self.on_hub:
            data = _read_hub(self.config.dir, split)
            return self.named(placed_rows(data, self.place(split)), data)
        return self.read_file(self.path(split), split)

    def read_file(self, path: Path, split: str) -> Iterator[Record]:
        """The records of a file of a split. By default the file is a table."""
        del split
        return tables.read_rows(path)

    def named(self, placed: Iterable[Placed], data: Any) -> Iterator[Placed]:
        """Rows with the names of classes, if ``data`` is a Hugging Face data set.

        See class_names.in_order_of. A class of -1 is a missing label.
        """
        features = getattr(data, "features", None) or {}
        column = next((name for name in self.label_names if name in features), "")
        feature = features.get(column)
        feature = getattr(feature, "feature", feature)  # of a list
        names = tuple(getattr(feature, "names", None) or ())
        if names and self.labels:
            names = in_order_of(names, self.labels)
        known = dict(enumerate(names)) | {-1: None}
        for where, row in placed:
            if names and isinstance(row, dict):
                value = row.get(column)
                if isinstance(value, list):
                    row[column] = [known.get(item, item) for item in value]
                else:
                    row[column] = known.get(value, value)
            yield where, row

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
        self._records, self.trains = records, source.trains
        # The first split picks the checkpoint, so dev comes before test.
        order = [*(s for s in source.splits if s in records and s != "test"), *records]
        names = [s for s in dict.fromkeys(order) if s != "train"]
        self.eval_splits = tuple(s for s in names if s in labelled)
        self.predict_splits = tuple(s for s in names if s not in labelled)

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
    rename: Callable[[str, Row], Row] | None = None,
) -> GivenRows:
    """The rows of Python or of other files in place of a source's own; see Task.with_rows.

    values: from the place and the row, such as a tuple, to the values by name.
    rename: gives the row with its texts under the names of the task; None: they have them.
    """
    source = copy.copy(source)
    source.trains = "train" in splits
    records: dict[str, list[Record]] = {}
    labelled = ["dev"]
    for split, data in splits.items():
        if split == "train" and isinstance(data, tuple | Mapping):
            raise UserError(
                f"train is a {type(data).__name__}, which is one row; expected a list of "
                "rows, a data frame or a data set; pandas.DataFrame makes rows of a "
                "dictionary of columns"
            )
        if isinstance(data, str):
            raise UserError(
                f"{split} is the text {data!r}; expected rows, or Path({data!r}) for a file"
            )
        if isinstance(data, Path):
            if not data.is_file():
                raise UserError(f"{data} does not exist; expected a file of {split}")
            # The source reads only the columns in the config.
            placed = tables.read_rows(data) if rename else source.read_file(data, split)
        else:
            placed = source.named(placed_rows(data, split), data)
        if rename:
            placed = ((where, rename(where, row)) for where, row in placed)
        records[split] = [
            (where, values(where, row, labelled=True)) for where, row in placed
        ]
        labelled += [split] * source.any_label(records[split])
    if not records.get("train", True):
        raise UserError("train is empty; expected rows to learn from")
    if held_out:
        if not 0 <= seed < 1 << 32:  # as in the config of a run
            raise UserError(f"seed={seed}, expected at least 0 and below {1 << 32}")
        rows = records["train"]
        count = max(round(held_out * len(rows)), 1)
        if count >= len(rows):
            raise UserError(
                f"train has {counted(len(rows), 'row')}, which dev would take; expected "
                "more rows, or dev="
            )
        drawn = {*np.random.default_rng(seed).permutation(len(rows))[:count].tolist()}
        records["train"] = [row for i, row in enumerate(rows) if i not in drawn]
        records["dev"] = [row for i, row in enumerate(rows) if i in drawn]
        if "train" in source.unlabelled and not source.any_label(records["dev"]):
            raise UserError(
                "train has no labels, and the scores on dev need them; give dev= rows "
                "with labels"
            )
    return GivenRows(source, records, labelled)


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


def _read_hub(directory: str, split: str) -> Any:
    """A split of a data set of the hub."""
    if _hub_split(split) not in _hub_splits(directory):
        raise UserError(
            f"{directory} has no split {_hub_split(split)}; it has "
            f"{', '.join(_hub_splits(directory))}"
        )
    datasets, names = _datasets(directory)
    return datasets.load_dataset(*names, split=_hub_split(split))
