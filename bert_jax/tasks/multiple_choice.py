"""Multiple choice: each choice is a sequence with the context, scored by one number.

[CLS] context [SEP] choice [SEP], softmax over the choices of a row (BERT's paper, section
4.4, for SWAG: sentence A is the given sentence, B its possible continuation). Rows come
from SWAG's csv, CODAH's tsv, and JSONL with any number of choices.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy

from bert_jax.data import sequences
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.settings import check_ranges, setting
from bert_jax.tasks.rows import (
    Record,
    Row,
    check_texts,
    read_rows,
    text_of,
    value_of,
)
from bert_jax.tasks.source import Source
from bert_jax.tasks.task import Answer, Features, Outcome, Outputs, Task, with_id

FOLDS = 5
# Zellers et al. (2018): a choice is sent2 and an ending.
_SWAG = ("sent1", "sent2", "ending0", "ending1", "ending2", "ending3")
# Chen et al. (2019). The file has no header.
_CODAH = ("category", "prompt", "choice0", "choice1", "choice2", "choice3", "label")
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


@dataclasses.dataclass(frozen=True, slots=True)
class ChoiceRow:
    """A context and what may follow it. label: the number of the right choice, from 0."""

    where: str
    context: str
    choices: tuple[str, ...]
    label: int | None = None
    id: Any = None


@dataclasses.dataclass(frozen=True)
class MultipleChoiceConfig:
    """Which data set, and where."""

    task: str = setting(
        "",
        "swag: its csv files; codah; or table: JSONL with context, choices (any number, "
        "which may differ from row to row) and label, from 0",
        one_of=_FILES,
    )
    dir: str = setting("", "the folder of the files, hf:NAME or tfds:NAME")
    train: str = setting("", "a file below dir; empty: the usual name, or train.jsonl")
    dev: str = setting("", "as train; empty: the usual name, or dev.jsonl")
    test: str = setting("", "as train; scored if it has labels, otherwise predicted")
    fold: int = setting(
        0,
        "codah: which of the five folds (cv_split/fold_0) is used; without such files "
        "each fifth row is test and the next one is dev",
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


class ChoiceSource(Source):
    """The files of SWAG and CODAH, or a table."""

    def file_names(self, split: str) -> Sequence[str]:
        words = {"split": split, "val": "val" if split == "dev" else split}
        names = _FILES[self.config.task]
        return tuple(name.format(fold=self.config.fold, **words) for name in names)

    def read_file(self, path: Path, split: str) -> Iterator[Record]:
        if self.config.task != "codah":
            return read_rows(path)
        found = read_rows(path, header=_CODAH)
        if path.name not in _CODAH_WHOLE:
            return found
        # One of five rows is test, the next dev, the others train. The shares equal the
        # paper's cross-validation, and each row is in one of the five test sets.
        splits = ["test", "dev", "train", "train", "train"]
        fold, numbered = self.config.fold, enumerate(found)
        return (row for i, row in numbered if splits[(i - fold) % FOLDS] == split)


class MultipleChoice(Task):
    """The right one of several texts that may follow a context; metric: accuracy."""

    family = "multiple_choice"
    config_class = MultipleChoiceConfig
    source_class = ChoiceSource
    head = "choice"
    main_metric = "accuracy"
    columns: ClassVar = {name: (name,) for name in ("context", "choices", "label")}

    @classmethod
    def for_head(cls, checkpoint: Any) -> "MultipleChoice | None":
        """Rows of any number of choices."""
        longest = checkpoint.config.max_positions
        config = MultipleChoiceConfig(task="table", max_length=longest)
        return cls(config) if checkpoint.head == cls.head else None

    def row(self, where: str, values: Mapping[str, Any], labelled: bool) -> ChoiceRow:
        """A row in the form of a table, or of the data set."""
        identity = values.get("id")
        if "context" in values or self.config.task == "table":
            context = text_of(where, values, ["context"])
            choices = value_of(where, values, ["choices"])
        else:
            swag = self.config.task == "swag"
            names = _SWAG if swag else _CODAH[1:-1]
            context, *choices = (text_of(where, values, [name]) for name in names)
            if swag:
                second, *endings = choices
                choices = [f"{second} {ending}".strip() for ending in endings]
                identity = values.get("fold-ind")
        if (
            not isinstance(choices, list | tuple)
            or len(choices) < 2
            or not all(isinstance(text, str) for text in choices)
        ):
            raise UserError(f"{where}: 'choices' are no list of two or more texts")
        label = None
        if labelled:
            check_texts(where, [context, *choices])
            label = str(value_of(where, values, ["label"]))
            numbers = [str(i) for i in range(len(choices))]
            if label not in numbers:
                raise UserError(
                    f"{where}: label {label!r} is not in the label set 0 to {numbers[-1]}, "
                    "the number of the right choice"
                )
            label = int(label)
        return ChoiceRow(where, context, tuple(choices), label, identity)

    def values(self, where: str, row: Row, *, labelled: bool) -> dict[str, Any]:
        """A tuple has a context and a list of choices, or a context and each choice."""
        if isinstance(row, tuple) and len(row) > 1 and not labelled:
            choices = row[1] if isinstance(row[1], list | tuple) else row[1:]
            row = (row[0], choices)
        return super().values(where, row, labelled=labelled)

    def encode(self, rows: list[ChoiceRow], tokenizer: Tokenizer) -> Features:
        """Rows with fewer choices than others are padded with sequences [CLS] [SEP].

        targets then have "choice_mask", float32 (rows, choices), 0 for the padding.
        """
        texts = iter(
            tokenizer.encode_batch(
                [text for row in rows for text in (row.context, *row.choices)]
            )
        )
        counts = np.array([len(row.choices) for row in rows], np.int32)
        most = int(counts.max(initial=1))
        room = self.config.max_length - 3
        padding = sequences.join(tokenizer, np.zeros(0, tokenizer.dtype))
        joined, truncated = [], 0
        for row in rows:
            context, *choices = itertools.islice(texts, 1 + len(row.choices))
            for choice in choices:
                first, second = sequences.pair_lengths(len(context), len(choice), room)
                parts = context[:first], choice[:second]
                joined.append(sequences.join(tokenizer, *parts))
            joined += [padding] * (most - len(choices))
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

    def decode(
        self, rows: list[ChoiceRow], features: Features, outputs: Outputs
    ) -> list[Answer]:
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

    def cells(self, row: ChoiceRow, answer: Answer) -> list[dict[str, str]]:
        """The number of the choice, all probabilities, its text and the context."""
        cells = {
            "number": str(answer["choice"]),
            "probabilities": " ".join(f"{p:.4f}" for p in answer["probabilities"]),
            "choice": answer["text"],
            "context": row.context,
        }
        return [with_id(row, cells)]

    def score(self, rows: list[ChoiceRow], answers: list[Answer]) -> dict[str, float]:
        pairs = zip(rows, answers, strict=True)
        right = [row.label == answer["choice"] for row, answer in pairs]
        return {"accuracy": 100 * float(np.mean(right))}

    def outcomes(self, row: ChoiceRow, answer: Answer) -> Iterator[Outcome]:
        """The choice. Its class is its number."""
        gold, found = row.label, answer["choice"]
        texts, p = (row.choices[gold], answer["text"]), answer["probability"]
        classes = str(gold), str(found)
        yield Outcome(row.context, *texts, p, gold == found, classes=classes)

    def export(
        self, rows: list[ChoiceRow], answers: list[Answer], split: str
    ) -> dict[str, str]:
        """SPLIT_predictions.csv, row number and choice, as csv_predict.py of SWAG."""
        lines = [",pred", *(f"{i},{x['choice']}" for i, x in enumerate(answers))]
        return {f"{split}_predictions.csv": "\n".join(lines) + "\n"}
