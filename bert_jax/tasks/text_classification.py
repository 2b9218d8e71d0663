"""Classification and regression of texts and pairs: GLUE, SICK, and any table of texts.

A text is [CLS] A [SEP], a pair [CLS] A [SEP] B [SEP] (BERT's paper, section 4.1). A row has
one class, a number, or (multi_label) any number of classes. For multi_label each label is
decided on its own, by the sigmoid of its logit.
"""

import contextlib
import dataclasses
import functools
import itertools
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
from bert_jax.tasks.cells import looks_like_list
from bert_jax.tasks.data_sets import (
    CORRELATIONS,
    DATA_SETS,
    NUMBERS,
    TABLE,
    DataSet,
)
from bert_jax.tasks.labels import (
    class_name,
    has_number,
    in_order,
    known_class,
    numbers_of,
    warn_of_separators,
    warn_of_spellings,
    with_labels_of_dev,
    without_decimals,
)
from bert_jax.tasks.rows import (
    Placed,
    check_texts,
    escaped,
    name_in,
    read_rows,
    truth_of,
    value_of,
)
from bert_jax.tasks.scores import scores
from bert_jax.tasks.splits import DataConfig, Form, named_columns
from bert_jax.tasks.task import (
    Answer,
    Answers,
    Features,
    Outcome,
    Outputs,
    Scores,
    Task,
    answered,
    joined_features,
    records_of,
    with_id,
)

_PAIR = {"text_a": ("text_a", "text"), "text_b": ("text_b",)}
_IDS = ("index", "pair_ID")  # columns of ids in GLUE and SICK
_LARGEST = float(np.finfo(np.float32).max)
# Items without quotation marks, which may lack the closing bracket.
_ITEMS = re.compile(r"\s*[\[({][^\])}]*(?:,|\.\.\.)")
# The problem_type in transformers' config.json for numbers, and for any number of labels.
REGRESSION = "regression"
SEVERAL_LABELS = "multi_label_classification"


@dataclasses.dataclass(frozen=True)
class TableConfig(DataConfig):
    """Files and columns of a table of texts."""

    task: str = setting(TABLE, "table: CSV, TSV, JSONL, JSON, Parquet", one_of=(TABLE,))
    text_a: str = setting(
        "", "column of the text; empty: its usual name, such as text or text_a"
    )
    text_b: str = setting(
        "",
        "column of the second text; empty: its usual name in a data set of pairs, and no "
        "pairs in a table",
    )
    label: str = setting("", "column of the label; empty: its usual name, label")
    id: str = setting("id", "table: column of the id, which may be missing")
    max_length: int = setting(128, "maximum number of tokens of a sequence", least=5)

    @property
    def data_set(self) -> DataSet:
        """Files, columns, labels and metrics of the data set; empty for a table."""
        return DATA_SETS["classification"][self.task]

    @property
    def pair(self) -> bool:
        """Whether rows have two texts."""
        return bool(self.text_b) or "text_b" in self.data_set.columns


@dataclasses.dataclass(frozen=True)
class TextConfig(TableConfig):
    """Texts with labels, and the truncation of long texts."""

    labels: tuple[Label, ...] = setting(
        (),
        "table: labels in the order of the outputs; empty: the classes of a data set, or "
        "the labels of train and dev, whole numbers in their order and names sorted",
    )
    truncation: str = setting(
        "head",
        "tokens kept of a long text: head, tail, head_tail (both), or windows: all tokens, "
        "in overlapping sequences with the same label, whose logits are averaged",
        one_of=("head", "tail", "head_tail", "windows"),
    )
    head_tokens: int = setting(
        128,
        "head_tail: tokens of the head, which the texts of a pair share. If 128 leaves no "
        "tail, the head is a quarter",
        least=1,
    )
    stride: int = setting(
        64, "windows: tokens between the starts of two windows", least=1
    )

    def __post_init__(self):
        super().__post_init__()
        room = self.max_length - 2 - self.pair
        if self.truncation == "windows" and self.pair:
            raise UserError("truncation=windows is for single texts, not for pairs")
        if self.truncation == "head_tail" and self.head_of(room) >= room:
            actual = f"head_tokens={self.head_tokens}, expected 1 to {room - 1}"
            raise UserError(f"{actual} at max_length={self.max_length}")

    def head_of(self, room: int) -> int:
        """The tokens of the head for texts that are cut to ``room`` tokens."""
        if self.head_tokens == type(self).head_tokens and self.head_tokens >= room:
            return max(room // 4, 1)
        return self.head_tokens


@dataclasses.dataclass(frozen=True)
class ClassificationConfig(TextConfig):
    """A task of one class or one number for each row."""

    task: str = setting(
        "",
        "a task of GLUE, sick_entailment or sick_relatedness; or table: CSV, TSV, JSONL",
        one_of=DATA_SETS["classification"],
    )
    regression: bool = setting(False, "table: the labels are numbers to predict")


@dataclasses.dataclass(frozen=True)
class MultiLabelConfig(TextConfig):
    """A table with any number of labels for each row, and the form of the labels."""

    label: str | tuple[str, ...] = setting(
        "",
        "column of the labels; empty: label or labels. Or a name for each label, such as "
        "food,service: columns with a 0 or 1",
    )
    separator: str = setting(",", "text between labels; a cell may also be a list")
    threshold: float = setting(0.5, "minimum probability of a label", above=0, below=1)

    def __post_init__(self):
        super().__post_init__()
        if not self.separator:
            raise UserError("data.separator is empty; expected a text such as a comma")


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
        if self.text_b is None:
            return (self.text_a,)
        return (self.text_a, self.text_b)

    @property
    def text(self) -> str:
        """Both texts, for reports."""
        return " \u2016 ".join(self.texts)


Rows = list[Row]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextForm(Form):
    """Tables of texts or pairs, or the files of a data set."""

    def read_file(self, path: Path, split: str) -> Iterator[Placed]:
        """The rows of a file. Published files of test have a header."""
        data_set = self.data_set
        if not data_set.files:
            return super().read_file(path, split)
        if split == "test":
            return read_rows(path)
        header, skip_short = data_set.header, data_set.skip_short
        return read_rows(path, header=header, skip_short=skip_short)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelsForm(TextForm):
    """Texts with lists of labels. one_hot: names of columns with a 0 or 1 for a label."""

    lists: tuple[str, ...] = ("label",)
    one_hot: tuple[str, ...] = ()

    def is_other(self, name: str) -> bool:
        return name in self.one_hot or super().is_other(name)

    def is_labelled(self, values: Mapping[str, Any]) -> bool:
        return bool(name_in(values, self.one_hot)) or super().is_labelled(values)

    def is_list(self, name: str, cell: str, values: Mapping[str, Any]) -> bool:
        """Whether labels must be a list.

        A label may have brackets, such as "(none)". A label that is known without rows may
        even look like a list, such as "[1, 2]".
        """
        if not super().is_list(name, cell, values) or cell in self.labels:
            return False
        return looks_like_list(cell) or _ITEMS.match(cell) is not None


def text_form(
    config: TableConfig,
    kind: type[TextForm] = TextForm,
    label_names: tuple[str, ...] = ("label",),
    **more: Any,
) -> TextForm:
    """The form of texts or pairs of texts.

    label_names: usual names of the label's column.
    """
    data_set = config.data_set
    usual = {"text_a": ("text",)}
    if config.pair:
        usual = dict(_PAIR)
    usual["label"] = label_names
    columns = {}
    for key, names in usual.items():
        columns[key] = tuple(dict.fromkeys((*data_set.columns.get(key, ()), *names)))
    others = ["id", "idx"]
    if config.id:
        others.append(config.id)
    if data_set.files:
        others += _IDS
    labels = getattr(config, "labels", ()) or data_set.labels
    settings: dict[str, Any] = {"data_set": data_set, "labels": tuple(labels)}
    settings |= {"usual": usual, "others": tuple(others)}
    return kind(columns=named_columns(config, columns), **settings | more)


class Classification(Task):
    """A class or a number for a text or a pair of texts.

    Metrics: accuracy; f1 and accuracy for MRPC and QQP; matthews for CoLA; pearson,
    spearman, their mean, rmse and mae for regression; for tables accuracy and macro F1.
    """

    family = "classification"
    config_class = ClassificationConfig
    head = "sequence"
    gold = "label"
    table_metrics: tuple[str, ...] = ("accuracy", "f1_macro")
    least_labels = 2

    def __init__(self, config: TableConfig):
        super().__init__(config)
        metrics = config.data_set.metrics
        numbers = not {*metrics}.isdisjoint(CORRELATIONS)
        self.regression = numbers or getattr(config, "regression", False)
        self.metrics = metrics or self.table_metrics
        if self.regression:
            self.metrics = metrics or NUMBERS
            self.problem_type = REGRESSION
        classes = "one"
        if self.regression:
            classes = "none"
        self.form = text_form(config, classes=classes)

    @property
    def main_metric(self) -> str:
        return self.metrics[0]

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        if self.regression:
            return ()
        known = declared_labels(self)
        if known:
            return known
        if not records_of(self, "train"):
            raise UserError("train has no rows; expected rows with a text and a label")
        names = _names(self, "train")
        labels = in_order(names)
        warn_of_spellings(labels)
        warn_of_separators(labels)
        names_of_dev = _names(self, "dev")
        labels = with_labels_of_dev(labels, names_of_dev)
        most = max(20, 0.9 * len(names + names_of_dev))
        if not self.least_labels <= len(labels) <= most:
            rows = len(self.splits.rows.get("train", ()))
            different = counted(len(labels), "label")
            shown = listed([label[:60] for label in labels])
            raise UserError(
                f"train: {counted(rows, 'row')} with {different} ({shown}); are text "
                "and label swapped? regression=True learns numbers, labels= names classes"
            )
        return labels

    def row(self, where: str, values: Mapping[str, Any], labelled: bool) -> Row:
        texts = self.form.texts_in(where, values)
        label = None
        if labelled:
            check_texts(where, texts, gaps=self.config.task != TABLE)
            label = _label(self, where, values)
            if isinstance(label, str):
                label = known_class(where, label, self.labels)
            elif isinstance(label, tuple):
                label = tuple(known_class(where, name, self.labels) for name in label)
        row_id = None
        for name in (self.config.id, "id", "idx", *_IDS):
            if row_id is None:
                row_id = values.get(name)
        return Row(where, *texts, label=label, id=row_id)

    def encode(self, rows: Rows, tokenizer: Tokenizer) -> Features:
        config, joined, numbers, truncated = self.config, [], [], 0
        encoded = iter(tokenizer.encode_batch([x for row in rows for x in row.texts]))
        for number, row in enumerate(rows):
            texts = list(itertools.islice(encoded, len(row.texts)))
            lengths = [*map(len, texts)]
            room = config.max_length - tokenizer.overhead(len(texts))
            if config.truncation == "windows":
                spans = sequences.token_windows(*lengths, room, config.stride)
                cut = [[texts[0][start:stop]] for start, stop in spans]
            else:
                how = config.truncation, config.head_of(room)
                cut = [sequences.fit(texts, room, *how)]
                truncated += sum(lengths) > room
            joined += [tokenizer.build(*parts) for parts in cut]
            numbers += [number] * len(cut)
        targets = {}
        labels = [row.label for row in rows]
        if rows and None not in labels:
            values = _targets(self, labels)
            if self.regression:
                values = values.astype(np.float32)
            targets = {"label": values[numbers]}
        return joined_features(joined, numbers, targets, truncated=truncated)

    def decode(self, rows: Rows, features: Features, outputs: Outputs) -> Answers:
        logits = np.zeros((len(rows), self.outputs))
        values = np.asarray(outputs, np.float64).reshape(-1, self.outputs)
        np.add.at(logits, features.example, values)
        logits /= np.bincount(features.example, minlength=len(rows))[:, None]
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

    def score(self, rows: Rows, answers: Answers) -> Scores:
        truth = _targets(self, [row.label for row in rows])
        predicted = _targets(self, [*map(answered, answers)])
        return scores(self.metrics, truth, predicted)

    def outcomes(self, row: Row, answer: Answer) -> Iterator[Outcome]:
        gold, predicted = row.label, answered(answer)
        p = answer.get("probability")
        classes = None
        if not self.regression:
            classes = gold, predicted
        right = gold == predicted and not self.regression
        yield Outcome(row.text, gold, predicted, p, right, classes=classes)

    def export(self, rows: Rows, answers: Answers, split: str) -> dict[str, str]:
        """The file that GLUE's server expects, or SPLIT_predictions.tsv.

        STS-B's server expects numbers from 0 to 5.
        """
        server = self.config.data_set.server.get(split)
        lines = [["index", "prediction"]]
        for number, (row, answer) in enumerate(zip(rows, answers, strict=True)):
            label, index = answered(answer), row.id
            if server and self.regression:
                label = np.clip(label, 0, 5)
            if index in (None, ""):
                index = number
            lines.append([str(index), _shown(label, self.config)])
        text = "".join("\t".join(map(escaped, line)) + "\n" for line in lines)
        return {server or f"{split}_predictions.tsv": text}


class MultiLabel(Classification):
    """Any number of labels for a text or a pair of texts; a row's label is a tuple.

    Metrics: F1 over all decisions (f1_micro), the mean of the F1 of each label (f1_macro),
    and the share of rows with every label right (exact_match).
    """

    family = "multi_label"
    config_class = MultiLabelConfig
    table_metrics = ("f1_micro", "f1_macro", "exact_match")
    least_labels = 1

    def __init__(self, config: MultiLabelConfig):
        super().__init__(config)
        self.problem_type = SEVERAL_LABELS
        label, one_hot = config.label, ()
        if isinstance(label, str) and "," in label:
            label = [name.strip() for name in label.split(",")]
        if not isinstance(label, str):
            label, one_hot = "", tuple(label)
        if "" in one_hot or len({*one_hot}) < len(one_hot):
            expected = "expected a different column for each label"
            raise UserError(f"data.label={one_hot}, {expected}")
        if one_hot and config.labels and {*config.labels} != {*one_hot}:
            actual = f"data.labels={config.labels}, but data.label names {one_hot}"
            raise UserError(f"{actual}; leave labels out: they are the columns' names")
        config = dataclasses.replace(config, label=label)
        names = ("label", "labels")
        more = {}
        if one_hot:
            more = {"one_hot": one_hot, "optional": ("label",)}
            more["labels"] = config.labels or one_hot
        self.form = text_form(config, LabelsForm, names, **more)

    def _answer(self, logits: np.ndarray) -> Answer:
        p = scipy.special.expit(logits).tolist()
        shares = dict(zip(self.labels, p, strict=True))
        labels = [name for name, x in shares.items() if x >= self.config.threshold]
        return {"labels": labels, "probabilities": shares}

    def outcomes(self, row: Row, answer: Answer) -> Iterator[Outcome]:
        """The labels of a row. The confidence is the highest in a wrong label; 1 if none is
        wrong.
        """
        gold, predicted, p = row.label, answer["labels"], answer["probabilities"]
        wrong = {*gold} ^ {*predicted}
        sure = [1 - p[name] for name in wrong.difference(predicted)]
        sure += [p[name] for name in wrong.intersection(predicted)]
        shown = [_shown(names, self.config) for names in (gold, predicted)]
        yield Outcome(row.text, *shown, max(sure, default=1.0), right=not wrong)


def text_or_pair(task: Classification) -> Classification:
    """The task for rows with one text or two."""
    columns = _PAIR | {"label": task.form.columns["label"]}
    task.form = dataclasses.replace(task.form, columns=columns, optional=("text_b",))
    return task


def _shown(label: Any, config: TableConfig) -> str:
    """A label, several labels or a number as text."""
    if isinstance(label, str):
        return label
    if isinstance(label, list | tuple):
        return config.separator.join(label)
    if config.task == "stsb":  # GLUE's server
        return f"{label:.3f}"
    return f"{label:.7g}"


def declared_labels(task: Classification) -> tuple[str, ...]:
    """The labels that are known without rows, or the classes of a data set, if any."""
    return task.form.labels or task.splits.classes


def _several(
    where: str, value: Any, labels: tuple[str, ...], separator: str
) -> Sequence[Any]:
    """The labels in a list, or in a text with separators.

    A list of numbers or booleans has a 0 or 1 for each of ``labels``. Raises UserError for
    other numbers, and if a label is a number itself.
    """
    if isinstance(value, str):
        if value in labels:
            return [value]
        return [x.strip() for x in value.split(separator) if x.strip()]
    values = value
    if isinstance(value, set | frozenset):
        values = sorted(value, key=str)
    if not isinstance(values, list | tuple):
        values = [value]
    if not all(isinstance(x, str | int | float) for x in values):
        expected = "expected a list of names, or of a 0 or 1 for each name in labels="
        raise UserError(f"{where}: the labels are {value!r:.200}; {expected}")
    if not any(isinstance(x, int | float) for x in values):
        return values
    binary = all(x in (0, 1) for x in values)
    if not binary or len(values) != len(labels) or has_number(labels):
        expected = "expected names, or a 0 or 1 for each name in labels="
        raise UserError(f"{where}: the labels are {[*values]}; {expected}")
    return [name for name, x in zip(labels, values, strict=True) if x]


def _label(task: Classification, where: str, values: Mapping[str, Any]) -> Any:
    """The number, the class, or a tuple of the classes of a row, as the row names them."""
    if isinstance(task.form, LabelsForm):
        return _labels(task, where, values)
    value = value_of(where, values, task.form.columns["label"], "label")
    if not task.regression:
        return class_name(where, value)
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if abs(float(value)) <= _LARGEST:  # False for NaN
            return float(value)
    needed = "expected a number of float32 for regression"
    raise UserError(f"{where}: label {value!r}; {needed}")


def _labels(
    task: Classification, where: str, values: Mapping[str, Any]
) -> tuple[str, ...]:
    """The labels of a row: in one column, or in a column of 0 or 1 for each label."""
    columns, one_hot = task.form.columns["label"], task.form.one_hot
    name = name_in(values, columns)
    if name_in(values, one_hot) or (one_hot and not name):
        cells = {label: value_of(where, values, [label]) for label in one_hot}
        truths = {name: truth_of(where, name, cell) for name, cell in cells.items()}
        return tuple(label for label in one_hot if truths[label])
    if name and values[name] is None:
        return ()  # a missing value means no labels
    value = value_of(where, values, columns, "label")
    known, separator = declared_labels(task), task.config.separator
    names = _several(where, value, known, separator)
    return tuple(class_name(where, name) for name in names)


def _names(task: Classification, split: str) -> list[str]:
    """The names of the classes in the rows of a split, which may not exist."""
    names: list[str] = []
    for where, values in task.splits.rows.get(split, ()):
        label = _label(task, where, values)
        if isinstance(label, str):
            label = (label,)
        names += label
    return without_decimals(names)


def _targets(task: Classification, labels: Sequence[Any]) -> np.ndarray:
    """The labels of rows as numbers: (rows,), or a 0 or 1 for each label (rows, labels)."""
    if task.regression:
        return np.array(labels, np.float64)
    numbers = numbers_of(task.labels)
    if task.problem_type != SEVERAL_LABELS:
        return np.array([numbers[label] for label in labels], np.int32)
    targets = np.zeros((len(labels), len(numbers)), np.float32)
    for row, names in zip(targets, labels, strict=True):
        row[[numbers[name] for name in names]] = 1
    return targets
