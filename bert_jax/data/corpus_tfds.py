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

from bert_jax.data.corpus_formats import Documents, text_sentences
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

    def read(self, start: int, stop: int | None, text_field: str) -> Documents:
        """The documents of the rows whose byte offset is in [start, stop)."""
        if text_field not in self.builder.info.features:
            names = ", ".join(sorted(self.builder.info.features))
            raise UserError(
                f'tfds:{self.name}: no feature "{text_field}", found {names}; set '
                "--text_field"
            )
        last = self.rows if stop is None else self._row(stop)
        for _, example in self.examples(self._row(start), last):
            text = example[text_field]
            text = text.decode() if isinstance(text, bytes) else text
            if sentences := article_sentences(text):
                yield sentences

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
    parts = _MARKER.split(text)[1:]  # kind, text, kind, text, ...
    kinds = zip(parts[::2], parts[1::2], strict=True)
    text = "\n".join(part for kind, part in kinds if kind == "PARAGRAPH")
    paragraphs = [" ".join(p.split()) for p in re.split(r"_NEWLINE_|\n", text)]
    return [sentence for p in paragraphs for sentence in split_sentences(p)]


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
        configs = {p.parent.parent.name for p in folder.glob("*/*/dataset_info.json")}
        if configs:
            names = ", ".join(f"tfds:{name}/{config}" for config in sorted(configs))
            raise UserError(f"tfds:{name}: choose one of its configs: {names}")
        raise UserError(
            f"tfds:{name}: not found below {data_dir}; set TFDS_DATA_DIR, or make it with "
            f"tfds build {name} --file_format=array_record"
        )
    builder = tfds.builder_from_directory(versions[-1])
    stored = builder.info.file_format.value
    if stored != "array_record":
        raise UserError(
            f"tfds:{name}: stored as {stored}, expected array_record; make it again with "
            f"tfds build {name} --file_format=array_record"
        )
    try:
        info = builder.info.splits[split]
    except (KeyError, ValueError) as error:
        known = ", ".join(builder.info.splits)
        raise UserError(
            f"tfds:{name}: no split {split!r}; expected one of {known}, or a slice of one"
        ) from error
    if not info.num_examples:
        raise UserError(f"tfds:{name}:{split} is an empty split; choose another")
    facts = f"{versions[-1].name} {split} {info.num_examples} {info.num_bytes}"
    fingerprint = hashlib.sha256(facts.encode()).hexdigest()[:16]
    # A slice of a split has no size of its own.
    size = int(getattr(info, "num_bytes", 0) or 1000 * info.num_examples)
    return Dataset(name, split, size, info.num_examples, fingerprint, builder)
