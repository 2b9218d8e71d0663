"""Multiple choice: each choice is a sequence with the context, scored by one number.

[CLS] context [SEP] choice [SEP], softmax over a row's choices (BERT's paper, section
4.4, for SWAG: sentence A is the given sentence, B its possible continuation). Rows come
from SWAG's csv, CODAH's tsv, and JSONL with any number of choices.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy.special
import sklearn.metrics

from bert_jax.data import sequences
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.files import write_text
from bert_jax.settings import setting
from bert_jax.tasks import tables
from bert_jax.tasks.task import Features, Predictions, Task

FOLDS = 5
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


def read_swag(path: Path, *, labelled: bool) -> Iterator[ChoiceRow]:
    """SWAG (Zellers et al. 2018): the context is sent1, a choice is sent2 + ending."""
    columns = ["sent1", "sent2", *_SWAG_ENDINGS, *(["label"] if labelled else [])]
    for where, row in tables.read_table(path, columns, optional=["fold-ind"]):
        choices = [f"{row['sent2']} {row[name]}".strip() for name in _SWAG_ENDINGS]
        yield _row(where, row["sent1"], choices, row.get("label"), row["fold-ind"])


def read_codah(path: Path) -> Iterator[ChoiceRow]:
    """CODAH (Chen et al. 2019): category, prompt, four choices, label; no header."""
    columns = ["prompt", *_CODAH_CHOICES, "label"]
    for where, row in tables.read_table(path, columns, header=_CODAH_COLUMNS):
        choices = [row[name] for name in _CODAH_CHOICES]
        yield _row(where, row["prompt"], choices, row["label"])


def in_fold(number: int, split: str, fold: int) -> bool:
    """Whether row ``number`` of a file without splits is in this one.

    Of each five rows one is test (number % 5 == fold), the next dev, the rest train:
    the shares of the paper's cross-validation, each row once in the five test sets.
    """
    place = (number - fold) % FOLDS
    return split == {0: "test", 1: "dev"}.get(place, "train")


def read_jsonl(path: Path, *, labelled: bool) -> Iterator[ChoiceRow]:
    """Objects {"context": "...", "choices": ["...", ...], "label": 0, "id": ...}."""
    for where, value in tables.read_objects(path):
        yield _from_object(value, where, labelled=labelled)


def parse_choices(lines: Iterable[str], name: str, first: int) -> list[ChoiceRow]:
    """Rows without labels: context and choices with tabs between, or JSON objects."""
    rows = []
    for where, value in tables.parse_lines(lines, name, first):
        if isinstance(value, dict):
            rows.append(_from_object(value, where, labelled=False))
        else:
            rows.append(_row(where, value[0], value[1:]))
    return rows


def _from_object(value: dict[str, Any], where: str, *, labelled: bool) -> ChoiceRow:
    for name in ("context", "choices", *(["label"] if labelled else [])):
        if value.get(name) is None:
            raise tables.missing_column(where, name, value)
    context, choices = value["context"], value["choices"]
    if not isinstance(choices, list) or not all(
        isinstance(text, str) for text in [context, *choices]
    ):
        raise UserError(
            f"{where}: expected a string as 'context' and a list of strings as 'choices'"
        )
    label = tables.cell(value["label"]) if labelled else None
    index = value.get("id")
    return _row(
        where, context, choices, label, None if index is None else tables.cell(index)
    )


def _row(
    where: str,
    context: str,
    choices: Sequence[str],
    label: str | None = None,
    index: str | None = None,
) -> ChoiceRow:
    """A row whose texts and label are checked."""
    if len(choices) < 2:
        raise UserError(
            f"{where}: number of choices is {len(choices)}; expected two or more after "
            "the context"
        )
    if not all(text.strip() for text in (context, *choices)):
        raise UserError(
            f"{where}: empty text; expected words as context and in every choice"
        )
    if label is not None and not (label.isdecimal() and int(label) < len(choices)):
        raise UserError(
            f"{where}: label {label!r} is not in the label set 0 to {len(choices) - 1}, "
            "the number of the right choice"
        )
    number = None if label is None else int(label)
    return ChoiceRow(where, context, tuple(choices), number, index)


SPLITS = ("train", "dev", "test")
_FILES = {
    "swag": {"train": ("train.csv",), "dev": ("val.csv",), "test": ("test.csv",)},
    "table": {
        split: (f"{split}.jsonl", f"{split}.jsonl.gz", f"{split}.ndjson")
        for split in SPLITS
    },
}
_CODAH_FILES = ("codah.tsv", "dataset.tsv", "full_data.tsv")
_CODAH_FOLDS = ("cv_split/fold_{}", "fold_{}")


@dataclasses.dataclass(frozen=True)
class MultipleChoiceConfig:
    """Which data set, and where."""

    task: str = setting(
        "",
        "swag: its csv files; codah; or table: JSONL with context, choices (any number, "
        "which may differ from row to row) and label, from 0",
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
    )
    max_length: int = setting(
        128, "tokens of a sequence; the longer of context and choice loses its end"
    )


class MultipleChoice(Task):
    """The right one of several texts that may follow a context; metric: accuracy."""

    family = "multiple_choice"
    config_class = MultipleChoiceConfig
    column_widths: ClassVar[dict[str, int]] = {"choice": 40, "context": 40}
    head = "choice"
    labels = ()
    main_metric = "accuracy"

    def __init__(self, config: MultipleChoiceConfig):
        if config.task not in ("swag", "codah", "table"):
            raise UserError(
                f"task={config.task!r} is not a multiple choice task; expected swag, "
                "codah or table"
            )
        if config.task == "codah" and (config.train or config.dev or config.test):
            raise UserError(
                "train, dev and test are for task=swag and table; CODAH's files are "
                "found in dir, leave them out"
            )
        if not 0 <= config.fold < FOLDS:
            raise UserError(f"fold={config.fold}; expected 0 to {FOLDS - 1}")
        if config.max_length < 5:
            raise UserError(
                f"max_length={config.max_length} leaves no room for text; set it to 5 at "
                "least"
            )
        self.config = config

    @classmethod
    def configs_for_head(
        cls, labels: tuple[str, ...], problem_type: str | None, max_length: int
    ) -> tuple[MultipleChoiceConfig, ...]:
        """Rows of any number of choices."""
        del labels, problem_type
        return (MultipleChoiceConfig(task="table", max_length=max_length),)

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
        labelled = split == "train" or split in self.eval_splits
        if self.config.task == "codah":
            rows = self._read_codah(split)
        else:
            reader = read_swag if self.config.task == "swag" else read_jsonl
            path = tables.existing_file(self.config.dir, self._names(split))
            rows = list(reader(path, labelled=labelled))
        if not rows:
            raise UserError(
                f"{self.config.dir}: the {split} split has no rows; expected some"
            )
        return rows

    def parse(self, lines: Iterable[str], name: str, first: int = 1) -> list[ChoiceRow]:
        return parse_choices(lines, name, first)

    def features(
        self, rows: Sequence[ChoiceRow], tokenizer: Tokenizer, *, training: bool
    ) -> Features:
        """Rows with fewer choices than others are padded with sequences [CLS] [SEP].

        extra: whether a sequence is a choice of its row. Where rows are padded,
        targets have "choice_mask", float32 (rows, choices), 0 for what is no choice.
        """
        contexts = tokenizer.encode_batch([row.context for row in rows])
        texts = iter(tokenizer.encode_batch([c for row in rows for c in row.choices]))
        most = max((len(row.choices) for row in rows), default=1)
        room = self.config.max_length - 3
        input_ids, token_type_ids = [], []
        filler = sequences.join(tokenizer, np.zeros(0, tokenizer.dtype))
        truncated = 0
        for row, context in zip(rows, contexts, strict=True):
            cut = False
            for _ in row.choices:
                choice = next(texts)
                first, second = sequences.pair_lengths(len(context), len(choice), room)
                cut |= first + second < len(context) + len(choice)
                ids, types = sequences.join(tokenizer, context[:first], choice[:second])
                input_ids.append(ids)
                token_type_ids.append(types)
            truncated += cut
            missing = most - len(row.choices)
            input_ids += [filler[0]] * missing
            token_type_ids += [filler[1]] * missing
        counts = np.array([len(row.choices) for row in rows], np.int32)
        mask = np.arange(most) < counts[:, None]
        return Features(
            input_ids,
            token_type_ids,
            np.repeat(np.arange(len(rows), dtype=np.int32), most),
            _targets(rows, mask),
            choices=most,
            extra=mask.reshape(-1).tolist(),
            truncated=truncated,
        )

    def predictions(
        self,
        rows: Sequence[ChoiceRow],
        features: Features,
        outputs: Sequence[np.ndarray],
    ) -> list[dict[str, Any]]:
        """{"choice": number, "text", "probability", "probabilities": one a choice}."""
        shape = (len(rows), features.choices)
        scores = np.asarray(outputs, np.float64).reshape(shape)
        scores = np.where(np.reshape(features.extra, shape), scores, -np.inf)
        answers = []
        for row, p in zip(rows, scipy.special.softmax(scores, axis=1), strict=True):
            best = int(p.argmax())
            answer = {
                "choice": best,
                "text": row.choices[best],
                "probability": float(p[best]),
                "probabilities": p[: len(row.choices)].tolist(),
            }
            answers.append(answer if row.id is None else {"id": row.id} | answer)
        return answers

    def cells(self, row: ChoiceRow, prediction: dict[str, Any]) -> list[dict[str, str]]:
        """The number of the choice, its probability, its text and the context."""
        cells = {"id": prediction["id"]} if "id" in prediction else {}
        cells["number"] = str(prediction["choice"])
        cells["probability"] = f"{prediction['probability']:.4f}"
        return [cells | {"choice": prediction["text"], "context": row.context}]

    def score(
        self, rows: Sequence[ChoiceRow], predictions: Predictions
    ) -> dict[str, float]:
        accuracy = sklearn.metrics.accuracy_score(
            [row.label for row in rows], [answer["choice"] for answer in predictions]
        )
        return {"accuracy": 100 * float(accuracy)}

    def write(
        self,
        rows: Sequence[ChoiceRow],
        predictions: Predictions,
        split: str,
        directory: Path,
    ) -> list[Path]:
        """SPLIT_predictions.csv, row number and choice, as csv_predict.py of SWAG."""
        path = Path(directory) / f"{split}_predictions.csv"
        lines = [",pred", *(f"{i},{p['choice']}" for i, p in enumerate(predictions))]
        write_text(path, "\n".join(lines) + "\n")
        return [path]

    def _find(self, split: str) -> Path | None:
        return tables.find_file(self.config.dir, self._names(split))

    def _names(self, split: str) -> tuple[str, ...]:
        given = getattr(self.config, split)
        return (given,) if given else _FILES[self.config.task][split]

    def _read_codah(self, split: str) -> list[ChoiceRow]:
        folds = [f"{f.format(self.config.fold)}/{split}.tsv" for f in _CODAH_FOLDS]
        path = tables.find_file(self.config.dir, folds)
        if path is not None:
            return list(read_codah(path))
        path = tables.existing_file(self.config.dir, _CODAH_FILES)
        return [
            row
            for number, row in enumerate(read_codah(path))
            if in_fold(number, split, self.config.fold)
        ]


def _targets(rows: Sequence[ChoiceRow], mask: np.ndarray) -> dict[str, Any]:
    if not rows or any(row.label is None for row in rows):
        return {}
    targets = {"label": np.array([row.label for row in rows], np.int32)}
    if not mask.all():
        targets["choice_mask"] = mask.astype(np.float32)
    return targets
