"""What a fine-tuning task is, whatever its family, and its sequences."""

import abc
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from bert_jax.data.batching import IGNORED as IGNORED  # a target, beside Features
from bert_jax.data.batching import Features
from bert_jax.data.tokenizer import Tokenizer

Head = Literal["sequence", "token", "choice", "span"]
Predictions = Sequence[dict[str, Any]]  # a JSON-able answer for each row


class Task(abc.ABC):
    """Rows from files, rows to sequences, outputs to predictions, predictions to scores.

    family: the name of the kind of task, in configs and in saved models.
    config_class: the frozen dataclass of its settings; a task is built from one.
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
    labels: tuple[str, ...]
    main_metric: str
    eval_splits: tuple[str, ...] = ("dev",)
    predict_splits: tuple[str, ...] = ()

    @classmethod
    def configs_for_head(
        cls, labels: tuple[str, ...], problem_type: str | None, max_length: int
    ) -> tuple[Any, ...]:
        """Configs that fit the head of a checkpoint that was fine-tuned elsewhere.

        Of several, predict takes the first whose task :meth:`reads` the input.
        labels, problem_type: as Checkpoint has them. max_length: the model's positions.
        Raises UserError for a head that the task cannot use.
        """
        del labels, problem_type
        return (cls.config_class(max_length=max_length),)

    def reads(self, line: str) -> bool:
        """Whether a line to predict has the form of this task's input."""
        del line
        return True

    @property
    def outputs(self) -> int:
        """Numbers that the head gives for a sequence or a token."""
        return {"sequence": max(len(self.labels), 1), "token": len(self.labels)}.get(
            self.head, {"choice": 1, "span": 2}.get(self.head, 0)
        )

    def tuned(self, scores: dict[str, float]) -> "Task":
        """The task with the thresholds that ``scores`` of the dev split found.

        Whoever evaluates on dev uses the tuned task from then on: for the scores that
        pick the checkpoint, for predictions and for the saved config.
        """
        del scores
        return self

    def saved_config(self) -> Any:
        """The config with the labels that the data gave, so that predict needs no data."""
        if not self.labels:
            return self.config
        return dataclasses.replace(self.config, labels=tuple(self.labels))

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
    def features(
        self, rows: Sequence[Any], tokenizer: Tokenizer, *, training: bool
    ) -> Features:
        """Sequences of at most the configured length; targets where rows have labels."""

    @abc.abstractmethod
    def predictions(
        self, rows: Sequence[Any], features: Features, outputs: Sequence[np.ndarray]
    ) -> list[dict[str, Any]]:
        """One JSON-able answer a row, with probabilities.

        outputs: float32 logits of each sequence, in the order of ``features``: (C,) for
        head "sequence", () for "choice", (L_i, C) for "token", (L_i, 2) for "span".
        """

    @abc.abstractmethod
    def cells(self, row: Any, prediction: dict[str, Any]) -> list[dict[str, str]]:
        """The lines of a table that show a prediction, each a text for every column."""

    @abc.abstractmethod
    def score(self, rows: Sequence[Any], predictions: Predictions) -> dict[str, float]:
        """Metrics in percent, as the field reports them; main_metric is among them."""

    @abc.abstractmethod
    def write(
        self, rows: Sequence[Any], predictions: Predictions, split: str, directory: Path
    ) -> list[Path]:
        """Writes a split's predictions in the task's official form; the files made."""
