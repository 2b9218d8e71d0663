"""Classification and multiple choice for the Trainer, from the data's own files."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
import torch
import transformers
from sklearn.metrics import accuracy_score, f1_score


@dataclasses.dataclass
class Job:
    """What the Trainer needs for a task.

    train, dev: examples as dictionaries of lists. collator: makes a padded batch.
    score: the dev set's outputs to metrics in percent. truncated: examples of train
    and dev that were cut.
    """

    train: list[dict[str, Any]]
    dev: list[dict[str, Any]]
    model: torch.nn.Module
    collator: Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]
    score: Callable[[Any], dict[str, float]]
    main_metric: str
    truncated: int = 0


def load_model(auto_class, options, **config):
    """A model with a new head of the width that ``config`` says, in float32."""
    return auto_class.from_pretrained(options.model, dtype=torch.float32, **config)


def tab_rows(path, header):
    """The fields of a tab-separated file's lines; quotes have no meaning in these."""
    with Path(path).open(encoding="utf-8-sig", newline="\n") as file:
        rows = [line.rstrip("\r\n").split("\t") for line in file]
    return rows[1:] if header else rows


def as_examples(encoding, labels):
    """A batch encoding as one dictionary an example, with its label."""
    return [
        {**{name: values[i] for name, values in encoding.items()}, "labels": label}
        for i, label in enumerate(labels)
    ]


def cut(encoding):
    """Sequences that lost text to the maximal length."""
    return sum(bool(sequence.overflowing) for sequence in encoding.encodings)


def glue(options, tokenizer, folder, label, texts, with_f1):
    """A GLUE task of two classes; ``label`` and ``texts`` are column numbers."""
    splits, truncated = [], 0
    for name, limit in (("train", options.train_rows), ("dev", options.dev_rows)):
        path = Path(options.data) / "glue" / folder / f"{name}.tsv"
        rows = tab_rows(path, header=True)[:limit]
        columns = [[row[column] for row in rows] for column in texts]
        encoding = tokenizer(*columns, truncation=True, max_length=options.max_length)
        truncated += cut(encoding)
        splits.append(as_examples(encoding, [int(row[label]) for row in rows]))
    train, dev = splits
    expected = [example["labels"] for example in dev]

    def score(logits):
        answers = logits.argmax(-1)
        metrics = {"accuracy": 100 * accuracy_score(expected, answers)}
        if with_f1:
            metrics["f1"] = 100 * f1_score(expected, answers, zero_division=0)
        return metrics

    return Job(
        train=train,
        dev=dev,
        model=load_model(
            transformers.AutoModelForSequenceClassification, options, num_labels=2
        ),
        collator=transformers.DataCollatorWithPadding(tokenizer),
        score=score,
        main_metric="accuracy",
        truncated=truncated,
    )


def sst2(options, tokenizer):
    """SST-2: the sentiment of a sentence."""
    return glue(options, tokenizer, "SST-2", label=1, texts=(0,), with_f1=False)


def mrpc(options, tokenizer):
    """MRPC: whether two sentences say the same."""
    return glue(options, tokenizer, "MRPC", label=0, texts=(3, 4), with_f1=True)


def sick(options, tokenizer):
    """SICK: how related two sentences are, from 1 to 5; mean squared error."""
    splits, truncated = [], 0
    for name, limit in (("train", options.train_rows), ("trial", options.dev_rows)):
        path = Path(options.data) / "sick" / f"SICK_{name}.txt"
        # One line of the published file is broken in two.
        rows = [row for row in tab_rows(path, header=True) if len(row) == 5][:limit]
        columns = [[row[column] for row in rows] for column in (1, 2)]
        encoding = tokenizer(*columns, truncation=True, max_length=options.max_length)
        truncated += cut(encoding)
        splits.append(as_examples(encoding, [float(row[3]) for row in rows]))
    train, dev = splits
    expected = [example["labels"] for example in dev]

    def score(outputs):
        return {
            "pearson": 100 * scipy.stats.pearsonr(expected, outputs[:, 0]).statistic,
            "spearman": 100 * scipy.stats.spearmanr(expected, outputs[:, 0]).statistic,
        }

    return Job(
        train=train,
        dev=dev,
        model=load_model(
            transformers.AutoModelForSequenceClassification, options, num_labels=1
        ),
        collator=transformers.DataCollatorWithPadding(tokenizer),
        score=score,
        main_metric="pearson",
        truncated=truncated,
    )


def codah(options, tokenizer):
    """CODAH: which of four endings fits a prompt; the first of its folds."""
    rows = tab_rows(Path(options.data) / "multiple_choice" / "codah.tsv", header=False)

    def encode(split):
        choices = [choice for row in split for choice in row[2:6]]
        prompts = [row[1] for row in split for _ in range(4)]
        encoding = tokenizer(
            prompts, choices, truncation=True, max_length=options.max_length
        )
        by_row = {
            name: [values[i : i + 4] for i in range(0, len(values), 4)]
            for name, values in encoding.items()
        }
        labels = [int(row[6]) for row in split]
        return as_examples(by_row, labels), cut(encoding)

    train, cut_train = encode(
        [row for i, row in enumerate(rows) if i % 5 > 1][: options.train_rows]
    )
    dev, cut_dev = encode(rows[1::5][: options.dev_rows])
    expected = np.array([example["labels"] for example in dev])
    return Job(
        train=train,
        dev=dev,
        model=load_model(transformers.AutoModelForMultipleChoice, options),
        collator=transformers.DataCollatorForMultipleChoice(tokenizer),
        score=lambda logits: {
            "accuracy": 100 * accuracy_score(expected, logits.argmax(-1))
        },
        main_metric="accuracy",
        truncated=cut_train + cut_dev,
    )
