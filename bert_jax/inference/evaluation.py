"""Runs a model on any number of rows, on any number of devices and hosts."""

import collections
import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.data import sequences
from bert_jax.data.batching import Features, inference_batches
from bert_jax.data.tokenizer import Tokenizer, count_unknown, unknown_warning
from bert_jax.errors import UserError, counted
from bert_jax.files import new_file
from bert_jax.interop import checkpoint as checks
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.model.bilstm import BertWithBiLstm
from bert_jax.model.config import DTYPES
from bert_jax.model.device import activation_dtype
from bert_jax.model.parameters import is_encoder_kernel
from bert_jax.model.tokens import Tokens
from bert_jax.parallel import mesh as meshes
from bert_jax.parallel.programs import jit_whole
from bert_jax.parallel.sharding import tree_shardings
from bert_jax.progress import Progress
from bert_jax.settings import check_ranges, setting
from bert_jax.tasks.rows import Placed, count_rows, placed_rows
from bert_jax.tasks.splits import Form, read_records
from bert_jax.tasks.task import Task, all_scores, joined_features, tuned

logger = logging.getLogger(__name__)

CHUNK = 4096  # number of rows in memory at a time
HIDDEN = 512  # number of sequences whose frozen features are in memory at a time
Columns = str | Sequence[str]  # name of a column, or names
Arrays = np.ndarray | list[np.ndarray]  # a list if the shapes of the rows differ
Done = Callable[[float], None]  # receives the share of a part that is finished


def ignore(share: float) -> None:
    """A Done that does nothing."""


def run_model(
    forward: Callable,
    params: Any,
    features: Features,
    *,
    mesh: Mesh,
    done: Done = ignore,
    **batching: Any,
) -> list[np.ndarray]:
    """The outputs of ``forward`` for each sequence, in order, on every process.

    Every process makes the whole batch and puts its own rows on its devices. It makes the
    next batches while an accelerator computes.

    forward: function of (params, batch) that returns float32 on every device. The batch has
      R rows of L tokens, with S slots for sequences. The result is (R, S, ...), one value
      for each sequence, or (R, L, ...), one value for each token.
    done: function that is called with the share of sequences that are finished.
    batching: batch_size, limit and pad_id of inference_batches().
    """
    outputs, pending = {}, collections.deque()

    def collect(rows: list[list[int]], length: int, values: jax.Array) -> None:
        values = jax.device_get(values)
        by_token = values.shape[1] == length
        for row, of_row in zip(rows, values, strict=False):
            start = 0
            for slot, i in enumerate(row):
                end = start + len(features.input_ids[i])
                if by_token:
                    outputs[i] = of_row[start:end]
                else:
                    # A view of a slot would keep the batch's empty slots in memory.
                    outputs[i] = of_row[slot].copy()
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


def cast_kernels(params: Any, dtype: Any) -> Any:
    """The parameters with the encoder's kernels in the dtype of the activations.

    The model would cast float32 kernels at every call. The results are equal, but for a
    single text the cast takes as long as the matrix products.
    """

    def cast(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        if is_encoder_kernel(path):
            return leaf.astype(dtype, copy=False)
        return leaf

    return jax.tree.map_with_path(cast, params)


class Part(NamedTuple):
    """The sequences of a part of the rows, and an answer to each row, in order."""

    features: Features
    answers: Sequence[Any]


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of every method. A subclass adds the options of one method."""

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


class OnDevices:
    """A checkpoint with its parameters on all devices, and its compiled programs.

    The functions of this folder use it to answer rows. Each dtype has one copy of the
    parameters, and a program is compiled once for each shape of a batch.

    name: name of the checkpoint in messages. mesh: None for all devices.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        name: str = "the checkpoint",
        mesh: Mesh | None = None,
    ):
        self.loaded = checkpoint
        self.name = name
        self.mesh = mesh or meshes.whole_mesh()
        self._kept: dict[Hashable, Any] = {}

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises UserError if the checkpoint has none."""
        checks.check_vocabulary(self.loaded, self.name)
        return self.loaded.tokenizer

    def checkpoint(self, options: Options) -> Checkpoint:
        """The checkpoint on the devices, for the dtype of the options.

        Raises UserError if it has no tokenizer, or fewer positions than ``max_length``.
        """
        checks.check_vocabulary(self.loaded, self.name)
        checks.check_length(options.max_length, self.loaded, "max_length")
        compute = self.loaded.compute
        if options.dtype:
            compute = dataclasses.replace(compute, dtype=options.dtype)

        def put() -> Checkpoint:
            dtype = activation_dtype(compute.dtype)
            params = cast_kernels(self.loaded.params, dtype)
            params = jax.device_put(params, tree_shardings(params, self.mesh))
            return dataclasses.replace(self.loaded, params=params, compute=compute)

        return self.keep(("checkpoint", compute.dtype), put)

    def keep(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The result of ``make()``, which is called once for each key."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def program(self, function: Callable, *settings: Hashable) -> Callable:
        """``function`` with its first arguments ``settings``, compiled.

        It takes parameters and a batch. Its result is whole on every device.
        """

        def compiled() -> Callable:
            return jit_whole(self.mesh, functools.partial(function, *settings))

        return self.keep((function, *settings), compiled)

    def run(
        self,
        program: Callable,
        params: Any,
        features: Features,
        options: Options,
        done: Done = ignore,
    ) -> list[np.ndarray]:
        """The outputs of a program for each sequence; see :func:`run_model`.

        Raises UserError for outputs that are not finite.
        """
        config = self.loaded.config
        outputs = run_model(
            program,
            params,
            features,
            mesh=self.mesh,
            done=done,
            batch_size=options.batch_size,
            limit=config.max_positions,
            pad_id=self.tokenizer.pad_id,
        )
        for output in outputs:
            if not np.isfinite(output).all():
                needed = "use another checkpoint, such as an earlier one of the run"
                raise UserError(f"the model's outputs are not finite numbers; {needed}")
        return outputs


class Rows(NamedTuple):
    """Rows to answer.

    placed: each row with its place. columns: names of the columns with the text or texts in
    dictionaries, in order. Empty: as trained, or see :func:`row_texts`. total: number of
    rows, if known.
    """

    placed: Iterable[Placed]
    columns: Columns = ()
    total: int | None = None


def rows_of(data: Any, columns: Columns = (), *, tabs: bool = True) -> Rows:
    """The rows of any data; see :func:`bert_jax.tasks.rows.placed_rows`."""
    return Rows(placed_rows(data, tabs=tabs), columns, count_rows(data))


class Texts(NamedTuple):
    """The texts of a row. id: None for a row without id."""

    where: str
    texts: tuple[str, ...]
    id: Any


# Rows of one text, and rows of one text or two.
_TEXT = Form(columns={"text": ("text",), "label": ()})
_TEXT_OR_PAIR = Form(
    columns={"text_a": ("text_a", "text"), "text_b": ("text_b",), "label": ()},
    optional=("text_b",),
)


def row_texts(rows: Rows, *, most: int = 2) -> Iterator[Texts]:
    """Yields the texts of each row.

    Without ``rows.columns`` it reads the column "text", or if ``most`` is 2 the column
    "text_a" or "text", and "text_b" if the rows have it. most: maximum number of texts in a
    row, 1 or 2.
    """
    form = _TEXT_OR_PAIR
    if most == 1:
        form = _TEXT
    form = form.with_columns(rows.columns)
    for where, values in read_records(rows.placed, form):
        texts = form.texts_in(where, values)
        yield Texts(where, tuple(texts), values.get("id"))


def in_parts(
    answer: Callable[[list[Any], Done], Part],
    rows: Iterable[Any],
    options: Options,
    *,
    model: OnDevices,
    total: int | None,
    max_length: int,
    doing: str = "predicting",
    noun: str = "text",
    cost: Callable[[Any], float] = lambda row: 1,
    document: Callable[[Any], Any] = lambda row: None,
) -> Iterator[Part]:
    """Yields the answers to rows, about CHUNK rows at a time, one part in memory.

    At the end it logs a warning with the number of truncated rows, and a warning if many
    tokens are unknown.

    answer: function of a list of rows that returns their answers. It calls its second
      argument with the share that is finished. total: number of rows, if known. doing,
      noun: names of the work and of a row in messages. cost: memory for a row and its
      outputs; 1 for an ordinary row. document: the document of a row. The rows of a
      document are answered together. None for a row without a document.
    """
    show = options.show_progress
    if show is None and total == 1:
        show = False  # the bar would flash, and leave a blank output in a notebook
    answered = truncated = unknown = tokens = 0
    with Progress(doing, total=total, unit=f"{noun}s", show=show) as progress:
        for part in chunks(rows, CHUNK, cost, document):
            answers = answer(part, progress.part(len(part)))
            yield answers
            answered += len(part)
            truncated += answers.features.truncated
            counts = count_unknown(answers.features.input_ids, model.tokenizer)
            unknown += counts[0]
            tokens += counts[1]
    warn_truncated(truncated, answered, noun, max_length)
    warn_unknown((unknown, tokens), model.name)


def warn_unknown(counts: tuple[int, int], name: str) -> None:
    """Logs a warning if the vocabulary of a model does not suit the texts.

    counts: see ``data.tokenizer.count_unknown``. name: path of the model.
    """
    warning = unknown_warning(*counts, name)
    if warning:
        logger.warning(warning)


def warn_truncated(truncated: int, count: int, noun: str, max_length: int) -> None:
    """Logs a warning if any of ``count`` rows were truncated."""
    if truncated:
        of = f"{truncated:,} of {counted(count, noun)}"
        logger.warning(f"{of} truncated to max_length={max_length}")


def stacked(values: list[np.ndarray], empty: np.ndarray) -> Arrays:
    """The arrays of rows as one array, or as a list if their shapes differ.

    empty: the result for no rows.
    """
    if not values:
        return empty
    if len({value.shape for value in values}) > 1:
        return values
    return np.stack(values)


def collected(parts: Iterable[Part]) -> list[Any]:
    """The answers of all parts."""
    answers = []
    for part in parts:
        answers += part.answers
    return answers


def chunks(
    rows: Iterable[Any],
    size: int,
    cost: Callable[[Any], float],
    document: Callable[[Any], Any],
) -> Iterator[list[Any]]:
    """Yields lists of rows whose costs reach ``size``. No document is split."""
    chunk, total, last = [], 0.0, None
    for row in rows:
        name = document(row)
        if total >= size and (name is None or name != last):
            yield chunk
            chunk, total = [], 0.0
        chunk.append(row)
        total += cost(row)
        last = name
    if chunk:
        yield chunk


def text_features(
    tokenizer: Tokenizer, rows: Sequence[tuple[str, ...]], max_length: int
) -> Features:
    """Sequences [CLS] A [SEP] or [CLS] A [SEP] B [SEP] for rows of one text or two.

    A text that is too long is cut as the tokenizer does; in a pair, the longer text is cut.
    """
    texts = itertools.chain.from_iterable(rows)
    tokens = iter(tokenizer.encode_batch([*texts]))
    joined, truncated = [], 0
    for row in rows:
        parts = [*itertools.islice(tokens, len(row))]
        room = max_length - tokenizer.overhead(len(parts))
        truncated += sum(map(len, parts)) > room
        parts = sequences.fit(parts, room, tokenizer.truncation)
        joined.append(tokenizer.build(*parts))
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


def evaluate_split(
    task: Task, split: Split, outputs: Sequence[np.ndarray]
) -> Evaluation:
    """Predictions and, if the rows have labels, their scores."""
    answers = task.decode(split.rows, split.features, outputs)
    if split.name not in task.splits.scored:
        return Evaluation(answers, {})
    return Evaluation(answers, all_scores(task, split.rows, answers))


def evaluate_tuned(
    task: Task, split: Split, outputs: Sequence[np.ndarray]
) -> tuple[Task, Evaluation]:
    """The task with thresholds tuned on a split with labels, and its evaluation."""
    evaluation = evaluate_split(task, split, outputs)
    best = tuned(task, evaluation.scores)
    if best is not task:
        evaluation = evaluate_split(best, split, outputs)
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
    encoder = dataclasses.replace(
        checkpoint, params={"bert": checkpoint.params["bert"]}
    )
    devices, options = OnDevices(encoder, mesh=mesh), Options(batch_size=batch_size)
    params, program = (
        devices.checkpoint(options).params,
        devices.program(_hidden, model),
    )
    path = folder / f"{split.name}-{jax.process_index()}.npy"
    shape = (int(lengths.sum()), model.width)
    parts = range(0, len(lengths), HIDDEN)
    # If the disk is full, a write raises an exception, whereas a write to a memory map
    # would end the process with a signal.
    with new_file(path) as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for first in Progress(f"features of {split.name}", parts, unit="parts"):
            part = slice(first, first + HIDDEN)
            ids, types = features.input_ids[part], features.token_type_ids[part]
            texts = Features(ids, types, np.arange(len(ids)))
            for output in devices.run(program, params, texts, options):
                file.write(np.ascontiguousarray(output, "<f4").data)
    # Slicing a memmap takes longer than slicing a plain array.
    states = np.asarray(np.load(path, mmap_mode="r"))
    hidden = np.split(states, np.cumsum(lengths)[:-1])
    log(f"{split.name}: {shape[0]:,} vectors of {shape[1]:,} in {path}")
    return split._replace(features=dataclasses.replace(features, hidden=hidden))


def _hidden(
    model: BertWithBiLstm, params: Any, batch: dict[str, jax.Array]
) -> jax.Array:
    """The vectors of the tokens that a BiLSTM reads, float32 (R, L, W)."""
    return model.apply({"params": params}, Tokens.of_batch(batch), method="features")
