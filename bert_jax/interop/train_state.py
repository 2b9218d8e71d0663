"""Checkpoints of a run. This is the only file that imports Orbax.

A checkpoint contains a tree of arrays (parameters, optimizer, random key, step) and notes
(the config and the progress of the run). Any number of processes and devices can load it.
The notes contain a checksum of each array. The devices compute it before a save and again
after a load, because Orbax loads 39 of 100 flipped bits of array data without an error.

This file is in interop because ``load`` reads the parameters of a run, and training
imports interop.
"""

import contextlib
import functools
import json
import logging
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from bert_jax.errors import StalledError, UserError
from bert_jax.files import STORE_LIBRARIES, is_remote
from bert_jax.parallel.processes import is_leader, lost_peer, on_leader
from bert_jax.parallel.sharding import array_shapes, arrays_by_path, shape_differences
from bert_jax.progress import Log, unwatched

if not logging.root.handlers and logging.lastResort is not None:
    # Orbax logs while it is imported and in each save, and absl then gives the root logger
    # a handler that keeps the current stderr, even if it is redirected only for a moment.
    # Python's handler of last resort looks up sys.stderr for each record.
    logging.root.addHandler(logging.lastResort)

from orbax.checkpoint import v1 as ocp

# Orbax splits a replicated array over the devices if each part has at least this many
# bytes. Each split of a small array would compile a program of its own.
_SMALLEST_PART = 1 << 15
# Arrays that settings of a run add to its state, by the start of their paths.
_OPTIONAL = ("sums/", "average/")
_UNFINISHED = ".orbax-checkpoint-tmp"  # part of the name of an unfinished save
# Status codes of XLA and TensorStore if memory is full or a store fails.
_FAULT = re.compile(
    r"\b(RESOURCE_EXHAUSTED|UNAVAILABLE|DEADLINE_EXCEEDED|CANCELLED|ABORTED|"
    r"PERMISSION_DENIED|UNAUTHENTICATED)\b"
)


def _keep_record(record: logging.LogRecord) -> bool:
    """False for Orbax's record of a failed read or write, which it also raises."""
    text = f"{record.pathname} {record.getMessage()} {record.exc_info}"
    return "orbax" not in text and "tensorstore" not in text


for _name in ("absl", "asyncio"):
    logging.getLogger(_name).addFilter(_keep_record)


class _DamagedError(Exception):
    """A checkpoint differs from what was saved."""


class CheckpointStore:
    """The checkpoints of one run, saved in the background.

    It keeps the newest ``keep`` checkpoints and, unless ``keep_every`` is 0, one checkpoint
    for each multiple of ``keep_every`` steps: the first at the multiple or after it,
    because a skipped batch delays a save. It must be older than the next multiple of
    ``save_every`` steps. A later checkpoint is a regular save of a run that had no
    ``keep_every`` yet. All others are deleted when the next save starts, and at the end of
    the run. If the run ends with an error, nothing is deleted, because a run that diverged
    soon after its last save may need the checkpoint before it. Orbax's Checkpointer would
    delete that checkpoint as soon as the save is complete.

    In a job of several processes, all processes call each method. A process whose save
    failed raises at the next save or at the end; JAX then ends the other processes.
    """

    def __init__(
        self,
        directory: os.PathLike,
        keep: int,
        keep_every: int = 0,
        save_every: int = 1,
    ):
        """directory: an absolute path or a URL. Raises UserError if it is not writable.

        save_every: steps between the saves of the run, besides the saves of keep_every.
        """
        self._directory = epath.Path(directory)
        self._keep, self._keep_every = keep, keep_every
        self._save_every = save_every
        self._pending: Any = None  # Orbax's response of the save in the background
        on_leader(self._delete_unfinished)

    def save(self, step: int, state: Any, notes: dict[str, Any]) -> None:
        """Waits for the previous save, and starts a save in the background.

        notes: JSON-serialisable values, saved with the state.

        Copies arrays and notes before it returns, so that the caller may donate or change
        them. Raises UserError if this save cannot start or the previous save failed.
        """
        notes = _with_checksums(state, notes)
        self.wait()
        on_leader(self._check_writable)
        context = ocp.Context()
        context.array.saving.min_slice_bytes_for_replica_parallel = _SMALLEST_PART
        with _writing(self._directory), context:
            if is_leader():
                self._delete_old()
            self._pending = ocp.save_checkpointables_async(
                self._directory / str(step), {"state": state}, custom_metadata=notes
            )

    def wait(self) -> None:
        """Waits for the pending save."""
        pending, self._pending = self._pending, None
        if pending is not None:
            with _writing(self._directory):
                pending.result()

    def steps(self) -> list[int]:
        """The steps of all complete checkpoints, newest first."""
        return [int(path.name) for path in _complete(self._directory)]

    def restore(
        self,
        abstract: Any,
        log: Log,
        start: tuple[os.PathLike, int | None] | None = None,
    ) -> tuple[Any, dict[str, Any]] | None:
        """Loads the newest undamaged state and its notes. None without a checkpoint.

        abstract: shapes, dtypes and shardings of the state.
        start: for a run without a checkpoint, the folder of another run's checkpoints, and
          the step of a checkpoint or None for the newest.

        The loaded state lacks the sums and the average that only ``abstract`` or only the
        checkpoint has; the log names them. Renames newer, damaged checkpoints to
        STEP.damaged, with one log line each. Raises UserError if all checkpoints are
        damaged, or if another array is missing or has another shape. Errors of the machine
        or of the store, such as TimeoutError, are raised.
        """
        paths = _complete(self._directory)
        if start is not None and not paths:
            paths = _checkpoints(*start)
        loaded = _load_newest(paths, abstract, log)
        if loaded is None:
            return None
        on_leader(functools.partial(self._set_damaged_aside, loaded[0]))
        return loaded[1:]

    def __enter__(self) -> "CheckpointStore":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not lost_peer(error):  # a save needs all processes
            self.wait()
        if error is None and is_leader():
            with _writing(self._directory):
                self._delete_old()

    def _check_writable(self) -> None:
        """Creates a test folder, because Orbax would retry for minutes."""
        with _writing(self._directory):
            probe = self._directory / f".{os.getpid()}.tmp"
            probe.mkdir(parents=True, exist_ok=True)
            probe.rmtree(missing_ok=True)  # a bucket has no empty folders

    def _delete_unfinished(self) -> None:
        """Deletes unfinished saves and deletions of killed processes."""
        self._check_writable()
        complete = _complete(self._directory)
        paths = []
        if self._directory.exists():
            paths = [*self._directory.iterdir()]
        for path in paths:
            unfinished = path.name.isdecimal() and path not in complete
            if unfinished or _UNFINISHED in path.name:
                path.rmtree()

    def _set_damaged_aside(self, step: int) -> None:
        """Renames checkpoints that are newer than ``step``, the loaded one."""
        for path in _complete(self._directory):
            if int(path.name) > step:
                aside = path.with_name(f"{path.name}.damaged")
                aside.rmtree(missing_ok=True)
                path.rename(aside)

    def _delete_old(self) -> None:
        """Deletes all checkpoints except the newest ``keep`` and the kept multiples."""
        paths = _complete(self._directory)
        kept = {*paths[: self._keep]}
        if self._keep_every:
            before = 0  # the step of the checkpoint before
            for path in reversed(paths):
                step = int(path.name)
                multiple = step - step % self._keep_every
                next_save = multiple - multiple % self._save_every + self._save_every
                if before < multiple and step < next_save:
                    kept.add(path)
                before = step
        for path in paths:
            if path not in kept:
                # Not Orbax's delete, which refuses a folder that a kill left incomplete.
                path.rmtree()


@contextlib.contextmanager
def _writing(directory: os.PathLike) -> Iterator[None]:
    """Turns any exception of a save into an error of one line."""
    try:
        yield
    except Exception as error:
        raise StalledError(
            f"a checkpoint in {os.fspath(directory)} could not be written "
            f"({_reason(error)}); fix the cause and run the same command again"
        ) from error


def newest_step(directory: os.PathLike) -> int:
    """The step of the newest checkpoint, damaged or not; 0 without a checkpoint."""
    return max((int(path.name) for path in _complete(epath.Path(directory))), default=0)


def _complete(directory: epath.Path) -> list[epath.Path]:
    """The complete checkpoints, newest first, damaged ones included.

    On a disk Orbax renames a complete folder. In a bucket it writes a file last. A killed
    deletion may leave an empty folder.
    """
    if not directory.exists():
        return []
    last = "commit_success.txt" if os.fspath(directory).startswith("gs://") else ""
    complete = []
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):  # deleted after it was listed
            if path.name.isdecimal() and any(path.iterdir()) and (path / last).exists():
                complete.append(path)
    return sorted(complete, key=lambda path: int(path.name), reverse=True)


def _load_newest(
    paths: list[epath.Path], abstract: Any, log: Log
) -> tuple[int, Any, dict[str, Any]] | None:
    """Step, state and notes of the newest undamaged checkpoint; see _load.

    paths: complete checkpoints, newest first.
    """
    damaged: list[str] = []
    for path in paths:
        try:
            state, notes = _load(path, abstract, log)
        except Exception as error:
            if not _is_damage(error):
                raise
            line = f"{path} is damaged: {_reason(error)}"
            if jax.process_count() > 1 and not isinstance(error, _DamagedError):
                # The other processes may have loaded their parts and wait in Orbax.
                message = f"{line}; move the folder to use the checkpoint before it"
                raise UserError(message) from error
            damaged.append(line)
        else:
            for line in damaged:
                log(f"{line}; using checkpoint {path.name}")
            return int(path.name), state, notes
    if damaged:
        raise UserError(
            f"{damaged[0]}; all {len(damaged)} checkpoints are damaged: restore a copy"
        )
    return None


def _is_damage(error: BaseException | None) -> bool:
    """Whether missing or changed files caused an error of a load.

    Otherwise the machine or the store failed, and the checkpoint may be undamaged. The
    failed read is the cause of Orbax's exception.
    """
    if not isinstance(error, (_DamagedError, ValueError, KeyError, FileNotFoundError)):
        return False
    while error is not None:
        failed = isinstance(error, (MemoryError, OSError))
        failed &= not isinstance(error, FileNotFoundError)
        library = type(error).__module__.partition(".")[0]
        if failed or library in STORE_LIBRARIES or _FAULT.search(str(error)):
            return False
        error = error.__cause__ or error.__context__
    return True


def _load(path: epath.Path, abstract: Any, log: Log) -> tuple[Any, dict[str, Any]]:
    """State and notes of a checkpoint; see CheckpointStore.restore.

    Without ``abstract``: its parameters and their average, if it has one, in numpy.
    """
    arrays, notes = _notes(path)
    changes = ""
    if abstract is None:
        saved = ocp.checkpointables_metadata(path).metadata["state"]
        if saved is None:  # Orbax only logs the reason
            raise _DamagedError("the metadata of its arrays cannot be read")
        trees = {name: saved[name] for name in ("params", "average") if saved.get(name)}
        abstract = jax.tree.map(lambda x: np.empty(x.shape, x.dtype), trees)
    else:
        shapes = {name: tuple(shape) for name, (shape, _) in arrays.items()}
        abstract, changes = _loadable(path, abstract, shapes)
    context = ocp.Context()
    context.pytree.loading.partial_load = True
    with context, unwatched():  # Orbax reports no progress
        state = ocp.load_checkpointables(path, {"state": abstract})["state"]
    for name, checksum in _checksums(state).items():
        if checksum != arrays[name][1]:
            raise _DamagedError(f"the checksum of {name} differs")
    if changes:
        log(changes)
    return state, notes


def _loadable(
    path: epath.Path, abstract: Any, shapes: dict[str, tuple[int, ...]]
) -> tuple[Any, str]:
    """``abstract`` without the sums and the average that a checkpoint lacks.

    path: the checkpoint. shapes: the shapes of its arrays. Also returns a line that names
    the sums and averages that only one of the two has; "" if there are none. Raises
    UserError if other arrays differ.
    """
    expected = array_shapes(abstract)
    missing = _optional(expected.keys() - shapes.keys())
    unused = _optional(shapes.keys() - expected.keys())
    known = {name: shapes[name] for name in shapes.keys() - unused}
    needed = {name: expected[name] for name in expected.keys() - missing}
    if wrong := shape_differences(known, needed):
        wrong.sort(key=lambda line: not line.startswith("params/"))
        advice = (
            "use the model, the optimizer and compute.scan_layers of its run, or another "
            "workdir without init_state"
        )
        raise UserError(f"{path} does not fit the config: {wrong[0]}; {advice}")
    if not missing and not unused:
        return abstract, ""
    changes = []
    if missing:
        changes.append(f"new after this checkpoint: {_parts(missing)}")
    if unused:
        changes.append(f"left out: {_parts(unused)}")
    return _without(abstract, missing), f"{path}: {'; '.join(changes)}"


def _optional(names: set[str]) -> set[str]:
    return {name for name in names if name.startswith(_OPTIONAL)}


def _without(abstract: Any, missing: set[str]) -> Any:
    """A state without some sums or its average. missing: the paths of their arrays."""
    sums, average = dict(abstract.sums), abstract.average
    for name in missing:
        part, _, rest = name.partition("/")
        if part == "sums":
            del sums[rest]
        else:
            average = None
    return abstract.replace(sums=sums, average=average)


def _parts(names: set[str]) -> str:
    """The arrays of sums and averages in words, such as "average, mlm_z_loss"."""
    parts = set()
    for name in names:
        part, _, rest = name.partition("/")
        parts.add(rest if part == "sums" else part)
    return ", ".join(sorted(parts))


def read_step(
    directory: os.PathLike, step: int | None = None, average: str | int = ""
) -> tuple[int, dict[str, Any]]:
    """The step of a checkpoint and its parameters, as numpy arrays.

    step: of the checkpoint. None: the newest undamaged checkpoint.
    average: "ema" for the moving average that the run kept, or a number n for the mean of
      the parameters of n checkpoints: this one and the checkpoints before it.

    Does not load the optimizer state, so it needs no config. Raises UserError without an
    undamaged checkpoint, without an average, and with fewer than n checkpoints.
    """
    log = logging.getLogger(__name__).warning
    if isinstance(average, int):
        paths = _checkpoints(directory, step, before=True)
        return int(paths[0].name), _mean_params(paths, average, log)
    found, state, _ = _load_newest(_checkpoints(directory, step), None, log)
    if average != "ema":
        return found, state["params"]
    if state.get("average") is None:
        needed = "train with the setting average, such as average=0.999"
        raise UserError(f"{directory} has no moving average of parameters; {needed}")
    return found, state["average"]


def _mean_params(paths: list[epath.Path], count: int, log: Log) -> dict[str, Any]:
    """The mean parameters of the first ``count`` checkpoints, summed in float64."""
    if not 1 <= count <= len(paths):
        steps = ", ".join(path.name for path in reversed(paths))
        actual = f"average={count}, but there are only the checkpoints of steps {steps}"
        raise UserError(f"{actual}; set keep_checkpoints or keep_checkpoints_every")

    def params_of(path: epath.Path) -> dict[str, Any]:
        _, state, _ = _load_newest([path], None, log)
        return jax.tree.map(np.float64, state["params"])

    total = params_of(paths[0])
    for path in paths[1:count]:
        total = jax.tree.map(np.add, total, params_of(path))
    return jax.tree.map(lambda x: np.float32(x / count), total)


def _checkpoints(
    directory: os.PathLike, step: int | None, *, before: bool = False
) -> list[epath.Path]:
    """The complete checkpoints of a run, newest first. Raises UserError without one.

    step: only the checkpoint of this step, with ``before`` also all before it.
    """
    folder = epath.Path(directory)
    if not is_remote(directory):
        folder = epath.Path(Path(directory).absolute())
    paths = _complete(folder)
    if not paths:
        raise UserError(f"{directory} contains no complete checkpoint; wait for one")
    if step is None:
        return paths
    chosen = [path for path in paths if int(path.name) <= step]
    if not chosen or int(chosen[0].name) != step:
        steps = ", ".join(path.name for path in reversed(paths))
        known = f"its checkpoints: {steps}"
        raise UserError(f"{directory} has no checkpoint of step {step}; {known}")
    if before:
        return chosen
    return chosen[:1]


def _with_checksums(state: Any, notes: dict[str, Any]) -> dict[str, Any]:
    """Notes, and shape and checksum of each array, as JSON with a checksum."""
    shapes, sums = array_shapes(state), _checksums(state)
    arrays = {name: [shapes[name], sums[name]] for name in sums}
    text = json.dumps({"notes": notes, "arrays": arrays})
    return {"content": text, "checksum": zlib.crc32(text.encode())}


def _notes(path: epath.Path) -> tuple[dict[str, tuple[list[int], int]], dict[str, Any]]:
    """Shape and checksum of each array, by path, and the notes."""
    saved = ocp.checkpointables_metadata(path).custom_metadata or {}
    text = saved.get("content", "")
    if zlib.crc32(text.encode()) != saved.get("checksum"):
        raise _DamagedError("the checksum of its notes differs")
    content = json.loads(text)
    return content["arrays"], content["notes"]


def _checksums(tree: Any) -> dict[str, int]:
    """The checksum of each array, by path.

    Each shape compiles one small program, which is called for each array. Programs over all
    arrays of a shape would take 33 ms for each array to compile: 40 s for the 1,209 arrays
    of LARGE.
    """
    sums = {}
    for name, x in arrays_by_path(tree).items():
        sums[name] = _checksum(x)
        if jax.default_backend() == "cpu":
            # Programs that start together on several CPU devices can block each other.
            sums[name].block_until_ready()
    return {name: int(value) for name, value in jax.device_get(sums).items()}


@jax.jit
def _checksum(x: jax.Array) -> jax.Array:
    """A uint32 that depends on all bits of an array and their places, not on sharding.

    It is the sum of all words, each times an odd number that depends on the word's place,
    so every change to a single word changes the sum.
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


def _reason(error: Exception) -> str:
    """The message of an exception in one line."""
    kind = "" if isinstance(error, _DamagedError) else f"{type(error).__name__}: "
    return kind + " ".join(str(error).split())
