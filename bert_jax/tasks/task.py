"""What a fine-tuning task is, whatever its family, and its sequences."""

import abc
import dataclasses
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from bert_jax.data.batching import IGNORED as IGNORED  # a target, beside Features
from bert_jax.data.batching import Features
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.files import write_text

Head = Literal["sequence", "token", "choice", "span"]
Outputs = Sequence[np.ndarray]  # float32 logits of each sequence
Predictions = list[dict[str, Any]]  # a JSON-able answer for each row


class Task(abc.ABC):
    """Rows from files, rows to sequences, outputs to predictions, predictions to scores.

    family: the name of the kind of task, in configs and in saved models.
    config_class: the frozen dataclass of its settings, dir and max_length among them; a
      task is built from one.
    head: which head the model needs.
    labels: the class names in the order of the outputs; empty for regression, choices
      and spans.
    main_metric: the score (higher is better) that picks the best checkpoint.
    eval_splits: the labelled splits that are scored; the first picks the checkpoint.
    predict_splits: splits without labels, of which predictions are written in the form
      that the task's server wants.
    parsed_by: what of an input to predict is parsed together: each "line", a "document"
      up to a blank line, or the whole "file".
    column_widths: the most characters that a table of predictions shows in a column;
      other columns are as wide as needed.
    """

    family: ClassVar[str]
    config_class: ClassVar[type]
    column_widths: ClassVar[dict[str, int]] = {}
    parsed_by: Literal["line", "document", "file"] = "line"
    config: Any
    head: Head
    labels: tuple[str, ...] = ()
    main_metric: str
    eval_splits: tuple[str, ...] = ("dev",)
    predict_splits: tuple[str, ...] = ()

    def __init__(self, config: Any):
        self.config = config

    @classmethod
    def configs_for_head(cls, checkpoint: Any) -> tuple[Any, ...]:
        """Configs that fit the head of a Checkpoint that was fine-tuned elsewhere.

        Of several, predict takes the first whose task :meth:`reads` the input.
        Raises UserError for a head that the task cannot use.
        """
        return (cls.config_class(max_length=checkpoint.config.max_positions),)

    def reads(self, line: str) -> bool:
        """Whether a line to predict has the form of this task's input."""
        del line
        return True

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

    @abc.abstractmethod
    def read(self, split: str) -> list[Any]:
        """The rows of a split ("train" or one of the two lists of splits).

        Raises UserError that names file and line of a row which is not as expected.
        """

    @abc.abstractmethod
    def parse(self, lines: Iterable[str], name: str, first: int = 1) -> list[Any]:
        """Rows without labels, for predict.

        name: of the input, for errors. first: the number of the first line in it.
        """

    @abc.abstractmethod
    def features(self, rows: list[Any], tokenizer: Tokenizer) -> Features:
        """Sequences of at most the configured length; targets where rows have labels."""

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
