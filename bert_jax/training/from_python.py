"""``bert_jax.pretrain`` and ``bert_jax.finetune``: training from Python."""

import contextlib
import copy
import dataclasses
import inspect
import logging
import numbers
import os
import pickle
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from etils import epath

from bert_jax.arguments import accepts, in_groups
from bert_jax.errors import UserError
from bert_jax.files import expanded, is_remote
from bert_jax.inference.evaluation import Options
from bert_jax.inference.model import Bert, load
from bert_jax.inference.scores import evaluate
from bert_jax.interop.checkpoint import Checkpoint, check_vocabulary
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.objectives.objective import eval_summary
from bert_jax.parallel.processes import is_leader
from bert_jax.progress import Log, hidden_bars, print_line
from bert_jax.runs import NO_SCORES, RESULTS, read_runs
from bert_jax.settings import from_settings, merged, plain
from bert_jax.tasks.splits import from_hub, held_out_share
from bert_jax.tasks.task import Metrics, Task, records_of, with_own_scores
from bert_jax.training import pretrain as pretraining
from bert_jax.training.config import (
    FineTuneConfig,
    TrainConfig,
    finetune_config,
    train_config,
)
from bert_jax.training.finetune import Callback
from bert_jax.training.finetune_data import params_checksum
from bert_jax.training.finetune_outputs import show
from bert_jax.training.sweep import run_one
from bert_jax.training.text_functions import Files, file_names

DEV_SHARE = 0.1  # share of the training rows that become dev, if dev is not given
# Defaults of a pretraining without config. Google used these learning rates for a new model
# and for a checkpoint.
NEW_RATE, CONTINUED_RATE, WARMUP = 1e-4, 2e-5, 0.1


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Trained(Bert):
    """The model of a run, with all methods of a loaded model, and its scores.

    scores: scores of each labelled split by name, in percent. For a pretraining, the last
      evaluation, such as mlm_accuracy; empty without an evaluation.
    workdir: folder of the run with its config, metrics, and predictions or checkpoints.
      ``bert_jax.load`` opens it again.
    metrics: function for more scores of the run, which ``evaluate`` also uses.
    """

    scores: dict[str, Any] = dataclasses.field(default_factory=dict)
    workdir: epath.Path | None = None
    metrics: Metrics | None = None

    @property
    def _metrics(self) -> Metrics | None:
        return self.metrics

    def __getstate__(self) -> dict[str, Any]:
        """The fields, for pickle and copy. A function without a global name is left out."""
        state = super().__getstate__()
        try:
            pickle.dumps(self.metrics)
        except (AttributeError, TypeError, pickle.PicklingError):
            state["metrics"] = None
        return state

    def __repr__(self) -> str:
        if "loss" in self.scores:
            scores = [eval_summary(self.scores)]
        else:
            scores = [f"{split}: {show(x)}" for split, x in self.scores.items()]
        return ", ".join([super().__repr__(), *scores, f"in {self.workdir}"])


@accepts(TrainConfig, flat="optimizer")
def pretrain(
    config: TrainConfig | Mapping[str, Any] | None = None,
    workdir: os.PathLike | str | None = None,
    *,
    text: Files = (),
    init_from: os.PathLike | str | Checkpoint = "",
    steps: int | None = None,
    batch_size: int | None = None,
    sequence_length: int | None = None,
    learning_rate: float | None = None,
    warmup: float | None = None,
    log: Log = print_line,
    verbose: int = 1,
    change_settings: bool = False,
    **settings: Any,
) -> Trained:
    """Pretrains a new BERT, or continues a checkpoint, on text. Returns the model.

    >>> model = bert_jax.pretrain(
    ...     text="notes/*.txt", init_from="google-bert/bert-base-uncased", steps=200
    ... )
    >>> model.fill_mask("The [MASK] is closed on Mondays.")
    [[('museum', 0.12), ...]]

    config: settings that differ from the defaults below, as ``get_config`` of a config
      file returns them, or a TrainConfig. The other arguments replace its settings, and
      ``text`` also removes the ``prompts`` of a config with a text of its own. If
      it has a group "optimizer", this group needs a learning_rate.
    workdir: folder of the run. The same call resumes an interrupted run. None: a new
      temporary folder, which is not deleted.
    text: a file, a folder or a pattern such as "notes/*.txt"; several in a list, an array
      or a column; or the output folder of ``bert_jax prepare``. To mix several output
      folders give data=dict(mixture=FOLDERS, weights=NUMBERS).
    init_from: a checkpoint, as for ``bert_jax.load``, or a model in memory, which is
      copied into the workdir. The run starts with its parameters, sizes and vocabulary.
      Without a checkpoint ``model`` needs the sizes of a new model, and the vocabulary is
      trained on the text.
    steps, batch_size, sequence_length: settings of the only phase of the run. None: as in
      the first phase of ``config``; without ``config`` the defaults are 32, and 128 or all
      positions of a model with fewer. For several lengths give ``phases``.
    learning_rate: highest learning rate. None: 2e-5 with init_from, otherwise 1e-4.
    warmup: share of all steps for warmup. None: 0.1.
    log: function that receives each line of the log, in process 0.
    verbose: 0 shows no lines, no warnings and no progress bars.
    change_settings: resume an unfinished run of ``workdir`` with other settings than
      before, such as more steps. Its config.json lists the changes.
    settings: see below.

    Raises UserError for wrong settings or files.
    """
    if not isinstance(config, TrainConfig | Mapping | None):
        expected = "a dictionary of settings, or a TrainConfig; pass files as text="
        raise UserError(f"config={config!r:.60}, expected {expected}")
    check_options(log, change_settings)
    workdir = workdir_of(workdir)
    given = _without_none(learning_rate=learning_rate, warmup=warmup)
    changes = plain(in_groups(pretrain, settings | given))
    start = path_of(init_from, workdir)
    if start:
        changes["init_from"] = start
    base = plain(config or {})
    if inputs := file_names(text, "text"):
        changes["data"] = changes.get("data", {}) | _source(inputs)
        if _names_text(base):
            # The prompts of config are about its own text.
            changes.setdefault("prompts", ())
    phase = _without_none(
        steps=steps, batch_size=batch_size, sequence_length=sequence_length
    )
    phases = changes.get("phases") or base.get("phases") or ()
    if phase or not phases:
        changes["phases"] = [_only_phase(phase, phases)]
    is_continued = start or base.get("init_from")
    rate = CONTINUED_RATE if is_continued else NEW_RATE
    optimizer = {"learning_rate": rate, "warmup": WARMUP}
    if changes.get("init_state") or base.get("init_state"):
        optimizer = {}  # a continued run needs its own learning rate and warmup
    defaults = {"optimizer": optimizer, "data": {}}
    chosen = train_config(merged(defaults | base, changes), workdir)
    workdir = epath.Path(workdir)
    with shown_output(log, verbose) as log:
        pretraining.pretrain(chosen, workdir, log, change_settings=change_settings)
        model = load(workdir)
        following = f"bert_jax.finetune(task, init_from={str(workdir)!r}, train=rows)"
        if chosen.objective == TrainConfig.objective:  # the model predicts [MASK]
            following = f"model.fill_mask('The [MASK] is here.'), or {following}"
        log(f"next: {following}")
    lines = [x for x in read_runs([workdir])[0].metrics if x["split"] == "eval"]
    last = lines[-1].items() if lines else ()
    scores = {name: x for name, x in last if name not in NO_SCORES}
    return Trained(**vars(model), scores=scores, workdir=workdir)


def _names_text(settings: Mapping[str, Any]) -> bool:
    """Whether the settings of a pretraining name a text."""
    data = settings.get("data") or {}
    return any(data.get(name) for name in ("corpus", "path", "mixture"))


def _source(inputs: list[str]) -> dict[str, Any]:
    """The settings of ``data`` for the argument ``text``."""
    source = {"corpus": inputs, "path": "", "mixture": (), "weights": ()}
    prepared = [path for path in inputs if _is_prepared(path)]
    if len(inputs) == 1 and prepared:
        return source | {"path": inputs[0], "corpus": ()}
    if prepared:
        needed = "data=dict(mixture=[...], weights=[...]) mixes prepared texts"
        raise UserError(
            f"text has several items, and {prepared[0]} is prepared; {needed}"
        )
    return source


def _is_prepared(path: str) -> bool:
    """Whether a path is the output folder of ``bert_jax prepare``."""
    with contextlib.suppress(OSError):  # a text is too long for a name
        return (epath.Path(path) / "index.json").exists()
    return False


def path_of(init_from: Any, workdir: str) -> str:
    """The path of a checkpoint; "" for None.

    A model in memory is first saved in the workdir.
    The name of its folder depends on the model, so the same call finds the same folder.
    """
    if init_from is None:
        return ""
    if isinstance(init_from, str | os.PathLike):
        return os.fspath(init_from)
    if not isinstance(init_from, Checkpoint):
        actual = f"init_from is of type {type(init_from).__name__}"
        raise UserError(f"{actual}, expected a path or a model of bert_jax.load")
    if is_remote(workdir) or jax.process_count() > 1:
        needed = "save the model with model.save(folder), and give init_from=folder"
        raise UserError(
            f"a model in memory can only start a run on one machine; {needed}"
        )
    check_vocabulary(init_from, "init_from")
    start = init_from
    content = [start.config, start.head, start.labels, start.problem_type, start.extra]
    content += [start.tokenizer.fingerprint(), params_checksum(start.params)]
    folder = Path(workdir, f"init-{zlib.crc32(repr(content).encode()):08x}")
    if not folder.exists():
        save_huggingface(folder, init_from, own=True)
    return str(folder)


def workdir_of(workdir: Any) -> str:
    """The path of a workdir; a new temporary folder for None.

    Raises UserError for a file.
    """
    if not isinstance(workdir, str | os.PathLike | None):
        raise UserError(f"workdir={workdir!r:.60}, expected the path of a folder")
    workdir = expanded(workdir)
    if workdir and not is_remote(workdir) and Path(workdir).is_file():
        raise UserError(f"workdir={workdir!r} must be a folder, but is a file")
    return workdir or tempfile.mkdtemp(prefix="bert_jax-")


def _without_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _only_phase(given: Mapping[str, Any], phases: Any) -> dict[str, Any]:
    """The first of ``phases`` with the given values, or a phase with only these values."""
    first, *_ = [*from_settings(tuple[dict[str, Any], ...], phases, "phases"), {}]
    phase = {**first, **given}
    if "steps" not in phase:
        raise UserError("steps is missing; give the number of steps, such as 1000")
    if "sequence_length" in given:
        phase.pop("max_predictions", None)  # follows from the length
    return phase


@accepts(FineTuneConfig, flat="optimizer", leave_out=("family", "data", "sweep"))
def finetune(
    task: Task,
    *,
    init_from: os.PathLike | str | Checkpoint,
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
) -> Trained:
    """Fine-tunes a checkpoint on a task and returns the model that was best on dev.

    >>> rows = [("a gripping film", "good"), ("two lost hours", "bad"), ...]
    >>> model = bert_jax.finetune(
    ...     bert_jax.tasks.classification(), init_from="models/english", train=rows
    ... )
    >>> model.scores["dev"]["accuracy"]
    91.3
    >>> model.predict("one more lost hour")
    {'label': 'bad', 'probability': 0.97, ...}

    task: a task of ``bert_jax.tasks``, which defines the rows.
    init_from: a checkpoint, as for ``bert_jax.load``, or a model in memory, which is copied
      into the workdir.
    train, dev, test: rows, see :mod:`bert_jax.tasks.rows`; the Path of a file; or
      "hf:NAME" or "hf:NAME:CONFIG", a data set of the Hugging Face Hub (pip install
      datasets). Without ``train`` the files in the task's ``dir`` are read. dev may be the
      share of the training rows that becomes dev (default 0.1). A ``test`` without labels
      only gets predictions.
    workdir: folder of the run. The same call resumes an interrupted run, and does not
      repeat a finished run. None: a new temporary folder, which is not deleted.
    log: function that receives each line of the log, in process 0.
    verbose: 0 shows no lines, no warnings and no progress bars.
    change_settings: resume an unfinished run of ``workdir`` with other settings than
      before. Its config.json lists the changes.
    metrics: function of two lists, the labels and the answers of all rows of a split, that
      returns a dictionary of further scores, which main_metric may name. Dev is then also
      scored before the first step.
    callback: function of the step and the dev scores, called after each evaluation. The run
      stops if it returns True. With several processes only process 0 calls it.
    settings: see below, such as epochs=1, batch_size=16 or learning_rate=1e-4. A single
      argument replaces the value in a config such as optimizer=FineTuneOptimizer(...).

    Raises UserError for wrong rows, settings or files.
    """
    check_call(finetune, task, metrics, settings)
    check_options(log, change_settings)
    if not (callback is None or callable(callback)):
        expected = "a function of the step and the scores"
        raise UserError(f"callback={callback!r:.60}, expected {expected}")
    settings = in_groups(finetune, settings)
    if train is None and not (task.config.dir and dev is test is None):
        needed = "give train=rows (dev and test need it), or the task a dir of files"
        raise UserError(f"there are no training rows; {needed}")
    settings |= {"family": task.family, "data": task.config}
    workdir = workdir_of(workdir)
    config = finetune_config(settings | {"init_from": path_of(init_from, workdir)})
    workdir = epath.Path(workdir)
    with shown_output(log, verbose) as log:
        if train is not None:
            task = _with_rows(task, train, dev, test, config.seed, log)
            config = dataclasses.replace(config, data=task.config)
        task = copy.copy(task)
        task.own_metrics = metrics
        options = {"change_settings": change_settings, "callback": callback}
        was_finished = (workdir / RESULTS).exists()
        results = run_one(config, workdir, log, task, **options)
        more = {"scores": {**results["scores"]}, "workdir": workdir, "metrics": metrics}
        model = Trained(**vars(load(workdir)), **more)
        if was_finished and metrics is not None:
            for split, recorded in results["scores"].items():
                scores = _scores_of_finished(model, config, task, split, recorded)
                model.scores[split] = scores
        log("next: model.predict(rows), model.evaluate(rows), or model.save(folder)")
    return model


def _scores_of_finished(
    model: Trained,
    config: FineTuneConfig,
    task: Task,
    split: str,
    recorded: Mapping[str, float],
) -> dict[str, float]:
    """The recorded scores of a finished run, with the scores of ``model.metrics``."""
    rows = [values for _, values in records_of(task, split)]
    options = Options(batch_size=config.eval_batch_size, dtype=config.compute.dtype)
    (scored,) = evaluate(model._devices, rows, options)
    of_model = copy.copy(scored.task)
    of_model.own_metrics = model.metrics
    answers = scored.evaluation.predictions
    return with_own_scores(of_model, scored.split.rows, answers, recorded)


@contextlib.contextmanager
def shown_output(log: Log, verbose: int) -> Iterator[Log]:
    """Yields the log, which only process 0 shows. Without ``verbose`` nothing is shown."""
    logger = logging.getLogger("bert_jax")
    level = logger.level
    logger.setLevel(level if verbose else logging.ERROR)
    try:
        with hidden_bars(not verbose):
            yield log if verbose and is_leader() else lambda line: None
    finally:
        logger.setLevel(level)


def _with_rows(
    task: Task, train: Any, dev: Any, test: Any, seed: int, log: Log
) -> Task:
    """The task with rows from Python. Without rows of dev, a share of train becomes dev."""
    share = 0.0
    if dev is None:
        dev = held_out_share(task.config, task.form) or DEV_SHARE
    if isinstance(dev, numbers.Real):
        share, dev = float(dev), None
        if not 0 < share < 1:
            expected = "rows, or a share of the training rows above 0 and below 1"
            raise UserError(f"dev={share}, expected {expected}")
        log(f"dev: {share:.0%} of the training rows, which are held out")
    rows = _without_none(train=train, dev=dev, test=test)
    splits = {name: from_hub(rows, name) for name, rows in rows.items()}
    return task.with_rows(held_out=share, seed=seed, **splits)


def check_call(
    function: Callable, task: Any, metrics: Any, settings: Mapping[str, Any]
) -> None:
    """Raises UserError for a wrong task or wrong metrics, and for a setting of the task."""
    if not isinstance(task, Task):
        expected = "one of bert_jax.tasks, such as bert_jax.tasks.classification()"
        raise UserError(f"the task is {task!r}; expected {expected}")
    if not (metrics is None or callable(metrics)):
        expected = "a function of labels and answers; see main_metric for other scores"
        raise UserError(f"metrics={metrics!r:.60}, expected {expected}")
    known = inspect.signature(function).parameters
    for name, value in settings.items():
        if name not in known and hasattr(task.config, name):
            actual = f"{name} is not an argument of {function.__name__}"
            called = task.function or task.family
            example = f"bert_jax.tasks.{called}({name}={value!r:.40})"
            raise UserError(f"{actual}, but of the task: {example}")


def check_options(log: Any, change_settings: Any) -> None:
    """Raises UserError for options of a run that have the wrong type."""
    if not callable(log):
        raise UserError(
            f"log={log!r:.60}, expected a function of a line, such as print"
        )
    from_settings(bool, change_settings, "change_settings")
