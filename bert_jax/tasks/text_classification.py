"""Classification and regression of texts and pairs: GLUE, SICK, and any table of texts.

A text is [CLS] A [SEP], a pair [CLS] A [SEP] B [SEP] (BERT's paper, section 4.1). A row has
one class, a number, or (multi_label) any number of classes. Each label of multi_label is
decided alone, by the sigmoid of its logit.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from bert_jax.data import sequences
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError, counted, listed
from bert_jax.settings import check_ranges, setting
from bert_jax.tasks.layouts import CORRELATIONS, LAYOUTS, TABLE, Layout
from bert_jax.tasks.rows import (
    Record,
    check_texts,
    escaped,
    read_rows,
    text_columns,
    text_of,
    value_of,
)
from bert_jax.tasks.rows import Row as AnyRow
from bert_jax.tasks.source import SPLITS, Source, by_number, by_position
from bert_jax.tasks.task import (
    Answer,
    Features,
    Outcome,
    Outputs,
    Task,
    id_text,
    with_id,
)

# The problem_type of transformers' config.json for a head that gives sets of labels.
SEVERAL_LABELS = "multi_label_classification"


@dataclasses.dataclass(frozen=True)
class TableConfig:
    """Files and columns of a table of texts."""

    task: str = setting(
        TABLE, "table: CSV, TSV, JSONL, JSON or Parquet", one_of=(TABLE,)
    )
    dir: str = setting(
        "",
        "the folder of the data set; tfds:NAME, as tfds:glue/mrpc; or hf:NAME or "
        "hf:NAME:CONFIG of Hugging Face's hub, which needs datasets",
    )
    train: str = setting(
        "",
        "a file below dir, or a split of tfds; empty: the usual name: train.csv, ...",
    )
    dev: str = setting("", "as train")
    test: str = setting(
        "", "as train; scored if it has labels, predicted if it has none"
    )
    text_a: str = setting("text", "table: the column of the text")
    text_b: str = setting("", "table: the column of the second text; empty: no pairs")
    label: str = setting("label", "table: the column of the label")
    id: str = setting("id", "table: the column of the id, which may be missing")
    max_length: int = setting(
        128, "tokens of a sequence, [CLS] and [SEP] included", least=5
    )

    @property
    def layout(self) -> Layout:
        """Files, columns, labels and metrics, as far as the task decides them."""
        return LAYOUTS[self.task]

    @property
    def pair(self) -> bool:
        """Whether rows have two texts."""
        return bool(self.text_b) or "text_b" in self.layout.columns


@dataclasses.dataclass(frozen=True)
class TextConfig(TableConfig):
    """Texts with labels, and how long texts are cut."""

    labels: tuple[str, ...] = setting(
        (),
        "table: the labels in the order of the outputs, of two the second is positive; "
        "empty: the labels of the training rows, sorted",
    )
    truncation: str = setting(
        "head",
        "what is kept of a longer text: head, tail, head_tail, or windows: overlapping "
        "sequences, each trained with the row's label, whose logits are averaged; the "
        "longer text of a pair loses tokens until both fit",
        one_of=("head", "tail", "head_tail", "windows"),
    )
    head_tokens: int = setting(128, "head_tail: tokens kept of the start", least=1)
    stride: int = setting(
        64,
        "windows: tokens from the start of one to the next, if it holds them",
        least=1,
    )

    def __post_init__(self):
        check_ranges(self, "data.")
        if self.truncation == "windows" and self.pair:
            raise UserError(
                "truncation=windows is for single texts, and the task has two; expected "
                "head, tail or head_tail"
            )
        room = self.max_length - 2 - self.pair
        if self.truncation == "head_tail" and self.head_tokens >= room:
            raise UserError(
                f"head_tokens={self.head_tokens} leaves no room for the end; expected 1 to "
                f"{room - 1} at max_length={self.max_length}"
            )


@dataclasses.dataclass(frozen=True)
class ClassificationConfig(TextConfig):
    """A task of one class or one number for each row."""

    task: str = setting(
        "",
        "one of GLUE's (cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, ax), "
        "sick_entailment or sick_relatedness; or table: CSV, TSV or JSONL with columns",
        one_of=LAYOUTS,
    )
    regression: bool = setting(False, "table: whether labels are numbers")


@dataclasses.dataclass(frozen=True)
class MultiLabelConfig(TextConfig):
    """A table with any number of labels for each row, and how a cell contains them."""

    separator: str = setting(
        ",", "the text between the labels of a cell; a cell may also be a list of JSON"
    )
    threshold: float = setting(
        0.5, "the least probability of a label that is given", above=0, below=1
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A text or two. label: a name, a number or a tuple of names; None if unknown."""

    where: str
    text_a: str
    text_b: str | None = None
    label: Any = None
    id: Any = None

    @property
    def text(self) -> str:
        """Both texts, for reports."""
        return " \u2016 ".join(filter(None, (self.text_a, self.text_b)))


class TextSource(Source):
    """The files of a data set of labelled texts."""

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.config.layout.files) or SPLITS

    @functools.cached_property
    def eval_splits(self) -> tuple[str, ...]:
        layout = self.config.layout
        return layout.scored if layout.files else super().eval_splits

    @property
    def labels(self) -> tuple[str, ...]:
        return super().labels or self.config.layout.labels

    def file_names(self, split: str) -> Sequence[str]:
        return self.config.layout.files.get(split) or super().file_names(split)

    def data_split(self, split: str) -> str:
        return self.config.layout.tfds.get(split) or super().data_split(split)

    def read_file(self, path: Path, split: str) -> Iterator[Record]:
        layout = self.config.layout
        published = bool(layout.files)
        if split == "test":  # published files of test have a header and complete rows
            return read_rows(path, txt=published)
        header, short = layout.header, layout.skip_short
        return read_rows(path, header=header, skip_short=short, txt=published)


class Classification(Task):
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
        layout, defaults = config.layout, type(config)
        self.regression = layout.regression or getattr(config, "regression", False)
        own = CORRELATIONS if self.regression else self.table_metrics
        published = self.regression == layout.regression and layout.metrics
        self.metrics = published or own
        self.main_metric = self.metrics[0]
        others = {"text_a": ("text_a", "text"), "label": self.label_names}
        others |= {"text_b": ("text_b",)} if config.pair else {}
        self.columns = {}
        for name in ("text_a", "text_b", "label"):
            if name in others:
                own = getattr(config, name)
                chosen = (own,) if own != getattr(defaults, name) else ()
                names = (*chosen, *layout.columns.get(name, ()), own, *others[name])
                self.columns[name] = tuple(filter(None, dict.fromkeys(names)))

    @classmethod
    def for_head(cls, checkpoint: Any) -> "Classification | None":
        """The task of texts or pairs; without labels, regression."""
        labels, several = checkpoint.labels, checkpoint.problem_type == SEVERAL_LABELS
        if checkpoint.head != cls.head or several != (
            cls.problem_type == SEVERAL_LABELS
        ):
            return None
        if checkpoint.problem_type == "regression" and labels:
            raise UserError(
                f"the head gives {len(labels)} numbers (regression); expected one number "
                "for a text"
            )
        regression = {} if labels else {"regression": True}
        longest = checkpoint.config.max_positions
        config = cls.config_class(
            task=TABLE, text_a="text_a", labels=labels, max_length=longest, **regression
        )
        task = cls(config)
        label = task.columns.pop("label")
        task.columns |= {"text_b": ("text_b",), "label": label}
        task.any_columns = True
        return task

    @property
    def problem_type(self) -> str | None:
        return "regression" if self.regression else None

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        if self.regression:
            return ()
        if known := self.config.labels or self.config.layout.labels:
            return known
        rows = []
        for where, values in self.source.records("train"):
            own = self._values(where, self._value(where, values, "label"))
            rows.append([_class_name(where, value) for value in own])
        labels = sorted({*itertools.chain(*rows)})
        single = all(len(own) == 1 for own in rows)
        place = self.source.place("train")
        if all(re.fullmatch(r"-?\d+\.0+", label) for label in labels):
            raise UserError(
                f"{place}: the labels {listed(labels)} are floats; expected texts or whole "
                f"numbers, such as {int(float(labels[0]))} (pandas has floats in a column "
                "with a missing value; regression=True learns numbers; labels= keeps these "
                "names)"
            )
        if len(labels) == 1:
            raise UserError(
                f"{place}: every training row has the label {labels[0]!r}; expected two "
                "labels at least"
            )
        if single and len(rows) > 20 and len(labels) > 0.9 * len(rows):
            raise UserError(
                f"{place}: {len(rows)} rows have {len(labels)} different labels, such as "
                f"{labels[0][:60]!r}; are the columns of text and label swapped? "
                "regression=True learns numbers, and labels= names classes of one row each"
            )
        return tuple(labels)

    def values(self, where: str, row: AnyRow, *, labelled: bool) -> dict[str, Any]:
        """For a head that was trained elsewhere, a row is a text or a pair."""
        single = isinstance(row, str) or len(row) == 1 + labelled
        if self.any_columns and not isinstance(row, dict) and single:
            values = [row] if isinstance(row, str) else row
            return dict(zip(("text_a", "label"), values, strict=False))
        return super().values(where, row, labelled=labelled)

    def row(self, where: str, values: Mapping[str, Any], labelled: bool) -> Row:
        names = [*self.columns][:-1]
        if self.any_columns and "text_b" not in values:
            names = names[:1]
        texts = [self._value(where, values, name, text_of) for name in names]
        columns = (self.config.layout.id, self.config.id, "id", "idx")
        ids = (values[name] for name in columns if values.get(name) is not None)
        label = None
        if labelled:
            check_texts(where, texts, gaps=self.config.task != TABLE)
            label = self._label(where, self._value(where, values, "label"))
        own = {*self.columns["text_a"]} - {"text_a"}
        if len(texts) == 1 and "text_b" in values and not values.keys() & own:
            text_columns(where, values, most=1)  # either text may be meant
        return Row(where, *texts, label=label, id=next(ids, None))

    def _value(
        self, where: str, values: Mapping[str, Any], name: str, get: Any = value_of
    ) -> Any:
        hint = f"name it with columns=NAME, or to train with data.{name}=NAME"
        hint *= self.config.task == TABLE
        return get(where, values, self.columns[name], hint)

    def _values(self, where: str, value: Any) -> Sequence[Any]:
        """The classes in the label of a row, by name or number."""
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
        """The class with a name, or with a number from 0."""
        name = _class_name(where, value)
        if name not in self.label_ids and isinstance(value, int):
            name = by_position(self.labels, value) or name
        # Models of 0.1.0 have the names of JSON for the classes of a column of booleans.
        if name in ("True", "False") and name.lower() in self.label_ids:
            name = name.lower()
        if name not in self.label_ids:
            raise UserError(
                f"{where}: label {name!r} is not in the label set "
                f"{', '.join(self.labels)}"
            )
        return name

    def encode(self, rows: list[Row], tokenizer: Tokenizer) -> Features:
        for row in rows:
            count, before = (1 + (x.text_b is not None) for x in (row, rows[0]))
            if count != before:
                raise UserError(
                    f"{row.where} has {counted(count, 'text')}, the rows before have "
                    f"{before}; expected the same number in all rows"
                )
        config, truncated = self.config, 0
        how = config.truncation, config.head_tokens
        first = tokenizer.encode_batch([row.text_a for row in rows])
        second = tokenizer.encode_batch([row.text_b or "" for row in rows])
        input_ids, token_type_ids, numbers = [], [], []
        for number, row in enumerate(rows):
            pair = row.text_b is not None
            texts = [first[number], *[second[number]] * pair]
            room, lengths = config.max_length - 2 - pair, [len(text) for text in texts]
            if config.truncation == "windows":
                spans = sequences.token_windows(*lengths, room, config.stride)
                cut = [[texts[0][start:stop]] for start, stop in spans]
            else:
                kept = sequences.pair_lengths(*lengths, room) if pair else [room]
                own = zip(texts, kept, strict=True)
                cut = [[sequences.cut(*text, *how) for text in own]]
                truncated += sum(lengths) > room
            for parts in cut:
                ids, types = sequences.join(tokenizer, *parts)
                input_ids.append(ids)
                token_type_ids.append(types)
                numbers.append(number)
        row_numbers = np.array(numbers, np.int32)
        targets = {}
        if rows and all(row.label is not None for row in rows):
            labels = self._targets([row.label for row in rows])
            labels = labels.astype(np.float32) if self.regression else labels
            targets = {"label": labels[row_numbers]}
        return Features(
            input_ids, token_type_ids, row_numbers, targets, truncated=truncated
        )

    def _targets(self, labels: list[Any]) -> np.ndarray:
        """The labels of rows as numbers: (rows, ...)."""
        if self.regression:
            return np.array(labels, np.float64)
        return np.array([self.label_ids[label] for label in labels], np.int32)

    def decode(
        self, rows: list[Row], features: Features, outputs: Outputs
    ) -> list[Answer]:
        logits = np.zeros((len(rows), self.outputs))
        values = np.asarray(outputs, np.float64).reshape(-1, self.outputs)
        np.add.at(logits, features.row, values)
        logits /= np.bincount(features.row, minlength=len(rows))[:, None]
        answers = map(self._answer, logits if self.regression else self._shares(logits))
        return [with_id(row, a) for row, a in zip(rows, answers, strict=True)]

    def _shares(self, logits: np.ndarray) -> np.ndarray:
        """The probabilities of classes: float64 (rows, C)."""
        return scipy.special.softmax(logits, axis=1)

    def _answer(self, p: np.ndarray) -> Answer:
        """The answer of a row. p: its probabilities, or its number, float64 (C,)."""
        if self.regression:
            return {"value": float(p[0])}
        return {
            "label": self.labels[p.argmax()],
            "probability": float(p.max()),
            "probabilities": dict(zip(self.labels, p.tolist(), strict=True)),
        }

    def cells(self, row: Row, answer: Answer) -> list[dict[str, str]]:
        """The label with its probability, the labels or the value; then the texts."""
        cells = {
            name: f"{x:.4f}" if isinstance(x, float) else self._shown(x)
            for name, x in answer.items()
            if name not in ("id", "probabilities")
        }
        texts = {"text_a": row.text_a, "text_b": row.text_b}
        texts = texts if row.text_b is not None else {"text": row.text_a}
        return [with_id(row, cells | texts)]

    def _shown(self, label: Any) -> str:
        """A label, or an answer, as text."""
        if self.regression:
            return f"{np.clip(label, *self.config.layout.limits):.3f}"
        return label

    def score(self, rows: list[Row], answers: list[Answer]) -> dict[str, float]:
        truth = self._targets([row.label for row in rows])
        predicted = self._targets([_given(answer) for answer in answers])
        return scores(self.metrics, truth, predicted)

    def outcomes(self, row: Row, answer: Answer) -> Iterator[Outcome]:
        gold, found = row.label, _given(answer)
        if self.regression:
            yield Outcome(row.text, gold, found, None, right=False)
        else:
            p, right = answer["probability"], gold == found
            yield Outcome(row.text, gold, found, p, right, classes=(gold, found))

    def export(
        self, rows: list[Row], answers: list[Answer], split: str
    ) -> dict[str, str]:
        """The file that GLUE's server expects, or SPLIT_predictions.tsv.

        SPLIT_predictions.tsv also has the probability of a class.
        """
        server = self.config.layout.server.get(split)
        names = ["index", "prediction"]
        names += ["probability"] * (
            not (server or self.regression or self.problem_type)
        )
        lines = ["\t".join(names)]
        for i, (row, answer) in enumerate(zip(rows, answers, strict=True)):
            cells = [id_text(row, i), self._shown(_given(answer))]
            if "probability" in names:
                cells.append(f"{answer['probability']:.6f}")
            lines.append("\t".join(map(escaped, cells)))
        return {server or f"{split}_predictions.tsv": "\n".join(lines) + "\n"}


class MultiLabel(Classification):
    """Any number of labels for a text or a pair of texts; a row's label is a tuple.

    Metrics: F1 over all decisions (f1_micro), the mean of the F1 of each label (f1_macro),
    and the share of rows with every label right (exact_match).
    """

    family = "multi_label"
    config_class = MultiLabelConfig
    problem_type = SEVERAL_LABELS
    label_names = ("label", "labels")
    table_metrics = ("f1_micro", "f1_macro", "exact_match")

    def _label(self, where: str, value: Any) -> tuple[str, ...]:
        return tuple(self._class(where, x) for x in self._values(where, value))

    def _values(self, where: str, value: Any) -> Sequence[Any]:
        """The labels in a list, or in a cell with separators or a list of JSON.

        A list of floats or booleans has a 0 or 1 for each label. So has a list of whole
        numbers 0 and 1 as long as labels=, if the name of no label is a number. Raises
        UserError for a vector of another length, and for class numbers that occur twice.
        """
        if isinstance(value, str) and value.startswith("["):
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(value)
        if isinstance(value, str):
            return [x.strip() for x in value.split(self.config.separator) if x.strip()]
        values = value if isinstance(value, list | tuple) else [value]
        if not values or not all(isinstance(x, int | float) for x in values):
            return values
        labels, whole = self.config.labels, all(type(x) is int for x in values)
        binary = all(x in (0, 1) for x in values)
        if binary and len(values) == len(labels) and (by_number(labels) or not whole):
            return [name for name, x in zip(labels, values, strict=True) if x]
        if (binary and not whole) or (whole and len({*values}) < len(values)):
            raise UserError(
                f"{where}: the labels are {[*values]}; expected names, each class number "
                "once, or a vector with a 0 or 1 for each name in labels="
            )
        return values

    def _targets(self, labels: list[Any]) -> np.ndarray:
        """1 for each label that a row has: float32 (rows, labels)."""
        targets = np.zeros((len(labels), len(self.labels)), np.float32)
        for row, own in zip(targets, labels, strict=True):
            row[[self.label_ids[name] for name in own]] = 1
        return targets

    def _shares(self, logits: np.ndarray) -> np.ndarray:
        return scipy.special.expit(logits)

    def _answer(self, p: np.ndarray) -> Answer:
        shares = dict(zip(self.labels, p.tolist(), strict=True))
        given = [name for name, x in shares.items() if x >= self.config.threshold]
        return {"labels": given, "probabilities": shares}

    def _shown(self, label: Sequence[str]) -> str:
        return self.config.separator.join(label)

    def outcomes(self, row: Row, answer: Answer) -> Iterator[Outcome]:
        """The labels of a row. The confidence belongs to the most wrong label."""
        gold, found, p = row.label, answer["labels"], answer["probabilities"]
        wrong = {*gold} ^ {*found}
        off = [p[name] if name in found else 1 - p[name] for name in wrong]
        shown = self._shown(gold), self._shown(found)
        yield Outcome(row.text, *shown, max(off, default=1.0), right=not wrong)


def _given(answer: Answer) -> Any:
    """The label, the labels or the number in an answer."""
    return next(answer[n] for n in ("label", "labels", "value") if n in answer)


def _class_name(where: str, value: Any) -> str:
    """The name of a class: a text, or a whole number."""
    if not isinstance(value, str | int):
        raise UserError(
            f"{where}: the label {value!r} is of type {type(value).__name__}; expected a "
            "text or a whole number (pandas has floats in a column with a missing value; "
            "regression=True learns numbers)"
        )
    if not str(value).strip():
        raise UserError(f"{where}: empty label; expected a class, fix or drop the row")
    return str(value)


def scores(
    metrics: Sequence[str], truth: np.ndarray, predicted: np.ndarray
) -> dict[str, float]:
    """Metrics of scikit-learn and scipy in percent. Undefined scores are 0.

    truth, predicted: class ids for accuracy, matthews, f1 (of class 1) and f1_macro (over
    the classes that occur); 0 or 1 (rows, labels) for f1_micro, f1_macro and exact_match;
    numbers for pearson, spearman and their mean pearson_spearman.
    """
    # Both are imported late because they take a second.
    from scipy import stats
    from sklearn import metrics as sklearn

    f1 = {"f1": dict(labels=[1]), "f1_micro": dict(average="micro"), "f1_macro": {}}
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a score that is not defined
        for name in metrics:
            if name in f1:
                how = dict(average="macro", zero_division=0) | f1[name]
                found[name] = sklearn.f1_score(truth, predicted, **how)
            elif name in CORRELATIONS:
                functions = [getattr(stats, f"{part}r") for part in name.split("_")]
                own = [
                    f(truth, predicted).statistic for f in functions if len(truth) > 1
                ]
                found[name] = np.nan_to_num(own or [0.0]).mean()
            elif name == "matthews":
                found[name] = sklearn.matthews_corrcoef(truth, predicted)
            else:  # accuracy, exact_match
                found[name] = sklearn.accuracy_score(truth, predicted)
    return {name: 100 * float(score) for name, score in found.items()}
