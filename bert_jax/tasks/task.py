"""The interface of a fine-tuning task: rows, sequences, answers and scores."""

import abc
import contextlib
import copy
import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np

from bert_jax.data.batching import IGNORED as IGNORED  # a target, beside Features
from bert_jax.data.batching import Features
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.files import write_text
from bert_jax.tasks import cells
from bert_jax.tasks import rows as read
from bert_jax.tasks.rows import Placed, Record, Row
from bert_jax.tasks.source import ROWS, Source, fold_rows, share_of_rows

# "mean" and "cls" are poolings, which make a vector of a sequence.
Head = Literal["sequence", "token", "choice", "span", "mean", "cls"]
Scores = dict[str, float]  # in percent, by name
Outputs = Sequence[np.ndarray]  # float32 logits of each sequence
Answer = dict[str, Any]  # the answer to a row, for JSON
Answers = list[Answer]
# Function of the labels and the answers of all rows of a split.
Metrics = Callable[[list[Any], list[Any]], Scores]

# For each entry of an answer that Metrics get: the attribute of the row with the label.
_GOLD = {"label": "label", "labels": "label", "value": "label", "choice": "label"}
_GOLD |= {"tags": "tags", "answer": "answers"}


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
    config_class: frozen dataclass of the settings: ``dir``, ``max_length`` and, for a
      family with labels, ``labels``.
    source_class: class that reads the files of the family.
    columns: columns of a row, the label last. The value of a column is a tuple of all names
      that the column may have in files and dictionaries. The values of a tuple are in the
      order of the columns, and get the first name of each column.
    optional: columns that a row may lack.
    list_columns: columns whose cells may be printed lists; see :meth:`is_list`.
    length_setting: name of the setting that limits how many tokens of a row are used.
    tabs: whether a line of text with tabs is a row of several texts.
    head: kind of output that the task needs from the model.
    labels: class names in the order of the outputs; empty for regression, choices and
      spans.
    main_metric: the score (higher is better) that picks the best checkpoint.
    problem_type: name of the loss in a config.json of transformers; None if the head
      decides it.
    whole_batch: whether the loss of a row depends on the other rows of its batch.
    own_metrics: function for more scores; see ``metrics`` of ``bert_jax.finetune``.
    """

    family: ClassVar[str]
    config_class: ClassVar[type]
    source_class: ClassVar[type[Source]] = Source
    length_setting: ClassVar[str] = "max_length"
    tabs: ClassVar[bool] = True
    list_columns: ClassVar[tuple[str, ...]] = ()
    optional: tuple[str, ...] = ()
    whole_batch: bool = False
    own_metrics: Metrics | None = None
    columns: dict[str, tuple[str, ...]]
    head: Head
    labels: tuple[str, ...] = ()
    main_metric: str
    problem_type: str | None = None

    def __init__(self, config: Any):
        self.config = config
        labels = getattr(config, "labels", ())
        if len({*labels}) < len(labels):
            raise UserError(f"data.labels={labels}, expected each label once")

    def __repr__(self) -> str:
        """The settings that differ from their defaults."""
        fields = {f.name: f.default for f in dataclasses.fields(self.config)}
        shown = [f"{k}={v!r}" for k, v in vars(self.config).items() if v != fields[k]]
        return f"{type(self).__name__}({', '.join(shown)})"

    @classmethod
    def for_head(cls, checkpoint: Any) -> "Task | None":
        """The task for a Checkpoint that was fine-tuned elsewhere.

        None if the checkpoint has another head.
        """
        if checkpoint.head != cls.head:
            return None
        settings = {"max_length": checkpoint.config.max_positions}
        if hasattr(cls.config_class, "labels"):
            settings["labels"] = checkpoint.labels
        return cls(cls.config_class(**settings))

    @functools.cached_property
    def source(self) -> Source:
        """The splits of the task and their rows."""
        return self.source_class(self.config, self.columns)

    @functools.cached_property
    def label_ids(self) -> dict[str, int]:
        """Index of each label among the outputs of the head."""
        return {label: i for i, label in enumerate(self.labels)}

    @property
    def outputs(self) -> int:
        """Number of logits of a sequence or a token."""
        return 2 if self.head == "span" else len(self.labels) or 1

    @property
    def loss_settings(self) -> dict[str, Any]:
        """Settings of the head's loss; see objectives/heads.py."""
        return {}

    # Rows

    def with_rows(self, *, held_out: float = 0, seed: int = 0, **splits: Any) -> Self:
        """The task with rows from Python, or from other files, instead of its own files.

        splits: "train", "dev" and "test". Each is a list of rows, or the Path of a file. A
          row is a dictionary with the task's ``columns``, or a tuple in their order; see
          :func:`rows.placed_rows`. Without labels a test split gets predictions only.
          If all labels of a split are -1, the split has no labels.
        held_out: share of the training rows that become dev, chosen with ``seed``. Each
          class of a classification keeps its share.
        """
        records = {}
        for split, data in splits.items():
            if read.is_single(data):
                actual = f"{split} is a {type(data).__name__}, which is one row"
                raise UserError(f"{actual}; expected a list of rows, or a Path")
            is_file = isinstance(data, Path)
            reader = self.source.read_file if is_file else self.source.rows_of
            records[split] = self._records(reader(data, split))
        dev = None
        if held_out:
            classes = [self.class_of(*record) for record in records["train"]]
            dev = share_of_rows(classes, held_out, seed)
        return self._with_rows(records, dev)

    def folds(self, count: int, seed: int = 0) -> list[Self]:
        """A task for each fold of the training rows: the fold is dev, the rest is train.

        Each class of a classification keeps its share in every fold. ``seed`` decides the
        folds. There is no test split. count: 2 or more.
        """
        if count < 2:
            raise UserError(f"there are {count} folds, expected at least 2")
        rows = self._records(self.source.records("train"))
        folds = fold_rows([self.class_of(*row) for row in rows], count, seed)
        return [self._with_rows({"train": rows}, dev) for dev in folds]

    def class_of(self, where: str, values: Mapping[str, Any]) -> Hashable:
        """The class of a training row, which keeps its share in dev; None: no class."""
        return None

    def _records(self, placed: Iterable[Placed]) -> list[Record]:
        return [(x, self.values(x, row, labelled=True)) for x, row in placed]

    def _with_rows(self, rows: dict[str, list[Record]], dev: set[int] | None) -> Self:
        """The task with these rows. dev: numbers of the training rows that become dev."""
        if dev is not None:
            train = rows["train"]
            if train and not dev:
                needed = "expected two of a class and as many as folds, or dev=rows"
                raise UserError(f"train has too few rows to use some for dev; {needed}")
            rows = rows | {"train": [x for i, x in enumerate(train) if i not in dev]}
            rows["dev"] = [train[i] for i in sorted(dev)]
        # The name is a setting, so that a run with other rows has other settings.
        content = json.dumps(rows, sort_keys=True, default=str).encode()
        name = ROWS + hashlib.sha256(content).hexdigest()[:12]
        task = type(self)(dataclasses.replace(self.config, dir=name))
        task.columns, task.optional = self.columns, self.optional
        task.source = self.source_class(task.config, self.columns, rows)
        return task

    def with_columns(self, columns: str | Sequence[str]) -> Self:
        """The task with these column names for its texts, in order; (): unchanged."""
        usual, columns = [*self.columns][:-1], read.column_names(columns)
        if len(columns) > len(usual):
            raise UserError(f"columns={columns}, expected at most {', '.join(usual)}")
        task = copy.copy(self)
        if columns:
            named = {usual[i]: (column,) for i, column in enumerate(columns)}
            absent = {*self.optional} - named.keys()
            kept = {name: x for name, x in self.columns.items() if name not in absent}
            task.columns, task.optional = kept | named, ()
        return task

    def labelled(self, split: str) -> bool:
        """Whether the labels of a split are read."""
        return split in ("train", *self.source.eval_splits)

    def read(self, split: str) -> list[Any]:
        """The rows of "train", or of an eval or predict split of the source.

        Raises UserError with file and line for a malformed row.
        """
        records = self.source.records(split)
        return list(self.rows(records, labelled=self.labelled(split)))

    def rows(self, placed: Iterable[Placed], *, labelled: bool = False) -> Iterator:
        """Yields :meth:`row` of each row. placed: see :meth:`Source.rows_of`."""
        names = self._names(labelled=labelled)
        for where, row in read.same_columns(placed, names, self.optional):
            yield self.row(where, self.values(where, row, labelled=labelled), labelled)

    def values(self, where: str, row: Row, *, labelled: bool) -> dict[str, Any]:
        """The values of a row by name. A text or a tuple gets the names of ``columns``.

        A dictionary keeps its names. A printed list becomes a list; see :meth:`is_list`. A
        row that is one text is never a list. labelled: whether a tuple may have a label.
        """
        names = [first for first, *_ in self._names(labelled=labelled)]
        if (1 if isinstance(row, str) else len(row)) < len(names):
            names = [name for name in names if name not in self.optional]
        values = read.by_position(where, row, names, fewer=labelled)
        if isinstance(row, str):
            return values
        return cells.with_lists(where, values, self.is_list)

    def is_list(self, name: str, cell: str, values: Mapping[str, Any]) -> bool:
        """Whether a cell that starts like a printed list must be one.

        name: name of the cell's column. values: all values of the row by name.
        """
        return any(name in self.columns[column] for column in self.list_columns)

    def _names(self, *, labelled: bool) -> list[tuple[str, ...]]:
        """All names of each column. The label is left out unless ``labelled``."""
        return [*self.columns.values()][: None if labelled else -1]

    @abc.abstractmethod
    def row(self, where: str, values: Mapping[str, Any], labelled: bool) -> Any:
        """The object of the family for a row. Raises UserError for wrong values.

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

    def all_scores(self, rows: list[Any], answers: Answers) -> Scores:
        """The scores of :meth:`score` and of ``own_metrics``."""
        scores, more = self.score(rows, answers), {}
        if self.own_metrics:
            name = next(name for name in _GOLD if name in answers[0])
            gold = [getattr(row, _GOLD[name]) for row in rows]
            gold = [list(x) if isinstance(x, tuple) else x for x in gold]
            more = self.own_metrics(gold, [copy.copy(x[name]) for x in answers])
        if isinstance(more, Mapping) and not more.keys() & scores.keys():
            with contextlib.suppress(TypeError, ValueError):  # a score is not a number
                return scores | {str(name): float(x) for name, x in more.items()}
        expected = f"a dictionary of numbers with other names than {', '.join(scores)}"
        raise UserError(f"metrics returned {more!r:.200}, expected {expected}")

    @abc.abstractmethod
    def export(self, rows: list[Any], answers: Answers, split: str) -> dict[str, str]:
        """The answers in the official form of the task: a text for each file name."""

    def outcomes(self, row: Any, answer: Answer) -> Iterator[Outcome]:
        """Yields an Outcome for the row, or for each word."""
        return iter(())

    def write(
        self, rows: list[Any], answers: Answers, split: str, directory: Path
    ) -> list[Path]:
        """Writes the files of :meth:`export`, and returns their paths."""
        files = self.export(rows, answers, split)
        for name, text in files.items():
            write_text(directory / name, text)
        return [directory / name for name in files]

    # Training

    def fitted(self, positions: int, pooling: str) -> Self:
        """The task with defaults that fit a checkpoint.

        positions: size of the position table, which limits a default max_length. pooling:
        pooling of the checkpoint, for a task of vectors whose config has none.
        """
        default = type(self.config).max_length
        if self.config.max_length <= positions or self.config.max_length != default:
            return self
        return self.changed(max_length=positions)

    def changed(self, **settings: Any) -> Self:
        """The task with other settings and the same rows."""
        task = copy.copy(self)
        task.config = dataclasses.replace(self.config, **settings)
        return task

    def tuned(self, scores: Scores) -> "Task":
        """The task with the thresholds that were tuned on dev, which ``scores`` contains.

        The dev scores that pick the checkpoint, the predictions and the saved config use
        these thresholds.
        """
        return self

    def saved_config(self) -> Any:
        """The config with the labels of the data, so that predict needs no data."""
        if not self.labels or not hasattr(self.config, "labels"):
            return self.config
        return dataclasses.replace(self.config, labels=self.labels)

    def golds(self, row: Any) -> Sequence[str]:
        """The labels of a row, which the log counts."""
        return ()

    def warnings(self, rows: Sequence[Any], features: Features) -> list[str]:
        """Likely mistakes in the training rows, a line each."""
        lines, name = [], self.length_setting
        if features.truncated > 0.1 * len(rows):
            share = f"{features.truncated / len(rows):.0%} of the rows are longer than"
            limit = f"{name}={getattr(self.config, name)}"
            lines.append(f"{share} {limit} and lose text; raise data.{name}")
        if len({gold for row in rows for gold in self.golds(row)}) == 1:
            lines.append("all rows have the same label, so no other answer is learned")
        return lines


def joined_features(
    joined: Sequence[tuple[np.ndarray, np.ndarray]],
    row: Sequence[int] | np.ndarray,
    targets: dict[str, Any],
    **more: Any,
) -> Features:
    """The Features of results of ``sequences.join``. row: row number of each sequence."""
    ids, types = [ids for ids, _ in joined], [types for _, types in joined]
    return Features(ids, types, np.array(row, np.int32), targets, **more)


def with_id(row: Any, answer: dict[str, Any]) -> dict[str, Any]:
    """An answer with the id of its row, if the row has an id."""
    return answer if row.id is None else {"id": row.id} | answer
