"""Text embeddings, trained on pairs: their cosine measures how close two texts are.

Both texts go through the same encoder, each on its own, and become one vector by pooling
(Reimers and Gurevych, 2019, "Sentence-BERT"). ``model.encode`` returns these vectors. A
pair may have negatives: texts that are less close to the first text than the second text
is.
Metrics: Pearson's and Spearman's correlation of the cosine with the label, on STS-B, SICK,
and any table of pairs with a number. Without labels: the share of rows whose second text is
closer to the first text than every negative.
"""

import contextlib
import dataclasses
import logging
import re
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from bert_jax.data.sequences import fit
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError, listed
from bert_jax.settings import setting
from bert_jax.tasks.cells import looks_like_list, parse_list
from bert_jax.tasks.data_sets import DATA_SETS, TABLE
from bert_jax.tasks.labels import has_number
from bert_jax.tasks.rows import check_texts, name_in, text_of, value_of
from bert_jax.tasks.task import (
    VECTOR_HEADS,
    Answers,
    Features,
    Outputs,
    Scores,
    Task,
    joined_features,
    records_of,
    with_id,
)
from bert_jax.tasks.text_classification import (
    Classification,
    Row,
    TableConfig,
    TextForm,
    text_form,
)

logger = logging.getLogger(__name__)

_NEGATIVES = re.compile(r"negatives?(_\d+)?")  # names of the columns of negatives


@dataclasses.dataclass(frozen=True)
class SentenceVectorsConfig(TableConfig):
    """The files of the pairs, and the loss."""

    task: str = setting(
        TABLE, "stsb, sick_relatedness or table", one_of=DATA_SETS["sentence_vectors"]
    )
    loss: str = setting(
        "cosine",
        "cosine: the target of a pair's cosine is its label, scaled to 0 to 1. "
        "contrastive: a text must find its partner among all texts of the batch. triplet: "
        "a text must be closer to its partner than to the negatives of its row",
        one_of=("cosine", "contrastive", "triplet"),
    )
    positive_from: float = setting(
        0.0,
        "contrastive, triplet: train on pairs with at least this label; 0: on all pairs",
    )
    margin: float = setting(
        0.5,
        "triplet: by how much the cosine of a pair must exceed the cosine of a negative",
        least=0,
        most=2,
    )
    matryoshka: tuple[int, ...] = setting(
        (),
        "train vectors that can be cut to these widths, such as (384, 128, 64): the loss "
        "is summed over the widths. Empty: only whole vectors",
        least=1,
    )
    pooling: str = setting(
        "",
        "vector of a text: mean of all tokens, or cls for [CLS], in the last layer. Empty: "
        "as in the checkpoint, or mean",
        one_of=("", *VECTOR_HEADS),
    )
    query_prompt: str = setting(
        "",
        "text that is put before the first text of each row. search puts it before queries",
    )
    document_prompt: str = setting(
        "",
        "text that is put before the second text of each row and before its negatives. "
        "search puts it before the texts of the corpus",
    )

    @property
    def pair(self) -> bool:
        """Rows always have two texts."""
        return True


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorsForm(TextForm):
    """Pairs of texts with a number."""

    classes: Literal["none", "one", "many"] = "none"

    def by_position(self, where: str, row: Any, labelled: bool) -> dict[str, Any]:
        """The values of a tuple by name. Raises UserError for one text."""
        if isinstance(row, str):
            needed = "expected two texts; to embed single texts use model.encode"
            raise UserError(f"{where} is one text, {needed} or bert_jax embed")
        return super().by_position(where, row, labelled)

    def has_number(self, values: Mapping[str, Any]) -> bool:
        """Whether a row has a value in the label's column, which may be -1."""
        found = map(values.get, self.columns["label"])
        return any(value not in (None, "") for value in found)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NegativesForm(VectorsForm):
    """Pairs of texts with negatives in place of a number."""

    optional: tuple[str, ...] = ("label",)

    def is_other(self, name: str) -> bool:
        return super().is_other(name) or _NEGATIVES.fullmatch(name) is not None

    def by_position(self, where: str, row: Any, labelled: bool) -> dict[str, Any]:
        """The values of a tuple by name.

        A tuple has two texts. After them a number is a label, and texts or a list are
        negatives. Raises UserError for a third text such as "7", which may be either.
        """
        third = None
        if not isinstance(row, str) and len(row) > 2:
            third = row[2]
        if not isinstance(third, str | list):
            return super().by_position(where, row, labelled)
        is_alone = len(row) == 3 and isinstance(third, str)
        if labelled and is_alone and has_number([third]):
            actual = f"{where}: the text {third!r} may be a label or a negative"
            raise UserError(f"{actual}; expected a number, or a list of negatives")
        negatives = third
        if len(row) > 3:
            negatives = [*row[2:]]
        return super().by_position(where, row[:2], False) | {"negative": negatives}

    def is_list(self, name: str, cell: str, values: Mapping[str, Any]) -> bool:
        """A negative may be one text, such as "(CNN) London", "[1]" or "[1, 2]"."""
        if not _NEGATIVES.fullmatch(name):
            return False
        items = parse_list(cell)
        if isinstance(items, list) and items:
            return all(isinstance(item, str) for item in items)
        return looks_like_list(cell)


class SentenceVectors(Classification):
    """The cosine of the vectors of two texts."""

    family = "sentence_vectors"
    config_class = SentenceVectorsConfig
    # No comparison of labels and answers: a row may lack a label, and cosines have another
    # scale than labels.
    outcomes = Task.outcomes

    def __init__(self, config: SentenceVectorsConfig):
        super().__init__(config)
        self.regression, self.metrics = True, ("pearson", "spearman")
        self.problem_type = None
        self.head, self.cosine = config.pooling or "mean", config.loss == "cosine"
        self.learns_labels = self.cosine or bool(config.positive_from)
        self.whole_batch = config.loss == "contrastive"
        self.prompts = {
            "query_prompt": config.query_prompt,
            "document_prompt": config.document_prompt,
        }
        self.loss_settings = {
            "loss": config.loss,
            "margin": config.margin,
            "matryoshka": config.matryoshka,
        }
        kind = VectorsForm
        if not self.cosine:  # rows may have negatives in place of a label
            kind = NegativesForm
        self.form = text_form(config, kind)

    @property
    def main_metric(self) -> str:
        """The metric is "accuracy" if a row of dev has negatives and no label."""
        if self.cosine:
            return "pearson"
        dev = self.splits.scored[0]
        records_of(self, dev)  # raises UserError without rows
        if any(row.label is None for row in self.parsed(dev)):
            return "accuracy"
        return "pearson"

    def row(self, where: str, values: Mapping[str, Any], labelled: bool) -> Row:
        negatives: list[str] = []
        for name in values:
            if self.cosine or not _NEGATIVES.fullmatch(name):
                continue
            value = value_of(where, values, [name])
            texts = value
            if not isinstance(value, list):
                texts = [value]
            negatives += [text_of(where, {name: x}, [name]) for x in texts]
        has_label = self.form.has_number(values)
        if labelled and not (self.cosine or negatives or has_label):
            needed = "give dev=rows with labels or negatives"
            raise UserError(f"{where}: no label and no negative to score; {needed}")
        row = super().row(where, values, labelled and (has_label or not negatives))
        return dataclasses.replace(row, negatives=tuple(negatives))

    def read(self, split: str) -> list[Row]:
        rows = super().read(split)
        if split == "train" or split in self.splits.scored:
            for row in rows:
                check_texts(row.where, [*row.texts, *row.negatives])
        if split != "train":
            return rows
        if not self.cosine:
            least = self.config.positive_from
            if not least:
                self._warn_of_labels()
            return [row for row in rows if row.label is None or row.label >= least]
        if len({row.label for row in rows}) < 2:
            actual = f"{self.config.dir}: all training pairs have the same label"
            raise UserError(
                f"{actual}; expected two different labels, or data.loss=contrastive"
            )
        return rows

    def _warn_of_labels(self) -> None:
        """Warns if pairs of train have different labels, which are not read."""
        labels: set[float] = set()
        for _, values in records_of(self, "train"):
            label = values.get(name_in(values, self.form.columns["label"]))
            with contextlib.suppress(TypeError, ValueError):  # no number
                labels.add(float(label))
        if len(labels) > 1:
            shown = listed([f"{label:g}" for label in sorted(labels)])
            logger.warning(
                f"train: the labels ({shown}) are not read: all pairs "
                "count as pairs of the same meaning; positive_from leaves out low labels"
            )

    def encode(self, rows: list[Row], tokenizer: Tokenizer) -> Features:
        """One sequence for each text of a row: its two texts and its negatives."""
        room = self.config.max_length - tokenizer.overhead(1)
        texts: list[str] = []
        count = 2
        for row in rows:
            query, document = row.texts
            texts.append(self.config.query_prompt + query)
            documents = document, *row.negatives
            texts += [self.config.document_prompt + text for text in documents]
            count, first = 2 + len(row.negatives), rows[0]
            if len(row.negatives) != len(first.negatives):
                raise UserError(
                    f"rows have {len(first.negatives)} ({first.where}) and "
                    f"{len(row.negatives)} ({row.where}) negatives; expected the same "
                    "number in all rows"
                )
        parts = tokenizer.encode_batch(texts)
        fitting = [fit([part], room, tokenizer.truncation) for part in parts]
        joined = [tokenizer.build(*part) for part in fitting]
        lengths = np.array([*map(len, parts)]).reshape(-1, count)
        truncated = (lengths > room).any(axis=1).sum()
        labels, targets = [row.label for row in rows], {}
        if rows and self.cosine and None not in labels:
            low, high = min(labels), max(labels)
            scaled = (np.array(labels) - low) / max(high - low, 1e-9)
            targets = {"label": scaled.astype(np.float32)}
        more = {"choices": count, "truncated": int(truncated)}
        numbers = np.repeat(np.arange(len(rows)), count)
        return joined_features(joined, numbers, targets, **more)

    def decode(self, rows: list[Row], features: Features, outputs: Outputs) -> Answers:
        """{"value": the cosine, "negatives": the cosines of text_a and negatives}."""
        shape = len(rows), features.choices, -1
        vectors = np.asarray(outputs, np.float64).reshape(shape)
        cosines = (vectors[:, :1] * vectors[:, 1:]).sum(axis=2).tolist()
        answers = []
        for row, (value, *others) in zip(rows, cosines, strict=True):
            answer = {"value": value}
            if others:
                answer["negatives"] = others
            answers.append(with_id(row, answer))
        return answers

    def score(self, rows: list[Row], answers: Answers) -> Scores:
        if all(row.label is not None for row in rows):
            return super().score(rows, answers)
        right = [answer["value"] > max(answer["negatives"]) for answer in answers]
        return {"accuracy": 100 * float(np.mean(right))}
