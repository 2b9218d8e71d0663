"""The errors of a model on a split with labels, and the confusion matrix.

The folder WORKDIR/predictions of a run, and the output of evaluate, contain three files:

SPLIT.errors.jsonl, SPLIT.errors.html
    At most LONGEST errors, the most confident first; for regression the largest difference
    first. An error has "text", "gold" (the correct answer), "predicted", "confidence"
    (probability of the predicted answer; not for regression) and "where" (file and line, or
    the row in Python). It has the "id" of the row if the row has one, and in tagging the
    wrong "word".
SPLIT.confusion.json
    {"split": "dev", "of": "rows" or "words", "labels": [...], "counts": [[...], ...]}.
    counts[i][j] is the number of rows or words with the correct label labels[i] and the
    predicted label labels[j]. Entities count by their type, without B- and I-. Regression
    and SQuAD 1.1 have no classes, so they do not have this file.
"""

import html
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.errors import counted
from bert_jax.files import write_json, write_text
from bert_jax.tasks.task import Answer, Task

LONGEST = 200  # errors in a file
# Regression labels that a new head can learn: the largest mean plus deviation, and the
# smallest deviation.
_LARGEST, _SMALLEST = 10, 0.01

_PAGE = """<!doctype html><meta charset="utf-8"><title>{title}</title>
<style>:root {{ color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif; }}
td {{ vertical-align: top; padding: .4em; border-bottom: 1px solid gray; }}</style>
<h1>{title}</h1>
<table>
{rows}
</table>
"""


def worst_errors(
    task: Task, rows: Sequence[Any], answers: list[Answer]
) -> list[dict[str, Any]]:
    """All errors on rows with labels, the worst first; see the top of this file."""
    errors = []
    for row, answer in zip(rows, answers, strict=True):
        for outcome in task.outcomes(row, answer):
            if outcome.right:
                continue
            values = outcome._asdict()
            del values["right"], values["classes"]
            values["where"] = getattr(row, "where", None)
            values["id"] = getattr(row, "id", None)
            errors.append({k: x for k, x in values.items() if x is not None})
    return sorted(errors, key=_weight, reverse=True)


def _weight(error: dict[str, Any]) -> float:
    if "confidence" in error:
        return error["confidence"]
    return abs(error["predicted"] - error["gold"])


def confusion(
    task: Task, rows: Sequence[Any], answers: list[Answer]
) -> tuple[list[str], list[list[int]]]:
    """The labels, and the counts of correct labels (rows) and predicted labels (columns).

    Both are empty if the task has no classes.
    """
    # Imported late, because the import of scikit-learn takes a second.
    from sklearn.metrics import confusion_matrix

    golds, predicted = [], []
    for row, answer in zip(rows, answers, strict=True):
        for outcome in task.outcomes(row, answer):
            if outcome.classes:
                golds.append(outcome.classes[0])
                predicted.append(outcome.classes[1])
    seen = {*golds, *predicted}
    if not seen:
        return [], []
    labels = sorted(seen)
    if seen <= {*task.labels}:
        labels = [*task.labels]
    if len(labels) == 1:  # scikit-learn warns of a single label
        return labels, [[len(golds)]]
    return labels, confusion_matrix(golds, predicted, labels=labels).tolist()


def majority_warning(counts: Sequence[Sequence[int]]) -> str:
    """A warning if the score is at most the share of the largest class; otherwise "".

    counts: the counts of :func:`confusion`.
    """
    if not counts:
        return ""
    totals = np.sum(counts, axis=1)
    right = np.trace(counts)
    if np.count_nonzero(totals) < 2 or right > totals.max():
        return ""
    share, largest = right / totals.sum(), totals.max() / totals.sum()
    actual = (
        f"{share:.1%} are right, and always predicting the largest class gives "
        f"{largest:.1%}"
    )
    needed = (
        "try more epochs, a smaller batch_size, another seed, or the optimizer's "
        "bias_correction"
    )
    return f"{actual}: the run has learned nothing; {needed}"


def mean_baseline(labels: Sequence[float], values: Sequence[float]) -> tuple[str, str]:
    """The errors if the mean of the labels answers all rows, and a warning.

    The warning is "" if the root mean squared error of the ``values`` is smaller, or if all
    labels are equal.
    """
    gold = np.asarray(labels, np.float64)
    distances = np.abs(gold - gold.mean())
    rmse = float(np.sqrt(np.mean(distances**2)))
    mean = f"the mean of the labels, {gold.mean():.6g}"
    baseline = f"baseline: {mean}, has rmse {rmse:.4g} and mae {distances.mean():.4g}"
    error = float(np.sqrt(np.mean((gold - np.asarray(values, np.float64)) ** 2)))
    if rmse == 0 or error < rmse:
        return baseline, ""
    actual = f"rmse is {error:.4g}, and always predicting {mean}, gives {rmse:.4g}"
    needed = "try labels of about -1 to 1, more epochs or another learning rate"
    return baseline, f"{actual}: the run has learned nothing; {needed}"


def number_lines(labels: Sequence[float]) -> tuple[str, str]:
    """The range of training labels that are numbers, and a warning about their scale.

    The warning is "" if all labels are equal, or if a new head, whose outputs are near 0,
    can learn the labels in a few epochs, as it can labels of 0 to 5.
    """
    gold = np.asarray(labels, np.float64)
    mean, deviation = float(gold.mean()), float(gold.std())
    extent = f"{gold.min():.6g} to {gold.max():.6g}"
    shown = f"{extent}, mean {mean:.6g}, deviation {deviation:.4g}"
    is_near = abs(mean) + deviation <= _LARGEST and deviation >= _SMALLEST
    if is_near or deviation == 0:
        return shown, ""
    actual = (
        f"labels of {extent} are far from the scale of a new head, which starts near 0"
    )
    needed = (
        f"train on (label - {mean:.6g}) / {deviation:.4g}, and convert answers back"
    )
    return shown, f"{actual} and may never reach them; {needed}"


def write_mistakes(
    folder: Path, task: Task, split: str, rows: Sequence[Any], answers: list[Answer]
) -> list[Path]:
    """Writes the files of a split (see the top of this file), and returns their paths.

    A family without ``outcomes`` gets no files.
    """
    if type(task).outcomes is Task.outcomes:
        return []
    errors = worst_errors(task, rows, answers)
    number, of = counted(len(errors), "error"), counted(len(rows), "row")
    title = f"{number} in {of} of {split}, the worst first"
    errors = errors[:LONGEST]
    paths = [folder / f"{split}.errors.jsonl", folder / f"{split}.errors.html"]
    # default=str: an id may be a date, or another value that JSON does not have.
    lines = [json.dumps(error, ensure_ascii=False, default=str) for error in errors]
    write_text(paths[0], "".join(f"{line}\n" for line in lines))
    page = _PAGE.format(title=html.escape(title), rows="\n".join(_table(errors)))
    write_text(paths[1], page)
    labels, counts = confusion(task, rows, answers)
    if labels:
        kind = "words" if task.head == "token" else "rows"
        content = {"split": split, "of": kind, "labels": labels, "counts": counts}
        paths.append(folder / f"{split}.confusion.json")
        write_json(paths[-1], content)
    return paths


def _table(errors: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields the lines of an HTML table with a row for each error."""
    names: dict[str, None] = {}
    for error in errors:
        names |= dict.fromkeys(error)
    yield _line(names)
    for error in errors:
        cells = []
        for name in names:
            value = error.get(name, "")
            if type(value) is float:
                value = f"{value:.4f}"
            cells.append(str(value))
        yield _line(cells)


def _line(cells: Iterable[str]) -> str:
    columns = [f"<td>{html.escape(cell)}</td>" for cell in cells]
    return f"<tr>{''.join(columns)}</tr>"
