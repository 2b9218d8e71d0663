"""Checkpoints with Orbax, and the only file that imports it.

A checkpoint is the train state and the config. The state has the RNG key and the number
of updates, which is the place in the data too: nothing in it depends on the number of
processes, so any number of them can go on.

Beside each checkpoint stand the checksums of its arrays, which are computed where the
arrays lie and compared when they are back: what storage does to a file in between, such
as a flipped bit or a lost part that would read as zeros, is damage and never trained on.
"""

import contextlib
import functools
import json
import logging
import math
import os
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from orbax.checkpoint.experimental import v1 as ocp

from bert_jax.errors import StalledError, UserError
from bert_jax.files import is_remote
from bert_jax.parallel.distributed import is_leader, wait_for_all
from bert_jax.parallel.sharding import path_name


class _DamagedError(Exception):
    """A checkpoint that is not what was saved."""


def _is_news(record: logging.LogRecord) -> bool:
    """False for what Orbax logs: where something fails it is raised too, and told here.

    Of hundreds of arrays that cannot be read asyncio logs each, with its traceback.
    """
    about = f"{record.pathname} {record.getMessage()}"
    words = ("orbax", "tensorstore")
    return not any(word in about for word in words)


for _name in ("absl", "asyncio"):
    logging.getLogger(_name).addFilter(_is_news)


# Of an array that several devices have alike each writes a part, if the part has so many
# bytes. Orbax slices such parts on the devices, and each slice of a small array would be a
# program to compile: 3.4 s before the first save of a small model on eight devices.
_LEAST_PART = 1 << 15
# Of a checkpoint of which no config tells the shapes. Zeros pack to a thirty-thousandth.
_MOST_UNPACKED = 1000


class CheckpointStore:
    """The checkpoints of one run, newest ``keep`` kept, written in the background.

    Of several processes all call each method.
    """

    def __init__(self, directory: os.PathLike, keep: int):
        """directory: absolute, or a URL. Raises UserError where it cannot be made."""
        self._directory, self._keep = epath.Path(directory), keep
        self._checkpointer: ocp.training.Checkpointer | None = None
        self._pending: Any = None
        self._saved: int | None = None
        if is_leader():
            self._check_writable()
            for path in _numbered(self._directory):
                if not any(path.iterdir()):
                    path.rmdir()
        wait_for_all("checkpoints")

    def _check_writable(self) -> None:
        """Raises UserError where no folder can be made, which Orbax tries for minutes."""
        probe = self._directory / f".{os.getpid()}.tmp"
        with _writing(self._directory):
            probe.mkdir(parents=True, exist_ok=True)
            if probe.exists():  # a bucket has no empty folders
                probe.rmdir()

    def save(self, step: int, state: Any, notes: dict[str, Any]) -> None:
        """Starts an asynchronous save; waits for the one before it, not for this one.

        notes: JSON-able, kept beside the state.

        The arrays are copied before this returns, so the step may donate them. Raises
        UserError where the save before could not be written.
        """
        if step == self._saved:
            return
        seal = _sealed(state, notes)
        self._wait()
        if is_leader():
            self._check_writable()
        with _writing(self._directory):
            self._pending = self._open().save_checkpointables_async(
                step, {"state": state}, custom_metadata=seal
            )
        self._saved = step

    def _wait(self) -> None:
        """Ends the save under way; what is not asked for its result keeps three files open
        and a thread, 1,024 files after 300 saves.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            with _writing(self._directory):
                pending.result()

    def _open(self) -> ocp.training.Checkpointer:
        """What writes, and deletes those that are too many."""
        if self._checkpointer is None:
            context = ocp.Context()
            context.array.saving.min_slice_bytes_for_replica_parallel = _LEAST_PART
            policies = ocp.training.save_decision_policies
            self._checkpointer = ocp.training.Checkpointer(
                self._directory,
                # The loop decides when; without a policy of its own Orbax saves every
                # step and keeps everything.
                save_decision_policy=policies.FixedIntervalPolicy(1),
                preservation_policy=ocp.training.preservation_policies.LatestN(
                    self._keep
                ),
                cleanup_tmp_directories=True,
                context=context,
            )
        return self._checkpointer

    def newest(self) -> int:
        """The step of the newest checkpoint, damaged or not; 0 where there is none."""
        return max((int(path.name) for path in _whole_ones(self._directory)), default=0)

    def restore(
        self, abstract: Any, log: Callable[[str], None]
    ) -> tuple[Any, dict[str, Any]] | None:
        """The newest whole state, in ``abstract``'s shardings, and the notes beside it.

        None where there is no checkpoint. A damaged one is set aside, under a name that
        ends in .damaged, where there is a whole one before it; ``log`` takes the line that
        says so. Raises UserError where there is none, and where the checkpoint is that of
        another config, with the first array that is not as expected.
        """
        read = functools.partial(self._read, abstract)
        self._saved, found = _newest_whole(self._directory, read, log)
        if found is not None and is_leader():
            kept = 1
            for path in _whole_ones(self._directory):
                if int(path.name) > self._saved:
                    aside = path.with_name(f"{path.name}.damaged")
                    if aside.exists():
                        aside.rmtree()
                    path.rename(aside)
                elif int(path.name) < self._saved:
                    # A kill while one was deleted, or just before, leaves such.
                    if kept == self._keep or not _opens(path):
                        path.rmtree()
                    else:
                        kept += 1
        wait_for_all("restored")
        return found

    def _read(self, abstract: Any, path: epath.Path) -> tuple[Any, dict[str, Any]]:
        arrays, notes = _opened(path)
        if notes is None:  # which is what Orbax makes of metadata that is damaged
            raise _DamagedError("its metadata is lost")
        shapes = {name: tuple(shape) for name, (shape, _) in arrays.items()}
        shapes.pop("key", None)
        wrong = shape_differences(shapes, array_shapes(abstract))
        if wrong:
            raise UserError(
                f"{path} does not fit the config: {wrong[0]}; use the config of the run, "
                "or another --workdir"
            )
        state = ocp.load_checkpointables(path, {"state": abstract})["state"]
        _compare(arrays, state)
        return state, notes

    def close(self) -> None:
        """Waits for the save under way; raises UserError where it cannot be written."""
        checkpointer, self._checkpointer = self._checkpointer, None
        try:
            self._wait()
        finally:
            if checkpointer is not None:
                with _writing(self._directory):
                    checkpointer.close()


def _is_whole(path: epath.Path) -> bool:
    """False for what a kill has left of a save in a bucket, where folders have no names
    that change: Orbax writes a file last.
    """
    bucket = os.fspath(path).startswith("gs://")
    return not bucket or (path / "commit_success.txt").exists()


def _opens(path: epath.Path) -> bool:
    with contextlib.suppress(Exception):
        _opened(path)
        return True
    return False


def _whole_ones(directory: epath.Path) -> list[epath.Path]:
    """The checkpoints, newest first, damaged ones too; an empty folder is none."""
    found = [
        path for path in _numbered(directory) if _is_whole(path) and any(path.iterdir())
    ]
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def _numbered(directory: epath.Path) -> list[epath.Path]:
    """Its folders that are called as checkpoints; a bucket has no empty folders."""
    if not directory.exists():
        return []
    return [path for path in directory.iterdir() if path.name.isdecimal()]


def _newest_whole(
    directory: epath.Path,
    read: Callable[[epath.Path], Any],
    log: Callable[[str], None],
) -> tuple[int | None, Any]:
    """The step of the newest checkpoint that can be read, and what ``read`` makes of it.

    (None, None) where there is no checkpoint.
    """
    _hush()
    damaged: list[str] = []
    for path in _whole_ones(directory):
        try:
            found = read(path)
        except UserError:
            raise
        except Exception as error:  # of Orbax, of TensorStore, of Python's JSON
            line = f"{path} is damaged: {_line(error)}"
            if jax.process_count() > 1 and not isinstance(error, _DamagedError):
                # The others may have read their parts, and wait for this process in Orbax.
                raise UserError(
                    f"{line}; move it away, and the run goes on from the one before"
                ) from error
            damaged.append(line)
            continue
        for line in damaged:
            log(f"{line}; going on with checkpoint {path.name}")
        return int(path.name), found
    if damaged:
        raise UserError(
            f"{damaged[0]}; none of {len(damaged)} checkpoints is whole: put a copy in its "
            "place, or delete the folder"
        )
    return None, None


@functools.cache
def _hush() -> None:
    """Keeps quiet about the reads that Orbax gives up where one of them fails.

    Each ends later, with a traceback of its own.
    """
    before = sys.unraisablehook

    def hook(what: Any) -> None:
        code = getattr(what.object, "cr_code", None)
        about = f"{what.exc_value} {code and code.co_filename}"
        words = ("Event loop is closed", "was never awaited", "orbax")
        if not any(word in about for word in words):
            before(what)

    sys.unraisablehook = hook
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)


def read_params(directory: Path) -> dict[str, Any]:
    """The parameters of the newest whole checkpoint in ``directory``, as numpy arrays.

    The optimizer's state is not read, so no config of a run is needed. A damaged
    checkpoint is logged. Raises UserError where there is no whole one.
    """
    found, folder = None, epath.Path(_absolute(directory))
    if folder.is_dir():
        warn = logging.getLogger(__name__).warning
        _, found = _newest_whole(folder, _read_params, warn)
    if found is None:
        raise UserError(
            f"{directory} holds no whole checkpoint; wait for the run's first one"
        )
    return found


def _read_params(path: epath.Path) -> dict[str, Any]:
    arrays, _ = _opened(path)
    metadata = ocp.checkpointables_metadata(path).metadata["state"]["params"]
    leaves = jax.tree.leaves(metadata)
    size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
    if not is_remote(path):
        files = [file for file in Path(path).rglob("*") if file.is_file()]
        if size > _MOST_UNPACKED * sum(file.stat().st_size for file in files):
            raise _DamagedError(
                f"it unpacks to {size:,} bytes, over {_MOST_UNPACKED:,} times its size"
            )
    on_host = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), metadata)
    context = ocp.Context()
    context.pytree.loading.partial_load = True
    with context:
        loaded = ocp.load_checkpointables(path, {"state": {"params": on_host}})
    _compare(arrays, loaded["state"])
    return loaded["state"]["params"]


def write_params(directory: Path, params: Any) -> None:
    """Writes checkpoint 0 of ``directory`` with nothing but parameters."""
    path, state = _absolute(directory) / "0", {"params": params}
    seal = _sealed(state, {})
    with _writing(directory):
        ocp.save_checkpointables(path, {"state": state}, custom_metadata=seal)


# Of each array by its path: shape and checksum; None in a checkpoint that is older than
# checksums.
_Arrays = dict[str, tuple[list[int], int | None]]


def _sealed(state: Any, notes: dict[str, Any]) -> dict[str, Any]:
    """What is saved beside a state: notes and checksums, and the checksum of both."""
    shapes = array_shapes(state)
    arrays = {
        name: [shapes.get(name, ()), _number(x)] for name, x in _by_path(state).items()
    }
    text = json.dumps({"notes": notes, "arrays": arrays})
    return {"content": text, "checksum": zlib.crc32(text.encode())}


def _opened(path: epath.Path) -> tuple[_Arrays, dict[str, Any] | None]:
    """What :func:`_sealed` made: arrays and notes; no notes where Orbax finds none."""
    saved = ocp.checkpointables_metadata(path)
    notes, metadata = dict(saved.custom_metadata or {}), saved.metadata["state"]
    if notes.keys() <= {"config", "progress"}:  # of an older version
        shapes = array_shapes(metadata)
        arrays = {name: (list(shape), None) for name, shape in shapes.items()}
        return arrays, notes or None
    if zlib.crc32(notes.get("content", "").encode()) != notes.get("checksum"):
        raise _DamagedError("its metadata is not what was saved")
    content = json.loads(notes["content"])
    return content["arrays"], content["notes"]


def _compare(arrays: _Arrays, state: Any) -> None:
    """Raises _DamagedError where an array is not what was saved."""
    for name, x in _by_path(state).items():
        _, saved = arrays.get(name, (None, None))
        if saved is not None and _number(x) != saved:
            raise _DamagedError(f"{name} is not what was saved")


def _number(x: jax.Array) -> int:
    """The checksum, on the host.

    One after the other: programs that join devices, started all at once, wait for each
    other's threads on a CPU, for ten minutes.
    """
    return int(_checksum(x))


@jax.jit
def _checksum(x: jax.Array) -> jax.Array:
    """A uint32 of an array's bits and their places, the same for every sharding.

    The sum of all words times odd numbers that depend on the place: no change of a single
    word leaves it as it was.
    """
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    width = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
    words = jax.lax.bitcast_convert_type(x, width).astype(jnp.uint32)
    place = jnp.zeros(words.shape, jnp.uint32)
    for axis, size in enumerate(words.shape):
        index = jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
        place = place * jnp.uint32(size) + index
    place *= jnp.uint32(0x9E3779B1)
    return jnp.sum(words * (place ^ (place >> 15) | 1), dtype=jnp.uint32)


def _by_path(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {path_name(path): leaf for path, leaf in leaves}


def _absolute(directory: Path) -> Path:
    """Orbax takes absolute paths and URLs; a URL's own ``absolute`` is a wrong path."""
    return directory if is_remote(directory) else directory.absolute()


def array_shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """Shape of each array by its path; the RNG key, stored as its words, left out."""
    return {name: tuple(x.shape) for name, x in _by_path(tree).items() if name != "key"}


def shape_differences(
    found: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]]
) -> list[str]:
    """What is not as expected, such as "a/bias is (3,), expected (2,)"."""
    return [
        f"{name} is {found.get(name, 'not there')}, expected {expected.get(name, 'none')}"
        for name in sorted(found.keys() | expected.keys())
        if found.get(name) != expected.get(name)
    ]


@contextlib.contextmanager
def _writing(directory: os.PathLike) -> Iterator[None]:
    """Turns what Orbax and TensorStore raise when a write fails into one line.

    It comes from the background: at the next save, or at the end.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise StalledError(
            f"a checkpoint in {os.fspath(directory)} could not be written "
            f"({_line(error)}); put that right and run the same command again: it goes on "
            "from the last whole one"
        ) from error


def _line(error: Exception) -> str:
    """What an exception says, in one line that is not too long."""
    text = " ".join(str(error).split())
    if reason := re.search(r"Failed to write.*?: ([^\[]+) \[os_error_code", text):
        return reason[1]  # TensorStore's
    if isinstance(error, _DamagedError):
        return text
    return f"{type(error).__name__}: {text}"[:200]
