"""Answers of a checkpoint, whatever it was trained for."""

import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.batching import Features
from bert_jax.errors import UserError, naming
from bert_jax.inference.evaluation import Evaluation, Split, evaluate, opened, runner
from bert_jax.inference.fill_mask import FillMask, mlm_params
from bert_jax.inference.lines import CHUNK, Answers, chunks, truncation
from bert_jax.interop.checkpoint import Checkpoint, check_length
from bert_jax.interop.modules import EXTRA as MODULES
from bert_jax.interop.surgery import head_params
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import FeatureConfig
from bert_jax.model.heads import make_model, packs
from bert_jax.objectives.heads import eval_logits
from bert_jax.progress import Progress
from bert_jax.settings import from_settings
from bert_jax.tasks.class_names import in_order_of
from bert_jax.tasks.families import FAMILIES
from bert_jax.tasks.rows import Placed, count_rows, given_columns
from bert_jax.tasks.source import ROWS
from bert_jax.tasks.task import Task

logger = logging.getLogger(__name__)


class Predictor:
    """Labels, tags, spans or choices with probabilities, for rows.

    >>> predict = Predictor("runs/sst2")
    >>> predict(["a gripping film", "two hours of my life that I want back"])
    [{'label': '1', 'probability': 0.998, 'probabilities': {'0': 0.002, '1': 0.998}},
     {'label': '0', 'probability': 0.991, 'probabilities': {'0': 0.991, '1': 0.009}}]

    checkpoint: a workdir of bert_jax finetune, or any checkpoint with a head that
      ``bert_jax.load`` reads. For a checkpoint that was fine-tuned elsewhere the head
      decides the task: classes or a number for a text (for two, where the first row has
      two), tags of words, spans of SQuAD 1.1, the best of several choices. A checkpoint
      of pretraining names the likeliest tokens for each [MASK].
    batch_size: sequences (rows, of several choices), rounded up to a multiple of the
      devices.
    max_length: tokens of a sequence; 0 for the length that the checkpoint was trained with.
    dtype: of ComputeConfig; None for the checkpoint's own.
    top: number of tokens for a [MASK].
    show_progress: whether progress is shown; None: on a terminal and in a notebook.

    A row is a text, a tuple (two texts of a pair, question and context, context and
    choices, words to tag) or a dictionary with the columns that the checkpoint was trained
    with.
    family: a key of FAMILIES, or "fill_mask".
    """

    def __init__(
        self,
        checkpoint: Checkpoint | Path | str,
        *,
        batch_size: int = 32,
        max_length: int = 0,
        dtype: str | None = None,
        top: int = 5,
        show_progress: bool | None = None,
    ):
        checkpoint, path = opened(checkpoint, dtype, batch_size, max_length)
        if checkpoint.head == "none" or (
            checkpoint.head == "pretraining" and "mlm" not in checkpoint.params
        ):
            raise UserError(
                f"{path} is an encoder without a head that predicts; fine-tune it with "
                "bert_jax finetune, or get its vectors with "
                "bert_jax embed"
            )
        self._tokenizer, self._show = checkpoint.tokenizer, show_progress
        self._task: Task
        if checkpoint.head == "pretraining":
            fill_mask = FillMask(
                BertForPreTraining(checkpoint.config, checkpoint.compute),
                mlm_params(checkpoint),
                checkpoint.tokenizer,
                max_length=max_length or checkpoint.config.max_positions,
                batch_size=batch_size,
                top=top,
            )
            self._task, self.max_length = fill_mask, fill_mask.max_length
        else:
            self._task = _task(checkpoint, path, max_length)
            self.max_length = self._task.config.max_length
            self._run = _model(checkpoint, path, self._task, batch_size)
        check_length(self.max_length, checkpoint, "max_length")
        self.family = self._task.family

    def __call__(
        self, rows: Any, *, columns: str | Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """A JSON-able answer for each row, in order.

        rows: see :func:`bert_jax.tasks.rows.placed_rows`. columns: see :meth:`stream`.
        Logs a warning with the number of rows that are truncated.
        """
        total = count_rows(rows)
        parts = self.stream(self.placed(rows), columns=columns, total=total)
        answers, truncated = [], 0
        for part in parts:
            answers += part.answers
            truncated += part.truncated
        if truncated:
            logger.warning(truncation(truncated, len(answers), "row", self.max_length))
        return answers

    def placed(self, rows: Any) -> Iterator[Placed]:
        """The rows of any data, with their places."""
        return self._task.source.rows_of(rows, tabs=self._task.tabs)

    @property
    def tabs(self) -> bool:
        """Whether a line of text with tabs is a row of several texts."""
        return self._task.tabs

    def stream(
        self,
        placed: Iterable[Placed],
        size: int = CHUNK,
        total: int | None = None,
        columns: str | Sequence[str] = (),
    ) -> Iterator[Answers]:
        """Rows and answers of ``size`` rows at a time.

        Memory holds the rows and outputs of one part; a document that must be whole is in
        one part. total: the number of rows, where it is known. columns: of dictionaries,
        the columns of the text or texts, in order, instead of those that the checkpoint was
        trained with.
        """
        rows = self._task.rows(placed, given_columns(columns))
        with Progress(
            "predicting", total=total, unit="rows", show=self._show
        ) as progress:
            for part in _parts(self._task, rows, size):
                yield self._answer(self._task, part, progress.part(len(part)))

    def evaluate(
        self,
        data: Any = None,
        *,
        task: Task | None = None,
        directory: str = "",
        columns: str | Sequence[str] = (),
    ) -> Iterator[tuple[Task, Split, Evaluation]]:
        """Each labelled split with its predictions and scores; nothing is trained.

        data: rows with labels, as ``bert_jax.tasks`` says, or a file of the family's form;
          the split is then called dev. None: the files of the task.
        task: instead of the checkpoint's own, as for a head that was trained elsewhere. Its
          classes are those of the head by name; see class_names.in_order_of. A task
          without labels and files has the labels of the checkpoint.
        columns: of the text or texts in ``data``, as of :meth:`stream`.
        """
        if isinstance(self._task, FillMask):
            raise UserError(
                "a pretrained checkpoint has no task to be scored on; fine-tune it with "
                "bert_jax finetune"
            )
        own = self._task
        if task is None:
            task = own
        else:
            task = task.fitted(self.max_length, own.head)
            if (
                task.head == own.head
                and own.labels
                and not (task.source.labels or task.config.dir)
            ):
                config = dataclasses.replace(task.config, labels=own.labels)
                task = type(task)(config)
            if (task.head, task.outputs) != (own.head, own.outputs):
                raise UserError(
                    f"the checkpoint's {own.head} head gives {own.outputs} numbers, the "
                    f"task needs {task.outputs} of a {task.head} head; give the task that "
                    "it was trained for"
                )
            length = min(task.config.max_length, self.max_length)
            config = dataclasses.replace(task.config, max_length=length)
            if task.labels:
                labels = in_order_of(own.labels, task.labels)
                config = dataclasses.replace(config, labels=labels)
            task = type(task)(config)
        task = _with_data(task, data, directory, given_columns(columns))
        for name in task.source.eval_splits:
            rows = task.read(name)
            if not rows:
                raise UserError(
                    f"{name} has no rows; expected at least one with a label"
                )
            split = Split(name, rows, task.encode(rows, self._tokenizer))
            with Progress(
                f"predicting {name}", total=len(rows), unit="rows", show=self._show
            ) as progress:
                outputs = self._run(split.features, done=progress.part(len(rows)))
            yield task, split, evaluate(task, split, outputs)

    def _answer(
        self, task: Task, rows: list[Any], done: Callable[[float], None]
    ) -> Answers:
        if isinstance(task, FillMask):
            answers = task.answers(rows)
            done(1.0)
            return Answers(rows, answers, task)
        features = task.encode(rows, self._tokenizer)
        answers = task.decode(rows, features, self._run(features, done=done))
        return Answers(rows, answers, task, features.truncated)


def _parts(task: Task, rows: Iterator[Any], size: int) -> Iterator[list[Any]]:
    """Lists of ``size`` rows, or of whole documents where these count."""
    if not getattr(task.config, "document_context", False):
        yield from chunks(rows, size)
        return
    part: list[Any] = []
    for _, document in itertools.groupby(rows, lambda row: row.document):
        if len(part) >= size:
            yield part
            part = []
        part += document
    if part:
        yield part


def _model(
    checkpoint: Checkpoint, path: Path | str, task: Task, batch_size: int
) -> Callable[[Features], list[np.ndarray]]:
    """The fine-tuned model: from sequences to the output for each of them."""
    features = from_settings(
        FeatureConfig, checkpoint.extra.get("features", {}), "features"
    )
    model = make_model(
        checkpoint.config, task.head, task.outputs, features, checkpoint.compute
    )
    params, missing = head_params(checkpoint, model, task.head, task.labels)
    if missing:
        raise UserError(
            f"{path} lacks {', '.join(missing)}, which a {task.head} head needs; "
            "fine-tune it with bert_jax finetune"
        )
    forward = functools.partial(eval_logits, model)
    return runner(
        forward, params, checkpoint, batch_size=batch_size, packed=packs(model)
    )


def _with_data(task: Task, data: Any, directory: str, columns: Sequence[str]) -> Task:
    """The task with the data, or with its own files."""
    if data is not None:
        return task.with_rows(dev=data, columns=columns)
    if columns:
        raise UserError("columns is given without data; give data, or rows, too")
    if directory:
        task = type(task)(dataclasses.replace(task.config, dir=directory))
    if not task.config.dir or task.config.dir.startswith(ROWS):
        raise UserError(
            "the checkpoint does not know where its task's files are; give data or "
            "dir, or rows"
        )
    return task


def _task(checkpoint: Checkpoint, path: Path | str, max_length: int) -> Task:
    """The task that a checkpoint was fine-tuned for; elsewhere, one that fits its head.

    max_length: tokens of a sequence, instead of what is saved; 0 to leave it.
    """
    if checkpoint.extra.keys() - {MODULES}:
        family, data = (checkpoint.extra.get(name) for name in ("family", "data"))
        if str(family) not in FAMILIES or not isinstance(data, dict):
            raise UserError(
                f"{path}: 'bert_jax' in config.json has the family {family!r}, expected "
                f"one of {', '.join(FAMILIES)} and its settings under 'data'; delete the "
                "key to have the task made from the head"
            )
        kind = FAMILIES[family]
        with naming(path):
            task = kind(from_settings(kind.config_class, data, "data"))
    else:
        with naming(path):
            tasks = (kind.for_head(checkpoint) for kind in FAMILIES.values())
            task = next(filter(None, tasks))
    return task.changed(max_length=max_length) if max_length else task
