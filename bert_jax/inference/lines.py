"""The input of commands, and their answers as JSON or CSV."""

import contextlib
import csv
import io
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError, printable
from bert_jax.files import ending, new_file
from bert_jax.inference.evaluation import CHUNK, Part, Rows
from bert_jax.tasks.rows import Placed, is_table

STANDARD = "-"  # stdin, or stdout
PREFIX = "predicted_"  # of answer columns in a table that has the row's columns
_OF_ROW = ("id", "text", "first", "second")  # values that are copied from the row


def given_rows(
    texts: Sequence[Sequence[str]] | None, path: str, read: Callable[[Path], Rows]
) -> Rows:
    """The rows of a command. Raises UserError if there are none.

    texts: values of --text. path: value of --input, which is read if there are no texts.
    """
    if texts:
        return Rows(_text_rows(texts))
    rows = read(Path(path))
    placed = iter(rows.placed)
    first = [*itertools.islice(placed, 1)]
    if not first:
        raise UserError(f"{path} is empty; expected rows")
    return rows._replace(placed=itertools.chain(first, placed))


def _text_rows(texts: Sequence[Sequence[str]]) -> Iterator[Placed]:
    """The rows of --text: a text, or a tuple of several texts."""
    for number, row in enumerate(texts, 1):
        place = f"--text:{number}"
        if len(row) == 1:
            yield place, row[0]
        else:
            yield place, tuple(row)


def beside_columns(
    answer: Callable[[Rows], Iterator[Part]], rows: Rows, path: str | None
) -> Iterator[Part]:
    """The answers to rows. The answer to a row of a table starts with the row's columns.

    answer: function that answers rows. path: value of --input, or None. A value with the
    name of a column gets a prefix, as in "predicted_tokens", starting with the first part
    in which a row has this column.
    """
    if path and is_table(Path(path)):
        return _with_columns(answer, rows)
    return answer(rows)


def _with_columns(
    answer: Callable[[Rows], Iterator[Part]], rows: Rows
) -> Iterator[Part]:
    placed, kept = itertools.tee(rows.placed)
    taken: set[str] = set()  # rows of JSON lines may have different columns
    for part in answer(rows._replace(placed=placed)):
        rows_of_part = []
        for _, columns in itertools.islice(kept, len(part.answers)):
            taken.update(columns)
            rows_of_part.append(dict(columns))
        for cells, values in zip(rows_of_part, part.answers, strict=True):
            for name, value in values.items():
                if name in _OF_ROW:
                    continue
                if name in taken:
                    cells[f"{PREFIX}{name}"] = value
                else:
                    cells[name] = value
        yield part._replace(answers=rows_of_part)


def on_screen(path: str) -> bool:
    """Whether an output is a terminal."""
    return path == STANDARD and sys.stdout.isatty()


def output_format(output: str, as_json: bool = False) -> str:
    """The format of answers, by the suffix of the output's name: "jsonl" or "csv".

    stdout gets "text", or "jsonl" if ``as_json``. Raises UserError for another suffix.
    """
    if output == STANDARD:
        return "jsonl" if as_json else "text"
    suffix = ending(output)
    if suffix in ("", ".jsonl"):
        return "jsonl"
    if suffix == ".csv" and not as_json:
        return "csv"
    known = ".csv or .jsonl"
    if as_json:
        known = ".jsonl with --json"
    raise UserError(f"--output={output} must end in {known}")


def write_answers(parts: Iterable[Part], output: str, form: str) -> None:
    """Writes the answers to rows, each part as soon as ``parts`` yields it.

    output: a file, which replaces an existing file when it is complete, or "-" for stdout.
    form: "text", "csv" or "jsonl". Raises UserError if stdout is closed, because the
    answers would be lost.
    """
    # A command opens the null device for a closed stdout.
    if output == STANDARD and getattr(sys.stdout, "name", "") == os.devnull:
        advice = "redirect it, for example with > answers.txt, or give --output"
        raise UserError(f"stdout is closed; {advice}")
    shown = on_screen(output)
    texts = {"csv": csv_texts, "jsonl": json_texts, "text": plain_texts}[form](parts)
    opened = contextlib.nullcontext(sys.stdout)
    if output != STANDARD:
        opened = new_file(Path(output), "w")
    with opened as file:
        for text in texts:
            if shown:
                text = printable(text)
            file.write(text)
            file.flush()


def json_texts(parts: Iterable[Part]) -> Iterator[str]:
    """Yields a JSON object for each row. Dates, which JSON lacks, become strings."""
    for part in parts:
        lines = []
        for answer in part.answers:
            line = json.dumps(answer, ensure_ascii=False, default=str)
            lines.append(f"{printable(line)}\n")
        yield "".join(lines)


def plain_texts(parts: Iterable[Part]) -> Iterator[str]:
    """A line for each row, such as "label: good  probability: 0.93", without "nbest"."""
    for part in parts:
        for answer in part.answers:
            cells = []
            for name, value in _short(answer).items():
                cells.append(f"{name}: {_plain(value)}")
            yield "  ".join(cells) + "\n"


def _plain(value: Any) -> str:
    """A value of an answer in a line: three digits of a number, the items of a list."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        items = []
        for item in value:
            if isinstance(item, dict):
                items.append(" ".join(map(_plain, item.values())))
            else:
                items.append(_plain(item))
        return ", ".join(items)
    if isinstance(value, float):
        return f"{value:.3g}"
    return " ".join(str(value).split())


def csv_texts(parts: Iterable[Part]) -> Iterator[str]:
    """A CSV table with a header and a line for each row.

    A dictionary in an answer has a column for each of its values, such as
    "probabilities.good". A list is written as JSON, and "nbest" is left out. Texts are
    written unchanged, with their control characters. Raises UserError for a value that no
    row of the first part has.
    """
    names: dict[str, None] = {}
    for part in parts:
        rows = [flat(answer) for answer in part.answers]
        columns: dict[str, None] = {}
        for row in rows:
            columns |= dict.fromkeys(row)
        lines = []
        if not names:
            names = columns
            lines.append(_csv_line(names))
        for name in columns:
            if name not in names:
                actual = f"column {name!r} is missing in the first {CHUNK:,} rows"
                raise UserError(f"{actual}; give an --output that ends in .jsonl")
        for row in rows:
            cells = [_cell(row.get(name)) for name in names]
            lines.append(_csv_line(cells))
        yield "".join(lines)


def _csv_line(cells: Iterable[Any]) -> str:
    """A line of a CSV table with a line feed at its end.

    A cell with a line feed or a carriage return is quoted. Before 3.11.9, Python quotes a
    carriage return only if lines end in one.
    """
    file = io.StringIO()
    csv.writer(file, lineterminator="\r\n").writerow(cells)
    return file.getvalue().removesuffix("\r\n") + "\n"


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return value


def flat(answer: dict[str, Any]) -> dict[str, Any]:
    """The values of an answer by column, without "nbest"."""
    cells: dict[str, Any] = {}
    for name, value in _short(answer).items():
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                cells[f"{name}.{key}"] = inner
        else:
            cells[name] = value
    return cells


def _short(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without its long list "nbest", which is not a column of the row."""
    long = f"{PREFIX}nbest"
    if long not in answer and "answer" in answer:
        long = "nbest"
    return {name: value for name, value in answer.items() if name != long}
