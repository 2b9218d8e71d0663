"""How data sets of labelled texts lie in files; GLUE, its diagnostic set AX, and SICK.

GLUE: the files are laid out as in its download (Wang et al. 2019, gluebenchmark.com) and
run_classifier.py, and predictions are written as its server takes them. Metrics are those
of BERT's paper, table 1 (F1 for QQP and MRPC, Spearman for STS-B, accuracy elsewhere), and
the Matthews correlation for CoLA.

SICK, Sentences Involving Compositional Knowledge (SemEval 2014, task 1), is two tasks on
the same pairs of sentences: entailment in three classes, and relatedness from 1 to 5.
Metrics are SemEval's: accuracy, and Pearson's correlation.
"""

import dataclasses
import math
from typing import Any


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
    id: Any = None


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


# download_glue_data.py puts it beside MNLI.
_AX_FILES = ("diagnostic.tsv", "AX.tsv", "../diagnostic/diagnostic.tsv", "../AX/AX.tsv")
_ENTAILED = ("entailment", "not_entailment")


def _glue(
    *texts: str,
    label: str = "label",
    submission: str,
    header: tuple[str, ...] = (),
    skip_short: bool = False,
    labels: tuple[str, ...] = ("0", "1"),
    **settings,
) -> Layout:
    """A task with three files; published pairs may lack one text of the two."""
    labelled = dict(label=label, header=header, skip_short=skip_short)
    splits = {
        "train": Split(("train.tsv",), **labelled),
        "dev": Split(("dev.tsv",), **labelled),
        # Of MRPC some have Microsoft's own file.
        "test": Split(("test.tsv", "msr_paraphrase_test.txt"), submission=submission),
    }
    return Layout(splits, *texts, labels=labels, gaps=len(texts) == 2, **settings)


def _sick(label: str, tfds: str, **settings) -> Layout:
    splits = {
        # In some copies line 29 has spaces instead of tabs.
        "train": Split(("SICK_train.txt",), label, skip_short=True),
        "dev": Split(("SICK_trial.txt",), label),
        "test": Split(("SICK_test_annotated.txt",), label),
    }
    texts = ("sentence_A", "sentence_B")
    return Layout(splits, *texts, index="pair_ID", tfds=(*texts, tfds), **settings)


TASKS: dict[str, Layout] = {
    # No header in train and dev; "star" repeats the label as the linguists wrote it.
    "cola": _glue(
        "sentence",
        submission="CoLA.tsv",
        header=("source", "label", "star", "sentence"),
        metrics=("matthews", "accuracy"),
    ),
    "sst2": _glue("sentence", submission="SST-2.tsv"),
    "mrpc": _glue(
        "#1 String",
        "#2 String",
        label="Quality",
        submission="MRPC.tsv",
        tfds=("sentence1", "sentence2", "label"),
        metrics=("f1", "accuracy"),
    ),
    "stsb": _glue(
        "sentence1",
        "sentence2",
        label="score",
        submission="STS-B.tsv",
        metrics=("spearman", "pearson", "pearson_spearman"),
        labels=(),
        regression=True,
        limits=(0.0, 5.0),
    ),
    # A few questions hold a line end, which cuts their row in two short ones.
    "qqp": _glue(
        "question1",
        "question2",
        label="is_duplicate",
        submission="QQP.tsv",
        skip_short=True,
        metrics=("f1", "accuracy"),
    ),
    "qnli": _glue("question", "sentence", submission="QNLI.tsv", labels=_ENTAILED),
    "rte": _glue("sentence1", "sentence2", submission="RTE.tsv", labels=_ENTAILED),
    "wnli": _glue("sentence1", "sentence2", submission="WNLI.tsv"),
    "mnli": Layout(
        {
            "train": Split(("train.tsv",), "gold_label"),
            "dev_matched": Split(("dev_matched.tsv",), "gold_label"),
            "dev_mismatched": Split(("dev_mismatched.tsv",), "gold_label"),
            "test_matched": Split(("test_matched.tsv",), submission="MNLI-m.tsv"),
            "test_mismatched": Split(
                ("test_mismatched.tsv",), submission="MNLI-mm.tsv"
            ),
            "ax": Split(_AX_FILES, submission="AX.tsv", tfds="tfds:glue/ax:test"),
        },
        "sentence1",
        "sentence2",
        labels=("entailment", "neutral", "contradiction"),
        tfds=("premise", "hypothesis", "label"),
        gaps=True,
    ),
    "sick_entailment": _sick(
        "entailment_judgment",
        "entailment_label",
        labels=("ENTAILMENT", "NEUTRAL", "CONTRADICTION"),
    ),
    "sick_relatedness": _sick(
        "relatedness_score",
        "relatedness_score",
        metrics=("pearson", "spearman", "pearson_spearman"),
        regression=True,
    ),
}

# Only predicted, by a model that was trained on MNLI.
_MNLI = TASKS["mnli"]
TASKS["ax"] = dataclasses.replace(_MNLI, splits={"ax": _MNLI.splits["ax"]})
