"""What a fine-tuning task is, whatever its family, and its sequences."""

import abc
import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np

from bert_jax.data.batching import IGNORED as IGNORED  # a target, beside Features
from bert_jax.data.batching import Features
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.files import write_text
from bert_jax.tasks import rows as row_reader
from bert_jax.tasks import tables
from bert_jax.tasks.rows import Placed, Row
from bert_jax.tasks.tables import Record

ROWS = "rows:"  # the dir of a task with rows of its own starts with it

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
    splits: all that there may be, eval_splits and predict_splits among them.
    eval_splits: the labelled splits that are scored; the first picks the checkpoint.
    predict_splits: splits without labels, of which predictions are written in the form
      that the task's server wants.
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
    splits: tuple[str, ...] = tables.SPLITS

    def __init__(self, config: Any):
        self.config = config
        self._given: dict[str, list[Record]] = {}

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

    def reads(self, row: Row) -> bool:
        """Whether a row to predict has the form of this task's input."""
        del row
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

    def saved_config(self) -> Any:
        """The config with the labels that the data gave, so that predict needs no data."""
        labels = {"labels": self.labels} if self.labels else {}
        return dataclasses.replace(self.config, **labels)

    @functools.cached_property
    def eval_splits(self) -> tuple[str, ...]:
        """Dev, and test where it is there with labels."""
        scored = self.has("test") and self.has_labels("test")
        return ("dev", "test") if scored else ("dev",)

    @functools.cached_property
    def predict_splits(self) -> tuple[str, ...]:
        """The others that are there."""
        labelled = ("train", *self.eval_splits)
        return tuple(s for s in self.splits if s not in labelled and self.has(s))

    def file_names(self, split: str) -> Sequence[str]:
        """What the file of a split may be called, below the config's dir."""
        given = getattr(self.config, split, "")
        return [given] if given else self.own_names(split)

    def own_names(self, split: str) -> Sequence[str]:
        """The file_names of a split that the config does not name."""
        return [split + end for end in tables.ENDINGS]

    def has(self, split: str) -> bool:
        """Whether a split is there, or its file is named in the config."""
        if getattr(self.config, split, ""):
            return True
        return tables.find_file(self.config.dir, self.file_names(split)) is not None

    def path(self, split: str) -> Path:
        """The file of a split. Raises UserError where there is none."""
        setting = split if hasattr(self.config, split) else ""
        names = self.file_names(split)
        return tables.existing_file(self.config.dir, names, setting)

    def check_files(self) -> None:
        """Raises UserError where the file to learn from, or that of dev, is not there."""
        for split in ("train", self.eval_splits[0]):
            self.path(split)

    def has_labels(self, split: str, path: Path | None = None) -> bool:
        """Whether the file of a split, or another one, has the labels of its rows."""
        *_, names = self.keys.values()
        columns = tables.read_columns(path or self.path(split))
        return not set(names).isdisjoint(columns)

    def is_labelled(self, split: str) -> bool:
        """Whether a split is learned from or scored."""
        return split == "train" or split in self.eval_splits

    def __repr__(self) -> str:
        fields = dataclasses.fields(self.config)
        values = {field.name: getattr(self.config, field.name) for field in fields}
        chosen = (
            f"{field.name}={values[field.name]!r}"
            for field in fields
            if values[field.name] != field.default
        )
        return f"{type(self).__name__}({', '.join(chosen)})"

    def with_rows(self, *, held_out: float = 0.0, seed: int = 0, **splits: Any) -> Self:
        """The task on rows of Python, or on other files, instead of its own files.

        splits: of "train", "dev" and "test", each rows, or the Path of a file of the
          family's form. A row is a dictionary with the family's ``keys``, or a tuple in
          their order; see :func:`rows.placed_rows`. A test split without labels is
          predicted. A label of -1 in all its rows means that it has none.
        held_out: the share of the training rows, drawn with ``seed``, that become dev.
        """
        given, labelled = {}, {}
        for split, data in splits.items():
            if isinstance(data, str):
                raise UserError(
                    f"{split} is the text {data!r}; expected rows, or Path({data!r}) for a "
                    "file"
                )
            if isinstance(data, Path):
                if not data.is_file():
                    raise UserError(
                        f"{data} does not exist; expected a file of {split}"
                    )
                given[split] = list(self.records(split, data))
                labelled[split] = self.has_labels(split, data)
            else:
                given[split] = [
                    (where, self.values(where, row, labelled=True))
                    for where, row in row_reader.placed_rows(data, split)
                ]
                labelled[split] = self._any_label(given[split])
        if held_out:
            rows = given["train"]
            count = max(round(held_out * len(rows)), 1)
            if count >= len(rows):
                raise UserError(
                    f"train has {len(rows)} rows, of which {count} are held out; expected "
                    "more rows, or dev="
                )
            drawn = {
                *np.random.default_rng(seed).permutation(len(rows))[:count].tolist()
            }
            given["train"] = [row for i, row in enumerate(rows) if i not in drawn]
            given["dev"] = [row for i, row in enumerate(rows) if i in drawn]
        content = json.dumps(given, sort_keys=True, default=str).encode()
        # A run on other rows is another run.
        name = f"{ROWS}{hashlib.sha256(content).hexdigest()[:12]}"
        task = type(self)(dataclasses.replace(self.config, dir=name))
        task._given = given
        scored = [s for s in given if s != "train" and (s == "dev" or labelled[s])]
        task.eval_splits = tuple(scored)
        task.predict_splits = tuple(given.keys() - {"train", *scored})
        return task

    def read(self, split: str) -> list[Any]:
        """The rows of a split ("train" or one of the two lists of splits).

        Raises UserError that names file and line of a row which is not as expected.
        """
        labelled = self.is_labelled(split)
        if split in self._given:
            records: Iterable[Record] = self._given[split]
        else:
            records = self.records(split)
        return [self.row(where, values, labelled) for where, values in records]

    def records(self, split: str, path: Path | None = None) -> Iterator[Record]:
        """The place of each row of a split and its values, by one of their names.

        path: another file than the split's own. By default a table.
        """
        return tables.read_rows(path or self.path(split))

    @abc.abstractmethod
    def row(self, where: str, values: Mapping[str, Any], labelled: bool) -> Any:
        """A row, as the family keeps it, from its values, which are checked."""

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
        return row_reader.row_line(where, line)

    def _any_label(self, records: Sequence[Record]) -> bool:
        """Whether any row has a label. Hugging Face writes -1 for none."""
        *_, names = self.keys.values()
        labels = [values.get(name) for _, values in records for name in names]
        return any(label is not None and label != -1 for label in labels)

    @abc.abstractmethod
    def features(self, rows: list[Any], tokenizer: Tokenizer) -> Features:
        """Sequences of at most the configured length; targets where rows have labels."""

    def warnings(self, features: Features, tokenizer: Tokenizer) -> list[str]:
        """What about the training rows, a line each, is likely to hurt."""
        del tokenizer
        share = features.truncated / max(len(set(features.row.tolist())), 1)
        name = self.length_setting
        return [
            f"{100 * share:.0f}% of the rows are longer than {name}="
            f"{getattr(self.config, name)} and lose text; raise --config.data.{name}"
        ] * (share > 0.1)

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
