"""Prepared text on disk: flat files of token ids and an index of sentences.

A folder contains:
  shard-00000-of-00004.tokens ...: the token ids of whole documents in order,
    little-endian uint16 (uint32 if the vocabulary needs it). If a segmenter found the
    words, a bit above the ids marks tokens that continue a word;
  index/sentence_offsets.npy: int64 (S + 1,), the first token of each sentence, counted
    over all shards, and the number of tokens;
  index/document_sentences.npy: int64 (D + 1,), the first sentence of each document, and
    the number of sentences;
  the files of the tokenizer, and index.json. index.json is written last: a folder without
    it is not finished.

All arrays are mapped into memory, so reading a random sentence needs no system call.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.tokenizer import token_dtype
from bert_jax.errors import UserError
from bert_jax.files import new_file, read_json, reading, write_json

FORMAT = 2


class Shard(NamedTuple):
    """A file of token ids."""

    name: str
    tokens: int


@dataclasses.dataclass(frozen=True)
class StoreInfo:
    """The contents of index.json.

    vocabulary_fingerprint: Tokenizer.fingerprint. settings: text and settings of
    ``prepare``. word_bit: bit of the tokens that continue a word; 0 if the vocabulary
    marks these tokens.
    """

    documents: int
    sentences: int
    tokens: int
    token_dtype: str
    vocab_size: int
    vocabulary_fingerprint: str
    shards: tuple[Shard, ...]
    settings: dict[str, Any]
    format: int = FORMAT
    word_bit: int = 0


def stored_type(vocab_size: int, *, words: bool) -> tuple[np.dtype, int]:
    """The dtype of stored tokens, and the bit of tokens that continue a word, or 0."""
    dtype = token_dtype(2 * vocab_size if words else vocab_size)
    # Not the highest of 32 bits, which is the sign of an int32.
    return dtype, ((1 << 15) if dtype.itemsize == 2 else (1 << 30)) * words


def shard_name(shard: int, shards: int) -> str:
    """The file name of shard number ``shard`` of ``shards``."""
    return f"shard-{shard:05d}-of-{shards:05d}.tokens"


def part_path(directory: Path, shard: int) -> Path:
    """A shard's part of the index. It exists once the shard is finished."""
    return directory / "index" / f"part-{shard:05d}.npz"


@contextlib.contextmanager
def shard_writer(
    directory: Path, shard: int, shards: int, dtype: np.dtype
) -> Iterator[Callable[[Sequence[np.ndarray]], None]]:
    """Writes one shard and its part of the index, or neither.

    Yields a function that appends one document, the token ids of its sentences. Empty
    sentences and empty documents are skipped.
    """
    path, part_file = directory / shard_name(shard, shards), part_path(directory, shard)
    lengths, sizes = [], []

    def write(sentences: Sequence[np.ndarray]) -> None:
        filled = [len(sentence) for sentence in sentences if len(sentence)]
        if filled:
            file.write(np.concatenate(sentences).astype(dtype, casting="unsafe").data)
            lengths.extend(filled)
            sizes.append(len(filled))

    with (
        new_file(part_file) as part,
        new_file(path) as file,
    ):  # the part is renamed last
        yield write
        np.savez(
            part,
            sentence_lengths=np.array(lengths, np.int64),
            document_sizes=np.array(sizes, np.int64),
        )


def remove_unfinished(directory: Path) -> None:
    """Removes the temporary files of killed processes."""
    for path in (*directory.glob(".*.tmp"), *directory.glob("index/.*.tmp")):
        path.unlink()


def finish_store(
    directory: Path, vocab_size: int, identity: dict[str, Any]
) -> StoreInfo:
    """Joins the parts of the index, in order of the shards, and writes index.json.

    identity: "vocabulary_fingerprint" and "settings" of StoreInfo. Tokens have the bit of
    :func:`stored_type` if "words" is among the settings. Empty shards are not listed in
    index.json. If all shards are empty, they are removed, and UserError is raised.
    """
    settings = identity["settings"]
    shards = settings["shards"]
    parts = [part_path(directory, shard) for shard in range(shards)]
    index = directory / "index"
    tokens = _write_sums(index / "sentence_offsets.npy", parts, "sentence_lengths")
    sizes = _write_sums(index / "document_sentences.npy", parts, "document_sizes")
    if not sum(tokens):
        for path in (*parts, *directory.glob("shard-*")):
            path.unlink()
        raise UserError(
            f"no text was found for {directory}; expected at least one sentence: check "
            "--input and --format"
        )
    dtype, word_bit = stored_type(vocab_size, words="words" in settings)
    named = (Shard(shard_name(i, shards), n) for i, n in enumerate(tokens))
    info = StoreInfo(
        documents=sum(len(_part(path, "document_sizes")) for path in parts),
        sentences=sum(sizes),
        tokens=sum(tokens),
        token_dtype=dtype.str,
        vocab_size=vocab_size,
        shards=tuple(shard for shard in named if shard.tokens),
        word_bit=word_bit,
        **identity,
    )
    write_json(directory / "index.json", dataclasses.asdict(info))
    for path in parts:
        path.unlink()
    return info


def _write_sums(path: Path, parts: Sequence[Path], key: str) -> list[int]:
    """Writes 0 and the running sums of an array of all parts; returns each part's sum."""
    # One part is in memory at a time.
    count = 1 + sum(len(_part(path, key)) for path in parts)
    totals = [0]
    with new_file(path) as file:
        header = {"descr": "<i8", "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(np.zeros(1, np.int64))
        for path in parts:
            sums = totals[-1] + np.cumsum(_part(path, key))
            file.write(sums)
            totals.append(int(sums[-1]) if len(sums) else totals[-1])
    return np.diff(totals).tolist()


def _part(path: Path, key: str) -> np.ndarray:
    # NumPy does not close a damaged file that it has opened.
    with (
        reading(path, "a part of an index; prepare the text again"),
        path.open("rb") as file,
    ):
        return np.load(file)[key]


def read_info(directory: Path) -> StoreInfo:
    """Reads index.json. Raises UserError if ``directory`` is not a finished store."""
    path = directory / "index.json"
    if not path.is_file():
        raise UserError(
            f"{directory} is not a finished store (no index.json); run bert_jax prepare "
            f"--input TEXT --vocabulary vocab.txt --output {directory}"
        )
    expected = "the index of a store; prepare the text again"
    values = read_json(path, expected)
    if (found := values.get("format")) != FORMAT:
        raise UserError(
            f"{path} has format {found}, expected {FORMAT}; prepare the text again"
        )
    for name in ("checksum", "index_checksums"):  # of old versions
        values.pop(name, None)
    with reading(path, expected):
        values["shards"] = tuple(Shard(*shard[:2]) for shard in values["shards"])
        return StoreInfo(**values)


class TokenStore:
    """Random access to the sentences of a finished store.

    info: StoreInfo. sentence_offsets int64 (S + 1,) and document_sentences int64 (D + 1,)
    are mapped from disk. Opening a store checks the sizes of all files. Threads can share
    a store.
    """

    def __init__(self, directory: Path | str):
        self.directory = Path(directory)
        self.info = info = read_info(self.directory)
        self.word_bit = info.word_bit
        tokens = [shard.tokens for shard in info.shards]
        self._ends = np.cumsum(tokens)
        self._starts = self._ends - tokens
        self._shard = functools.cache(self._open)
        self.sentence_offsets = self._index("sentence_offsets", info.sentences)
        self.document_sentences = self._index("document_sentences", info.documents)
        with reading(self.directory / "index.json", "as many tokens as the index has"):
            if not self.sentence_offsets[-1] == info.tokens == sum(tokens):
                raise ValueError(f"{info.tokens:,} tokens")
        for shard in info.shards:
            size = shard.tokens * np.dtype(info.token_dtype).itemsize
            path = self.directory / shard.name
            with reading(path, f"{size:,} bytes; copy it, or prepare the text, again"):
                if (found := path.stat().st_size) != size:
                    raise ValueError(f"{found:,} bytes")

    def read_sentences(self, ranges: np.ndarray) -> list[np.ndarray]:
        """Token ids of the sentences [start, stop) of each range, one array for a range.

        Tokens that continue a word also have the bit ``word_bit``.
        ranges: int (n, 2); a range is inside one document. The arrays are read-only.
        """
        offsets = self.sentence_offsets[ranges]
        # An empty range may start at the end of the last shard.
        shards = np.searchsorted(self._ends[:-1], offsets[:, 0], "right")
        offsets -= self._starts[shards, None]
        places = zip(shards.tolist(), offsets.tolist(), strict=True)
        return [self._shard(shard)[start:stop] for shard, (start, stop) in places]

    def _index(self, name: str, count: int) -> np.ndarray:
        """An array of the index, mapped.

        It is not a memmap: slicing a memmap takes three times as long.
        """
        path = self.directory / "index" / f"{name}.npy"
        with reading(
            path, f"an index of {count:,}; copy it, or prepare the text, again"
        ):
            array = np.asarray(np.load(path, mmap_mode="r"))
            if (array.shape, array.dtype) != ((count + 1,), np.int64):
                raise ValueError(f"{array.dtype} of shape {array.shape}")
        return array

    def _open(self, number: int) -> np.ndarray:
        """The token ids of a shard, mapped."""
        path = self.directory / self.info.shards[number].name
        return np.asarray(np.memmap(path, np.dtype(self.info.token_dtype), "r"))
