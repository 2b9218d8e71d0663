"""Checkpoints with Orbax, and the only file that imports it.

A checkpoint is the train state and the config. The state has the RNG key and the number
of updates, which is the place in the data too: nothing in it depends on the number of
processes, so any number of them can go on.
"""

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from orbax.checkpoint.experimental import v1 as ocp

from bert_jax.errors import UserError
from bert_jax.files import is_remote
from bert_jax.parallel.sharding import path_name


def _is_news(record: logging.LogRecord) -> bool:
    """False for what the run itself reports: failed writes, and that it stops."""
    if "Reached preemption sync point" in record.getMessage():
        return False
    return "os_error_code" not in str(record.exc_info and record.exc_info[1])


logging.getLogger("absl").addFilter(_is_news)


# Of an array that several devices have alike each writes a part, if the part has so many
# bytes. Orbax slices such parts on the devices, and each slice of a small array would be a
# program to compile: 3.4 s before the first save of a small model on eight devices.
_LEAST_PART = 1 << 15


class CheckpointStore:
    """The checkpoints of one run, newest ``keep`` kept, written in the background."""

    def __init__(self, directory: os.PathLike, keep: int):
        context = ocp.Context()
        context.array.saving.min_slice_bytes_for_replica_parallel = _LEAST_PART
        self._checkpointer = ocp.training.Checkpointer(
            directory,  # absolute, or a URL
            # The loop decides when; without a policy of its own Orbax saves every step
            # and keeps everything.
            save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(
                1
            ),
            preservation_policy=ocp.training.preservation_policies.LatestN(keep),
            cleanup_tmp_directories=True,
            context=context,
        )
        self._saved: int | None = None

    @property
    def latest_step(self) -> int | None:
        """The newest whole checkpoint, or None."""
        latest = self._checkpointer.latest
        return None if latest is None else latest.step

    def save(self, step: int, state: Any, notes: dict[str, Any]) -> None:
        """Starts an asynchronous save; waits for the one before it, not for this one.

        notes: JSON-able, kept beside the state.

        The arrays are copied before this returns, so the step may donate them.
        """
        if step == self._saved:
            return
        with _writing(self._checkpointer.directory):
            self._checkpointer.save_checkpointables_async(
                step, {"state": state}, custom_metadata=notes
            )
        self._saved = step

    def restore(self, abstract: Any) -> tuple[Any, dict[str, Any]]:
        """The newest state, in ``abstract``'s shardings, and the notes beside it.

        Raises UserError that names the first array which is not as expected.
        """
        step = self.latest_step
        saved = self._checkpointer.checkpointables_metadata(step)
        found = array_shapes(saved.metadata["state"])
        wrong = shape_differences(found, array_shapes(abstract))
        if wrong:
            raise UserError(
                f"checkpoint {step} in {self._checkpointer.directory} does not fit the "
                f"config: {wrong[0]}; use the config of the run, or another --workdir"
            )
        loaded = self._checkpointer.load_checkpointables(step, {"state": abstract})
        self._saved = step
        return loaded["state"], dict(saved.custom_metadata or {})

    def close(self) -> None:
        """Waits for the save under way."""
        with _writing(self._checkpointer.directory):
            self._checkpointer.close()


def read_params(directory: Path) -> dict[str, Any]:
    """The parameters of the newest checkpoint in ``directory``, as numpy arrays.

    The optimizer's state is not read, so no config of a run is needed. Raises UserError
    where there is no whole checkpoint.
    """
    latest = None
    if directory.is_dir():
        with ocp.training.Checkpointer(_absolute(directory)) as checkpointer:
            latest = checkpointer.latest
    if latest is None:
        raise UserError(
            f"{directory} holds no whole checkpoint; wait for the run's first one"
        )
    path = _absolute(directory) / str(latest.step)
    metadata = ocp.checkpointables_metadata(path).metadata["state"]["params"]
    on_host = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), metadata)
    context = ocp.Context()
    context.pytree.loading.partial_load = True
    with context:
        loaded = ocp.load_checkpointables(path, {"state": {"params": on_host}})
    return loaded["state"]["params"]


def write_params(directory: Path, params: Any) -> None:
    """Writes checkpoint 0 of ``directory`` with nothing but parameters."""
    path = _absolute(directory) / "0"
    with _writing(path):
        ocp.save_checkpointables(path, {"state": {"params": params}})


def _absolute(directory: Path) -> Path:
    """Orbax takes absolute paths and URLs; a URL's own ``absolute`` is a wrong path."""
    return directory if is_remote(directory) else directory.absolute()


def array_shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """Shape of each array by its path; the RNG key, stored as its words, left out."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    shapes = {path_name(path): tuple(leaf.shape) for path, leaf in leaves}
    return {name: shape for name, shape in shapes.items() if name != "key"}


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
def _writing(directory: Path) -> Iterator[None]:
    """Turns what TensorStore raises when a write fails, a ValueError, into one line.

    It comes from the background: at the next save, or at the end.
    """
    try:
        yield
    except ValueError as error:
        reason = re.search(r"Failed to write.*?: ([^\[]+) \[os_error_code", str(error))
        if reason is None:
            raise
        raise UserError(
            f"a checkpoint in {directory} could not be written ({reason[1]}); make room "
            "and run the same command again: it goes on from the last whole one"
        ) from error
