"""Vectors of texts, trained on pairs: their cosine measures how close two texts are.

Both texts go through the same encoder, each on its own, and become one vector by pooling
(Reimers and Gurevych, 2019, "Sentence-BERT"). ``model.encode`` gives these vectors.
Metrics: Pearson's and Spearman's correlation of the cosine with the label, on STS-B, SICK,
and any table of pairs with a number.
"""

import dataclasses
from typing import Any

import numpy as np

from bert_jax.data import sequences
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.settings import setting, setting_like
from bert_jax.tasks import task as base
from bert_jax.tasks.layouts import TABLE
from bert_jax.tasks.task import Answers, Features, Outputs, with_id
from bert_jax.tasks.text_classification import Classification, Row, TableConfig

TASKS = ("stsb", "sick_relatedness", TABLE)
POOLINGS = ("mean", "cls")


@dataclasses.dataclass(frozen=True)
class SentenceVectorsConfig(TableConfig):
    """Where the pairs are, and what is learned from them."""

    text_a: str = setting_like(TableConfig, "text_a", "text_a")
    text_b: str = setting("text_b", "table: the column of the second text")
    task: str = setting(TABLE, "stsb, sick_relatedness or table", one_of=TASKS)
    loss: str = setting(
        "cosine",
        "cosine: the cosine of a pair is its label, scaled to 0 to 1 over the training "
        "rows; contrastive: a text's partner against all other texts of the batch",
        one_of=("cosine", "contrastive"),
    )
    positive_from: float = setting(
        0.0, "contrastive: the least label of a training pair; 0: pairs need no label"
    )
    pooling: str = setting(
        "",
        "what of the last layer is a text's vector: the mean of its tokens, or cls; empty: "
        "the checkpoint's own, or mean if it has none",
        one_of=("", *POOLINGS),
    )


class SentenceVectors(Classification):
    """The cosine of the vectors of two texts."""

    family = "sentence_vectors"
    config_class = SentenceVectorsConfig
    problem_type = None
    # A label may be missing, and a cosine has another scale than a label.
    golds, outcomes = base.Task.golds, base.Task.outcomes

    def __init__(self, config: SentenceVectorsConfig):
        super().__init__(config)
        self.regression, self.metrics = True, ("pearson", "spearman")
        self.main_metric, self.head = "pearson", config.pooling or "mean"
        self.whole_batch = config.loss == "contrastive"

    @classmethod
    def for_head(cls, checkpoint: Any) -> "SentenceVectors | None":
        if checkpoint.head not in POOLINGS:
            return None
        positions = checkpoint.config.max_positions
        longest = checkpoint.extra.get("modules", {}).get("max_length", positions)
        return cls(SentenceVectorsConfig(pooling=checkpoint.head, max_length=longest))

    def fitted(self, positions: int, pooling: str) -> "SentenceVectors":
        task = super().fitted(positions, pooling)
        if not self.config.pooling and pooling in POOLINGS:
            task = task.changed(pooling=pooling)
            task.head = pooling
        return task

    def labelled(self, split: str) -> bool:
        unused = self.whole_batch and not self.config.positive_from
        return super().labelled(split) and not (split == "train" and unused)

    def read(self, split: str) -> list[Row]:
        rows, least = super().read(split), self.config.positive_from
        if split == "train" and self.whole_batch:
            return [row for row in rows if not least or row.label >= least]
        if split == "train" and len({row.label for row in rows}) < 2:
            came = f"{self.config.dir}: all training pairs have one label"
            raise UserError(f"{came}; expected two at least, or data.loss=contrastive")
        return rows

    def encode(self, rows: list[Row], tokenizer: Tokenizer) -> Features:
        room = self.config.max_length - 2
        texts = [text for row in rows for text in (row.text_a, row.text_b)]
        parts = tokenizer.encode_batch(texts)
        joined = [sequences.join(tokenizer, part[:room]) for part in parts]
        long = np.array([len(part) > room for part in parts]).reshape(-1, 2)
        labels, targets = [row.label for row in rows], {}
        if rows and not self.whole_batch and None not in labels:
            low, high = min(labels), max(labels)
            scaled = (np.array(labels) - low) / max(high - low, 1e-9)
            targets = {"label": scaled.astype(np.float32)}
        more = {"choices": 2, "truncated": int(long.any(axis=1).sum())}
        numbers = np.repeat(np.arange(len(rows)), 2)
        return base.joined_features(joined, numbers, targets, **more)

    def decode(self, rows: list[Row], features: Features, outputs: Outputs) -> Answers:
        """{"value": the cosine}."""
        vectors = np.asarray(outputs, np.float64).reshape(len(rows), 2, -1)
        cosines = (vectors[:, 0] * vectors[:, 1]).sum(axis=1)
        answers = zip(rows, cosines.tolist(), strict=True)
        return [with_id(row, {"value": cosine}) for row, cosine in answers]
