"""Extractive question answering: SQuAD 1.1 and 2.0."""

import dataclasses
import functools
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.files import write_json
from bert_jax.settings import setting
from bert_jax.tasks.squad_format import (
    BAD_ANSWERS,
    Question,
    parse_questions,
    read_questions,
)
from bert_jax.tasks.squad_windows import answer_question, build_windows
from bert_jax.tasks.task import Features, Predictions, Task


@dataclasses.dataclass(frozen=True)
class SquadConfig:
    """Where the questions are and how they are answered; defaults of run_squad.py."""

    dir: str = setting("", "the folder of the files")
    train: str = setting("", "a SQuAD file; empty: train-v1.1.json or train-v2.0.json")
    dev: str = setting("", "a SQuAD file; empty: dev-v1.1.json or dev-v2.0.json")
    test: str = setting("", "a SQuAD file to write predictions for; empty: none")
    train_articles: str = setting("", "a slice such as 0:36 of the file's articles")
    dev_articles: str = setting("", "as train_articles; dev may be the same file")
    version_2: bool = setting(
        False, "whether a question may have no answer (SQuAD 2.0)"
    )
    max_length: int = setting(384, "tokens of a window, question and context")
    stride: int = setting(128, "tokens from the start of one window to the next")
    max_question_length: int = setting(64, "tokens of a question; the rest is cut")
    max_answer_length: int = setting(30, "tokens of an answer, at most")
    n_best: int = setting(20, "answers kept for a question, the most probable first")
    null_threshold: float = setting(
        0.0,
        "version_2: the answer is empty where the score of no answer exceeds that of the "
        "best span by more than this; a run tunes it on dev for the best F1",
    )
    bad_answers: str = setting(
        "refuse",
        "what happens to a training file with an answer that is not in the context where "
        "the file says: refuse it, or skip the question",
    )

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
        self, rows: Sequence[Question], predictions: Predictions
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
        predictions: Predictions,
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


_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_answer(text: str) -> str:
    """Lower case, without punctuation, articles and spaces that say nothing."""
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(answer: str, right: Sequence[str]) -> float:
    """1 where the answer is one of the right ones, else 0."""
    return float(normalise_answer(answer) in map(normalise_answer, right))


def f1(answer: str, right: Sequence[str], empty_is_answer: bool = False) -> float:
    """F1 of the words that an answer shares with a right one, the best of them: 0 to 1.

    empty_is_answer: where one of two has no words, 1 if both have none (SQuAD 2.0);
    otherwise 0 (SQuAD 1.1).
    """
    return max(_f1(answer, one, empty_is_answer) for one in right)


def _f1(answer: str, right: str, empty_is_answer: bool) -> float:
    words, right_words = (normalise_answer(text).split() for text in (answer, right))
    if empty_is_answer and not (words and right_words):
        return float(words == right_words)
    shared = (Counter(words) & Counter(right_words)).total()
    return 2 * shared / (len(words) + len(right_words)) if shared else 0.0


def scores_v1(answers: Sequence[str], right: Sequence[Sequence[str]]) -> dict:
    """Means in percent over all questions: "exact_match" and "f1"."""
    pairs = list(zip(answers, right, strict=True))
    return {
        "exact_match": _percent([exact_match(*pair) for pair in pairs]),
        "f1": _percent([f1(*pair) for pair in pairs]),
    }


def scores_v2(
    answers: Sequence[str],
    best_spans: Sequence[str],
    null_odds: Sequence[float],
    right: Sequence[Sequence[str]],
) -> dict[str, float]:
    """Means in percent, of all questions and of those with and without an answer.

    answers: "" where the model says that there is none. best_spans, null_odds: the best
    answer that is not empty, and the odds against it. right: no text where there is no
    answer.

    "best_exact" and "best_f1" are the highest scores that any threshold on the odds
    gives: a question is answered with its best span where its odds are at most
    "best_exact_threshold" or "best_f1_threshold".
    """
    # A right answer without words, such as "the", is none.
    right = [[text for text in texts if normalise_answer(text)] for texts in right]
    texts = [one or [""] for one in right]
    has_answer = np.array([bool(one) for one in right])
    f1_v2 = functools.partial(f1, empty_is_answer=True)
    scores = {}
    for name, measure in (("exact", exact_match), ("f1", f1_v2)):
        of_answers = np.array(list(map(measure, answers, texts)))
        total = "exact_match" if name == "exact" else name
        scores[total] = _percent(of_answers)
        for part, chosen in (("HasAns", has_answer), ("NoAns", ~has_answer)):
            if chosen.any():
                scores[f"{part}_{name}"] = _percent(of_answers[chosen])
        of_spans = np.array(list(map(measure, best_spans, texts)))
        gain = np.where(has_answer, of_spans, of_spans - 1.0)
        best, threshold = _best_threshold(gain, np.asarray(null_odds, np.float64))
        scores[f"best_{name}"] = 100.0 * (best + (~has_answer).sum()) / len(answers)
        scores[f"best_{name}_threshold"] = threshold
    return scores


def _best_threshold(gain: np.ndarray, odds: np.ndarray) -> tuple[float, float]:
    """The most that can be gained, and the threshold that gains it.

    gain: float (n,), what answering a question adds to the score of leaving it empty.
    """
    order = np.argsort(odds, kind="stable")
    gained = np.cumsum(gain[order])
    # Questions of the same odds are answered together or not at all.
    whole = np.append(np.diff(odds[order]) > 0, True)
    gained[~whole] = -np.inf
    best = int(gained.argmax())
    if gained[best] <= 0:
        return 0.0, float(odds.min()) - 1.0  # answer none
    return float(gained[best]), float(odds[order][best])


def _percent(values: Sequence[float] | np.ndarray) -> float:
    return 100.0 * float(np.mean(values))
