"""``bert_jax.cross_validate``: a fine-tuning for each fold of the rows."""

import copy
import dataclasses
import itertools
import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from etils import epath

from bert_jax.arguments import accepts, in_groups
from bert_jax.errors import UserError, counted
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.progress import Log, print_line
from bert_jax.runs import RESULTS, spread
from bert_jax.tasks.splits import from_hub
from bert_jax.tasks.task import Metrics, Task, with_own_scores
from bert_jax.training.config import FineTuneConfig, SweepConfig, finetune_config
from bert_jax.training.finetune_outputs import ANSWERS
from bert_jax.training.from_python import (
    check_call,
    check_options,
    path_of,
    shown_output,
    workdir_of,
)
from bert_jax.training.results import DIVERGED
from bert_jax.training.sweep import SWEEP, run_names, run_sweep
from bert_jax.training.workdir import PREDICTIONS


class CrossValidation(NamedTuple):
    """The result of :func:`cross_validate`.

    mean, deviation: mean of each score over the folds, and the standard deviation of the
      folds (of a sample: divided by the number of folds - 1), in percent.
    scores: the scores of each fold.
    answers: an answer to each training row, in the order of the rows, as ``predict``
      returns it, from the model that did not learn from the row. None for the only row of a
      class, which is in no fold.
    workdir: folder of the runs.
    """

    mean: dict[str, float]
    deviation: dict[str, float]
    scores: list[dict[str, float]]
    answers: list[dict[str, Any] | None]
    workdir: epath.Path

    def __repr__(self) -> str:
        """The means and deviations. Folds and answers, which may be many, are counted."""
        means = []
        for name, mean in self.mean.items():
            means.append(f"{name} {mean:.2f} ± {self.deviation[name]:.2f}")
        folds = counted(len(self.scores), "fold")
        rows = counted(len(self.answers), "row")
        shown = [*means, f"{folds} of {rows}", f"in {self.workdir}"]
        return f"CrossValidation({', '.join(shown)})"


@accepts(FineTuneConfig, flat="optimizer", leave_out=("family", "data", "sweep"))
def cross_validate(
    task: Task,
    *,
    init_from: os.PathLike | str | Checkpoint,
    train: Any = None,
    folds: int = 5,
    workdir: os.PathLike | str | None = None,
    log: Log = print_line,
    verbose: int = 1,
    change_settings: bool = False,
    metrics: Metrics | None = None,
    **settings: Any,
) -> CrossValidation:
    """Fine-tunes a checkpoint once for each fold of the rows, and scores it on the fold.

    >>> result = bert_jax.cross_validate(
    ...     bert_jax.tasks.classification(), init_from="models/english", train=rows
    ... )
    >>> result.mean["accuracy"], result.deviation["accuracy"]
    (90.4, 1.7)
    >>> result.answers[0]
    {'label': 'good', 'probability': 0.97, ...}

    task, init_from, metrics, log, verbose: see ``bert_jax.finetune``.
    train: the rows; see ``bert_jax.finetune``. Without ``train`` the training file in the
      task's ``dir`` is read.
    folds: number of folds. Each class of a classification keeps its share in every fold.
      The folds depend on ``seed``.
    workdir: folder of the runs, which are in sweep/. The same call runs the unfinished
      folds. best/ is the model of the best fold. None: a new temporary folder, which is
      not deleted.
    change_settings: resume an unfinished fold with other settings than before.
    settings: see below.

    Raises UserError for wrong rows, settings or files, and if a fold diverged.
    """
    check_call(cross_validate, task, metrics, settings)
    check_options(log, change_settings)
    settings = in_groups(cross_validate, settings)
    if train is None and not task.config.dir:
        raise UserError(
            "there are no training rows; give train=rows, or the task a dir of files"
        )
    settings |= {"family": task.family, "data": task.config}
    workdir = workdir_of(workdir)
    config = finetune_config(settings | {"init_from": path_of(init_from, workdir)})
    with shown_output(log, verbose) as log:
        if train is not None:
            task = task.with_rows(train=from_hub(train, "train"))
        task = copy.copy(task)
        task.own_metrics = metrics
        rows_of_folds = task.fold_numbers(folds, config.seed)
        if len(task.read("train")) < len(task.splits.rows["train"]):
            needed = "remove them, because each row of train gets an answer"
            raise UserError(f"rows of train are skipped; {needed}")
        grid = SweepConfig(
            batch_size=(config.batch_size,),
            learning_rate=(config.optimizer.learning_rate,),
            epochs=(config.epochs,),
            seeds=(config.seed,),
            folds=folds,
        )
        config = dataclasses.replace(config, data=task.config, sweep=grid)
        run_sweep(config, workdir, log, task, change_settings=change_settings)
    names = run_names(config, task)
    tasks = task.folds(folds, config.seed)
    folds_of_task = [*zip(rows_of_folds, names, tasks, strict=True)]
    count = len(task.splits.rows["train"])
    return _of_folds(folds_of_task, count, epath.Path(workdir))


def _of_folds(
    folds: Sequence[tuple[list[int], str, Task]], count: int, workdir: epath.Path
) -> CrossValidation:
    """Reads the results of finished folds.

    folds: for each fold, the numbers of its rows, the name of its run, and its task.
    count: number of rows in all folds, and in none.
    """
    answers: list[Any] = [None] * count
    scores = []
    for numbers_of_fold, name, task in folds:
        folder = workdir / SWEEP / name
        results = json.loads((folder / RESULTS).read_text())
        if DIVERGED in results:
            raise UserError(f"{folder}: {results[DIVERGED]}")
        file = folder / PREDICTIONS / ANSWERS.format("dev")
        of_fold = json.loads(file.read_text())
        recorded = results["scores"]["dev"]
        scores.append(with_own_scores(task, task.read("dev"), of_fold, recorded))
        for number, answer in zip(numbers_of_fold, of_fold, strict=True):
            answers[number] = answer
    mean, deviation = {}, {}
    metrics = itertools.chain.from_iterable(scores)
    for metric in dict.fromkeys(metrics):
        # Own metrics may have a score for each class, and a fold may lack a class.
        values = spread([of_fold[metric] for of_fold in scores if metric in of_fold])
        mean[metric], deviation[metric] = values["mean"], values["deviation"]
    return CrossValidation(mean, deviation, scores, answers, workdir)
