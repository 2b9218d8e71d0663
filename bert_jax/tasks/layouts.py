"""Data sets of labelled texts: files, columns, labels and metrics of GLUE, AX and SICK.

GLUE has the files of its download (Wang et al. 2019, gluebenchmark.com). Metrics are
taken from BERT's paper, table 1; CoLA has the Matthews correlation. AX is the diagnostic
set, which a model that was trained on MNLI predicts.

SICK (SemEval 2014, task 1) is two tasks on the same pairs of sentences: entailment in three
classes, and relatedness from 1 to 5. Its metrics are SemEval's.
"""

import dataclasses
import math
from collections.abc import Mapping

TABLE = "table"
CORRELATIONS = ("pearson", "spearman", "pearson_spearman")


@dataclasses.dataclass(frozen=True)
class Layout:
    """A data set and its task.

    columns: "text_a", "text_b" (of pairs) and "label", each with the names that the column
      has in files and data sets. id: the column of the id.
    files: the possible files of each split; empty: SPLIT.csv, SPLIT.jsonl and so on.
    scored: the eval splits with labels; the first one picks the checkpoint. Empty: dev, and
      test if it has labels.
    labels: in the order of the outputs; empty for regression, or for the labels of the
      training rows. The second label is the positive class of F1.
    metrics: names in text_classification.scores; the first one picks the checkpoint.
    limits: of the numbers in a file of predictions.
    server: the file that the task's server expects, for each predicted split.
    header: the columns of files of train and dev that have no header line.
    skip_short: whether published files have rows with too few columns, which are left out.
    tfds: splits that tensorflow-datasets has in another data set.
    """

    columns: Mapping[str, tuple[str, ...]]
    id: str = "index"
    files: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    scored: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("accuracy",)
    regression: bool = False
    limits: tuple[float, float] = (-math.inf, math.inf)
    server: Mapping[str, str] = dataclasses.field(default_factory=dict)
    header: tuple[str, ...] = ()
    skip_short: bool = False
    tfds: Mapping[str, str] = dataclasses.field(default_factory=dict)


def _glue(server: str, *columns: str, **settings) -> Layout:
    """A task of GLUE. columns: the names of text_a, text_b of pairs and label."""
    # Microsoft's own test file of MRPC has another name.
    test = ("test.tsv", "msr_paraphrase_test.txt")
    files = {"train": ("train.tsv",), "dev": ("dev.tsv",), "test": test}
    names = ("text_a", *["text_b"] * (len(columns) > 2), "label")
    columns = {n: tuple(c.split("|")) for n, c in zip(names, columns, strict=True)}
    own = dict(files=files, scored=("dev",), server={"test": server}, labels=("0", "1"))
    return Layout(columns, **(own | settings))


def _sick(label: str, **settings) -> Layout:
    columns = {"text_a": ("sentence_A",), "text_b": ("sentence_B",)}
    files = {
        "train": ("SICK_train.txt",),
        "dev": ("SICK_trial.txt",),
        "test": ("SICK_test_annotated.txt",),
    }
    return Layout(
        columns | {"label": tuple(label.split("|"))},
        id="pair_ID",
        files=files,
        scored=("dev", "test"),
        skip_short=True,  # in some copies line 29 of train has blanks instead of tabs
        **settings,
    )


_ENTAILED = ("entailment", "not_entailment")
_AX = ("diagnostic.tsv", "AX.tsv", "../diagnostic/diagnostic.tsv", "../AX/AX.tsv")
_MATCHED = ("dev_matched", "dev_mismatched", "test_matched", "test_mismatched")
_MNLI = Layout(
    {
        "text_a": ("sentence1", "premise"),
        "text_b": ("sentence2", "hypothesis"),
        "label": ("gold_label", "label"),
    },
    files={name: (f"{name}.tsv",) for name in ("train", *_MATCHED)} | {"ax": _AX},
    scored=_MATCHED[:2],
    labels=("entailment", "neutral", "contradiction"),
    server=dict(test_matched="MNLI-m.tsv", test_mismatched="MNLI-mm.tsv", ax="AX.tsv"),
    tfds={"ax": "tfds:glue/ax:test"},
)

LAYOUTS: dict[str, Layout] = {
    "cola": _glue(
        "CoLA.tsv",
        "sentence",
        "label",
        metrics=("matthews", "accuracy"),
        header=("source", "label", "star", "sentence"),
    ),
    "sst2": _glue("SST-2.tsv", "sentence", "label"),
    "mrpc": _glue(
        "MRPC.tsv",
        "#1 String|sentence1",
        "#2 String|sentence2",
        "Quality|label",
        metrics=("f1", "accuracy"),
    ),
    "stsb": _glue(
        "STS-B.tsv",
        "sentence1",
        "sentence2",
        "score|label",
        metrics=("spearman", "pearson", "pearson_spearman"),
        labels=(),
        regression=True,
        limits=(0.0, 5.0),
    ),
    "qqp": _glue(
        "QQP.tsv",
        "question1",
        "question2",
        "is_duplicate|label",
        metrics=("f1", "accuracy"),
        skip_short=True,  # line ends in some questions cut their rows in two
    ),
    "qnli": _glue("QNLI.tsv", "question", "sentence", "label", labels=_ENTAILED),
    "rte": _glue("RTE.tsv", "sentence1", "sentence2", "label", labels=_ENTAILED),
    "wnli": _glue("WNLI.tsv", "sentence1", "sentence2", "label"),
    "mnli": _MNLI,
    "ax": dataclasses.replace(_MNLI, files={"ax": _AX}, scored=()),
    "sick_entailment": _sick(
        "entailment_judgment|entailment_label",
        labels=("ENTAILMENT", "NEUTRAL", "CONTRADICTION"),
    ),
    "sick_relatedness": _sick(
        "relatedness_score", metrics=CORRELATIONS, regression=True
    ),
    TABLE: Layout({}, id="", metrics=()),  # its columns are settings
}
