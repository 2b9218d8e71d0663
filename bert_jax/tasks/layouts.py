"""Data sets of labelled texts: files, columns, labels and metrics of GLUE, AX and SICK.

GLUE has the files of its download (Wang et al. 2019, gluebenchmark.com). Metrics are
taken from BERT's paper, table 1; CoLA has the Matthews correlation. AX is the diagnostic
set, which a model that was trained on MNLI predicts.

SICK (SemEval 2014, task 1) is two tasks on the same pairs of sentences: entailment in three
classes, and relatedness from 1 to 5. Its metrics are SemEval's.
"""

import dataclasses
import functools
import warnings
from collections.abc import Mapping, Sequence

import numpy as np

TABLE = "table"
REGRESSION = "regression"  # problem_type of a task whose labels are numbers
CORRELATIONS = ("pearson", "spearman", "pearson_spearman")
ERRORS = ("rmse", "mae")  # in units of the label; lower is better
NUMBERS = (*CORRELATIONS, *ERRORS)  # metrics of a table of numbers


@dataclasses.dataclass(frozen=True)
class Layout:
    """A data set and its task.

    columns: "text_a", "text_b" (for pairs) and "label", each with the names that the column
      has in files and data sets.
    files: possible files of each split; empty: SPLIT.csv, SPLIT.jsonl and so on.
    labels: labels in the order of the outputs; empty for regression, or for the labels of
      the training rows. The second label is the positive class of F1.
    metrics: names in :func:`scores`; the first one picks the checkpoint. Correlations mean
      that labels are numbers.
    server: name of the file that the task's server expects, for each split without labels.
    header: columns of the files of train and dev, if they have no header line.
    skip_short: whether published files have rows with too few columns, which are skipped.
    """

    columns: Mapping[str, tuple[str, ...]]
    files: Mapping[str, tuple[str, ...]]
    labels: tuple[str, ...] = ("0", "1")
    metrics: tuple[str, ...] = ("accuracy",)
    server: Mapping[str, str] = dataclasses.field(default_factory=dict)
    header: tuple[str, ...] = ()
    skip_short: bool = False


def _columns(names: str) -> dict[str, tuple[str, ...]]:
    """The names of the columns text_a, text_b (for pairs) and label."""
    first, *second, label = (tuple(column.split("|")) for column in names.split(", "))
    pair = {"text_b": second[0]} if second else {}
    return {"text_a": first} | pair | {"label": label}


def _glue(server: str, columns: str, **settings) -> Layout:
    files = {split: (f"{split}.tsv",) for split in ("train", "dev", "test")}
    return Layout(_columns(columns), files, server={"test": server}, **settings)


def _sick(label: str, **settings) -> Layout:
    names = dict(train="SICK_train", dev="SICK_trial", test="SICK_test_annotated")
    files = {split: (f"{name}.txt",) for split, name in names.items()}
    columns = _columns(f"sentence_A, sentence_B, {label}")
    # In some copies line 29 of train has blanks instead of tabs.
    return Layout(columns, files, skip_short=True, **settings)


_ENTAILED = ("entailment", "not_entailment")
_MNLI = ("dev_matched", "dev_mismatched", "test_matched", "test_mismatched")
_AX = ("../AX/AX.tsv", "../diagnostic/diagnostic.tsv")

LAYOUTS: dict[str, Layout] = {
    "cola": _glue(
        "CoLA.tsv",
        "sentence, label",
        metrics=("matthews", "accuracy"),
        header=("source", "label", "star", "sentence"),
    ),
    "sst2": _glue("SST-2.tsv", "sentence, label"),
    "mrpc": _glue(
        "MRPC.tsv",
        "#1 String|sentence1, #2 String|sentence2, Quality|label",
        metrics=("f1", "accuracy"),
    ),
    "stsb": _glue(
        "STS-B.tsv",
        "sentence1, sentence2, score|label",
        metrics=("spearman", "pearson", "pearson_spearman", *ERRORS),
        labels=(),
    ),
    "qqp": _glue(
        "QQP.tsv",
        "question1, question2, is_duplicate|label",
        metrics=("f1", "accuracy"),
        skip_short=True,  # line ends in some questions cut their rows in two
    ),
    "qnli": _glue("QNLI.tsv", "question, sentence, label", labels=_ENTAILED),
    "rte": _glue("RTE.tsv", "sentence1, sentence2, label", labels=_ENTAILED),
    "wnli": _glue("WNLI.tsv", "sentence1, sentence2, label"),
    "mnli": Layout(
        _columns("sentence1|premise, sentence2|hypothesis, gold_label|label"),
        {name: (f"{name}.tsv",) for name in ("train", *_MNLI)} | {"ax": _AX},
        labels=("entailment", "neutral", "contradiction"),
        server=dict(
            test_matched="MNLI-m.tsv", test_mismatched="MNLI-mm.tsv", ax="AX.tsv"
        ),
    ),
    "sick_entailment": _sick(
        "entailment_judgment|entailment_label",
        labels=("ENTAILMENT", "NEUTRAL", "CONTRADICTION"),
    ),
    "sick_relatedness": _sick("relatedness_score", metrics=NUMBERS, labels=()),
    TABLE: Layout({}, {}, labels=(), metrics=()),  # its columns are settings
}


def scores(
    metrics: Sequence[str], truth: np.ndarray, predicted: np.ndarray
) -> dict[str, float]:
    """Metrics of scikit-learn and scipy in percent, errors in units of the label.

    Undefined scores are 0.

    truth, predicted: class ids for accuracy, matthews, f1 (of class 1) and f1_macro (over
    the classes that occur); 0 or 1 (rows, labels) for f1_micro, f1_macro and exact_match;
    numbers for pearson, spearman, their mean pearson_spearman, rmse (root of the mean
    squared error) and mae (mean absolute error).
    """
    # Both are imported late because they take a second.
    from scipy import stats
    from sklearn import metrics as sklearn

    f1 = functools.partial(sklearn.f1_score, average="macro", zero_division=0)
    functions = {
        "accuracy": sklearn.accuracy_score,
        "exact_match": sklearn.accuracy_score,
        "matthews": sklearn.matthews_corrcoef,
        "f1": functools.partial(f1, labels=[1]),
        "f1_micro": functools.partial(f1, average="micro"),
        "f1_macro": f1,
        "pearson": lambda *both: stats.pearsonr(*both).statistic,
        "spearman": lambda *both: stats.spearmanr(*both).statistic,
        "rmse": sklearn.root_mean_squared_error,
        "mae": sklearn.mean_absolute_error,
    }
    found: dict[str, float] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning for an undefined score
        for name in metrics:
            parts = [name]
            if name in CORRELATIONS:
                parts = name.split("_")
            defined = len(truth) > 1 or name not in CORRELATIONS
            values = [functions[part](truth, predicted) for part in parts if defined]
            score = float(np.nan_to_num(values or [0.0]).mean())
            found[name] = score if name in ERRORS else 100 * score
    return found
