"""The input of commands, and their answers as JSON or CSV."""

import contextlib
import csv
import io
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError, printable
from bert_jax.files import ending, new_file
from bert_jax.inference.evaluation import CHUNK, Answers, Rows
from bert_jax.tasks.rows import Placed

STANDARD = "-"  # stdin, or stdout
PREFIX = "predicted_"  # of answer columns in a table that has the row's columns


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


def on_screen(path: str) -> bool:
    """Whether an output is a terminal."""
    return path == STANDARD and sys.stdout.isatty()


def output_format(output: str, as_json: bool = False) -> str:
    """The format of answers, by the ending of the output's name: "jsonl" or "csv".

    stdout gets "text", or "jsonl" if ``as_json``. Raises UserError for another ending.
    """
    if output == STANDARD:
        return "jsonl" if as_json else "text"
    form = {"": "jsonl", ".jsonl": "jsonl", ".csv": "csv"}.get(ending(output))
    if not form or (as_json and form == "csv"):
        known = ".jsonl with --json" if as_json else ".csv or .jsonl"
        raise UserError(f"--output={output}, expected a name in {known}")
    return form


def write_answers(parts: Iterable[Answers], output: str, form: str) -> None:
    """Writes an answer to each row as soon as it is known.

    parts: the answers, a part at a time. output: a file that replaces an existing file when
    it is complete, or "-" for stdout. form: "text", "csv" or "jsonl".
    """
    shown, stdout = on_screen(output), contextlib.nullcontext(sys.stdout)
    texts = {"csv": csv_texts, "jsonl": json_texts, "text": plain_texts}[form](parts)
    with stdout if output == STANDARD else new_file(Path(output), "w") as file:
        for text in texts:
            file.write(printable(text) if shown else text)
            file.flush()


def json_texts(parts: Iterable[Answers]) -> Iterator[str]:
    """Yields a JSON object for each row. A date, which JSON lacks, becomes a text."""
    for part in parts:
        lines = (json.dumps(a, ensure_ascii=False, default=str) for a in part.answers)
        yield "".join(f"{printable(line)}\n" for line in lines)


def plain_texts(parts: Iterable[Answers]) -> Iterator[str]:
    """A line for each row, such as "label: good  probability: 0.93", without "nbest"."""
    for part in parts:
        for answer in part.answers:
            cells = (f"{name}: {_plain(value)}" for name, value in _short(answer))
            yield "  ".join(cells) + "\n"


def _plain(value: Any) -> str:
    """A value of an answer in a line: three digits of a number, the items of a list."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        items = (x.values() if isinstance(x, dict) else [x] for x in value)
        return ", ".join(" ".join(map(_plain, item)) for item in items)
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return " ".join(text.split())


def csv_texts(parts: Iterable[Answers]) -> Iterator[str]:
    """A CSV table with a header and a line for each row.

    A dictionary in an answer has a column for each of its values, such as
    "probabilities.good". A list is written as JSON, and "nbest" is left out. Texts are
    written unchanged, with their control characters. Raises UserError for a value that no
    row of the first part has.
    """
    names: dict[str, None] = {}
    for part in parts:
        rows = [flat(answer) for answer in part.answers]
        columns = dict.fromkeys(name for row in rows for name in row)
        lines = []
        if not names:
            names = columns
            lines.append(_csv_line(names))
        if more := [name for name in columns if name not in names]:
            actual = f"column {more[0]!r} is missing in the first {CHUNK:,} rows"
            raise UserError(f"{actual}; write --output in .jsonl")
        lines += [_csv_line(_cell(row.get(name)) for name in names) for row in rows]
        yield "".join(lines)


def _csv_line(cells: Iterable[Any]) -> str:
    """A line of a CSV table with a line feed at its end.

    A cell with a line feed or a carriage return has quotation marks. Before 3.11.9, Python
    quotes a carriage return only if the line ends in one.
    """
    file = io.StringIO()
    csv.writer(file, lineterminator="\r\n").writerow(cells)
    return file.getvalue().removesuffix("\r\n") + "\n"


def _cell(value: Any) -> Any:
    is_list = isinstance(value, list)
    return json.dumps(value, ensure_ascii=False, default=str) if is_list else value


def flat(answer: dict[str, Any]) -> dict[str, Any]:
    """The values of an answer by column, without "nbest"."""
    cells: dict[str, Any] = {}
    for name, value in _short(answer):
        inner = value.items() if isinstance(value, dict) else ()
        cells |= {f"{name}.{key}": x for key, x in inner} or {name: value}
    return cells


def _short(answer: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    return (x for x in answer.items() if x[0].removeprefix(PREFIX) != "nbest")
