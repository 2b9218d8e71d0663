"""Sequence classification and regression: GLUE, SICK, and any table of labelled texts.

A text is [CLS] A [SEP], a pair [CLS] A [SEP] B [SEP] (BERT's paper, section 4.1).
"""

import contextlib
import dataclasses
import functools
import itertools
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from bert_jax.data import sequences
from bert_jax.data.corpus import TFDS
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError, counted, listed
from bert_jax.settings import check_ranges, setting
from bert_jax.tasks import layouts, tables
from bert_jax.tasks.class_names import by_position
from bert_jax.tasks.layouts import Layout, Row, Split
from bert_jax.tasks.rows import Placed, text_columns
from bert_jax.tasks.rows import Row as AnyRow
from bert_jax.tasks.source import SPLITS, Source
from bert_jax.tasks.tables import Record
from bert_jax.tasks.task import (
    Answer,
    Features,
    Outcome,
    Outputs,
    Task,
    id_text,
    with_id,
)

TABLE = "table"
# The problem_type of transformers' config.json for a head that gives sets of labels.
SEVERAL_LABELS = "multi_label_classification"
# A table's layout is in its settings.
LAYOUTS: dict[str, Layout | None] = {**layouts.TASKS, TABLE: None}


@dataclasses.dataclass(frozen=True)
class TableConfig:
    """Where the files of a table of texts are, and their columns."""

    task: str = setting(
        TABLE, "table: CSV, TSV, JSONL, JSON or Parquet", one_of=(TABLE,)
    )
    dir: str = setting(
        "",
        "the folder of the data set in its own layout, tfds:NAME, as tfds:glue/mrpc, or "
        "hf:NAME or hf:NAME:CONFIG of Hugging Face's hub, which needs datasets",
    )
    train: str = setting(
        "",
        "table: a file below dir (a split of tfds); empty: train.csv, train.jsonl.gz...",
    )
    dev: str = setting(
        "",
        "table: a file below dir (a split of tfds); empty: dev.csv, dev.jsonl.gz, ...; "
        "must exist",
    )
    test: str = setting(
        "", "table: as train; scored where it has labels, predicted where it has none"
    )
    text_a: str = setting("text", "table: the column of the text")
    text_b: str = setting("", "table: the column of the second text; empty: no pairs")
    label: str = setting("label", "table: the column of the label")
    id: str = setting("id", "table: the column of the id, which may be missing")
    max_length: int = setting(
        128, "tokens of a sequence, [CLS] and [SEP] included", least=5
    )

    def layout(self) -> Layout:
        """Files, columns, labels and metrics of the task."""
        raise NotImplementedError

    def _own_layout(self, task: str) -> Layout:
        """That of a data set, whose columns are no settings."""
        for name in (*SPLITS, "text_a", "text_b", "label", "id", "regression"):
            field = self.__dataclass_fields__.get(name)
            if field and (value := getattr(self, name)) != field.default:
                raise UserError(
                    f"{name}={value!r} is for task=table; {task} has its own layout, "
                    "leave it out"
                )
        return LAYOUTS[task]

    def _table(self, metrics: tuple[str, ...], *, regression: bool = False) -> Layout:
        """That of the columns in the settings."""
        splits = {}
        for name in SPLITS:
            given = getattr(self, name)
            names = (given,) if given else tuple(name + end for end in tables.ENDINGS)
            splits[name] = Split(names, self.label, tfds=given)
        columns = (self.text_a, self.text_b)
        return Layout(
            splits,
            *columns,
            index=self.id,
            metrics=metrics,
            regression=regression,
            tfds=(*columns, self.label),
        )


@dataclasses.dataclass(frozen=True)
class TextConfig(TableConfig):
    """Texts with labels, and how long texts are cut."""

    labels: tuple[str, ...] = setting(
        (),
        "table: the labels in the order of the outputs, of two the second is positive; "
        "empty: those of the training rows, sorted",
    )
    truncation: str = setting(
        "head",
        "what is kept of a longer text: head, tail, head_tail, or windows: overlapping "
        "sequences, each trained with the row's label, whose logits are averaged; the "
        "longer text of a pair loses tokens until both fit",
        one_of=("head", "tail", "head_tail", "windows"),
    )
    head_tokens: int = setting(128, "head_tail: tokens kept of the start")
    stride: int = setting(64, "windows: tokens from the start of one to the next")

    def __post_init__(self):
        check_ranges(self, "data.")
        pair = bool(self.layout().text_b)
        room = self.max_length - 2 - pair
        if self.truncation == "windows" and pair:
            raise UserError(
                "truncation=windows is for single texts, and the task has two; expected "
                "head, tail or head_tail"
            )
        if self.truncation == "windows" and not 1 <= self.stride <= room:
            raise UserError(
                f"stride={self.stride} skips text or never ends; expected 1 to {room}, "
                "what a window holds"
            )
        if self.truncation == "head_tail" and not 1 <= self.head_tokens < room:
            raise UserError(
                f"head_tokens={self.head_tokens} leaves no room for the end; expected 1 "
                f"to {room - 1} at max_length={self.max_length}"
            )


@dataclasses.dataclass(frozen=True)
class ClassificationConfig(TextConfig):
    """Which task, where its data is, and how texts are cut."""

    task: str = setting(
        "",
        "one of GLUE's (cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, ax), "
        "sick_entailment or sick_relatedness; or table: CSV, TSV or JSONL with columns",
        one_of=LAYOUTS,
    )
    regression: bool = setting(False, "table: whether labels are numbers")

    def layout(self) -> Layout:
        if self.task != TABLE:
            return self._own_layout(self.task)
        metrics = ("accuracy", "f1_macro")
        if self.regression:
            metrics = ("pearson", "spearman", "pearson_spearman")
        return self._table(metrics, regression=self.regression)


class TextSource(Source):
    """The files of a data set of labelled texts, or tensorflow-datasets."""

    def __init__(self, config: TableConfig, columns: Any):
        super().__init__(config, columns)
        self.layout = config.layout()
        self.splits = tuple(self.layout.splits)

    @functools.cached_property
    def eval_splits(self) -> tuple[str, ...]:
        """The labelled ones; a table's test file may have the label's column or not."""
        if self.config.task == TABLE:
            return super().eval_splits
        splits = self.layout.splits.items()
        return tuple(name for name, s in splits if s.label and name != "train")

    @property
    def labels(self) -> tuple[str, ...]:
        return self.config.labels or self.layout.labels

    def file_names(self, split: str) -> Sequence[str]:
        return self.layout.splits[split].files

    def data_split(self, split: str) -> str:
        own = self.layout.splits[split].tfds if self.config.dir.startswith(TFDS) else ""
        return own or super().data_split(split)

    def records(self, split: str) -> Iterator[Record]:
        if split not in self.splits:
            raise UserError(
                f"{self.config.task} has no {split} split, it has "
                f"{', '.join(self.splits)}; to predict ax, fine-tune mnli"
            )
        return super().records(split)

    def read_file(self, path: Path, split: str) -> Iterator[Record]:
        """The rows of a table, or of a file of a published data set."""
        if self.config.task == TABLE or tables.has_objects(path):
            return tables.read_rows(path)
        # MNLI has no split that is called dev.
        own = self.layout.splits[split if split in self.splits else self.eval_splits[0]]
        short = own.skip_short
        return tables.read_rows(path, header=own.header, skip_short=short, txt=True)


class Classification(Task):
    """A class or a number for a text or a pair of texts.

    Metrics: accuracy; f1 and accuracy for MRPC and QQP; matthews for CoLA; pearson,
    spearman and their mean for regression; for tables accuracy and macro F1.
    """

    family = "classification"
    config_class = ClassificationConfig
    source_class = TextSource
    head = "sequence"

    def __init__(self, config: ClassificationConfig):
        super().__init__(config)
        self.layout = config.layout()
        self.regression = self.layout.regression
        self.main_metric = self.layout.metrics[0]
        first, second, label = self.layout.tfds_features
        names = {"text_a": (self.layout.text_a, first, "text_a", "text")}
        if self.layout.text_b:
            names["text_b"] = (self.layout.text_b, second, "text_b")
        own = [split.label for split in self.layout.splits.values() if split.label]
        self.columns = names | {"label": (*own[:1], label, "label")}

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

    def values(self, where: str, row: AnyRow, *, labelled: bool) -> dict[str, Any]:
        """Of a head that was trained elsewhere a row is a text or a pair."""
        single = isinstance(row, str) or len(row) == 1 + labelled
        if self.any_columns and not isinstance(row, dict) and single:
            values = [row] if isinstance(row, str) else row
            return dict(zip(("text_a", "label"), values, strict=False))
        return super().values(where, row, labelled=labelled)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        if self.regression:
            return ()
        if labels := self.config.labels or self.layout.labels:
            return labels
        names, hint = self.columns["label"], _hint(self.config, "label")
        of_rows = [
            self._names(where, tables.value(where, values, names, hint))
            for where, values in self.source.records("train")
        ]
        labels = sorted({*itertools.chain(*of_rows)})
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
        single = all(len(own) == 1 for own in of_rows)
        if single and len(of_rows) > 20 and len(labels) > 0.9 * len(of_rows):
            raise UserError(
                f"{place}: {len(of_rows)} rows have {len(labels)} different labels, such "
                f"as {labels[0][:60]!r}; expected rows that share labels: are the columns "
                f"{self.columns['text_a'][0]!r} and {names[0]!r} swapped? regression=True "
                "learns numbers, and labels= names classes of one row each"
            )
        return tuple(labels)

    @property
    def problem_type(self) -> str | None:
        return "regression" if self.regression else None

    def rows(
        self,
        placed: Iterable[Placed],
        columns: Sequence[str] = (),
        *,
        labelled: bool = False,
    ) -> Iterator[Row]:
        """All rows are texts, or all are pairs."""
        first = None
        for row in super().rows(placed, columns, labelled=labelled):
            first = first or row
            count, before = (1 + (x.text_b is not None) for x in (row, first))
            if count != before:
                raise UserError(
                    f"{row.where} has {counted(count, 'text')}, the rows before have "
                    f"{before}; expected the same number in all rows"
                )
            yield row

    def row(self, where: str, values: Mapping[str, Any], labelled: bool) -> Row:
        hints = {key: _hint(self.config, key) for key in self.columns}
        keys = [*self.columns][:-1]
        if self.any_columns and "text_b" not in values:
            keys = keys[:1]
        texts = [tables.text(where, values, self.columns[x], hints[x]) for x in keys]
        ids = [values.get(key) for key in (self.layout.index, "id", "idx")]
        index = next((x for x in ids if x is not None), None)
        label = None
        if labelled:
            tables.check_texts(where, texts, gaps=self.layout.gaps)
            names = self.columns["label"]
            found = tables.value(where, values, names, hints["label"])
            label = self._label(where, found)
        own = {*self.columns["text_a"]} - {"text_a"}
        if len(texts) == 1 and "text_b" in values and not values.keys() & own:
            text_columns(where, values, most=1)  # either text may be meant
        return Row(where, *texts, label=label, id=index)

    def encode(self, rows: list[Row], tokenizer: Tokenizer) -> Features:
        config = self.config
        pair = any(row.text_b is not None for row in rows)
        texts = [tokenizer.encode_batch([row.text_a for row in rows])]
        if pair:
            texts.append(tokenizer.encode_batch([row.text_b or "" for row in rows]))
        how = config.truncation, config.head_tokens
        input_ids, token_type_ids, numbers, truncated = [], [], [], 0
        for number, parts in enumerate(zip(*texts, strict=True)):
            pair = rows[number].text_b is not None
            parts = parts[: 1 + pair]
            room = config.max_length - 2 - pair
            lengths = [len(part) for part in parts]
            if config.truncation == "windows":
                windows = sequences.token_windows(*lengths, room, config.stride)
                cut = [[parts[0][start:stop]] for start, stop in windows]
            else:
                kept = sequences.pair_lengths(*lengths, room) if pair else [room]
                texts_kept = zip(parts, kept, strict=True)
                cut = [[sequences.cut(*part, *how) for part in texts_kept]]
                truncated += sum(lengths) > room
            for sequence in cut:
                ids, types = sequences.join(tokenizer, *sequence)
                input_ids.append(ids)
                token_type_ids.append(types)
                numbers.append(number)
        row_numbers = np.array(numbers, np.int32)
        targets = {}
        if rows and all(row.label is not None for row in rows):
            labels = self._targets([row.label for row in rows])
            targets = {"label": labels[row_numbers]}
        return Features(
            input_ids, token_type_ids, row_numbers, targets, truncated=truncated
        )

    def decode(
        self, rows: list[Row], features: Features, outputs: Outputs
    ) -> list[Answer]:
        logits = np.zeros((len(rows), self.outputs))
        values = np.asarray(outputs, np.float64).reshape(-1, self.outputs)
        np.add.at(logits, features.row, values)
        logits /= np.bincount(features.row, minlength=len(rows))[:, None]
        answers = self._answers(logits)
        return [with_id(row, a) for row, a in zip(rows, answers, strict=True)]

    def _answers(self, logits: np.ndarray) -> list[Answer]:
        """What the logits of each row, float64 (rows, C), say."""
        if self.regression:
            return [{"value": value} for value in logits[:, 0].tolist()]
        return [
            {
                "label": self.labels[p.argmax()],
                "probability": float(p.max()),
                "probabilities": dict(zip(self.labels, p.tolist(), strict=True)),
            }
            for p in scipy.special.softmax(logits, axis=1)
        ]

    def cells(self, row: Row, prediction: dict[str, Any]) -> list[dict[str, str]]:
        """The id if there is one; the label with its probability, or the value; texts."""
        cells = self._answer_cells(prediction)
        if row.text_b is None:
            cells["text"] = row.text_a
        else:
            cells |= {"text_a": row.text_a, "text_b": row.text_b}
        return [with_id(row, cells)]

    def _answer_cells(self, prediction: Answer) -> dict[str, str]:
        if "value" in prediction:
            return {"value": f"{prediction['value']:.4f}"}
        probability = f"{prediction['probability']:.4f}"
        return {"label": prediction["label"], "probability": probability}

    def score(self, rows: list[Row], predictions: list[Answer]) -> dict[str, float]:
        key = "value" if self.regression else "label"
        truth = self._numbers([row.label for row in rows])
        predicted = self._numbers([prediction[key] for prediction in predictions])
        return scores(self.layout.metrics, truth, predicted)

    def outcomes(self, row: Row, answer: Answer) -> Iterator[Outcome]:
        """The class of the row, or its number."""
        text, gold = " \u2016 ".join(filter(None, (row.text_a, row.text_b))), row.label
        if self.regression:
            yield Outcome(text, gold, answer["value"], None, right=False)
        else:
            found = answer["label"]
            classes, p = (gold, found), answer["probability"]
            yield Outcome(text, gold, found, p, gold == found, classes=classes)

    def export(
        self, rows: list[Row], predictions: list[Answer], split: str
    ) -> dict[str, str]:
        """The file that GLUE's server wants, or SPLIT_predictions.tsv of the same form.

        The latter has the answer's probability too.
        """
        submission = self.layout.splits[split].submission
        header = "index\tprediction"
        if self.regression:
            limited = [np.clip(p["value"], *self.layout.limits) for p in predictions]
            answers = [f"{value:.3f}" for value in limited]
        elif submission:
            answers = [tables.escaped(p["label"]) for p in predictions]
        else:
            header += "\tprobability"
            answers = [
                f"{tables.escaped(p['label'])}\t{p['probability']:.6f}"
                for p in predictions
            ]
        lines = [header]
        for i, (row, answer) in enumerate(zip(rows, answers, strict=True)):
            lines.append(f"{tables.escaped(id_text(row, i))}\t{answer}")
        name = submission or f"{split}_predictions.tsv"
        return {name: "\n".join(lines) + "\n"}

    def _label(self, where: str, value: Any) -> str | float:
        """A label of the set, or a number. A class may be given by its number."""
        text = tables.cell(where, "label", value)
        if self.regression:
            with contextlib.suppress(ValueError):
                if math.isfinite(float(text)):
                    return float(text)
            table = self.config.task == TABLE and hasattr(self.config, "regression")
            drop = ", or drop data.regression" * table
            raise UserError(f"{where}: label {text!r}; expected a number{drop}")
        if text in self.label_ids:
            return text
        # Older models have the names of JSON for the classes of a column of booleans.
        if text in ("True", "False") and text.lower() in self.label_ids:
            return text.lower()
        name = by_position(self.labels, value) if isinstance(value, int) else None
        if name is not None:
            return name
        raise UserError(
            f"{where}: label {text!r} is not in the label set {', '.join(self.labels)}"
        )

    def _names(self, where: str, value: Any) -> tuple[str, ...]:
        """The classes that a training row's value names."""
        name = class_name(where, value)
        if not name.strip():
            raise UserError(
                f"{where}: empty label; expected a class, fix or drop the row"
            )
        return (name,)

    def _targets(self, labels: list[Any]) -> np.ndarray:
        """What the loss needs of the labels of rows: (rows, ...)."""
        dtype = np.float32 if self.regression else np.int32
        return np.array(self._numbers(labels), dtype)

    def _numbers(self, labels: list[Any]) -> list[float]:
        """The class ids of labels; in regression labels are numbers."""
        if self.regression:
            return labels
        return [self.label_ids[label] for label in labels]


def _hint(config: TableConfig, key: str) -> str:
    """What to change if rows lack the column of "text_a", "text_b" or "label"."""
    if config.task != TABLE:
        return ""
    return f"name it with columns=NAME, or to train with data.{key}=NAME"


def class_name(where: str, value: Any) -> str:
    """The name of a class: a text, or a whole number."""
    if isinstance(value, str | int):
        return tables.cell(where, "label", value)
    raise UserError(
        f"{where}: the label {value!r} is of type {type(value).__name__}; expected a text "
        "or a whole number (pandas has floats in a column with a missing value; "
        "regression=True learns numbers)"
    )


def _correlation(functions: Sequence, truth: Sequence, predicted: Sequence) -> float:
    """The mean of correlations; that of a constant with anything is 0."""
    if len(truth) < 2:
        return 0.0
    found = [function(truth, predicted).statistic for function in functions]
    return np.nan_to_num(found).mean()


@functools.cache
def _metrics() -> dict[str, Callable[[Sequence, Sequence], float]]:
    """Functions of (truth, predicted) by name."""
    # Imported here because they take a second, and a wrong setting should not.
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    macro = functools.partial(f1_score, average="macro", zero_division=0)
    return {
        "accuracy": accuracy_score,
        "f1": functools.partial(macro, labels=[1]),
        "f1_macro": macro,
        "matthews": matthews_corrcoef,
        "pearson": functools.partial(_correlation, [pearsonr]),
        "spearman": functools.partial(_correlation, [spearmanr]),
        "pearson_spearman": functools.partial(_correlation, [pearsonr, spearmanr]),
    }


def scores(
    metrics: Sequence[str], truth: Sequence[float], predicted: Sequence[float]
) -> dict[str, float]:
    """Some metrics in percent, as scikit-learn and scipy have them.

    truth, predicted: class ids for accuracy, f1 (of class 1), f1_macro (the mean over the
    classes that occur) and matthews; numbers for pearson, spearman and their mean
    pearson_spearman. Where a score is not defined, because only one class or number
    occurs, it is 0.
    """
    from scipy.stats import DegenerateDataWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateDataWarning)
        warnings.filterwarnings("ignore", "A single label was found", UserWarning)
        found = {name: _metrics()[name](truth, predicted) for name in metrics}
    return {name: 100 * float(score) for name, score in found.items()}
