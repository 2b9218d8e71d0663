"""Questions over contexts: SQuAD 1.1 and 2.0 files, and rows of any origin."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.files import parse_json, reading
from bert_jax.tasks.tables import Record, check_texts, read_lines, text

FORM = "SQuAD's JSON, {'data': [{'title', 'paragraphs': [{'context', 'qas': [...]}]}]}"


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a context.

    id: empty if the row has none. where: the file and the question's id or line.
    answers: the right ones, each with the index of its first character in the context.
    impossible: whether the context has no answer; None if the row does not say.
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


def make_question(
    where: str, values: Mapping[str, Any], labelled: bool, bad_answers: str = "refuse"
) -> Question:
    """A question from its "question", "context" and, if it has them, "id" and answers.

    "answers" (or "answer") is a text of the context, a list of texts, a list of (text,
    start) pairs, or what SQuAD's JSON or Hugging Face's data set has. Without ``labelled``
    they are not read. bad_answers: "refuse" raises UserError for an answer that is not at
    its start, "skip" leaves it out.
    """
    question, context = (text(where, values, [n]) for n in ("question", "context"))
    check_texts(where, [question, context])
    impossible = values.get("is_impossible")
    if not isinstance(impossible, bool | None):
        raise UserError(f"{where}: is_impossible is no true or false")
    given, answers = [], []
    if labelled and not impossible:
        with reading(
            f"{where}: the answer", "texts, (text, start) pairs or SQuAD's JSON"
        ):
            given = list(_given(values, context))
    for answer, start in given:
        # A negative start would count from the end.
        there = context[start : start + len(answer)] if start >= 0 else ""
        if there == answer and answer.strip():
            answers.append((answer, start))
        elif bad_answers == "refuse":
            problem = f"the answer {answer!r} is not in the context"
            if answer in context:
                problem = (
                    f"expected the answer {answer!r} at answer_start {start}, but the "
                    f"context has {there!r} there"
                )
            raise UserError(
                f"{where}: {problem}; correct it, or leave such answers out with "
                "data.bad_answers=skip"
            )
    return Question(
        id="" if values.get("id") is None else str(values["id"]),
        question=question,
        context=context,
        where=where,
        answers=tuple(answers),
        impossible=impossible,
        skipped=len(given) - len(answers),
    )


def _given(values: Mapping[str, Any], context: str) -> Iterator[tuple[str, int]]:
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


def squad_entries(path: Path, articles: str = "") -> Iterator[Record]:
    """The questions of a SQuAD file, which may be gzipped, as dictionaries.

    articles: a Python slice such as "0:36" or "36:" of the file's articles, so that one
    file can be split into train and dev; empty: all.
    """
    if not re.fullmatch(r"(-?\d*:-?\d*)?", articles):
        raise UserError(
            f"articles={articles!r} is not a slice; expected such as '0:36'"
        )
    ends = [int(end) if end else None for end in (articles or ":").split(":")]
    lines = "".join(line for _, line in read_lines(path))
    document = parse_json(lines.removeprefix("\ufeff"), path, FORM)
    with reading(path, FORM):
        chosen = [*document["data"]][slice(*ends)]
        entries = [
            {**entry, "context": paragraph["context"]}
            for article in chosen
            for paragraph in article["paragraphs"]
            for entry in paragraph["qas"]
        ]
        found = [(f"{path}: question {entry['id']}", entry) for entry in entries]
    if not found:
        raise UserError(
            f"{path} has no questions, or articles={articles!r} leaves none; expected "
            f"{FORM}"
        )
    yield from found
