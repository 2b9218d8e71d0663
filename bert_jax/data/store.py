"""The tokenised corpus on disk: flat files of token ids and an index of sentences.

A directory holds:
  shard-00000-of-00004.tokens ...: the token ids of whole documents, one after the other,
    little-endian uint16 (uint32 where the vocabulary needs it);
  index/sentence_offsets.npy: int64 (S + 1,), the first token of each sentence, counted
    over all shards, and the number of tokens;
  index/document_sentences.npy: int64 (D + 1,), the first sentence of each document, and
    the number of sentences;
  the tokenizer's files; and index.json, written last: a store without it is not whole.

All of it is mapped into memory, so that a random sentence costs no system call.
"""

import contextlib
import dataclasses
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from bert_jax.errors import UserError
from bert_jax.files import read_json, write_json

FORMAT = 2
_ARRAYS = ("sentence_offsets", "document_sentences")


class NoTextError(UserError):
    """The inputs of a store hold no sentence."""


class Shard(NamedTuple):
    """A file of token ids. checksum: zlib.crc32 of its bytes."""

    name: str
    tokens: int
    checksum: int


@dataclasses.dataclass(frozen=True)
class StoreInfo:
    """The contents of index.json.

    vocabulary_fingerprint: Tokenizer.fingerprint. settings: what the store was made
    from, as ``prepare`` records it.
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


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest type that holds every id."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def shard_name(shard: int, shards: int) -> str:
    """The file name of shard number ``shard`` of ``shards``."""
    return f"shard-{shard:05d}-of-{shards:05d}.tokens"


def _part_path(directory: Path, shard: int) -> Path:
    return directory / "index" / f"part-{shard:05d}.npz"


class ShardWriter:
    """Writes one shard and its part of the index.

    Files have temporary names until :meth:`close`, which renames the shard first and its
    index part last: where the part exists, the shard is whole.
    """

    def __init__(self, directory: Path, shard: int, shards: int, dtype: np.dtype):
        self._path = directory / shard_name(shard, shards)
        self._part = _part_path(directory, shard)
        self._part.parent.mkdir(parents=True, exist_ok=True)
        self._dtype = np.dtype(dtype)
        self._file = self._path.with_suffix(".tmp").open("wb")
        self._checksum = 0
        self._sentence_lengths: list[int] = []
        self._document_sizes: list[int] = []  # in sentences

    @staticmethod
    def is_written(directory: Path, shard: int) -> bool:
        """Whether an earlier run finished this shard."""
        return _part_path(directory, shard).exists()

    def write(self, sentences: Sequence[np.ndarray]) -> None:
        """Adds one document; empty sentences are dropped, an empty document is nothing."""
        lengths = [len(sentence) for sentence in sentences if len(sentence)]
        if not lengths:
            return
        ids = np.concatenate(sentences).astype(self._dtype, casting="unsafe").tobytes()
        with _writing(self._path):
            self._file.write(ids)
        self._checksum = zlib.crc32(ids, self._checksum)
        self._sentence_lengths += lengths
        self._document_sizes.append(len(lengths))

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, error: type | None, *_: object) -> None:
        if error is None:
            self.close()
        else:
            with contextlib.suppress(OSError):  # the disk may be full
                self._file.close()

    def close(self) -> None:
        """Makes the shard whole on disk."""
        temporary = self._part.with_suffix(".tmp")
        with _writing(self._path), temporary.open("wb") as part:
            np.savez(
                part,
                sentence_lengths=np.array(self._sentence_lengths, np.int64),
                document_sizes=np.array(self._document_sizes, np.int64),
                checksum=np.int64(self._checksum),
            )
            for file in (self._file, part):
                file.flush()
                os.fsync(file.fileno())
        self._file.close()
        Path(self._file.name).replace(self._path)
        temporary.replace(self._part)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Says what to do where the disk is full or fails."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path}: {error.strerror}; make room (a store takes about half of its text's "
            "size) and run the same command again"
        ) from error


def finish_store(
    directory: Path,
    shards: int,
    *,
    vocab_size: int,
    vocabulary_fingerprint: str,
    settings: dict[str, Any],
) -> StoreInfo:
    """Joins the parts of the index, in order of the shards, and writes index.json.

    Holds one part in memory at a time. Empty shards are left out of index.json.
    """
    index = directory / "index"
    sentences = documents = tokens = 0
    named: list[Shard] = []
    for number in range(shards):
        with np.load(_part_path(directory, number)) as part:
            size = int(part["sentence_lengths"].sum())
            sentences += len(part["sentence_lengths"])
            documents += len(part["document_sizes"])
            tokens += size
            if size:
                checksum = int(part["checksum"])
                named.append(Shard(shard_name(number, shards), size, checksum))
    if not documents:
        raise NoTextError(
            f"no text was found for {directory}; expected at least one sentence: check "
            "--input and --format"
        )
    with _writing(directory), contextlib.ExitStack() as stack:
        files = [
            stack.enter_context(_new_array(index / f"{name}.tmp", size + 1))
            for name, size in zip(_ARRAYS, (sentences, documents), strict=True)
        ]
        ends = [0, 0]
        for number in range(shards):
            with np.load(_part_path(directory, number)) as part:
                for i, sizes in enumerate(("sentence_lengths", "document_sizes")):
                    offsets = ends[i] + np.cumsum(part[sizes])
                    files[i].write(offsets.tobytes())
                    ends[i] = int(offsets[-1]) if len(offsets) else ends[i]
    for name in _ARRAYS:
        (index / f"{name}.tmp").replace(index / f"{name}.npy")
    info = StoreInfo(
        documents=documents,
        sentences=sentences,
        tokens=tokens,
        token_dtype=token_dtype(vocab_size).str,
        vocab_size=vocab_size,
        vocabulary_fingerprint=vocabulary_fingerprint,
        shards=tuple(named),
        settings=settings,
    )
    write_json(directory / "index.json", dataclasses.asdict(info))
    for number in range(shards):
        _part_path(directory, number).unlink()
    return info


def _new_array(path: Path, size: int) -> BinaryIO:
    """A .npy file of ``size`` int64, the first 0, the others still to be written.

    Not a mapped file: a full disk would kill the process instead of raising OSError.
    """
    file = path.open("wb")
    header = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(np.int64)),
        "fortran_order": False,
        "shape": (size,),
    }
    np.lib.format.write_array_header_1_0(file, header)
    file.write(np.int64(0).tobytes())
    return file


def read_info(directory: Path) -> StoreInfo:
    """Reads index.json; UserError where ``directory`` is not a finished store."""
    path = directory / "index.json"
    if not path.is_file():
        raise UserError(
            f"{directory} is not a finished store (no index.json); run "
            f"python -m bert_jax.prepare --input TEXT --vocabulary vocab.txt "
            f"--output {directory}"
        )
    values = read_json(path, "the index of a store; prepare the text again")
    if values.get("format") != FORMAT:
        raise UserError(
            f"{path} has format {values.get('format')}, expected {FORMAT}; prepare the "
            "text again"
        )
    try:
        values["shards"] = tuple(Shard(*shard) for shard in values["shards"])
        return StoreInfo(**values)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} is damaged ({error}); prepare the text again"
        ) from error


class TokenStore:
    """Random access to the sentences of a finished store.

    info: StoreInfo. sentence_offsets int64 (S + 1,) and document_sentences int64 (D + 1,)
    are mapped from disk, not loaded. The checksum of a shard is compared when the shard
    is first read. Safe to use from several threads.
    """

    def __init__(self, directory: Path | str):
        self.directory = Path(directory)
        self.info = read_info(self.directory)
        index = self.directory / "index"
        # As plain arrays over the mapped file: each slice of a memmap is a memmap, which
        # takes three times as long to make.
        self.sentence_offsets, self.document_sentences = (
            np.asarray(np.load(index / f"{name}.npy", mmap_mode="r"))
            for name in _ARRAYS
        )
        found = len(self.sentence_offsets) - 1
        if (
            found != self.info.sentences
            or self.sentence_offsets[-1] != self.info.tokens
        ):
            raise UserError(
                f"{self.directory}: the index has {found} sentences, expected "
                f"{self.info.sentences}; prepare the text again"
            )
        tokens = [shard.tokens for shard in self.info.shards]
        self._ends = np.cumsum(tokens)
        self._begins = self._ends - tokens
        self._shards: dict[int, np.ndarray] = {}
        self._locks = [threading.Lock() for _ in tokens]

    def read_sentences(self, ranges: np.ndarray) -> list[np.ndarray]:
        """Token ids of the sentences [start, stop) of each range, one array a range.

        ranges: int (n, 2); a range lies within one document. The arrays are read-only.
        """
        offsets = self.sentence_offsets[ranges]
        shards = np.searchsorted(self._ends, offsets[:, 0], "right")
        offsets -= self._begins[shards, None]
        return [
            self._shard(shard)[start:stop]
            for shard, (start, stop) in zip(
                shards.tolist(), offsets.tolist(), strict=True
            )
        ]

    def _shard(self, number: int) -> np.ndarray:
        """The ids of a shard, mapped; the first time its checksum is compared."""
        if number in self._shards:
            return self._shards[number]
        with self._locks[number]:
            if number not in self._shards:
                self._shards[number] = self._open(self.info.shards[number])
        return self._shards[number]

    def _open(self, shard: Shard) -> np.ndarray:
        path, dtype = self.directory / shard.name, np.dtype(self.info.token_dtype)
        if path.is_file() and path.stat().st_size == shard.tokens * dtype.itemsize:
            ids = np.asarray(np.memmap(path, dtype, "r"))
            if zlib.crc32(ids) == shard.checksum:
                return ids
        raise UserError(
            f"{path} is missing or damaged (its size or checksum is not that in "
            "index.json); copy it again, or prepare the text again"
        )
