"""Classification and regression of texts and pairs: GLUE, SICK, and any table of texts.

A text is [CLS] A [SEP], a pair [CLS] A [SEP] B [SEP] (BERT's paper, section 4.1). A row has
one class, a number, or (multi_label) any number of classes. For multi_label the sigmoid of
each logit decides its label.
"""

import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from bert_jax.data import sequences
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError, counted, listed
from bert_jax.settings import Label, setting
from bert_jax.tasks import rows as read
from bert_jax.tasks import task as base
from bert_jax.tasks.layouts import CORRELATIONS, LAYOUTS, TABLE, Layout, scores
from bert_jax.tasks.source import SPLITS, DataConfig, Source, has_number, label_of
from bert_jax.tasks.task import Answer, Answers, Features, Outcome, Outputs, with_id

_PAIR = {"text_a": ("text_a", "text"), "text_b": ("text_b",)}
_IDS = ("index", "pair_ID")  # columns of ids in GLUE and SICK
# The problem_type in transformers' config.json for any number of labels.
SEVERAL_LABELS = "multi_label_classification"


@dataclasses.dataclass(frozen=True)
class TableConfig(DataConfig):
    """Files and columns of a table of texts."""

    task: str = setting(TABLE, "table: CSV, TSV, JSONL, JSON, Parquet", one_of=(TABLE,))
    text_a: str = setting("text", "table: column of the text")
    text_b: str = setting("", "table: column of the second text; empty: no pairs")
    label: str = setting("label", "table: column of the label")
    id: str = setting("id", "table: column of the id, which may be missing")
    max_length: int = setting(128, "maximum number of tokens of a sequence", least=5)

    @property
    def layout(self) -> Layout:
        """Files, columns, labels and metrics of the data set; empty for a table."""
        return LAYOUTS[self.task]

    @property
    def pair(self) -> bool:
        """Whether rows have two texts."""
        return bool(self.text_b) or "text_b" in self.layout.columns


@dataclasses.dataclass(frozen=True)
class TextConfig(TableConfig):
    """Texts with labels, and how long texts are cut."""

    labels: tuple[Label, ...] = setting(
        (), "table: labels in the order of the outputs; empty: labels of train, sorted"
    )
    truncation: str = setting(
        "head",
        "tokens kept of a long text: head, tail, head_tail (both), or windows: all tokens, "
        "in overlapping sequences. Each has the label, and their logits are averaged",
        one_of=("head", "tail", "head_tail", "windows"),
    )
    head_tokens: int = setting(128, "head_tail: tokens of the head", least=1)
    stride: int = setting(64, "windows: tokens between window starts", least=1)

    def __post_init__(self):
        super().__post_init__()
        room = self.max_length - 2 - self.pair
        if self.truncation == "windows" and self.pair:
            raise UserError("truncation=windows is for single texts, not for pairs")
        if self.truncation == "head_tail" and self.head_tokens >= room:
            actual = f"head_tokens={self.head_tokens}, expected 1 to {room - 1}"
            raise UserError(f"{actual} at max_length={self.max_length}")


@dataclasses.dataclass(frozen=True)
class ClassificationConfig(TextConfig):
    """A task of one class or one number for each row."""

    task: str = setting(
        "",
        "a task of GLUE, sick_entailment or sick_relatedness; or table: CSV, TSV, JSONL",
        one_of=LAYOUTS,
    )
    regression: bool = setting(False, "table: the labels are numbers to predict")


@dataclasses.dataclass(frozen=True)
class MultiLabelConfig(TextConfig):
    """A table with any number of labels for each row, and how a cell contains them."""

    separator: str = setting(",", "text between labels; a cell may also be a list")
    threshold: float = setting(0.5, "minimum probability of a label", above=0, below=1)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One text or two.

    label: a name, a number or a tuple of names; None if unknown. negatives: texts with
    another meaning than text_a, for sentence vectors.
    """

    where: str
    text_a: str
    text_b: str | None = None
    label: Any = None
    id: Any = None
    negatives: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """The text, or both texts."""
        return (self.text_a,) if self.text_b is None else (self.text_a, self.text_b)

    @property
    def text(self) -> str:
        """Both texts, for reports."""
        return " \u2016 ".join(self.texts)


Rows = list[Row]


class TextSource(Source):
    """The files of a data set of labelled texts."""

    def __init__(self, config: TableConfig, columns: Any, rows: Any = None):
        super().__init__(config, columns, rows)
        layout = config.layout
        self._files = layout.files if rows is None else {}
        self.splits = tuple(self._files) or SPLITS
        self.labels = self.labels or layout.labels
        if self._files:
            unscored = ("train", *layout.server)
            self.eval_splits = tuple(x for x in self.splits if x not in unscored)

    def file_names(self, split: str) -> Sequence[str]:
        return self._files.get(split) or super().file_names(split)

    def read_file(self, path: Path, split: str) -> Iterator[read.Placed]:
        layout = self.config.layout
        if not layout.files:
            return super().read_file(path, split)
        if split == "test":  # published files of test have a header and complete rows
            return read.read_rows(path)
        return read.read_rows(path, header=layout.header, skip_short=layout.skip_short)


class Classification(base.Task):
    """A class or a number for a text or a pair of texts.

    Metrics: accuracy; f1 and accuracy for MRPC and QQP; matthews for CoLA; pearson,
    spearman and their mean for regression; for tables accuracy and macro F1.
    """

    family = "classification"
    config_class = ClassificationConfig
    source_class = TextSource
    head = "sequence"
    label_names: tuple[str, ...] = ("label",)
    table_metrics: tuple[str, ...] = ("accuracy", "f1_macro")

    def __init__(self, config: TableConfig):
        super().__init__(config)
        layout = config.layout
        numbers = not {*layout.metrics}.isdisjoint(CORRELATIONS)
        self.regression = numbers or getattr(config, "regression", False)
        default = CORRELATIONS if self.regression else self.table_metrics
        self.metrics = layout.metrics or default
        usual = _PAIR if config.pair else {"text_a": ("text",)}
        self.columns = {}
        for name, others in (usual | {"label": self.label_names}).items():
            chosen, names = getattr(config, name), layout.columns.get(name, ())
            is_default = chosen == getattr(type(config), name)
            names = (*names, chosen) if is_default else (chosen, *names)
            names = dict.fromkeys((*names, *others))
            self.columns[name] = tuple(filter(None, names))

    @classmethod
    def for_head(cls, checkpoint: Any) -> "Classification | None":
        """The task for texts or pairs. A head without labels means regression."""
        labels, problem = checkpoint.labels, checkpoint.problem_type
        several = problem == SEVERAL_LABELS
        if checkpoint.head != cls.head or several != (cls is MultiLabel):
            return None
        if problem == "regression" and labels:
            actual = f"the head gives {len(labels)} numbers (regression)"
            raise UserError(f"{actual}; expected one number for a text")
        settings = {"task": TABLE, "max_length": checkpoint.config.max_positions}
        settings |= {"labels": labels} if labels else {"regression": True}
        task = cls(cls.config_class(**settings))
        task.columns, task.optional = _PAIR | {"label": cls.label_names}, ("text_b",)
        return task

    @property
    def main_metric(self) -> str:
        return self.metrics[0]

    @property
    def problem_type(self) -> str | None:
        return "regression" if self.regression else None

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        if self.regression:
            return ()
        if self.source.labels:
            return self.source.labels
        names, rows = [], [*self.source.records("train")]
        for where, row in rows:
            values = self.values(where, row, labelled=True)
            value = read.value_of(where, values, self.columns["label"])
            names += [_class_name(where, name) for name in self._classes(where, value)]
        if not rows:
            raise UserError("train has no rows; expected at least two")
        labels = sorted({*names})
        # pandas writes whole numbers with a missing value among them as 0.0 and 1.0.
        floats = all(re.fullmatch(r"-?\d+\.0", label) for label in labels)
        if floats or not 1 < len(labels) <= max(20, 0.9 * len(names)):
            different = counted(len(labels), "different label")
            shown = listed([label[:60] for label in labels])
            raise UserError(
                f"train: {counted(len(rows), 'row')} with {different} ({shown}); are text "
                "and label swapped? regression=True learns numbers, labels= names classes"
            )
        return tuple(labels)

    def row(self, where: str, values: Mapping[str, Any], labelled: bool) -> Row:
        names, label = [*self.columns][:-1], None
        names = [name for name in names if name in values or name not in self.optional]
        texts = [read.text_of(where, values, self.columns[name]) for name in names]
        if labelled:
            read.check_texts(where, texts, gaps=self.config.task != TABLE)
            value = read.value_of(where, values, self.columns["label"])
            label = self._label(where, value)
        names = (self.config.id, "id", "idx", *_IDS * bool(self.config.layout.files))
        ids = (values[name] for name in names if values.get(name) is not None)
        return Row(where, *texts, label=label, id=next(ids, None))

    def golds(self, row: Row) -> Sequence[str]:
        return row.label if isinstance(row.label, tuple) else [row.label]

    def class_of(self, where: str, values: Mapping[str, Any]) -> str | None:
        if self.regression:
            return None
        return str(read.value_of(where, values, self.columns["label"]))

    def _classes(self, where: str, value: Any) -> Sequence[Any]:
        """The names or numbers of the classes in the label of a row."""
        return [value]

    def _label(self, where: str, value: Any) -> Any:
        """The label of a row: a class of the task, or a number."""
        if not self.regression:
            return self._class(where, value)
        with contextlib.suppress(TypeError, ValueError):
            if math.isfinite(float(value)):
                return float(value)
        raise UserError(f"{where}: label {value!r}; expected a number for regression")

    def _class(self, where: str, value: Any) -> str:
        """The class with this name, or with this number from 0."""
        name = _class_name(where, label_of(value, self.labels))
        if name not in self.label_ids:
            known = listed(self.labels, 10)
            actual = f"{where}: label {name!r} is not in the label set {known}"
            if re.fullmatch(r"-?\d+\.\d+", name):
                actual += "; regression=True learns numbers"
            raise UserError(actual)
        return name

    def encode(self, rows: Rows, tokenizer: Tokenizer) -> Features:
        config, joined, numbers, truncated = self.config, [], [], 0
        encoded = iter(tokenizer.encode_batch([x for row in rows for x in row.texts]))
        for number, row in enumerate(rows):
            texts = [next(encoded) for _ in row.texts]
            lengths = [len(text) for text in texts]
            room = config.max_length - 1 - len(texts)
            if config.truncation == "windows":
                spans = sequences.token_windows(*lengths, room, config.stride)
                cut = [[texts[0][start:stop]] for start, stop in spans]
            else:
                how = config.truncation, config.head_tokens
                kept = sequences.pair_lengths(*(*lengths, 0)[:2], room)
                parts = zip(texts, kept, strict=False)
                cut = [[sequences.cut(*part, *how) for part in parts]]
                truncated += sum(lengths) > room
            joined += [sequences.join(tokenizer, *parts) for parts in cut]
            numbers += [number] * len(cut)
        targets = {}
        if rows and all(row.label is not None for row in rows):
            labels = self._targets([row.label for row in rows])
            labels = labels.astype(np.float32) if self.regression else labels
            targets = {"label": labels[numbers]}
        return base.joined_features(joined, numbers, targets, truncated=truncated)

    def _targets(self, labels: list[Any]) -> np.ndarray:
        """The labels of rows as numbers: (rows, ...)."""
        if self.regression:
            return np.array(labels, np.float64)
        return np.array([self.label_ids[label] for label in labels], np.int32)

    def decode(self, rows: Rows, features: Features, outputs: Outputs) -> Answers:
        logits = np.zeros((len(rows), self.outputs))
        values = np.asarray(outputs, np.float64).reshape(-1, self.outputs)
        np.add.at(logits, features.row, values)
        logits /= np.bincount(features.row, minlength=len(rows))[:, None]
        answers = map(self._answer, logits)
        return [with_id(*pair) for pair in zip(rows, answers, strict=True)]

    def _answer(self, logits: np.ndarray) -> Answer:
        """The answer for the logits of a row, or for its number, float64 (C,)."""
        if self.regression:
            return {"value": float(logits[0])}
        p = scipy.special.softmax(logits)
        return {
            "label": self.labels[p.argmax()],
            "probability": float(p.max()),
            "probabilities": dict(zip(self.labels, p.tolist(), strict=True)),
        }

    def _shown(self, label: Any) -> str:
        """A label, or an answer, as text."""
        return f"{label:.3f}" if self.regression else label

    def score(self, rows: Rows, answers: Answers) -> base.Scores:
        truth = self._targets([row.label for row in rows])
        predicted = self._targets([*map(_label_in, answers)])
        return scores(self.metrics, truth, predicted)

    def outcomes(self, row: Row, answer: Answer) -> Iterator[Outcome]:
        gold, predicted, p = row.label, _label_in(answer), answer.get("probability")
        classes = None if self.regression else (gold, predicted)
        right = gold == predicted and not self.regression
        yield Outcome(row.text, gold, predicted, p, right, classes=classes)

    def export(self, rows: Rows, answers: Answers, split: str) -> dict[str, str]:
        """The file that GLUE's server expects, or SPLIT_predictions.tsv.

        STS-B's server expects numbers from 0 to 5.
        """
        server = self.config.layout.server.get(split)
        lines = [["index", "prediction"]]
        for number, (row, answer) in enumerate(zip(rows, answers, strict=True)):
            label = _label_in(answer)
            label = np.clip(label, 0, 5) if server and self.regression else label
            index = number if row.id in (None, "") else row.id
            lines.append([str(index), self._shown(label)])
        text = "".join("\t".join(map(read.escaped, line)) + "\n" for line in lines)
        return {server or f"{split}_predictions.tsv": text}


class MultiLabel(Classification):
    """Any number of labels for a text or a pair of texts; a row's label is a tuple.

    Metrics: F1 over all decisions (f1_micro), the mean of the F1 of each label (f1_macro),
    and the share of rows with every label right (exact_match).
    """

    family = "multi_label"
    config_class = MultiLabelConfig
    problem_type = SEVERAL_LABELS
    class_of = base.Task.class_of
    label_names = ("label", "labels")
    list_columns = ("label",)
    table_metrics = ("f1_micro", "f1_macro", "exact_match")

    def _label(self, where: str, value: Any) -> tuple[str, ...]:
        return tuple(self._class(where, x) for x in self._classes(where, value))

    def _classes(self, where: str, value: Any) -> Sequence[Any]:
        """The labels in a list, or in a text with separators.

        A list of numbers or booleans has a 0 or 1 for each name in labels=. Raises
        UserError for other numbers, and if a name is a number itself.
        """
        if isinstance(value, str):
            return [x.strip() for x in value.split(self.config.separator) if x.strip()]
        values = value if isinstance(value, list | tuple) else [value]
        if not any(isinstance(x, int | float) for x in values):
            return values
        labels, binary = self.config.labels, all(x in (0, 1) for x in values)
        if not binary or len(values) != len(labels) or has_number(labels):
            expected = "expected names, or a 0 or 1 for each name in labels="
            raise UserError(f"{where}: the labels are {[*values]}; {expected}")
        return [name for name, x in zip(labels, values, strict=True) if x]

    def _targets(self, labels: list[Any]) -> np.ndarray:
        """1 for each label that a row has: float32 (rows, labels)."""
        targets = np.zeros((len(labels), len(self.labels)), np.float32)
        for row, names in zip(targets, labels, strict=True):
            row[[self.label_ids[name] for name in names]] = 1
        return targets

    def _answer(self, logits: np.ndarray) -> Answer:
        p = scipy.special.expit(logits).tolist()
        shares = dict(zip(self.labels, p, strict=True))
        labels = [name for name, x in shares.items() if x >= self.config.threshold]
        return {"labels": labels, "probabilities": shares}

    def _shown(self, label: Sequence[str]) -> str:
        return self.config.separator.join(label)

    def outcomes(self, row: Row, answer: Answer) -> Iterator[Outcome]:
        """The labels of a row. The confidence is the most wrong label's."""
        gold, predicted, p = row.label, answer["labels"], answer["probabilities"]
        wrong = {*gold} ^ {*predicted}
        sure = [p[name] if name in predicted else 1 - p[name] for name in wrong]
        shown = self._shown(gold), self._shown(predicted)
        yield Outcome(row.text, *shown, max(sure, default=1.0), right=not wrong)


def _label_in(answer: Answer) -> Any:
    """The label, the labels or the number in an answer."""
    return next(answer[n] for n in ("label", "labels", "value") if n in answer)


def _class_name(where: str, value: Any) -> str:
    """The name of a class: a text, or a whole number."""
    if isinstance(value, str) and not value.strip():
        raise UserError(f"{where}: the label is empty; fill it in or drop the row")
    if not isinstance(value, str | int):
        needed = (
            "expected a text or a whole number (pandas writes whole numbers as floats "
        )
        needed += "if a label is missing); regression=True learns numbers"
        raise UserError(f"{where}: the label is {value!r}; {needed}")
    return str(value)
