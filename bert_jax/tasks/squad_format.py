"""Questions over contexts: SQuAD 1.1 and 2.0 files, JSON lines, TSV."""

import dataclasses
import json
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.files import read_json
from bert_jax.tasks.tables import parse_lines

logger = logging.getLogger(__name__)

BAD_ANSWERS = ("refuse", "skip")
_FORM = "SQuAD's JSON, {'data': [{'title', 'paragraphs': [{'context', 'qas': [...]}]}]}"
_LINE = f"an object with the texts 'question' and 'context' in each line, or {_FORM}"


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a context.

    answers: (text, index of its first character in the context), the right ones; empty
    where none is known or there is none. impossible: whether the context holds no answer;
    None where the file does not say (SQuAD 1.1 and input without labels). where: the file
    and the question's id or line.
    """

    id: str
    question: str
    context: str
    title: str
    answers: tuple[tuple[str, int], ...]
    impossible: bool | None
    where: str

    @property
    def labelled(self) -> bool:
        """Whether it is known what a right answer is."""
        return bool(self.answers) or bool(self.impossible)


def read_questions(
    path: Path, articles: str = "", bad_answers: str = "refuse"
) -> list[Question]:
    """The questions of a SQuAD file.

    articles: a Python slice such as "0:36" or "36:" over the file's articles; all where
    empty, so that one file can be split into training and development sets.
    bad_answers: what happens to an answer that is not at its answer_start:
    "refuse" raises, "skip" leaves it out, and its question where no other is left, and
    logs how many.
    Raises UserError for a file that is missing or is not as expected.
    """
    document = read_json(path, _FORM)
    return _Reader(str(path), bad_answers).questions(document, articles)


def parse_questions(lines: Iterable[str], name: str) -> list[Question]:
    """Questions from the lines of a SQuAD file, of JSON lines, or of a TSV file.

    A JSON line is an object with "question", "context" and, if wanted, "id"; a TSV line
    is question, tab, context. The line number is the id of a question without one.
    """
    lines = [line.rstrip("\r\n") for line in lines]
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise UserError(f"{name} is empty; expected questions with their contexts")
    if lines[0].lstrip("\ufeff ").startswith("{"):
        try:
            document = json.loads("\n".join(lines).lstrip("\ufeff"))
        except ValueError:  # an object a line
            document = {}
        if "data" in document:
            # Whoever only asks has no use for answers, right or wrong.
            return _Reader(name, "skip", quiet=True).questions(document, "")
    rows = []
    for number, (where, value) in enumerate(parse_lines(lines, name), 1):
        if isinstance(value, dict):
            texts = [value.get(key) for key in ("question", "context")]
            if not all(isinstance(text, str) for text in texts):
                raise UserError(f"{where} is {str(value)[:60]!r}; expected {_LINE}")
            rows.append(_unlabelled(str(value.get("id", number)), *texts, where))
        elif len(value) != 2:
            raise UserError(
                f"{where} has {len(value)} columns; expected two, question and context "
                "with a tab between them"
            )
        elif number > 1 or value != ["question", "context"]:  # the header
            rows.append(_unlabelled(str(number), *value, where))
    if not rows:
        raise UserError(f"{name} has no questions; expected some below its header")
    return rows


class _Reader:
    """Walks a SQuAD document and says where it is not one."""

    def __init__(self, name: str, bad_answers: str, quiet: bool = False):
        self.name = name
        self.bad_answers = bad_answers
        self.quiet = quiet
        self.skipped = 0
        self.dropped = 0
        self.seen: set[str] = set()

    def questions(self, document: Any, articles: str) -> list[Question]:
        """All questions of the chosen articles."""
        rows: list[Question] = []
        data = self._get(document, "data", list, "the file")
        numbers = range(len(data))[_slice(articles)]
        if not numbers:
            raise UserError(
                f"{self.name} has {len(data)} articles, of which articles={articles!r} "
                "leaves none; expected a slice such as '0:36'"
            )
        for i in numbers:
            place = f"article {i}"
            paragraphs = self._get(data[i], "paragraphs", list, place)
            title = data[i].get("title", "")
            for j, paragraph in enumerate(paragraphs):
                rows += self._paragraph(paragraph, title, f"{place}, paragraph {j}")
        if not rows:
            raise UserError(f"{self.name} has no questions; expected {_FORM}")
        if self.skipped and not self.quiet:
            logger.warning(
                "%s: skipped %d answers that are not at their answer_start, and %d "
                "questions with them",
                self.name,
                self.skipped,
                self.dropped,
            )
        return rows

    def _paragraph(self, paragraph: Any, title: str, place: str) -> Iterable[Question]:
        context = self._text(paragraph, "context", place)
        for k, entry in enumerate(self._get(paragraph, "qas", list, place)):
            name = self._text(entry, "id", f"{place}, question {k}")
            place_of_it = f"question {name}"
            if name in self.seen:
                raise UserError(
                    f"{self.name}: {place_of_it} occurs twice; expected every id once"
                )
            self.seen.add(name)
            question = self._text(entry, "question", place_of_it)
            impossible = entry.get("is_impossible")
            answers: list[tuple[str, int]] = []
            given = entry.get("answers", []) if not impossible else []
            for answer in given:
                answers += self._answer(answer, context, place_of_it)
            if given and not answers and not self.quiet:
                self.dropped += 1
                continue
            yield Question(
                id=name,
                question=question,
                context=context,
                title=title,
                answers=tuple(answers),
                impossible=None if impossible is None else bool(impossible),
                where=f"{self.name}: {place_of_it}",
            )

    def _answer(self, answer: Any, context: str, place: str) -> list[tuple[str, int]]:
        """The answer alone, or nothing where it is bad and to be skipped."""
        text = self._get(answer, "text", str, place)
        start = self._get(answer, "answer_start", int, place)
        # A negative start would count from the end.
        found = context[start : start + len(text)] if start >= 0 else ""
        if found == text and text.strip():
            return [(text, start)]
        if self.bad_answers == "refuse":
            raise UserError(
                f"{self.name}: {place}: expected the answer {text!r} at answer_start "
                f"{start}, but the context has {found!r} there; correct the file, or "
                "leave such answers out with bad_answers='skip'"
            )
        self.skipped += 1
        return []

    def _get(self, node: Any, key: str, kind: type, place: str) -> Any:
        if not isinstance(node, dict) or key not in node:
            raise UserError(f"{self.name}: {place} has no {key!r}; expected {_FORM}")
        value = node[key]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise UserError(
                f"{self.name}: {place}: {key!r} is a {type(value).__name__}; expected a "
                f"{kind.__name__}"
            )
        return value

    def _text(self, node: Any, key: str, place: str) -> str:
        return _not_empty(
            self._get(node, key, str, place), key, f"{self.name}: {place}"
        )


def _not_empty(text: str, key: str, where: str) -> str:
    if not text.strip():
        raise UserError(f"{where}: the {key} is empty; expected text")
    return text


def _slice(text: str) -> slice:
    if not text:
        return slice(None)
    if not re.fullmatch(r"-?\d*:-?\d*", text):
        raise UserError(f"articles={text!r} is not a slice; expected such as '0:36'")
    return slice(*(int(part) if part else None for part in text.split(":")))


def _unlabelled(identity: str, question: str, context: str, where: str) -> Question:
    return Question(
        id=identity,
        question=_not_empty(question, "question", where),
        context=_not_empty(context, "context", where),
        title="",
        answers=(),
        impossible=None,
        where=where,
    )
