"""``bert_jax.pretrain`` and ``bert_jax.finetune``: training from Python."""

import copy
import dataclasses
import math
import numbers
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from etils import epath

from bert_jax.data.examples import ExampleConfig, Phase
from bert_jax.errors import UserError, hint
from bert_jax.inference.model import Bert, load
from bert_jax.interop.architecture import with_architecture
from bert_jax.model.config import BertConfig
from bert_jax.objectives.objective import eval_summary
from bert_jax.progress import hidden_bars, print_line
from bert_jax.runs import read_runs
from bert_jax.settings import plain, setting, setting_like, with_arguments
from bert_jax.tasks.source import HUB, read_hub
from bert_jax.tasks.task import Metrics, Task
from bert_jax.training import pretrain as pretraining
from bert_jax.training.config import (
    FineTuneConfig,
    FineTuneOptimizer,
    OptimizerConfig,
    TrainConfig,
    finetune_config,
    train_config,
)
from bert_jax.training.finetune import Callback, show
from bert_jax.training.run import Log
from bert_jax.training.sweep import run_one

HELD_OUT = 0.1  # share of the training rows that become dev, if dev is not given
_FURTHER = 2e-5  # learning rate of a pretraining that continues a checkpoint (Google's)


@dataclasses.dataclass(frozen=True)
class _OnePhase(Phase):
    """Defaults of a pretraining of one phase."""

    steps: int = setting(0, "steps of training, instead of the phases of the config")
    batch_size: int = setting_like(Phase, "batch_size", 32)
    sequence_length: int = setting(
        128, "tokens of a sequence, at most; fewer if the model has fewer positions"
    )
    max_predictions: int = setting(
        0, "masked tokens of a sequence, at most; 0: the mask_rate of its tokens"
    )


@dataclasses.dataclass(frozen=True)
class _Optimizer(OptimizerConfig):
    """Defaults of a pretraining without a config."""

    learning_rate: float = setting(
        1e-4, f"peak of the schedule; with init_from the default is {_FURTHER:g}"
    )
    warmup: float = setting_like(OptimizerConfig, "warmup", 0.1)


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Pretrained(Bert):
    """The model at the end of a run, with all methods of ``bert_jax.load``'s.

    scores: the last evaluation, such as mlm_accuracy; empty without an evaluation.
    workdir: folder of the run with config.json, metrics and checkpoints.
      ``bert_jax.load`` opens it again.
    """

    scores: dict[str, float] = dataclasses.field(default_factory=dict)
    workdir: epath.Path | None = None

    def __repr__(self) -> str:
        found = f", {eval_summary(self.scores)}" if self.scores else ""
        return f"{super().__repr__()}{found}, in {self.workdir}"


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
    TrainConfig,
    _OnePhase,
    _Optimizer,
    leave_out=("optimizer", "phases"),
    first=("steps", "batch_size", "sequence_length", "learning_rate", "warmup", "seed"),
)
def pretrain(
    config: TrainConfig | Mapping[str, Any] | None = None,
    workdir: os.PathLike | str | None = None,
    *,
    text: os.PathLike | str | Sequence[os.PathLike | str] = (),
    init_from: os.PathLike | str = "",
    phases: Sequence[Mapping[str, int]] = (),
    log: Log = print_line,
    verbose: int = 1,
    change_settings: bool = False,
    **settings: Any,
) -> Pretrained:
    """Pretrains a new BERT, or continues a checkpoint, on text. Returns the model.

    >>> model = bert_jax.pretrain(
    ...     text="notes/*.txt", init_from="all-MiniLM-L6-v2", steps=200
    ... )
    >>> model.fill_mask("The [MASK] is closed on Mondays.")
    [[('museum', 0.12), ...]]

    config: settings that differ from the defaults below, as ``get_config`` of a config
      file returns them, or a TrainConfig. None: a run of one phase of ``steps``.
    workdir: folder of the run. The same call resumes an interrupted run. None: a new
      temporary folder.
    text: a file, a folder, a pattern such as "notes/*.txt", or a list of these inputs; or
      the output of ``bert_jax prepare``.
    init_from: a checkpoint, as for ``bert_jax.load``, whose parameters, sizes and
      vocabulary the run starts with. Without it ``model`` needs the sizes of a new model,
      and the vocabulary is trained on the text.
    phases: several phases with their own steps, batch_size, sequence_length and
      max_predictions, instead of ``steps``.
    log: function that receives each line of the report.
    verbose: 0 shows no lines and no progress bars.
    change_settings: resume an unfinished run of ``workdir`` with other settings than
      before, such as more steps. Its config.json lists the changes.
    settings: see below. They replace settings of ``config``.

    Raises UserError for wrong settings or files.
    """
    given = _grouped("pretrain", plain(settings), TrainConfig, _Optimizer, _OnePhase)
    one = {f.name: given.pop(f.name) for f in fields(Phase) if f.name in given}
    given |= {"init_from": os.fspath(init_from)} if init_from else {}
    given |= {"phases": phases} if phases else {}
    if text:
        inputs = [text] if isinstance(text, str | os.PathLike) else text
        given["data"] = given.get("data", {}) | _text([*map(os.fspath, inputs)])
    if config is None:
        rate = _FURTHER if init_from else _Optimizer.learning_rate
        config = {"optimizer": {"learning_rate": rate}, "data": {}}
        if "warmup_steps" not in given["optimizer"]:
            config["optimizer"]["warmup"] = _Optimizer.warmup
    config = _merged(plain(config), given)
    if one or "phases" not in config:
        config = {**with_architecture({"phases": (), **config}, workdir or "")}
        config["phases"] = [_one_phase(one, config)]
    found, log = train_config(config, workdir or ""), log if verbose else _silent
    workdir = epath.Path(workdir or tempfile.mkdtemp(prefix="bert_jax-"))
    with hidden_bars(not verbose):
        pretraining.pretrain(found, workdir, log, change_settings=change_settings)
        model = load(workdir)
    lines = [x for x in read_runs([workdir])[0].metrics if x["split"] == "eval"]
    own = {f.name: getattr(model, f.name) for f in fields(model)}
    scores = {
        k: v for k, v in (lines or [{}])[-1].items() if k not in ("step", "split")
    }
    log(
        "next: model.fill_mask('The [MASK] is here.'), or "
        f"bert_jax.finetune(task, init_from={str(workdir)!r}, train=rows)"
    )
    return Pretrained(**own, scores=scores, workdir=workdir)


def _text(inputs: list[str]) -> dict[str, Any]:
    """The settings of the group data for the argument ``text``."""
    if len(inputs) == 1 and (epath.Path(inputs[0]) / "index.json").exists():
        return {"path": inputs[0], "corpus": ()}
    return {"corpus": inputs, "path": ""}


def _one_phase(given: Mapping[str, int], config: Mapping[str, Any]) -> dict[str, int]:
    """A phase with defaults for the settings that are not given."""
    if "steps" not in given:
        raise UserError(
            "steps is missing; give the number of steps, such as steps=1000"
        )
    model, examples = config["model"], config["data"].get("examples", {})
    positions = model.get("max_positions", BertConfig.max_positions)
    share = examples.get("mask_rate", ExampleConfig.mask_rate)
    length = given.get("sequence_length", min(_OnePhase.sequence_length, positions))
    phase = {"batch_size": _OnePhase.batch_size, "sequence_length": length} | given
    most = math.ceil(round(share * length, 6))
    return phase | {
        "max_predictions": given.get("max_predictions") or min(most, length - 3)
    }


@with_arguments(
    FineTuneConfig,
    FineTuneOptimizer,
    leave_out=("family", "data", "optimizer", "sweep"),
    first=(
        *("epochs", "batch_size", "learning_rate", "warmup", "seed", "evaluations"),
        *("patience", "main_metric", "class_weights", "label_smoothing"),
        *("freeze", "freeze_layers", "layer_decay", "train_rows"),
    ),
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
    verbose: int = 1,
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
    train, dev, test: rows, or the Path of a file; see :mod:`bert_jax.tasks.rows`; or
      "hf:NAME" or "hf:NAME:CONFIG", a data set of the Hugging Face Hub (pip install
      datasets). Without ``train`` the files in the task's ``dir`` are read. dev may be a
      share of the training rows that are used for dev only (default 0.1). A test split
      without labels is predicted.
    workdir: folder of the run. The same call resumes an interrupted run, and does not
      repeat a finished run. None: a new temporary folder.
    log: function that receives each line of the report.
    verbose: 0 shows no lines and no progress bars.
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
    settings = _grouped("finetune", settings, FineTuneConfig, FineTuneOptimizer)
    log = log if verbose else _silent
    if train is None and not (task.config.dir and dev is test is None):
        raise UserError(
            "there is nothing to learn from; give train=rows (dev and test need it), or "
            "the task a dir of files"
        )
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
        splits = {
            name: _from_hub(rows, name)
            for name, rows in splits.items()
            if rows is not None
        }
        task = task.with_rows(held_out=share, seed=config.seed, **splits)
        config = dataclasses.replace(config, data=task.config)
    workdir = epath.Path(workdir or tempfile.mkdtemp(prefix="bert_jax-"))
    task = copy.copy(task)
    task.own_metrics = metrics
    options = {"change_settings": change_settings, "callback": callback}
    with hidden_bars(not verbose):
        results = run_one(config, workdir, log, task, **options)
        model = load(workdir)
    own = {f.name: getattr(model, f.name) for f in fields(model)}
    log("next: model.predict(rows), model.evaluate(rows), or model.save(folder)")
    return FineTuned(**own, scores=results["scores"], workdir=workdir)


def _from_hub(rows: Any, split: str) -> Any:
    """Rows. "hf:NAME" is the data set of a hub: its split of the same name."""
    if isinstance(rows, str) and rows.startswith(HUB):
        return read_hub(rows, split.replace("dev", "validation"))
    return rows


def _silent(line: str) -> None:
    del line


def _grouped(
    function: str, settings: dict[str, Any], config: type, optimizer: type, *more: type
) -> dict[str, Any]:
    """Settings with the optimizer's in their group.

    Raises UserError for a name that none of the types has.
    """
    names = [field.name for field in fields(optimizer)]
    known = [
        field.name for kind in (config, optimizer, *more) for field in fields(kind)
    ]
    for name in settings:
        if name not in known:
            near = hint(name, known) or f"expected one of {', '.join(sorted(known))}"
            raise UserError(f"{name} is not an argument of {function}; {near}")
    own = {name: settings[name] for name in names if name in settings}
    others = {name: value for name, value in settings.items() if name not in names}
    return others | {"optimizer": settings.get("optimizer", {}) | own}


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Settings with changes. A group is merged, any other setting is replaced."""
    groups = {
        name: _merged(old[name], value)
        for name, value in new.items()
        if isinstance(value, dict) and isinstance(old.get(name), dict)
    }
    return old | new | groups
