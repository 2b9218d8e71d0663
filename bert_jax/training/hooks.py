"""Hooks of the training loop: reports, evaluations, saves and other work after a step.

A hook is a pair (every, function). The loop calls the function with the :class:`Training`
after each step that ``every`` selects. A run has the hooks of the engine, which are in this
file, and the hooks of its job.
"""

import collections
import contextlib
import dataclasses
import functools
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import optax

from bert_jax.errors import DivergenceError, UserError
from bert_jax.objectives.objective import Params
from bert_jax.parallel.processes import StopRequested, is_leader, on_leader
from bert_jax.training.metrics import (
    SKIPPED,
    Reporter,
    RunProgress,
    check_finite,
    skipped_batches,
)
from bert_jax.training.state import TrainState
from bert_jax.training.step import Sums

_norm = jax.jit(optax.tree.norm)


@dataclasses.dataclass(eq=False)
class Training:
    """A run after one of its steps.

    step: number of steps done. total: number of steps of the whole run.
    state, sums: results of this step; see ``training.step``. sums is None before the first
      step of this process.
    stop: exception that a signal asks for, or None.
    evaluated: whether this step was evaluated. Its parameters are then known to be good.
    saved: whether this step was saved.
    """

    reporter: Reporter
    total: int
    step: int
    state: TrainState
    sums: Sums | None = None
    stop: type[BaseException] | None = None
    evaluated: bool = False
    saved: bool = False

    def __post_init__(self):
        # 1 for each skipped batch of the last SKIPPED batches or fewer.
        self._skipped = collections.deque(maxlen=SKIPPED)

    @property
    def progress(self) -> RunProgress:
        return self.reporter.progress

    @property
    def ends(self) -> bool:
        """Whether this step is the last one."""
        return self.step == self.total or self.progress.stopped_at is not None

    def end(self) -> None:
        """Ends the run after this step."""
        if self.step < self.total:
            self.progress.stopped_at = self.step

    def advance(self, state: TrainState, sums: Sums) -> None:
        """Goes to the next step, with these results."""
        self.step += 1
        self.state, self.sums = state, sums
        self._skipped.append(sums["last_skipped"])
        self.stop, self.evaluated, self.saved = None, False, False

    def check(self) -> bool:
        """Whether the batch of this step was used, not skipped.

        Raises DivergenceError if a number is not finite, or if a batch since the last
        report was skipped although the run stops at spikes: a state after a spike is not
        saved. The sums are computed with the parameters before this step, so this method
        also checks the new parameters.
        """
        norm = {"norm of the parameters": _norm(self.state.params)}
        values = jax.device_get(self.sums | norm)
        check_finite(self.step, values)
        if values["skipped"] and not self.reporter.config.optimizer.skip_spikes:
            raise DivergenceError(skipped_batches(self.step, values))
        return not values["last_skipped"]

    def may_be_saved(self) -> bool:
        """Whether the state is known to be good.

        After a skipped batch the parameters may be destroyed, although they are finite.
        They are saved only if an evaluation of this step was finite. Otherwise the save
        waits for a step whose batch is not skipped. The last step cannot wait:
        DivergenceError is raised if the last SKIPPED batches were all skipped.
        """
        if self.evaluated:
            return True
        used = self.check()
        if not self.ends:
            return used
        latest = jax.device_get(list(self._skipped))
        if len(latest) == SKIPPED and all(latest):
            raise DivergenceError(f"the last {SKIPPED} batches were skipped")
        return True


# A number of steps, or a function of the number of steps done.
Every = int | Callable[[int], bool]
Hook = tuple[Every, Callable[[Training], None]]


def call_hooks(hooks: Sequence[Hook], training: Training) -> None:
    """Calls the hooks that are due after a step, in their order."""
    for every, hook in hooks:
        if is_due(every, training.step):
            hook(training)


def is_due(every: Every, step: int) -> bool:
    """Whether a hook is called after ``step``.

    A number selects its multiples except 0. A function may also select step 0, the state
    before the first step.
    """
    if callable(every):
        return every(step)
    return step > 0 and step % every == 0


def evaluation(
    every: Every,
    evaluate: Callable[[int, Params, Reporter], bool | None],
    *,
    average: bool = False,
) -> Hook:
    """The hook of an evaluation.

    evaluate: function of (step, params, reporter). If it returns True in all processes, the
      run ends after this step. It raises DivergenceError if a loss or output is not finite.
    average: whether it gets the average of the parameters instead of the parameters.
    """

    def hook(training: Training) -> None:
        training.reporter.finish_report()
        if training.sums is not None:
            training.check()
        params = training.state.params
        if average:
            params = training.state.average
        with training.reporter.timed("evaluation_seconds"):
            ends = evaluate(training.step, params, training.reporter)
        training.evaluated = True
        if ends:
            training.end()
        training.reporter.start_window()  # its time is not counted as training time

    return every, hook


def report(training: Training) -> None:
    """Reports the steps since the last report."""
    training.reporter.report(training.step, training.sums)


def request(stop_requested: StopRequested) -> Callable[[Training], None]:
    """A hook that asks whether the run stops. It must be called after each step.

    A run also obeys a request after its last step, because the caller may still score the
    model or start more runs.
    """

    def hook(training: Training) -> None:
        training.stop = stop_requested()

    return hook


class Saver:
    """Saves every few steps, and before the run ends or stops.

    every: numbers of steps, whose multiples are saved; 0: none. save: function of (step,
    state).
    """

    def __init__(self, every: Sequence[int], save: Callable[[int, TrainState], None]):
        self._every, self._save = every, save
        self._due = False  # whether a save was postponed

    def __call__(self, training: Training) -> None:
        multiple = any(every and training.step % every == 0 for every in self._every)
        if multiple or training.ends or training.stop:
            self._due = True
        if self._due and training.may_be_saved():
            training.reporter.finish_report()
            training.progress.seconds = training.reporter.seconds
            with training.reporter.timed("save_seconds"):
                self._save(training.step, training.state)
            self._due, training.saved = False, True


def stop(training: Training) -> None:
    """Raises the exception that a signal asked for."""
    if training.stop is None:
        return
    training.reporter.finish_report()
    again = "saved: the same command resumes there"
    if not training.saved:
        again = (
            "not saved, because its batch was skipped: the same command resumes at the "
            "last checkpoint"
        )
    step = f"{training.step} of {training.total}"
    raise training.stop(f"asked to stop after step {step}; {again}")


@contextlib.contextmanager
def profiler_server(port: int) -> Iterator[None]:
    """Inside the block JAX's profiler listens on ``port`` of process 0; 0: no port.

    TensorBoard and xprof connect to it. Raises UserError if the port is not free, because
    JAX would only print a line.
    """
    if port:
        on_leader(functools.partial(_check_port, port))
    if not port or not is_leader():
        yield
        return
    jax.profiler.start_server(port)
    try:
        yield
    finally:
        jax.profiler.stop_server()


def _check_port(port: int) -> None:
    """Raises UserError if a port is not free."""
    with socket.socket() as probe:
        # A port whose last connection was closed a moment ago is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            reason = error.strerror or error
            raise UserError(
                f"profile_port={port}: {reason}; use another port"
            ) from error


class Profile:
    """Profiles a range of steps in process 0.

    steps: the setting ``profile_steps``, such as "10:20", or "". folder: for TensorBoard.
    """

    def __init__(self, steps: str, folder: Path):
        first, last = (steps or "0:0").split(":")
        self._first, self._last, self._folder = int(first), int(last), folder
        self._profile = contextlib.ExitStack()

    def __call__(self, training: Training) -> None:
        if training.step == self._last or training.ends:
            jax.block_until_ready(training.state)
            self.close()
        if training.step + 1 == self._first and is_leader():
            jax.block_until_ready(training.state)
            self._profile.enter_context(jax.profiler.trace(self._folder))

    def close(self) -> None:
        """Ends the profile."""
        self._profile.close()
