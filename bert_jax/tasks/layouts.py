"""How a data set of labelled texts lies in files: what glue.py and sick.py tell."""

import dataclasses


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
    metrics: names as in classification_metrics.py; the first picks the checkpoint.
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
