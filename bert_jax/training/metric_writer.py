"""Metrics to metrics.jsonl and TensorBoard, from one process."""

import json
import math
import os
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter


class NoWriter:
    """What the processes that do not log write to."""

    def write(self, step: int, split: str, metrics: dict[str, float | None]) -> None:
        """Writes nothing."""

    def sync(self) -> None:
        """Nothing to make durable."""

    def close(self) -> None:
        """Nothing to close."""


class MetricWriter:
    """Appends one JSON object a line: ``step``, ``split``, then the metrics.

    Opening it after a resume drops the lines after ``step``, so that the file goes on
    as if the run had never stopped; a torn last line goes too.
    """

    def __init__(self, workdir: Path, step: int):
        self._path = workdir / "metrics.jsonl"
        if self._path.exists():
            _drop_lines_after(self._path, step)
        self._file = self._path.open("a")
        self._tensorboard = SummaryWriter(
            str(workdir / "tensorboard"), purge_step=step + 1 if step else None
        )

    def write(self, step: int, split: str, metrics: dict[str, float | None]) -> None:
        """Writes one line and its TensorBoard scalars; None becomes null."""
        self._file.write(json.dumps({"step": step, "split": split, **metrics}) + "\n")
        self._file.flush()
        for name, value in metrics.items():
            if value is not None and math.isfinite(value):
                self._tensorboard.add_scalar(f"{split}/{name}", value, step)

    def sync(self) -> None:
        """Makes every line durable: called before a checkpoint of the same step."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._tensorboard.flush()

    def close(self) -> None:
        """Closes both files."""
        self._file.close()
        self._tensorboard.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, without a torn last one."""
    lines = []
    for line in path.read_text().splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines


def _drop_lines_after(path: Path, step: int) -> None:
    kept = [line for line in read_metrics(path) if line["step"] <= step]
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))
    temporary.replace(path)
