"""Text preparation on many machines: the functions of ``prepare`` in Apache Beam.

An element of the pipeline is a shard, given by its byte ranges of text. A worker reads,
splits and tokenises them, and writes the shard and its part of the index. The machine that
starts the pipeline only lists the text first and joins the index afterwards. The result is
byte for byte the store that ``prepare`` writes.
"""

import dataclasses
import functools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_jax.data.preparation import Missing, Part, Report, Writer, prepare
from bert_jax.data.store import UNFINISHED, part_path, shard_path
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError, naming
from bert_jax.files import is_remote, open_remote


def prepare_with_beam(
    inputs: Sequence[str],
    tokenizer: Tokenizer,
    output: str,
    options: Sequence[str],
    **settings: Any,
) -> Report:
    """Does the work of ``prepare`` in a pipeline. Inputs and output may be URLs.

    options: options of Beam, such as --runner=DataflowRunner. settings: other arguments of
    prepare. Repeat the call to resume an interrupted preparation.
    """
    try:
        import apache_beam  # noqa: F401
    except ImportError as error:
        raise UserError(
            "beam needs pip install -e '.[beam]' in the folder of bert_jax"
        ) from error
    run = functools.partial(_run, options=list(options), output=output)
    if not is_remote(output):
        return prepare(inputs, tokenizer, Path(output), run=run, **settings)
    remote = open_remote(output)
    with naming(output):
        _check_new(remote)
    with tempfile.TemporaryDirectory() as folder, naming(output):
        local = Path(folder) / "store"
        _copy_files(remote, local, UNFINISHED, "index.json", "index/part-*")
        try:
            report = prepare(inputs, tokenizer, local, run=run, **settings)
        except UserError:
            if not (local / UNFINISHED).exists():  # there was no text
                _delete_parts(remote)
            raise
        _copy_files(local, remote, "*.*", "index/*.npy")
        _delete_parts(remote)
    return report


def _check_new(remote: Any) -> None:
    """Raises UserError if a folder in a store contains anything but prepared text."""
    names: list[str] = []
    if remote.exists():
        names = [
            path.name for path in remote.iterdir() if not path.name.startswith(".")
        ]
    if names and not {UNFINISHED, "index", "index.json"} & {*names}:
        expected = "expected the name of a new folder"
        raise UserError(f"it is not empty, but contains {min(names)}; {expected}")


def _delete_parts(remote: Any) -> None:
    """Deletes the files from which an interrupted preparation resumes."""
    for path in (remote / UNFINISHED, *remote.glob("index/part-*")):
        path.unlink(missing_ok=True)


def _copy_files(source: Any, target: Any, *patterns: str) -> None:
    """Copies files to another folder. index.json, which marks a finished store, is last."""
    from etils import epath

    source, target = epath.Path(source), epath.Path(target)
    paths = [path for pattern in patterns for path in source.glob(pattern)]
    for path in sorted(paths, key=lambda path: path.name == "index.json"):
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        path.copy(place, overwrite=True)


def _run(
    writer: Writer, missing: Missing, *, options: list[str], output: str
) -> Iterator[Counter[str]]:
    """Writes the missing shards in a pipeline and yields the counts of all shards."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    write: Callable = writer
    if is_remote(output):
        _copy_files(writer.directory, output, UNFINISHED)
        write = functools.partial(_write_remote, writer, output)
    # Without the reshuffle Beam fuses all shards into the work of one worker.
    pipeline = beam.Pipeline(options=PipelineOptions(options))
    _ = (
        pipeline
        | "shards" >> beam.Create(list(missing.items()))
        | "spread" >> beam.Reshuffle()
        | "write" >> beam.MapTuple(functools.partial(_count, write))
    )
    result = pipeline.run()
    result.wait_until_finish()
    if is_remote(output):
        _copy_files(output, writer.directory, "index/part-*")
    counters = result.metrics().query()["counters"]
    yield Counter({c.key.metric.name: c.result for c in counters})


def _count(write: Callable, shard: int, parts: list[Part]) -> None:
    """Writes a shard and adds its counts to the counters of the pipeline."""
    from apache_beam.metrics import Metrics

    for name, value in write(shard, parts).items():
        Metrics.counter("bert_jax", name).inc(value)


def _write_remote(
    writer: Writer, output: str, shard: int, parts: list[Part]
) -> Counter[str]:
    """Writes a shard on this machine and copies it to the store, its index part last."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        counts = dataclasses.replace(writer, directory=directory)(shard, parts)
        for path in (
            shard_path(directory, shard, writer.settings["shards"]),
            part_path(directory, shard),
        ):
            _copy_files(directory, output, str(path.relative_to(directory)))
    return counts
