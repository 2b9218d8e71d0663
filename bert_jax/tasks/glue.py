"""The published tasks on labelled texts: GLUE, its diagnostic set AX, and SICK.

GLUE: the files are laid out as in its download (Wang et al. 2019, gluebenchmark.com) and
run_classifier.py, and predictions are written as its server takes them. Metrics are those
of BERT's paper, table 1 (F1 for QQP and MRPC, Spearman for STS-B, accuracy elsewhere), and
the Matthews correlation for CoLA.

SICK, Sentences Involving Compositional Knowledge (SemEval 2014, task 1), is two tasks on
the same pairs of sentences: entailment in three classes, and relatedness from 1 to 5.
Metrics are SemEval's: accuracy, and Pearson's correlation.
"""

import zipfile
from collections.abc import Sequence
from pathlib import Path

from bert_jax.errors import UserError
from bert_jax.files import new_file
from bert_jax.tasks.labelled_texts import Layout, Split

_BINARY = ("0", "1")
_ENTAILED = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")


def _task(
    text_a: str,
    text_b: str = "",
    label: str = "label",
    *,
    submission: str,
    tfds: tuple[str, str, str] | None = None,
    header: tuple[str, ...] = (),
    skip_short: bool = False,
    test_files: tuple[str, ...] = ("test.tsv",),
    metrics: tuple[str, ...] = ("accuracy",),
    labels: tuple[str, ...] = _BINARY,
    **settings,
) -> Layout:
    """A task with three files; published pairs may lack one text of the two."""
    labelled = dict(label=label, header=header, skip_short=skip_short)
    splits = {
        "train": Split(("train.tsv",), text_a, text_b, tfds="train", **labelled),
        "dev": Split(("dev.tsv",), text_a, text_b, tfds="validation", **labelled),
        "test": Split(test_files, text_a, text_b, tfds="test", submission=submission),
    }
    return Layout(
        splits,
        metrics,
        labels,
        predict_splits=("test",),
        tfds=tfds or (text_a, text_b, "label"),
        gaps=bool(text_b),
        **settings,
    )


def _mnli(name: str, tfds: str = "", submission: str = "") -> Split:
    return Split(
        (f"{name}.tsv",),
        "sentence1",
        "sentence2",
        label="" if submission else "gold_label",
        tfds=tfds or name,
        submission=submission,
    )


def _sick(label: str) -> dict[str, Split]:
    names = dict(text_a="sentence_A", text_b="sentence_B", label=label, index="pair_ID")
    return {
        # In some copies line 29 has spaces instead of tabs.
        "train": Split(("SICK_train.txt",), tfds="train", skip_short=True, **names),
        "dev": Split(("SICK_trial.txt",), tfds="validation", **names),
        "test": Split(("SICK_test_annotated.txt",), tfds="test", **names),
    }


_AX = Split(
    (
        "diagnostic.tsv",
        "AX.tsv",
        # download_glue_data.py puts it beside MNLI.
        "../diagnostic/diagnostic.tsv",
        "../AX/AX.tsv",
    ),
    "sentence1",
    "sentence2",
    submission="AX.tsv",
    tfds="test",
    tfds_dataset="glue/ax",
)

TASKS: dict[str, Layout] = {
    # No header in train and dev; "star" repeats the label as the linguists wrote it.
    "cola": _task(
        "sentence",
        submission="CoLA.tsv",
        header=("source", "label", "star", "sentence"),
        metrics=("matthews", "accuracy"),
    ),
    "sst2": _task("sentence", submission="SST-2.tsv"),
    "mrpc": _task(
        "#1 String",
        "#2 String",
        "Quality",
        submission="MRPC.tsv",
        tfds=("sentence1", "sentence2", "label"),
        test_files=("test.tsv", "msr_paraphrase_test.txt"),
        metrics=("f1", "accuracy"),
    ),
    "stsb": _task(
        "sentence1",
        "sentence2",
        "score",
        submission="STS-B.tsv",
        metrics=("spearman", "pearson", "pearson_spearman"),
        labels=(),
        regression=True,
        limits=(0.0, 5.0),
    ),
    # A few questions hold a line end, which cuts their row in two short ones.
    "qqp": _task(
        "question1",
        "question2",
        "is_duplicate",
        submission="QQP.tsv",
        skip_short=True,
        metrics=("f1", "accuracy"),
    ),
    "qnli": _task("question", "sentence", submission="QNLI.tsv", labels=_ENTAILED),
    "rte": _task("sentence1", "sentence2", submission="RTE.tsv", labels=_ENTAILED),
    "wnli": _task("sentence1", "sentence2", submission="WNLI.tsv"),
    "mnli": Layout(
        {
            "train": _mnli("train"),
            "dev_matched": _mnli("dev_matched", "validation_matched"),
            "dev_mismatched": _mnli("dev_mismatched", "validation_mismatched"),
            "test_matched": _mnli("test_matched", submission="MNLI-m.tsv"),
            "test_mismatched": _mnli("test_mismatched", submission="MNLI-mm.tsv"),
            "ax": _AX,
        },
        metrics=("accuracy",),
        labels=_NLI,
        eval_splits=("dev_matched", "dev_mismatched"),
        predict_splits=("test_matched", "test_mismatched", "ax"),
        tfds=("premise", "hypothesis", "label"),
        gaps=True,
    ),
    # Only predicted, by a model that was trained on MNLI.
    "ax": Layout(
        {"ax": _AX},
        metrics=("accuracy",),
        labels=_NLI,
        eval_splits=(),
        predict_splits=("ax",),
        tfds=("premise", "hypothesis", "label"),
        gaps=True,
    ),
    "sick_entailment": Layout(
        _sick("entailment_judgment"),
        metrics=("accuracy",),
        labels=("ENTAILMENT", "NEUTRAL", "CONTRADICTION"),
        eval_splits=("dev", "test"),
        tfds=("sentence_A", "sentence_B", "entailment_label"),
    ),
    "sick_relatedness": Layout(
        _sick("relatedness_score"),
        metrics=("pearson", "spearman", "pearson_spearman"),
        regression=True,
        eval_splits=("dev", "test"),
        tfds=("sentence_A", "sentence_B", "relatedness_score"),
    ),
}

SUBMISSION_FILES = tuple(
    dict.fromkeys(
        split.submission
        for layout in TASKS.values()
        for split in layout.splits.values()
        if split.submission
    )
)


def submission_zip(directory: Path | str, out: Path | str) -> tuple[str, ...]:
    """Packs the predictions below a directory as GLUE's server takes them.

    directory: is searched with all its subdirectories for CoLA.tsv, MNLI-m.tsv, ...
      but for those of a sweep's single runs, whose best one's stand outside.
    Returns the names of the files that the server wants and that were not found.
    Raises UserError where there is none, or two of one name.
    """
    directory, out = Path(directory), Path(out)
    found: dict[str, Path] = {}
    for path in sorted(directory.rglob("*.tsv")):
        inside = path.relative_to(directory).parts
        if path.name not in SUBMISSION_FILES or "sweep" in inside:
            continue
        if path.name in found:
            raise UserError(
                f"{path} and {found[path.name]} are both {path.name}; keep one of them "
                f"below {directory}"
            )
        found[path.name] = path
    if not found:
        raise UserError(
            f"{directory} holds no predictions; expected some of "
            f"{', '.join(SUBMISSION_FILES)}, as bert_jax.finetune writes them"
        )
    with (
        new_file(out) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name in SUBMISSION_FILES:
            if name in found:
                archive.write(found[name], name)
    return tuple(name for name in SUBMISSION_FILES if name not in found)


def submission_text(indices: Sequence[str], answers: Sequence[str]) -> str:
    """The content of one file of a submission."""
    lines = ["index\tprediction"]
    lines += [f"{i}\t{answer}" for i, answer in zip(indices, answers, strict=True)]
    return "\n".join(lines) + "\n"
