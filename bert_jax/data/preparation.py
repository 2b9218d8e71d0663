"""Text to a token store: sources are cut into shards, which processes write in parallel.

A shard is a byte range of the concatenated sources. The content of a store depends on the
text and the number of shards, not on the number of processes or on interruptions. A
resumed preparation keeps the finished shards.
"""

import bisect
import contextlib
import dataclasses
import hashlib
import importlib.metadata
import itertools
import logging
import math
import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data import corpus, store
from bert_jax.data.corpus_formats import Reading
from bert_jax.data.segmenter import encode_words, open_segmenter
from bert_jax.data.sentences import RULES
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError, counted, listed
from bert_jax.files import check_output, is_remote, locked, read_json, write_json
from bert_jax.progress import Progress
from bert_jax.settings import differences

_ONE_DOCUMENT = (
    "the text is one document, but evaluation and next sentence prediction need several; "
    "if each line is a sentence, set input_format=lines; if the text is not English, set "
    "language"
)
logger = logging.getLogger(__name__)

# Bytes of text in a shard, and number of shards: a small text has enough shards for all
# workers, and a large text has few files to open, each with an index that fits into memory.
_SMALL_SHARD, _MANY_SHARDS, _LARGE_SHARD = 4 << 20, 256, 512 << 20
# Default maximum of processes. Each needs up to 180 MiB, mostly for its cache of words.
_MOST_WORKERS = 4

Part = tuple[corpus.Source, int, int]  # bytes [start, stop) of a source
Missing = dict[int, list[Part]]  # the parts of each shard that is not yet written


class Report(NamedTuple):
    """Result of :func:`prepare`.

    info: description of the whole store. counts: numbers of this call: "text_bytes"
    (estimated for compressed files), "tokens", "unknown", and the numbers in
    Reading.dropped. Empty if the text was already prepared.
    """

    info: store.StoreInfo
    counts: Counter[str]

    def __str__(self) -> str:
        info, counts = self.info, self.counts
        nouns = ("document", "sentence", "token")
        total = ", ".join(counted(getattr(info, f"{noun}s"), noun) for noun in nouns)
        if not counts:
            return f"{total}; was already prepared"
        unknown = counts["unknown"] / max(1, counts["tokens"])
        return f"{total}; {unknown:.2%} unknown tokens; {corpus.left_out(counts)}"


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
    run: Callable[["Writer", Missing], Generator[Counter[str]]] | None = None,
) -> Report:
    """Reads, splits and tokenises ``inputs`` into a store in ``directory``.

    inputs: see corpus.read_documents. format, text_field, language: see
    corpus_formats.Reading. workers, shards: numbers of processes and shards; 0: automatic.
    segmenter: finds words in text without spaces, see open_segmenter. run: function that
    writes the missing shards and yields their counts, instead of processes on this machine.
    Resumes an interrupted preparation. Raises UserError if ``directory`` contains text
    that was prepared from other sources, with other settings or another vocabulary.
    """
    if shards < 0:
        raise UserError(f"shards={shards}, expected at least 0")
    check_output(directory, *inputs)
    sources = corpus.find_sources(inputs, Reading(format, text_field, language))
    text = _identity(sources)
    shards = shards or shard_count(text["bytes"])
    settings = {
        "inputs": list(inputs),
        "text": text,
        "format": format,
        "text_field": text_field,
        "language": language,
        "segmenter": f"sentencex {importlib.metadata.version('sentencex')}, {RULES}",
        "shards": shards,
    }
    if segmenter:
        open_segmenter(segmenter)  # raises UserError if it is not installed
        settings["words"] = segmenter
    vocabulary = tokenizer.fingerprint()
    identity = {"vocabulary_fingerprint": vocabulary, "settings": settings}
    counts: Counter[str] = Counter()
    with locked(directory):
        info = _find_same(directory, identity, tokenizer)
        if info is None:
            for path in directory.rglob(".*.tmp"):  # files of a killed process
                path.unlink()
            plan = plan_shards(sources, shards)
            missing = _missing_shards(directory, plan)
            if len(missing) == len(plan):  # nothing of the last call can be used
                keep = store.UNFINISHED, tokenizer.file_name
                store.remove_files(directory, keep)
            write_json(directory / store.UNFINISHED, identity)
            tokenizer.save(directory)
            write = Writer(tokenizer, directory, settings)
            written = run(write, missing) if run else write.all(missing, workers)
            counts = _counted(written, missing)
            info = store.finish_store(directory, tokenizer.vocab_size, identity)
        (directory / store.UNFINISHED).unlink(missing_ok=True)
    if info.documents == 1:
        logger.warning(_ONE_DOCUMENT)
    return Report(info, counts)


def _missing_shards(directory: Path, plan: list[list[Part]]) -> Missing:
    """The shards of a plan that no process has finished, and their parts."""
    return {
        shard: parts
        for shard, parts in enumerate(plan)
        if not store.part_path(directory, shard).exists()
    }


def _counted(written: Generator[Counter[str]], missing: Missing) -> Counter[str]:
    """Writes the missing shards, shows the progress, and returns the sum of the counts."""
    counts: Counter[str] = Counter()
    size = _text_bytes(itertools.chain(*missing.values()))
    progress = Progress("preparing", total=size, unit="B", unit_scale=True)
    with contextlib.closing(written), progress:
        for count in written:
            counts.update(count)
            progress.update(count["text_bytes"])
    return counts


def _identity(sources: Sequence[corpus.Source]) -> dict[str, Any]:
    """The number, the size and a hash of the text of all sources."""
    total = 0
    text = hashlib.sha256()
    for source in sources:
        total += source.size
        line = f"{source.size} {source.format} {corpus.fingerprint(source)}\n"
        text.update(line.encode())
    fingerprint = text.hexdigest()[:16]
    return {"files": len(sources), "bytes": total, "fingerprint": fingerprint}


def check_sources(
    directory: Path, inputs: Sequence[str], text: dict[str, Any], language: str
) -> None:
    """Raises UserError if files changed after the text in ``directory`` was prepared.

    Reads only files that are newer than the text. The files may have been deleted. Only
    local files are compared. text: the setting "text" of the store.
    """
    if any(is_remote(name) or name.startswith(corpus.TFDS) for name in inputs):
        return
    try:
        sources = corpus.list_sources(inputs, Reading(language=language))
    except UserError:  # a file was deleted
        return
    paths = [Path(source.name) for source in sources]
    if not all(path.is_file() for path in paths):  # the documentation inside Python
        return
    sizes = len(sources), sum(source.size for source in sources)
    is_other = sizes != (text["files"], text["bytes"])
    prepared = (directory / "index.json").stat().st_mtime
    if not is_other and max(path.stat().st_mtime for path in paths) > prepared:
        is_other = _identity(sources) != text
    if is_other:
        raise UserError(
            f"{listed(list(inputs))} changed after {directory} was prepared; put the files "
            "back, use another workdir, or delete this folder"
        )


def shard_count(size: int) -> int:
    """The default number of shards for ``size`` bytes of text."""
    small = min(_MANY_SHARDS, math.ceil(size / _SMALL_SHARD))
    return max(1, small, math.ceil(size / _LARGE_SHARD))


def plan_shards(sources: Sequence[corpus.Source], shards: int) -> list[list[Part]]:
    """The parts of each shard: byte ranges of the concatenated sources, of similar size.

    A source that is not splittable belongs to the shard in which it starts.
    """
    total = sum(source.size for source in sources)
    bounds = [total * shard // shards for shard in range(shards + 1)]
    plan: list[list[Part]] = [[] for _ in range(shards)]
    first = 0
    for source in sources:
        end = first + source.size
        cuts = {first, end}
        if source.splittable:
            cuts.update(bound for bound in bounds if first < bound < end)
        for start, stop in itertools.pairwise(sorted(cuts)):
            shard = bisect.bisect_right(bounds, start) - 1
            plan[shard].append((source, start - first, stop - first))
        first = end
    return plan


def _text_bytes(parts: Iterable[Part]) -> int:
    return sum(stop - start for _, start, stop in parts)


@dataclasses.dataclass(frozen=True)
class Writer:
    """Writes shards of a store in ``directory``. settings: see index.json."""

    tokenizer: Tokenizer
    directory: Path
    settings: dict[str, Any]

    def __call__(self, shard: int, parts: Sequence[Part]) -> Counter[str]:
        """Reads, splits and tokenises the parts of one shard; see Report.counts."""
        tokenizer, settings = self.tokenizer, self.settings
        field, language = settings["text_field"], settings["language"]
        reading = Reading(text_field=field, language=language)
        counts = Counter(text_bytes=_text_bytes(parts))
        segmenter = settings.get("words")
        segment = segmenter and open_segmenter(segmenter)
        dtype, bit = store.stored_type(tokenizer.vocab_size, words=bool(segmenter))
        documents = (corpus.read_source(*part, reading) for part in parts)
        place = self.directory, shard, settings["shards"]
        with store.shard_writer(*place, dtype) as write:
            for _, sentences in itertools.chain.from_iterable(documents):
                document = tokenizer.spaced(sentences)
                if segment:
                    words = encode_words(document, tokenizer, segment)
                    tokens = [ids | bit * continues for ids, continues in words]
                else:
                    tokens = tokenizer.encode_batch(document)
                write(tokens)
                ids = np.concatenate(tokens)
                if bit:  # the mark of a continued word
                    ids = ids & ~bit
                counts["tokens"] += len(ids)
                counts["unknown"] += int((ids == tokenizer.unk_id).sum())
        counts.update(reading.dropped)
        return counts

    def all(self, missing: Missing, workers: int) -> Iterator[Counter[str]]:
        """Writes shards in ``workers`` processes, or in this process for one worker.

        The first error, or closing this iterator, stops all processes.
        """
        default = min(_MOST_WORKERS, os.cpu_count() or 1)
        workers = min(workers or default, len(missing))
        if workers <= 1:
            yield from itertools.starmap(self, missing.items())
            return
        # Spawned, not forked, because this process may have threads.
        context = multiprocessing.get_context("spawn")
        # The workers exit when this process closes its end of the pipe or is killed.
        parent, end = context.Pipe(duplex=False)
        with ProcessPoolExecutor(
            workers, context, initializer=_start_worker, initargs=(self, parent)
        ) as executor:
            try:
                futures = [executor.submit(_work, *item) for item in missing.items()]
                for future in as_completed(futures):
                    yield future.result()
            except BrokenProcessPool as error:
                raise UserError(
                    "a worker process was killed, perhaps because memory was full; run "
                    "the same command again with fewer workers"
                ) from error
            except BaseException:
                end.close()
                raise


_write: Writer  # set in each worker process, whose tokenizer caches words


def _start_worker(write: Writer, parent: Connection) -> None:
    global _write
    _write = write
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()


def _exit_with(parent: Connection) -> None:
    parent.poll(None)
    os._exit(1)


def _work(shard: int, parts: list[Part]) -> Counter[str]:
    return _write(shard, parts)


def _find_same(
    directory: Path, identity: dict[str, Any], tokenizer: Tokenizer
) -> store.StoreInfo | None:
    """The finished store in ``directory``, or None.

    A finished store of an older version keeps its token ids. Raises UserError if the folder
    contains other text, finished or not, or other files.
    """
    info = None
    if (directory / "index.json").exists():
        info = store.read_info(directory)
        old = dict(vars(info))
        if tokenizer.has_fingerprint(info.vocabulary_fingerprint):
            old["vocabulary_fingerprint"] = identity["vocabulary_fingerprint"]
    elif any(directory.glob("index/part-*.npz")):
        old = read_json(directory / store.UNFINISHED, "settings")
    else:
        _check_new(directory)
        return None
    old = {name: old.get(name) for name in identity}
    differing = []
    for name, was, now in differences(old, identity):
        if not name.startswith("settings.inputs"):  # the text may have another path
            differing.append(f"{name} was {str(was)[:48]}, now {str(now)[:48]}")
    if differing:
        raise UserError(
            f"{directory} contains text prepared with other settings "
            f"({'; '.join(differing)}); use another folder, or delete this one"
        )
    return info


def _check_new(directory: Path) -> None:
    """Raises UserError for a folder with other files, such as a model and a vocabulary."""
    if (directory / store.UNFINISHED).exists():
        return
    names = [path.name for path in directory.iterdir() if path.name[0] != "."]
    if names:
        actual = f"{directory} is not empty: it contains {min(names)}"
        raise UserError(f"{actual}; expected the name of a new folder")
