"""Sequence classification and regression: GLUE, SICK, and any table of labelled texts.

A text is [CLS] A [SEP], a pair [CLS] A [SEP] B [SEP] (BERT's paper, section 4.1).
"""

import contextlib
import dataclasses
import functools
import json
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy.special
import scipy.stats
import sklearn.metrics

from bert_jax.data import sequences
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.files import write_text
from bert_jax.settings import setting
from bert_jax.tasks import glue, tables
from bert_jax.tasks.labelled_texts import (
    Layout,
    Row,
    Split,
    has_rows,
    parse_rows,
    read_rows,
)
from bert_jax.tasks.task import Features, Predictions, Task

LAYOUTS = glue.TASKS
TABLE = "table"
_FILES = ("train", "dev", "test")
_TABLE_FIELDS = (*_FILES, "text_a", "text_b", "label", "id", "regression")
TRUNCATIONS = ("head", "tail", "head_tail", "windows")
_ENDINGS = tuple(ending + packed for ending in tables.FORMATS for packed in ("", ".gz"))


@dataclasses.dataclass(frozen=True)
class ClassificationConfig:
    """Which task, where its data is, and how long texts are cut."""

    task: str = setting(
        "",
        "one of GLUE's (cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, ax), "
        "sick_entailment or sick_relatedness; or table: CSV, TSV or JSONL with columns",
    )
    dir: str = setting(
        "",
        "the folder of the data set in its own layout, or tfds:NAME, as tfds:glue/mrpc",
    )
    train: str = setting(
        "",
        "table: a file below dir (a split of tfds); empty: train.csv, train.jsonl.gz...",
    )
    dev: str = setting("", "table: as train")
    test: str = setting(
        "", "table: as train; scored where it has labels, predicted where it has none"
    )
    text_a: str = setting("text", "table: the column of the text")
    text_b: str = setting("", "table: the column of the second text; empty: no pairs")
    label: str = setting("label", "table: the column of the label")
    id: str = setting("id", "table: the column of the id, which may be missing")
    labels: tuple[str, ...] = setting(
        (),
        "table: the labels in the order of the outputs, of two the second is positive; "
        "empty: those of the training rows, sorted",
    )
    regression: bool = setting(False, "table: whether labels are numbers")
    max_length: int = setting(128, "tokens of a sequence, [CLS] and [SEP] included")
    truncation: str = setting(
        "head",
        "what is kept of a longer text: head, tail, head_tail, or windows: overlapping "
        "sequences, each trained with the row's label, whose logits are averaged; the "
        "longer text of a pair loses tokens until both fit",
    )
    head_tokens: int = setting(128, "head_tail: tokens kept of the start")
    stride: int = setting(64, "windows: tokens from the start of one to the next")


class Classification(Task):
    """A class or a number for a text or a pair of texts.

    Metrics: accuracy; f1 and accuracy for MRPC and QQP; matthews for CoLA; pearson,
    spearman and their mean for regression; for tables accuracy and macro F1.
    """

    family = "classification"
    config_class = ClassificationConfig
    head = "sequence"
    column_widths: ClassVar[dict[str, int]] = {"text": 60, "text_a": 40, "text_b": 40}

    def __init__(self, config: ClassificationConfig):
        self.config = config
        self.layout = _layout(config)
        _check(config, pair=self._is_pair)

    @classmethod
    def configs_for_head(
        cls, labels: tuple[str, ...], problem_type: str | None, max_length: int
    ) -> tuple[ClassificationConfig, ...]:
        """Of single texts and of pairs; without labels, regression."""
        if problem_type == "multi_label_classification" or (
            problem_type == "regression" and labels
        ):
            raise UserError(
                f"the head gives {len(labels)} numbers that do not compete "
                f"({problem_type}); expected one label, or one number, for a text"
            )
        single = ClassificationConfig(
            task=TABLE, labels=labels, regression=not labels, max_length=max_length
        )
        return single, dataclasses.replace(single, text_b="text_b")

    def reads(self, line: str) -> bool:
        """Whether a line has as many texts as the task reads, one or two."""
        pair = "\t" in line
        if line.lstrip("\ufeff ").startswith("{"):
            try:
                pair = "text_b" in json.loads(line)
            except ValueError:
                pair = False  # parse names the error
        return pair == self._is_pair

    @property
    def main_metric(self) -> str:
        return self.layout.metrics[0]

    @property
    def regression(self) -> bool:
        """Whether the head gives a number instead of classes."""
        return self.layout.regression

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        if self.regression:
            return ()
        if labels := self.config.labels or self.layout.labels:
            return tuple(labels)
        rows = read_rows(self.config.dir, "train", self.layout, (), labelled=True)
        labels = tuple(sorted({str(row.label) for row in rows}))
        if len(labels) == 1:
            raise UserError(
                f"{self.config.dir}: every training row has the label {labels[0]!r}; "
                "expected two labels at least"
            )
        return labels

    @functools.cached_property
    def eval_splits(self) -> tuple[str, ...]:
        if self.config.task == TABLE and self._test_is_labelled:
            return ("dev", "test")
        return self.layout.eval_splits

    @functools.cached_property
    def predict_splits(self) -> tuple[str, ...]:
        """Those of the unlabelled splits that are there."""
        splits = self.layout.predict_splits
        if self.config.task == TABLE and not self._test_is_labelled:
            splits = ("test",)
        return tuple(
            name
            for name in splits
            if has_rows(self.config.dir, self.layout.splits[name])
        )

    def read(self, split: str) -> list[Row]:
        if split not in self.layout.splits:
            hint = (
                "; fine-tune mnli, which predicts ax"
                if self.config.task == "ax"
                else ""
            )
            raise UserError(
                f"{self.config.task} has no {split} split, it has "
                f"{', '.join(self.layout.splits)}{hint}"
            )
        labelled = split == "train" or split in self.eval_splits
        labels = self.labels if labelled else ()
        return read_rows(self.config.dir, split, self.layout, labels, labelled=labelled)

    def parse(self, lines: Iterable[str], name: str, first: int = 1) -> list[Row]:
        return parse_rows(lines, name, first, self.layout)

    def features(
        self, rows: Sequence[Row], tokenizer: Tokenizer, *, training: bool
    ) -> Features:
        first = tokenizer.encode_batch([row.text_a for row in rows])
        if self._is_pair:
            second = tokenizer.encode_batch([row.text_b or "" for row in rows])
            cut_rows = self._pairs(first, second)
        else:
            cut_rows = self._singles(first)
        input_ids, token_type_ids, numbers = [], [], []
        truncated = 0
        for number, (sequences_texts, is_cut) in enumerate(cut_rows):
            truncated += is_cut
            for texts in sequences_texts:
                ids, types = sequences.join(tokenizer, *texts)
                input_ids.append(ids)
                token_type_ids.append(types)
                numbers.append(number)
        row_numbers = np.array(numbers, np.int32)
        return Features(
            input_ids,
            token_type_ids,
            row_numbers,
            self._targets(rows, row_numbers),
            truncated=truncated,
        )

    def predictions(
        self, rows: Sequence[Row], features: Features, outputs: Sequence[np.ndarray]
    ) -> list[dict[str, Any]]:
        logits = np.zeros((len(rows), self.outputs))
        np.add.at(
            logits,
            features.row,
            np.asarray(outputs, np.float64).reshape(-1, self.outputs),
        )
        logits /= np.bincount(features.row, minlength=len(rows))[:, None]
        ids = [{} if row.id is None else {"id": row.id} for row in rows]
        if self.regression:
            return [
                i | {"value": float(value)}
                for i, value in zip(ids, logits[:, 0], strict=True)
            ]
        return [
            i
            | {
                "label": self.labels[int(p.argmax())],
                "probability": float(p.max()),
                "probabilities": dict(zip(self.labels, p.tolist(), strict=True)),
            }
            for i, p in zip(ids, scipy.special.softmax(logits, axis=1), strict=True)
        ]

    def cells(self, row: Row, prediction: dict[str, Any]) -> list[dict[str, str]]:
        """The id if there is one; the label with its probability, or the value; texts."""
        cells = {"id": prediction["id"]} if "id" in prediction else {}
        if "value" in prediction:
            cells["value"] = f"{prediction['value']:.4f}"
        else:
            cells["label"] = prediction["label"]
            cells["probability"] = f"{prediction['probability']:.4f}"
        if row.text_b is None:
            return [cells | {"text": row.text_a}]
        return [cells | {"text_a": row.text_a, "text_b": row.text_b}]

    def score(self, rows: Sequence[Row], predictions: Predictions) -> dict[str, float]:
        metrics = self.layout.metrics
        if self.regression:
            return regression_scores(
                metrics,
                [float(row.label) for row in rows],
                [prediction["value"] for prediction in predictions],
            )
        return classification_scores(
            metrics,
            [self._ids[row.label] for row in rows],
            [self._ids[prediction["label"]] for prediction in predictions],
        )

    def write(
        self, rows: Sequence[Row], predictions: Predictions, split: str, directory: Path
    ) -> list[Path]:
        """The file that GLUE's server wants, or SPLIT_predictions.tsv of the same form.

        The latter has the answer's probability too.
        """
        submission = self.layout.splits[split].submission
        path = Path(directory) / (submission or f"{split}_predictions.tsv")
        indices = [row.id or str(i) for i, row in enumerate(rows)]
        answers = [self._answer(p, bool(submission)) for p in predictions]
        text = glue.submission_text(indices, answers)
        if not submission and not self.regression:
            text = text.replace("\n", "\tprobability\n", 1)
        write_text(path, text)
        return [path]

    @property
    def _is_pair(self) -> bool:
        return any(split.text_b for split in self.layout.splits.values())

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {label: i for i, label in enumerate(self.labels)}

    @functools.cached_property
    def _test_is_labelled(self) -> bool:
        """Of a table: whether the test file has the label column."""
        split = self.layout.splits["test"]
        if tables.is_tfds(self.config.dir):
            return has_rows(self.config.dir, split)
        path = tables.find_file(self.config.dir, split.files)
        return path is not None and split.label in tables.read_columns(path)

    def _targets(self, rows: Sequence[Row], numbers: np.ndarray) -> dict[str, Any]:
        if not rows or any(row.label is None for row in rows):
            return {}
        if self.regression:
            labels = np.array([row.label for row in rows], np.float32)
        else:
            labels = np.array([self._ids[row.label] for row in rows], np.int32)
        return {"label": labels[numbers]}

    def _pairs(self, first: list[np.ndarray], second: list[np.ndarray]):
        """For each row the texts of its one sequence, and whether they lost tokens."""
        for a, b in zip(first, second, strict=True):
            lengths = sequences.pair_lengths(len(a), len(b), self.config.max_length - 3)
            parts = [self._cut(*part) for part in zip((a, b), lengths, strict=True)]
            yield [parts], lengths != (len(a), len(b))

    def _singles(self, texts: list[np.ndarray]):
        room = self.config.max_length - 2
        for ids in texts:
            if self.config.truncation == "windows":
                windows = sequences.token_windows(len(ids), room, self.config.stride)
                yield [[ids[start:stop]] for start, stop in windows], False
            else:
                yield [[self._cut(ids, room)]], len(ids) > room

    def _cut(self, ids: np.ndarray, length: int) -> np.ndarray:
        return sequences.cut(
            ids, length, self.config.truncation, self.config.head_tokens
        )

    def _answer(self, prediction: dict[str, Any], submission: bool) -> str:
        if self.regression:
            low, high = self.layout.limits or (-np.inf, np.inf)
            return f"{min(max(prediction['value'], low), high):.3f}"
        if submission:
            return prediction["label"]
        return f"{prediction['label']}\t{prediction['probability']:.6f}"


def _layout(config: ClassificationConfig) -> Layout:
    if config.task in LAYOUTS:
        for field in dataclasses.fields(config):
            value = getattr(config, field.name)
            if field.name in _TABLE_FIELDS and value != field.default:
                raise UserError(
                    f"{field.name}={value!r} is for task=table; {config.task} has its own "
                    "layout, leave it out"
                )
        return LAYOUTS[config.task]
    if config.task != TABLE:
        raise UserError(
            f"task={config.task!r} is not a classification task; expected one of "
            f"{', '.join([*LAYOUTS, TABLE])}"
        )
    in_tfds = tables.is_tfds(config.dir)
    splits = {}
    for name, default in (("train", "train"), ("dev", "validation"), ("test", "test")):
        given = getattr(config, name)
        splits[name] = Split(
            files=(given,) if given else tuple(name + ending for ending in _ENDINGS),
            text_a=config.text_a,
            text_b=config.text_b,
            label=config.label,
            index=config.id,
            tfds=(given or default) if in_tfds else "",
        )
    return Layout(
        splits,
        metrics=(
            ("pearson", "spearman", "pearson_spearman")
            if config.regression
            else ("accuracy", "f1_macro")
        ),
        regression=config.regression,
        tfds=(config.text_a, config.text_b, config.label),
    )


def _check(config: ClassificationConfig, *, pair: bool) -> None:
    """Raises where lengths and truncation do not go together."""
    room = config.max_length - (3 if pair else 2)
    if room < 1 + pair:
        raise UserError(
            f"max_length={config.max_length} leaves no room for text; set it to "
            f"{4 + pair} at least"
        )
    if config.truncation not in TRUNCATIONS:
        raise UserError(
            f"truncation={config.truncation!r} is unknown; expected one of "
            f"{', '.join(TRUNCATIONS)}"
        )
    if config.truncation == "windows" and pair:
        raise UserError(
            "truncation=windows is for single texts, and the task has two; expected head, "
            "tail or head_tail"
        )
    if config.truncation == "windows" and not 1 <= config.stride <= room:
        raise UserError(
            f"stride={config.stride} skips text or never ends; expected 1 to {room}, what "
            "a window holds"
        )
    if config.truncation == "head_tail" and not 1 <= config.head_tokens < room:
        raise UserError(
            f"head_tokens={config.head_tokens} leaves no room for the end; expected 1 to "
            f"{room - 1} at max_length={config.max_length}"
        )


_CLASS_METRICS = {
    "accuracy": sklearn.metrics.accuracy_score,
    "f1": functools.partial(
        sklearn.metrics.f1_score, labels=[1], average="macro", zero_division=0
    ),
    "f1_macro": functools.partial(
        sklearn.metrics.f1_score, average="macro", zero_division=0
    ),
    "matthews": sklearn.metrics.matthews_corrcoef,
}


def classification_scores(
    metrics: Sequence[str], truth: Sequence[int], predicted: Sequence[int]
) -> dict[str, float]:
    """Some of accuracy, f1 (of class 1), f1_macro and matthews (scikit-learn).

    truth, predicted: class ids. f1_macro: the mean over the classes that occur. Where a
    score is not defined, because only one class occurs, it is 0.
    """
    with _quiet():
        return {n: 100 * float(_CLASS_METRICS[n](truth, predicted)) for n in metrics}


def regression_scores(
    metrics: Sequence[str], truth: Sequence[float], predicted: Sequence[float]
) -> dict[str, float]:
    """Some of pearson, spearman, and their mean pearson_spearman (scipy).

    The correlation of a constant with anything is 0.
    """
    truth, predicted = np.asarray(truth, float), np.asarray(predicted, float)
    pearson = _correlation(scipy.stats.pearsonr, truth, predicted)
    spearman = _correlation(scipy.stats.spearmanr, truth, predicted)
    scores = {
        "pearson": pearson,
        "spearman": spearman,
        "pearson_spearman": (pearson + spearman) / 2,
    }
    return {name: 100 * scores[name] for name in metrics}


def _correlation(function: Callable, truth: np.ndarray, predicted: np.ndarray) -> float:
    if len(truth) < 2:
        return 0.0
    with _quiet():
        value = float(function(truth, predicted).statistic)
    return value if math.isfinite(value) else 0.0


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings that an input is (nearly) constant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.stats.ConstantInputWarning)
        warnings.simplefilter("ignore", scipy.stats.NearConstantInputWarning)
        warnings.filterwarnings("ignore", "A single label was found", UserWarning)
        yield
