"""Questions over contexts: SQuAD 1.1 and 2.0 files, and rows of any origin."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.tasks.tables import Record, check_texts, text

_KEYS = ("text", "answer_start")
FORM = "SQuAD's JSON, {'data': [{'title', 'paragraphs': [{'context', 'qas': [...]}]}]}"


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a context.

    id: empty where the row has none. where: the file and the question's id or line.
    answers: (text, index of its first character in the context), the right ones; empty
    where none is known or there is none. impossible: whether the context holds no answer;
    None where the file does not say (SQuAD 1.1 and input without labels).
    """

    id: str
    question: str
    context: str
    where: str
    answers: tuple[tuple[str, int], ...] = ()
    impossible: bool | None = None
    skipped: int = 0  # answers that are left out

    @property
    def labelled(self) -> bool:
        """Whether it is known what a right answer is."""
        return bool(self.answers) or bool(self.impossible)


def make_question(
    where: str, values: Mapping[str, Any], labelled: bool, bad_answers: str = "refuse"
) -> Question:
    """A question from its "question", "context" and, if it has them, "id" and answers.

    "answers" (or "answer") is a text of the context, several of them, (text, start) pairs,
    or what SQuAD's JSON or Hugging Face's data set has. bad_answers: "refuse" raises for
    an answer that is not at its start, "skip" leaves it out.
    """
    question, context = (text(where, values, [n]) for n in ("question", "context"))
    check_texts(where, [question, context])
    answers = []
    # Whoever only asks has no use for answers, right or wrong.
    given = _given(where, values, context) if labelled else []
    for found, start in given:
        # A negative start would count from the end.
        there = context[start : start + len(found)] if start >= 0 else ""
        if there == found and found.strip():
            answers.append((found, start))
        elif bad_answers == "refuse":
            problem = f"the answer {found!r} is not in the context"
            if found in context:
                problem = (
                    f"expected the answer {found!r} at answer_start {start}, but the "
                    f"context has {there!r} there"
                )
            raise UserError(
                f"{where}: {problem}; correct it, or leave such answers out with "
                "data.bad_answers=skip"
            )
    impossible = values.get("is_impossible")
    if not isinstance(impossible, bool | None):
        raise UserError(f"{where}: is_impossible is no true or false")
    return Question(
        id="" if values.get("id") is None else str(values["id"]),
        question=question,
        context=context,
        where=where,
        answers=tuple(answers),
        impossible=impossible,
        skipped=len(given) - len(answers),
    )


def _given(
    where: str, values: Mapping[str, Any], context: str
) -> list[tuple[str, int]]:
    """The answers of a row in any of their forms, and the places that they give."""
    given = values.get("answers", values.get("answer")) or []
    if isinstance(given, Mapping):  # Hugging Face's: a list of each
        found, starts = (_get(given, key, list, where) for key in _KEYS)
        if len(found) != len(starts):
            raise UserError(
                f"{where} has {len(found)} answers and {len(starts)} places of them"
            )
        given = [
            dict(zip(_KEYS, pair, strict=True))
            for pair in zip(found, starts, strict=True)
        ]
    if not isinstance(given, str | list | tuple):
        raise UserError(
            f"{where}: answers are a {type(given).__name__}; expected {FORM}"
        )
    answers = []
    for answer in [given] if isinstance(given, str) else given:
        if isinstance(answer, str):
            answer = (answer, context.find(answer))
        elif isinstance(answer, list | tuple) and len(answer) == len(_KEYS):
            answer = dict(zip(_KEYS, answer, strict=True))
        if not isinstance(answer, tuple):
            kinds = zip(_KEYS, (str, int), strict=True)
            answer = tuple(_get(answer, key, kind, where) for key, kind in kinds)
        answers.append(answer)
    return answers


def squad_entries(document: Any, name: str, articles: str = "") -> Iterator[Record]:
    """The questions of SQuAD's JSON, with the answers as they are there.

    articles: a Python slice such as "0:36" or "36:" over its articles; all where empty, so
    that one file can be split into training and development sets.
    """
    data = _get(document, "data", list, f"{name}: the file")
    if not re.fullmatch(r"(-?\d*:-?\d*)?", articles):
        raise UserError(
            f"articles={articles!r} is not a slice; expected such as '0:36'"
        )
    ends = [int(end) if end else None for end in (articles or ":").split(":")]
    numbers = range(len(data))[slice(*ends)]
    if not numbers:
        raise UserError(
            f"{name} has {len(data)} articles, of which articles={articles!r} leaves "
            "none; expected a slice such as '0:36'"
        )
    seen = set()
    for i in numbers:
        article = f"{name}: article {i}"
        for j, paragraph in enumerate(_get(data[i], "paragraphs", list, article)):
            place = f"{article}, paragraph {j}"
            context = _text(paragraph, "context", place)
            for k, entry in enumerate(_get(paragraph, "qas", list, place)):
                identity = _text(entry, "id", f"{place}, question {k}")
                where = f"{name}: question {identity}"
                if identity in seen:
                    raise UserError(f"{where} occurs twice; expected every id once")
                seen.add(identity)
                _text(entry, "question", where)
                answers = entry.get("answers", [])
                answers = [] if entry.get("is_impossible") is True else answers
                yield where, entry | {"context": context, "answers": answers}
    if not seen:
        raise UserError(f"{name} has no questions; expected {FORM}")


def _get(node: Any, key: str, kind: type, where: str) -> Any:
    if not isinstance(node, dict) or key not in node:
        raise UserError(f"{where} has no {key!r}; expected {FORM}")
    value = node[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(
            f"{where}: {key!r} is a {type(value).__name__}; expected a {kind.__name__}"
        )
    return value


def _text(node: Any, key: str, where: str) -> str:
    text = _get(node, key, str, where)
    if not text.strip():
        raise UserError(f"{where}: the {key} is empty; expected text")
    return text
