"""The model and the data of fine-tuning runs, which the runs of a sweep share."""

import collections
import dataclasses
import functools
import itertools
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh

from bert_jax.data.tokenizer import Tokenizer, count_unknown, unknown_warning
from bert_jax.errors import UserError, counted, listed, naming
from bert_jax.files import read_json
from bert_jax.inference.evaluation import Split, with_hidden
from bert_jax.inference.mistakes import number_lines
from bert_jax.interop import checkpoint as checks
from bert_jax.interop import modules as vector_modules
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.find import check_checkpoint
from bert_jax.interop.load import load
from bert_jax.interop.surgery import head_params
from bert_jax.objectives.heads import jit_forward
from bert_jax.objectives.networks import make_model
from bert_jax.objectives.objective import Params
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.processes import from_leader
from bert_jax.progress import Log, unwatched
from bert_jax.settings import from_settings, to_dict
from bert_jax.tasks.data_sets import CORRELATIONS, ERRORS
from bert_jax.tasks.families import FAMILIES
from bert_jax.tasks.labels import spelling
from bert_jax.tasks.task import (
    Task,
    fitted,
    found,
    golds,
    labels_of_0_2,
    warnings,
    with_labels,
)
from bert_jax.tasks.text_classification import REGRESSION
from bert_jax.training.config import FineTuneConfig
from bert_jax.training.workdir import RunFolder

FEATURES = "features"  # the folder of a frozen encoder's vectors, deleted after the run


@dataclasses.dataclass(frozen=True)
class Prepared:
    """The model and the data, which all runs of a sweep share.

    forward: compiled function that evaluations call. splits: the labelled splits, then the
    splits without labels. The first split (dev) picks the best model.
    """

    checkpoint: Checkpoint
    task: Task
    mesh: Mesh
    model: nn.Module
    forward: Callable
    train: Split
    splits: tuple[Split, ...]

    @functools.cached_property
    def content(self) -> dict[str, Any]:
        """The entries of config.json that describe the data and the checkpoint.

        "labels": the labels in the order of the outputs. "rows": a checksum of the tokens
        and targets of train and of the scored splits. "content": a checksum of the values
        of all rows. "start": a checksum of the parameters of ``init_from``.
        """
        return {
            "labels": [*self.task.labels],
            "rows": _rows_checksum(self),
            "content": self.task.splits.checksum,
            "start": params_checksum(self.checkpoint.params),
        }

    def params_of(self, checkpoint: Checkpoint, *, fresh_head: bool = False) -> Params:
        """A checkpoint's parameters for the model; new parts are left out."""
        head = self.task.head, self.task.labels
        params, _ = head_params(checkpoint, self.model, *head, fresh_head=fresh_head)
        return params


def prepare(
    config: FineTuneConfig,
    workdir: Path,
    log: Log,
    task: Task | None = None,
    folder: RunFolder | None = None,
) -> Prepared:
    """Loads ``config.init_from``, and reads and tokenises every split of the task.

    task: replaces the task of ``config.data``, for rows from Python. folder: workdir of the
    run; an existing run there keeps the order of its labels. With a frozen encoder
    (``config.features.layers``) its vectors are written to ``workdir``/features.
    """
    check_checkpoint(config.init_from, "init_from")
    checkpoint = load_start(config)
    checks.check_vocabulary(checkpoint, config.init_from)
    positions = checkpoint.config.max_positions
    modules = (
        vector_modules.vector_settings(checkpoint.head, checkpoint.extra, positions)
        or {}
    )
    task = task or FAMILIES[config.family](config.data)
    task = fitted(task, positions, modules.get("pooling", "mean"))
    checks.check_length(task.config.max_length, checkpoint, "data.max_length")
    recorded = folder and from_leader(lambda: recorded_labels(folder))
    task = _with_order(task, checkpoint, config, recorded)
    _check_settings(config, task, checkpoint)
    with naming(config.init_from):
        for line in vector_modules.unused_prompts(checkpoint.extra, task.prompts):
            log(line)
    mesh, sizes = make_mesh(config.mesh), (task.head, task.outputs, config.features)
    model = make_model(checkpoint.config, *sizes, checkpoint.compute)
    splits = []
    for name in ("train", *task.splits.scored, *task.splits.predicted):
        split = _read_split(task, name, checkpoint.tokenizer, config, log)
        if config.features.layers:
            settings = {"batch_size": config.eval_batch_size, "mesh": mesh, "log": log}
            hidden = workdir / FEATURES
            split = with_hidden(split, model, checkpoint, hidden, **settings)
        splits.append(split)
    for split in splits[1:]:
        if split.name in task.splits.scored:
            for line in _shared_rows(splits[0], split):
                log(f"warning: {split.name}: {line}")
    only_dev = found(task, ("dev",)) - found(task, ("train",))
    if only_dev:
        log(f"warning: dev: labels that train lacks: {listed(sorted(only_dev))}")
    forward, (train, *others) = jit_forward(mesh, model), splits
    return Prepared(checkpoint, task, mesh, model, forward, train, tuple(others))


def load_start(config: FineTuneConfig) -> Checkpoint:
    """The checkpoint ``config.init_from`` with the changes of the config."""
    compute = dataclasses.asdict(config.compute)
    return load(config.init_from, **config.model.changes(), **compute)


def check_accumulation(config: FineTuneConfig, task: Task) -> None:
    """Raises UserError if a batch cannot be split into ``config.accumulation`` parts."""
    most, expected = config.batch_size, f"at most batch_size={config.batch_size}"
    if task.whole_batch:
        most, expected = 1, "1, because the contrastive loss needs the whole batch"
    if config.accumulation > most:
        raise UserError(f"accumulation={config.accumulation}, expected {expected}")


def _check_settings(config: FineTuneConfig, task: Task, checkpoint: Checkpoint) -> None:
    """Raises UserError for settings that the task or the checkpoint cannot have."""
    metric = config.main_metric or task.main_metric
    if task.problem_type == REGRESSION and metric in ERRORS:
        actual = f"main_metric={metric!r}, where lower is better"
        raise UserError(f"{actual}; expected one of {', '.join(CORRELATIONS)}")
    layers, decay = checkpoint.config.num_layers, config.optimizer.layer_decay
    if config.freeze_layers > layers:
        expected = f"at most {layers}, all layers of {config.init_from}"
        raise UserError(f"freeze_layers={config.freeze_layers}, expected {expected}")
    if config.freeze and (config.freeze_layers >= 0 or decay < 1):
        useless = "freeze_layers and layer_decay have no effect with freeze=True"
        raise UserError(f"{useless}; leave them out")
    if checkpoint.config.encoder == "lstm":
        config.compute.check_lstm()
    features = config.features
    if features.layers and (config.freeze or config.freeze_layers >= 0 or decay < 1):
        useless = (
            "freeze, freeze_layers and layer_decay have no effect with features.layers"
        )
        raise UserError(f"{useless}; leave them out")
    has_lstm = features.layers or features.bilstm
    if not has_lstm and features != type(features)():
        needed = "features.bilstm=True or features.layers"
        raise UserError(f"lstm_layers, width and dropout of features need {needed}")
    has_classes = task.head in ("sequence", "token") and not task.problem_type
    if (config.class_weights or config.label_smoothing) and not has_classes:
        tasks = "tasks with one class for each text or word"
        raise UserError(f"class_weights and label_smoothing are for {tasks}")


def recorded_labels(folder: RunFolder) -> tuple[str, ...] | None:
    """The labels of the run in a workdir, in their order; None without a run.

    (): a task without labels, or a run of 0.2, which did not record them.
    """
    path = folder.local / "config.json"
    if not path.exists() or not folder.has_run():
        return None
    labels = read_json(path, "the config of a run").get("labels", ())
    with naming(path):
        return from_settings(tuple[str, ...], labels, "labels")


def _with_order(
    task: Task,
    checkpoint: Checkpoint,
    config: FineTuneConfig,
    recorded: Sequence[str] | None,
) -> Task:
    """The task with the labels of a run, or in the order of the checkpoint's head.

    A head is kept if it has the labels of the rows. recorded: see :func:`recorded_labels`;
    a list in processes that received it from process 0.
    """
    if recorded is not None and not recorded:
        return with_labels(task, labels_of_0_2(task))
    if recorded and {*recorded} == {*task.labels}:
        return with_labels(task, recorded)
    head, trained = task.head, checkpoint.labels
    if config.features.bilstm or config.features.layers:
        head = "features"
        trained = tuple(checkpoint.extra.get("data", {}).get("labels", ()))
    given = getattr(task.config, "labels", ())
    if checkpoint.head != head or config.fresh_head or given or not trained:
        return task
    if {*trained} in ({*task.labels}, found(task, ("train", "dev"))):
        return with_labels(task, trained)
    if sorted(map(spelling, trained)) == sorted(map(spelling, task.labels)):
        return with_labels(task, trained)  # such as entailment for SICK's ENTAILMENT
    return task


@unwatched()  # the step deadline is off: reading and tokenising report no progress
def _read_split(
    task: Task, name: str, tokenizer: Tokenizer, config: FineTuneConfig, log: Log
) -> Split:
    rows: Any = task.read(name)
    if not rows:
        needed = "give it rows, or, if it is dev or test, leave it out"
        raise UserError(f"the {name} split has no rows; {needed}")
    if name == "train" and config.train_rows:
        rows = rows[: config.train_rows]
    features = task.encode(rows, tokenizer)
    cut = f", {features.truncated:,} of them truncated" if features.truncated else ""
    sequences = counted(len(features.input_ids), "sequence")
    unknown, tokens = count_unknown(features.input_ids, tokenizer)
    share = ""
    if unknown:
        share = f", {unknown / tokens:.1%} of the tokens unknown"
    log(f"{name}: {counted(len(rows), 'row')}{cut}, {sequences}{share}")
    warning = unknown_warning(unknown, tokens, config.init_from)
    if warning:
        log(f"warning: {name}: {warning}")
    if name == "train":
        counts = collections.Counter(gold for row in rows for gold in golds(task, row))
        if counts and task.problem_type == REGRESSION:
            shown, warning = number_lines([row.label for row in rows])
            log(f"labels: {shown}")
            if warning:
                log(f"warning: {name}: {warning}")
        elif counts and task.labels:
            labels = [f"{label!r} ({counts[label]:,})" for label in task.labels]
            log(f"labels: {listed(labels, most=10)}")
        for warning in warnings(task, rows, features):
            log(f"warning: {name}: {warning}")
    return Split(name, rows, features)


def _shared_rows(train: Split, other: Split) -> list[str]:
    """A line if at least half of the rows of a split have the tokens of a row of train."""
    known = {*_tokens(train)}
    count = sum(tokens in known for tokens in _tokens(other))
    if not count or 2 * count < len(other.rows):
        return []
    actual = (
        f"{count:,} of {len(other.rows):,} rows have the same tokens as a row of train"
    )
    return [f"{actual}, so the score shows how well the model remembers"]


def _tokens(split: Split) -> list[tuple[bytes, ...]]:
    """The tokens of all sequences of each row."""
    rows: list[list[bytes]] = [[] for _ in split.rows]
    features = split.features
    for row, ids in zip(features.example, features.input_ids, strict=True):
        rows[row].append(ids.tobytes())
    return [*map(tuple, rows)]


def identity(config: FineTuneConfig, prepared: Prepared) -> dict[str, Any]:
    """The settings of a run and checksums of its content, as config.json has them."""
    return to_dict(config) | prepared.content


def params_checksum(params: Params) -> int:
    """A checksum of all bits of host arrays."""
    checksum = 0
    for leaf in jax.tree.leaves(params):
        checksum = zlib.crc32(np.ascontiguousarray(leaf).tobytes(), checksum)
    return checksum


def _rows_checksum(prepared: Prepared) -> int:
    """A checksum of the tokens and targets of train and of the scored splits."""
    checksum = 0
    for split in (prepared.train, *prepared.splits):
        if split.name in prepared.task.splits.predicted:
            continue
        columns = split.features.input_ids, *split.features.targets.values()
        for value in itertools.chain(*columns):
            checksum = zlib.crc32(np.asarray(value).tobytes(), checksum)
    return checksum
