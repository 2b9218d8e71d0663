"""Minimal pairs: how often a model finds the better of two sentences more likely.

As BLiMP asks it (Warstadt et al. 2020): a pair is right where the good sentence has the
higher score, and accuracy is the share of right pairs.
"""

import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from bert_jax.errors import UserError
from bert_jax.files import decode_lines, parse_json
from bert_jax.tasks import tables

Pair = tuple[str, str]  # the good sentence and the bad one
FIELDS = ("sentence_good", "sentence_bad")
_LINES = ".txt"


class Accuracy(NamedTuple):
    """The share of right pairs, over all pairs and in each set."""

    accuracy: float
    by_set: dict[str, float]
    pairs: int


def read_sets(
    paths: Iterable[Path], fields: Sequence[str] = FIELDS
) -> Iterator[tuple[str, list[Pair]]]:
    """The name and the pairs of each set; a set is a file, or a member of a zip.

    JSONL, CSV and TSV have the pair in two ``fields``. A .txt has a pair in two columns
    with a tab between them, or in two lines that follow each other, the good one first.
    Folders and zips are read file by file, in the order of their names.

    Raises UserError naming file and line of what is no pair.
    """
    for path in map(Path, paths):
        if path.is_dir():
            files = sorted(p for p in path.iterdir() if _is_set(p))
            if not files:
                raise UserError(f"{path} has no file of pairs; expected {_expected()}")
            yield from read_sets(files, fields)
        elif not path.is_file():
            raise UserError(f"{path} does not exist; expected {_expected()}")
        elif path.suffix == ".zip":
            yield from _read_zip(path, fields)
        elif path.suffix == _LINES:
            with path.open("rb") as file:
                yield path.stem, list(_pairs_of_lines(file, path))
        else:
            rows = tables.read_table(path, fields)
            yield (
                path.name.split(".")[0],
                [
                    _checked(row[fields[0]], row[fields[1]], where)
                    for where, row in rows
                ],
            )


def accuracy(
    score: Callable[[list[str]], np.ndarray],
    sets: Iterable[tuple[str, Sequence[Pair]]],
) -> Iterator[tuple[str, np.ndarray]]:
    """Of each set its name and which pairs are right, bool (pairs,).

    score: from texts to their log probabilities. Two equal scores are wrong.
    """
    for name, pairs in sets:
        scores = score([text for pair in pairs for text in pair]).reshape(-1, 2)
        yield name, scores[:, 0] > scores[:, 1]


def summary(right: dict[str, np.ndarray]) -> Accuracy:
    """Accuracies from which pairs of each set are right."""
    every = np.concatenate(list(right.values()))
    by_set = {name: float(values.mean()) for name, values in right.items()}
    return Accuracy(float(every.mean()), by_set, len(every))


def _read_zip(path: Path, fields: Sequence[str]) -> Iterator[tuple[str, list[Pair]]]:
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise UserError(f"{path} is not a zip file; expected {_expected()}") from error
    with archive:
        names = sorted(n for n in archive.namelist() if n.endswith(".jsonl"))
        if not names:
            raise UserError(f"{path} has no .jsonl file; expected {_expected()}")
        for name in names:
            pairs = []
            with archive.open(name) as file:
                for number, line in decode_lines(file, f"{path}/{name}"):
                    where = f"{path}/{name}:{number}"
                    row = parse_json(line, where, "one object a line")
                    missing = [field for field in fields if field not in row]
                    if missing:
                        raise UserError(
                            f"{where} has no {missing[0]!r}; set --fields to two of "
                            f"{', '.join(row)}"
                        )
                    pairs.append(_checked(*(row[field] for field in fields), where))
            yield Path(name).stem, pairs


def _pairs_of_lines(file: IO[bytes], path: Path) -> Iterator[Pair]:
    lines = [
        (number, line.rstrip("\r\n"))
        for number, line in decode_lines(file, path)
        if line.strip()
    ]
    if all(line.count("\t") == 1 for _, line in lines):
        for number, line in lines:
            yield _checked(*line.split("\t"), f"{path}:{number}")
        return
    if len(lines) % 2:
        raise UserError(
            f"{path} has {len(lines)} lines; expected an even number, a pair in two lines, "
            "or one tab in every line"
        )
    for (number, good), (_, bad) in zip(lines[::2], lines[1::2], strict=True):
        yield _checked(good, bad, f"{path}:{number}")


def _checked(good: object, bad: object, where: str) -> Pair:
    for text in (good, bad):
        if not isinstance(text, str) or not text.strip():
            raise UserError(
                f"{where}: {text!r} is no sentence; expected a pair of texts"
            )
    return good, bad


def _is_set(path: Path) -> bool:
    return path.suffix in {".zip", _LINES, *tables.FORMATS}


def _expected() -> str:
    return "pairs as .jsonl, .csv, .tsv, .txt, or a zip of .jsonl"
