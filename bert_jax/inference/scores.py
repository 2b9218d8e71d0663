"""The scores of a fine-tuned checkpoint on rows with labels."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

from bert_jax.data.tokenizer import count_unknown
from bert_jax.errors import UserError
from bert_jax.inference.evaluation import (
    Columns,
    Evaluation,
    OnDevices,
    Options,
    Split,
    evaluate_split,
    warn_truncated,
    warn_unknown,
)
from bert_jax.inference.predict import fine_tuned
from bert_jax.progress import Progress
from bert_jax.tasks.labels import in_order_of
from bert_jax.tasks.splits import ROWS, held_out_share, read_splits
from bert_jax.tasks.task import Metrics, Task, fitted, found, with_columns


class Scored(NamedTuple):
    """A split with labels, its task, and its predictions and scores."""

    task: Task
    split: Split
    evaluation: Evaluation


def evaluate(
    model: OnDevices,
    data: Any,
    options: Options,
    *,
    task: Task | None = None,
    directory: str = "",
    columns: Columns = (),
    metrics: Metrics | None = None,
) -> Iterator[Scored]:
    """Yields the predictions and scores of each split with labels.

    data: rows with labels, as in ``bert_jax.tasks``, or the Path of a file, which become
      the split dev. None: the files of the task.
    task: the task of the data, for a head that was trained elsewhere; None: the
      checkpoint's own task. Its classes are matched with the classes of the head by name;
      see tasks.labels.in_order_of. A task without labels and files has the labels of the
      checkpoint.
    directory: folder of the task's files, instead of the folder of the run.
    columns: see Rows.
    metrics: function for more scores; see ``bert_jax.finetune``.

    Logs a warning with the number of truncated rows.
    """
    trained = fine_tuned(model, options)
    own = trained.task
    if task is not None:
        task = _matched(own, task)
    task = task or own
    if directory:
        changes = {"dir": directory}
        if held_out_share(task.config, task.form):
            changes["dev"] = ""  # rows of the training file were held out
        task = task.changed(**changes)
    task = with_columns(task, columns)
    # The message for a missing column names the argument columns, not a setting.
    task.form = dataclasses.replace(task.form, usual={})
    if data is not None:
        task = task.with_rows(dev=data)
    elif not task.config.dir or task.config.dir.startswith(ROWS):
        raise UserError("the checkpoint has no data folder; give rows or a folder")
    else:
        task.splits = read_splits(task.config, task.form, leave_out=("train",))
    task.own_metrics = metrics
    for name in task.splits.scored:
        rows = task.read(name)
        if not rows:
            raise UserError(f"{name} has no rows; expected at least one row")
        split = Split(name, rows, task.encode(rows, model.tokenizer))
        doing, total = f"predicting {name}", len(rows)
        show = options.show_progress
        with Progress(doing, total=total, unit="rows", show=show) as progress:
            done = progress.part(total)
            inputs = trained.params, split.features
            outputs = model.run(trained.program, *inputs, options, done)
        length = task.config.max_length
        warn_truncated(split.features.truncated, total, "row", length)
        warn_unknown(
            count_unknown(split.features.input_ids, model.tokenizer), model.name
        )
        evaluation = evaluate_split(task, split, trained.activated(outputs))
        yield Scored(task, split, evaluation)


def _matched(own: Task, task: Task) -> Task:
    """The user's task with the labels and the length of the checkpoint's task."""
    longest = own.config.max_length
    task = fitted(task, longest, own.head)
    is_open = task.head == own.head and own.labels and not task.form.labels
    if is_open and _has_labels_of(task, own.labels):
        task = type(task)(task.changed(labels=own.labels).config)
    if (task.head, task.outputs) != (own.head, own.outputs):
        actual = f"the checkpoint has a {own.head} head with {own.outputs} outputs, "
        actual += f"but the task needs a {task.head} head with {task.outputs}"
        raise UserError(f"{actual}; give the task that it was trained for")
    changes: dict[str, Any] = {"max_length": min(task.config.max_length, longest)}
    if getattr(own.config, "truncation", "head") != "head":
        changes["truncation"] = own.config.truncation
    if task.labels:
        changes["labels"] = in_order_of(own.labels, task.labels)
    return type(task)(task.changed(**changes).config)


def _has_labels_of(task: Task, labels: tuple[str, ...]) -> bool:
    """Whether all labels in the files of a task are among ``labels``."""
    if not task.config.dir:
        return True
    return found(task, ("train", "dev")) <= {*labels}
