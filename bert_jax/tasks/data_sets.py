"""Published data sets of every family: files, columns, labels, metrics and their scores.

GLUE has the files of its download (Wang et al. 2019, gluebenchmark.com). Metrics are
taken from BERT's paper, table 1; CoLA has the Matthews correlation. AX is the diagnostic
set, which a model that was trained on MNLI predicts.

SICK (SemEval 2014, task 1) is two tasks on the same pairs of sentences: entailment in three
classes, and relatedness from 1 to 5. Its metrics are SemEval's.
"""

import dataclasses
from collections.abc import Mapping

CORRELATIONS = ("pearson", "spearman", "pearson_spearman")
ERRORS = ("rmse", "mae")  # in units of the label; lower is better
NUMBERS = (*CORRELATIONS, *ERRORS)  # metrics of a table of numbers
TABLE = "table"  # the name of the user's own tables
SPLITS = ("train", "dev", "test")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set: a value of the setting ``data.task`` of its family.

    files: possible files of each split; empty: SPLIT.csv, SPLIT.jsonl and so on.
    columns: "text_a", "text_b" (for pairs) and "label", each with the names that the column
      has in files and data sets.
    labels: labels in the order of the outputs; empty for regression, or for the labels of
      the training rows. The second label is the positive class of F1.
    metrics: names in :func:`scores`; the first one picks the checkpoint.
      Correlations mean that labels are numbers.
    server: name of the file that the task's server expects, for each split without labels.
    header: columns of the files of train and dev, if they have no header line.
    skip_short: whether published files have rows with too few columns, which are skipped.
    config: FILE:ARGUMENT of its config in experiments/finetune. The name of the data set is
      then the name of the config.
    """

    files: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    columns: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    labels: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    server: Mapping[str, str] = dataclasses.field(default_factory=dict)
    header: tuple[str, ...] = ()
    skip_short: bool = False
    config: str = ""


def _columns(label: str, text_a: str, text_b: str = "") -> dict[str, tuple[str, ...]]:
    """The columns from their names, with | between the names of a column."""
    columns = {"text_a": tuple(text_a.split("|"))}
    if text_b:
        columns["text_b"] = tuple(text_b.split("|"))
    columns["label"] = tuple(label.split("|"))
    return columns


def _files(train: str, dev: str, test: str) -> dict[str, tuple[str, ...]]:
    """The files of the splits, with | between the possible names of a file."""
    names = zip(SPLITS, (train, dev, test), strict=True)
    return {split: tuple(name.split("|")) for split, name in names}


_ACCURACY = ("accuracy",)
_F1 = ("f1", "accuracy")
_YES_NO = ("0", "1")
_ENTAILED = ("entailment", "not_entailment")
_TSV = _files("train.tsv", "dev.tsv", "test.tsv")
_SICK = _files("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt")
_MNLI = {
    "train": ("train.tsv",),
    "dev_matched": ("dev_matched.tsv",),
    "dev_mismatched": ("dev_mismatched.tsv",),
    "test_matched": ("test_matched.tsv",),
    "test_mismatched": ("test_mismatched.tsv",),
    "ax": ("../AX/AX.tsv", "../diagnostic/diagnostic.tsv"),
}
# Zellers et al. (2018). A choice is sent2 and an ending.
SWAG = ("sent2", "ending0", "ending1", "ending2", "ending3")
# Chen et al. (2019). The file has no header, and contains all splits.
CODAH = ("category", "context", "choice0", "choice1", "choice2", "choice3", "label")
_CODAH = "full_data.tsv|codah.tsv"
_TAGGED = _files(
    "train.txt|train.conll|train.conllu",
    "dev.txt|dev.conll|dev.conllu",
    "test.txt|test.conll|test.conllu",
)
_TEXTS = _files("train.txt", "dev.txt", "test.txt")

_SEQUENCES: dict[str, DataSet] = {
    "cola": DataSet(
        files=_TSV,
        columns=_columns("label", "sentence"),
        labels=_YES_NO,
        metrics=("matthews", "accuracy"),
        server={"test": "CoLA.tsv"},
        header=("source", "label", "star", "sentence"),
        config="glue.py:cola",
    ),
    "sst2": DataSet(
        files=_TSV,
        columns=_columns("label", "sentence"),
        labels=_YES_NO,
        metrics=_ACCURACY,
        server={"test": "SST-2.tsv"},
        config="glue.py:sst2",
    ),
    "mrpc": DataSet(
        files=_TSV,
        columns=_columns("Quality|label", "#1 String|sentence1", "#2 String|sentence2"),
        labels=_YES_NO,
        metrics=_F1,
        server={"test": "MRPC.tsv"},
        config="glue.py:mrpc",
    ),
    "stsb": DataSet(
        files=_TSV,
        columns=_columns("score|label", "sentence1", "sentence2"),
        metrics=("spearman", "pearson", "pearson_spearman", *ERRORS),
        server={"test": "STS-B.tsv"},
        config="glue.py:stsb",
    ),
    "qqp": DataSet(
        files=_TSV,
        columns=_columns("is_duplicate|label", "question1", "question2"),
        labels=_YES_NO,
        metrics=_F1,
        server={"test": "QQP.tsv"},
        skip_short=True,  # line ends in some questions cut their rows in two
        config="glue.py:qqp",
    ),
    "qnli": DataSet(
        files=_TSV,
        columns=_columns("label", "question", "sentence"),
        labels=_ENTAILED,
        metrics=_ACCURACY,
        server={"test": "QNLI.tsv"},
        config="glue.py:qnli",
    ),
    "rte": DataSet(
        files=_TSV,
        columns=_columns("label", "sentence1", "sentence2"),
        labels=_ENTAILED,
        metrics=_ACCURACY,
        server={"test": "RTE.tsv"},
        config="glue.py:rte",
    ),
    "wnli": DataSet(
        files=_TSV,
        columns=_columns("label", "sentence1", "sentence2"),
        labels=_YES_NO,
        metrics=_ACCURACY,
        server={"test": "WNLI.tsv"},
        config="glue.py:wnli",
    ),
    "mnli": DataSet(
        files=_MNLI,
        columns=_columns(
            "gold_label|label", "sentence1|premise", "sentence2|hypothesis"
        ),
        labels=("entailment", "neutral", "contradiction"),
        metrics=_ACCURACY,
        server={
            "test_matched": "MNLI-m.tsv",
            "test_mismatched": "MNLI-mm.tsv",
            "ax": "AX.tsv",
        },
        config="glue.py:mnli",
    ),
    "sick_entailment": DataSet(
        files=_SICK,
        columns=_columns(
            "entailment_judgment|entailment_label", "sentence_A", "sentence_B"
        ),
        labels=("ENTAILMENT", "NEUTRAL", "CONTRADICTION"),
        metrics=_ACCURACY,
        skip_short=True,  # in some copies line 29 of train has blanks instead of tabs
        config="sick.py:entailment",
    ),
    "sick_relatedness": DataSet(
        files=_SICK,
        columns=_columns("relatedness_score", "sentence_A", "sentence_B"),
        metrics=NUMBERS,
        skip_short=True,
        config="sick.py:relatedness",
    ),
    TABLE: DataSet(),  # its columns are settings
}

# The data sets of each family, by name. A name is a value of the setting data.task.
DATA_SETS: dict[str, dict[str, DataSet]] = {
    "classification": _SEQUENCES,
    "multi_label": {TABLE: DataSet()},
    "sentence_vectors": {
        name: _SEQUENCES[name] for name in ("stsb", "sick_relatedness", TABLE)
    },
    "tagging": {
        "conll2003": DataSet(
            files=_files(
                "eng.train|train.txt", "eng.testa|valid.txt", "eng.testb|test.txt"
            )
        ),
        "wnut17": DataSet(
            files=_files(
                "wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated"
            )
        ),
        "columns": DataSet(files=_TAGGED),
        "segmented": DataSet(files=_TEXTS),
    },
    "multiple_choice": {
        "swag": DataSet(files=_files("train.csv", "val.csv", "test.csv")),
        "codah": DataSet(files=_files(_CODAH, _CODAH, _CODAH), header=CODAH),
        TABLE: DataSet(),
    },
}
