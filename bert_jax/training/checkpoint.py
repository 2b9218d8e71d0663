"""Checkpoints with Orbax, and the only file that imports it.

A checkpoint is the train state (sharded arrays, the RNG key among them), the position
of the data iterator, and the config.
"""

import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain
from orbax.checkpoint.experimental import v1 as ocp

from bert_jax.errors import UserError
from bert_jax.training.state import TrainState


def _is_not_a_failed_write(record: logging.LogRecord) -> bool:
    """False for the tracebacks of failed writes, which _writing reports in one line."""
    return "os_error_code" not in str(record.exc_info and record.exc_info[1])


logging.getLogger("absl").addFilter(_is_not_a_failed_write)


class CheckpointStore:
    """The checkpoints of one run, newest ``keep`` kept, written in the background."""

    def __init__(self, directory: Path, keep: int):
        self._checkpointer = ocp.training.Checkpointer(
            directory.absolute(),
            # The loop decides when; without a policy of its own Orbax saves every step
            # and keeps everything.
            save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(
                1
            ),
            preservation_policy=ocp.training.preservation_policies.LatestN(keep),
            cleanup_tmp_directories=True,
        )
        self._saved: int | None = None

    @property
    def latest_step(self) -> int | None:
        """The newest whole checkpoint, or None."""
        latest = self._checkpointer.latest
        return None if latest is None else latest.step

    def save(
        self,
        step: int,
        state: TrainState,
        data: grain.DatasetIterator,
        config: dict[str, Any],
    ) -> None:
        """Starts an asynchronous save; waits for the one before it, not for this one.

        The arrays are copied before this returns, so the step may donate them.
        """
        if step == self._saved:
            return
        with _writing(self._checkpointer.directory):
            self._checkpointer.save_checkpointables_async(
                step, {"state": state, "data": data}, custom_metadata=config
            )
        self._saved = step

    def restore(self, abstract: TrainState, data: grain.DatasetIterator) -> TrainState:
        """The newest state in ``abstract``'s shardings; moves ``data`` to its place."""
        step = self.latest_step
        try:
            loaded = self._checkpointer.load_checkpointables(
                step, {"state": abstract, "data": data}
            )
        except (ValueError, KeyError) as error:
            raise UserError(
                f"checkpoint {step} in {self._checkpointer.directory} does not fit the "
                f"config ({str(error).splitlines()[0]}); use the config of the run, or "
                "another --workdir"
            ) from error
        self._saved = step
        return loaded["state"]

    def close(self) -> None:
        """Waits for the save under way."""
        with _writing(self._checkpointer.directory):
            self._checkpointer.close()


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
