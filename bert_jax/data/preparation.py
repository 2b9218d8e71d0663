"""Text to a token store: sources cut into shards, shards written in parallel.

A shard is a byte range of all sources put end to end. What a store holds depends on the
text and the number of shards alone, not on how many processes wrote it or how often they
were interrupted. A run that is repeated keeps the shards that are whole.
"""

import bisect
import collections
import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import itertools
import logging
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.corpus import (
    Source,
    find_sources,
    left_out,
    read_source,
    with_fingerprints,
)
from bert_jax.data.corpus_formats import Reading
from bert_jax.data.segmenters import encode_words, open_segmenter
from bert_jax.data.sentences import RULES
from bert_jax.data.store import (
    StoreInfo,
    finish_store,
    part_path,
    read_info,
    remove_unfinished,
    shard_writer,
    stored_type,
)
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError, counted
from bert_jax.files import check_output, read_json, write_json
from bert_jax.locks import locked
from bert_jax.progress import Progress
from bert_jax.settings import differences

logger = logging.getLogger(__name__)

# From write_shard, with everything but shard and parts, and the parts of each missing
# shard, to what was written.
Run = Callable[
    [Callable[..., "ShardCount"], dict[int, list["Part"]]],
    Generator["ShardCount", None, None],
]


class OtherTextError(UserError):
    """The folder contains text that was prepared in another way."""


# What a run works on until index.json takes its place.
UNFINISHED = "unfinished.json"
# Bytes of text a shard: enough of them for the workers, few enough to open, none so
# large that its part of the index fills the memory.
_SMALL_SHARD, _MANY_SHARDS, _LARGE_SHARD = 4 << 20, 256, 512 << 20
# A worker takes up to 180 MiB, mostly for the words that the tokenizer remembers. This
# many stay below 1 GiB together; more come only where --workers asks for them.
_MOST_WORKERS = 4
# Every shard is mapped while it is read, and Linux maps 65,530 files for a process.
_MOST_SHARDS = 10_000


class Part(NamedTuple):
    """A source's byte range [start, stop), the whole of one that is not splittable."""

    source: Source
    start: int
    stop: int


class ShardCount(NamedTuple):
    """What was written of a shard, and what was left out.

    text_bytes: bytes of text, estimated if the size of a source is. dropped: see
    corpus_formats.Reading.
    """

    text_bytes: int
    tokens: int
    unknown: int
    dropped: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Report:
    """What :func:`prepare` did.

    info describes the whole store. The other fields count the work of this run alone: a
    run that found everything done has text_bytes 0. dropped: number of headings, lines and
    the like that were left out, by reason.
    """

    info: StoreInfo
    seconds: float
    text_bytes: int
    tokens: int
    unknown: int
    dropped: Mapping[str, int]

    def __str__(self) -> str:
        info = self.info
        total = (
            f"{counted(info.documents, 'document')}, "
            f"{counted(info.sentences, 'sentence')}, {counted(info.tokens, 'token')}"
        )
        if not self.text_bytes:
            return f"{total}; was already prepared"
        rate = self.text_bytes / 1e6 / max(self.seconds, 1e-9)
        unknown = 100 * self.unknown / max(1, self.tokens)
        return (
            f"{total}; {self.text_bytes / 1e6:.1f} MB of text in {self.seconds:.1f} s "
            f"({rate:.1f} MB/s), {unknown:.2f}% unknown tokens; {left_out(self.dropped)}"
        )


def prepare(
    inputs: Sequence[str],
    tokenizer: Tokenizer,
    directory: Path,
    *,
    format: str = "auto",
    text_field: str = "text",
    language: str = "en",
    workers: int = 0,
    shards: int = 0,
    segmenter: str = "",
    run: "Run | None" = None,
) -> Report:
    """Reads, segments and tokenises ``inputs`` into a store in ``directory``.

    inputs, format: see corpus.read_documents. text_field, language: see
    corpus_formats.Reading. workers, shards: 0 chooses.
    segmenter: what finds words without spaces between them; see open_segmenter. run: what
    writes the missing shards, instead of processes of this machine.
    Finishes what an interrupted run with the same settings began; raises UserError where
    ``directory`` holds something made from other text, settings or another vocabulary.
    """
    if workers < 0 or not 0 <= shards <= _MOST_SHARDS:
        raise UserError(
            f"workers={workers}, shards={shards}: expected 0 or more, and at most "
            f"{_MOST_SHARDS:,} shards"
        )
    started = time.monotonic()
    check_output(directory, *inputs)
    found = find_sources(inputs, format=format, language=language)
    sources = with_fingerprints(found)
    total = sum(source.size for source in sources)
    shards = shards or shard_count(total)
    contents = "".join(f"{s.size} {s.format} {s.fingerprint}\n" for s in sources)
    settings = {
        "inputs": list(inputs),
        "text": {
            "files": len(sources),
            "bytes": total,
            "fingerprint": hashlib.sha256(contents.encode()).hexdigest()[:16],
        },
        "format": format,
        "text_field": text_field,
        "language": language,
        "segmenter": f"sentencex {importlib.metadata.version('sentencex')}, {RULES}",
        "shards": shards,
    } | ({"words": segmenter} if segmenter else {})
    if segmenter:
        open_segmenter(segmenter)
    fingerprint = tokenizer.fingerprint()
    identity = {"vocabulary_fingerprint": fingerprint, "settings": settings}
    counts: list[ShardCount] = []
    with locked(directory):
        remove_unfinished(directory)
        if info := _finished(directory, identity):
            (directory / UNFINISHED).unlink(missing_ok=True)  # killed just before
            return Report(info, 0.0, *_total(counts))
        write_json(directory / UNFINISHED, identity)
        tokenizer.save(directory)
        missing = {
            shard: parts
            for shard, parts in enumerate(plan_shards(sources, shards))
            if not part_path(directory, shard).exists()
        }
        write = functools.partial(
            write_shard, tokenizer=tokenizer, directory=directory, shards=shards,
            text_field=text_field, language=language, segmenter=segmenter,
        )  # fmt: skip
        workers = min(workers or _default_workers(), len(missing))
        run = run or functools.partial(_write_shards, workers=workers)
        with (
            contextlib.closing(run(write, missing)) as written,
            Progress(
                "preparing",
                total=total,
                initial=total - sum(map(_text_bytes, missing.values())),
                unit="B",
                scale=True,
            ) as progress,
        ):
            for count in written:
                counts.append(count)
                progress.update(count.text_bytes)
        for source, now in zip(sources, with_fingerprints(found), strict=True):
            if now != source:
                raise UserError(
                    f"{source.name} changed while it was read; remove {directory} and run "
                    "the same command again"
                )
        vocab_size = tokenizer.vocab_size
        words = bool(segmenter)
        info = finish_store(
            directory, shards, vocab_size=vocab_size, words=words, **identity
        )
        (directory / UNFINISHED).unlink()
    if info.documents == 1:
        logger.warning(
            "1 document: no boundaries were found, and next sentence prediction needs "
            "several; if a line is a sentence, set --format lines; if the text is not "
            "English, set --language"
        )
    return Report(info, time.monotonic() - started, *_total(counts))


def _total(counts: Sequence[ShardCount]) -> ShardCount:
    dropped: collections.Counter[str] = collections.Counter()
    for count in counts:
        dropped.update(count.dropped)
    numbers = (
        sum(getattr(count, name) for count in counts)
        for name in ("text_bytes", "tokens", "unknown")
    )
    return ShardCount(*numbers, dropped)


def shard_count(size: int) -> int:
    """How many shards ``size`` bytes of text get where nobody says."""
    small = min(_MANY_SHARDS, math.ceil(size / _SMALL_SHARD))
    return max(1, small, math.ceil(size / _LARGE_SHARD))


def plan_shards(sources: Sequence[Source], shards: int) -> list[list[Part]]:
    """For each shard its parts: near-equal byte ranges of the sources end to end.

    A source that cannot be split belongs to the shard in which it begins.
    """
    total = sum(source.size for source in sources)
    bounds = [total * shard // shards for shard in range(shards + 1)]
    plan: list[list[Part]] = [[] for _ in range(shards)]
    begin = 0
    for source in sources:
        end = begin + source.size
        inner = {bound for bound in bounds if begin < bound < end}
        cuts = sorted({begin, end, *(inner if source.splittable else ())})
        for start, stop in itertools.pairwise(cuts):
            shard = bisect.bisect_right(bounds, start) - 1
            plan[shard].append(Part(source, start - begin, stop - begin))
        begin = end
    return plan


def _text_bytes(parts: Sequence[Part]) -> int:
    return sum(part.stop - part.start for part in parts)


def _default_workers() -> int:
    if hasattr(os, "sched_getaffinity"):  # Linux: what a container may use
        return min(_MOST_WORKERS, len(os.sched_getaffinity(0)))
    return min(_MOST_WORKERS, os.cpu_count() or 1)


def write_shard(
    shard: int,
    parts: Sequence[Part],
    *,
    tokenizer: Tokenizer,
    directory: Path,
    shards: int,
    text_field: str,
    language: str,
    segmenter: str,
) -> ShardCount:
    """Reads, segments and tokenises the parts of one shard into the store ``directory``."""
    tokens = unknown = 0
    reading = Reading(text_field, language)
    dtype, word_bit = stored_type(tokenizer.vocab_size, words=bool(segmenter))
    segment = open_segmenter(segmenter) if segmenter else None
    with shard_writer(directory, shard, shards, dtype) as write:
        for part in parts:
            for document in read_source(*part, reading=reading):
                if segment is None:
                    sentences = stored = tokenizer.encode_batch(document)
                else:
                    sentences, words = encode_words(document, tokenizer, segment)
                    pairs = zip(sentences, words, strict=True)
                    stored = [ids | word_bit * continues for ids, continues in pairs]
                write(stored)
                ids = np.concatenate(sentences)
                tokens += len(ids)
                unknown += int(np.count_nonzero(ids == tokenizer.unk_id))
    return ShardCount(_text_bytes(parts), tokens, unknown, reading.dropped)


def _write_shards(
    write: Callable[..., ShardCount], missing: dict[int, list[Part]], workers: int
) -> Iterator[ShardCount]:
    """Writes the missing shards, in as many processes as ``workers``, or here for one.

    write: write_shard with everything but shard and parts. The first error ends all
    processes, and so does closing this iterator.
    """
    if workers <= 1:
        yield from itertools.starmap(write, missing.items())
        return
    # Spawned, not forked: the parent may have threads (TensorBoard, JAX, a notebook).
    context = multiprocessing.get_context("spawn")
    # The parent alone holds the other end: when it closes it, or dies, the workers exit.
    parent, end = context.Pipe(duplex=False)
    with ProcessPoolExecutor(
        workers, context, initializer=_start_worker, initargs=(write, parent)
    ) as executor:
        try:
            futures = [executor.submit(_work, *item) for item in missing.items()]
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool as error:
            raise UserError(
                "a worker process died, perhaps for want of memory; the same command goes "
                f"on in {write.keywords['directory']}: try it with fewer --workers"
            ) from error
        except BaseException:
            end.close()  # shards that are being written stay unfinished, as after a kill
            raise


_write: Callable[..., ShardCount]  # of this worker, which keeps its tokenizer's cache


def _start_worker(write: Callable[..., ShardCount], parent: Connection) -> None:
    global _write
    _write = write
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()


def _exit_with(parent: Connection) -> None:
    parent.poll(None)
    os._exit(1)


def _work(shard: int, parts: list[Part]) -> ShardCount:
    return _write(shard, parts)


def _finished(directory: Path, identity: dict[str, Any]) -> StoreInfo | None:
    """The whole store that is there; UserError where it is, or was to be, another."""
    info = read_info(directory) if (directory / "index.json").exists() else None
    if info is None and not any(directory.glob("index/part-*.npz")):
        return None  # nothing is lost by beginning anew
    unfinished = directory / UNFINISHED
    found = vars(info) if info else read_json(unfinished, "settings")
    if not isinstance(found.get("settings"), dict):
        raise UserError(f"{unfinished} is damaged; remove {directory} and begin anew")
    was, now = (values["settings"].get("segmenter") for values in (found, identity))
    if was != now:
        raise OtherTextError(
            f"{directory} holds text prepared by another version ({was}; this version is "
            f"{now}); training reads a finished store, but prepare cannot continue it: use "
            "another --output, or remove it"
        )
    old, new = (
        {"vocabulary": values.get("vocabulary_fingerprint"), **values["settings"]}
        for values in (found, identity)
    )
    # The same text may be named in another way, or from another folder.
    differing = [
        f"{name} was {_short(was)}, now {_short(now)}"
        for name, was, now in differences(old, new)
        if not name.startswith("inputs")
    ]
    if differing:
        raise OtherTextError(
            f"{directory} holds text prepared with other settings "
            f"({'; '.join(differing)}); use another --output, or remove it"
        )
    return info


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 48 else f"{text[:12]}..."
