"""The pretraining loop: data in, updates, reports, evaluations, checkpoints."""

import collections
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from bert_jax.errors import DivergenceError, Preempted
from bert_jax.interop.checkpoints import CheckpointStore
from bert_jax.parallel.distributed import StopRequests
from bert_jax.parallel.mesh import global_rows, put_batch, steps_ahead, traced_on
from bert_jax.training import step as step_lib
from bert_jax.training.config import TrainConfig
from bert_jax.training.flops import peak_flops, step_flops
from bert_jax.training.metric_writer import MetricWriter
from bert_jax.training.state import TrainState

HostBatch = dict[str, np.ndarray]


def jit_steps(
    config: TrainConfig, model: Any, optimizer: Any, shardings: TrainState
) -> tuple[Callable, Callable]:
    """The compiled update (its state donated) and evaluation functions."""
    train = functools.partial(
        step_lib.train_step,
        model=model,
        optimizer=optimizer,
        next_sentence=config.data.examples.next_sentence,
        accumulation=config.accumulation,
        log_every=config.log_every,
    )
    evaluate = functools.partial(step_lib.eval_step, model=model)
    whole = shardings.step  # in every process
    return (
        jax.jit(
            traced_on(whole.mesh, train),
            donate_argnums=0,
            out_shardings=(shardings, None),
        ),
        jax.jit(traced_on(whole.mesh, evaluate), out_shardings=whole),
    )


def evaluate(
    eval_fn: Callable, params: Any, batches: Iterable[HostBatch], mesh: Mesh
) -> dict[str, float]:
    """Means over ``batches``, and what guessing without reading would reach.

    mlm_majority: accuracy of always guessing the most frequent masked token;
    nsp_majority: of always guessing the more frequent label.
    """
    totals: dict[str, Any] = {}
    for batch in batches:
        sums = jax.device_get(eval_fn(params, put_batch(batch, mesh)))
        for name, value in sums.items():
            totals[name] = totals.get(name, 0) + np.asarray(value, np.float64)
    tokens, labels = totals.pop("mlm_counts"), totals.pop("nsp_counts")
    return step_lib.means(totals) | {
        "mlm_majority": float(tokens.max() / tokens.sum()),
        "nsp_majority": float(labels.max() / labels.sum()),
    }


@dataclasses.dataclass
class Reporter:
    """Turns the sums of a window of steps into one line of metrics, one step late."""

    config: TrainConfig
    mesh: Mesh
    writer: MetricWriter
    learning_rate: Callable[[int], Any]
    log: Callable[[str], None]

    def __post_init__(self):
        self._peak = peak_flops()
        self._pending: tuple[int, dict[str, Any], dict[str, float | None]] | None = None
        self.start_window()

    def start_window(self) -> None:
        """Forgets time that was not spent on updates: evaluation, compilation."""
        self._start = time.perf_counter()
        self._wait = self._tokens = self._flops = self._tokens = 0.0

    def add_step(self, batch: HostBatch, wait: float) -> None:
        """Counts one update's work and the ``wait`` (seconds) for its batch."""
        local_rows, length = batch["input_ids"].shape
        rows = global_rows(self.mesh, local_rows)
        # The rows of other processes have about as many tokens each.
        tokens = np.count_nonzero(batch["attention_mask"])
        self._tokens += tokens * rows / local_rows
        predictions = batch["mlm_ids"].shape[1]
        pairs = batch["nsp_labels"][0].size
        self._tokens += rows * length
        self._flops += step_flops(
            self.config.model,
            length,
            predictions,
            rows,
            pairs,
            scan_layers=self.config.compute.scan_layers,
        )
        self._wait += wait

    def report(self, step: int, sums: dict[str, jax.Array]) -> None:
        """Takes the sums of the window that ends at ``step``; flush writes them."""
        seconds = time.perf_counter() - self._start
        # A window that holds only the compiling update has no rates.
        timed = self._tokens > 0
        known = timed and self._peak is not None
        rates = {
            "tokens_per_second": self._tokens / seconds if timed else None,
            "mfu": self._flops / seconds / self._peak if known else None,
            "data_wait": self._wait / seconds if timed else None,
            "padding": 1 - self._tokens / self._tokens if timed else None,
        }
        self._pending = (step, sums, rates)
        self.start_window()

    def flush(self) -> None:
        """Writes the pending line; raises DivergenceError where the loss is not finite."""
        if self._pending is None:
            return
        step, device_sums, rates = self._pending
        self._pending = None
        sums = jax.device_get(device_sums)
        check_finite(step, sums)
        metrics = step_lib.means(sums)
        metrics["loss"] = float(sums["loss_sum"]) / float(sums["steps"])
        # The rate of the update that ended the window, read before its counter moved.
        # A scalar's arithmetic on the device: the one transfer the loop allows.
        with jax.transfer_guard("allow"):
            metrics["learning_rate"] = float(self.learning_rate(step - 1))
        metrics["grad_norm"] = float(sums["grad_norm_sum"]) / float(sums["steps"])
        self.writer.write(step, "train", metrics | rates)
        self.log(
            f"step {step}/{self.config.total_steps}  loss {metrics['loss']:.4f}  "
            f"mlm {metrics['mlm_loss']:.4f} ({metrics['mlm_accuracy']:.1%})  "
            f"nsp {metrics['nsp_loss']:.4f} ({metrics['nsp_accuracy']:.1%})  "
            f"{rates['tokens_per_second'] or 0:,.0f} tokens/s"
        )


def check_finite(step: int, values: dict[str, Any]) -> None:
    """Raises DivergenceError when the loss, the gradient or the parameters went bad."""
    names = {"loss_sum": "loss", "grad_norm_sum": "gradient norm"}
    for name, value in values.items():
        if not math.isfinite(float(value)):
            raise DivergenceError(
                f"the {names.get(name, name)} became {float(value)} in the updates before "
                f"step {step}; the last good checkpoint is kept: lower "
                "--config.optimizer.learning_rate or set --config.model.dtype=float32, "
                "and run again with the same --workdir"
            )


def run(
    config: TrainConfig,
    *,
    state: TrainState,
    train_fn: Callable,
    eval_fn: Callable,
    data: Iterator[HostBatch],
    eval_batches: Callable[[], Iterable[HostBatch]],
    mesh: Mesh,
    checkpoints: CheckpointStore,
    reporter: Reporter,
    saved_config: dict[str, Any],
    stop_requests: StopRequests,
    upload: Callable[[], None],
) -> tuple[TrainState, dict[str, float] | None]:
    """Trains from ``state.step`` to the last step; returns state and last evaluation.

    Raises Preempted, with the state saved, where all processes are asked to stop.

    At each step the order is: update, report, evaluation, checkpoint; so a checkpoint
    of step n finds all metrics up to n written, and a resumed run repeats none.
    """
    total = config.total_steps
    first = int(state.step)
    in_flight: collections.deque[jax.Array] = collections.deque()
    ahead = steps_ahead(mesh)
    evaluation = None
    norm_fn = jax.jit(optax.tree.norm)
    with jax.transfer_guard("disallow"):
        for step in range(first + 1, total + 1):
            asked = time.perf_counter()
            host_batch = next(data)
            waited = time.perf_counter() - asked
            batch = put_batch(host_batch, mesh)
            state, sums = train_fn(state, batch)
            reporter.flush()  # of the step before: this one keeps the device busy
            in_flight.append(sums["steps"])
            if len(in_flight) > ahead:
                jax.block_until_ready(in_flight.popleft())
            if step == first + 1:  # compilation is not throughput
                jax.block_until_ready(sums)
                reporter.start_window()
            else:
                reporter.add_step(host_batch, waited)

            last = step == total
            if step % config.log_every == 0 or last:
                reporter.report(step, sums)
            evaluates = config.eval_every and (step % config.eval_every == 0 or last)
            if evaluates:
                reporter.flush()
                evaluation = evaluate(eval_fn, state.params, eval_batches(), mesh)
                _write_evaluation(reporter, step, evaluation)
            stops = stop_requests.reached(step) and not last
            if step % config.checkpoint_every == 0 or last or stops:
                reporter.flush()
                # A bad state must never replace a good checkpoint. The sums tell of the
                # parameters before this update, the norm of those after it.
                norm = {"norm of the parameters": norm_fn(state.params)}
                check_finite(step, jax.device_get(sums | norm))
                reporter.writer.sync()
                upload()
                checkpoints.save(step, state, saved_config)
            if stops:
                raise Preempted(
                    f"asked to stop after step {step} of {total}; saved: the same command "
                    "goes on from there"
                )
            if evaluates:
                reporter.start_window()
    return state, evaluation


def _write_evaluation(
    reporter: Reporter, step: int, evaluation: dict[str, float]
) -> None:
    reporter.writer.write(step, "eval", evaluation)
    reporter.log(
        f"step {step}  held-out: loss {evaluation['loss']:.4f}  "
        f"mlm accuracy {evaluation['mlm_accuracy']:.1%} "
        f"(most frequent token: {evaluation['mlm_majority']:.1%})  "
        f"nsp accuracy {evaluation['nsp_accuracy']:.1%} "
        f"(more frequent label: {evaluation['nsp_majority']:.1%})"
    )
