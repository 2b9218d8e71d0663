"""Prepared text on disk: flat files of token ids and an index of sentences.

A folder contains:
  shard-00000-of-00004.tokens, ...: the token ids of whole documents in order,
    little-endian uint16 (uint32 for large vocabularies). If a segmenter found the words, a
    bit above the ids marks tokens that continue a word;
  index/sentence_offsets.npy: int64 (S + 1,), the first token of each sentence, counted
    over all shards, and the number of tokens;
  index/document_sentences.npy: int64 (D + 1,), the first sentence of each document, and
    the number of sentences;
  the files of the tokenizer, and index.json with a checksum of each of the files above. It
    is written last, so a folder without it is not finished.

All arrays are mapped into memory, so reading a random sentence needs no system call.
"""

import contextlib
import dataclasses
import hashlib
import json
import shutil
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np

from bert_jax.data.tokenizer import FILES, Tokenizer, token_dtype
from bert_jax.errors import UserError, naming
from bert_jax.files import new_file, read_json, reading, write_json
from bert_jax.schema import check

FORMAT = 2
# The file with text and settings of a preparation, until index.json is written.
UNFINISHED = "unfinished.json"
# The two arrays of the index.
OFFSETS, SENTENCES = "index/sentence_offsets.npy", "index/document_sentences.npy"
AGAIN = "copy it or prepare the text again"  # what a user can do about a damaged file
_BLOCK = 1 << 20  # how many numbers of the index are in memory at a time


class Settings(TypedDict, total=False):
    """The settings of ``prepare`` that are read, among others."""

    inputs: list[str]
    language: str
    text: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class StoreInfo:
    """The content of index.json.

    vocabulary_fingerprint: Tokenizer.fingerprint. shards: name and number of tokens of
    each file. settings: text and settings of ``prepare``. word_bit: bit of the tokens that
    continue a word; 0 if the vocabulary marks these tokens. checksums: zlib.crc32 of the
    numbers in each shard and in the two arrays of the index, by the name of the file;
    empty in stores of version 0.2.0.
    """

    documents: int
    sentences: int
    tokens: int
    token_dtype: Literal["<u2", "<u4"]
    vocab_size: int
    vocabulary_fingerprint: str
    shards: list[tuple[str, int]]
    settings: Settings
    format: int = FORMAT
    word_bit: int = 0
    checksums: dict[str, int] = dataclasses.field(default_factory=dict)

    def fingerprint(self) -> str:
        """A hash of the checksums, which identifies the text; "" without checksums."""
        if not self.checksums:
            return ""
        text = json.dumps(self.checksums, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def stored_type(vocab_size: int, *, words: bool) -> tuple[np.dtype, int]:
    """The dtype of stored tokens, and the bit of tokens that continue a word, or 0."""
    if not words:
        return token_dtype(vocab_size), 0
    dtype = token_dtype(2 * vocab_size)
    if dtype.itemsize == 2:
        return dtype, 1 << 15
    return dtype, 1 << 30  # not bit 31, which is the sign of an int32


def shard_path(directory: Path, shard: int, shards: int) -> Path:
    """The file of shard number ``shard`` of ``shards``."""
    return directory / f"shard-{shard:05d}-of-{shards:05d}.tokens"


def part_path(directory: Path, shard: int) -> Path:
    """A shard's part of the index. It exists only after the shard is finished."""
    return directory / "index" / f"part-{shard:05d}.npz"


@contextlib.contextmanager
def shard_writer(
    directory: Path, shard: int, shards: int, dtype: np.dtype
) -> Iterator[Callable[[Sequence[np.ndarray]], None]]:
    """Writes one shard and its part of the index, or neither.

    Yields a function that appends a document: token ids of its sentences. Empty sentences
    and empty documents are skipped.
    """
    lengths, sizes, checksum = [], [], 0

    def write(sentences: Sequence[np.ndarray]) -> None:
        nonlocal checksum
        filled = [len(sentence) for sentence in sentences if len(sentence)]
        if filled:
            ids = np.concatenate(sentences).astype(dtype, casting="unsafe")
            file.write(ids.data)
            checksum = zlib.crc32(ids, checksum)
            lengths.extend(filled)
            sizes.append(len(filled))

    # The part is renamed last.
    with (
        new_file(part_path(directory, shard)) as part,
        new_file(shard_path(directory, shard, shards)) as file,
    ):
        yield write
        arrays = {
            "sentence_lengths": lengths,
            "document_sizes": sizes,
            "checksum": [checksum],
        }
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
    offsets = _write_sums(parts, "sentence_lengths", directory / OFFSETS)
    bounds = _write_sums(parts, "document_sizes", directory / SENTENCES)
    if not offsets.count:
        remove_files(directory)
        raise UserError(f"no text for {directory}; check input and input_format")
    dtype, word_bit = stored_type(vocab_size, words="words" in settings)
    filled = []
    checksums: dict[str, int] = {}
    for shard, count in enumerate(offsets.totals):
        if count:
            name = shard_path(directory, shard, shards).name
            filled.append([name, count])
            checksums[name] = int(_part(parts[shard], "checksum")[0])
    checksums |= {OFFSETS: offsets.checksum, SENTENCES: bounds.checksum}
    info = StoreInfo(
        documents=bounds.count,
        sentences=offsets.count,
        tokens=sum(offsets.totals),
        token_dtype=dtype.str,
        vocab_size=vocab_size,
        shards=filled,
        word_bit=word_bit,
        checksums=checksums,
        **identity,
    )
    write_info(directory, info)
    for path in parts:
        path.unlink()
    return info


def remove_files(directory: Path, keep: Collection[str] = ()) -> None:
    """Deletes the files of a store without index.json, which is not finished.

    keep: names of files that stay.
    """
    others = UNFINISHED, "tokenizer_config.json", *FILES
    for pattern in ("shard-*-of-*.tokens", *others):
        for path in directory.glob(pattern):
            if path.name not in keep:
                path.unlink()
    shutil.rmtree(directory / "index", ignore_errors=True)


class _Sums(NamedTuple):
    """Running sums that were written.

    count: length of the array. totals: its sum in each part. checksum: of the numbers.
    """

    count: int
    totals: list[int]
    checksum: int


def _write_sums(parts: Sequence[Path], key: str, path: Path) -> _Sums:
    """Writes 0 and the running sums of the array ``key`` of all parts to ``path``.

    Only one part at a time is in memory.
    """
    count = sum(len(_part(part, key)) for part in parts)
    totals, zero = [0], np.zeros(1, np.int64)
    checksum = zlib.crc32(zero)
    with new_file(path) as file:
        header = {"descr": "<i8", "fortran_order": False, "shape": (count + 1,)}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(zero)
        for part in parts:
            sums = totals[-1] + np.cumsum(_part(part, key))
            file.write(sums)
            checksum = zlib.crc32(sums, checksum)
            totals.append(totals[-1])
            if len(sums):
                totals[-1] = int(sums[-1])
    return _Sums(count, np.diff(totals).tolist(), checksum)


def _part(path: Path, key: str) -> np.ndarray:
    # Version 0.2.0 wrote parts without a checksum.
    expected = "a part of an index of this version; delete the folder and prepare again"
    # NumPy does not close a damaged file that it has opened.
    with reading(path, expected), path.open("rb") as file:
        return np.load(file)[key]


def write_info(directory: Path, info: StoreInfo) -> None:
    """Writes index.json."""
    write_json(directory / "index.json", dataclasses.asdict(info))


def read_info(directory: Path) -> StoreInfo:
    """Reads index.json. Raises UserError if ``directory`` is not a finished store."""
    path = directory / "index.json"
    expected = f"prepared text of format {FORMAT}; run bert_jax prepare"
    values = read_json(path, expected)
    with reading(path, expected):
        if values["format"] != FORMAT:
            raise ValueError(f"format {values['format']}")
        _read_old_checksums(values)
        with naming(path):
            check(values, StoreInfo)
        known = StoreInfo.__dataclass_fields__
        return StoreInfo(**{name: values[name] for name in known if name in values})


def _read_old_checksums(values: dict[str, Any]) -> None:
    """Moves the checksums of version 0.1.0 from their places to "checksums"."""
    checksums = {}
    for shard in values["shards"]:
        if len(shard) > 2:
            checksums[shard[0]] = shard[2]
            del shard[2:]
    if "index_checksums" in values:
        for path in (OFFSETS, SENTENCES):
            checksums[path] = values["index_checksums"][Path(path).stem]
    values.setdefault("checksums", checksums)


class TokenStore:
    """Random access to the sentences of a finished store.

    info: StoreInfo. sentence_offsets int64 (S + 1,) and document_sentences int64 (D + 1,)
    are mapped into memory. files: the numbers of each file by its name, mapped. Threads can
    share a store.

    Opening a store checks the sizes of all files and reads the index, whose numbers must
    ascend from 0 to the number of tokens or sentences. ``checksums.Check`` reads all files.
    """

    def __init__(self, directory: Path | str):
        self.directory = Path(directory)
        self.info = info = read_info(self.directory)
        self.word_bit = info.word_bit
        self.files: dict[str, np.ndarray] = {}
        with reading(self.directory / "index.json", "an undamaged index"):
            dtype = np.dtype(info.token_dtype)
            for name, count in info.shards:
                self.files[name] = _map(self.directory / name, dtype, count)
            for name, count in ((OFFSETS, info.sentences), (SENTENCES, info.documents)):
                self.files[name] = _map(self.directory / name, np.int64, count + 1)
            if info.checksums and info.checksums.keys() != self.files.keys():
                raise ValueError("its checksums are for other files")
            tokens = [count for _, count in info.shards]
            self._ends = np.cumsum(tokens)
            if self._ends[-1] != info.tokens:
                raise ValueError(f"{self._ends[-1]:,} tokens in all shards")
        self._shards = [self.files[name] for name, _ in info.shards]
        self._starts = self._ends - tokens
        self.sentence_offsets = self.files[OFFSETS]
        self.document_sentences = self.files[SENTENCES]
        _check_ascending(self.directory / OFFSETS, self.sentence_offsets, info.tokens)
        _check_ascending(
            self.directory / SENTENCES, self.document_sentences, info.sentences
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

    def check_ids(self, ranges: np.ndarray, limit: int) -> None:
        """Raises UserError that names the shard of the first token id of ``limit`` or more.

        ranges: see :meth:`read_sentences`.
        """
        for (start, _), ids in zip(ranges, self.read_sentences(ranges), strict=True):
            largest = (ids.astype(np.int64) & ~self.word_bit).max(initial=0)
            if largest < limit:
                continue
            place = self.sentence_offsets[start]
            name, _ = self.info.shards[np.searchsorted(self._ends[:-1], place, "right")]
            raise UserError(
                f"{self.directory / name} is damaged (a token has the id {largest:,}); "
                f"expected ids below {limit:,}; {AGAIN}"
            )


def _map(path: Path, dtype: np.dtype | type, count: int) -> np.ndarray:
    """The numbers of a file, mapped into memory.

    Returns a plain array, because slicing a memmap takes three times as long.
    """
    with reading(path, f"{count:,} numbers; {AGAIN}"):
        if path.suffix == ".npy":
            array = np.asarray(np.load(path, mmap_mode="r"))
        else:
            array = np.asarray(np.memmap(path, dtype, "r"))
        if (array.shape, array.dtype) != ((count,), dtype):
            raise ValueError(f"{array.size:,} numbers of type {array.dtype}")
    return array


def _check_ascending(path: Path, numbers: np.ndarray, last: int) -> None:
    """Raises UserError unless the numbers of a file ascend from 0 to ``last``."""
    with reading(path, f"numbers that ascend from 0 to {last:,}; {AGAIN}"):
        if numbers[0] != 0 or numbers[-1] != last:
            raise ValueError(f"numbers from {numbers[0]:,} to {numbers[-1]:,}")
        for start in range(0, len(numbers), _BLOCK):
            block = numbers[start : start + _BLOCK + 1]
            if not (block[:-1] < block[1:]).all():
                raise ValueError("a number is not above the number before it")


def open_store(directory: Path) -> tuple[TokenStore, Tokenizer]:
    """A prepared text and its tokenizer. Raises UserError if they do not match."""
    # Imported late: it takes 50 ms, and most commands open no store.
    from bert_jax.data.tokenizer_files import load_tokenizer

    store = TokenStore(directory)
    tokenizer = load_tokenizer(directory)
    if not tokenizer.has_fingerprint(store.info.vocabulary_fingerprint):
        raise UserError(
            f"{directory} was prepared with another vocabulary than the one in it; prepare "
            "the text again"
        )
    return store, tokenizer
