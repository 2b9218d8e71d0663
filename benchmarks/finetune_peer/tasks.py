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


def labelled_texts(options, tokenizer, files, texts, label, outputs, score, metric):
    """A task on a text or a pair of texts.

    files: of train and dev, tab-separated with a header. texts: the columns' numbers.
    label: a function of a row. outputs: classes, or 1 for a number. score: from labels
    and logits to metrics in percent, of which ``metric`` is the main one.
    """
    splits, truncated = [], 0
    for name, limit in zip(files, (options.train_rows, options.dev_rows), strict=True):
        rows = tab_rows(Path(options.data) / name, header=True)
        # One line of SICK is published broken in two.
        rows = [row for row in rows if len(row) == len(rows[-1])][:limit]
        columns = [[row[column] for row in rows] for column in texts]
        encoding = tokenizer(*columns, truncation=True, max_length=options.max_length)
        truncated += cut(encoding)
        splits.append(as_examples(encoding, [label(row) for row in rows]))
    train, dev = splits
    expected = [example["labels"] for example in dev]
    return Job(
        train=train,
        dev=dev,
        model=load_model(
            transformers.AutoModelForSequenceClassification, options, num_labels=outputs
        ),
        collator=transformers.DataCollatorWithPadding(tokenizer),
        score=lambda logits: score(expected, logits),
        main_metric=metric,
        truncated=truncated,
    )


def class_scores(expected, logits):
    """Accuracy, and F1 of class 1."""
    answers = logits.argmax(-1)
    return {
        "accuracy": 100 * accuracy_score(expected, answers),
        "f1": 100 * f1_score(expected, answers, zero_division=0),
    }


def correlations(expected, outputs):
    """Of a number with the label."""
    return {
        "pearson": 100 * scipy.stats.pearsonr(expected, outputs[:, 0]).statistic,
        "spearman": 100 * scipy.stats.spearmanr(expected, outputs[:, 0]).statistic,
    }


def sst2(options, tokenizer):
    """SST-2: the sentiment of a sentence."""
    files = [f"glue/SST-2/{split}.tsv" for split in ("train", "dev")]
    return labelled_texts(
        options, tokenizer, files, (0,), lambda row: int(row[1]), 2, class_scores,
        "accuracy",
    )  # fmt: skip


def mrpc(options, tokenizer):
    """MRPC: whether two sentences say the same."""
    files = [f"glue/MRPC/{split}.tsv" for split in ("train", "dev")]
    return labelled_texts(
        options, tokenizer, files, (3, 4), lambda row: int(row[0]), 2, class_scores,
        "accuracy",
    )  # fmt: skip


def sick(options, tokenizer):
    """SICK: how related two sentences are, from 1 to 5; mean squared error."""
    files = [f"sick/SICK_{split}.txt" for split in ("train", "trial")]
    return labelled_texts(
        options, tokenizer, files, (1, 2), lambda row: float(row[3]), 1, correlations,
        "pearson",
    )  # fmt: skip


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
