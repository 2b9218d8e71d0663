"""What a fine-tuning task is, whatever its family, and its sequences."""

import abc
import collections
import copy
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np

from bert_jax.data.batching import IGNORED as IGNORED  # a target, beside Features
from bert_jax.data.batching import Features
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.files import write_text
from bert_jax.tasks import rows as row_reader
from bert_jax.tasks import tables
from bert_jax.tasks.rows import Placed, Row
from bert_jax.tasks.source import Source, given_rows

# "mean" and "cls" are poolings, which make a vector of a sequence.
Head = Literal["sequence", "token", "choice", "span", "mean", "cls"]
Outputs = Sequence[np.ndarray]  # float32 logits of each sequence
Answer = dict[str, Any]  # of a row, JSON-able
Predictions = list[Answer]


class Error(NamedTuple):
    """confidence: the probability of what was predicted; None in regression."""

    text: str
    gold: str | float
    predicted: str | float
    confidence: float | None
    word: str | None = None  # of the text, in tagging


class Task(abc.ABC):
    """Rows of files or of Python, their sequences, predictions and scores.

    family: the name of the kind of task, in configs and in saved models.
    config_class: the frozen dataclass of its settings, dir and max_length among them; a
      task is built from one.
    head: which head the model needs.
    labels: the class names in the order of the outputs; empty for regression, choices
      and spans.
    main_metric: the score (higher is better) that picks the best checkpoint.
    source_class: knows the files of the family.
    unlabelled: splits whose labels are not read.
    keys: what a row holds, its label last, in the order of a tuple's values; and the names
      that each of them may have in a file, an object or a dictionary.
    of_texts: whether all ``keys`` but the label are texts, so that any column may have one.
    document_context: whether the answer to a row depends on its neighbours in a document.
    length_setting: the setting that says how much of a row is seen.
    counted: what has a class: "rows" or "words".
    whole_batch: whether the loss of a row hangs on the others of its batch.
    column_widths: the most characters that a table of predictions shows in a column;
      other columns are as wide as needed.
    """

    family: ClassVar[str]
    config_class: ClassVar[type]
    source_class: ClassVar[type[Source]] = Source
    column_widths: ClassVar[dict[str, int]] = {}
    length_setting: ClassVar[str] = "max_length"
    counted: Literal["rows", "words"] = "rows"
    whole_batch: bool = False
    of_texts: ClassVar[bool] = False
    document_context: bool = False
    keys: dict[str, tuple[str, ...]]
    config: Any
    head: Head
    labels: tuple[str, ...] = ()
    main_metric: str
    unlabelled: tuple[str, ...] = ()

    def __init__(self, config: Any):
        self.config = config

    @functools.cached_property
    def source(self) -> Source:
        """The splits of the task and their records."""
        return self.source_class(self.config, self.keys, self.unlabelled)

    @classmethod
    def serves(cls, checkpoint: Any) -> bool:
        """Whether a Checkpoint that was fine-tuned elsewhere has the family's head."""
        return checkpoint.head == cls.head

    @classmethod
    def configs_for_head(cls, checkpoint: Any) -> tuple[Any, ...]:
        """Configs that fit the head of a Checkpoint that was fine-tuned elsewhere.

        Of several, predict takes the first whose task :meth:`reads` the input.
        Raises UserError for a head that the task cannot use.
        """
        return (cls.config_class(max_length=checkpoint.config.max_positions),)

    def reads(self, row: Row, *, labelled: bool = False) -> bool:
        """Whether a row has the form of this task's input. labelled: with its label."""
        del row, labelled
        return True

    @property
    def problem_type(self) -> str | None:
        """What transformers calls the loss of a head for sequences; None: it can tell."""
        return None

    @functools.cached_property
    def label_ids(self) -> dict[str, int]:
        """The number of the output of each label."""
        return {label: i for i, label in enumerate(self.labels)}

    @property
    def outputs(self) -> int:
        """Numbers that the head gives for a sequence or a token."""
        if self.head == "span":
            return 2  # start and end
        return len(self.labels) or 1

    def tuned(self, scores: dict[str, float]) -> "Task":
        """The task with the thresholds that ``scores`` of the dev split found.

        Whoever evaluates on dev uses the tuned task from then on: for the scores that
        pick the checkpoint, for predictions and for the saved config.
        """
        del scores
        return self

    def with_pooling(self, pooling: str) -> "Task":
        """The task with the pooling of a checkpoint, if it needs one and names none."""
        del pooling
        return self

    def with_positions(self, positions: int) -> Self:
        """The task with a default length that a position table has room for.

        positions: size of the table. A length other than the default is kept.
        """
        config = self.config
        if (
            config.max_length <= positions
            or config.max_length != config.__class__.max_length
        ):
            return self
        task = copy.copy(self)  # keeps the rows
        task.config = dataclasses.replace(config, **self.default_lengths(positions))
        return task

    def default_lengths(self, positions: int) -> dict[str, int]:
        """The settings of lengths, by name, for a position table of this size."""
        return {"max_length": positions}

    def saved_config(self) -> Any:
        """The config with the labels that the data gave, so that predict needs no data."""
        labels = {"labels": self.labels} if self.labels else {}
        return dataclasses.replace(self.config, **labels)

    def __repr__(self) -> str:
        fields = dataclasses.fields(self.config)
        values = {field.name: getattr(self.config, field.name) for field in fields}
        chosen = (
            f"{field.name}={values[field.name]!r}"
            for field in fields
            if values[field.name] != field.default
        )
        return f"{type(self).__name__}({', '.join(chosen)})"

    def with_rows(
        self,
        *,
        held_out: float = 0.0,
        seed: int = 0,
        columns: Sequence[str] = (),
        **splits: Any,
    ) -> Self:
        """The task on rows of Python, or on other files, instead of its own files.

        splits: of "train", "dev" and "test", each rows, or the Path of a file of the
          family's form. A row is a dictionary with the family's ``keys``, or a tuple in
          their order; see :func:`rows.placed_rows`. A test split without labels is
          predicted. A label of -1 in all its rows means that it has none.
        held_out: the share of the training rows, drawn with ``seed``, that become dev.
        columns: of dictionaries and tables, the columns of the texts, in order, instead of
          the columns in the config.
        """
        names = [own[0] for own in self.keys.values()][:-1]  # without the label
        row_reader.check_columns(columns, names)
        rename = functools.partial(row_reader.renamed, columns=columns, names=names)
        source = given_rows(
            self.source,
            splits,
            self.values,
            held_out,
            seed,
            rename if columns else None,
        )
        task = type(self)(dataclasses.replace(self.config, dir=source.name()))
        task.source = source
        return task

    def read(self, split: str) -> list[Any]:
        """The rows of a split ("train", or an eval or predict split of the source).

        Raises UserError that names file and line of a row which is not as expected.
        """
        labelled = self.source.is_labelled(split)
        keys = dict(list(self.keys.items())[: None if labelled else -1])
        records = tables.one_column_each(self.source.records(split), keys)
        return [
            self.numbered(self.row(where, values, labelled), number)
            for number, (where, values) in enumerate(records, 1)
        ]

    @abc.abstractmethod
    def row(self, where: str, values: Mapping[str, Any], labelled: bool) -> Any:
        """A row, as the family keeps it, from its values, which are checked."""

    def numbered(self, row: Any, number: int) -> Any:
        """The row with an id, if its answer needs one. number: of the row, from 1."""
        del number
        return row

    def values(self, where: str, row: Row, *, labelled: bool) -> dict[str, Any]:
        """The values of a row by name; of a text or a tuple in the order of ``keys``.

        labelled: whether a tuple may have a label.
        """
        names = [own[0] for own in self.keys.values()][: None if labelled else -1]
        return row_reader.by_position(where, row, names, fewer=labelled)

    def given_rows(self, data: Any, name: str = "") -> Iterator[Placed]:
        """The rows of any data to predict; see :func:`rows.placed_rows`."""
        return row_reader.placed_rows(data, name, self.parse_line)

    def parse_line(self, where: str, line: str) -> Row:
        """The row of a line of text to predict."""
        return row_reader.texts_line(where, line)

    @abc.abstractmethod
    def features(self, rows: list[Any], tokenizer: Tokenizer) -> Features:
        """Sequences of at most the configured length; targets where rows have labels."""

    def warnings(self, features: Features, tokenizer: Tokenizer) -> list[str]:
        """What about the training rows, a line each, is likely to hurt."""
        del tokenizer
        share = features.truncated / max(len(set(features.row.tolist())), 1)
        name = self.length_setting
        found = [
            f"{100 * share:.0f}% of the rows are longer than {name}="
            f"{getattr(self.config, name)} and lose text; raise data.{name}"
        ] * (share > 0.1)
        alike = collections.defaultdict(list)
        for label in self.labels:
            alike["".join(label.split()).casefold()].append(label)
        found += [
            f"the labels {', '.join(map(repr, labels))} differ only by blanks or capitals; "
            "write them alike if they are one class"
            for labels in alike.values()
            if len(labels) > 1
        ]
        return found

    def label_counts(self, rows: list[Any]) -> dict[str, int]:
        """How often rows have each label, in the order of the outputs."""
        counts = collections.Counter(
            label for row in rows for label in self.row_labels(row)
        )
        return {label: counts[label] for label in self.labels} if counts else {}

    def row_labels(self, row: Any) -> Sequence[str]:
        """The labels of a row to learn from, as in ``labels``, if there are any."""
        del row
        return ()

    @abc.abstractmethod
    def predictions(
        self, rows: list[Any], features: Features, outputs: Outputs
    ) -> Predictions:
        """One JSON-able answer a row, with probabilities.

        outputs: in the order of ``features``: (C,) for head "sequence", () for "choice",
        (L_i, C) for "token", (L_i, 2) for "span".
        """

    @abc.abstractmethod
    def cells(self, row: Any, prediction: dict[str, Any]) -> list[dict[str, str]]:
        """The lines of a table that show a prediction, each a text for every column."""

    @abc.abstractmethod
    def score(self, rows: list[Any], predictions: Predictions) -> dict[str, float]:
        """Metrics in percent, as the field reports them; main_metric is among them."""

    @abc.abstractmethod
    def files(
        self, rows: list[Any], predictions: Predictions, split: str
    ) -> dict[str, str]:
        """A split's predictions in the task's official form: texts of files by name."""

    def classes(self, row: Any, prediction: Answer) -> Iterator[tuple[str, str]]:
        """The gold and the predicted class of what ``counted`` counts, if there are any."""
        del row, prediction
        yield from ()

    def errors(self, row: Any, prediction: Answer) -> Iterator[Error]:
        """What is wrong in the answer to a row with a label."""
        del row, prediction
        yield from ()

    def write(
        self, rows: list[Any], predictions: Predictions, split: str, directory: Path
    ) -> list[Path]:
        """Writes the :meth:`files` of a split; their paths."""
        files = self.files(rows, predictions, split)
        for name, text in files.items():
            write_text(directory / name, text)
        return [directory / name for name in files]


def with_id(row: Any, answer: dict[str, Any]) -> dict[str, Any]:
    """An answer, or its cells in a table, with the id of its row if that has one."""
    return answer if row.id is None else {"id": row.id} | answer


def id_text(row: Any, number: int) -> str:
    """The id of a row as text, or its number if it has none."""
    return str(number) if row.id in (None, "") else str(row.id)
