"""Predictions and evaluations by a checkpoint with any head."""

import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError, naming
from bert_jax.inference.evaluation import Evaluation, Split, evaluate, opened, runner
from bert_jax.inference.fill_mask import (
    FillMask,
    FillMaskConfig,
    mlm_params,
    top_tokens,
)
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
from bert_jax.tasks.families import FAMILIES
from bert_jax.tasks.rows import Placed, count_rows, given_columns
from bert_jax.tasks.source import ROWS, in_order_of
from bert_jax.tasks.task import Task

logger = logging.getLogger(__name__)


class Predictor:
    """Labels, tags, spans, choices or tokens with probabilities, for rows.

    >>> predict = Predictor("runs/sst2")
    >>> predict(["a gripping film", "two hours of my life that I want back"])
    [{'label': '1', 'probability': 0.998, 'probabilities': {'0': 0.002, '1': 0.998}},
     {'label': '0', 'probability': 0.991, 'probabilities': {'0': 0.991, '1': 0.009}}]

    checkpoint: a run of fine-tuning, or any checkpoint with a head that ``bert_jax.load``
      reads. If it was fine-tuned elsewhere, the head decides the task: classes or a number
      for a text or a pair, tags of words, spans of SQuAD 1.1, or the best of several
      choices. A pretrained checkpoint gives the likeliest tokens for each [MASK].
    batch_size: number of rows of 32 tokens in a batch; longer rows are fewer.
    max_length: maximum number of tokens of a sequence; 0: as trained.
    dtype: a value of ComputeConfig.dtype; None for the checkpoint's own.
    top: number of tokens for a [MASK].
    show_progress: whether to show a progress bar; None: on a terminal and in a notebook.

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
        params, packed = checkpoint.params, True
        self._tokenizer, self._show = checkpoint.tokenizer, show_progress
        self._task: Task
        if checkpoint.head == "none" or (
            checkpoint.head == "pretraining" and "mlm" not in params
        ):
            raise UserError(
                f"{path} is an encoder without a head that predicts; fine-tune it with "
                "bert_jax finetune, or get its vectors with bert_jax embed"
            )
        if checkpoint.head == "pretraining":
            length = max_length or checkpoint.config.max_positions
            self._task = FillMask(FillMaskConfig(length, top), self._tokenizer)
            params = mlm_params(checkpoint)
            model = BertForPreTraining(checkpoint.config, checkpoint.compute)
            forward = functools.partial(top_tokens, model, top)
        else:
            self._task = _task(checkpoint, path, max_length)
            model, params = _model(checkpoint, path, self._task)
            packed = packs(model)
            forward = functools.partial(eval_logits, model)
        self.family = self._task.family
        self.max_length = self._task.config.max_length
        check_length(self.max_length, checkpoint, "max_length")
        self._run = runner(
            forward, params, checkpoint, batch_size=batch_size, packed=packed
        )

    def __call__(
        self, rows: Any, *, columns: str | Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """An answer for each row, in order, which JSON can hold.

        rows: see :func:`bert_jax.tasks.rows.placed_rows`. columns: see :meth:`stream`.
        Logs a warning with the number of truncated rows.
        """
        total = count_rows(rows)
        answers, truncated = [], 0
        for part in self.stream(self.placed(rows), columns=columns, total=total):
            answers += part.answers
            truncated += part.truncated
        if truncated:
            logger.warning(truncation(truncated, len(answers), "row", self.max_length))
        return answers

    def placed(self, rows: Any) -> Iterator[Placed]:
        """The rows of any data, each with its place."""
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
        """Rows and answers, ``size`` rows at a time.

        Memory holds the rows and the outputs of one part. If the answer to a row depends on
        its document, a part has whole documents. total: number of rows, if known.
        columns: names of the columns of the text or texts in dictionaries, in order; empty:
        as trained.
        """
        task = self._task
        rows = task.rows(placed, given_columns(columns))
        parts: Iterator[list[Any]] = chunks(rows, size)
        if getattr(task.config, "document_context", False):
            groups = itertools.groupby(rows, lambda row: row.document)
            documents = chunks((list(rows) for _, rows in groups), size, len)
            parts = (list(itertools.chain(*part)) for part in documents)
        with Progress(
            "predicting", total=total, unit="rows", show=self._show
        ) as progress:
            for part in parts:
                features = task.encode(part, self._tokenizer)
                outputs = self._run(features, done=progress.part(len(part)))
                answers = task.decode(part, features, outputs)
                yield Answers(part, answers, task, features.truncated)

    def evaluate(
        self,
        data: Any = None,
        *,
        task: Task | None = None,
        directory: str = "",
        columns: str | Sequence[str] = (),
    ) -> Iterator[tuple[Task, Split, Evaluation]]:
        """The predictions and scores of each split with labels. Nothing is trained.

        data: rows with labels, as in ``bert_jax.tasks``, or the Path of a file, which make
          the split dev. None: the files of the task.
        task: the task of the data, for a head that was trained elsewhere; None: the
          checkpoint's own task. Its classes are matched with the classes of the head by
          name; see tasks.source.in_order_of. A task without labels and files has the labels
          of the checkpoint.
        directory: folder of the task's files, instead of the folder of the run.
        columns: see :meth:`stream`.
        """
        if isinstance(self._task, FillMask):
            raise UserError(
                "a pretrained checkpoint has no task to be scored on; fine-tune it with "
                "bert_jax finetune"
            )
        task = self._task if task is None else self._matched(task)
        columns = given_columns(columns)
        if data is not None:
            task = task.with_rows(dev=data, columns=columns)
            columns = ()
        elif directory:
            task = type(task)(task.changed(dir=directory).config)
        elif not task.config.dir or task.config.dir.startswith(ROWS):
            raise UserError(
                "the checkpoint does not know where its task's files are; give data or "
                "dir, or rows"
            )
        for name in task.source.eval_splits:
            rows = task.read(name, columns)
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

    def _matched(self, task: Task) -> Task:
        """A task of the user with the labels and the length of the checkpoint."""
        own = self._task
        task = task.fitted(self.max_length, own.head)
        changes: dict[str, Any] = {
            "max_length": min(task.config.max_length, self.max_length)
        }
        known = task.source.labels or task.config.dir
        if task.head == own.head and own.labels and not known:
            task = type(task)(task.changed(labels=own.labels).config)
        if (task.head, task.outputs) != (own.head, own.outputs):
            raise UserError(
                f"the checkpoint's {own.head} head gives {own.outputs} numbers, the task "
                f"needs {task.outputs} of a {task.head} head; give the task that it was "
                "trained for"
            )
        if task.labels:
            changes["labels"] = in_order_of(own.labels, task.labels)
        return type(task)(task.changed(**changes).config)


def _model(checkpoint: Checkpoint, path: str, task: Task) -> tuple[Callable, Any]:
    """The fine-tuned model and its parameters."""
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
    return model, params


def _task(checkpoint: Checkpoint, path: str, max_length: int) -> Task:
    """The task that a checkpoint was fine-tuned for, or a task that fits its head.

    max_length: maximum number of tokens of a sequence; 0: as saved.
    """
    with naming(path):
        if checkpoint.extra.keys() - {MODULES}:
            family, data = (checkpoint.extra.get(name) for name in ("family", "data"))
            if str(family) not in FAMILIES or not isinstance(data, dict):
                raise UserError(
                    f"'bert_jax' in config.json has the family {family!r}, expected one of "
                    f"{', '.join(FAMILIES)} and its settings under 'data'; delete the key "
                    "to use the task of the head"
                )
            kind = FAMILIES[family]
            task = kind(from_settings(kind.config_class, data, "data"))
        else:
            tasks = (kind.for_head(checkpoint) for kind in FAMILIES.values())
            task = next(filter(None, tasks))
    return task.changed(max_length=max_length) if max_length else task
