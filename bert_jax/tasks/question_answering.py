"""Extractive question answering: SQuAD 1.1 and 2.0, after the original run_squad.py.

The answer is the span of the context with the largest sum of two logits, among the spans
that are short enough.
"""

import dataclasses
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy

from bert_jax.data.sequences import owners, token_windows
from bert_jax.data.token_offsets import Tokens, encode_with_offsets
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.files import parse_json, reading
from bert_jax.settings import setting
from bert_jax.tasks import cells
from bert_jax.tasks.cells import looks_like_list
from bert_jax.tasks.rows import (
    Record,
    check_texts,
    ending,
    read_lines,
    slice_of,
    text_of,
    truth_of,
    value_of,
)
from bert_jax.tasks.splits import DataConfig, Form, named_columns
from bert_jax.tasks.squad_scores import exact_match, scores_v1, scores_v2
from bert_jax.tasks.task import (
    Answer,
    Answers,
    Features,
    Outcome,
    Outputs,
    Scores,
    Task,
    joined_features,
)

logger = logging.getLogger(__name__)

FORM = "SQuAD's JSON, {'data': [{'title', 'paragraphs': [{'context', 'qas': [...]}]}]}"


@dataclasses.dataclass(frozen=True)
class SquadConfig(DataConfig):
    """Files, windows and answers of SQuAD. The defaults are run_squad.py's."""

    train_articles: str = setting("", "slice of the file's articles, such as 0:36")
    dev_articles: str = setting("", "slice of the dev file's articles, such as 36:")
    version_2: bool = setting(False, "SQuAD 2.0: a question may have no answer")
    max_length: int = setting(384, "maximum number of tokens of a window", least=8)
    stride: int = setting(128, "tokens between the starts of two windows", least=1)
    max_question_length: int = setting(64, "maximum tokens of a question", least=1)
    max_answer_length: int = setting(30, "maximum tokens of an answer", least=1)
    n_best: int = setting(20, "number of best answers to list", least=1)
    null_threshold: float = setting(
        0.0,
        'version_2: "no answer" wins if its score is higher by more than this. A run tunes '
        "it on dev for the best F1",
    )
    question: str = setting("", "table: column of the question; empty: question")
    context: str = setting("", "table: column of the context; empty: context")
    answers: str = setting("", "table: column of the answers; empty: answers")
    bad_answers: str = setting(
        "refuse",
        "refuse or skip (with a warning) a row whose answer is not at its answer_start",
        one_of=("refuse", "skip"),
    )


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a context.

    answers: right answers, each with the index of its first character in the context.
    impossible: whether the context has no answer; None if unknown.
    """

    id: str
    question: str
    context: str
    where: str
    answers: tuple[tuple[str, int], ...] = ()
    impossible: bool | None = None


class Window(NamedTuple):
    """The context tokens [first, stop) of a sequence, which start there at ``offset``."""

    offset: int
    tokens: Tokens
    first: int
    stop: int


class Span(NamedTuple):
    """A possible answer: the characters [start, end) of the context, or "" for none."""

    text: str
    start_logit: float
    end_logit: float
    start: int | None = None
    end: int | None = None


Rows = list[Question]
Windows = Sequence[Window]


def _score(span: Span) -> float:
    return span.start_logit + span.end_logit


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadForm(Form):
    """SQuAD's files, and tables of questions."""

    config: SquadConfig
    others: tuple[str, ...] = ("id", "is_impossible", "answer_start")
    lists: tuple[str, ...] = ("answers",)

    def file_names(self, split: str) -> Sequence[str]:
        if split == "test":
            return ()
        name = f"{split}-v1.1.json"
        if self.config.version_2:
            name = f"{split}-v2.0.json"
        plain = f"{split}.json"
        return (name, f"{name}.gz", plain, f"{plain}.gz")

    def is_own(self, path: Path) -> bool:
        """Whether the file ends in .json or .json.gz, as SQuAD's do."""
        return ending(path) == ".json"

    def read_file(self, path: Path, split: str) -> Iterator[Record]:
        """The rows of a table, or of SQuAD's JSON with the user's names of columns."""
        articles = getattr(self.config, f"{split}_articles", "")
        if not self.is_own(path):
            if articles:
                raise UserError(
                    f"{path}: data.{split}_articles={articles} needs {FORM}; leave it out"
                )
            yield from super().read_file(path, split)
            return
        for where, question in read_squad(path, articles):
            values = dict(question)
            for key, (name, *_) in self.columns.items():
                if key in question:
                    values[name] = values.pop(key)
            yield where, values

    def is_list(self, name: str, cell: str, values: Mapping[str, Any]) -> bool:
        """An answer may be one text, such as "(1809-1882)" or "[1]" of the context."""
        if not super().is_list(name, cell, values):
            return False
        for column in self.columns["context"]:
            if cell in str(values.get(column)):
                return False
        return looks_like_list(cell)

    def is_labelled(self, values: Mapping[str, Any]) -> bool:
        """Whether a question has an answer, or is known to have none."""
        names = (*self.columns["answers"], "is_impossible")
        return any(values.get(name) for name in names)

    def numbered(self, records: Iterable[Record]) -> Iterator[Record]:
        """The records. The id of a question without id is its number, from 0."""
        for number, (where, values) in enumerate(records):
            if values.get("id") in (None, ""):
                values = values | {"id": str(number)}
            yield where, values


class Squad(Task):
    """The answer to a question is a span of the tokens of its context."""

    family = "question_answering"
    function = "squad"
    config_class = SquadConfig
    length_setting = "max_question_length"
    head = "span"
    gold = "answers"
    main_metric = "f1"

    def __init__(self, config: SquadConfig):
        super().__init__(config)
        usual = {"question": ("question",), "context": ("context",)}
        usual["answers"] = ("answers",)
        optional = ("answers",)
        if config.answers:
            optional = ()
        columns = named_columns(config, usual)
        self.form = SquadForm(
            columns=columns, usual=usual, optional=optional, config=config
        )
        if config.version_2:
            self.thresholds = {"null_threshold": "tuned_f1_threshold"}

    def read(self, split: str) -> Rows:
        """The questions of "train", "dev" or "test"; see Task.read."""
        rows, ids = [], set()
        for row in super().read(split):
            if row.id in ids and split != "train":  # predictions.json has it as a key
                actual = f"{row.where}: the id {row.id!r} occurs twice"
                raise UserError(f"{actual}; expected every id once")
            ids.add(row.id)
            known = row.answers or (row.impossible and self.config.version_2)
            if known or split not in ("train", *self.splits.scored):
                rows.append(row)
            elif row.impossible:  # the setting is wrong, so the row is not skipped
                needed = "set version_2=True for SQuAD 2.0"
                raise UserError(f"{row.where} has no answer; {needed}")
            else:
                _skip(self.config, f"{row.where} has no answer")
        return rows

    def row(self, where: str, values: Mapping[str, Any], labelled: bool) -> Question:
        """A question. Its answers are read only if ``labelled``.

        "answers" is a text of the context, a list of texts, or has the form of SQuAD's JSON
        or of Hugging Face's data set. A column "answer_start" has the place of the text, or
        of each text; without it an answer is at its first place in the context. In SQuAD
        2.0 an empty list, an empty text or a missing value means that the context has no
        answer.
        """
        columns = self.form.columns
        question = text_of(where, values, columns["question"])
        context = text_of(where, values, columns["context"])
        impossible = values.get("is_impossible")
        if impossible == "":
            impossible = None
        if impossible is not None:
            impossible = truth_of(where, "is_impossible", impossible)
        (name,) = columns["answers"]
        value, has_column = values.get(name), name in values
        if impossible is None and isinstance(value, Mapping):
            impossible = not value.get("text", True)  # as in Hugging Face's squad_v2
        is_empty = has_column and value in (None, "", [])
        if impossible is None and is_empty and self.config.version_2:
            impossible = True
        right = []
        if labelled:
            check_texts(where, [question, context])
        if labelled and not impossible:
            if not has_column:
                value_of(where, values, [name], "answers")  # raises UserError
            value = _with_start(value, values.get("answer_start"))
            right = self._right_answers(where, value or [], context)
        row_id = str(values["id"])
        return Question(row_id, question, context, where, tuple(right), impossible)

    def _right_answers(
        self, where: str, value: Any, context: str
    ) -> list[tuple[str, int]]:
        """The answers that are in the context at their starts. Others are skipped."""
        with reading(f"{where}: the answer", "texts, or SQuAD's JSON"):
            answers = list(_answers(value, context))
        right = []
        for answer, start in answers:
            # A negative start would count from the end.
            there = ""
            if start >= 0:
                there = context[start : start + len(answer)]
            if there == answer and answer.strip():
                right.append((answer, start))
            else:
                problem = f"{where}: the answer {answer!r} is not in the context"
                if start >= 0 or answer in context:
                    problem += f" at {start}, which has {there!r} there"
                _skip(self.config, problem)
        return right

    def encode(self, rows: Rows, tokenizer: Tokenizer) -> Features:
        """The windows of all questions, in order: [CLS] question [SEP] context [SEP].

        Targets, if every row is labelled: the first and the last token of the first answer,
        or [CLS] (0) for both if the window does not contain the whole answer. extra: a
        Window for each sequence. truncated: number of questions that lose tokens.
        """
        config = self.config
        contexts = list(dict.fromkeys(row.context for row in rows))
        encoded = encode_with_offsets(contexts, tokenizer)
        tokens_of = dict(zip(contexts, encoded, strict=True))
        questions = tokenizer.encode_batch([row.question for row in rows])
        longest = min(config.max_question_length, config.max_length // 2 - 2)
        joined, row_of, labels, extra = [], [], [], []
        for i, (row, ids) in enumerate(zip(rows, questions, strict=True)):
            question = ids[:longest]
            tokens = tokens_of[row.context]
            _, offset = tokenizer.starts(len(question), 0)
            room = config.max_length - tokenizer.overhead(2) - len(question)
            begin, end = _answer_tokens(tokens, *(row.answers or [("", 0)])[0])
            for first, stop in token_windows(len(tokens.ids), room, config.stride):
                joined.append(tokenizer.build(question, tokens.ids[first:stop]))
                row_of.append(i)
                extra.append(Window(offset, tokens, first, stop))
                label = (0, 0)
                if first <= begin <= end < stop:
                    label = (begin + offset - first, end + offset - first)
                labels.append(label)
        targets = {}
        if all(row.answers or row.impossible for row in rows):
            start, end = np.array(labels, np.int32).reshape(-1, 2).T
            targets = {"start": start, "end": end}
        cut = sum(len(ids) > longest for ids in questions)
        return joined_features(joined, row_of, targets, extra=extra, truncated=cut)

    def decode(self, rows: Rows, features: Features, outputs: Outputs) -> Answers:
        """The answer to each question, and the next best answers.

        Candidates are all spans of at most max_answer_length tokens. The score of a span is
        the sum of its two logits, in the window that has the most context around its first
        token. (The original compares pairs of the n_best starts and ends of each window,
        and it is possible that no pair is a span.) With version_2 the score of the empty
        answer is the sum of the logits at [CLS], in the window with the smallest sum. The
        empty answer wins if its score exceeds the best span's by more than null_threshold.

        An answer has these entries:
        "id": the id of the question.
        "answer": the characters of the context from "start" to "end", or "" and None.
        "probability": softmax of the score over "nbest".
        "nbest": a list of different texts with "text", "probability", "start_logit" and
          "end_logit", the best first.
        "null_odds", with version_2: the score of the empty answer minus the best span's.
        """
        edges = np.searchsorted(features.example, np.arange(len(rows) + 1)).tolist()
        return [
            self._answer(row, features.extra[start:stop], outputs[start:stop])
            for row, start, stop in zip(rows, edges, edges[1:], strict=False)
        ]

    def score(self, rows: Rows, answers: Answers) -> Scores:
        """Exact match and F1; for SQuAD 2.0 see scores_v2."""
        texts = [answer["answer"] for answer in answers]
        right = [[text for text, _ in row.answers] for row in rows]
        if not self.config.version_2:
            return scores_v1(texts, right)
        best = [_best_span(answer) for answer in answers]
        odds = [answer["null_odds"] for answer in answers]
        return scores_v2(texts, best, odds, right)

    def outcomes(self, row: Question, answer: Answer) -> Iterator[Outcome]:
        """The outcome of the answer. SQuAD 2.0 has the classes "answer" and "no answer"."""
        right = [text for text, _ in row.answers] or [""]
        predicted, exact = answer["answer"], bool(exact_match(answer["answer"], right))
        classes = None
        if self.config.version_2:
            classes = _kind_of_answer(row.answers), _kind_of_answer(predicted)
        text = f"{row.question} \u2016 {row.context}"
        gold = " / ".join(dict.fromkeys(right)) or "(no answer)"
        shown, p = predicted or "(no answer)", answer["probability"]
        yield Outcome(text, gold, shown, p, exact, classes=classes)

    def export(self, rows: Rows, answers: Answers, split: str) -> dict[str, str]:
        """The files of run_squad.py, in a folder named after the split."""
        names = {"predictions": "answer", "nbest_predictions": "nbest"}
        if self.config.version_2:
            names["null_odds"] = "null_odds"
        files = {}
        for name, key in names.items():
            content = {answer["id"]: answer[key] for answer in answers}
            files[f"{split}/{name}.json"] = json.dumps(content, indent=4) + "\n"
        return files

    def _answer(self, row: Question, windows: Windows, logits: Outputs) -> Answer:
        """The answer to one question; logits: float (L, 2) of each window."""
        entries = self._spans(row.context, windows, logits)
        chosen, null_odds = Span("", 0.0, 0.0), {}
        if entries:
            chosen = entries[0]
        if self.config.version_2:
            null = min((Span("", *map(float, x[0])) for x in logits), key=_score)
            odds = _score(null) - _score(chosen)
            null_odds = {"null_odds": odds}
            if not entries or odds > self.config.null_threshold:
                chosen = null
            entries = sorted([*entries, null], key=_score, reverse=True)
            entries = entries[: max(self.config.n_best, 2)]
            # The n-best list always includes the empty answer.
            if null not in entries:
                entries.append(null)
        p, probability = [], 0.0
        if entries:
            p = scipy.special.softmax([*map(_score, entries)]).tolist()
            probability = p[entries.index(chosen)]
        return {
            "id": row.id,
            "answer": chosen.text,
            "probability": probability,
            "start": chosen.start,
            "end": chosen.end,
            **null_odds,
            "nbest": [
                {"text": text, "probability": x, "start_logit": start, "end_logit": end}
                for (text, start, end, *_), x in zip(entries, p, strict=True)
            ],
        }

    def _spans(self, context: str, windows: Windows, logits: Outputs) -> list[Span]:
        """The best spans of all windows, each text once."""
        longest, tokens = self.config.max_answer_length, windows[0].tokens
        count = len(tokens.ids)
        ranges = [(window.first, window.stop) for window in windows]
        best = owners(np.arange(count + 1), (0, count), ranges)
        # Row i, column j: the span from token i on that has j + 1 tokens.
        sums = np.full((count, longest), -np.inf)
        pairs = zip(windows, logits, strict=True)
        for k, ((offset, _, first, stop), values) in enumerate(pairs):
            inside = np.float64(values[offset : offset + stop - first])
            padded = np.append(inside[:, 1], np.full(longest, -np.inf))
            starts = np.flatnonzero(best[first:stop] == k)
            ends = padded[starts[:, None] + np.arange(longest)]
            sums[first + starts] = inside[starts, :1] + ends
        # Spans past the end of a window and logits that are not finite cannot win.
        np.nan_to_num(sums, copy=False, nan=-np.inf, posinf=-np.inf, neginf=-np.inf)
        spans: dict[str, Span] = {}
        for i in map(int, np.argsort(-sums, axis=None, kind="stable")):
            first, more = divmod(i, longest)
            if sums[first, more] == -np.inf or len(spans) == self.config.n_best:
                break
            start, end = int(tokens.starts[first]), int(tokens.ends[first + more])
            text = context[start:end]
            if text not in spans:
                window, values = windows[best[first]], logits[best[first]]
                place = window.offset + first - window.first
                pair = float(values[place, 0]), float(values[place + more, 1])
                spans[text] = Span(text, *pair, start, end)
        return list(spans.values())


def _skip(config: SquadConfig, problem: str) -> None:
    """Raises UserError, or logs the problem if bad_answers is "skip"."""
    if config.bad_answers == "refuse":
        change = "version_2=True"
        if config.version_2:
            change = "is_impossible to true"
        needed = f"set {change} if the text has no answer"
        skip = "leave such rows out with data.bad_answers=skip"
        raise UserError(f"{problem}; correct it, {needed}, or {skip}")
    logger.warning(f"skipped: {problem}")


def _answer_tokens(tokens: Tokens, text: str, start: int) -> tuple[int, int]:
    """The first and the last token with a character of the answer at ``start``.

    If no token has one, the last token is before the first. The original compares the
    tokens of the answer with the tokens around its place, with the same result.
    """
    first = np.searchsorted(tokens.ends, start, side="right")
    stop = np.searchsorted(tokens.starts, start + len(text), side="left")
    return int(first), int(stop) - 1


def _with_start(value: Any, start: Any) -> Any:
    """The value with the value of a column "answer_start", for a text or a list of texts.

    Other forms of answers have their own starts.
    """
    if isinstance(start, str) and cells.opens_list(start):
        start = cells.parse_list(start)
    texts = value
    if isinstance(value, str):
        texts = [value]
    if start in (None, "", []) or not texts or not isinstance(texts, list):
        return value
    if not all(isinstance(text, str) for text in texts):
        return value
    if not isinstance(start, list):
        start = [start]
    return {"text": texts, "answer_start": start}


def _answers(value: Any, context: str) -> Iterator[tuple[str, int]]:
    """Yields the answers in any of their forms, with their starts."""
    # Hugging Face has a list of texts and a list of starts.
    if isinstance(value, Mapping):
        texts, starts = value["text"], value["answer_start"]
        if isinstance(texts, str):
            texts, starts = [texts], [starts]
        if len(texts) != len(starts):
            actual = f"{len(texts)} texts and {len(starts)} values of answer_start"
            raise ValueError(f"{actual}; expected the same number")
        pairs = zip(texts, starts, strict=True)
        value = [{"text": text, "answer_start": start} for text, start in pairs]
    if isinstance(value, str):
        value = [value]
    for answer in value:
        if isinstance(answer, str):
            yield answer, context.find(answer)
        else:
            yield str(answer["text"]), int(float(answer["answer_start"]))


def _best_span(answer: Answer) -> str:
    """The most likely answer that is not empty; "" if all are."""
    for entry in answer["nbest"]:
        if entry["text"]:
            return entry["text"]
    return ""


def _kind_of_answer(answer: Any) -> str:
    """The class of an answer of SQuAD 2.0, which may be empty."""
    if answer:
        return "answer"
    return "no answer"


def read_squad(path: Path, articles: str = "") -> Iterator[Record]:
    """The questions of a SQuAD file, which may be gzipped, as dictionaries.

    articles: slice of the file's articles, such as "0:36", so that one file can be split
    into train and dev; empty: all.
    """
    part = slice_of("articles", articles)
    text, questions = "".join(line for _, line in read_lines(path)), []
    with reading(path, FORM):
        for article in [*parse_json(text, path, FORM)["data"]][part]:
            for paragraph in article["paragraphs"]:
                for entry in paragraph["qas"]:
                    values = {**entry, "context": paragraph["context"]}
                    questions.append((f"{path}: question {entry['id']}", values))
    return iter(questions)
