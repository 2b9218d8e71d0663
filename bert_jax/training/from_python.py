"""Fine-tuning as a script or a notebook does it: ``bert_jax.finetune``."""

import dataclasses
import numbers
import os
import tempfile
from collections.abc import Mapping
from typing import Any

from etils import epath

from bert_jax.errors import UserError, hint
from bert_jax.inference.model import Bert, load
from bert_jax.progress import print_line
from bert_jax.settings import groups
from bert_jax.tasks.task import Task
from bert_jax.training.config import (
    FineTuneConfig,
    FineTuneOptimizer,
    finetune_config,
)
from bert_jax.training.finetune import show
from bert_jax.training.run import Log
from bert_jax.training.sweep import run_one

HELD_OUT = 0.1  # of the training rows, where there are none for dev


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class FineTuned(Bert):
    """The best model of a run, as ``bert_jax.load`` gives it, and what the run found.

    scores: in percent, of each labelled split by name. workdir: the run's folder, with the
      predictions, the worst errors and the metrics; ``bert_jax.load`` opens it again.
    """

    scores: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    workdir: epath.Path | None = None

    def __repr__(self) -> str:
        scores = (f"{split}: {show(found)}" for split, found in self.scores.items())
        return f"{super().__repr__()}, {'; '.join(scores)}, in {self.workdir}"


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

    task: of ``bert_jax.tasks``, which says what a row is.
    init_from: a checkpoint, as ``bert_jax.load`` takes it.
    train, dev, test: rows, or the Path of a file; see :mod:`bert_jax.tasks.rows`. Without
      ``train`` the files of the task's ``dir`` are read. dev may be a share of the training
      rows, which are then held out (0.1 where nothing is given). A test split without
      labels is predicted.
    workdir: as of ``bert_jax finetune``: the same call goes on where it stopped,
      and a finished run is not run again. None: a new temporary folder.
    log: takes each line of the report.
    change_settings: resume an unfinished run of ``workdir`` with other settings than
      before; its config.json lists the changes.
    settings: of docs/settings.md, as epochs=1, batch_size=16 or seed=3; those of the
      optimizer by their own names, as learning_rate=1e-4.

    Raises UserError for rows, settings or files that are not as expected.
    """
    if not isinstance(task, Task):
        raise UserError(
            f"the task is {task!r}; expected one of bert_jax.tasks, such as "
            "bert_jax.tasks.classification()"
        )
    _check_names(task, settings)
    if train is None and (dev is not None or test is not None):
        raise UserError(
            "dev and test are given without train; give train too, or leave all to the "
            "files in the task's dir"
        )
    if train is None and not task.config.dir:
        raise UserError(
            "there is nothing to learn from; give train=rows, or the task a dir of files"
        )
    if not isinstance(init_from, str | os.PathLike):
        raise UserError(
            f"init_from is a {type(init_from).__name__}; expected the path or name that "
            "bert_jax.load takes (model.save writes a folder)"
        )
    optimizer = {
        field.name: settings.pop(field.name)
        for field in dataclasses.fields(FineTuneOptimizer)
        if field.name in settings
    }
    settings["optimizer"] = settings.get("optimizer", {}) | optimizer
    if train is not None:
        share = HELD_OUT if dev is None else dev
        splits = {"train": train, "dev": dev, "test": test}
        held_out = 0.0
        if isinstance(share, numbers.Real):
            if not 0 < share < 1:
                raise UserError(
                    f"dev={dev}, expected rows, or a share of the training rows above 0 "
                    "and below 1, such as 0.1; the scores on dev pick the best model"
                )
            held_out, splits["dev"] = float(share), None
        task = task.with_rows(
            held_out=held_out,
            seed=settings.get("seed", 0),
            **{name: rows for name, rows in splits.items() if rows is not None},
        )
        if held_out:
            log(f"dev: {held_out:.0%} of the training rows, which are not learned from")
    config = finetune_config(
        settings
        | {
            "family": task.family,
            "data": task.config,
            "init_from": os.fspath(init_from),
        }
    )
    workdir = epath.Path(workdir or tempfile.mkdtemp(prefix="bert_jax-"))
    results = run_one(config, workdir, log, task, change_settings=change_settings)
    model = load(workdir)
    own = {f.name: getattr(model, f.name) for f in dataclasses.fields(model)}
    return FineTuned(**own, scores=results["scores"], workdir=workdir)


def _check_names(task: Task, settings: Mapping[str, Any]) -> None:
    """Raises UserError for an argument that is no setting of a run."""
    own = [field.name for field in dataclasses.fields(FineTuneConfig)]
    own += [field.name for field in dataclasses.fields(FineTuneOptimizer)]
    arguments = ["train", "dev", "test", "workdir"]
    of_task = [field.name for field in dataclasses.fields(task.config)]
    of_groups = [
        group + field.name
        for group, _, fields in groups(FineTuneConfig)
        for field in fields
        if group not in ("", "optimizer.", "sweep.")
    ]
    known = [*own, *arguments, *of_task, *of_groups]
    for name, value in settings.items():
        if name in own:
            continue

        def shown(near: str, value: Any = value) -> str:
            group, _, leaf = near.rpartition(".")
            if near in (*own, *arguments):
                return near
            if group:
                return f"{group}={{{leaf!r}: {value!r}}}"
            return f"bert_jax.tasks.classification({near}={value!r})"

        if name in of_task:
            raise UserError(
                f"{name} is a setting of the task; give it there, as in {shown(name)}"
            )
        found = hint(name, known, shown)
        found = found or f"expected one of {', '.join(sorted([*own, *arguments]))}"
        raise UserError(f"{name} is not an argument of finetune; {found}")
