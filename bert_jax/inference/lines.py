"""The input of commands, and their answers as JSON or CSV."""

import contextlib
import csv
import io
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError, counted, printable
from bert_jax.files import ending, new_file
from bert_jax.inference.evaluation import Answers, Inference
from bert_jax.progress import print_line
from bert_jax.tasks.rows import Placed, line_rows

STANDARD = "-"  # stdin, or stdout


def given_rows(
    inference: Inference, texts: Sequence[Sequence[str]] | None, path: str
) -> Iterator[Placed]:
    """The rows of a command. Raises UserError if there are none.

    texts: values of --text. path: value of --input, if texts is None.
    """
    if texts:
        lines = ["\t".join(row) for row in texts]
        return line_rows(lines, "--text", tabs=inference.tabs)
    rows = inference.placed(Path(path))
    first = list(itertools.islice(rows, 1))
    if not first:
        raise UserError(f"{path} is empty; expected rows")
    return itertools.chain(first, rows)


def on_screen(path: str) -> bool:
    """Whether an output is a terminal."""
    return path == STANDARD and sys.stdout.isatty()


def output_format(output: str, hint: str = "") -> str:
    """The format of answers by the ending of the output's name: "jsonl" or "csv".

    Raises UserError for another ending. hint: what to change, for errors.
    """
    found = {"": "jsonl", ".jsonl": "jsonl", ".csv": "csv"}.get(ending(output))
    if not found:
        raise UserError(f"--output={output}, expected a name in .csv or .jsonl{hint}")
    return found


def write_answers(
    inference: Inference,
    placed: Iterable[Placed],
    output: str,
    form: str,
    **options: Any,
) -> None:
    """Writes an answer to each row as soon as it is known, and prints their number.

    output: a file that replaces an existing file when it is complete, or "-" for stdout.
    form: "csv" or "jsonl". options: see Inference.stream.
    """
    shown, csv_table = on_screen(output), CsvTable()
    stdout = contextlib.nullcontext(sys.stdout)
    rows = truncated = 0
    with stdout if output == STANDARD else new_file(Path(output), "w") as file:
        for part in inference.stream(placed, **options):
            lines = csv_table.lines(part) if form == "csv" else json_lines(part)
            for line in lines:
                file.write(f"{printable(line) if shown else line}\n")
            file.flush()
            rows += len(part.rows)
            truncated += part.features.truncated
    print_line(counted(rows, "row"), sys.stderr)
    if truncated:
        print_line(inference.truncation(truncated, rows), sys.stderr)


def json_lines(part: Answers) -> Iterator[str]:
    """A JSON object for each row. An id that JSON does not have, as a date, is a text."""
    for answer in part.answers:
        yield printable(json.dumps(answer, ensure_ascii=False, default=str))


class CsvTable:
    """A CSV table with a header and a line for each row.

    A dictionary in an answer has a column for each of its values, such as
    "probabilities.good". A list is written as JSON, and "nbest" is left out. Texts are
    written unchanged, with their control characters.
    """

    names: Sequence[str] = ()

    def lines(self, part: Answers) -> Iterator[str]:
        """The lines of some rows, after the header the first time.

        Raises UserError for a value that no row of the first part has.
        """
        rows, file = [_flat(answer) for answer in part.answers], io.StringIO()
        names = self.names or [*dict.fromkeys(name for row in rows for name in row)]
        writer = csv.DictWriter(file, names, lineterminator="\n")
        if not self.names:
            writer.writeheader()
        self.names = names
        try:
            writer.writerows(rows)
        except ValueError as error:
            raise UserError(
                f"an answer has values without a column ({error}); expected the same "
                "values as in the first answers, or an output in .jsonl"
            ) from error
        yield file.getvalue().removesuffix("\n")


def _flat(answer: dict[str, Any]) -> dict[str, Any]:
    """The cells of an answer by column."""
    cells: dict[str, Any] = {}
    for name, value in answer.items():
        if isinstance(value, dict):
            cells |= {f"{name}.{key}": inner for key, inner in value.items()}
        elif isinstance(value, list):
            cells[name] = json.dumps(value, ensure_ascii=False)
        else:
            cells[name] = value
    cells.pop("nbest", None)
    return cells
