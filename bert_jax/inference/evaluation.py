"""Runs a model on any number of rows, on any number of devices and hosts."""

import collections
import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh

from bert_jax.data import sequences
from bert_jax.data.batching import Features, inference_batches
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError, counted
from bert_jax.files import new_file
from bert_jax.interop import checkpoint as checks
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.load import load
from bert_jax.model.config import DTYPES, ComputeConfig
from bert_jax.model.heads import BertWithBiLstm
from bert_jax.model.kernels.device import activation_dtype
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.heads import jit_forward, jit_whole
from bert_jax.parallel import mesh as meshes
from bert_jax.parallel.sharding import tree_shardings
from bert_jax.progress import Progress
from bert_jax.settings import check_ranges, from_settings, setting
from bert_jax.tasks.rows import Placed, count_rows, placed_rows
from bert_jax.tasks.task import Outputs, Task, all_scores, joined_features, tuned

logger = logging.getLogger(__name__)

CHUNK = 4096  # rows that are in memory together
HIDDEN = 512  # sequences whose frozen features are in memory together
Columns = str | Sequence[str]  # name of a column, or names
Stored = Checkpoint | os.PathLike | str  # a checkpoint, or what bert_jax.load reads
Arrays = np.ndarray | list[np.ndarray]  # a list if the shapes of the rows differ


def run_model(
    forward: Callable,
    params: Any,
    features: Features,
    *,
    mesh: Mesh,
    done: Callable[[float], None] = lambda share: None,
    **batching: Any,
) -> list[np.ndarray]:
    """The outputs of ``forward`` for each sequence, in order, on every process.

    Every process makes the whole batch and puts its own rows on its devices. It makes the
    next batches while an accelerator computes.

    forward: function of (params, batch) that returns float32 on every device. The batch has
      R rows of L tokens, with S slots for sequences. The result is (R, S, ...), one value
      for each sequence, or (R, L, ...), one value for each token.
    done: function that is called with the share of sequences that are finished.
    batching: batch_size, limit, pad_id and packed of inference_batches().
    """
    outputs, pending = {}, collections.deque()

    def collect(rows: list[list[int]], length: int, values: jax.Array) -> None:
        values = jax.device_get(values)
        for row, of_row in zip(rows, values, strict=False):
            start = 0
            for slot, i in enumerate(row):
                end = start + len(features.input_ids[i])
                # A view of a slot would keep the batch's empty slots in memory.
                by_token = values.shape[1] == length
                outputs[i] = of_row[start:end] if by_token else of_row[slot].copy()
                start = end
        done(len(outputs) / len(features.input_ids))

    divisor = meshes.batch_divisor(mesh)
    for rows, arrays in inference_batches(features, multiple=divisor, **batching):
        count, length = arrays["input_ids"].shape
        part = meshes.process_rows(mesh, count)
        local = {name: array[part] for name, array in arrays.items()}
        values = forward(params, meshes.put_batch(local, mesh))
        pending.append((rows, length, values))
        if len(pending) > meshes.steps_ahead(mesh):
            collect(*pending.popleft())
    for batch in pending:
        collect(*batch)
    return [outputs[i] for i in range(len(outputs))]


def runner(
    checkpoint: Checkpoint,
    function: Callable | nn.Module,
    params: Any,
    *,
    batch_size: int,
    packed: bool = True,
    mesh: Mesh | None = None,
) -> Callable[..., list[np.ndarray]]:
    """:func:`run_model` with a ``function`` of (params, batch), or a model's logits.

    packed: whether texts share rows; texts of an LSTM never do. mesh: None means all
    devices. The returned function raises UserError for pairs if the model has one token
    type, and for outputs that are not finite.
    """
    mesh = mesh or meshes.make_mesh(meshes.MeshConfig())
    jit = jit_forward if isinstance(function, nn.Module) else jit_whole
    forward = jit(mesh, function)
    params = on_devices(params, checkpoint.compute, mesh)
    settings = {
        "batch_size": batch_size,
        "limit": checkpoint.config.max_positions,
        "pad_id": checkpoint.tokenizer.pad_id,
        "packed": packed and checkpoint.config.kind.attends,
    }

    def run(features: Features, **options: Any) -> list[np.ndarray]:
        checks.check_types(features.token_type_ids, checkpoint.config)
        outputs = run_model(forward, params, features, mesh=mesh, **settings, **options)
        if not all(np.isfinite(output).all() for output in outputs):
            needed = "use another checkpoint, such as an earlier one of the run"
            raise UserError(f"the model's outputs are not finite numbers; {needed}")
        return outputs

    return run


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
    mesh = mesh or meshes.make_mesh(meshes.MeshConfig())
    return jax.device_put(params, tree_shardings(params, mesh))


class Answers(NamedTuple):
    """The sequences of some rows, and an answer to each row, in order."""

    features: Features
    answers: Sequence[Any]


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of every Inference. A subclass adds the options of a method."""

    batch_size: int = setting(
        32, "rows in a batch at length 32; fewer at longer lengths", least=1
    )
    max_length: int = setting(
        0,
        "maximum number of tokens of a sequence; 0: as trained, or all positions",
        least=0,
    )
    dtype: str | None = setting(
        None, "dtype of the activations; None: as loaded", one_of=DTYPES
    )
    show_progress: bool | None = setting(
        None, "whether to show a progress bar; None: on a terminal and in a notebook"
    )

    def __post_init__(self):
        check_ranges(self)


class Inference:
    """Answers rows with a checkpoint: the base of Embedder, Predictor and Scorer.

    checkpoint: anything that ``bert_jax.load`` reads, or a Checkpoint.
    options: fields of ``options_class``. Raises UserError for other names and types.

    A subclass makes ``_run`` with ``_runner``. It has ``_rows(placed, columns)``, which
    checks rows, and ``_encode(rows)``, which returns their Features.

    tabs: whether a line of text with tabs is a row of several texts. doing, noun: names of
      the work and of a row in messages.
    """

    options_class: type[Options] = Options
    tabs, doing, noun = True, "predicting", "text"

    def __init__(self, checkpoint: Stored, **options: Any):
        """See the class."""
        self.options = chosen = from_settings(self.options_class, options, "")
        self._name, self.max_length = "the checkpoint", chosen.max_length
        if not isinstance(checkpoint, Checkpoint):
            self._name, checkpoint = os.fspath(checkpoint), load(checkpoint)
        checks.check_vocabulary(checkpoint, self._name)
        checks.check_length(self.max_length, checkpoint, "max_length")
        if chosen.dtype:
            compute = dataclasses.replace(checkpoint.compute, dtype=chosen.dtype)
            checkpoint = dataclasses.replace(checkpoint, compute=compute)
        self.checkpoint, self.show = checkpoint, chosen.show_progress
        self._tokenizer, batch_size = checkpoint.tokenizer, chosen.batch_size
        self._runner = functools.partial(runner, checkpoint, batch_size=batch_size)

    def __call__(self, rows: Any, *, columns: Columns = ()) -> Any:
        """An answer for each row, in order.

        rows: see :func:`bert_jax.tasks.rows.placed_rows`. columns: see :meth:`stream`.
        """
        stream = self.stream(self.placed(rows), columns=columns, total=count_rows(rows))
        return [answer for part in stream for answer in part.answers]

    def placed(self, rows: Any) -> Iterator[Placed]:
        """The rows of any data, each with its place."""
        return placed_rows(rows, tabs=self.tabs)

    def stream(
        self,
        placed: Iterable[Placed],
        size: int = CHUNK,
        total: int | None = None,
        columns: Columns = (),
    ) -> Iterator[Answers]:
        """Yields answers, about ``size`` at a time. Memory holds one part.

        At the end it logs a warning with the number of truncated rows.

        total: number of rows, if known. columns: names of the columns of the text or texts
        in dictionaries, in order; empty: as trained, otherwise see
        :func:`bert_jax.tasks.rows.row_texts`.
        """
        rows = self._rows(placed, columns)
        parts = chunks(self._together(rows), size, self._cost)
        unit, answered, truncated = f"{self.noun}s", 0, 0
        # The bar of one row would flash, and leave a blank output in a notebook.
        show = False if total == 1 and self.show is None else self.show
        with Progress(self.doing, total=total, unit=unit, show=show) as progress:
            for part in parts:
                features = self._encode(part)
                outputs = self._run(features, done=progress.part(len(part)))
                yield Answers(features, self._decode(part, features, outputs))
                answered += len(part)
                truncated += features.truncated
        self.warn_truncated(truncated, answered)

    def warn_truncated(self, truncated: int, count: int) -> None:
        """Logs a warning if any of ``count`` rows were truncated."""
        if truncated:
            of = f"{truncated:,} of {counted(count, self.noun)}"
            logger.warning(f"{of} truncated to max_length={self.max_length}")

    def _decode(self, rows: list, features: Features, outputs: Outputs) -> Sequence:
        """The answers to rows. By default they are the outputs of the model."""
        return outputs

    def _together(self, rows: Iterable[Any]) -> Iterator[list[Any]]:
        """Yields groups of rows that are encoded together."""
        return ([row] for row in rows)

    def _cost(self, row: Any) -> float:
        """Memory for a row and its outputs; 1 for an ordinary row."""
        return 1


def chunks(
    groups: Iterable[list[Any]], size: int, cost: Callable[[Any], float]
) -> Iterator[list[Any]]:
    """Yields whole groups of rows, joined until the costs of the rows reach ``size``."""
    chunk, total = [], 0.0
    for rows in groups:
        chunk += rows
        total += sum(map(cost, rows))
        if total >= size:
            yield chunk
            chunk, total = [], 0.0
    if chunk:
        yield chunk


def text_features(
    tokenizer: Tokenizer, rows: Sequence[tuple[str, ...]], max_length: int
) -> Features:
    """Sequences [CLS] A [SEP] or [CLS] A [SEP] B [SEP] for rows of one text or two.

    A text that is too long loses its end. In a pair the longer text loses its end.
    """
    tokens = iter(tokenizer.encode_batch([text for row in rows for text in row]))
    joined, truncated = [], 0
    for row in rows:
        parts = [next(tokens) for _ in row]
        lengths = (*map(len, parts), 0)[:2]
        kept = sequences.pair_lengths(*lengths, max_length - 1 - len(parts))
        truncated += kept != lengths
        cut = [part[:length] for part, length in zip(parts, kept, strict=False)]
        joined.append(sequences.join(tokenizer, *cut))
    return joined_features(joined, np.arange(len(rows)), {}, truncated=truncated)


class Split(NamedTuple):
    """A split of a task: its rows and their sequences."""

    name: str
    rows: Sequence[Any]
    features: Features


class Evaluation(NamedTuple):
    """Answers and scores. scores: empty for a split without labels."""

    predictions: list[dict[str, Any]]
    scores: dict[str, float]


def evaluate(task: Task, split: Split, outputs: Sequence[np.ndarray]) -> Evaluation:
    """Predictions and, if the rows have labels, their scores."""
    answers = task.decode(split.rows, split.features, outputs)
    if split.name not in task.splits.scored:
        return Evaluation(answers, {})
    return Evaluation(answers, all_scores(task, split.rows, answers))


def evaluate_tuned(
    task: Task, split: Split, outputs: Sequence[np.ndarray]
) -> tuple[Task, Evaluation]:
    """The task with thresholds tuned on a split with labels, and its evaluation."""
    evaluation = evaluate(task, split, outputs)
    best = tuned(task, evaluation.scores)
    if best is not task:
        evaluation = evaluate(best, split, outputs)
    return best, evaluation


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
    """The split with Features.hidden, a memory map of 4 * W bytes for each token.

    ``folder`` can be deleted after the run.
    """
    features = split.features
    lengths = features.lengths_UC.ravel()

    def vectors(params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        tokens = Tokens.of_batch(batch)
        return model.apply({"params": params}, tokens, method="features")

    params = {"bert": checkpoint.params["bert"]}
    run = runner(checkpoint, vectors, params, batch_size=batch_size, mesh=mesh)
    path = folder / f"{split.name}-{jax.process_index()}.npy"
    shape = (int(lengths.sum()), model.width)
    parts = range(0, len(lengths), HIDDEN)
    # A full disk is an exception of a write. If the file were mapped meanwhile, it would be
    # a signal that ends the process.
    with new_file(path) as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for first in Progress(f"features of {split.name}", parts, unit="parts"):
            part = slice(first, first + HIDDEN)
            ids, types = features.input_ids[part], features.token_type_ids[part]
            for output in run(Features(ids, types, np.arange(len(ids)))):
                file.write(np.ascontiguousarray(output, "<f4").data)
    # Slicing a memmap takes longer than slicing a plain array.
    states = np.asarray(np.load(path, mmap_mode="r"))
    hidden = np.split(states, np.cumsum(lengths)[:-1])
    log(f"{split.name}: {shape[0]:,} vectors of {shape[1]:,} in {path}")
    return split._replace(features=dataclasses.replace(features, hidden=hidden))
