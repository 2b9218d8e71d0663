"""Prepared text on disk: flat files of token ids and an index of sentences.

A folder contains:
  shard-00000-of-00004.tokens ...: the token ids of whole documents in order,
    little-endian uint16 (uint32 for large vocabularies). If a segmenter found the words, a
    bit above the ids marks tokens that continue a word;
  index/sentence_offsets.npy: int64 (S + 1,), the first token of each sentence, counted
    over all shards, and the number of tokens;
  index/document_sentences.npy: int64 (D + 1,), the first sentence of each document, and
    the number of sentences;
  the files of the tokenizer, and index.json. index.json is written last, so a folder
    without it is not finished.

All arrays are mapped into memory, so reading a random sentence needs no system call.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.tokenizer import token_dtype
from bert_jax.errors import UserError
from bert_jax.files import new_file, read_json, reading, write_json

FORMAT = 2


@dataclasses.dataclass(frozen=True)
class StoreInfo:
    """The content of index.json.

    vocabulary_fingerprint: Tokenizer.fingerprint. shards: name and number of tokens of
    each file. settings: text and settings of ``prepare``. word_bit: bit of the tokens that
    continue a word; 0 if the vocabulary marks these tokens.
    """

    documents: int
    sentences: int
    tokens: int
    token_dtype: str
    vocab_size: int
    vocabulary_fingerprint: str
    shards: list[list]
    settings: dict[str, Any]
    format: int = FORMAT
    word_bit: int = 0


def stored_type(vocab_size: int, *, words: bool) -> tuple[np.dtype, int]:
    """The dtype of stored tokens, and the bit of tokens that continue a word, or 0."""
    dtype = token_dtype(2 * vocab_size if words else vocab_size)
    # Not bit 31, which is the sign of an int32.
    return dtype, ((1 << 15) if dtype.itemsize == 2 else (1 << 30)) * words


def shard_path(directory: Path, shard: int, shards: int) -> Path:
    """The file of shard number ``shard`` of ``shards``."""
    return directory / f"shard-{shard:05d}-of-{shards:05d}.tokens"


def part_path(directory: Path, shard: int) -> Path:
    """A shard's part of the index. It exists when the shard is finished."""
    return directory / "index" / f"part-{shard:05d}.npz"


@contextlib.contextmanager
def shard_writer(
    directory: Path, shard: int, shards: int, dtype: np.dtype
) -> Iterator[Callable[[Sequence[np.ndarray]], None]]:
    """Writes one shard and its part of the index, or neither.

    Yields a function that appends a document: token ids of its sentences. Empty sentences
    and empty documents are skipped.
    """
    lengths, sizes = [], []

    def write(sentences: Sequence[np.ndarray]) -> None:
        filled = [len(sentence) for sentence in sentences if len(sentence)]
        if filled:
            file.write(np.concatenate(sentences).astype(dtype, casting="unsafe").data)
            lengths.extend(filled)
            sizes.append(len(filled))

    # The part is renamed last.
    with (
        new_file(part_path(directory, shard)) as part,
        new_file(shard_path(directory, shard, shards)) as file,
    ):
        yield write
        arrays = {"sentence_lengths": lengths, "document_sizes": sizes}
        np.savez(part, **{key: np.array(a, np.int64) for key, a in arrays.items()})


def finish_store(
    directory: Path, vocab_size: int, identity: dict[str, Any]
) -> StoreInfo:
    """Joins the parts of the index, in order of the shards, and writes index.json.

    identity: "vocabulary_fingerprint" and "settings" of StoreInfo. Tokens have the bit of
    :func:`stored_type` if "words" is among the settings. Empty shards are not listed in
    index.json. Raises UserError if all shards are empty.
    """
    settings = identity["settings"]
    shards = settings["shards"]
    parts = [part_path(directory, shard) for shard in range(shards)]
    sentences, tokens = _write_sums(parts, "sentence_lengths", "sentence_offsets")
    documents, _ = _write_sums(parts, "document_sizes", "document_sentences")
    if not sentences:
        raise UserError(f"no text for {directory}; check --input and --input_format")
    dtype, word_bit = stored_type(vocab_size, words="words" in settings)
    names = (shard_path(directory, shard, shards).name for shard in range(shards))
    named = zip(names, tokens, strict=True)
    info = StoreInfo(
        documents=documents,
        sentences=sentences,
        tokens=sum(tokens),
        token_dtype=dtype.str,
        vocab_size=vocab_size,
        shards=[[name, count] for name, count in named if count],
        word_bit=word_bit,
        **identity,
    )
    write_json(directory / "index.json", dataclasses.asdict(info))
    for path in parts:
        path.unlink()
    return info


def _write_sums(parts: Sequence[Path], key: str, name: str) -> tuple[int, list[int]]:
    """Writes 0 and the running sums of the array ``key`` of all parts to NAME.npy.

    Returns the length of the array, and its sum in each part. Only one part at a time is in
    memory.
    """
    count = sum(len(_part(part, key)) for part in parts)
    totals = [0]
    with new_file(parts[0].with_name(f"{name}.npy")) as file:
        header = {"descr": "<i8", "fortran_order": False, "shape": (count + 1,)}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(np.zeros(1, np.int64))
        for part in parts:
            sums = totals[-1] + np.cumsum(_part(part, key))
            file.write(sums)
            totals.append(int(sums[-1]) if len(sums) else totals[-1])
    return count, np.diff(totals).tolist()


def _part(path: Path, key: str) -> np.ndarray:
    # NumPy does not close a damaged file that it has opened.
    with reading(path, "a part of an index"), path.open("rb") as file:
        return np.load(file)[key]


def read_info(directory: Path) -> StoreInfo:
    """Reads index.json. Raises UserError if ``directory`` is not a finished store."""
    path = directory / "index.json"
    expected = f"prepared text of format {FORMAT}; run bert_jax prepare"
    values = read_json(path, expected)
    with reading(path, expected):
        if values["format"] != FORMAT:
            raise ValueError(f"format {values['format']}")
        # Version 0.1.0 also has checksums.
        values["shards"] = [shard[:2] for shard in values["shards"]]
        known = StoreInfo.__dataclass_fields__
        return StoreInfo(**{name: values[name] for name in known if name in values})


class TokenStore:
    """Random access to the sentences of a finished store.

    info: StoreInfo. sentence_offsets int64 (S + 1,) and document_sentences int64 (D + 1,)
    are mapped into memory. Opening a store checks the sizes of all files. Threads can share
    a store.
    """

    def __init__(self, directory: Path | str):
        self.directory = Path(directory)
        self.info = info = read_info(self.directory)
        self.word_bit = info.word_bit
        dtype, index = np.dtype(info.token_dtype), self.directory / "index"
        self._shards = [
            _map(self.directory / name, dtype, n) for name, n in info.shards
        ]
        tokens = [count for _, count in info.shards]
        self._ends = np.cumsum(tokens)
        self._starts = self._ends - tokens
        self.sentence_offsets = _map(
            index / "sentence_offsets.npy", np.int64, info.sentences + 1
        )
        self.document_sentences = _map(
            index / "document_sentences.npy", np.int64, info.documents + 1
        )

    def read_sentences(self, ranges: np.ndarray) -> list[np.ndarray]:
        """An array of token ids for each range [start, stop) of sentences.

        Tokens that continue a word also have the bit ``word_bit``.
        ranges: int (n, 2). A range is inside one document. The arrays are read-only.
        """
        offsets = self.sentence_offsets[ranges]
        # An empty range may start at the end of the last shard.
        shards = np.searchsorted(self._ends[:-1], offsets[:, 0], "right")
        offsets -= self._starts[shards, None]
        places = zip(shards.tolist(), offsets.tolist(), strict=True)
        return [self._shards[shard][start:stop] for shard, (start, stop) in places]


def _map(path: Path, dtype: np.dtype | type, count: int) -> np.ndarray:
    """The numbers of a file, mapped into memory.

    Returns a plain array, because slicing a memmap takes three times as long.
    """
    with reading(path, f"{count:,} numbers; copy it or prepare the text again"):
        if path.suffix == ".npy":
            array = np.asarray(np.load(path, mmap_mode="r"))
        else:
            array = np.asarray(np.memmap(path, dtype, "r"))
        if (array.shape, array.dtype) != ((count,), dtype):
            raise ValueError(f"{array.size:,} numbers of type {array.dtype}")
    return array
