"""Multiple choice: each choice is a sequence with the context, scored by one number.

[CLS] context [SEP] choice [SEP], softmax over a row's choices (BERT's paper, section
4.4, for SWAG: sentence A is the given sentence, B its possible continuation). Rows come
from SWAG's csv, CODAH's tsv, and JSONL with any number of choices.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy

from bert_jax.data import sequences
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.settings import check_ranges, setting
from bert_jax.tasks import tables
from bert_jax.tasks.task import Features, Outputs, Predictions, Task, with_id

FOLDS = 5
Record = tuple[
    str, dict[str, Any]
]  # a row's place; "context", "choices", "label", "id"
_SWAG_ENDINGS = ("ending0", "ending1", "ending2", "ending3")
_CODAH_CHOICES = ("choice0", "choice1", "choice2", "choice3")
_CODAH_COLUMNS = ("category", "prompt", *_CODAH_CHOICES, "label")


@dataclasses.dataclass(frozen=True, slots=True)
class ChoiceRow:
    """A context and what may follow it. label: which one does, from 0."""

    where: str
    context: str
    choices: tuple[str, ...]
    label: int | None = None
    id: str | None = None


def read_swag(path: Path, labelled: bool) -> Iterator[Record]:
    """SWAG (Zellers et al. 2018): the context is sent1, a choice is sent2 + ending."""
    columns = ["sent1", "sent2", *_SWAG_ENDINGS, *["label"] * labelled]
    for where, row in tables.read_table(path, columns, optional=["fold-ind"]):
        choices = [f"{row['sent2']} {row[name]}".strip() for name in _SWAG_ENDINGS]
        row |= {"context": row["sent1"], "choices": choices, "id": row["fold-ind"]}
        yield where, row


def read_codah(path: Path, labelled: bool) -> Iterator[Record]:
    """CODAH (Chen et al. 2019): category, prompt, four choices, label; no header."""
    columns = ["prompt", *_CODAH_CHOICES, *["label"] * labelled]
    for where, row in tables.read_table(path, columns, header=_CODAH_COLUMNS):
        choices = [row[name] for name in _CODAH_CHOICES]
        yield where, row | {"context": row["prompt"], "choices": choices}


def _row(where: str, value: dict[str, Any], labelled: bool) -> ChoiceRow:
    """A row whose texts and label are checked."""
    for name in ("context", "choices", *["label"] * labelled):
        if value.get(name) is None:
            raise tables.missing_column(where, value, name)
    context, choices, index = value["context"], value["choices"], value.get("id")
    if not isinstance(choices, list) or not all(
        isinstance(text, str) for text in [context, *choices]
    ):
        raise UserError(
            f"{where}: expected a string as 'context' and a list of strings as 'choices'"
        )
    if len(choices) < 2:
        raise UserError(
            f"{where}: number of choices is {len(choices)}; expected two or more after "
            "the context"
        )
    tables.check_texts(where, [context, *choices])
    label = None
    if labelled:
        label = tables.cell(value["label"])
        if not (label.isdecimal() and int(label) < len(choices)):
            raise UserError(
                f"{where}: label {label!r} is not in the label set 0 to "
                f"{len(choices) - 1}, the number of the right choice"
            )
        label = int(label)
    index = None if index is None else tables.cell(index)
    return ChoiceRow(where, context, tuple(choices), label, index)


_READERS = {
    "swag": read_swag,
    "codah": read_codah,
    # Objects {"context": "...", "choices": ["...", ...], "label": 0, "id": ...}.
    "table": lambda path, labelled: tables.read_objects(path),
}
_CODAH_WHOLE = ("codah.tsv", "dataset.tsv", "full_data.tsv")  # without splits
_FILES = {
    "swag": ("{val}.csv",),
    "codah": (
        "cv_split/fold_{fold}/{split}.tsv",
        "fold_{fold}/{split}.tsv",
        *_CODAH_WHOLE,
    ),
    "table": ("{split}.jsonl", "{split}.jsonl.gz", "{split}.ndjson"),
}


@dataclasses.dataclass(frozen=True)
class MultipleChoiceConfig:
    """Which data set, and where."""

    task: str = setting(
        "",
        "swag: its csv files; codah; or table: JSONL with context, choices (any number, "
        "which may differ from row to row) and label, from 0",
        one_of=_FILES,
    )
    dir: str = setting("", "the folder of the files")
    train: str = setting(
        "",
        "swag, table: a file below dir; empty: train.csv of SWAG, train.jsonl of tables",
    )
    dev: str = setting("", "as train; empty: val.csv or dev.jsonl")
    test: str = setting(
        "", "as train; SWAG's is predicted, a table's is scored where it has labels"
    )
    fold: int = setting(
        0,
        "codah: which of the five folds is the test set: the authors' own folds "
        "(cv_split/fold_0/train.tsv), or without them each fifth row; the row after it is "
        "dev",
        least=0,
        below=FOLDS,
    )
    max_length: int = setting(
        128,
        "tokens of a sequence; the longer of context and choice loses its end",
        least=5,
    )

    def __post_init__(self):
        check_ranges(self, "data.")
        if self.task == "codah" and (self.train or self.dev or self.test):
            raise UserError(
                "train, dev and test are for task=swag and table; CODAH's files are "
                "found in dir, leave them out"
            )


class MultipleChoice(Task):
    """The right one of several texts that may follow a context; metric: accuracy."""

    family = "multiple_choice"
    config_class = MultipleChoiceConfig
    column_widths: ClassVar[dict[str, int]] = {"choice": 40, "context": 40}
    head = "choice"
    main_metric = "accuracy"

    @classmethod
    def configs_for_head(cls, checkpoint: Any) -> tuple[MultipleChoiceConfig, ...]:
        """Rows of any number of choices."""
        longest = checkpoint.config.max_positions
        return (MultipleChoiceConfig(task="table", max_length=longest),)

    @functools.cached_property
    def eval_splits(self) -> tuple[str, ...]:
        scored = self.config.task == "codah"
        if self.config.task == "table" and (path := self._find("test")):
            scored = "label" in tables.read_columns(path)
        return ("dev", "test") if scored else ("dev",)

    @functools.cached_property
    def predict_splits(self) -> tuple[str, ...]:
        unscored = "test" not in self.eval_splits and self._find("test")
        return ("test",) if unscored else ()

    def read(self, split: str) -> list[ChoiceRow]:
        config = self.config
        labelled = split == "train" or split in self.eval_splits
        path = tables.existing_file(config.dir, self._names(split))
        records = _READERS[config.task](path, labelled)
        rows = [_row(where, value, labelled) for where, value in records]
        if config.task != "codah" or path.name not in _CODAH_WHOLE:
            return rows
        # Of each five rows one is test, the next dev, the rest train: the shares of the
        # paper's cross-validation, each row once in the five test sets.
        splits = ["test", "dev", "train", "train", "train"]
        return [
            r for i, r in enumerate(rows) if splits[(i - config.fold) % FOLDS] == split
        ]

    def parse(self, lines: Iterable[str], name: str, first: int = 1) -> list[ChoiceRow]:
        """Context and choices with tabs between, or JSON objects."""
        rows = []
        for where, value in tables.parse_lines(lines, name, first):
            if isinstance(value, list):
                value = {"context": value[0], "choices": value[1:]}
            rows.append(_row(where, value, labelled=False))
        return rows

    def features(self, rows: list[ChoiceRow], tokenizer: Tokenizer) -> Features:
        """Rows with fewer choices than others are padded with sequences [CLS] [SEP].

        Where there are any, targets have "choice_mask", float32 (rows, choices), 0 for
        what is no choice.
        """
        contexts = tokenizer.encode_batch([row.context for row in rows])
        texts = iter(tokenizer.encode_batch([c for row in rows for c in row.choices]))
        counts = np.array([len(row.choices) for row in rows], np.int32)
        most = int(counts.max(initial=1))
        room = self.config.max_length - 3
        filler = sequences.join(tokenizer, np.zeros(0, tokenizer.dtype))
        joined, truncated = [], 0
        for row, context in zip(rows, contexts, strict=True):
            choices = list(itertools.islice(texts, len(row.choices)))
            for choice in choices:
                first, second = sequences.pair_lengths(len(context), len(choice), room)
                parts = context[:first], choice[:second]
                joined.append(sequences.join(tokenizer, *parts))
            joined += [filler] * (most - len(choices))
            truncated += len(context) + max(map(len, choices)) > room
        mask = np.arange(most) < counts[:, None]
        targets = {}
        if rows and all(row.label is not None for row in rows):
            targets = {"label": np.array([row.label for row in rows], np.int32)}
            if not mask.all():
                targets["choice_mask"] = mask.astype(np.float32)
        return Features(
            [ids for ids, _ in joined],
            [types for _, types in joined],
            np.repeat(np.arange(len(rows), dtype=np.int32), most),
            targets,
            choices=most,
            truncated=truncated,
        )

    def predictions(
        self, rows: list[ChoiceRow], features: Features, outputs: Outputs
    ) -> Predictions:
        """{"choice": number, "text", "probability", "probabilities": one a choice}."""
        scores = np.asarray(outputs, np.float64).reshape(-1, features.choices)
        answers = []
        for row, row_scores in zip(rows, scores, strict=True):
            p = scipy.special.softmax(row_scores[: len(row.choices)])
            best = int(p.argmax())
            answer = {
                "choice": best,
                "text": row.choices[best],
                "probability": float(p[best]),
                "probabilities": p.tolist(),
            }
            answers.append(with_id(row, answer))
        return answers

    def cells(self, row: ChoiceRow, prediction: dict[str, Any]) -> list[dict[str, str]]:
        """The number of the choice, its probability, its text and the context."""
        cells = {
            "number": str(prediction["choice"]),
            "probability": f"{prediction['probability']:.4f}",
            "choice": prediction["text"],
            "context": row.context,
        }
        return [with_id(row, cells)]

    def score(
        self, rows: list[ChoiceRow], predictions: Predictions
    ) -> dict[str, float]:
        pairs = zip(rows, predictions, strict=True)
        right = [row.label == answer["choice"] for row, answer in pairs]
        return {"accuracy": 100 * float(np.mean(right))}

    def files(
        self, rows: list[ChoiceRow], predictions: Predictions, split: str
    ) -> dict[str, str]:
        """SPLIT_predictions.csv, row number and choice, as csv_predict.py of SWAG."""
        lines = [",pred", *(f"{i},{p['choice']}" for i, p in enumerate(predictions))]
        return {f"{split}_predictions.csv": "\n".join(lines) + "\n"}

    def _find(self, split: str) -> Path | None:
        return tables.find_file(self.config.dir, self._names(split))

    def _names(self, split: str) -> list[str]:
        """Where the file of a split may lie."""
        if given := getattr(self.config, split):
            return [given]
        words = {"split": split, "val": "val" if split == "dev" else split}
        names = _FILES[self.config.task]
        return [name.format(fold=self.config.fold, **words) for name in names]
