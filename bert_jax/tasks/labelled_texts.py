"""Labelled texts: how a data set of them lies in files, and its rows."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Collection, Iterable

from bert_jax.errors import UserError
from bert_jax.tasks import tables


@dataclasses.dataclass(frozen=True)
class Split:
    """Where the rows of a split are.

    files: names below the data set's folder; the first that exists is read.
    label: the column of the label; "" where there is none.
    header: names of the columns where the file has no header line.
    submission: name of the file in which the task's server wants predictions.
    skip_short: the published file has rows of too few columns; leave them out.
    tfds: the split's name in tensorflow-datasets, "tfds:NAME:SPLIT" if it is of another
      data set than the user gives; empty: our name, with "validation" for "dev".
    """

    files: tuple[str, ...]
    label: str = ""
    header: tuple[str, ...] = ()
    submission: str = ""
    skip_short: bool = False
    tfds: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A text or two. label: None where unknown. id: as the file has it, if it has one."""

    where: str
    text_a: str
    text_b: str | None = None
    label: str | float | None = None
    id: str | None = None


@dataclasses.dataclass(frozen=True)
class Layout:
    """A data set and its task.

    splits: "train"; others are scored where they have labels, else predicted.
    text_a, text_b, index: columns by name; text_b: "" where there are no pairs.
    labels: in the order of the outputs; empty for regression, or where the training
      rows tell. For F1 the second label is the positive one.
    metrics: names as in text_classification.py; the first picks the checkpoint.
    tfds: features in tensorflow-datasets: first text, second text, label; empty where the
      texts have the names of the columns, and the label is "label".
    limits: of the values that a regression's server takes.
    gaps: the published rows may lack one text of the two.
    """

    splits: dict[str, Split]
    text_a: str
    text_b: str = ""
    index: str = "index"
    labels: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("accuracy",)
    regression: bool = False
    tfds: tuple[str, ...] = ()
    limits: tuple[float, float] = (-math.inf, math.inf)
    gaps: bool = False

    def has(self, directory: str, name: str) -> bool:
        """Whether the split ``name`` is there at all."""
        if tables.is_tfds(directory):
            return tables.has_tfds(self._tfds_name(directory, name))
        return tables.find_file(directory, self.splits[name].files) is not None

    def read(
        self, directory: str, name: str, labels: Collection[str] | None
    ) -> list[Row]:
        """The rows of a split.

        labels: the label set, empty where any label will do; None leaves labels unread.
        """
        split = self.splits[name]
        if tables.is_tfds(directory):
            (*texts, label), index = self._tfds_features, "idx"
            dataset = self._tfds_name(directory, name)
            read = functools.partial(tables.read_tfds, dataset, labels=self.labels)
        else:
            texts, label, index = [self.text_a, self.text_b], split.label, self.index
            read = functools.partial(
                tables.read_table,
                tables.existing_file(directory, split.files),
                header=split.header,
                skip_short=split.skip_short,
            )
        texts = [column for column in texts if column]
        columns = texts if labels is None else [*texts, label]
        rows = []
        for where, values in read(columns, optional=[index]):
            found = [values[column] for column in texts]
            tables.check_texts(where, found, gaps=self.gaps)
            answer = None
            if labels is not None:
                answer = self._label(where, values[label], labels)
            rows.append(Row(where, *found, label=answer, id=values[index]))
        return rows

    def parse(self, lines: Iterable[str], name: str, first: int) -> list[Row]:
        """Rows of plain lines (a tab between two texts) or JSON objects, without labels.

        An object's texts are under "text_a" (or "text") and "text_b", or under the names
        of the data set's columns; its "id" or "index" is kept.
        """
        text_a, text_b, _ = self._tfds_features
        keys = [("text_a", "text", self.text_a, text_a)]
        if self.text_b:
            keys.append(("text_b", self.text_b, text_b))
        rows = []
        for where, texts, value in tables.parse_texts(lines, name, first, keys):
            ids = [value[key] for key in (self.index, "id", "idx") if key in value]
            rows.append(Row(where, *texts, id=tables.cell(ids[0]) if ids else None))
        return rows

    @property
    def _tfds_features(self) -> tuple[str, ...]:
        """First text, second text and label in tensorflow-datasets."""
        return self.tfds or (self.text_a, self.text_b, "label")

    def _tfds_name(self, directory: str, name: str) -> str:
        """The split as tensorflow-datasets names it, "tfds:NAME:SPLIT"."""
        subset = self.splits[name].tfds or name.replace("dev", "validation")
        return subset if tables.is_tfds(subset) else f"{directory}:{subset}"

    def _label(self, where: str, text: str, labels: Collection[str]) -> str | float:
        """A label of the set, which is empty where any will do, or a number."""
        if self.regression:
            with contextlib.suppress(ValueError):
                if math.isfinite(float(text)):
                    return float(text)
            raise UserError(f"{where}: label {text!r} is not a number; expected one")
        if labels and text not in labels:
            raise UserError(
                f"{where}: label {text!r} is not in the label set {', '.join(labels)}"
            )
        return text
