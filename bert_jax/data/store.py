"""The tokenised corpus on disk: flat files of token ids and an index of sentences.

A directory holds:
  shard-00000-of-00004.tokens ...: the token ids of whole documents, one after the other,
    little-endian uint16 (uint32 where the vocabulary needs it). Where a segmenter found
    the words, a bit that no id has marks the tokens that continue one;
  index/sentence_offsets.npy: int64 (S + 1,), the first token of each sentence, counted
    over all shards, and the number of tokens;
  index/document_sentences.npy: int64 (D + 1,), the first sentence of each document, and
    the number of sentences;
  the tokenizer's files; and index.json, written last: a store without it is not whole.

All of it is mapped into memory, so that a random sentence costs no system call.
"""

import contextlib
import dataclasses
import errno
import functools
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.tokenizer import token_dtype
from bert_jax.errors import UserError
from bert_jax.files import new_file, read_json, write_json
from bert_jax.progress import Progress

_HEADER = 1000  # bytes of a .npy file's; ours have 118, and NumPy parses 10,000 slowly
FORMAT = 2
# The arrays of the index, and of which sizes in its parts they are the running sums.
_ARRAYS = {
    "sentence_offsets": "sentence_lengths",
    "document_sentences": "document_sizes",
}


class Shard(NamedTuple):
    """A file of token ids. checksum: zlib.crc32 of its bytes."""

    name: str
    tokens: int
    checksum: int


@dataclasses.dataclass(frozen=True)
class StoreInfo:
    """The contents of index.json.

    vocabulary_fingerprint: Tokenizer.fingerprint. settings: what the store was made
    from, as ``prepare`` records it. index_checksums: zlib.crc32 of the numbers in each
    array of the index; empty in a store that was made before there were any. word_bit: of a
    token that continues a word; 0 where the vocabulary alone says which do.
    """

    documents: int
    sentences: int
    tokens: int
    token_dtype: str
    vocab_size: int
    vocabulary_fingerprint: str
    shards: tuple[Shard, ...]
    settings: dict[str, Any]
    index_checksums: dict[str, int] = dataclasses.field(default_factory=dict)
    format: int = FORMAT
    word_bit: int = 0


def stored_type(vocab_size: int, *, words: bool) -> tuple[np.dtype, int]:
    """The type of stored tokens, and the bit of those that continue a word, or 0."""
    dtype = token_dtype(2 * vocab_size if words else vocab_size)
    # Not the highest of 32, which would be the sign in an int32.
    return dtype, ((1 << 15) if dtype.itemsize == 2 else (1 << 30)) * words


def shard_name(shard: int, shards: int) -> str:
    """The file name of shard number ``shard`` of ``shards``."""
    return f"shard-{shard:05d}-of-{shards:05d}.tokens"


def part_path(directory: Path, shard: int) -> Path:
    """A shard's part of the index while the store is written; it makes the shard whole."""
    return directory / "index" / f"part-{shard:05d}.npz"


@contextlib.contextmanager
def shard_writer(
    directory: Path, shard: int, shards: int, dtype: np.dtype
) -> Iterator[Callable[[Sequence[np.ndarray]], None]]:
    """Writes one shard and its part of the index, both whole or not at all.

    Yields the function that adds one document, the ids of its sentences; empty sentences
    are dropped, and an empty document is nothing.
    """
    path, end = directory / shard_name(shard, shards), part_path(directory, shard)
    checksum, lengths, sizes = 0, [], []

    def write(sentences: Sequence[np.ndarray]) -> None:
        nonlocal checksum
        filled = [len(sentence) for sentence in sentences if len(sentence)]
        if filled:
            ids = np.concatenate(sentences).astype(dtype, casting="unsafe").tobytes()
            file.write(ids)
            checksum = zlib.crc32(ids, checksum)
            lengths.extend(filled)
            sizes.append(len(filled))

    # The part is the last to take its place.
    with _writing(path), new_file(end) as part, new_file(path) as file:
        yield write
        np.savez(
            part,
            sentence_lengths=np.array(lengths, np.int64),
            document_sizes=np.array(sizes, np.int64),
            checksum=np.int64(checksum),
        )
        for written in (file, part):
            written.flush()
            os.fsync(written.fileno())


def remove_unfinished(directory: Path) -> None:
    """Removes what killed processes left: files half written, parts of a whole index."""
    patterns = [".*.tmp", "index/.*.tmp"]
    if (directory / "index.json").exists():
        patterns.append("index/part-*.npz")
    for pattern in patterns:
        for path in directory.glob(pattern):
            path.unlink()


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Says what to do where the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
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
    words: bool = False,
) -> StoreInfo:
    """Joins the parts of the index, in order of the shards, and writes index.json.

    words: whether tokens have the bit of :func:`stored_type`. Empty shards are left out of
    index.json. Where all are empty, they are removed, and UserError is raised.
    """
    parts = [part_path(directory, shard) for shard in range(shards)]
    named: list[Shard] = []
    for shard, path in enumerate(parts):
        part = _read_part(path)
        tokens, checksum = int(part["sentence_lengths"].sum()), part["checksum"]
        if tokens:
            named.append(Shard(shard_name(shard, shards), tokens, int(checksum)))
    if not named:
        for path in (*parts, *directory.glob("shard-*")):
            path.unlink()
        raise UserError(
            f"no text was found for {directory}; expected at least one sentence: check "
            "--input and --format"
        )
    with _writing(directory):
        written = [
            _write_sums(directory / "index" / f"{name}.npy", parts, sizes)
            for name, sizes in _ARRAYS.items()
        ]
    (sentences, documents), checksums = zip(*written, strict=True)
    dtype, word_bit = stored_type(vocab_size, words=words)
    info = StoreInfo(
        documents=documents,
        sentences=sentences,
        tokens=sum(shard.tokens for shard in named),
        token_dtype=dtype.str,
        vocab_size=vocab_size,
        vocabulary_fingerprint=vocabulary_fingerprint,
        shards=tuple(named),
        settings=settings,
        index_checksums=dict(zip(_ARRAYS, checksums, strict=True)),
        word_bit=word_bit,
    )
    values = dataclasses.asdict(info)
    write_json(directory / "index.json", values | {"checksum": _checksum(values)})
    for path in parts:
        path.unlink()
    return info


def _checksum(values: dict[str, Any]) -> int:
    """Of the contents of index.json, its own checksum left out."""
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())


def _read_part(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as file, np.load(file, max_header_size=_HEADER) as part:
            return {name: part[name] for name in (*_ARRAYS.values(), "checksum")}
    except Exception as error:  # NumPy raises anything
        raise UserError(
            f"{path} is damaged ({error}); remove it and run the same command again"
        ) from error


def _write_sums(path: Path, parts: Sequence[Path], name: str) -> tuple[int, int]:
    """Writes 0 and the running sums of the parts' array ``name``.

    Returns how many sums these are, and the checksum of the numbers written.

    Holds one part in memory at a time. The file is not mapped: a full disk would kill the
    process instead of raising OSError.
    """
    header = {"descr": "<i8", "fortran_order": False, "shape": (0,)}
    count = total = 0
    zero = np.int64(0).tobytes()
    checksum = zlib.crc32(zero)
    with new_file(path) as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.write(zero)
        for part in parts:
            sizes = _read_part(part)[name]
            sums = (total + np.cumsum(sizes)).tobytes()
            checksum = zlib.crc32(sums, checksum)
            file.write(sums)
            count, total = count + len(sizes), total + int(sizes.sum())
        file.seek(0)  # NumPy's headers leave room for any length
        header["shape"] = (count + 1,)
        np.lib.format.write_array_header_1_0(file, header)
    return count, checksum


def read_info(directory: Path) -> StoreInfo:
    """Reads index.json; UserError where ``directory`` is not a finished store."""
    path = directory / "index.json"
    if not path.is_file():
        raise UserError(
            f"{directory} is not a finished store (no index.json); run python -m "
            f"bert_jax.prepare --input TEXT --vocabulary vocab.txt --output {directory}"
        )
    values = read_json(path, "the index of a store; prepare the text again")
    if (found := values.get("format")) != FORMAT:
        raise UserError(
            f"{path} has format {found}, expected {FORMAT}; prepare the text again"
        )
    try:
        # A store that was made before it had a checksum is read without.
        if values.pop("checksum", None) not in (None, _checksum(values)):
            raise ValueError("its checksum differs")
        values["shards"] = tuple(Shard(*shard) for shard in values["shards"])
        info = StoreInfo(**values)
        _check_info(info)
        return info
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} is damaged ({error}); prepare the text again"
        ) from error


def _check_info(info: StoreInfo) -> None:
    """Raises ValueError for what no store has, such as a shard outside of its folder."""
    counts = [info.documents, info.sentences, info.tokens, info.vocab_size]
    counts += [number for shard in info.shards for number in shard[1:]]
    if not isinstance(info.settings, dict) or not isinstance(
        info.index_checksums, dict
    ):
        raise ValueError("no settings or checksums")
    counts += info.index_checksums.values()
    if not all(type(count) is int and 0 <= count < 1 << 63 for count in counts):
        raise ValueError("a count is no number")
    if info.tokens != sum(shard.tokens for shard in info.shards) or not info.shards:
        raise ValueError("its shards do not add up")
    dtype, bit = stored_type(info.vocab_size, words=info.word_bit != 0)
    if (info.token_dtype, info.word_bit) != (dtype.str, bit):
        raise ValueError(
            f"token_dtype {info.token_dtype!r}, word_bit {info.word_bit!r}"
        )
    if not all(
        re.fullmatch(r"shard-[0-9]{1,9}-of-[0-9]{1,9}\.tokens", s.name)
        for s in info.shards
    ):
        raise ValueError("a shard has another name than shards have")


class TokenStore:
    """Random access to the sentences of a finished store.

    info: StoreInfo. sentence_offsets int64 (S + 1,) and document_sentences int64 (D + 1,)
    are mapped from disk, not loaded. Opening a store compares the sizes of all files and
    the checksums of these two arrays. Only ``verify`` compares the checksums of shards,
    because it reads them whole. Safe to use from several threads.
    """

    def __init__(self, directory: Path | str):
        self.directory = Path(directory)
        self.info = read_info(self.directory)
        self.word_bit = self.info.word_bit
        info = self.info
        self.sentence_offsets = self._array("sentence_offsets", info.sentences)
        self.document_sentences = self._array("document_sentences", info.documents)
        if self.sentence_offsets[-1] != info.tokens:
            raise UserError(
                f"{self.directory}: the index has {self.sentence_offsets[-1]} tokens, "
                f"expected {info.tokens}; prepare the text again"
            )
        tokens = [shard.tokens for shard in info.shards]
        self._ends = np.cumsum(tokens)
        self._begins = self._ends - tokens
        self._shard = functools.cache(self._open)
        for shard in info.shards:
            path = self.directory / shard.name
            size = shard.tokens * np.dtype(info.token_dtype).itemsize
            if not path.is_file() or path.stat().st_size != size:
                raise _damaged(path, f"{size:,} bytes")

    def verify(self) -> None:
        """Reads every shard; UserError if one has another checksum than index.json."""
        with Progress(
            "verifying", total=self.info.tokens, unit="tokens", scale=True
        ) as progress:
            for number, shard in enumerate(self.info.shards):
                if zlib.crc32(self._shard(number)) != shard.checksum:
                    raise _damaged(self.directory / shard.name, "its checksum")
                progress.update(shard.tokens)

    def read_sentences(self, ranges: np.ndarray) -> list[np.ndarray]:
        """Token ids of the sentences [start, stop) of each range, one array a range.

        Those that continue a word have the bit ``word_bit`` too.
        ranges: int (n, 2); a range lies within one document. The arrays are read-only.
        """
        offsets = self.sentence_offsets[ranges]
        # An empty range may begin where the last shard ends.
        shards = np.searchsorted(self._ends[:-1], offsets[:, 0], "right")
        offsets -= self._begins[shards, None]
        places = zip(shards.tolist(), offsets.tolist(), strict=True)
        return [self._shard(shard)[start:stop] for shard, (start, stop) in places]

    def _array(self, name: str, count: int) -> np.ndarray:
        """An array of the index, mapped, after its checksum is compared.

        It is a plain array over the mapped file: each slice of a memmap is a memmap, which
        takes three times as long to make.
        """
        path = self.directory / "index" / f"{name}.npy"
        try:
            array = np.asarray(np.load(path, mmap_mode="r", max_header_size=_HEADER))
            expected = self.info.index_checksums.get(name)
            if (array.shape, array.dtype) != ((count + 1,), np.int64):
                raise ValueError(f"{array.dtype} of shape {array.shape}")
            if expected not in (None, zlib.crc32(array)):
                raise ValueError("its checksum differs")
        except Exception as error:  # NumPy raises anything
            raise UserError(
                f"{path} is not the index of {count:,} that index.json tells of ({error}); "
                "copy it again, or prepare the text again"
            ) from error
        return array

    def _open(self, number: int) -> np.ndarray:
        """The ids of a shard, mapped."""
        path = self.directory / self.info.shards[number].name
        return np.asarray(np.memmap(path, np.dtype(self.info.token_dtype), "r"))


def verify_store(directory: Path) -> None:
    """UserError if a file of a store is damaged. Reads all of them."""
    TokenStore(directory).verify()


def _damaged(path: Path, expected: str) -> UserError:
    return UserError(
        f"{path} is missing or damaged (index.json has {expected}); copy it again, or "
        "prepare the text again"
    )
