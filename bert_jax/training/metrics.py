"""What a run reports: metrics of a window of steps, in files and as lines of a log."""

import importlib
import json
import math
import os
import textwrap
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from tensorboardX import SummaryWriter

from bert_jax.errors import DivergenceError, UserError
from bert_jax.files import write_text
from bert_jax.model.kernels.device import activation_dtype
from bert_jax.objectives.objective import Batch, Objective
from bert_jax.progress import Progress
from bert_jax.runs import METRICS, read_metrics
from bert_jax.training.config import FineTuneConfig, RunConfig
from bert_jax.training.optimizer import Schedule, learning_rate

# Dense bfloat16 FLOP/s of what JAX calls one device, from the vendors' data sheets.
# TPU v2, v3 and v7x show each chip as two devices.
PEAK_FLOPS = {
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "TPU7x": 1153.5e12,
    "Tesla V100": 125e12,
    "Tesla T4": 65e12,
    "NVIDIA A100": 312e12,
    "NVIDIA L4": 121e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA B200": 2250e12,
}


TENSORBOARD = "tensorboard"  # the folder of its files, profiles too
# Steps whose pace foretells that of a run which has at least LONG to go.
FIRST_STEPS, LONG = 10, 100


class Reporter:
    """Turns the sums of a window of steps into a line of metrics, one step late.

    writer: of process 0; None for the others. log takes lines for people. progress: the
    tokens and the seconds of the whole run are added up there. first: the step that a
    resumed run goes on from. bar: how far the run is; the loop counts its steps.
    """

    def __init__(
        self,
        config: RunConfig,
        objective: Objective,
        schedule: Schedule,
        writer: "MetricWriter | None",
        log: Callable[[str], None],
        progress: dict[str, Any],
        first: int,
    ):
        self._config, self._optimizer = config, config.optimizer
        self.log, self.progress, self._writer = log, progress, writer
        self._objective, self._schedule = objective, schedule
        self._total_steps = int(schedule.total_steps)
        self._peak = peak_flops(config.compute.dtype)
        self._began = time.perf_counter() - progress.get("seconds", 0.0)
        self._foretold = False
        self.bar = Progress(
            "training",
            total=self._total_steps,
            initial=first,
            unit="steps",
            lines=False,
        )
        self._pending: tuple[int, dict, dict] | None = None
        self.start_window()

    @property
    def seconds(self) -> float:
        """Of the whole run so far, also before it was resumed."""
        return time.perf_counter() - self._began

    def start_window(self) -> None:
        """Forgets time that was not spent on steps: evaluation, compilation."""
        self.bar.unpause()
        self._forget()

    def _forget(self) -> None:
        self._start = time.perf_counter()
        self._steps, self._wait, self._tokens, self._flops = 0, 0.0, 0.0, 0.0

    def add_step(self, step: int, batch: Batch, wait: float) -> None:
        """Counts the work of a step; wait: seconds until its batch was there."""
        self._steps += 1
        self._tokens += batch["input_ids"].size  # of the global batch, padding too
        self._flops += self._objective.flops(batch)
        self._wait += wait
        if self._steps == FIRST_STEPS:
            self._foretell(step)

    def _foretell(self, step: int) -> None:
        """Logs once how long the run will take at the pace of this window."""
        left = self._total_steps - step
        if self._foretold or left < LONG:
            return
        self._foretold = True
        seconds = (time.perf_counter() - self._start) / self._steps
        tokens = self._tokens / self._steps
        self.log(
            f"{left:,} steps to go with {left * tokens:,.0f} tokens: "
            f"about {duration(left * seconds)} at the pace of the first steps"
        )

    def report(self, step: int, sums: dict[str, jax.Array]) -> None:
        """Takes the sums of the window that ends at ``step``; flush writes them."""
        seconds = time.perf_counter() - self._start
        rates = dict.fromkeys(("tokens_per_second", "mfu", "data_wait", "seconds_left"))
        if self._steps:  # a window that holds only the step that was compiled has none
            left = self._total_steps - step
            rates["tokens_per_second"] = self._tokens / seconds
            rates["data_wait"] = self._wait / seconds
            rates["seconds_left"] = left * seconds / self._steps
            if self._peak is not None:
                rates["mfu"] = self._flops / seconds / self._peak
            self._foretell(step)
        rates["seconds"] = self.seconds
        self._pending = (step, sums, rates)
        self._forget()

    def flush(self) -> None:
        """Writes the pending line; raises DivergenceError where it is not finite."""
        if self._pending is None:
            return
        step, device_sums, rates = self._pending
        self._pending = None
        sums = {k: float(v) for k, v in jax.device_get(device_sums).items()}
        check_finite(step, sums, self._config)
        if sums["skipped"]:
            self._tell_spikes(step, int(sums["skipped"]), sums["steps"])
        for name in ("tokens", "computed_tokens"):
            self.progress[name] = self.progress.get(name, 0.0) + sums[name]
        metrics = self._objective.metrics(sums)
        metrics["loss"] = sums["step_loss"] / sums["steps"]
        # That of the step that ended the window. A scalar's arithmetic on the device: the
        # one transfer that the loop allows.
        with jax.transfer_guard("allow"):
            metrics["learning_rate"] = float(learning_rate(self._schedule, step - 1))
        metrics["grad_norm"] = sums["grad_norm"] / sums["steps"]
        metrics["padding"] = 1 - sums["tokens"] / sums["computed_tokens"]
        if self._optimizer.skip_spikes:
            metrics["skipped"] = int(sums["skipped"])
        self.write(step, "train", metrics | rates)
        parts = [f"loss {metrics['loss']:.4f}", self._objective.summary(metrics)]
        left = ""
        if rates["tokens_per_second"] is not None:
            parts.append(f"{rates['tokens_per_second']:,.0f} tokens/s")
            left = f"  {duration(rates['seconds_left'])} left"
        status = "  ".join(filter(None, parts))
        self.bar.set_postfix_str(status, refresh=False)
        self.log(f"step {step}/{self._total_steps}  {status}{left}")

    def _tell_spikes(self, step: int, count: int, steps: float) -> None:
        """Logs that batches were left out; raises DivergenceError where that is an end."""
        norm = self._optimizer.spike_norm
        over = f"a gradient norm over {norm:g}, or " if norm else ""
        what = (
            f"{count} batch{'es' if count > 1 else ''} before step {step} had {over}a "
            "number that is not finite, and no part in any step"
        )
        if not self._optimizer.skip_spikes:
            raise DivergenceError(
                f"{what}: set optimizer.skip_spikes=True to skip them, and resume "
                "with the same workdir and change_settings; or lower the learning "
                f"rate, and {_start_again(self._config)}"
            )
        if not steps:
            raise DivergenceError(
                f"{what}: all since the last report; lower the learning rate, and "
                f"{_start_again(self._config)}"
            )
        self.log(f"warning: {what}")

    def write(self, step: int, split: str, metrics: dict[str, float | None]) -> None:
        """Writes metrics of a split; see MetricWriter."""
        if self._writer is not None:
            self._writer.write(step, split, metrics)


def check_finite(step: int, values: dict[str, Any], config: RunConfig) -> None:
    """Raises DivergenceError if a value is not finite. config: that of the run."""
    names = {"step_loss": "loss", "grad_norm": "gradient norm"}
    for name, value in values.items():
        if not math.isfinite(float(value)):
            raise DivergenceError(
                f"the {names.get(name, name)} became {float(value)} in the steps before "
                f"step {step}; the last good checkpoint is kept: lower "
                "optimizer.learning_rate or set compute.dtype=float32, "
                f"and {_start_again(config)}"
            )


def _start_again(config: RunConfig) -> str:
    """How a diverged run is started with other settings that change its scores."""
    if isinstance(config, FineTuneConfig):  # a run cannot change these settings
        return "start again with another workdir"
    return "resume with the same workdir and change_settings"


def duration(seconds: float) -> str:
    """Such as 3 d 4 h, 2 h 5 min, 7 min 10 s, 12 s: the two largest units."""
    left, parts = round(seconds), []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts or unit == "s":
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def open_tracker(
    name: str, run: str, run_id: str, config: dict[str, Any]
) -> ModuleType | None:
    """Starts or resumes a run of an experiment tracker, and returns its library.

    name: wandb or trackio, which have the same init, log and finish; "" returns None.
    run: name of the workdir. run_id: id that a resumed run has again. wandb resumes the
    run with this id. trackio has no ids and resumes by name, so its names contain the id.
    Raises UserError if the library is not installed.
    """
    if not name:
        return None
    try:
        library = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"tracker={name!r} needs its library: pip install {name}"
        ) from error
    own = {"name": run, "id": run_id}
    if name == "trackio":
        own = {"name": f"{run}-{run_id}"}
    library.init(project="bert_jax", config=config, resume="allow", **own)
    return library


class MetricWriter:
    """Appends one JSON object a line: ``step``, ``split``, then the metrics.

    Opening it after a resume drops the lines after ``step``, so that the file goes on
    as if the run had never stopped; a torn last line goes too. TensorBoard and
    ``tracker``, see :func:`open_tracker`, get the same numbers.
    """

    def __init__(self, workdir: Path, step: int, tracker: ModuleType | None = None):
        self._tracker = tracker
        path = workdir / METRICS
        # A run that starts again evaluates step 0 again.
        old = read_metrics(path) if step and path.exists() else []
        kept = [line for line in old if line["step"] <= step]
        # A new file: lines are never appended to the target of a link.
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
        self._file = path.open("a")
        self._tensorboard = SummaryWriter(
            str(workdir / TENSORBOARD), purge_step=step + 1 if step else None
        )

    def write(self, step: int, split: str, metrics: dict[str, float | None]) -> None:
        """Writes one line, and numbers for TensorBoard and the tracker; None is null."""
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

    def write_text(self, step: int, name: str, text: str) -> None:
        """Shows a text in TensorBoard, its lines as they are."""
        indented = textwrap.indent(text, " " * 4)  # Markdown: as it is
        self._tensorboard.add_text(name, indented, step)

    def sync(self) -> None:
        """Makes every line durable: called before a checkpoint of the same step.

        Raises UserError where the file is gone, as with a workdir that was moved away:
        checkpoints would begin a new one.
        """
        self._file.flush()
        os.fsync(self._file.fileno())
        path, file = Path(self._file.name), os.fstat(self._file.fileno())
        if not (path.exists() and os.path.samestat(file, path.stat())):
            raise UserError(
                f"{path} is no longer there; put the workdir back and run the same command "
                "again: it goes on from the last checkpoint"
            )
        self._tensorboard.flush()

    def close(self) -> None:
        """Closes the files, and ends the tracker's run."""
        self._file.close()
        self._tensorboard.close()
        if self._tracker is not None:
            self._tracker.finish()


def peak_flops(dtype: str = "auto") -> float | None:
    """Peak FLOP/s of all devices together: by data sheet, on CPUs by measurement.

    dtype: of the products that a CPU is measured by, as ComputeConfig.dtype. None for an
    accelerator that the table does not know; its MFU is then not reported.
    """
    devices = jax.devices()
    if devices[0].platform == "cpu":  # one process's devices share the same cores
        return _measured_flops(activation_dtype(dtype)) * jax.process_count()
    peak = data_sheet_flops(devices[0].device_kind)
    return peak * len(devices) if peak else None


def data_sheet_flops(kind: str) -> float | None:
    """Peak FLOP/s of a device of a kind, as JAX calls it; None where it is not known."""
    # The longest match, so that "TPU v5 lite" is not read as "TPU v5".
    names = [name for name in PEAK_FLOPS if kind.startswith(name)]
    return PEAK_FLOPS[max(names, key=len)] if names else None


def _measured_flops(dtype: jnp.dtype, size: int = 1024) -> float:
    """FLOP/s of a matrix product over all cores: the best of five runs."""
    x = jnp.ones((size, size), dtype)
    product = jax.jit(jnp.matmul).lower(x, x).compile()
    seconds = timeit.repeat(lambda: product(x, x).block_until_ready(), number=1)
    return 2 * size**3 / min(seconds)
