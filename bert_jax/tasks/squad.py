"""Extractive question answering: SQuAD 1.1 and 2.0."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.files import write_json
from bert_jax.tasks.squad_format import (
    BAD_ANSWERS,
    Question,
    parse_questions,
    read_questions,
)
from bert_jax.tasks.squad_metrics import scores_v1, scores_v2
from bert_jax.tasks.squad_spans import answer_question
from bert_jax.tasks.squad_windows import build_windows
from bert_jax.tasks.task import Features, Task


@dataclasses.dataclass(frozen=True)
class SquadConfig:
    """Where the questions are and how they are answered; defaults of run_squad.py.

    dir: the folder of the files. train, dev: SQuAD files; empty: the official names.
    test: a file to write predictions for, if any. train_articles, dev_articles: slices
    such as "0:36" over the articles of the two files, which may then be one.
    version_2: whether a question may have no answer. max_length, stride,
    max_question_length, max_answer_length: in tokens. null_threshold: a question is left
    without answer when the odds against its best span exceed this; tune it on the
    development set (``best_f1_threshold`` of the scores). bad_answers: "refuse" or "skip"
    answers that do not stand where the file says.
    """

    dir: str = ""
    train: str = ""
    dev: str = ""
    test: str = ""
    train_articles: str = ""
    dev_articles: str = ""
    version_2: bool = False
    max_length: int = 384
    stride: int = 128
    max_question_length: int = 64
    max_answer_length: int = 30
    n_best: int = 20
    null_threshold: float = 0.0
    bad_answers: str = "refuse"

    def __post_init__(self):
        if self.bad_answers not in BAD_ANSWERS:
            raise UserError(
                f"bad_answers is {self.bad_answers!r}; expected one of {BAD_ANSWERS}"
            )
        for name in ("stride", "max_question_length", "max_answer_length", "n_best"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.max_question_length + 3 >= self.max_length:
            raise UserError(
                f"max_length={self.max_length} leaves no room for a context beside a "
                f"question of max_question_length={self.max_question_length} tokens and "
                "3 special ones; raise the one or lower the other"
            )


class Squad(Task):
    """A question is answered with the token of the context that holds the answer."""

    family = "question_answering"
    config_class = SquadConfig
    column_widths: ClassVar[dict[str, int]] = {"answer": 40, "question": 50}
    parsed_by = "file"  # SQuAD's JSON is one value; other ids count lines
    head = "span"
    labels = ()
    main_metric = "f1"

    def __init__(self, config: SquadConfig):
        self.config = config
        self.predict_splits = ("test",) if config.test else ()

    @classmethod
    def configs_for_head(
        cls, labels: tuple[str, ...], problem_type: str | None, max_length: int
    ) -> tuple[SquadConfig, ...]:
        """SQuAD 1.1, in windows of the paper's length."""
        del labels, problem_type
        return (SquadConfig(max_length=min(SquadConfig.max_length, max_length)),)

    def tuned(self, scores: dict[str, float]) -> "Squad":
        """With the threshold of the best F1, if questions may lack answers."""
        if not self.config.version_2:
            return self
        threshold = scores["best_f1_threshold"]
        return Squad(dataclasses.replace(self.config, null_threshold=threshold))

    def read(self, split: str) -> list[Question]:
        """The questions of "train", "dev" or "test"; see read_questions."""
        config = self.config
        version = "2.0" if config.version_2 else "1.1"
        name = getattr(config, split) or f"{split}-v{version}.json"
        articles = getattr(config, f"{split}_articles", "")
        rows = read_questions(Path(config.dir) / name, articles, config.bad_answers)
        for row in rows if split != "test" else ():
            if not row.answers and not (row.impossible and config.version_2):
                raise UserError(
                    f"{row.where} has no answer; expected at least one, or set "
                    "version_2=True for questions with is_impossible (SQuAD 2.0)"
                )
        return rows

    def parse(self, lines: Iterable[str], name: str, first: int = 1) -> list[Question]:
        """Questions in any of the forms that parse_questions knows."""
        del first  # always 1: a file is parsed whole
        return parse_questions(lines, name)

    def features(
        self, rows: Sequence[Question], tokenizer: Tokenizer, *, training: bool
    ) -> Features:
        """Overlapping windows of each context; see build_windows."""
        return build_windows(
            rows,
            tokenizer,
            max_length=self.config.max_length,
            stride=self.config.stride,
            max_question_length=self.config.max_question_length,
            training=training,
        )

    def predictions(
        self,
        rows: Sequence[Question],
        features: Features,
        outputs: Sequence[np.ndarray],
    ) -> list[dict[str, Any]]:
        """An answer each, with those that come next; see answer_question."""
        config = self.config
        edges = np.searchsorted(features.row, np.arange(len(rows) + 1)).tolist()
        return [
            answer_question(
                row,
                features.extra[start:stop],
                outputs[start:stop],
                max_answer_length=config.max_answer_length,
                n_best=config.n_best,
                null_threshold=config.null_threshold if config.version_2 else None,
            )
            for row, start, stop in zip(rows, edges, edges[1:], strict=False)
        ]

    def cells(self, row: Question, prediction: dict[str, Any]) -> list[dict[str, str]]:
        """The answer, its probability and the question."""
        probability = f"{prediction['probability']:.4f}"
        answer = prediction["answer"] or "(no answer)"
        return [
            {"answer": answer, "probability": probability, "question": row.question}
        ]

    def score(
        self, rows: Sequence[Question], predictions: Sequence[dict[str, Any]]
    ) -> dict[str, float]:
        """Exact match and F1, and for SQuAD 2.0 the best thresholds; see scores_v2."""
        answers = [prediction["answer"] for prediction in predictions]
        right = [[text for text, _ in row.answers] for row in rows]
        if not self.config.version_2:
            return scores_v1(answers, right)
        best = [
            next((entry["text"] for entry in prediction["nbest"] if entry["text"]), "")
            for prediction in predictions
        ]
        odds = [prediction["null_odds"] for prediction in predictions]
        return scores_v2(answers, best, odds, right)

    def write(
        self,
        rows: Sequence[Question],
        predictions: Sequence[dict[str, Any]],
        split: str,
        directory: Path,
    ) -> list[Path]:
        """The files of run_squad.py, in a folder named after the split."""
        contents = {"predictions": "answer", "nbest_predictions": "nbest"}
        if self.config.version_2:
            contents["null_odds"] = "null_odds"
        folder = directory / split
        paths = []
        for name, key in contents.items():
            paths.append(folder / f"{name}.json")
            content = {prediction["id"]: prediction[key] for prediction in predictions}
            write_json(paths[-1], content, indent=4)
        return paths
