"""Labelled texts: how a data set of them lies in files, and its rows."""

import dataclasses
import math

from bert_jax.tasks.tables import is_tfds


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

    @property
    def tfds_features(self) -> tuple[str, ...]:
        """First text, second text and label in tensorflow-datasets."""
        return self.tfds or (self.text_a, self.text_b, "label")

    def tfds_split(self, directory: str, name: str) -> str:
        """The split as tensorflow-datasets names it, "tfds:NAME:SPLIT"."""
        subset = self.splits[name].tfds or name.replace("dev", "validation")
        return subset if is_tfds(subset) else f"{directory}:{subset}"
