"""Questions over contexts: SQuAD 1.1 and 2.0 files, JSON lines, TSV."""

import dataclasses
import json
import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.files import read_json
from bert_jax.tasks.tables import parse_texts

logger = logging.getLogger(__name__)

_FORM = "SQuAD's JSON, {'data': [{'title', 'paragraphs': [{'context', 'qas': [...]}]}]}"


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a context.

    where: the file and the question's id or line. answers: (text, index of its first
    character in the context), the right ones; empty where none is known or there is none.
    impossible: whether the context holds no answer; None where the file does not say
    (SQuAD 1.1 and input without labels).
    """

    id: str
    question: str
    context: str
    where: str
    answers: tuple[tuple[str, int], ...] = ()
    impossible: bool | None = None

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
    rows, skipped, dropped = [], 0, 0
    for row, given in _entries(read_json(path, _FORM), str(path), articles):
        answers = []
        for answer in given:
            text = _get(answer, "text", str, row.where)
            start = _get(answer, "answer_start", int, row.where)
            # A negative start would count from the end.
            found = row.context[start : start + len(text)] if start >= 0 else ""
            if found == text and text.strip():
                answers.append((text, start))
            elif bad_answers == "refuse":
                raise UserError(
                    f"{row.where}: expected the answer {text!r} at answer_start {start}, "
                    f"but the context has {found!r} there; correct the file, or leave "
                    "such answers out with bad_answers='skip'"
                )
        skipped += len(given) - len(answers)
        if given and not answers:
            dropped += 1
        else:
            rows.append(dataclasses.replace(row, answers=tuple(answers)))
    if skipped:
        logger.warning(
            f"{path}: skipped {skipped} answers that are not at their answer_start, and "
            f"{dropped} questions with them"
        )
    return rows


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
            return [row for row, _ in _entries(document, name, "")]
    rows = []
    keys = [("question",), ("context",)]
    for i, (where, texts, value) in enumerate(parse_texts(lines, name, 1, keys), 1):
        if i > 1 or texts != ["question", "context"]:  # the header
            rows.append(Question(str(value.get("id", i)), *texts, where))
    if not rows:
        raise UserError(f"{name} has no questions; expected some below its header")
    return rows


def _entries(
    document: Any, name: str, articles: str
) -> Iterator[tuple[Question, list[Any]]]:
    """The questions of the chosen articles, and their answers as the file has them."""
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
                question = _text(entry, "question", where)
                none = entry.get("is_impossible")
                row = Question(identity, question, context, where, impossible=none)
                yield row, [] if none else entry.get("answers", [])
    if not seen:
        raise UserError(f"{name} has no questions; expected {_FORM}")


def _get(node: Any, key: str, kind: type, where: str) -> Any:
    if not isinstance(node, dict) or key not in node:
        raise UserError(f"{where} has no {key!r}; expected {_FORM}")
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
