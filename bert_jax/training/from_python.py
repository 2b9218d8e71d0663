"""``bert_jax.finetune``: fine-tuning on rows of Python or on files."""

import copy
import dataclasses
import numbers
import os
import tempfile
from dataclasses import fields
from typing import Any

from etils import epath

from bert_jax.errors import UserError, hint
from bert_jax.inference.model import Bert, load
from bert_jax.progress import print_line
from bert_jax.settings import with_arguments
from bert_jax.tasks.task import Metrics, Task
from bert_jax.training.config import FineTuneConfig, FineTuneOptimizer, finetune_config
from bert_jax.training.finetune import Callback, show
from bert_jax.training.run import Log
from bert_jax.training.sweep import run_one

HELD_OUT = 0.1  # share of the training rows that become dev, if dev is not given


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class FineTuned(Bert):
    """The best model of a run, with all methods of ``bert_jax.load``'s, and its scores.

    scores: scores of each labelled split by name, in percent. workdir: folder of the run
      with predictions, worst errors and metrics. ``bert_jax.load`` opens it again.
    """

    scores: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    workdir: epath.Path | None = None

    def __repr__(self) -> str:
        scores = (f"{split}: {show(found)}" for split, found in self.scores.items())
        return f"{super().__repr__()}, {'; '.join(scores)}, in {self.workdir}"


@with_arguments(
    FineTuneConfig, FineTuneOptimizer, leave_out=("family", "data", "optimizer")
)
def finetune(
    task: Task,
    *,
    init_from: os.PathLike | str,
    train: Any = None,
    dev: Any = None,
    test: Any = None,
    workdir: os.PathLike | str | None = None,
    log: Log = print_line,
    change_settings: bool = False,
    metrics: Metrics | None = None,
    callback: Callback | None = None,
    **settings: Any,
) -> FineTuned:
    """Fine-tunes a checkpoint on a task and returns the model that was best on dev.

    >>> rows = [("a gripping film", "good"), ("two lost hours", "bad"), ...]
    >>> model = bert_jax.finetune(
    ...     bert_jax.tasks.classification(), init_from="all-MiniLM-L6-v2", train=rows
    ... )
    >>> model.scores["dev"]["accuracy"]
    91.3
    >>> model.predict("one more lost hour")
    {'label': 'bad', 'probability': 0.97, ...}

    task: a task of ``bert_jax.tasks``, which defines the rows.
    init_from: a checkpoint, as for ``bert_jax.load``.
    train, dev, test: rows, or the Path of a file; see :mod:`bert_jax.tasks.rows`. Without
      ``train`` the files in the task's ``dir`` are read. dev may be a share of the training
      rows that are used for dev only (default 0.1). A test split without labels is
      predicted.
    workdir: folder of the run. The same call resumes an interrupted run, and does not
      repeat a finished run. None: a new temporary folder.
    log: function that receives each line of the report.
    change_settings: resume an unfinished run of ``workdir`` with other settings than
      before. Its config.json lists the changes.
    metrics: function of the labels and the answers of all rows of a split, two lists, that
      returns a dictionary of own scores. They are reported with the scores of the task, and
      main_metric may name one. Dev is then also scored before the first step.
    callback: function of the step and the dev scores, called after each evaluation. The run
      stops if it returns True. With several processes only process 0 calls it.
    settings: see below, such as epochs=1, batch_size=16 or learning_rate=1e-4.

    Raises UserError for wrong rows, settings or files.
    """
    if not isinstance(task, Task):
        raise UserError(
            f"the task is {task!r}; expected one of bert_jax.tasks, such as "
            "bert_jax.tasks.classification()"
        )
    names = [field.name for field in fields(FineTuneOptimizer)]
    known = [field.name for field in fields(FineTuneConfig)] + names
    for name in settings:
        if name not in known:
            near = hint(name, known) or f"expected one of {', '.join(sorted(known))}"
            raise UserError(f"{name} is not an argument of finetune; {near}")
    if train is None and not (task.config.dir and dev is test is None):
        raise UserError(
            "there is nothing to learn from; give train=rows (dev and test need it), or "
            "the task a dir of files"
        )
    optimizer = {name: settings.pop(name) for name in names if name in settings}
    settings["optimizer"] = settings.get("optimizer", {}) | optimizer
    settings |= {"family": task.family, "data": task.config}
    config = finetune_config(settings | {"init_from": os.fspath(init_from)})
    if train is not None:
        share = 0.0
        if dev is None or isinstance(dev, numbers.Real):
            share, dev = HELD_OUT if dev is None else float(dev), None
            if not 0 < share < 1:
                raise UserError(
                    f"dev={share}, expected rows, or a share of the training rows above 0 "
                    "and below 1, such as 0.1; the scores on dev pick the best model"
                )
            log(f"dev: {share:.0%} of the training rows, which are not learned from")
        splits = {"train": train, "dev": dev, "test": test}
        splits = {name: rows for name, rows in splits.items() if rows is not None}
        task = task.with_rows(held_out=share, seed=config.seed, **splits)
        config = dataclasses.replace(config, data=task.config)
    workdir = epath.Path(workdir or tempfile.mkdtemp(prefix="bert_jax-"))
    task = copy.copy(task)
    task.own_metrics = metrics
    options = {"change_settings": change_settings, "callback": callback}
    results = run_one(config, workdir, log, task, **options)
    model = load(workdir)
    own = {f.name: getattr(model, f.name) for f in fields(model)}
    return FineTuned(**own, scores=results["scores"], workdir=workdir)
