"""Multiple choice: each choice is a sequence with the context, scored by one number.

[CLS] context [SEP] choice [SEP], softmax over the choices of a row (BERT's paper, section
4.4, for SWAG: sentence A is the given sentence, B its possible continuation). Rows come
from SWAG's csv, CODAH's tsv, and tables with any number of choices.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy

from bert_jax.data.sequences import fit
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.settings import setting
from bert_jax.tasks.data_sets import CODAH, DATA_SETS, SWAG
from bert_jax.tasks.rows import (
    Record,
    check_texts,
    ending,
    name_in,
    read_rows,
    text_of,
    value_of,
)
from bert_jax.tasks.splits import DataConfig, Form, named_columns
from bert_jax.tasks.task import (
    Answer,
    Answers,
    Features,
    Outcome,
    Outputs,
    Scores,
    Task,
    joined_features,
    with_id,
)


@dataclasses.dataclass(frozen=True, slots=True)
class ChoiceRow:
    """A context and its choices. label: number of the right choice, from 0."""

    where: str
    context: str
    choices: tuple[str, ...]
    label: int | None = None
    id: Any = None


Rows = list[ChoiceRow]


@dataclasses.dataclass(frozen=True)
class MultipleChoiceConfig(DataConfig):
    """The data set of multiple choice."""

    task: str = setting(
        "table",
        "swag or codah (their files), or table: context, two or more choices, and label",
        one_of=DATA_SETS["multiple_choice"],
    )
    fold: int = setting(
        0, "codah: number of the test fold; the next fold is dev", least=0, below=5
    )
    max_length: int = setting(128, "maximum number of tokens of a sequence", least=5)
    context: str = setting("", "table: column of the context; empty: context or sent1")
    choices: str = setting("", "table: column of the choices; empty: choices")
    label: str = setting("", "table: column of the right choice; empty: label")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceForm(Form):
    """A table with a column of choices."""

    lists: tuple[str, ...] = ("choices",)
    classes: Literal["none", "one", "many"] = "none"

    def by_position(self, where: str, row: Any, labelled: bool) -> dict[str, Any]:
        """A tuple is (context, choices) or, without a label, (context, choice, ...)."""
        if isinstance(row, tuple) and len(row) > 1 and not labelled:
            context, choices, *more = row
            if not isinstance(choices, list | tuple):
                choices = (choices, *more)
            row = (context, choices)
        return super().by_position(where, row, labelled)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodahForm(ChoiceForm):
    """CODAH's file of all rows. fold: number of the test fold."""

    fold: int

    def read_file(self, path: Path, split: str) -> Iterator[Record]:
        if ending(path) != ".tsv":
            yield from super().read_file(path, split)
            return
        for where, row in read_rows(path, header=CODAH):
            yield where, row | {"choices": [row[name] for name in CODAH[2:6]]}

    def part(self, placed: Iterator[Record], split: str) -> Iterator[Record]:
        """Each row is in one of the five test sets.

        Out of five rows one is test, the next dev, and the other three train, as many as in
        the paper's cross-validation.
        """
        splits = ["test", "dev", "train", "train", "train"]
        for number, row in enumerate(placed):
            if splits[(number - self.fold) % 5] == split:
                yield row


def choice_form(config: MultipleChoiceConfig) -> Form:
    """The form of a table, or of the files of SWAG and CODAH."""
    usual = {
        "context": ("context", "sent1"),
        "choices": ("choices",),
        "label": ("label",),
    }
    settings = {
        "columns": named_columns(config, usual),
        "usual": usual,
        "data_set": DATA_SETS["multiple_choice"][config.task],
    }
    if config.task == "codah":
        return CodahForm(fold=config.fold, **settings)
    if config.task == "swag":  # each ending is a column
        settings["others"] = ("id", "fold-ind", *SWAG)
        if not config.choices:
            settings["optional"] = ("choices",)
    return ChoiceForm(**settings)


class MultipleChoice(Task):
    """The right one of several texts that may follow a context; metric: accuracy."""

    family = "multiple_choice"
    function = "choices"
    config_class = MultipleChoiceConfig
    head = "choice"
    gold = "label"
    main_metric = "accuracy"

    def __init__(self, config: MultipleChoiceConfig):
        super().__init__(config)
        self.form = choice_form(config)

    def row(self, where: str, values: Mapping[str, Any], labelled: bool) -> ChoiceRow:
        """A row with the columns of a table, or of SWAG."""
        columns = self.form.columns
        context = text_of(where, values, columns["context"])
        names = columns.get("choices", ())
        has_choices = name_in(values, names)
        if self.config.task == "swag" and not has_choices:
            start, *ends = (text_of(where, values, [name]) for name in SWAG)
            choices = [f"{start} {end}".strip() for end in ends]
        else:
            choices = value_of(where, values, names)
        is_list = isinstance(choices, list | tuple) and len(choices) > 1
        if not is_list or not all(isinstance(text, str) for text in choices):
            raise UserError(f"{where}: 'choices' must be a list of at least two texts")
        label = None
        if labelled:
            check_texts(where, [context, *choices])
            value = value_of(where, values, columns["label"])
            last = len(choices) - 1
            label = str(value).removesuffix(".0")  # pandas writes 1 as 1.0
            if label not in map(str, range(last + 1)):
                expected = f"must be the number of the right choice, 0 to {last}"
                raise UserError(f"{where}: label {label!r} {expected}")
            label = int(label)
        row_id = values.get("fold-ind", values.get("id"))
        return ChoiceRow(where, context, tuple(choices), label, row_id)

    def encode(self, rows: Rows, tokenizer: Tokenizer) -> Features:
        """Rows with fewer choices than others are padded with sequences [CLS] [SEP].

        targets then have "choice_mask", float32 (rows, choices), 0 for the padding.
        """
        texts = [text for row in rows for text in (row.context, *row.choices)]
        tokens = iter(tokenizer.encode_batch(texts))
        counts = np.array([len(row.choices) for row in rows], np.int32)
        most = int(counts.max(initial=1))
        room = self.config.max_length - tokenizer.overhead(2)
        padding = tokenizer.build(np.zeros(0, tokenizer.dtype))
        joined, truncated = [], 0
        for count in counts:
            context, *choices = itertools.islice(tokens, 1 + count)
            for choice in choices:
                parts = fit([context, choice], room, tokenizer.truncation)
                joined.append(tokenizer.build(*parts))
            joined += [padding] * (most - len(choices))
            truncated += len(context) + max(map(len, choices)) > room
        targets = {}
        labels = [row.label for row in rows]
        if rows and None not in labels:
            targets["label"] = np.array(labels, np.int32)
            if counts.min() < most:
                mask = np.arange(most) < counts[:, None]
                targets["choice_mask"] = mask.astype(np.float32)
        numbers = np.repeat(np.arange(len(rows)), most)
        more = {"choices": most, "truncated": truncated}
        return joined_features(joined, numbers, targets, **more)

    def decode(self, rows: Rows, features: Features, outputs: Outputs) -> Answers:
        """{"choice": number, "text", "probability", "probabilities" of all choices}."""
        scores = np.asarray(outputs, np.float64).reshape(-1, features.choices)
        answers = []
        for row, row_scores in zip(rows, scores, strict=True):
            p = scipy.special.softmax(row_scores[: len(row.choices)])
            best = int(p.argmax())
            answer = {"choice": best, "text": row.choices[best]}
            answer |= {"probability": float(p[best]), "probabilities": p.tolist()}
            answers.append(with_id(row, answer))
        return answers

    def score(self, rows: Rows, answers: Answers) -> Scores:
        pairs = zip(rows, answers, strict=True)
        right = [row.label == answer["choice"] for row, answer in pairs]
        return {"accuracy": 100 * float(np.mean(right))}

    def outcomes(self, row: ChoiceRow, answer: Answer) -> Iterator[Outcome]:
        """The outcome of the choice. The class of a choice is its number."""
        gold, choice = row.label, answer["choice"]
        texts, p = (row.choices[gold], answer["text"]), answer["probability"]
        classes = str(gold), str(choice)
        yield Outcome(row.context, *texts, p, gold == choice, classes=classes)

    def export(self, rows: Rows, answers: Answers, split: str) -> dict[str, str]:
        """SPLIT_predictions.csv with row number and choice, as SWAG's csv_predict.py."""
        lines = [",pred", *(f"{i},{x['choice']}" for i, x in enumerate(answers))]
        return {f"{split}_predictions.csv": "\n".join(lines) + "\n"}
