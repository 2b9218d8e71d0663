"""Extractive question answering: SQuAD 1.1 and 2.0, after the original run_squad.py.

Every span of a context that is short enough competes with the sum of its two logits.
"""

import dataclasses
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy

from bert_jax.data.sequences import join, owners, token_windows
from bert_jax.data.token_offsets import Tokens, encode_with_offsets
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError, counted
from bert_jax.files import parse_json, reading
from bert_jax.settings import check_ranges, setting
from bert_jax.tasks.rows import (
    Placed,
    Record,
    check_texts,
    ending,
    read_lines,
    text_of,
)
from bert_jax.tasks.source import Source
from bert_jax.tasks.squad_scores import exact_match, scores_v1, scores_v2
from bert_jax.tasks.task import Answer, Features, Outcome, Outputs, Task

logger = logging.getLogger(__name__)

FORM = "SQuAD's JSON, {'data': [{'title', 'paragraphs': [{'context', 'qas': [...]}]}]}"


@dataclasses.dataclass(frozen=True)
class SquadConfig:
    """The files of questions and how they are answered. Defaults are run_squad.py's."""

    dir: str = setting("", "the folder of the files, hf:NAME or tfds:NAME")
    train: str = setting("", "a SQuAD file; empty: train-v1.1.json or train-v2.0.json")
    dev: str = setting("", "a SQuAD file; empty: dev-v1.1.json or dev-v2.0.json")
    test: str = setting("", "a SQuAD file to write predictions for; empty: none")
    train_articles: str = setting("", "a slice such as 0:36 of the file's articles")
    dev_articles: str = setting("", "as train_articles; dev may be the same file")
    version_2: bool = setting(False, "whether a question may have no answer")
    max_length: int = setting(384, "tokens of a window, question and context", least=8)
    stride: int = setting(128, "tokens between the starts of two windows", least=1)
    max_question_length: int = setting(
        64, "tokens of a question, at most half of a window", least=1
    )
    max_answer_length: int = setting(30, "tokens of an answer, at most", least=1)
    n_best: int = setting(20, "answers in the list of the best", least=1)
    null_threshold: float = setting(
        0.0,
        "version_2: the answer is empty if its score exceeds the score of the best span by "
        "more than this; a run tunes it on dev for the best F1",
    )
    bad_answers: str = setting(
        "refuse",
        "refuse a file, or skip an answer, if the answer is not at its answer_start",
        one_of=("refuse", "skip"),
    )

    def __post_init__(self):
        check_ranges(self, "data.")

    @property
    def question_tokens(self) -> int:
        """The most tokens of a question in a window."""
        return min(self.max_question_length, self.max_length // 2 - 2)


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a context.

    answers: the right ones, each with the index of its first character in the context.
    impossible: whether the context has no answer; None if unknown.
    skipped: the number of answers that are left out.
    """

    id: str
    question: str
    context: str
    where: str
    answers: tuple[tuple[str, int], ...] = ()
    impossible: bool | None = None
    skipped: int = 0

    @property
    def labelled(self) -> bool:
        """Whether the right answer is known."""
        return bool(self.answers) or bool(self.impossible)


class Window(NamedTuple):
    """The context tokens [first, stop) of a sequence, which start there at ``offset``."""

    offset: int
    tokens: Tokens
    first: int
    stop: int


class Span(NamedTuple):
    """A possible answer, the characters [start, end) of the context; "" is no answer."""

    text: str
    start_logit: float
    end_logit: float
    start: int | None = None
    end: int | None = None

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


def answer_tokens(tokens: Tokens, text: str, start: int) -> tuple[int, int] | None:
    """First and last token of the answer at a character; None if it has no tokens.

    These are the tokens with a character of the answer. The original compares the tokens
    of the answer with the tokens around its place, with the same result.
    """
    first = int(np.searchsorted(tokens.ends, start, side="right"))
    last = int(np.searchsorted(tokens.starts, start + len(text), side="left")) - 1
    return (first, last) if first <= last else None


class SquadSource(Source):
    """SQuAD's files, or tables."""

    @property
    def label_names(self) -> Sequence[str]:
        """A question without answers may have no other label than is_impossible."""
        return [*super().label_names, "is_impossible"]

    def is_own(self, path: Path) -> bool:
        return ending(path) == ".json"

    def file_names(self, split: str) -> Sequence[str]:
        version = "2.0" if self.config.version_2 else "1.1"
        name = f"{split}-v{version}.json"
        return (name, f"{name}.gz") if split != "test" else ()

    def read_file(self, path: Path, split: str) -> Iterator[Record]:
        if not self.is_own(path):
            return super().read_file(path, split)
        entries = _squad_entries(path, getattr(self.config, f"{split}_articles", ""))
        # The answers to SQuAD's test file are written, not scored.
        labels = self.label_names if split == "test" else ()
        return (
            (where, {name: x for name, x in row.items() if name not in labels})
            for where, row in entries
        )


class Squad(Task):
    """A question is answered with the token of the context that holds the answer."""

    family = "question_answering"
    config_class = SquadConfig
    source_class = SquadSource
    length_setting = "max_question_length"
    head = "span"
    main_metric = "f1"
    columns: ClassVar = {
        "question": ("question",),
        "context": ("context",),
        "answers": ("answers", "answer"),
    }

    @classmethod
    def for_head(cls, checkpoint: Any) -> "Squad | None":
        """SQuAD 1.1, in windows of the paper's length."""
        longest = min(SquadConfig.max_length, checkpoint.config.max_positions)
        return (
            cls(SquadConfig(max_length=longest)) if checkpoint.head == "span" else None
        )

    def tuned(self, scores: dict[str, float]) -> "Squad":
        """The task with the threshold that reaches "tuned_f1", for SQuAD 2.0."""
        if not self.config.version_2:
            return self
        return self.changed(null_threshold=scores["tuned_f1_threshold"])

    def read(self, split: str, columns: Sequence[str] = ()) -> list[Question]:
        """The questions of "train", "dev" or "test"; see Task.read."""
        found = super().read(split, columns)
        rows = [row for row in found if row.answers or not row.skipped]
        if skipped := sum(row.skipped for row in found):
            logger.warning(
                f"{split}: skipped {counted(skipped, 'answer')} not at the answer_start, "
                f"and {counted(len(found) - len(rows), 'question')} without other answers"
            )
        seen = set()
        for row in rows:
            # The official files have an answer for each id.
            if row.id in seen and split != "train":
                raise UserError(
                    f"{row.where}: the id {row.id!r} occurs twice; expected every id once"
                )
            seen.add(row.id)
            none = not row.answers and not (row.impossible and self.config.version_2)
            if none and self.labelled(split):
                raise UserError(
                    f"{row.where} has no answer; expected at least one, or set "
                    "version_2=True for questions with is_impossible (SQuAD 2.0)"
                )
        return rows

    def row(self, where: str, values: Mapping[str, Any], labelled: bool) -> Question:
        """A question. Without ``labelled`` its answers are not read.

        "answers" (or "answer") is a text of the context, a list of texts, a list of (text,
        start) pairs, or what SQuAD's JSON or Hugging Face's data set has.
        """
        question, context = (
            text_of(where, values, [n]) for n in ("question", "context")
        )
        check_texts(where, [question, context])
        impossible = values.get("is_impossible")
        if not isinstance(impossible, bool | None):
            raise UserError(f"{where}: is_impossible is no true or false")
        given, answers = [], []
        if labelled and not impossible:
            with reading(f"{where}: the answer", "texts, or SQuAD's JSON"):
                given = list(_given_answers(values, context))
        for answer, start in given:
            # A negative start would count from the end.
            there = context[start : start + len(answer)] if start >= 0 else ""
            if there == answer and answer.strip():
                answers.append((answer, start))
            elif self.config.bad_answers == "refuse":
                raise UserError(
                    f"{where}: the answer {answer!r} is not in the context at {start}, "
                    f"where it has {there!r}; correct it, or leave such answers out with "
                    "data.bad_answers=skip"
                )
        identity = "" if values.get("id") is None else str(values["id"])
        skipped = len(given) - len(answers)
        return Question(
            identity, question, context, where, tuple(answers), impossible, skipped
        )

    def rows(
        self, placed: Iterable[Placed], columns: Sequence[str] = (), *, labelled=False
    ) -> Iterator[Question]:
        """A question without an id has its number."""
        found = super().rows(placed, columns, labelled=labelled)
        for number, row in enumerate(found, 1):
            yield dataclasses.replace(row, id=row.id or str(number))

    def encode(self, rows: list[Question], tokenizer: Tokenizer) -> Features:
        """The windows of all questions, in order: [CLS] question [SEP] context [SEP].

        Targets, if every row is labelled: the first and the last token of the first answer,
        or [CLS] (0) for both if the window does not contain all of it. extra: a Window for
        each sequence. truncated: questions that are cut.
        """
        config = self.config
        contexts = list(dict.fromkeys(row.context for row in rows))
        tokens_of = encode_with_offsets(contexts, tokenizer)
        tokens_of = dict(zip(contexts, tokens_of, strict=True))
        questions = tokenizer.encode_batch([row.question for row in rows])
        input_ids, token_type_ids, row_of, labels, extra = [], [], [], [], []
        for i, (row, ids) in enumerate(zip(rows, questions, strict=True)):
            question = ids[: config.question_tokens]
            tokens = tokens_of[row.context]
            offset = len(question) + 2
            room = config.max_length - offset - 1
            answer = answer_tokens(tokens, *row.answers[0]) if row.answers else None
            for first, stop in token_windows(len(tokens.ids), room, config.stride):
                sequence, types = join(tokenizer, question, tokens.ids[first:stop])
                input_ids.append(sequence)
                token_type_ids.append(types)
                row_of.append(i)
                extra.append(Window(offset, tokens, first, stop))
                label = (0, 0)
                if answer and first <= answer[0] and answer[1] < stop:
                    label = (answer[0] + offset - first, answer[1] + offset - first)
                labels.append(label)
        targets = {}
        if all(row.labelled for row in rows):
            start, end = np.array(labels, np.int32).reshape(-1, 2).T
            targets = {"start": start, "end": end}
        return Features(
            input_ids,
            token_type_ids,
            np.array(row_of, np.int32),
            targets,
            extra=extra,
            truncated=sum(len(ids) > config.question_tokens for ids in questions),
        )

    def decode(
        self, rows: list[Question], features: Features, outputs: Outputs
    ) -> list[Answer]:
        """The answer to each question, and the next best answers.

        Every span of at most max_answer_length tokens competes with the sum of its two
        logits in the window that has the most context around its first token. (The
        original compares pairs of the n_best starts and ends of each window, and possibly
        none of them is a span.) With version_2 the empty answer competes with the sum of
        the logits at [CLS], in the window with the smallest sum. The empty answer wins if
        its sum exceeds the sum of the best span by more than null_threshold.

        An answer has "id"; "answer", the characters of the context from "start" to "end",
        or "" and None; its "probability" among "nbest"; "nbest", a list of different texts
        with "text", "probability", "start_logit" and "end_logit", the best first; and with
        version_2 "null_odds", the sum of the empty answer minus the sum of the best span.
        """
        edges = np.searchsorted(features.row, np.arange(len(rows) + 1)).tolist()
        return [
            self._answer(row, features.extra[start:stop], outputs[start:stop])
            for row, start, stop in zip(rows, edges, edges[1:], strict=False)
        ]

    def cells(self, row: Question, answer: Answer) -> list[dict[str, str]]:
        """The answer, its probability and the question."""
        found, p = answer["answer"] or "(no answer)", f"{answer['probability']:.4f}"
        return [{"answer": found, "probability": p, "question": row.question}]

    def score(self, rows: list[Question], answers: list[Answer]) -> dict[str, float]:
        """Exact match and F1; for SQuAD 2.0 see scores_v2."""
        texts = [answer["answer"] for answer in answers]
        right = [[text for text, _ in row.answers] for row in rows]
        if not self.config.version_2:
            return scores_v1(texts, right)
        found = [[entry["text"] for entry in answer["nbest"]] for answer in answers]
        best = [next(filter(None, texts), "") for texts in found]
        odds = [answer["null_odds"] for answer in answers]
        return scores_v2(texts, best, odds, right)

    def outcomes(self, row: Question, answer: Answer) -> Iterator[Outcome]:
        """The answer. With SQuAD 2.0 its class is whether there is one."""
        right = [text for text, _ in row.answers] or [""]
        gold = " / ".join(dict.fromkeys(right)) or "(no answer)"
        found, classes = answer["answer"], None
        if self.config.version_2:
            there = bool(row.answers), bool(found)
            classes = tuple("answer" if x else "no answer" for x in there)
        text, exact = f"{row.question} \u2016 {row.context}", exact_match(found, right)
        found, p = found or "(no answer)", answer["probability"]
        yield Outcome(text, gold, found, p, bool(exact), classes=classes)

    def export(
        self, rows: list[Question], answers: list[Answer], split: str
    ) -> dict[str, str]:
        """The files of run_squad.py, in a folder named after the split."""
        contents = {"predictions": "answer", "nbest_predictions": "nbest"}
        if self.config.version_2:
            contents["null_odds"] = "null_odds"
        files = {}
        for name, key in contents.items():
            content = {answer["id"]: answer[key] for answer in answers}
            files[f"{split}/{name}.json"] = json.dumps(content, indent=4) + "\n"
        return files

    def _answer(
        self, row: Question, windows: Sequence[Window], logits: Outputs
    ) -> dict[str, Any]:
        """The answer to one question; logits: float (L, 2) of each window."""
        config = self.config
        spans = self._best_spans(row.context, windows, logits)
        best = spans[0] if spans else Span("", 0.0, 0.0)
        chosen, entries, null_odds = best, spans, {}
        if config.version_2:
            at_cls = (Span("", *map(float, values[0])) for values in logits)
            null = min(at_cls, key=lambda span: span.score)
            null_odds = {"null_odds": null.score - best.score}
            if not spans or null.score - best.score > config.null_threshold:
                chosen = null
            # The n-best list has it, at the end if its score is low.
            better = sum(span.score >= null.score for span in spans)
            better, others = min(better, config.n_best), max(config.n_best - 1, 1)
            entries = [*spans[:better], null, *spans[better:others]]
        scores = [entry.score for entry in entries]
        probabilities = scipy.special.softmax(scores).tolist() if entries else []
        nbest = [
            {"text": text, "probability": p, "start_logit": start, "end_logit": end}
            for (text, start, end, *_), p in zip(entries, probabilities, strict=True)
        ]
        return {
            "id": row.id,
            "answer": chosen.text,
            "probability": probabilities[entries.index(chosen)] if entries else 0.0,
            "start": chosen.start,
            "end": chosen.end,
            **null_odds,
            "nbest": nbest,
        }

    def _best_spans(
        self, context: str, windows: Sequence[Window], logits: Outputs
    ) -> list[Span]:
        """The best spans of all windows, each text once."""
        longest, tokens = self.config.max_answer_length, windows[0].tokens
        count = len(tokens.ids)
        ranges = [(window.first, window.stop) for window in windows]
        best = owners(np.arange(count + 1), (0, count), ranges)
        # Row i, column j: the span from token i on that has j + 1 tokens.
        sums = np.full((count, longest), -np.inf)
        for k, ((offset, _, first, stop), values) in enumerate(
            zip(windows, logits, strict=True)
        ):
            inside = np.float64(values[offset : offset + stop - first])
            padded = np.append(inside[:, 1], np.full(longest, -np.inf))
            own = first + np.flatnonzero(best[first:stop] == k)
            starts = inside[own - first, :1]
            sums[own] = starts + padded[(own - first)[:, None] + np.arange(longest)]
        # Neither spans past the end of a window nor the logits of a diverged model.
        np.nan_to_num(sums, copy=False, nan=-np.inf, posinf=-np.inf, neginf=-np.inf)
        spans: dict[str, Span] = {}
        for i in map(int, np.argsort(-sums, axis=None, kind="stable")):
            first, more = divmod(i, longest)
            if sums[first, more] == -np.inf:
                break
            start, end = int(tokens.starts[first]), int(tokens.ends[first + more])
            text = context[start:end]
            if text not in spans:
                window, values = windows[best[first]], logits[best[first]]
                place = window.offset + first - window.first
                pair = float(values[place, 0]), float(values[place + more, 1])
                spans[text] = Span(text, *pair, start, end)
                if len(spans) == self.config.n_best:
                    break
        return list(spans.values())


def _given_answers(
    values: Mapping[str, Any], context: str
) -> Iterator[tuple[str, int]]:
    """The answers of a row in any of their forms, with their starts."""
    given = values.get("answers", values.get("answer")) or []
    if isinstance(given, Mapping):  # Hugging Face has a list of texts and one of starts
        given = zip(given["text"], given["answer_start"], strict=True)
    for answer in [given] if isinstance(given, str) else given:
        if isinstance(answer, str):
            answer = answer, context.find(answer)
        if isinstance(answer, Mapping):
            answer = answer["text"], answer["answer_start"]
        found, start = answer
        yield str(found), int(start)


def _squad_entries(path: Path, articles: str) -> list[Record]:
    """The questions of a SQuAD file, which may be gzipped, as dictionaries.

    articles: a Python slice of the file's articles, such as "0:36", so that one file can
    be split into train and dev; empty: all.
    """
    if not re.fullmatch(r"(-?\d*:-?\d*)?", articles):
        raise UserError(
            f"articles={articles!r} is not a slice; expected such as '0:36'"
        )
    ends = [int(end) if end else None for end in (articles or ":").split(":")]
    text = "".join(line for _, line in read_lines(path))
    document = parse_json(text.removeprefix("\ufeff"), path, FORM)
    with reading(path, FORM):
        entries = [
            {**entry, "context": paragraph["context"]}
            for article in [*document["data"]][slice(*ends)]
            for paragraph in article["paragraphs"]
            for entry in paragraph["qas"]
        ]
        found = [(f"{path}: question {entry['id']}", entry) for entry in entries]
    if not found:
        raise UserError(
            f"{path} has no questions, or articles={articles!r} leaves none; expected "
            f"{FORM}"
        )
    return found
