"""Every row of a split through the model exactly once, on any number of devices."""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.parallel.mesh import put_batch, steps_ahead
from bert_jax.tasks.batches import (
    WORTH,
    bucket_lengths,
    evaluation_order,
    make_batch,
    unit_lengths,
)
from bert_jax.tasks.task import Features, Task

AnyBatch = TypeVar("AnyBatch")

# What the model reads; with targets too, a labelled split and one without labels would
# compile the same shape twice.
_INPUTS = ("input_ids", "token_type_ids", "attention_mask", "segment_ids")
_INPUTS += ("starts", "hidden")


@dataclasses.dataclass(frozen=True)
class Split:
    """Rows of one file and their sequences. hidden: of a frozen encoder, if any."""

    name: str
    rows: Sequence[Any]
    features: Features
    hidden: Sequence[np.ndarray] | None = None


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """scores: empty for a split without labels."""

    predictions: list[dict[str, Any]]
    scores: dict[str, float]


def evaluate(task: Task, split: Split, outputs: Sequence[np.ndarray]) -> Evaluation:
    """Predictions and, where the rows have labels, their scores."""
    predictions = task.predictions(split.rows, split.features, outputs)
    labelled = split.name in task.eval_splits
    return Evaluation(
        predictions, task.score(split.rows, predictions) if labelled else {}
    )


def evaluate_tuned(
    task: Task, split: Split, outputs: Sequence[np.ndarray]
) -> tuple[Task, Evaluation]:
    """The task with its thresholds tuned on a labelled split, and evaluated with them."""
    evaluation = evaluate(task, split, outputs)
    tuned = task.tuned(evaluation.scores)
    return tuned, evaluation if tuned is task else evaluate(tuned, split, outputs)


def run_model(
    forward: Callable,
    params: Any,
    split: Split,
    *,
    batch_size: int,
    buckets: Sequence[int],
    pad_id: int,
    mesh: Mesh,
) -> list[np.ndarray]:
    """The logits of each sequence of ``split``, as Task.predictions takes them.

    ``forward`` is what jit_forward gives. A batch that is not full is filled with rows
    whose outputs are dropped.
    """
    features = split.features
    outputs: list[Any] = [None] * len(features.input_ids)
    batches = (
        make_batch(features, units, batch_size, buckets, pad_id, split.hidden)
        for units in evaluation_order(unit_lengths(features), batch_size)
    )
    for batch, logits in with_outputs(forward, params, batches, mesh):
        for unit, values in zip(batch.units, logits, strict=True):
            if unit < 0:
                continue
            if features.choices > 1:
                first = unit * features.choices
                outputs[first : first + features.choices] = list(values)
            elif values.ndim == 2:  # an output a token
                outputs[unit] = values[: len(features.input_ids[unit])]
            else:
                outputs[unit] = values
    return outputs


def with_outputs(
    forward: Callable, params: Any, batches: Iterable[AnyBatch], mesh: Mesh
) -> Iterator[tuple[AnyBatch, np.ndarray]]:
    """Each batch, whose ``arrays`` the model reads, and what ``forward`` gives for it.

    The host makes the next batches while an accelerator is at work.
    """
    ahead = steps_ahead(mesh)
    pending: collections.deque[tuple[AnyBatch, jax.Array]] = collections.deque()
    for batch in batches:
        inputs = {k: v for k, v in batch.arrays.items() if k in _INPUTS}
        pending.append((batch, forward(params, put_rows(inputs, mesh))))
        if len(pending) > ahead:
            done, outputs = pending.popleft()
            yield done, jax.device_get(outputs)
    for done, outputs in pending:
        yield done, jax.device_get(outputs)


def put_rows(arrays: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Puts this host's share of a global batch, which every host has made, on devices."""
    hosts, host = jax.process_count(), jax.process_index()
    mine = {name: np.split(array, hosts)[host] for name, array in arrays.items()}
    return put_batch(mine, mesh)


def shared_buckets(
    splits: Sequence[Split], batch_size: int, most: int, longest: int
) -> tuple[int, ...]:
    """Bucket lengths that serve all these splits."""
    maxima = [
        lengths[units].max()
        for split in splits
        for lengths in [unit_lengths(split.features)]
        for units in evaluation_order(lengths, batch_size)
    ]
    return bucket_lengths(np.array(maxima), most, longest, WORTH)
