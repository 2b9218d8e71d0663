"""Answers as an aligned table for people, or as JSON lines for machines."""

import json
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bert_jax.inference.answering import Answers

Cells = dict[str, str]
_GAP = "  "
# Widths of columns that hold texts; what is longer is cut. Others are as wide as needed.
_LIMITS = {
    "text": 60,
    "text_a": 40,
    "text_b": 40,
    "context": 40,
    "choice": 40,
    "question": 50,
    "answer": 40,
}


def json_lines(part: Answers) -> Iterator[str]:
    """One object a row."""
    for answer in part.answers:
        yield json.dumps(answer, ensure_ascii=False)


class AnswerTable:
    """Aligned columns, as wide as the rows of the first part need."""

    def __init__(self, family: str):
        self._cells = _FAMILIES[family]
        self._widths: dict[str, int] = {}

    def lines(self, part: Answers) -> Iterator[str]:
        """The lines of some rows; below a header, the first time."""
        cells = [
            {name: _printable(text) for name, text in line.items()}
            for row, answer in zip(part.rows, part.answers, strict=True)
            for line in self._cells(row, answer)
        ]
        if not self._widths and cells:
            for name in cells[0]:
                widest = max(
                    _width(line.get(name, "")) for line in [*cells, {name: name}]
                )
                self._widths[name] = min(widest, _LIMITS.get(name, widest))
            yield self._line({name: name for name in self._widths})
        for line in cells:
            yield self._line(line)

    def _line(self, line: Cells) -> str:
        parts = []
        for name, width in self._widths.items():
            text = line.get(name, "")
            if name in _LIMITS:
                text = _shortened(text, width)
            parts.append(text + " " * (width - _width(text)))
        return _GAP.join(parts).rstrip()


def _classification(row: Any, answer: dict[str, Any]) -> list[Cells]:
    cells = {"id": answer["id"]} if "id" in answer else {}
    if "value" in answer:
        cells["value"] = f"{answer['value']:.4f}"
    else:
        cells |= {"label": answer["label"], **_probability(answer)}
    if row.text_b is None:
        return [cells | {"text": row.text_a}]
    return [cells | {"text_a": row.text_a, "text_b": row.text_b}]


def _tagging(row: Any, answer: dict[str, Any]) -> list[Cells]:
    """Entities with probabilities; else the tagged words, and the least of theirs."""
    entities = answer.get("entities")
    if entities and all(entity["type"] == "word" for entity in entities):
        text = " ".join(entity["text"] for entity in entities)
    elif entities is None:
        pairs = zip(answer["words"], answer["tags"], strict=True)
        text = " ".join(f"{word}/{tag}" for word, tag in pairs)
    else:
        found = (
            f"{entity['text']} ({entity['type']} {entity['probability']:.2f})"
            for entity in entities
        )
        return [{"text": " ".join(row.words), "entities": ", ".join(found) or "-"}]
    return [{"least": f"{min(answer['probabilities']):.4f}", "tagged": text}]


def _multiple_choice(row: Any, answer: dict[str, Any]) -> list[Cells]:
    cells = {"id": answer["id"]} if "id" in answer else {}
    number = {"number": str(answer["choice"])}
    return [
        cells
        | number
        | _probability(answer)
        | {"choice": answer["text"], "context": row.context}
    ]


def _question_answering(row: Any, answer: dict[str, Any]) -> list[Cells]:
    text = answer["answer"] or "(no answer)"
    return [{"answer": text, **_probability(answer), "question": row.question}]


def _fill_mask(row: Any, answer: dict[str, Any]) -> list[Cells]:
    """A line for each [MASK]."""
    del row
    return [
        {
            "text": answer["text"],
            "blank": str(number),
            "tokens": ", ".join(
                f"{entry['token']} {entry['probability']:.3f}" for entry in blank
            ),
        }
        for number, blank in enumerate(answer["blanks"], 1)
    ]


_FAMILIES: dict[str, Callable[[Any, dict[str, Any]], Sequence[Cells]]] = {
    "classification": _classification,
    "tagging": _tagging,
    "multiple_choice": _multiple_choice,
    "question_answering": _question_answering,
    "fill_mask": _fill_mask,
}


def _probability(answer: dict[str, Any]) -> Cells:
    return {"probability": f"{answer['probability']:.4f}"}


def _printable(text: str) -> str:
    """One line, without what a terminal would obey."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _width(text: str) -> int:
    """Columns of a terminal: two for a Chinese character, none for an accent."""
    return sum(_columns(c) for c in text)


def _columns(character: str) -> int:
    if character.isascii():
        return 1
    if unicodedata.combining(character):
        return 0
    return 1 + (unicodedata.east_asian_width(character) in "WF")


def _shortened(text: str, width: int) -> str:
    if _width(text) <= width:
        return text
    kept, left = [], width - 1
    for character in text:
        left -= _columns(character)
        if left < 0:
            break
        kept.append(character)
    return "".join(kept) + "…"
