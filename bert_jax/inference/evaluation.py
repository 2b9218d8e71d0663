"""Runs a model on sequences of any number, on any number of devices and hosts."""

import collections
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.data.batching import Features, RowBatch, inference_batches
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.interop.checkpoint import (
    Checkpoint,
    check_length,
    check_types,
    check_vocabulary,
)
from bert_jax.interop.load import load
from bert_jax.model.config import ComputeConfig
from bert_jax.model.heads import BertWithBiLstm
from bert_jax.model.kernels.device import activation_dtype
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.heads import jit_whole
from bert_jax.parallel.mesh import (
    MeshConfig,
    batch_divisor,
    make_mesh,
    process_rows,
    put_batch,
    steps_ahead,
)
from bert_jax.parallel.sharding import tree_shardings
from bert_jax.progress import Progress
from bert_jax.tasks.task import Task

CHUNK = 512  # sequences whose frozen features are in memory together


def opened(
    source: Checkpoint | os.PathLike | str,
    dtype: str | None = None,
    batch_size: int = 1,
    max_length: int = 0,
) -> tuple[Checkpoint, str]:
    """A checkpoint with a vocabulary, and its name in errors.

    source: the checkpoint, or its path. dtype: a value of ComputeConfig.dtype; None for the
    checkpoint's own. Raises UserError if batch_size or max_length is out of range.
    """
    if batch_size < 1:
        raise UserError(f"batch_size={batch_size}, expected at least 1")
    name = "the checkpoint"
    if not isinstance(source, Checkpoint):
        source, name = load(source), os.fspath(source)
    check_vocabulary(source, name)
    check_length(max_length, source, "max_length")
    if dtype:
        compute = dataclasses.replace(source.compute, dtype=dtype)
        source = dataclasses.replace(source, compute=compute)
    return source, name


def single_text(
    tokenizer: Tokenizer, where: str, text: str, limit: int, **options: bool
) -> np.ndarray:
    """[CLS] text [SEP], int32 (L,). Raises UserError for over ``limit`` tokens.

    where: place of the text in errors. options: see Tokenizer.encode.
    """
    ids = tokenizer.encode(text, **options)
    if len(ids) + 2 > limit:
        raise UserError(
            f"{where} has {len(ids) + 2} tokens, at most {limit} fit; shorten it"
        )
    return np.array([tokenizer.cls_id, *ids, tokenizer.sep_id], np.int32)


@dataclasses.dataclass(frozen=True)
class Split:
    """The rows of a split and their sequences."""

    name: str
    rows: Sequence[Any]
    features: Features


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """scores: empty for a split without labels."""

    predictions: list[dict[str, Any]]
    scores: dict[str, float]


def run_model(
    forward: Callable,
    params: Any,
    features: Features,
    *,
    mesh: Mesh,
    done: Callable[[float], None] | None = None,
    **batching: Any,
) -> list[np.ndarray]:
    """The outputs of ``forward`` for each sequence, in order, on every process.

    forward: function of (params, batch) that returns float32 on every device. For R rows of
      L tokens and S slots it returns (R, S, ...), and a sequence gets the values of its
      slot, or (R, L, ...), and a sequence gets the values of its tokens (L_i, ...).
    done: function that is called with the share of the sequences that is done.
    batching: batch_size, limit, pad_id and packed of inference_batches().
    """
    ended = 0
    outputs: list[Any] = [None] * len(features.input_ids)
    batches = inference_batches(features, multiple=batch_divisor(mesh), **batching)
    for batch, values in _with_outputs(forward, params, batches, mesh):
        length = batch.arrays["input_ids"].shape[1]
        by_token = values.shape[1] == length
        for r, row in enumerate(batch.rows):
            start = 0
            for slot, sequence in enumerate(row):
                end = start + len(features.input_ids[sequence])
                if by_token:
                    outputs[sequence] = values[r, start:end]
                else:  # a view would keep the empty slots in memory
                    outputs[sequence] = np.array(values[r, slot])
                start = end
            ended += len(row)
        if done is not None:
            done(ended / len(outputs))
    return outputs


def _with_outputs(
    forward: Callable, params: Any, batches: Iterable[RowBatch], mesh: Mesh
) -> Iterator[tuple[RowBatch, np.ndarray]]:
    """Each batch with its outputs.

    Every process makes the whole batch and puts its own rows on its devices. It makes the
    next batches while an accelerator computes.
    """
    ahead = steps_ahead(mesh)
    pending: collections.deque[tuple[RowBatch, jax.Array]] = collections.deque()
    for batch in batches:
        own = {
            name: array[process_rows(mesh, len(array))]
            for name, array in batch.arrays.items()
        }
        pending.append((batch, forward(params, put_batch(own, mesh))))
        if len(pending) > ahead:
            first, outputs = pending.popleft()
            yield first, jax.device_get(outputs)
    for first, outputs in pending:
        yield first, jax.device_get(outputs)


def runner(
    function: Callable,
    params: Any,
    checkpoint: Checkpoint,
    *,
    batch_size: int,
    packed: bool = True,
    mesh: Mesh | None = None,
) -> Callable[..., list[np.ndarray]]:
    """:func:`run_model` with a ``function`` of (params, batch).

    packed: whether texts share rows; texts of an LSTM never do. mesh: None for one of all
    devices. The returned function raises UserError for pairs if the model has one token
    type, and for outputs that are not finite.
    """
    mesh = mesh or make_mesh(MeshConfig())
    run = functools.partial(
        run_model,
        jit_whole(mesh, function),
        on_devices(params, checkpoint.compute, mesh),
        batch_size=batch_size,
        limit=checkpoint.config.max_positions,
        pad_id=checkpoint.tokenizer.pad_id,
        mesh=mesh,
        packed=packed and checkpoint.config.kind.attends,
    )

    def checked(features: Features, **options: Any) -> list[np.ndarray]:
        check_types(features.token_type_ids, checkpoint.config)
        outputs = run(features, **options)
        if not all(np.isfinite(output).all() for output in outputs):
            raise UserError(
                "the model's outputs are not finite numbers; take another checkpoint, such "
                "as an earlier one of the run"
            )
        return outputs

    return checked


def on_devices(params: Any, compute: ComputeConfig, mesh: Mesh | None = None) -> Any:
    """The parameters on all devices, with the encoder's kernels in the compute dtype.

    Arrays that are already on the devices in this dtype are not copied. The model would
    cast float32 kernels at every call. The numbers are equal, but for a single text the
    cast takes as long as the matrix products.
    """
    dtype = activation_dtype(compute.dtype)

    def cast(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        keys = [entry.key for entry in path]
        of_product = "encoder" in keys and keys[-1] == "kernel"
        return leaf.astype(dtype) if of_product and leaf.dtype != dtype else leaf

    params = jax.tree.map_with_path(cast, params)
    mesh = mesh or make_mesh(MeshConfig())
    return jax.device_put(params, tree_shardings(params, mesh))


def evaluate(task: Task, split: Split, outputs: Sequence[np.ndarray]) -> Evaluation:
    """Predictions and, if the rows have labels, their scores."""
    predictions = task.decode(split.rows, split.features, outputs)
    labelled = split.name in task.source.eval_splits
    return Evaluation(
        predictions, task.score(split.rows, predictions) if labelled else {}
    )


def evaluate_tuned(
    task: Task, split: Split, outputs: Sequence[np.ndarray]
) -> tuple[Task, Evaluation]:
    """The task with thresholds tuned on a split with labels, and its evaluation."""
    evaluation = evaluate(task, split, outputs)
    tuned = task.tuned(evaluation.scores)
    return tuned, evaluation if tuned is task else evaluate(tuned, split, outputs)


def with_hidden(
    split: Split,
    model: BertWithBiLstm,
    checkpoint: Checkpoint,
    folder: Path,
    *,
    batch_size: int,
    mesh: Mesh,
    log: Callable[[str], None],
) -> Split:
    """The split with Features.hidden, as a memory map of 4 * W bytes a token.

    ``folder`` can be deleted after the run.
    """
    features = split.features
    lengths = features.lengths_UC.ravel()

    def vectors(params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        tokens = Tokens.of_batch(batch)
        return model.apply({"params": params}, tokens, method="features")

    params = {"bert": checkpoint.params["bert"]}
    run = runner(vectors, params, checkpoint, batch_size=batch_size, mesh=mesh)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{split.name}-{jax.process_index()}.npy"
    shape = (int(lengths.sum()), model.width)
    path.unlink(missing_ok=True)  # a link, whose target would be overwritten
    states = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    hidden = np.split(states, np.cumsum(lengths)[:-1])
    with Progress(
        f"features of {split.name}", total=len(lengths), unit="sequences"
    ) as progress:
        for first in range(0, len(lengths), CHUNK):
            part = slice(first, first + CHUNK)
            ids, types = features.input_ids[part], features.token_type_ids[part]
            own = Features(ids, types, np.arange(len(ids)))
            outputs = run(own, done=progress.part(len(ids)))
            for place, output in zip(hidden[part], outputs, strict=True):
                place[:] = output
    states.flush()
    log(f"{split.name}: {shape[0]:,} vectors of {shape[1]:,} in {path}")
    features = dataclasses.replace(features, hidden=hidden)
    return dataclasses.replace(split, features=features)
