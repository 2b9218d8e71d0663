"""Text from tensorflow-datasets, read through ``as_data_source``: no TensorFlow.

The dataset must lie on disk in the ArrayRecord format; making it (``tfds build``) may
need TensorFlow, reading it does not.
"""

import dataclasses
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_jax.data.corpus_formats import text_sentences
from bert_jax.data.sentences import split_sentences
from bert_jax.errors import UserError

TFDS = "tfds:"  # begins the name of a data set
_ROWS = 256  # fetched at once: a few MB of articles
_MARKER = re.compile(r"_START_(ARTICLE|SECTION|PARAGRAPH)_")


@dataclasses.dataclass(frozen=True)
class Dataset:
    """One split on disk.

    size: bytes as tensorflow-datasets states them; a byte offset stands for the row at
    the same share of the rows.
    """

    name: str
    split: str
    size: int
    rows: int
    fingerprint: str
    builder: Any

    def read(
        self, start: int, stop: int | None, text_field: str
    ) -> Iterator[tuple[int, list[str]]]:
        """(byte offset, sentences) of the rows whose offset is in [start, stop)."""
        if text_field not in self.builder.info.features:
            names = ", ".join(sorted(self.builder.info.features))
            raise UserError(
                f'tfds:{self.name}: no feature "{text_field}", found {names}; set '
                "--text_field"
            )
        first = self._row(start)
        last = self.rows if stop is None else self._row(stop)
        if first == last:
            return
        for row, example in self.examples(first, last):
            text = example[text_field]
            if isinstance(text, bytes):
                text = text.decode()
            if sentences := article_sentences(text):
                yield row * self.size // self.rows, sentences

    def examples(self, first: int, last: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """The rows from ``first`` up to ``last``, with their numbers."""
        source = self.builder.as_data_source(split=self.split)
        for begin in range(first, last, _ROWS):
            numbers = list(range(begin, min(begin + _ROWS, last)))
            yield from zip(numbers, source.__getitems__(numbers), strict=True)

    def _row(self, offset: int) -> int:
        return min(self.rows, -(-offset * self.rows // self.size))


def article_sentences(text: str) -> list[str]:
    """Sentences of a row: of the paragraphs where wiki40b's markers name them."""
    if not _MARKER.search(text):
        return text_sentences(text)
    sentences = []
    parts = _MARKER.split(text)  # before, kind, text, kind, text, ...
    for kind, part in zip(parts[1::2], parts[2::2], strict=True):
        if kind == "PARAGRAPH":
            for paragraph in re.split(r"_NEWLINE_|\n", part):
                sentences += split_sentences(" ".join(paragraph.split()))
    return sentences


def find_dataset(text: str) -> Dataset:
    """The split that ``[tfds:]NAME[/CONFIG][:SPLIT]`` names; train by default.

    Looks below $TFDS_DATA_DIR, else ~/tensorflow_datasets, and takes the newest version.
    """
    # Imported here: it takes a second, and most corpora are text files.
    import tensorflow_datasets as tfds

    name, _, split = text.removeprefix(TFDS).partition(":")
    split = split or "train"
    data_dir = Path(os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets"))
    folder = data_dir.expanduser() / name
    versions = sorted(
        (path.parent for path in folder.glob("*.*.*/dataset_info.json")),
        key=lambda path: [int(part) for part in re.findall(r"\d+", path.name)],
    )
    if not versions:
        below = sorted(
            {p.parent.parent.name for p in folder.glob("*/*/dataset_info.json")}
        )
        if below:
            raise UserError(
                f"tfds:{name}: choose one of its configs: "
                + ", ".join(f"tfds:{name}/{config}" for config in below)
            )
        raise UserError(
            f"tfds:{name}: not found below {data_dir}; set TFDS_DATA_DIR, or make it with "
            f"tfds build {name} --file_format=array_record"
        )
    try:
        builder = tfds.builder_from_directory(versions[-1])
        info = builder.info.splits[split]
        if builder.info.file_format.value != "array_record":
            raise UserError(
                f"tfds:{name}: stored as {builder.info.file_format.value}, expected "
                f"array_record; make it again with tfds build {name} "
                "--file_format=array_record"
            )
    except (KeyError, ValueError) as error:
        known = ", ".join(builder.info.splits)
        raise UserError(
            f"tfds:{name}: no split {split!r}; expected one of {known}, or a slice of one"
        ) from error
    if not info.num_examples:
        raise UserError(
            f"tfds:{name}:{split} is an empty split; choose one of the others"
        )
    facts = f"{versions[-1].name} {split} {info.num_examples} {info.num_bytes}"
    return Dataset(
        name=name,
        split=split,
        # A slice of a split has no size of its own.
        size=int(getattr(info, "num_bytes", 0) or 1000 * info.num_examples),
        rows=info.num_examples,
        fingerprint=hashlib.sha256(facts.encode()).hexdigest()[:16],
        builder=builder,
    )
