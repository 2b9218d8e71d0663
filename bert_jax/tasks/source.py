"""Sources: the splits of a task, their rows and the names of their classes."""

import contextlib
import functools
import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.corpus import TFDS, Dataset, find_dataset
from bert_jax.errors import UserError, counted, listed
from bert_jax.tasks.rows import ENDINGS, Placed, Record, placed_rows, read_rows

logger = logging.getLogger(__name__)

SPLITS = ("train", "dev", "test")
ROWS = "rows:"  # the dir of a task on rows of Python starts with it
HUB = "hf:"


class Source:
    """The splits of a task, and the rows of each.

    The dir of the config is a folder of files, hf:NAME or hf:NAME:CONFIG (a data set of
    Hugging Face's hub), or tfds:NAME (a data set of tensorflow-datasets). The settings
    train, dev and test, if the config has them, name a file or a split. A family with files
    of its own form has a subclass.

    columns: of the task; the last one is the label.
    splits: all splits that there may be.
    """

    splits: tuple[str, ...] = SPLITS

    def __init__(self, config: Any, columns: Mapping[str, tuple[str, ...]]):
        self.config, self.columns = config, columns

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

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that are known without the rows."""
        return getattr(self.config, "labels", ())

    @property
    def label_names(self) -> Sequence[str]:
        """The names that the column of the label may have."""
        return [*self.columns.values()][-1]

    def any_label(self, records: Iterable[Record]) -> bool:
        """Whether any row has a label. Hugging Face writes -1 for a missing label."""
        labels = (values.get(n) for _, values in records for n in self.label_names)
        # An empty cell of a CSV file is a missing value.
        return any(x not in (None, "") and str(x) not in ("-1", "-1.0") for x in labels)

    def records(self, split: str) -> Iterator[Record]:
        """The place of each row of a split, and its values by column."""
        if self._in_files:
            return self.read_file(self.path(split), split)
        return self.rows_of(self._data(split), self.place(split))

    def rows_of(
        self, data: Any, name: str = "", *, tabs: bool = True
    ) -> Iterator[Placed]:
        """The rows of any data; see :func:`rows.placed_rows`.

        Also reads files of the family. Classes of a data set get their names.
        """
        if isinstance(data, Path) and self.is_own(data):
            return self.read_file(data, "test")
        placed = placed_rows(data, name, tabs=tabs)
        return self._with_names(placed, getattr(data, "features", None) or {})

    def is_own(self, path: Path) -> bool:
        """Whether a file to predict has the form of the family's files, by its name."""
        del path
        return False

    def read_file(self, path: Path, split: str) -> Iterator[Record]:
        """The rows of a file of a split. By default the file is a table."""
        del split
        return read_rows(path)

    def file_names(self, split: str) -> Sequence[str]:
        """The possible names of a split's file, if the config names none."""
        return [split + end for end in ENDINGS]

    def has(self, split: str) -> bool:
        """Whether a split exists, or the config names its file."""
        if getattr(self.config, split, ""):
            return True
        with contextlib.suppress(UserError):
            return bool(self.path(split) if self._in_files else self._data(split))
        return False

    def place(self, split: str) -> str:
        """The file or the name of a split, for messages."""
        if self._in_files:
            return str(self.path(split))
        name = self.data_split(split)
        return name if name.startswith(TFDS) else f"{self.config.dir}:{name}"

    def path(self, split: str) -> Path:
        """The file of a split. Raises UserError if there is none."""
        given = getattr(self.config, split, "")
        names, folder = [given] if given else self.file_names(split), self.config.dir
        paths = (Path(folder, name) for name in names)
        if path := next((path for path in paths if path.is_file()), None):
            return path
        there = []
        if folder and Path(folder).is_dir():
            there = sorted(path.name for path in Path(folder).iterdir())
        found = f" (it has {listed(there)})" * bool(there)
        setting = hasattr(self.config, split) * f", or data.{split} to a file in it"
        more, train = "", [name for name in there if name.startswith("train")]
        if split == "dev" and train and not given:
            more = f"put some rows of {train[0]} into {names[0]}, or "
        raise UserError(
            f"{folder or 'data.dir'} has no {listed(names)}{found}; {more}set data.dir to "
            f"the folder of the data set{setting}"
        )

    def data_split(self, split: str) -> str:
        """The name of a split in a data set, or "tfds:NAME:SPLIT" of another one."""
        return getattr(self.config, split, "") or split.replace("dev", "validation")

    def check(self) -> None:
        """Raises UserError if the file to learn from, or the file of dev, is missing."""
        if not self.eval_splits:
            raise UserError("the task has no dev split; to predict ax, fine-tune mnli")
        for split in ("train", self.eval_splits[0]) if self._in_files else ():
            self.path(split)

    @property
    def _in_files(self) -> bool:
        return not self.config.dir.startswith((HUB, TFDS))

    def _data(self, split: str) -> Any:
        if self.config.dir.startswith(TFDS):
            return _Examples(find_dataset(self.place(split)))
        return _read_hub(self.config.dir, self.data_split(split))

    def _with_names(
        self, placed: Iterable[Placed], features: Mapping[str, Any]
    ) -> Iterator[Placed]:
        """The rows, with the name of each class instead of its number.

        features: of the columns of a data set. See in_order_of. A class of -1
        is a missing label.
        """
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


class GivenRows(Source):
    """Rows of Python, or of other files, in place of the rows of a source.

    given: the rows of each split. dev has labels; of the other splits those are scored in
    which any row has a label.
    """

    def __init__(self, source: Source, given: dict[str, list[Record]]):
        super().__init__(source.config, source.columns)
        self._given, labelled = given, source.any_label
        # The first split picks the checkpoint, so dev is before test.
        order = [*(s for s in source.splits if s in given and s != "test"), *given]
        names = [split for split in dict.fromkeys(order) if split != "train"]
        scored = {s for s in names if s == "dev" or labelled(given[s])}
        self.eval_splits = tuple(s for s in names if s in scored)
        self.predict_splits = tuple(s for s in names if s not in scored)

    def has(self, split: str) -> bool:
        return split in self._given

    def place(self, split: str) -> str:
        return split

    def records(self, split: str) -> Iterator[Record]:
        if split not in self._given:
            raise UserError(
                f"there are no rows of {split}; give them, or the labels with labels="
            )
        return iter(self._given[split])

    def name(self) -> str:
        """A name that other rows do not have, because a run on them is another run."""
        content = json.dumps(self._given, sort_keys=True, default=str).encode()
        return f"{ROWS}{hashlib.sha256(content).hexdigest()[:12]}"


def check_given(split: str, data: Any) -> None:
    """Raises UserError for data that are probably not meant as the rows of a split."""
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


def hold_out(
    rows: list[Record], share: float, seed: int
) -> tuple[list[Record], list[Record]]:
    """The rows of train, and a share of them, drawn with ``seed``, for dev."""
    if not 0 <= seed < 1 << 32:  # as in the config of a run
        raise UserError(f"seed={seed}, expected at least 0 and below {1 << 32}")
    count = max(round(share * len(rows)), 1)
    if count >= len(rows):
        raise UserError(
            f"train has {counted(len(rows), 'row')}, which dev would take; expected "
            "more rows, or dev="
        )
    drawn = {*np.random.default_rng(seed).permutation(len(rows))[:count].tolist()}
    return (
        [row for i, row in enumerate(rows) if i not in drawn],
        [row for i, row in enumerate(rows) if i in drawn],
    )


class _Examples:
    """The rows of a data set of tensorflow-datasets, with texts instead of bytes.

    features: of the columns, as a data set of the hub has them.
    """

    def __init__(self, found: Dataset):
        self._found = found
        self.features = {name: found.features[name] for name in found.features}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for _, example in self._found.examples(0, self._found.rows):
            yield {
                name: value.decode() if isinstance(value, bytes) else value
                for name, value in example.items()
            }


@functools.cache
def _read_hub(directory: str, split: str) -> Any:
    """A split of the data set hf:NAME or hf:NAME:CONFIG."""
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"{directory} needs a library that reads it ({error}): pip install datasets"
        ) from error
    names = directory.removeprefix(HUB).split(":", 1)
    known = datasets.get_dataset_split_names(*names)
    if split.partition("[")[0] not in known:
        raise UserError(f"{directory} has no split {split}; it has {', '.join(known)}")
    return datasets.load_dataset(*names, split=split)


@functools.cache  # warns once
def in_order_of(outputs: Sequence[str], labels: Sequence[str]) -> tuple[str, ...]:
    """The label of a task for each class of a data set or output of a head, by name.

    A name of another case matches if no name is equal. Names that are numbers, such as
    LABEL_0 or 0, are matched by position, with a warning. Raises UserError for other names.
    """
    by_name = {label.casefold(): label for label in labels}
    by_name |= {label: label for label in labels}
    found = [by_name.get(name, by_name.get(name.casefold())) for name in outputs]
    if None not in found and len({*found}) == len(outputs):
        return tuple(found)
    numbers = [str(i) for i in range(len(outputs))]
    numbered = any(
        [name.upper().removeprefix("LABEL_") for name in names] == numbers
        for names in (outputs, labels)
    )
    if numbered and len(outputs) == len(labels):
        pairs = zip(outputs, labels, strict=True)
        shown = ", ".join(f"{output} is {label}" for output, label in pairs)
        logger.warning(f"classes are matched by position: {shown}")
        return tuple(labels)
    raise UserError(
        f"the classes are {', '.join(outputs)}, the labels of the task "
        f"{', '.join(labels)}; give the task labels= with the names of the classes"
    )


def by_number(labels: Sequence[str]) -> dict[int, str]:
    """The label for each class number; empty if the name of any label is a number."""
    if any(name.lstrip("+-").replace(".", "", 1).isdecimal() for name in labels):
        return {}
    return dict(enumerate(labels))


def by_position(labels: Sequence[str], number: int) -> str | None:
    """The label for a class number, with a warning; None if there is none."""
    name = by_number(labels).get(number)
    if name is not None:
        _warn_of_positions(labels)
    return name


@functools.cache  # warns once
def _warn_of_positions(labels: Sequence[str]) -> None:
    numbers = listed([*map(str, range(len(labels)))])
    logger.warning(f"labels {numbers} are read as {listed(labels)}, by position")
