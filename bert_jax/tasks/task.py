"""The interface of a fine-tuning task: rows, sequences, answers and scores."""

import abc
import contextlib
import copy
import dataclasses
import functools
import logging
import math
import numbers
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import numpy as np

from bert_jax.data.batching import IGNORED as IGNORED  # a target, beside Features
from bert_jax.data.batching import Features
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError, counted, listed
from bert_jax.files import write_text
from bert_jax.tasks.rows import Placed, Record, is_single
from bert_jax.tasks.splits import (
    ROWS,
    Form,
    Splits,
    classes_of,
    find_split,
    fold_rows,
    held_out_share,
    read_records,
    read_splits,
    share_of_rows,
)

logger = logging.getLogger(__name__)

# "mean" and "cls" are poolings, which make a vector of a sequence.
Head = Literal["sequence", "token", "choice", "span", "mean", "cls"]
VECTOR_HEADS = ("mean", "cls")
TaskType = TypeVar("TaskType", bound="Task")
Scores = dict[str, float]  # in percent, by name
Outputs = Sequence[np.ndarray]  # float32 logits of each sequence
Answer = dict[str, Any]  # the answer to a row, for JSON
Answers = list[Answer]
# Function of the labels and the answers of all rows of a split.
Metrics = Callable[[list[Any], list[Any]], Scores]

# Entries of an answer that are compared with the label of its row.
_ANSWERS = ("label", "labels", "value", "choice", "tags", "answer")


class Outcome(NamedTuple):
    """An answer to a row or to a word of a row, and the gold label.

    confidence: probability of the answer; None for regression.
    word: the word of the text; for tagging only.
    classes: gold and predicted class for the confusion matrix; None without classes.
    """

    text: str
    gold: str | float
    predicted: str | float
    confidence: float | None
    right: bool
    word: str | None = None
    classes: tuple[str, str] | None = None


class Task(abc.ABC):
    """A family of tasks. An object is one task with its settings.

    family: name of the family in configs and in saved models.
    function: name of its function in ``bert_jax.tasks``; "" if it is the family's name.
    config_class: frozen dataclass of the settings: ``dir``, ``max_length`` and, for a
      family with labels, ``labels``.
    form: the columns and the files of the rows.
    length_setting: name of the setting that limits how many tokens of a row are used.
    head: kind of output that the task needs from the model.
    labels: class names in the order of the outputs; empty for regression, choices and
      spans.
    gold: attribute of a row with its label or labels; "" for none.
    main_metric: the score (higher is better) that picks the best checkpoint.
    thresholds: settings that are tuned on dev, with the score that has the best value.
    problem_type: name of the loss in a config.json of transformers; None if it follows from
      the head.
    loss_settings: settings of the head's loss; see objectives/heads.py.
    learns_labels: whether training rows have labels that are read.
    whole_batch: whether the loss of a row depends on the other rows of its batch.
    prompts: texts that ``encode`` puts before the texts of a row, by the names of the
      options of a search: query_prompt and document_prompt.
    own_metrics: function for more scores; see ``metrics`` of ``bert_jax.finetune``.
    """

    family: ClassVar[str]
    function: ClassVar[str] = ""
    config_class: ClassVar[type]
    length_setting: ClassVar[str] = "max_length"
    gold: ClassVar[str] = ""
    form: Form
    head: Head
    labels: tuple[str, ...] = ()
    main_metric: str
    thresholds: Mapping[str, str] = types.MappingProxyType({})
    problem_type: str | None = None
    loss_settings: Mapping[str, Any] = types.MappingProxyType({})
    learns_labels: bool = True
    whole_batch: bool = False
    prompts: Mapping[str, str] = types.MappingProxyType({})
    own_metrics: Metrics | None = None

    def __init__(self, config: Any):
        self.config = config
        self._parsed: dict[str, list[Any]] = {}
        labels = getattr(config, "labels", ())
        if len({*labels}) < len(labels):
            raise UserError(f"data.labels={labels} must have each label once")

    def __repr__(self) -> str:
        """The settings that differ from their defaults."""
        shown = []
        for field in dataclasses.fields(self.config):
            value = getattr(self.config, field.name)
            if value != field.default:
                shown.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    @functools.cached_property
    def splits(self) -> Splits:
        """The rows of all splits, which are read when they are first needed."""
        return read_splits(self.config, self.form)

    @property
    def outputs(self) -> int:
        """Number of logits of a sequence or a token."""
        if self.head == "span":
            return 2
        return max(len(self.labels), 1)

    def changed(self, **settings: Any) -> Self:
        """The task with other settings and the same rows.

        Names of columns and files have no effect on rows that are given or were read.
        """
        task = type(self)(dataclasses.replace(self.config, **settings))
        task.form = dataclasses.replace(self.form, labels=task.form.labels)
        task.own_metrics = self.own_metrics
        state = vars(self)
        if "splits" in state:
            task.splits = state["splits"]
        if "labels" in state and not settings.keys() & {"labels", "scheme"}:
            task.labels = state["labels"]
        return task

    # Rows

    def with_rows(
        self,
        *,
        train: Any = None,
        dev: Any = None,
        test: Any = None,
        held_out: float = 0,
        seed: int = 0,
    ) -> Self:
        """The task with rows from Python, or from other files, instead of its own files.

        train, dev, test: a list of rows, a dictionary of columns, or the Path of a file. A
          row is a dictionary with the task's columns, or a tuple in their order; see
          :func:`rows.placed_rows`. A test split without labels, or with the label -1 in all
          rows, only gets predictions.
        held_out: share of the training rows that become dev, chosen with ``seed``. Each
          class of a classification keeps its share.
        """
        is_share = isinstance(held_out, numbers.Real) and 0 <= held_out < 1
        if not is_share:
            raise UserError(
                f"held_out={held_out!r}, expected a share of at least 0 and below 1"
            )
        if held_out and (train is None or dev is not None):
            actual = f"held_out={held_out} chooses rows of train for dev"
            raise UserError(f"{actual}; expected train=rows and no rows of dev")
        _check_seed(seed)
        given = {}
        for split, data in {"train": train, "dev": dev, "test": test}.items():
            if data is None:
                continue
            if is_single(data):
                actual = f"{split} is a {type(data).__name__}, which is one row"
                expected = 'expected a list of rows, or a file as Path("rows.csv")'
                raise UserError(f"{actual}; {expected}")
            given[split] = data
        splits = read_splits(self.config, self.form, given)
        if held_out:
            classes = classes_of(self.form, splits.rows["train"])
            splits = splits.with_dev(share_of_rows(classes, held_out, seed))
        return with_splits(self, splits)

    def folds(self, count: int, seed: int = 0) -> list[Self]:
        """A task for each fold of the training rows: the fold is dev, the rest is train.

        The tasks have no test split. count, seed: see :meth:`fold_numbers`.
        """
        train = records_of(self, "train")
        changes = {"rows": {"train": train}, "scored": ("dev",), "predicted": ()}
        splits = dataclasses.replace(self.splits, **changes)
        tasks = []
        for numbers_of_fold in self.fold_numbers(count, seed):
            task = with_splits(self, splits.with_dev({*numbers_of_fold}))
            task.own_metrics = self.own_metrics
            tasks.append(task)
        return tasks

    def fold_numbers(self, count: int, seed: int = 0) -> list[list[int]]:
        """The numbers of the training rows of each fold, in their order.

        Each class of a classification keeps its share in every fold. The folds depend on
        ``seed``. count: 2 or more.
        """
        if not isinstance(count, numbers.Integral) or count < 2:
            raise UserError(f"the number of folds is {count!r}, expected at least 2")
        _check_seed(seed)
        if held_out_share(self.config, self.form):
            actual = (
                f"data.dev={self.config.dev} holds out rows that no fold would have"
            )
            raise UserError(f"{actual}; leave it out, because each fold is dev once")
        classes = classes_of(self.form, records_of(self, "train"))
        folds = [sorted(fold) for fold in fold_rows(classes, count, seed)]
        if not all(folds):
            shared = sum(len(fold) for fold in folds)
            actual = f"folds={count}, but train has {counted(len(classes), 'row')}"
            if shared < len(classes):
                actual += f", and only {shared} share their class with another row"
            raise UserError(f"{actual}; expected at most one fold for each row")
        return folds

    def parsed(self, split: str) -> list[Any]:
        """The result of :meth:`row` for each row of a split; [] if there is no such split.

        Raises UserError with file and line for a malformed row, and for a label that is not
        in ``labels``.
        """
        if split not in self._parsed:
            labelled = split in self.splits.scored
            if split == "train":
                labelled = self.learns_labels
            records = self.splits.rows.get(split, ())
            rows = [self.row(where, values, labelled) for where, values in records]
            self._parsed[split] = rows
        return self._parsed[split]

    def read(self, split: str) -> list[Any]:
        """The rows of :meth:`parsed` that are learned or scored.

        Raises UserError as :meth:`parsed`, and if there is no such split.
        """
        records_of(self, split)
        return [*self.parsed(split)]

    @abc.abstractmethod
    def row(self, where: str, values: Mapping[str, Any], labelled: bool) -> Any:
        """The family's object for a row, with a label of ``labels``.

        Raises UserError for wrong values.

        where: place of the row. Messages start with it.
        values: values by name. A column may have any of its names; see
          :func:`rows.value_of` and :func:`rows.text_of`.
        labelled: whether the row must have a label.
        """

    # Sequences, answers and scores

    @abc.abstractmethod
    def encode(self, rows: list[Any], tokenizer: Tokenizer) -> Features:
        """The tokenised sequences of rows, with targets if the rows have labels."""

    @abc.abstractmethod
    def decode(self, rows: list[Any], features: Features, outputs: Outputs) -> Answers:
        """An answer with probabilities for each row.

        outputs: logits of each sequence of ``features``: (C,) for the head "sequence", ()
        for "choice", (L_i, C) for "token", (L_i, 2) for "span".
        """

    @abc.abstractmethod
    def score(self, rows: list[Any], answers: Answers) -> Scores:
        """Metrics in percent by name, ``main_metric`` among them."""

    @abc.abstractmethod
    def export(self, rows: list[Any], answers: Answers, split: str) -> dict[str, str]:
        """The answers in the official format of the task: a text for each file name."""

    def outcomes(self, row: Any, answer: Answer) -> Iterator[Outcome]:
        """Yields an Outcome for the row, or for each word."""
        return iter(())


# Tasks with other rows, columns, labels or settings


def with_splits(task: TaskType, splits: Splits) -> TaskType:
    """The task with these rows. The name of the rows depends on their content.

    The name is a setting, so that a run with other rows has other settings.
    """
    config = dataclasses.replace(task.config, dir=f"{ROWS}{splits.checksum}")
    changed = type(task)(config)
    changed.form, changed.splits = task.form, splits
    return changed


def with_columns(task: TaskType, columns: str | Sequence[str]) -> TaskType:
    """The task with these column names for its texts, in order; (): unchanged."""
    changed = copy.copy(task)
    changed.form = task.form.with_columns(columns)
    changed._parsed = {}  # the rows have other columns
    return changed


def with_labels(task: TaskType, labels: Sequence[str]) -> TaskType:
    """The task with the same settings and rows, and other labels of the outputs."""
    changed = copy.copy(task)
    changed.labels = tuple(labels)
    changed._parsed = {}  # the rows have the new labels
    return changed


def labels_of_0_2(task: Task) -> tuple[str, ...]:
    """The labels of train in the order of version 0.2: sorted as texts.

    An unfinished run of 0.2 keeps the order, which its classifier has.
    """
    names = found(task, ("train",))
    if task.form.labels or not names or getattr(task, "scheme", "") == "bmes":
        return tuple(task.labels)
    return tuple(sorted(names))


def fitted(task: TaskType, positions: int, pooling: str) -> TaskType:
    """The task with defaults that fit a checkpoint.

    positions: size of the position table, which limits a default max_length. pooling:
    pooling of the checkpoint, for an embedding task whose config has none.
    """
    default = type(task.config).max_length
    if task.config.max_length > positions and task.config.max_length == default:
        task = task.changed(max_length=positions)
    is_vectors = task.head in VECTOR_HEADS
    if is_vectors and pooling in VECTOR_HEADS and not task.config.pooling:
        task = task.changed(pooling=pooling)
    return task


def tuned(task: TaskType, scores: Scores) -> TaskType:
    """The task with the thresholds that were tuned on dev, which ``scores`` contains.

    The dev scores that pick the checkpoint, the predictions and the saved config use
    these thresholds.
    """
    if not task.thresholds:
        return task
    best = {name: scores[score] for name, score in task.thresholds.items()}
    return task.changed(**best)


def saved_config(task: Task) -> Any:
    """The config with the labels of the data, so that predict needs no data."""
    if not task.labels or not hasattr(task.config, "labels"):
        return task.config
    return dataclasses.replace(task.config, labels=task.labels)


# Rows and answers of a task


def records_of(task: Task, split: str) -> list[Record]:
    """The places and values of a split's rows. Raises UserError if there are none."""
    if split not in task.splits.rows:
        find_split(task.config, task.form, split)  # raises UserError
    return task.splits.rows[split]


def objects_of(task: Task, placed: Iterable[Placed]) -> Iterator[Any]:
    """Yields the objects of rows to predict. placed: see :func:`splits.raw_rows`."""
    for where, values in read_records(placed, task.form):
        yield task.row(where, values, False)


def found(task: Task, splits: Sequence[str]) -> set[str]:
    """The set of labels in the rows of the given splits. A split may be missing."""
    names: set[str] = set()
    for split in splits:
        if not task.labels:
            continue
        for row in task.parsed(split):
            names.update(golds(task, row))
    return names


def golds(task: Task, row: Any) -> Sequence[Any]:
    """The classes or the number of a row, which the log counts."""
    label = getattr(row, task.gold, None)
    is_counted = task.labels or task.problem_type
    if label is None or not is_counted:
        return ()
    if isinstance(label, tuple):
        return label
    return (label,)


def answered(answer: Answer) -> Any:
    """The label, the labels, the number, the choice, the tags or the text of an answer."""
    for name in _ANSWERS:
        if name in answer:
            return answer[name]
    return answer


def all_scores(task: Task, rows: list[Any], answers: Answers) -> Scores:
    """The scores of the task and of its ``own_metrics``."""
    scores = task.score(rows, answers)
    return scores | own_scores(task, rows, answers, [*scores])


def own_scores(
    task: Task, rows: list[Any], answers: Answers, others: Sequence[str]
) -> Scores:
    """The scores of the task's ``own_metrics``; {} without them.

    others: names of the task's other scores, which own metrics may not have.
    """
    if not task.own_metrics:
        return {}
    if not task.gold:
        expected = f"{type(task).__name__}.gold, the attribute of a row with its label"
        raise UserError(f"metrics= needs {expected}")
    gold = []
    for row in rows:
        label = getattr(row, task.gold)
        if isinstance(label, tuple):
            label = list(label)
        gold.append(label)
    more = task.own_metrics(gold, [copy.copy(answered(x)) for x in answers])
    if isinstance(more, Mapping) and not more.keys() & {*others}:
        with contextlib.suppress(TypeError, ValueError):  # a score is not a number
            more = {str(name): float(x) for name, x in more.items()}
            missing = [name for name, x in more.items() if math.isnan(x)]
            if missing:
                advice = "a NaN is never the best score"
                logger.warning(f"metrics returned NaN for {listed(missing)}; {advice}")
            return more
    expected = f"a dictionary of numbers with other names than {', '.join(others)}"
    raise UserError(f"metrics returned {more!r:.200}, expected {expected}")


def with_own_scores(
    task: Task, rows: list[Any], answers: Answers, recorded: Scores
) -> Scores:
    """The scores of a finished split with the task's ``own_metrics``.

    recorded: scores of the run. An earlier call may have finished it with other metrics, so
    only own metrics are computed from the answers. All other scores are the recorded ones.
    """
    if task.own_metrics is None:
        return recorded
    names = [*task.score(rows, answers)]
    scores = {name: recorded[name] for name in names if name in recorded}
    return scores | own_scores(task, rows, answers, names)


def write_answers(
    task: Task, rows: list[Any], answers: Answers, split: str, directory: Path
) -> list[Path]:
    """Writes the files of ``task.export``, and returns their paths."""
    files = task.export(rows, answers, split)
    for name, text in files.items():
        write_text(directory / name, text)
    return [directory / name for name in files]


def warnings(task: Task, rows: Sequence[Any], features: Features) -> list[str]:
    """Likely mistakes in the training rows, a line each."""
    lines, name = [], task.length_setting
    if features.truncated > 0.1 * len(rows):
        share = f"{features.truncated / len(rows):.0%} of the rows are longer than"
        limit = f"{name}={getattr(task.config, name)}"
        lines.append(f"{share} {limit} and lose text; raise data.{name}")
    different = set()
    for row in rows:
        different.update(golds(task, row))
    if len(different) == 1:
        lines.append("all rows have the same label, so no other answer is learned")
    return lines


def _check_seed(seed: Any) -> None:
    """Raises UserError if a seed is not a whole number of at least 0."""
    if not isinstance(seed, numbers.Integral) or seed < 0:
        raise UserError(f"seed={seed!r}, expected a whole number, 0 or more")


def joined_features(
    joined: Sequence[tuple[np.ndarray, np.ndarray]],
    row: Sequence[int] | np.ndarray,
    targets: dict[str, Any],
    **more: Any,
) -> Features:
    """The Features of results of ``Tokenizer.build``. row: row number of each sequence."""
    ids, types = [ids for ids, _ in joined], [types for _, types in joined]
    return Features(ids, types, np.array(row, np.int32), targets, **more)


def with_id(row: Any, answer: dict[str, Any]) -> dict[str, Any]:
    """An answer with the id of its row, if the row has an id."""
    if row.id is None:
        return answer
    return {"id": row.id} | answer
