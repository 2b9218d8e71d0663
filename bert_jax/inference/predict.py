"""Predictions and evaluations by a fine-tuned checkpoint."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import expit

from bert_jax.data.batching import Features
from bert_jax.errors import UserError, naming
from bert_jax.files import reading
from bert_jax.inference import evaluation as base
from bert_jax.inference.evaluation import Columns, Stored
from bert_jax.inference.lines import PREFIX, flat
from bert_jax.inference.pretrained import FillMask, NextSentence
from bert_jax.interop.checkpoint import SIGMOID, Checkpoint, check_length
from bert_jax.interop.modules import EXTRA as MODULES
from bert_jax.interop.surgery import head_params
from bert_jax.model.config import FeatureConfig
from bert_jax.model.heads import make_model, packs
from bert_jax.progress import Progress
from bert_jax.settings import from_settings, setting
from bert_jax.tasks.families import FAMILIES, task_of_head
from bert_jax.tasks.labels import in_order_of
from bert_jax.tasks.rows import Placed, count_rows, is_single
from bert_jax.tasks.splits import (
    ROWS,
    positioned,
    raw_rows,
    read_splits,
    with_lists,
)
from bert_jax.tasks.task import (
    Answer,
    Metrics,
    Outputs,
    Task,
    fitted,
    rows_of,
    with_columns,
)


def predictor(
    checkpoint: Checkpoint,
    *,
    top: int | None = None,
    next_sentence: bool = False,
    **options: Any,
) -> base.Inference:
    """A NextSentence, or the FillMask or Predictor that suits the checkpoint."""
    if next_sentence:
        return NextSentence(checkpoint, **options)
    fills = checkpoint.head == "pretraining" and "mlm" in checkpoint.params
    options |= {} if top is None else {"top": top}
    return (FillMask if fills else Predictor)(checkpoint, **options)


@dataclasses.dataclass(frozen=True)
class PredictOptions(base.Options):
    """The options of ``Bert.predict``."""

    top: int | None = setting(
        None,
        "number of the likeliest labels, choices or spans. An answer has them in "
        '"top", the likeliest first, instead of "probabilities" or "nbest"; None: all. '
        "Models of tags, numbers and sentence vectors have no top",
        least=1,
    )


class Predictor(base.Inference):
    """Labels, tags, spans or choices with probabilities, for rows.

    >>> predict = Predictor("runs/sst2")
    >>> predict(["a gripping film", "two hours of my life that I want back"])
    [{'label': '1', 'probability': 0.998, 'probabilities': {'0': 0.002, '1': 0.998}},
     {'label': '0', 'probability': 0.991, 'probabilities': {'0': 0.991, '1': 0.009}}]

    checkpoint: a run of fine-tuning, or any checkpoint with a head that ``bert_jax.load``
      reads. If it was fine-tuned elsewhere, the head decides the task: classes or a number
      for a text or a pair, tags of words, spans of SQuAD 1.1, or the best of several
      choices.
    options: see PredictOptions.

    The attribute task is the Task of the checkpoint. A row is a text, a tuple (two texts of
    a pair, question and context, context and choices, words to tag) or a dictionary with
    the columns that the checkpoint was trained with.
    """

    options_class = PredictOptions
    noun = "row"

    def __init__(self, checkpoint: Stored, **options: Any):
        super().__init__(checkpoint, **options)
        checkpoint, path = self.checkpoint, self._name
        self._top = self.options.top
        kinds = {"none": "an encoder without a head", "pretraining": "only pretrained"}
        if kind := kinds.get(checkpoint.head):
            needed = "fine-tune it with finetune, or use embed, fill_mask or score"
            raise UserError(f"{path} is {kind}; {needed}")
        self.task = task = _task(checkpoint, path, self.max_length)
        ranked = {"sequence": task.labels, "choice": True, "span": True}
        if self._top is not None and not ranked.get(task.head):
            actual = f"top={self._top}, but a model for {task.family} ranks no answers"
            raise UserError(f"{actual}; leave top out")
        features = checkpoint.extra.get("features", {})
        features = from_settings(FeatureConfig, features, "features")
        sizes = task.head, task.outputs, features, checkpoint.compute
        model = make_model(checkpoint.config, *sizes)
        params, missing = head_params(checkpoint, model, task.head, task.labels)
        if missing:
            actual = (
                f"{path} lacks {', '.join(missing)}, which a {task.head} head needs"
            )
            raise UserError(f"{actual}; fine-tune it with bert_jax finetune")
        self.tabs, self.max_length = task.tabs, task.config.max_length
        check_length(self.max_length, checkpoint, "max_length")
        self._run = self._runner(model, params, packed=packs(model))

    def placed(self, rows: Any) -> Iterator[Placed]:
        """Yields the rows of any data, each with its place."""
        if self.single(rows) and not is_single(rows):
            rows = [rows]  # lists of words, not columns
        return raw_rows(rows, self.task.form, tabs=self.tabs)

    def single(self, rows: Any) -> bool:
        """Whether the data is one row.

        In tagging a dictionary with a list of words is one row, with or without their tags.
        With other lists it is a table, as is a list of texts in the column "text".
        """
        is_tagging = self.task.head == "token" and isinstance(rows, Mapping)
        if not is_tagging or is_single(rows):
            return is_single(rows)
        form = self.task.form
        words, tags = ((*form.columns[x], *form.usual.get(x, ())) for x in form.columns)
        name = next((name for name in words if name in rows), "text")
        if name == "text" or rows.keys() - {name, *tags}:
            return False
        return all(isinstance(word, str) for word in rows[name])

    def _rows(self, placed: Iterable[Placed], columns: Columns) -> Iterator:
        return rows_of(with_columns(self.task, columns), placed)

    def _together(self, rows: Iterable[Any]) -> Iterator[list[Any]]:
        if not getattr(self.task.config, "document_context", False):
            return super()._together(rows)
        groups = itertools.groupby(rows, lambda row: row.document)
        return (list(group) for _, group in groups)

    def _encode(self, rows: list[Any]) -> Features:
        return self.task.encode(rows, self._tokenizer)

    def _decode(self, rows: list, features: Features, outputs: Outputs) -> Sequence:
        answers = self.task.decode(rows, features, self._activated(outputs))
        return [_likeliest(x, self._top) for x in answers] if self._top else answers

    def _activated(self, outputs: Outputs) -> Outputs:
        """The outputs with the activation of a cross-encoder, for answers and scores."""
        gives_value = self.task.problem_type == "regression"
        if gives_value and self.checkpoint.activation_fn == SIGMOID:
            return [expit(logits) for logits in outputs]
        return outputs

    def beside(
        self, placed: Iterable[Placed], total: int | None = None, columns: Columns = ()
    ) -> Iterator[base.Answers]:
        """:meth:`stream` with the values of each row beside its answer.

        The names of the answer get a prefix, as in "predicted_label", and replace all names
        of the row with this prefix. The id of the answer is left out. A text or a tuple
        gets the names of the task's columns.
        """
        form = self.task.form.with_columns(columns)
        placed, rows = itertools.tee(placed)
        for part in self.stream(placed, total=total, columns=columns):
            answers = []
            for answer, (where, row) in zip(part.answers, rows, strict=False):
                if isinstance(row, dict):
                    values = with_lists(where, row, form)
                elif self.task.head == "token" and isinstance(row, str):
                    values = {"text": row}  # not yet split into words
                else:
                    values = positioned(where, row, form, labelled=False)
                kept = {x: y for x, y in values.items() if not x.startswith(PREFIX)}
                new = {f"{PREFIX}{x}": y for x, y in answer.items() if x != "id"}
                answers.append(kept | new)
            yield part._replace(answers=answers)

    def frame(self, rows: Any, *, columns: Columns = ()) -> Any:
        """The values of :meth:`beside` as a pandas data frame.

        A pandas frame keeps its columns and its index, and a series its index.
        """
        with reading("as_frame=True", "pandas"):
            import pandas
        parts = self.beside(self.placed(rows), count_rows(rows), columns)
        answers = [flat(x) for part in parts for x in part.answers]
        count = len(answers)
        if not answers:  # the answer to any row has the names of the columns
            form = self.task.form
            names = [form.columns[key][0] for key in form.texts]
            row = {name: ["a", "a"] if name == "choices" else "a" for name in names}
            answers = [flat(*part.answers) for part in self.beside([("", row)])]
        table = pandas.DataFrame(answers)[:count]
        if isinstance(rows, pandas.DataFrame):
            kept = [name for name in rows if not str(name).startswith(PREFIX)]
            new = [name for name in table if name.startswith(PREFIX)]
            return rows[kept].assign(**{name: table[name].array for name in new})
        return table.set_index(rows.index) if isinstance(rows, pandas.Series) else table

    def evaluate(
        self,
        data: Any = None,
        *,
        task: Task | None = None,
        directory: str = "",
        columns: Columns = (),
        metrics: Metrics | None = None,
    ) -> Iterator[tuple[Task, base.Split, base.Evaluation]]:
        """Yields the predictions and scores of each split with labels.

        data: rows with labels, as in ``bert_jax.tasks``, or the Path of a file, which make
          the split dev. None: the files of the task.
        task: the task of the data, for a head that was trained elsewhere; None: the
          checkpoint's own task. Its classes are matched with the classes of the head by
          name; see tasks.labels.in_order_of. A task without labels and files has the labels
          of the checkpoint.
        directory: folder of the task's files, instead of the folder of the run.
        columns: see :meth:`stream`.
        metrics: function for more scores; see ``bert_jax.finetune``.

        Logs a warning with the number of truncated rows.
        """
        task = self.task if task is None else self._matched(task)
        if directory:
            task = type(task)(task.changed(dir=directory).config)
        task = with_columns(task, columns)
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
            split = base.Split(name, rows, task.encode(rows, self._tokenizer))
            doing, total = f"predicting {name}", len(rows)
            with Progress(doing, total=total, unit="rows", show=self.show) as progress:
                outputs = self._run(split.features, done=progress.part(total))
            self.warn_truncated(split.features.truncated, total)
            yield task, split, base.evaluate(task, split, self._activated(outputs))

    def _matched(self, task: Task) -> Task:
        """A task of the user with the labels and the length of the checkpoint."""
        trained = self.task
        task = fitted(task, self.max_length, trained.head)
        changes = {"max_length": min(task.config.max_length, self.max_length)}
        declared = getattr(task.config, "labels", ()) or task.form.labels
        is_open = task.head == trained.head and trained.labels and not declared
        if is_open and _has_labels_of(task, trained.labels):
            task = type(task)(task.changed(labels=trained.labels).config)
        if (task.head, task.outputs) != (trained.head, trained.outputs):
            actual = (
                f"the {trained.head} head of the checkpoint gives {trained.outputs} "
            )
            actual += f"numbers, the task needs {task.outputs} of a {task.head} head"
            raise UserError(f"{actual}; give the task that it was trained for")
        if task.labels:
            changes |= {"labels": in_order_of(trained.labels, task.labels)}
        return type(task)(task.changed(**changes).config)


def _has_labels_of(task: Task, labels: tuple[str, ...]) -> bool:
    """Whether all labels in the files of a task are among ``labels``."""
    if not task.config.dir:
        return True
    return {*task.found(("train", "dev"))} <= {*labels}


class Logits(Predictor):
    """The outputs of a fine-tuned model's head for rows; see ``Bert.logits``."""

    def __call__(self, rows: Any, *, columns: Columns = ()) -> base.Arrays:
        if self.task.head in ("mean", "cls"):
            raise UserError("a model of sentence vectors has no logits; use encode")
        logits = super().__call__(rows, columns=columns)
        if self.task.head in ("token", "span") or len({*map(len, logits)}) > 1:
            return logits
        return np.array(logits or np.zeros((0, self.task.outputs)), np.float32)

    def _decode(self, rows: list, features: Features, outputs: Outputs) -> Sequence:
        edges = np.searchsorted(features.row, np.arange(len(rows) + 1))
        windows = [outputs[a:b] for a, b in itertools.pairwise(edges)]
        if self.task.head == "sequence":
            return [np.mean(parts, axis=0) for parts in windows]
        if self.task.head == "choice":  # rows with fewer choices are padded
            pairs = zip(rows, windows, strict=True)
            return [np.concatenate(parts[: len(row.choices)]) for row, parts in pairs]
        none = np.zeros((0, self.task.outputs), np.float32)  # a text without words
        return [np.concatenate([none, *parts]) for parts in windows]


def _likeliest(answer: Answer, top: int) -> Answer:
    """An answer with the list "top" of the likeliest labels, choices or spans."""
    shares, likely = answer.pop("probabilities", None), answer.pop("nbest", None)
    if shares is not None:
        kind, pairs = "choice", enumerate(shares)
        if isinstance(shares, dict):
            kind, pairs = "label", shares.items()
        likely = [{kind: x, "probability": p} for x, p in pairs]
    return answer | {"top": sorted(likely, key=lambda x: -x["probability"])[:top]}


def _task(checkpoint: Checkpoint, path: str, max_length: int) -> Task:
    """The task that a checkpoint was fine-tuned for, or a task that fits its head.

    max_length: maximum number of tokens of a sequence; 0: as saved.
    """
    with naming(path):
        if checkpoint.extra.keys() - {MODULES}:
            family, data = (checkpoint.extra.get(name) for name in ("family", "data"))
            if family not in FAMILIES:
                actual = f"'bert_jax' in config.json has the family {family!r}"
                raise UserError(f"{actual}, expected one of {', '.join(FAMILIES)}")
            kind = FAMILIES[family]
            task = kind(from_settings(kind.config_class, data, "data"))
        else:
            task = task_of_head(checkpoint)
    return task.changed(max_length=max_length) if max_length else task
