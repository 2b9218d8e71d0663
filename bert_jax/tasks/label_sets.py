"""Several labels at once: any number of classes for a text or a pair of texts.

Each label is decided alone, by the sigmoid of its logit (transformers calls the head
multi_label_classification). Metrics: F1 over all decisions (f1_micro), the mean of the F1
of each label (f1_macro), and the share of rows with every label right (exact_match).
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import scipy

from bert_jax.errors import UserError
from bert_jax.files import parse_json
from bert_jax.settings import setting
from bert_jax.tasks import tables
from bert_jax.tasks.class_names import by_number, by_position
from bert_jax.tasks.layouts import Layout, Row
from bert_jax.tasks.task import Answer, Outcome, id_text
from bert_jax.tasks.text_classification import (
    SEVERAL_LABELS,
    Classification,
    TextConfig,
    class_name,
)


@dataclasses.dataclass(frozen=True)
class MultiLabelConfig(TextConfig):
    """Where the table is, how labels are written, and how texts are cut."""

    separator: str = setting(
        ",",
        "what stands between the labels of a cell; it may be a list of JSON instead",
    )
    threshold: float = setting(
        0.5, "the least probability of a label that is given", above=0, below=1
    )

    def layout(self) -> Layout:
        return self._table(("f1_micro", "f1_macro", "exact_match"))


class MultiLabel(Classification):
    """Any number of labels for a text or a pair of texts; a row's label is a tuple."""

    family = "multi_label"
    config_class = MultiLabelConfig
    problem_type = SEVERAL_LABELS

    def __init__(self, config: MultiLabelConfig):
        super().__init__(config)
        self.columns["label"] += ("labels",)

    def score(self, rows: list[Row], predictions: list[Answer]) -> dict[str, float]:
        # Imported here because it takes a second, and a wrong setting should not.
        from sklearn.metrics import f1_score

        truth = self._targets([row.label for row in rows])
        found = self._targets([answer["labels"] for answer in predictions])
        scores = {
            f"f1_{kind}": f1_score(truth, found, average=kind, zero_division=0)
            for kind in ("micro", "macro")
        }
        scores["exact_match"] = np.mean((truth == found).all(axis=1))
        return {name: 100 * float(score) for name, score in scores.items()}

    def outcomes(self, row: Row, answer: Answer) -> Iterator[Outcome]:
        """The labels of a row. The confidence is that of the most wrong label."""
        found = answer["labels"]
        wrong = {*row.label} ^ {*found}
        text = " \u2016 ".join(filter(None, (row.text_a, row.text_b)))
        named = (self._joined(labels) for labels in (row.label, found))
        p = answer["probabilities"]
        off = [p[name] if name in found else 1 - p[name] for name in wrong]
        yield Outcome(text, *named, max(off, default=1.0), right=not wrong)

    def export(
        self, rows: list[Row], predictions: list[Answer], split: str
    ) -> dict[str, str]:
        """SPLIT_predictions.tsv: the row's id or number, and its labels."""
        lines = ["index\tprediction"]
        for i, (row, answer) in enumerate(zip(rows, predictions, strict=True)):
            cells = id_text(row, i), self._joined(answer["labels"])
            lines.append("\t".join(map(tables.escaped, cells)))
        return {f"{split}_predictions.tsv": "\n".join(lines) + "\n"}

    def _answers(self, logits: np.ndarray) -> list[Answer]:
        return [
            {
                "labels": [
                    name
                    for name, x in zip(self.labels, p, strict=True)
                    if x >= self.config.threshold
                ],
                "probabilities": dict(zip(self.labels, p.tolist(), strict=True)),
            }
            for p in scipy.special.expit(logits)
        ]

    def _answer_cells(self, prediction: Answer) -> dict[str, str]:
        return {"labels": self._joined(prediction["labels"])}

    def _joined(self, labels: Iterable[str]) -> str:
        return self.config.separator.join(labels)

    def _targets(self, labels: list[Any]) -> np.ndarray:
        """1 for each label that a row has: float32 (rows, labels)."""
        targets = np.zeros((len(labels), len(self.labels)), np.float32)
        for row, own in zip(targets, labels, strict=True):
            row[[self.label_ids[name] for name in own]] = 1
        return targets

    def _names(self, where: str, value: Any) -> tuple[str, ...]:
        """The labels in a list, or in a cell with separators or a list of JSON.

        A list has names or class numbers, or is a vector of 0 and 1 for all labels.
        """
        if isinstance(value, str) and value.startswith("["):
            with contextlib.suppress(UserError):
                value = parse_json(f'{{"labels": {value}}}', where, "")["labels"]
        if isinstance(value, str):
            parts = map(str.strip, value.split(self.config.separator))
            return tuple(filter(None, parts))
        if not isinstance(value, list | tuple):
            value = (value,)
        if self._is_vector(where, value):
            pairs = zip(self.config.labels, value, strict=True)
            return tuple(name for name, number in pairs if number)
        return tuple(class_name(where, name) for name in value)

    def _label(self, where: str, value: Any) -> tuple[str, ...]:
        """The labels of a row. Each may be given by its number."""
        names = []
        for name in self._names(where, value):
            if name not in self.label_ids and name.isdecimal() and len(name) < 20:
                name = by_position(self.labels, int(name)) or name
            if name not in self.label_ids:
                raise UserError(
                    f"{where}: label {name!r} is not in the label set "
                    f"{', '.join(self.labels)}"
                )
            names.append(name)
        return tuple(names)

    def _is_vector(self, where: str, values: Sequence[Any]) -> bool:
        """Whether a list has a 0 or 1 for each label, instead of class numbers.

        A list of floats or booleans is a vector. A list of whole numbers 0 and 1 is a
        vector if it has the length of labels= and the name of no label is a number.
        Raises UserError for a vector of another length, and for class numbers that
        occur twice.
        """
        if not values or not all(isinstance(x, int | float) for x in values):
            return False
        labels, binary = self.config.labels, all(x in (0, 1) for x in values)
        whole = all(isinstance(x, int) and not isinstance(x, bool) for x in values)
        if binary and len(values) == len(labels) and (by_number(labels) or not whole):
            return True
        if (binary and not whole) or (whole and len({*values}) < len(values)):
            raise UserError(
                f"{where}: the labels are {list(values)}; expected names, each class "
                "number once, or a vector with a 0 or 1 for each name in labels="
            )
        return False
