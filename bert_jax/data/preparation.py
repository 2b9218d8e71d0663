"""Text to a token store: sources cut into shards, shards written in parallel.

A shard is a byte range of all sources put end to end. What a store holds depends on the
text and the number of shards alone, not on how many processes wrote it or how often they
were interrupted. A run that is repeated keeps the shards that are whole.
"""

import bisect
import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import importlib.metadata
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from bert_jax.data.corpus import Source, find_sources, read_source
from bert_jax.data.sentences import RULES
from bert_jax.data.store import (
    NoTextError,
    ShardWriter,
    StoreInfo,
    finish_store,
    read_info,
)
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.files import read_json, write_json

# What a run works on until index.json takes its place.
_UNFINISHED = "unfinished.json"
# Bytes of text a shard: enough of them for the workers, few enough to open, none so
# large that its part of the index fills the memory.
_SMALL_SHARD, _MANY_SHARDS, _LARGE_SHARD = 4 << 20, 256, 512 << 20
# A worker takes up to 180 MiB, mostly for the words that the tokenizer remembers. This
# many stay below 1 GiB together; more come only where --workers asks for them.
_MOST_WORKERS = 4


class Part(NamedTuple):
    """A source's byte range [start, stop); stop None is the source's end."""

    source: Source
    start: int
    stop: int | None

    @property
    def size(self) -> int:
        """Bytes of text, estimated where the source's size is."""
        return (self.source.size if self.stop is None else self.stop) - self.start


class ShardCount(NamedTuple):
    """What was written of a shard. size: bytes of text."""

    size: int
    tokens: int
    unknown: int


@dataclasses.dataclass(frozen=True)
class Report:
    """What :func:`prepare` did.

    text_bytes, seconds, tokens and unknown tell of this run alone, info of the whole
    store; a run that found everything done has text_bytes 0.
    """

    info: StoreInfo
    text_bytes: int
    seconds: float
    tokens: int
    unknown: int

    def __str__(self) -> str:
        info = self.info
        total = (
            f"{info.documents:,} documents, {info.sentences:,} sentences, "
            f"{info.tokens:,} tokens"
        )
        if not self.text_bytes:
            return f"{total}; was already prepared"
        rate = self.text_bytes / 1e6 / max(self.seconds, 1e-9)
        unknown = 100 * self.unknown / max(1, self.tokens)
        return (
            f"{total}; {self.text_bytes / 1e6:.1f} MB of text in {self.seconds:.1f} s "
            f"({rate:.1f} MB/s), {unknown:.2f}% unknown tokens"
        )


def prepare(
    inputs: Sequence[str],
    tokenizer: Tokenizer,
    directory: Path,
    *,
    format: str = "auto",
    text_field: str = "text",
    workers: int = 0,
    shards: int = 0,
) -> Report:
    """Reads, segments and tokenises ``inputs`` into a store in ``directory``.

    inputs, format, text_field: see corpus.read_documents. workers, shards: 0 chooses.
    Finishes what an interrupted run with the same settings began; raises UserError where
    ``directory`` holds something made from other text, settings or another vocabulary.
    """
    if workers < 0 or shards < 0:
        raise UserError(f"workers={workers}, shards={shards}: expected 0 or more")
    started = time.monotonic()
    for text in inputs:
        if Path(text).is_dir() and directory.resolve().is_relative_to(
            Path(text).resolve()
        ):
            raise UserError(
                f"{directory} lies in the input {text} and would become text of the next "
                "run; choose an --output outside of it"
            )
    sources = find_sources(inputs, format=format)
    shards = shards or shard_count(sum(source.size for source in sources))
    settings = _settings(inputs, sources, format, text_field, shards)
    fingerprint = tokenizer.fingerprint()
    with _locked(directory):
        if _is_finished(directory, settings, fingerprint):
            return Report(read_info(directory), 0, 0.0, 0, 0)
        write_json(
            directory / _UNFINISHED,
            {"vocabulary_fingerprint": fingerprint, "settings": settings},
        )
        tokenizer.save(directory)
        parts = plan_shards(sources, shards)
        missing = {
            shard: parts[shard]
            for shard in range(shards)
            if not ShardWriter.is_written(directory, shard)
        }
        size = sum(part.size for parts in missing.values() for part in parts)
        total = sum(source.size for source in sources)
        write = functools.partial(
            _write_shard, tokenizer=tokenizer, directory=directory, shards=shards,
            text_field=text_field,
        )  # fmt: skip
        workers = min(workers or _default_workers(), len(missing))
        counts = []
        with (
            contextlib.closing(_write_shards(write, missing, workers)) as written,
            tqdm(
                total=total,
                initial=total - size,
                unit="B",
                unit_scale=True,
                desc="preparing",
                mininterval=0.5 if sys.stderr.isatty() else 30,
            ) as progress,
        ):
            for count in written:
                counts.append(count)
                progress.update(count.size)
        try:
            info = finish_store(
                directory,
                shards,
                vocab_size=tokenizer.vocab_size,
                vocabulary_fingerprint=fingerprint,
                settings=settings,
            )
        except NoTextError:  # leave the directory free for another try
            _remove_shards(directory)
            raise
        (directory / _UNFINISHED).unlink()
    return Report(
        info,
        text_bytes=size,
        seconds=time.monotonic() - started,
        tokens=sum(count.tokens for count in counts),
        unknown=sum(count.unknown for count in counts),
    )


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
        shard = bisect.bisect_right(bounds, begin) - 1
        if not source.splittable:
            plan[shard].append(Part(source, 0, None))
        while source.splittable and bounds[shard] < end:
            start, stop = max(bounds[shard], begin), min(bounds[shard + 1], end)
            if start < stop:
                last = None if stop == end else stop - begin
                plan[shard].append(Part(source, start - begin, last))
            shard += 1
        begin = end
    return plan


def _default_workers() -> int:
    if hasattr(os, "sched_getaffinity"):  # Linux: what a container may use
        return min(_MOST_WORKERS, len(os.sched_getaffinity(0)))
    return min(_MOST_WORKERS, os.cpu_count() or 1)


def _write_shard(
    shard: int,
    parts: Sequence[Part],
    *,
    tokenizer: Tokenizer,
    directory: Path,
    shards: int,
    text_field: str,
) -> ShardCount:
    tokens = unknown = 0
    with ShardWriter(directory, shard, shards, tokenizer.dtype) as writer:
        for part in parts:
            for document in read_source(*part, text_field=text_field):
                sentences = tokenizer.encode_batch(document.sentences)
                writer.write(sentences)
                ids = np.concatenate(sentences)
                tokens += len(ids)
                unknown += int(np.count_nonzero(ids == tokenizer.unk_id))
    return ShardCount(sum(part.size for part in parts), tokens, unknown)


def _write_shards(
    write: Callable[..., ShardCount], missing: dict[int, list[Part]], workers: int
) -> Iterator[ShardCount]:
    """Writes the missing shards, in as many processes as ``workers``, or here for one.

    write: _write_shard with everything but shard and parts. The first error ends all
    processes, and so does closing this iterator.
    """
    if workers <= 1:
        for shard, parts in missing.items():
            yield write(shard, parts)
        return
    # Spawned, not forked: the parent may have threads (TensorBoard, JAX, a notebook).
    context = multiprocessing.get_context("spawn")
    # The parent alone holds the other end: when it closes it, or dies, the workers exit.
    parent, end = context.Pipe(duplex=False)
    directory = write.keywords["directory"]
    with ProcessPoolExecutor(
        workers, context, initializer=_start_worker, initargs=(write, directory, parent)
    ) as executor:
        try:
            futures = [executor.submit(_work, *item) for item in missing.items()]
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool as error:
            raise UserError(
                "a worker process died, perhaps for want of memory; the same command "
                f"goes on from what is in {directory}: try it with fewer --workers"
            ) from error
        except BaseException:
            end.close()  # shards that are being written stay unfinished, as after a kill
            raise


_write: Callable[..., ShardCount]  # of this worker, which keeps its tokenizer's cache


def _start_worker(
    write: Callable[..., ShardCount], directory: Path, parent: Connection
) -> None:
    global _write
    _write = write
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    fcntl.flock(os.open(directory, os.O_RDONLY), fcntl.LOCK_SH)
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()


def _exit_with(parent: Connection) -> None:
    parent.poll(None)
    os._exit(1)


def _work(shard: int, parts: list[Part]) -> ShardCount:
    return _write(shard, parts)


def _settings(
    inputs: Sequence[str],
    sources: Sequence[Source],
    format: str,
    text_field: str,
    shards: int,
) -> dict[str, Any]:
    contents = "".join(f"{s.size} {s.format} {s.fingerprint}\n" for s in sources)
    return {
        "inputs": list(inputs),
        "text": {
            "files": len(sources),
            "bytes": sum(source.size for source in sources),
            "fingerprint": hashlib.sha256(contents.encode()).hexdigest()[:16],
        },
        "format": format,
        "text_field": text_field,
        "segmenter": f"sentencex {importlib.metadata.version('sentencex')}, {RULES}",
        "shards": shards,
    }


def _is_finished(directory: Path, settings: dict[str, Any], fingerprint: str) -> bool:
    """Whether a whole store is there; UserError where it is, or was to be, another."""
    if (directory / "index.json").exists():
        info = read_info(directory)
        found = {"vocabulary": info.vocabulary_fingerprint, **info.settings}
        finished = True
    elif (directory / _UNFINISHED).exists():
        if not any((directory / "index").glob("part-*.npz")):
            return False  # nothing is lost by beginning anew
        values = read_json(directory / _UNFINISHED, "settings of a preparation")
        found = {"vocabulary": values["vocabulary_fingerprint"], **values["settings"]}
        finished = False
    else:
        return False
    wanted = {"vocabulary": fingerprint, **settings}
    # The same text may be named in another way, or from another folder.
    differing = [
        f"{name} was {_short(found.get(name))}, now {_short(value)}"
        for name, value in wanted.items()
        if name != "inputs" and found.get(name) != value
    ]
    if differing:
        raise UserError(
            f"{directory} holds text prepared with other settings ("
            + "; ".join(differing)
            + "); use another --output, or remove it"
        )
    return finished


def _remove_shards(directory: Path) -> None:
    for pattern in ("shard-*", "index/part-*", _UNFINISHED):
        for path in directory.glob(pattern):
            path.unlink()


def _short(value: Any) -> str:
    text = (
        ", ".join(map(str, value.values())) if isinstance(value, dict) else str(value)
    )
    return text if len(text) <= 48 else f"{text[:12]}..."


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Makes the directory and keeps other runs, and workers they left, out of it."""
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory} is a file; expected a folder for the store")
    directory.mkdir(parents=True, exist_ok=True)
    handle = os.open(directory, os.O_RDONLY)
    try:
        deadline = time.monotonic() + 5  # workers of a killed run leave within seconds
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"{directory}: another run is writing to it; wait for its end"
                    ) from error
                time.sleep(0.1)
        fcntl.flock(handle, fcntl.LOCK_SH)  # the workers hold it too
        yield
    finally:
        os.close(handle)
