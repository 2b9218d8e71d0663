"""Questions over contexts: SQuAD 1.1 and 2.0 files, JSON lines, TSV."""

import dataclasses
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.files import read_json
from bert_jax.tasks.tables import Record, check_texts, parse_lines, text

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
    for where, entry in _entries(read_json(path, _FORM), str(path), articles):
        row = make_question(where, entry, labelled=True, bad_answers=bad_answers)
        given = len(entry["answers"])
        skipped += given - len(row.answers)
        if given and not row.answers:
            dropped += 1
        else:
            rows.append(row)
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
            entries = _entries(document, name, "")
            return [make_question(*entry, labelled=False) for entry in entries]
    rows = []
    for number, (where, value) in enumerate(parse_lines(lines, name), 1):
        if isinstance(value, list):
            if len(value) != 2:
                raise UserError(
                    f"{where}: number of texts is {len(value)}, the task reads two, with "
                    "a tab between them; change the line, or give a JSON object"
                )
            if number == 1 and value == ["question", "context"]:
                continue  # the header
            value = dict(zip(("question", "context"), value, strict=True))
        rows.append(make_question(where, value, labelled=False, identity=str(number)))
    if not rows:
        raise UserError(f"{name} has no questions; expected some below its header")
    return rows


def make_question(
    where: str,
    values: Mapping[str, Any],
    labelled: bool,
    *,
    bad_answers: str = "refuse",
    identity: str = "",
) -> Question:
    """A question from its "question", "context" and, if it has them, "id" and answers.

    "answers" (or "answer") is a text of the context, several of them, (text, start) pairs,
    or what SQuAD's JSON or Hugging Face's data set has. bad_answers: see read_questions.
    identity: of a question without an id, instead of its place.
    """
    question, context = (text(where, values, [n]) for n in ("question", "context"))
    check_texts(where, [question, context])
    given, answers = values.get("answers", values.get("answer")) or [], []
    if isinstance(given, Mapping):  # Hugging Face's: a list of each
        given = zip(given["text"], given["answer_start"], strict=True)
    for answer in ([given] if isinstance(given, str) else given) if labelled else ():
        if isinstance(answer, str):
            found, start = answer, context.find(answer)
        elif isinstance(answer, Mapping):
            found = _get(answer, "text", str, where)
            start = _get(answer, "answer_start", int, where)
        else:
            found, start = answer
        # A negative start would count from the end.
        there = context[start : start + len(found)] if start >= 0 else ""
        if there == found and found.strip():
            answers.append((found, start))
        elif bad_answers == "refuse":
            raise UserError(
                f"{where}: expected the answer {found!r} at answer_start {start}, "
                f"but the context has {there!r} there; correct the file, or leave "
                "such answers out with bad_answers='skip'"
            )
    return Question(
        str(values.get("id", identity or where)),
        question,
        context,
        where,
        tuple(answers),
        values.get("is_impossible"),
    )


def _entries(document: Any, name: str, articles: str) -> Iterator[Record]:
    """The questions of the chosen articles, with the answers as the file has them."""
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
                answers = [] if entry.get("is_impossible") else answers
                yield where, entry | {"context": context, "answers": answers}
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
