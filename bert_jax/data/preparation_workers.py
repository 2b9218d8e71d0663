"""The processes that write a store's shards, and what they tell each other.

preparation.py decides what each shard holds; here the shards are written, in this
process or in several.
"""

import fcntl
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from bert_jax.data.corpus import Source, read_source
from bert_jax.data.store import ShardWriter, token_dtype
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError

# A worker takes up to 180 MiB (most of it words that the tokenizer remembers); this many
# stay below 1 GiB together, more come only where --workers asks for them.
_MOST_WORKERS = 4
_POLL = 0.2  # seconds between two looks at the workers


class Part(NamedTuple):
    """A source's byte range [start, stop); stop None is the source's end."""

    source: Source
    start: int
    stop: int | None


class ShardCount(NamedTuple):
    """What one run wrote of a shard."""

    documents: int = 0
    tokens: int = 0
    unknown: int = 0


def part_size(part: Part) -> int:
    """Bytes of text, estimated where the source's size is."""
    stop = part.source.size if part.stop is None else part.stop
    return stop - part.start


def default_workers() -> int:
    """Processes where nobody says how many."""
    if hasattr(os, "sched_getaffinity"):  # Linux: what a container may use
        return min(_MOST_WORKERS, len(os.sched_getaffinity(0)))
    return min(_MOST_WORKERS, os.cpu_count() or 1)


def progress_bar(total: int, done: int) -> tqdm:
    """A bar over ``total`` bytes of text, ``done`` of them by earlier runs."""
    return tqdm(
        total=total,
        initial=done,
        unit="B",
        unit_scale=True,
        desc="preparing",
        mininterval=0.5 if sys.stderr.isatty() else 30,
    )


def _advance(progress: tqdm, documents: int, size: int) -> None:
    elapsed = max(progress.format_dict["elapsed"], 1e-3)
    progress.set_postfix_str(f"{documents / elapsed:,.0f} documents/s", refresh=False)
    progress.update(size - (progress.n - progress.initial))


ReportProgress = Callable[[int, int], None]  # documents and bytes since the start


def write_shard(
    shard: int,
    parts: Sequence[Part],
    report: ReportProgress,
    *,
    tokenizer: Tokenizer,
    directory: Path,
    shards: int,
    text_field: str,
) -> ShardCount:
    """Writes one shard; tells ``report`` how far it is after each document."""
    documents = tokens = unknown = done = 0
    dtype = token_dtype(tokenizer.vocab_size)
    with ShardWriter(directory, shard, shards, dtype) as writer:
        for part in parts:
            for document in read_source(
                part.source, part.start, part.stop, text_field=text_field
            ):
                sentences = tokenizer.encode_batch(document.sentences)
                writer.write(sentences)
                ids = np.concatenate(sentences)
                documents += 1
                tokens += len(ids)
                unknown += int(np.count_nonzero(ids == tokenizer.unk_id))
                within = min(document.offset - part.start, part_size(part))
                report(documents, done + within)
            done += part_size(part)
    report(documents, done)
    return ShardCount(documents, tokens, unknown)


def run_here(
    work: Callable[..., ShardCount],
    missing: dict[int, list[Part]],
    progress: tqdm,
    workers: int,
) -> list[ShardCount]:
    """Writes the missing shards one after another; ``workers`` is 1 or 0."""
    counts: list[ShardCount] = []
    documents = size = 0
    for shard, parts in missing.items():

        def report(more: int, bytes_: int) -> None:
            _advance(progress, documents + more, size + bytes_)  # noqa: B023

        counts.append(work(shard, parts, report))
        documents += counts[-1].documents
        size += sum(map(part_size, parts))
    return counts


def run_in_processes(
    work: Callable[..., ShardCount],
    missing: dict[int, list[Part]],
    progress: tqdm,
    workers: int,
) -> list[ShardCount]:
    """Writes the missing shards in ``workers`` processes; the first error ends all.

    ``work`` is write_shard with everything but shard, parts and report.
    """
    # Spawned, not forked: the parent may have threads (TensorBoard, JAX, a notebook).
    context = multiprocessing.get_context("spawn")
    # Documents and bytes of each shard, and whether to stop: written by one process
    # each and only ever shown, so without a lock.
    shared = context.RawArray("q", 2 * len(missing) + 1)
    directory = work.keywords["directory"]
    with ProcessPoolExecutor(
        workers, context, initializer=_start_worker, initargs=(work, shared, directory)
    ) as executor:
        try:
            pending = futures = [
                executor.submit(_work, shard, parts, slot)
                for slot, (shard, parts) in enumerate(missing.items())
            ]
            while pending:
                done, pending = wait(pending, _POLL, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
                _advance(progress, sum(shared[:-1:2]), sum(shared[1::2]))
            return [future.result() for future in futures]
        except BrokenProcessPool as error:
            raise UserError(
                "a worker process died, perhaps for want of memory; the same command "
                f"goes on from what is in {directory}: try it with fewer --workers"
            ) from error
        finally:
            shared[-1] = 1
            executor.shutdown(wait=True, cancel_futures=True)


_worker: tuple[Callable[..., ShardCount], Any] | None = None


def _start_worker(
    work: Callable[..., ShardCount], shared: Any, directory: Path
) -> None:
    global _worker
    _worker = work, shared
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent tells when to stop
    fcntl.flock(os.open(directory, os.O_RDONLY), fcntl.LOCK_SH)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def _work(shard: int, parts: list[Part], slot: int) -> ShardCount:
    work, shared = _worker

    def report(documents: int, size: int) -> None:
        shared[2 * slot], shared[2 * slot + 1] = documents, size
        if shared[-1]:
            raise KeyboardInterrupt

    return work(shard, parts, report)
