"""The tokenised corpus on disk: ArrayRecord shards and an index of sentence lengths.

A directory holds:
  shard-00000-of-00004.arrayrecord ...: records of token ids, little-endian uint16 (uint32
    where the vocabulary needs it); a record is whole consecutive sentences of one
    document, up to RECORD_TOKENS tokens (a longer sentence is a record of its own);
  index/*.npy: sentence_lengths uint16 (S,); document_sentences int64 (D + 1,) and
    record_sentences int64 (R + 1,), the first sentence of each document and record;
  the tokenizer's files; and index.json, written last: a store without it is not whole.
"""

import bisect
import contextlib
import dataclasses
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from bert_jax.errors import UserError
from bert_jax.files import read_json, write_json

FORMAT = 1
RECORD_TOKENS = 4096
# Sentence lengths are uint16; a longer "sentence" (a table, a gene) is cut into several.
LONGEST_SENTENCE = 65_535
# One record a group: reading one record never decodes its neighbours. Uncompressed reads
# are a little faster, and token ids compress little.
_WRITER_OPTIONS = "group_size:1,uncompressed"
_ARRAYS = ("sentence_lengths", "document_sentences", "record_sentences")


@dataclasses.dataclass(frozen=True)
class StoreInfo:
    """The contents of index.json.

    shards: (file name, records) of each. vocabulary_fingerprint: Tokenizer.fingerprint.
    settings: what the store was made from, as ``prepare`` records it.
    """

    documents: int
    sentences: int
    tokens: int
    records: int
    token_dtype: str
    vocab_size: int
    vocabulary_fingerprint: str
    shards: tuple[tuple[str, int], ...]
    settings: dict[str, Any]
    format: int = FORMAT


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest type that holds every id."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def shard_name(shard: int, shards: int) -> str:
    """The file name of shard number ``shard`` of ``shards``."""
    return f"shard-{shard:05d}-of-{shards:05d}.arrayrecord"


def _part_path(directory: Path, shard: int) -> Path:
    return directory / "index" / f"part-{shard:05d}.npz"


class ShardWriter:
    """Writes one shard and its part of the index.

    Files have temporary names until :meth:`close`, which renames the shard first and its
    index part last: where the part exists, the shard is whole.
    """

    def __init__(self, directory: Path, shard: int, shards: int, dtype: np.dtype):
        self._directory = directory
        self._shard = shard
        self._path = directory / shard_name(shard, shards)
        self._temporary = self._path.with_suffix(".tmp")
        self._dtype = np.dtype(dtype)
        (directory / "index").mkdir(parents=True, exist_ok=True)
        self._writer = ArrayRecordWriter(str(self._temporary), _WRITER_OPTIONS)
        self._sentence_lengths: list[int] = []
        self._document_sizes: list[int] = []  # in sentences
        self._record_sizes: list[int] = []  # in sentences

    @staticmethod
    def is_written(directory: Path, shard: int) -> bool:
        """Whether an earlier run finished this shard."""
        return _part_path(directory, shard).exists()

    def write(self, sentences: Sequence[np.ndarray]) -> None:
        """Adds one document; empty sentences are dropped, an empty document is nothing."""
        parts = [
            sentence[start : start + LONGEST_SENTENCE]
            for sentence in sentences
            for start in range(0, len(sentence), LONGEST_SENTENCE)
        ]
        if not parts:
            return
        lengths = [len(part) for part in parts]
        start = tokens = 0
        for i, length in enumerate(lengths):
            if tokens and tokens + length > RECORD_TOKENS:
                self._write_record(parts[start:i])
                start, tokens = i, 0
            tokens += length
        self._write_record(parts[start:])
        self._sentence_lengths += lengths
        self._document_sizes.append(len(lengths))

    def _write_record(self, parts: list[np.ndarray]) -> None:
        ids = np.concatenate(parts).astype(self._dtype, casting="unsafe")
        self._writer.write(ids.tobytes())
        self._record_sizes.append(len(parts))

    def close(self) -> None:
        """Makes the shard whole on disk."""
        self._writer.close()
        # The writer does not tell of a disk that filled up; reading the footer does.
        reader = _open_shard(self._temporary)
        if reader.num_records() != len(self._record_sizes):
            raise UserError(
                f"{self._temporary} holds {reader.num_records()} records of "
                f"{len(self._record_sizes)} written; is the disk full?"
            )
        reader.close()
        part = _part_path(self._directory, self._shard)
        temporary = part.with_suffix(".tmp")
        with temporary.open("wb") as file:
            np.savez(
                file,
                sentence_lengths=np.array(self._sentence_lengths, np.uint16),
                document_sizes=np.array(self._document_sizes, np.int64),
                record_sizes=np.array(self._record_sizes, np.int64),
            )
            file.flush()
            os.fsync(file.fileno())
        self._temporary.replace(self._path)
        temporary.replace(part)


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
    totals = dict.fromkeys(("sentences", "documents", "records"), 0)
    named: list[tuple[str, int]] = []
    for shard in range(shards):
        with np.load(_part_path(directory, shard)) as part:
            totals["sentences"] += len(part["sentence_lengths"])
            totals["documents"] += len(part["document_sizes"])
            totals["records"] += len(part["record_sizes"])
            if len(part["record_sizes"]):
                named.append((shard_name(shard, shards), len(part["record_sizes"])))
    if not totals["documents"]:
        raise UserError(
            f"no text was found for {directory}; expected at least one sentence: check "
            "--input and --format"
        )
    shapes = (
        (np.uint16, totals["sentences"]),
        (np.int64, totals["documents"] + 1),
        (np.int64, totals["records"] + 1),
    )
    sentences = tokens = 0
    with contextlib.ExitStack() as stack:
        files = [
            stack.enter_context(_create(index / f"{name}.tmp", dtype, size))
            for name, (dtype, size) in zip(_ARRAYS, shapes, strict=True)
        ]
        for file in files[1:]:
            file.write(np.int64(0).tobytes())
        for shard in range(shards):
            with np.load(_part_path(directory, shard)) as part:
                lengths = part["sentence_lengths"]
                files[0].write(lengths.tobytes())
                files[1].write(
                    (sentences + np.cumsum(part["document_sizes"])).tobytes()
                )
                files[2].write((sentences + np.cumsum(part["record_sizes"])).tobytes())
            tokens += int(lengths.sum(dtype=np.int64))
            sentences += len(lengths)
    for name in _ARRAYS:
        (index / f"{name}.tmp").replace(index / f"{name}.npy")
    info = StoreInfo(
        **totals,
        tokens=tokens,
        token_dtype=token_dtype(vocab_size).str,
        vocab_size=vocab_size,
        vocabulary_fingerprint=vocabulary_fingerprint,
        shards=tuple(named),
        settings=settings,
    )
    write_json(directory / "index.json", dataclasses.asdict(info))
    for shard in range(shards):
        _part_path(directory, shard).unlink()
    return info


def _create(path: Path, dtype: type, size: int) -> BinaryIO:
    """A .npy file whose ``size`` values are still to be written.

    Not a mapped file: a full disk would kill the process instead of raising OSError.
    """
    file = path.open("wb")
    header = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
        "fortran_order": False,
        "shape": (size,),
    }
    np.lib.format.write_array_header_1_0(file, header)
    return file


def _open_shard(path: Path) -> ArrayRecordReader:
    # No read-ahead: examples are read in random order.
    return ArrayRecordReader(str(path), "readahead_buffer_size:0")


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
    try:
        if values.get("format") != FORMAT:
            raise UserError(
                f"{path} has format {values.get('format')}, expected {FORMAT}; prepare "
                "the text again"
            )
        values["shards"] = tuple((name, count) for name, count in values["shards"])
        return StoreInfo(**values)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} is damaged ({error}); prepare the text again"
        ) from error


class TokenStore:
    """Random access to the sentences of a finished store.

    info: StoreInfo. sentence_lengths uint16 (S,) and document_sentences int64 (D + 1,)
    are mapped from disk, not loaded. Safe to use from several threads.
    """

    def __init__(self, directory: Path | str):
        self.directory = Path(directory)
        self.info = read_info(self.directory)
        arrays = {
            # As plain arrays over the mapped file: each slice of a memmap is a memmap,
            # which takes three times as long to make.
            name: np.asarray(
                np.load(self.directory / "index" / f"{name}.npy", mmap_mode="r")
            )
            for name in _ARRAYS
        }
        self.sentence_lengths = arrays["sentence_lengths"]
        self.document_sentences = arrays["document_sentences"]
        self._record_sentences = arrays["record_sentences"]
        if len(self.sentence_lengths) != self.info.sentences:
            raise UserError(
                f"{self.directory}: the index has {len(self.sentence_lengths)} sentences, "
                f"expected {self.info.sentences}; prepare the text again"
            )
        counts = [count for _, count in self.info.shards]
        self._first_records = np.concatenate([[0], np.cumsum(counts)]).tolist()
        self._readers: dict[int, ArrayRecordReader] = {}
        self._lock = threading.Lock()

    def read_sentences(self, ranges: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        """Token ids of the sentences [start, stop) of each range, one array a range.

        A range must lie within one document. All records are read in one go.
        """
        starts, stops = np.asarray(ranges, np.int64).reshape(-1, 2).T
        firsts = np.searchsorted(self._record_sentences, starts, "right") - 1
        lasts = np.searchsorted(self._record_sentences, stops - 1, "right") - 1
        begins = self._record_sentences[firsts]
        records = self._read_records(
            sorted({*firsts.tolist(), *lasts.tolist()}.union(
                *(range(a + 1, b) for a, b in zip(firsts, lasts, strict=True) if b > a)
            ))
        )  # fmt: skip
        lengths, total = self.sentence_lengths, np.add.reduce
        result = []
        for start, stop, first, last, begin in zip(
            *(x.tolist() for x in (starts, stops, firsts, lasts, begins)), strict=True
        ):
            offset = int(total(lengths[begin:start], dtype=np.int64))
            size = int(total(lengths[start:stop], dtype=np.int64))
            ids = records[first]
            if last > first:
                ids = np.concatenate([records[r] for r in range(first, last + 1)])
            result.append(ids[offset : offset + size])
        return result

    def _read_records(self, numbers: list[int]) -> dict[int, np.ndarray]:
        by_shard: dict[int, list[int]] = {}
        for number in numbers:
            shard = bisect.bisect_right(self._first_records, number) - 1
            by_shard.setdefault(shard, []).append(number)
        records = {}
        for shard, members in by_shard.items():
            first = self._first_records[shard]
            contents = self._reader(shard).read([n - first for n in members])
            for number, content in zip(members, contents, strict=True):
                records[number] = np.frombuffer(content, self.info.token_dtype)
        return records

    def _reader(self, shard: int) -> ArrayRecordReader:
        with self._lock:
            if shard not in self._readers:
                name, count = self.info.shards[shard]
                path = self.directory / name
                if not path.is_file():
                    raise UserError(f"{path} is missing; prepare the text again")
                reader = _open_shard(path)
                if reader.num_records() != count:
                    raise UserError(
                        f"{path} holds {reader.num_records()} records, expected {count}; "
                        "prepare the text again"
                    )
                self._readers[shard] = reader
            return self._readers[shard]
