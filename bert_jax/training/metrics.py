"""Metrics of a run: a line for each window of steps, in files and in the log."""

import contextlib
import dataclasses
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
from tensorboardX import SummaryWriter

from bert_jax.errors import DivergenceError, UserError
from bert_jax.files import write_text
from bert_jax.objectives.objective import Batch, Objective
from bert_jax.progress import Progress
from bert_jax.runs import METRICS, read_metrics
from bert_jax.training.config import RunConfig
from bert_jax.training.optimizer import Schedule, learning_rate
from bert_jax.training.step import Sums

# Dense bfloat16 FLOP/s of a device by JAX's name for it, from the vendors' data sheets.
# JAX shows each chip of TPU v2, v3 and v7x as two devices.
PEAK_FLOPS = {
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6": 918e12,
    "TPU v6e": 918e12,
    "TPU7x": 1153.5e12,
    "NVIDIA A10": 125e12,  # half of the 250 "with sparsity" of its data sheet
    "NVIDIA A40": 149.7e12,
    "NVIDIA A100": 312e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40": 181.05e12,  # half of the 362.1 "with sparsity" of its data sheet
    "NVIDIA L40S": 362e12,
    "NVIDIA H100": 989.4e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H200": 989.4e12,
    "NVIDIA H200 NVL": 835e12,
    "NVIDIA GH200": 989.4e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA GB200": 2500e12,  # one of its two GPUs; Blackwell Architecture brief
}

TENSORBOARD = "tensorboard"  # the folder of its files and of profiles
SKIPPED = 10  # a run that skips this many batches in succession has diverged
_TIMED = 10  # timed steps after which the time left is estimated


@dataclasses.dataclass
class RunProgress:
    """The values that a resumed run needs besides its state. JSON in each checkpoint.

    shapes: number of steps with batches of each shape, such as "8x128".
    tokens, computed_tokens: of all reported steps, without and with padding.
    seconds: time of the run until its last save.
    evaluation: metrics of the last evaluation of a pretraining.
    compile_seconds, evaluation_seconds, save_seconds: time of the run that was not spent on
      steps. The first step with each shape of a batch compiles.
    lost_seconds: time that ``seconds`` does not include: of steps that a killed process
      had done after its last save, and of loading checkpoints to resume.
    best: "epoch" and dev "scores" of the model in best/; None before an evaluation.
    evaluations_since_best: number of evaluations after the best.
    stopped_at: last step of a run that ended early, otherwise None.
    tracker_id: id of the run for its experiment tracker.
    reported: step of the last report.
    """

    shapes: dict[str, int] = dataclasses.field(default_factory=dict)
    tokens: float = 0.0
    computed_tokens: float = 0.0
    seconds: float = 0.0
    evaluation: dict[str, float] = dataclasses.field(default_factory=dict)
    compile_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    save_seconds: float = 0.0
    lost_seconds: float = 0.0
    best: dict[str, Any] | None = None
    evaluations_since_best: int = 0
    stopped_at: int | None = None
    tracker_id: str = ""
    reported: int = 0


@dataclasses.dataclass(eq=False)
class Reporter:
    """Reports the metrics of each window of steps.

    log: function that receives each line of the log.
    progress: is saved in checkpoints. The reporter adds up the tokens of the whole run.
    writer: None in all processes except process 0.
    first: number of steps that were done before this process started.
    late: whether a report waits until the next step is started, so that the device always
      has work.
    bar: the progress bar, which the loop updates.
    """

    config: RunConfig
    objective: Objective
    schedule: Schedule
    writer: "MetricWriter | None"
    log: Callable[[str], None]
    progress: RunProgress
    first: int
    late: bool = False

    def __post_init__(self):
        self._unreported: tuple[int, Sums] | None = None
        self._skipped = 0  # batches since the last report with a used batch
        self._total = int(self.schedule.total_steps)
        self._estimates = True  # whether the next ten timed steps give an estimate
        self._peak = peak_flops(jax.devices())
        self._began = time.perf_counter() - self.progress.seconds
        self.bar = Progress(
            "training", total=self._total, initial=self.first, unit="steps"
        )
        self._check_warmup()
        self.start_window()

    @property
    def seconds(self) -> float:
        """Seconds of the whole run, including the time before it was resumed."""
        return time.perf_counter() - self._began

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Adds the seconds of a block to a field of the progress."""
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        setattr(self.progress, name, getattr(self.progress, name) + seconds)

    def log_time(self) -> None:
        """Logs the share of the time of the run that trained, and all other shares."""
        progress, seconds = self.progress, self.seconds
        others = {
            "compiling": progress.compile_seconds,
            "evaluating": progress.evaluation_seconds,
            "saving": progress.save_seconds,
        }
        parts = {"training": seconds - sum(others.values()), **others}
        parts["lost to restarts"] = progress.lost_seconds
        whole = seconds + progress.lost_seconds
        shares = "  ".join(f"{part / whole:.1%} {name}" for name, part in parts.items())
        self.log(f"time {self.bar.format_interval(whole)}: {shares}")

    def start_window(self) -> None:
        """Restarts the clock after work other than steps: evaluation, compilation."""
        self.bar.unpause()
        self._reset()

    def _reset(self) -> None:
        self._start = time.perf_counter()
        self._steps, self._wait, self._tokens, self._flops = 0, 0.0, 0.0, 0.0

    def add_step(self, step: int, batch: Batch, wait: float, sums: Sums) -> None:
        """Counts the work of a step. wait: seconds until its batch was ready.

        Logs the time left after the first ten counted steps, if no report was earlier.
        """
        self._steps += 1
        self._tokens += batch["input_ids"].size  # of the global batch, with padding
        self._flops += self.objective.flops(batch)
        self._wait += wait
        if self._estimates and self._steps == _TIMED:
            self._estimates = False
            jax.block_until_ready(sums)
            seconds = (time.perf_counter() - self._start) / _TIMED
            left = self.bar.format_interval((self._total - step) * seconds)
            self.log(f"step {step}/{self._total}  about {left} left")

    def report(self, step: int, sums: Sums) -> None:
        """Reports the window that ends at ``step``, now or in :meth:`finish_report`.

        sums: of the steps since the last report. Raises DivergenceError if one is not
        finite.
        """
        self._unreported = step, sums
        if not self.late:
            self.finish_report()

    def finish_report(self) -> None:
        """Makes the postponed report, if there is one. Waits until its step is done."""
        if self._unreported is None:
            return
        step, device_sums = self._unreported
        self._unreported = None
        sums = {k: float(v) for k, v in jax.device_get(device_sums).items()}
        check_finite(step, sums)
        self.progress.reported = step
        rates = self._rates(step)
        self._reset()
        self._estimates = False
        self._check_skipped(step, sums)
        if not sums["steps"]:
            return
        self.progress.tokens += sums["tokens"]
        self.progress.computed_tokens += sums["computed_tokens"]
        metrics = self._metrics(step, sums)
        metrics["computed_tokens"] = self.progress.computed_tokens
        self.write(step, "train", metrics | rates)
        status, left = f"loss {metrics['loss']:.4f}", ""
        if summary := self.objective.summary(self.progress.evaluation | metrics):
            status += f"  {summary}"
        if rates["tokens_per_second"] is not None:
            status += f"  {rates['tokens_per_second']:,.0f} tokens/s"
            left = f"  {self.bar.format_interval(rates['seconds_left'])} left"
        self.bar.set_postfix_str(status, refresh=False)
        self.log(f"step {step}/{self._total}  {status}{left}")

    def _rates(self, step: int) -> dict[str, float | None]:
        """Speeds of the window that ends at ``step``. None if all its steps compiled."""
        seconds, timed = time.perf_counter() - self._start, self._steps
        rates: dict[str, float | None] = dict.fromkeys(
            ("tokens_per_second", "mfu", "data_wait", "seconds_left")
        )
        if timed:
            rates["tokens_per_second"] = self._tokens / seconds
            rates["data_wait"] = self._wait / seconds
            rates["seconds_left"] = (self._total - step) * seconds / timed
            if self._peak and self._flops:
                rates["mfu"] = self._flops / seconds / self._peak
        rates["seconds"] = self.seconds
        rates["lost_seconds"] = self.progress.lost_seconds
        return rates

    def _check_warmup(self) -> None:
        """Warns if the learning rate does not reach its peak."""
        warmup = int(self.schedule.warmup_steps)
        if warmup > self._total:
            largest = float(learning_rate(self.schedule, self._total))
            self.log(
                f"warning: the warmup of {warmup:,} steps is longer than the run of "
                f"{self._total:,} steps, so the learning rate only rises to {largest:.2g}; "
                "set optimizer.warmup_steps"
            )

    def _check_skipped(self, step: int, sums: dict[str, float]) -> None:
        """Logs skipped batches.

        Raises DivergenceError unless the run may skip them, and if the last reports skipped
        all of their batches: at least SKIPPED, or all batches of a shorter run.
        """
        steps, skipped = sums["steps"], int(sums["skipped"])
        self._skipped += skipped
        if steps:
            self._skipped = 0
        if not skipped:
            return
        line = skipped_batches(step, sums)
        too_many = min(SKIPPED, self._total)  # of a shorter run: all
        if not self.config.optimizer.skip_spikes or self._skipped >= too_many:
            raise DivergenceError(line)
        self.log(f"warning: {line}")

    def _metrics(self, step: int, sums: dict[str, float]) -> dict[str, float]:
        """The metrics of the objective and of the engine."""
        steps = sums["steps"]
        metrics = self.objective.metrics(sums) | {
            "loss": sums["step_loss"] / steps,
            "learning_rate": float(learning_rate(self.schedule, step - 1)),
            "grad_norm": sums["grad_norm"] / steps,
            "padding": 1 - sums["tokens"] / sums["computed_tokens"],
        }
        if self.config.optimizer.skip_spikes:
            metrics["skipped"] = int(sums["skipped"])
        return metrics

    def write(self, step: int, split: str, metrics: dict[str, float | None]) -> None:
        """Writes metrics of a split, in process 0; see MetricWriter."""
        if self.writer is not None:
            self.writer.write(step, split, metrics)


def skipped_batches(step: int, sums: Mapping[str, Any]) -> str:
    """A line about the skipped batches in the sums of a window that ends at ``step``."""
    skipped = int(sums["skipped"])
    return (
        f"skipped {skipped} of {skipped + sums['steps']:.0f} batches before step {step}, "
        "whose loss or gradient norm was not finite or over the spike_norm"
    )


def check_finite(step: int, values: dict[str, Any]) -> None:
    """Raises DivergenceError if a value is not finite."""
    names = {"step_loss": "loss", "grad_norm": "gradient norm"}
    for name, value in values.items():
        if not math.isfinite(float(value)):
            change = f"{names.get(name, name)} became {float(value)}"
            raise DivergenceError(f"the {change} in the steps before step {step}")


def open_tracker(
    library: ModuleType, run: str, run_id: str, config: dict[str, Any]
) -> None:
    """Starts or resumes a run of wandb or trackio.

    run: name of the workdir. run_id: id of the run, which wandb resumes by. trackio resumes
    by name, so its names contain the id.
    """
    names = {"name": f"{run}-{run_id}"}
    if library.__name__ == "wandb":
        names = {"name": run, "id": run_id}
    library.init(project="bert_jax", config=config, resume="allow", **names)


class MetricWriter:
    """Appends the metrics of each report to metrics.jsonl, and sends them to trackers.

    A line is a JSON object with ``step``, ``split`` and the metrics. TensorBoard and
    ``tracker`` receive the same numbers.
    step: number of steps done before. A resumed run keeps the lines up to it.
    tracker: library of :func:`open_tracker`.
    last_seconds, lost_seconds: time of the run, and the time that it lost, according to all
      old lines, including dropped lines.
    """

    def __init__(self, workdir: Path, step: int, tracker: ModuleType | None = None):
        self._tracker, path = tracker, workdir / METRICS
        # A run that starts at step 0 evaluates step 0 again, so no old line is kept.
        old = read_metrics(path) if path.exists() else []
        self.last_seconds = self.lost_seconds = 0.0
        for line in old:
            if line.get("seconds") is not None:
                self.last_seconds = max(self.last_seconds, line["seconds"])
            if line.get("lost_seconds") is not None:
                self.lost_seconds = max(self.lost_seconds, line["lost_seconds"])
        if not step:
            old = []
        kept = [json.dumps(line) + "\n" for line in old if line["step"] <= step]
        write_text(path, "".join(kept))  # a new file, not the target of a link
        self._file = path.open("a")
        self._tensorboard = SummaryWriter(
            str(workdir / TENSORBOARD), purge_step=step + 1 if step else None
        )

    def write(self, step: int, split: str, metrics: dict[str, float | None]) -> None:
        """Writes a line. TensorBoard and the tracker receive the finite numbers."""
        self._file.write(json.dumps({"step": step, "split": split, **metrics}) + "\n")
        self._file.flush()
        numbers = {
            f"{split}/{name}": value
            for name, value in metrics.items()
            if value is not None and math.isfinite(value)
        }
        for name, value in numbers.items():
            self._tensorboard.add_scalar(name, value, step)
        if self._tracker is not None:
            self._tracker.log(numbers, step=step)

    def sync(self) -> None:
        """Writes all lines to the disk, before a checkpoint of the same step.

        Raises UserError if the workdir was moved.
        """
        self._file.flush()
        os.fsync(self._file.fileno())
        if not Path(self._file.name).exists():
            again = "put the workdir back and run the same command again"
            raise UserError(f"{self._file.name} is no longer there; {again}")
        self._tensorboard.flush()

    def close(self) -> None:
        """Closes the files, and ends the tracker's run."""
        self._file.close()
        self._tensorboard.close()
        if self._tracker is not None:
            self._tracker.finish()


def peak_flops(devices: Sequence[jax.Device]) -> float | None:
    """Peak FLOP/s of equal devices; None for CPUs and for unknown devices."""
    kind = devices[0].device_kind
    if " MIG " in kind:
        return None  # a part of a GPU
    # Whole words, and the longest match: an "L40" is not an "L4", and "TPU v5 lite" is not
    # a "TPU v5".
    names = [name for name in PEAK_FLOPS if re.match(rf"{re.escape(name)}\b", kind)]
    return len(devices) * PEAK_FLOPS[max(names, key=len)] if names else None
