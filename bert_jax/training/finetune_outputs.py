"""The output of a fine-tuning in its workdir: the best model and the predictions."""

import collections
import copy
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.files import write_text
from bert_jax.inference.evaluation import Evaluation, Split
from bert_jax.inference.mistakes import (
    confusion,
    majority_warning,
    mean_baseline,
    write_mistakes,
)
from bert_jax.interop.find import BEST
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.interop.load import load
from bert_jax.interop.modules import EXTRA as MODULES
from bert_jax.interop.modules import vector_settings, with_prompts
from bert_jax.objectives.objective import Objective, Params
from bert_jax.parallel.processes import on_leader
from bert_jax.parallel.sharding import tree_shardings
from bert_jax.progress import Log
from bert_jax.settings import to_dict
from bert_jax.tasks.families import VERSION
from bert_jax.tasks.task import (
    VECTOR_HEADS,
    Scores,
    Task,
    golds,
    saved_config,
    write_answers,
)
from bert_jax.tasks.text_classification import REGRESSION, SEVERAL_LABELS
from bert_jax.training.config import FineTuneConfig
from bert_jax.training.finetune_data import Prepared
from bert_jax.training.workdir import PREDICTIONS, RunFolder
from bert_jax.unstable import multihost_utils

ANSWERS = "{}.answers.json"  # the answer to each row of a split, in PREDICTIONS


def save_best(
    config: FineTuneConfig,
    prepared: Prepared,
    task: Task,
    params: Params,
    scores: Scores,
    folder: RunFolder,
) -> None:
    """Writes a model with its dev scores into best/. Only process 0 calls it.

    task: with the thresholds that were tuned on dev. params: whole, on the host.
    """
    checkpoint = prepared.checkpoint
    extra = {"version": VERSION, "family": config.family}
    extra |= {"data": to_dict(saved_config(task)), "scores": scores}
    extra["init_from"] = config.init_from
    head = task.head
    if config.features.layers:  # only the BiLSTM was trained
        params = params | {"bert": checkpoint.params["bert"]}
    if "bilstm" in params:
        extra["features"] = to_dict(config.features)
        head = "features"
    if head in VECTOR_HEADS:
        positions = checkpoint.config.max_positions
        modules = vector_settings(head, checkpoint.extra, positions)
        # A copy, because the runs of a sweep share the checkpoint.
        modules = modules | {"pooling": head, "max_length": task.config.max_length}
        extra[MODULES] = with_prompts(modules, task.prompts)
    outputs = {"labels": task.labels, "problem_type": task.problem_type}
    outputs["activation_fn"] = ""  # the head learned values without one
    parts = {"params": params, "head": head, "extra": extra}
    # Other libraries cut texts as in training. Tasks without the setting ``truncation`` cut
    # them as the checkpoint of init_from does.
    tokenizer = copy.copy(checkpoint.tokenizer)
    tokenizer.model_max_length = None
    if hasattr(task.config, "truncation"):
        tokenizer.truncation = "head"
        if task.config.truncation == "tail":
            tokenizer.truncation = "tail"
    parts["tokenizer"] = tokenizer
    best = dataclasses.replace(checkpoint, **parts, **outputs)
    save_huggingface(folder.local / BEST, best, overwrite=True, own=True)


def best_params(
    config: FineTuneConfig,
    prepared: Prepared,
    folder: RunFolder,
    objective: Objective,
) -> Params:
    """The parameters in best/. Process 0 reads them for all devices."""

    def read() -> Params:
        scan = prepared.checkpoint.compute.scan_layers
        best = load(folder.local / BEST, scan_layers=scan)
        return prepared.params_of(best)

    params, mesh = on_leader(read), prepared.mesh
    if jax.process_count() > 1:
        shapes = jax.eval_shape(objective.init, jax.random.key(0))
        if config.features.layers:
            shapes = shapes | {"bert": prepared.checkpoint.params["bert"]}
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        params = multihost_utils.broadcast_one_to_all(params or zeros)
    shardings = tree_shardings(params, mesh, fsdp=config.mesh.fsdp)
    return jax.device_put(params, shardings)


def write_predictions(
    task: Task,
    split: Split,
    evaluation: Evaluation,
    run_folder: RunFolder,
    log: Log,
    *,
    keep_answers: bool,
) -> None:
    """Writes predictions and mistakes of a split, and warns if a constant is as good.

    Only process 0 calls it. keep_answers: whether to write ANSWERS as well.
    """
    folder = run_folder.local / PREDICTIONS
    content = split.rows, evaluation.predictions
    write_answers(task, *content, split.name, folder)
    if keep_answers:
        # default=str: an id may be a date, or another value that JSON does not have.
        text = json.dumps(evaluation.predictions, default=str)
        write_text(folder / ANSWERS.format(split.name), text)
    log(f"predictions of {split.name}: {folder}")
    if evaluation.scores:
        write_mistakes(folder, task, split.name, *content)
        warning = majority_warning(confusion(task, *content)[1])
        if task.problem_type == REGRESSION:
            labels = [row.label for row in split.rows]
            values = [answer["value"] for answer in evaluation.predictions]
            baseline, warning = mean_baseline(labels, values)
            log(f"{split.name}: {baseline}")
        if warning:
            log(f"warning: {split.name}: {warning}")


def majority(task: Task, rows: Sequence[Any]) -> dict[str, float]:
    """{"majority": accuracy of always predicting the most frequent label, in percent}.

    {} if the task has no classes, or if a row may have several classes.
    """
    if not task.labels or task.problem_type == SEVERAL_LABELS:
        return {}
    counts = collections.Counter(gold for row in rows for gold in golds(task, row))
    return {"majority": 100 * max(counts.values()) / counts.total()}


def show(scores: dict[str, float], first: str = "") -> str:
    """Scores in one line. first: name of the score to show first, if present."""
    names = sorted(scores, key=lambda name: name != first)
    return "  ".join(f"{name} {scores[name]:.2f}" for name in names)
