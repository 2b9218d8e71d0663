"""The splits of a task, read once: the rows of train, dev and test by column.

Files, data sets and rows of Python become rows of one form here: a place for messages, and
the values of the columns that the task reads. Column names are resolved here, the class
numbers of data sets become names, and rows for dev are chosen.
"""

import collections
import dataclasses
import functools
import hashlib
import json
import logging
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from bert_jax.data.corpus import TFDS, MissingSplitError, find_dataset
from bert_jax.errors import UserError, listed
from bert_jax.files import expanded, reading
from bert_jax.settings import FilePath, check_ranges, label_name, setting
from bert_jax.tasks import cells
from bert_jax.tasks.data_sets import SPLITS, DataSet
from bert_jax.tasks.labels import in_order_of
from bert_jax.tasks.rows import (
    FORMATS,
    Placed,
    Record,
    column_names,
    is_table,
    name_in,
    named_values,
    placed_rows,
    read_rows,
    text_of,
    value_of,
)

logger = logging.getLogger(__name__)

ROWS = "rows:"  # start of the dir of a task with rows from Python
HUB = "hf:"
_MINUS_ONE = ("-1", "-1.0")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The files of a task."""

    dir: FilePath = setting("", "folder of the files, or hf:NAME[:CONFIG] or tfds:NAME")
    train: FilePath = setting(
        "",
        "training file in dir, or split of a data set. Empty: the usual name, such as "
        "train.csv or train.jsonl of a table, or train-v1.1.json of SQuAD",
    )
    dev: FilePath = setting(
        "",
        "dev file or split, as for train, or a share of the training rows, such as 0.2, "
        "which are held out: the same rows for every seed",
    )
    test: FilePath = setting("", "test file or split. Its labels may be missing")

    def __post_init__(self):
        check_ranges(self, "data.")


def named_columns(
    config: Any, usual: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """The names of columns: the name in the config, otherwise the usual names."""
    columns = dict(usual)
    for key in usual:
        name = getattr(config, key)
        if name:
            columns[key] = (name,)
    return columns


@dataclasses.dataclass(frozen=True, kw_only=True)
class Form:
    """The rows and the files of a family. By default the files are tables.

    A family with other files or rows has a subclass with other methods.

    columns: columns of a row, the label last. The value of a column is a tuple of all
      names that it may have in files and dictionaries. A column that the user named has one
      name.
    usual: names of columns that a row to predict may have in place of the user's names.
    optional: columns that rows may lack. A text must be in all rows of a split or in none.
    others: names of all other values that the family reads.
    lists: columns whose cells may be printed lists.
    labels: labels that are known without rows, from the settings or the data set.
    classes: whether a row has "one" class, "many" classes, or "none": its label is a
      number. The class numbers of a data set become names. One class keeps its share of the
      rows in dev.
    data_set: names of its splits and files.
    tabs: whether a line of text with tabs is a row of several texts.
    """

    columns: Mapping[str, tuple[str, ...]]
    usual: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    optional: tuple[str, ...] = ()
    others: tuple[str, ...] = ("id",)
    lists: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    classes: Literal["none", "one", "many"] = "many"
    data_set: DataSet = dataclasses.field(default_factory=DataSet)
    tabs: bool = True

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that files may have."""
        return tuple(self.data_set.files) or SPLITS

    @property
    def unscored(self) -> tuple[str, ...]:
        """Names of the splits without labels."""
        return tuple(self.data_set.server)

    @property
    def label(self) -> str:
        """The key of the label's column."""
        return [*self.columns][-1]

    @property
    def texts(self) -> list[str]:
        """The keys of the other columns."""
        return [*self.columns][:-1]

    def with_columns(self, columns: str | Sequence[str]) -> Self:
        """The form with these names for its texts, in order; (): unchanged.

        Optional texts without a name are left out.
        """
        columns = column_names(columns)
        if not columns:
            return self
        texts = self.texts
        if len(columns) > len(texts):
            expected = f"expected at most {', '.join(texts)}"
            raise UserError(f"columns={columns}, {expected}")
        changed = {}
        for key, name in zip(texts, columns, strict=False):
            changed[key] = (name,)
        for key in texts[len(columns) :]:
            if key not in self.optional:
                changed[key] = self.columns[key]
        changed[self.label] = self.columns[self.label]  # stays the last column
        optional = tuple(key for key in self.optional if key == self.label)
        return dataclasses.replace(self, columns=changed, optional=optional, usual={})

    def file_names(self, split: str) -> Sequence[str]:
        """Possible names of the file of a split."""
        if self.data_set.files:
            return self.data_set.files[split]
        names = []
        for ending in FORMATS:
            names += [f"{split}{ending}", f"{split}{ending}.gz"]
        return names

    def read_file(self, path: Path, split: str) -> Iterator[Placed]:
        """The rows of a file. Raises UserError for a name that is not a table's."""
        if not is_table(path):
            expected = f"expected {', '.join(FORMATS)}, with or without .gz"
            raise UserError(f"{path} does not have the ending of a table; {expected}")
        return read_rows(path)

    def part(self, placed: Iterator[Placed], split: str) -> Iterator[Placed]:
        """Picks the rows of a split from the rows of a file that has a usual name.

        A file that the user names contains only one split.
        """
        return placed

    def is_own(self, path: Path) -> bool:
        """Whether a file to predict has a format of the family's own."""
        return False

    def by_position(self, where: str, row: Any, labelled: bool) -> dict[str, Any]:
        """The values of a text or a tuple by name, in the order of the columns.

        labelled: whether a tuple may have a label. Optional columns may be missing.
        """
        keys = self.texts
        if labelled:
            keys = [*self.columns]
        if isinstance(row, str):
            row = (row,)
        if len(row) < len(keys):
            keys = [key for key in keys if key not in self.optional]
        names = [self.columns[key][0] for key in keys]
        return named_values(where, row, names, fewer=labelled)

    def texts_in(self, where: str, values: Mapping[str, Any]) -> list[str]:
        """The texts of a row, without optional texts that are missing."""
        texts = []
        for key in self.texts:
            names = self.columns[key]
            if key not in self.optional or name_in(values, names):
                texts.append(text_of(where, values, names))
        return texts

    def is_other(self, name: str) -> bool:
        """Whether the family reads a value that has no column in the form."""
        return name in self.others

    def is_list(self, name: str, cell: str, values: Mapping[str, Any]) -> bool:
        """Whether a cell that starts like a printed list must be one.

        name: name of its column. values: all values of the row.
        """
        return any(name in self.columns.get(key, ()) for key in self.lists)

    def is_labelled(self, values: Mapping[str, Any]) -> bool:
        """Whether a row has a label.

        An empty cell of a CSV file and Hugging Face's -1 are missing labels.
        """
        for name in self.columns[self.label]:
            label = values.get(name)
            if label not in (None, "") and str(label) not in _MINUS_ONE:
                return True
        return False

    def numbered(self, records: Iterable[Record]) -> Iterable[Record]:
        """The records with values that depend on the records before, such as numbers."""
        return records


@dataclasses.dataclass(frozen=True)
class Splits:
    """The rows of a task.

    rows: the records of each split: place, and values by the name of their column.
    classes: names of the classes that a data set declares, in their order.
    scored: the splits with labels that are scored. The first one picks the checkpoint.
    predicted: the splits without labels, whose predictions are written.
    """

    rows: dict[str, list[Record]]
    classes: tuple[str, ...] = ()
    scored: tuple[str, ...] = ("dev",)
    predicted: tuple[str, ...] = ()

    @functools.cached_property
    def checksum(self) -> str:
        """A checksum of the values of all rows. Their places have no effect."""
        values = {}
        for split, records in self.rows.items():
            values[split] = [values_of_row for _, values_of_row in records]
        content = json.dumps(values, sort_keys=True, default=_as_text).encode()
        return hashlib.sha256(content).hexdigest()[:12]

    def with_dev(self, dev: set[int]) -> "Splits":
        """The splits with these rows of train, by number, as dev."""
        train = self.rows["train"]
        if train and not dev:
            raise UserError(
                "train has too few rows to hold some out for dev, because each class "
                "needs two; give dev=rows, or check which column is the label (for numbers "
                "set regression=True)"
            )
        chosen: dict[str, list[Record]] = {"train": [], "dev": []}
        for number, record in enumerate(train):
            chosen["dev" if number in dev else "train"].append(record)
        return dataclasses.replace(self, rows=self.rows | chosen)


def _as_text(value: Any) -> Any:
    """A value that JSON lacks, the same in every process."""
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return str(value)


def read_splits(
    config: Any,
    form: Form,
    given: Mapping[str, Any] | None = None,
    leave_out: Sequence[str] = (),
) -> Splits:
    """Reads the rows of every split that exists.

    The settings dir, train, dev and test choose a folder and its files, or a data set and
    its splits; see DataConfig. A config may lack train, dev and test.

    given: rows of Python and Paths by split, which replace the files of the config.
    leave_out: splits that are not read.
    Raises UserError for a malformed row and for a file that the config names and that does
    not exist.
    """
    names, unscored, share = form.splits, form.unscored, 0.0
    if given is not None:
        names, unscored = SPLITS, ()
    else:
        share = held_out_share(config, form)
    rows: dict[str, list[Record]] = {}
    declared: tuple[str, ...] = ()
    for split in names:
        place = f"{config.dir}:{_hub_split(config, split)}"
        data = None
        if given is not None:
            data, place = given.get(split), split
        elif share and split == "dev":
            continue
        elif split not in leave_out or (share and split == "train"):
            data = _split_or_none(config, form, split)
        if data is None:
            continue
        if isinstance(data, Path):
            placed = form.read_file(Path(expanded(data)), split)
            if given is None and data.name in form.file_names(split):
                placed = form.part(placed, split)
        else:
            placed = placed_rows(data, place)
            column, classes = declared_classes(data, form)
            if classes and form.classes != "none":
                placed = with_class_names(placed, column, classes, form.labels)
                declared = declared or classes
        needed = split not in (*unscored, "test")
        records = read_records(placed, form, labelled=True, label=needed)
        rows[split] = list(records)
    scored = [split for split in names if split not in ("train", *unscored)]
    if "test" in scored:
        test = rows.get("test", ())
        if not any(form.is_labelled(values) for _, values in test):
            scored.remove("test")
    predicted = [split for split in rows if split not in ("train", *scored)]
    splits = Splits(rows, declared, tuple(scored), tuple(predicted))
    if share and "train" in rows:
        splits = splits.with_dev(share_of_rows(classes_of(form, rows["train"]), share))
        if "train" in leave_out:
            del splits.rows["train"]
    return splits


def held_out_share(config: Any, form: Form) -> float:
    """The share of the training rows that becomes dev; 0 if ``config.dev`` is not a number.

    Raises UserError for a number that is not a share, and for a task whose dev splits have
    other names.
    """
    dev = getattr(config, "dev", "")
    try:
        share = float(dev)
    except ValueError:
        return 0.0
    if not 0 < share < 1:
        needed = "a share of the training rows above 0 and below 1, or a file"
        raise UserError(f"data.dev={dev}, expected {needed}")
    if "dev" not in form.splits:
        actual = f"data.dev={dev} holds out rows of train"
        needed = f"leave it out, because the task has its own {listed(form.splits)}"
        raise UserError(f"{actual}; {needed}")
    return share


def classes_of(form: Form, records: Sequence[Record]) -> list[str | None]:
    """The class of each training row, which keeps its share in dev; None: no class."""
    if form.classes != "one":
        return [None] * len(records)
    names = form.columns[form.label]
    classes = []
    for where, values in records:
        label = label_name(value_of(where, values, names))
        classes.append(str(label))
    return classes


# Rows


def raw_rows(data: Any, form: Form) -> Iterator[Placed]:
    """Yields the rows of any data to predict; see :func:`rows.placed_rows`.

    Also reads files in a format of the family's own.
    """
    if isinstance(data, Path) and form.is_own(data):
        return form.read_file(Path(expanded(data)), "test")
    return placed_rows(data, tabs=form.tabs)


def read_records(
    placed: Iterable[Placed],
    form: Form,
    *,
    labelled: bool = False,
    label: bool = False,
) -> Iterator[Record]:
    """Yields the place and the values of each row, by the names of their columns.

    Only the columns of the form are kept. A value has the name of its column in the row, or
    the column's first name if the row has a usual name instead.

    labelled: whether rows may have a label. Other rows may have the usual name of a column
      in place of the user's name. label: whether rows must have the column of the label.
    Raises UserError if a column is missing, or has different names in two rows.
    """
    records = _named(placed, form, labelled, label)
    return iter(form.numbered(records))


def _named(
    placed: Iterable[Placed], form: Form, labelled: bool, label: bool
) -> Iterator[Record]:
    possible = _possible_names(form, labelled)
    first: dict[str, str] = {}  # the name of each column in the first dictionary
    for where, row in placed:
        if not isinstance(row, dict):
            yield where, positioned(where, row, form, labelled)
            continue
        found = {key: name_in(row, names) for key, names in possible.items()}
        if not first:
            _check_names(where, row, form, found, possible, labelled, label)
            first = found
        values: dict[str, Any] = {}
        for key, name in found.items():
            may_differ = key == form.label and (key in form.optional or not label)
            if name != first[key] and not may_differ:
                column = " or ".join(possible[key])
                actual = f"{where}: column {column} is {name or 'missing'} here and "
                actual += f"{first[key] or 'missing'} in earlier rows"
                raise UserError(f"{actual}; name it the same in all rows")
            if name in form.columns[key]:
                values[name] = row[name]
            elif name:
                values[form.columns[key][0]] = row[name]
        for name, value in row.items():
            if form.is_other(name):
                values.setdefault(name, value)
        yield where, with_lists(where, values, form)


def _possible_names(form: Form, labelled: bool) -> dict[str, tuple[str, ...]]:
    """The names that each column may have in a dictionary."""
    possible = dict(form.columns)
    if not labelled:
        del possible[form.label]
        for key in possible:
            names = possible[key] + form.usual.get(key, ())
            possible[key] = tuple(dict.fromkeys(names))
    return possible


def _check_names(
    where: str,
    row: Mapping[str, Any],
    form: Form,
    found: Mapping[str, str],
    possible: Mapping[str, tuple[str, ...]],
    labelled: bool,
    label: bool,
) -> None:
    """Raises UserError if a column is missing, or is two columns of the form.

    found: the name of each column in the row; "" if the row lacks it.
    """
    used: dict[str, str] = {}
    for key, name in found.items():
        needed = key not in form.optional and (label or key != form.label)
        if needed and not name:
            setting = ""
            if key in form.usual and labelled:
                setting = key
            elif key != form.label:
                setting = "columns"
            value_of(where, row, possible[key], setting)  # raises UserError
        if not name:
            continue
        names = form.columns[key]
        if name not in names:
            logger.warning(f"{where}: no column {names[0]!r}; {name!r} is read")
        if name in used:
            actual = f"{where}: column {name!r} is read as {used[name]} and as {key}"
            raise UserError(f"{actual}; name a column for each")
        used[name] = key


def positioned(where: str, row: Any, form: Form, labelled: bool) -> Mapping[str, Any]:
    """The values of a text or a tuple by name. A row that is one text is never a list."""
    values = form.by_position(where, row, labelled)
    if isinstance(row, str):
        return values
    return with_lists(where, values, form)


def with_lists(where: str, values: Mapping[str, Any], form: Form) -> Mapping[str, Any]:
    """The values of a row with a list for each cell that is a printed list.

    Raises UserError for a cell that must be a list and is not.
    """
    lists = {}
    for name, value in values.items():
        if not isinstance(value, str) or not cells.opens_list(value):
            continue
        if not form.is_list(name, value, values):
            continue
        lists[name] = cells.parse_list(value)
        if lists[name] is None:
            actual = f"{where}: column {name!r} starts like a list, but is not one"
            shown = value
            if len(value) > 100:
                shown = f"{value[:100]}..."
            needed = 'write a list as JSON, such as ["a", "b"]'
            raise UserError(f"{actual}: {shown}; {needed}")
    return {**values, **lists}


# Files and data sets


def find_split(config: Any, form: Form, split: str) -> Any:
    """The Path or the data set of a split. Raises UserError if there is none."""
    if config.dir.startswith(ROWS):
        needed = f"give {split}=rows, or the labels with labels="
        raise MissingSplitError(f"the task has no {split} rows; {needed}")
    if config.dir.startswith(TFDS):
        return find_dataset(f"{config.dir}:{_hub_split(config, split)}")
    if config.dir.startswith(HUB):
        return read_hub(config.dir, _hub_split(config, split))
    name, folder = getattr(config, split, ""), Path(config.dir)
    names = form.file_names(split)
    if name:
        names = [name]
    existing = [name for name in names if (folder / name).is_file()]
    if len(existing) > 1:
        needed = f"set data.{split} to one of them"
        raise UserError(f"{folder} has {listed(existing)}; {needed}")
    if existing:
        return folder / existing[0]
    there = "it is empty or does not exist"
    if folder.is_file():
        there = "it is a file"
    elif folder.is_dir() and any(folder.iterdir()):
        files = sorted(path.name for path in folder.iterdir())
        there = f"it has {listed(files)}"
    where = config.dir or "the current folder"
    needed = (
        "set data.dir to the folder, or data.train, data.dev and data.test to its files"
    )
    if split == "dev":
        needed += "; data.dev=0.1 holds out a tenth of train"
    raise MissingSplitError(f"{where} has no {listed(names)} ({there}); {needed}")


def _split_or_none(config: Any, form: Form, split: str) -> Any:
    """The Path or the data set of a split; None if it is missing and the config does not
    name it.
    """
    try:
        return find_split(config, form, split)
    except MissingSplitError:
        if getattr(config, split, ""):
            raise
        return None


def check_splits(config: Any, form: Form) -> None:
    """Raises UserError if the files of train or of the first scored split are missing.

    Rows of train that are held out need no file.
    """
    find_split(config, form, "train")
    if held_out_share(config, form):
        return
    for split in form.splits:
        if split not in ("train", *form.unscored):
            find_split(config, form, split)
            return


def _hub_split(config: Any, split: str) -> str:
    return getattr(config, split, "") or split.replace("dev", "validation")


def from_hub(rows: Any, split: str) -> Any:
    """Rows. "hf:NAME" is replaced by the split of the same name of this data set."""
    if isinstance(rows, str) and rows.startswith(HUB):
        return read_hub(rows, split.replace("dev", "validation"))
    return rows


@functools.cache
def read_hub(directory: str, split: str) -> Any:
    """A split of the data set hf:NAME or hf:NAME:CONFIG."""
    names = directory.removeprefix(HUB).split(":", 1)
    with reading(directory, "a data set of the Hub, and a network or its cache"):
        import datasets

        known = datasets.get_dataset_split_names(*names)
        if split.partition("[")[0] not in known:
            actual = f"{directory} has no split {split}"
            raise MissingSplitError(f"{actual}; it has {', '.join(known)}")
        return datasets.load_dataset(*names, split=split)


def declared_classes(data: Any, form: Form) -> tuple[str, tuple[str, ...]]:
    """The label's column in a data set, and the names of its classes, in order."""
    if hasattr(data, "columns"):  # a frame, whose attributes are its columns
        return "", ()
    features = getattr(data, "features", {})
    info = getattr(data, "dataset_info", None)  # of tensorflow-datasets
    if info:
        features = {**info.features}
    if not isinstance(features, Mapping):  # an attribute of another library
        return "", ()
    for column in form.columns[form.label]:
        if column in features:
            feature = features[column]
            feature = getattr(feature, "feature", feature)  # of the items of a list
            return column, tuple(getattr(feature, "names", None) or ())
    return "", ()


def with_class_names(
    placed: Iterable[Placed],
    column: str,
    classes: tuple[str, ...],
    labels: tuple[str, ...],
) -> Iterator[Placed]:
    """Yields the rows with names in place of class numbers; -1 becomes a missing label.

    labels: the labels of the task; see :func:`labels.in_order_of`. (): the classes
    themselves.
    """
    names = classes
    if labels:
        names = in_order_of(classes, labels)
    known = dict(enumerate(names)) | {-1: None}
    for where, row in placed:
        if not isinstance(row, dict):
            yield where, row
            continue
        value = row.get(column)
        if isinstance(value, list):
            yield where, row | {column: [known.get(x, x) for x in value]}
        else:
            yield where, row | {column: known.get(value, value)}


# Rows for dev


def share_of_rows(classes: Sequence[Hashable], share: float, seed: int = 0) -> set[int]:
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
        places[row] = (counts[name] - 0.5) / sizes[name]
        if is_last:
            places[row] = 1
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
