"""A fine-tuning run from its config: data, batches, objective, evaluation, results."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bert_jax.data.batching import EpochBatches
from bert_jax.errors import DivergenceError, UserError, counted, listed
from bert_jax.files import write_json
from bert_jax.inference.evaluation import (
    Evaluation,
    Split,
    evaluate_split,
    evaluate_tuned,
    run_model,
)
from bert_jax.inference.mistakes import (
    confusion,
    majority_warning,
    mean_baseline,
    write_mistakes,
)
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.interop.load import load
from bert_jax.interop.modules import EXTRA as MODULES
from bert_jax.interop.surgery import head_params
from bert_jax.objectives.heads import ENCODER, HEADS, FrozenTagging
from bert_jax.objectives.objective import Params
from bert_jax.parallel.mesh import batch_divisor, process_rows
from bert_jax.parallel.processes import from_leader, on_every_host, on_leader
from bert_jax.parallel.sharding import tree_shardings
from bert_jax.progress import Log, Progress, print_line
from bert_jax.runs import RESULTS
from bert_jax.settings import to_dict
from bert_jax.tasks.data_sets import CORRELATIONS, ERRORS
from bert_jax.tasks.families import VERSION
from bert_jax.tasks.task import (
    POOLINGS,
    Scores,
    Task,
    saved_config,
    tuned,
    write_answers,
)
from bert_jax.tasks.text_classification import REGRESSION
from bert_jax.training.config import FineTuneConfig
from bert_jax.training.finetune_data import Prepared, identity
from bert_jax.training.hooks import evaluation
from bert_jax.training.metrics import Reporter, RunProgress
from bert_jax.training.run import Job, run
from bert_jax.training.workdir import RunFolder, draw_run
from bert_jax.unstable import multihost_utils

BEST = "best"  # the folder of the best model, which bert_jax.load finds
PREDICTIONS = "predictions"  # the folder of answers in the task's official form
ANSWERS = "{}.answers.json"  # the answer to each row of a split, in PREDICTIONS

Callback = Callable[[int, Scores], bool | None]  # of a step and its dev scores


def finetune(
    config: FineTuneConfig,
    prepared: Prepared,
    folder: RunFolder,
    log: Log = print_line,
    change_settings: bool = False,
    callback: Callback | None = None,
    *,
    keep_answers: bool = False,
) -> dict[str, Any]:
    """Trains, saves the model with the best dev score in best/, and returns the results.

    results.json is written last. Then the checkpoints are deleted.
    callback: see ``bert_jax.finetune``. Only process 0 calls it. keep_answers: whether
    predictions/dev.answers.json gets a list with the answer to each row.
    """
    fine_tuning = _FineTuning(config, prepared, folder, log, callback, keep_answers)
    _, progress, _ = run(fine_tuning.job(change_settings), folder, log)
    results = fine_tuning.results(progress)

    def write_results() -> None:
        draw_run(folder, log)
        write_json(folder.local / RESULTS, results)
        folder.upload()

    on_leader(write_results)
    on_leader(folder.delete_checkpoints)
    return results


@dataclasses.dataclass(eq=False)
class _FineTuning:
    """A fine-tuning run: its Job for the engine, its evaluations and its results.

    ``progress.best`` contains the epoch and the dev scores of the model in best/.
    """

    config: FineTuneConfig
    prepared: Prepared
    folder: RunFolder
    log: Log
    callback: Callback | None = None
    keep_answers: bool = False

    def __post_init__(self):
        config, prepared = self.config, self.prepared
        self.task, self.checkpoint = prepared.task, prepared.checkpoint
        self.main_metric = config.main_metric or self.task.main_metric
        if self.task.problem_type == REGRESSION and self.main_metric in ERRORS:
            actual = (
                f"main_metric={self.main_metric!r}, of which the lowest is the best"
            )
            raise UserError(f"{actual}; expected {', '.join(CORRELATIONS)}")
        self.frozen = bool(config.features.layers)
        kind = FrozenTagging if self.frozen else HEADS[self.task.head]
        frozen = ENCODER if config.freeze else first_layers(config.freeze_layers)
        loss = self._class_weights(), config.label_smoothing
        self.objective = kind(prepared.model, frozen, *loss, **self.task.loss_settings)
        self.batches = EpochBatches(
            prepared.train.features,
            batch_size=config.batch_size,
            epochs=config.epochs,
            seed=config.seed,
            pad_id=self.checkpoint.tokenizer.pad_id,
            buckets=config.buckets,
            limit=self.checkpoint.config.max_positions,
            multiple=batch_divisor(prepared.mesh) * config.accumulation,
            accumulation=config.accumulation,
            rows=functools.partial(process_rows, prepared.mesh),
        )

    def job(self, change_settings: bool) -> Job:
        """The run for the engine."""
        params = self._params(self.checkpoint, fresh_head=self.config.fresh_head)
        if self.frozen:  # the features contain the encoder's vectors
            params = {name: part for name, part in params.items() if name == "bilstm"}
        steps, count = self.batches.steps_per_epoch, self.config.evaluations
        # Own metrics are computed before the first step: a mistake in them shows early.
        early = bool(self.task.own_metrics or self.config.main_metric)

        def evaluates(step: int) -> bool:
            return is_evaluated(step, steps, count) or (early and step == 0)

        return Job(
            config=self.config,
            objective=self.objective,
            batches=self.batches,
            mesh=self.prepared.mesh,
            identity=identity(self.config, self.prepared),
            change_settings=change_settings,
            initial_params=params,
            hooks=[evaluation(evaluates, self._evaluate)],
        )

    def _class_weights(self) -> tuple[float, ...]:
        """The weight of each label, in the order of the labels; () without weights."""
        by_label, labels = self.config.class_weights, self.task.labels
        if by_label == "balanced":
            targets = next(iter(self.prepared.train.features.targets.values()))
            ids = np.concatenate([np.atleast_1d(x) for x in targets])
            balance = balanced(np.bincount(ids[ids >= 0], minlength=len(labels)))
            by_label = dict(zip(labels, balance.tolist(), strict=True))
            shown = [f"{label!r} {weight:.4g}" for label, weight in by_label.items()]
            self.log(f"class weights: {listed(shown, most=10)}")
        weights = tuple(by_label.get(label, 1.0) for label in labels if by_label)
        if by_label.keys() - {*labels} or (weights and not any(weights)):
            raise UserError(
                f"class_weights={by_label}, expected labels of the task "
                f"({listed(labels)}), not all with the weight 0"
            )
        return weights

    def _params(self, checkpoint: Checkpoint, *, fresh_head: bool = False) -> Params:
        """The checkpoint's parameters for the model; new parts are left out."""
        head = self.task.head, self.task.labels
        model = self.prepared.model
        return head_params(checkpoint, model, *head, fresh_head=fresh_head)[0]

    def _evaluate(self, step: int, params: Params, reporter: Reporter) -> bool:
        """Scores dev, and saves the parameters if they are the best so far.

        Returns whether the run ends. Step 0 is scored, but never the best.
        """
        started, progress = time.perf_counter(), reporter.progress
        dev, metric = self.prepared.splits[0], self.main_metric
        outputs = self._outputs(params, dev)
        if not all(np.isfinite(output).all() for output in outputs):
            name = f"the model's outputs for {dev.name}"
            raise DivergenceError(f"{name} are not finite numbers after step {step}")
        task, evaluation = evaluate_tuned(self.task, dev, outputs)
        # All processes get the scores of process 0, so that they decide the same.
        scores = from_leader(lambda: evaluation.scores)
        epoch = step / self.batches.steps_per_epoch
        reporter.write(step, dev.name, scores)
        reporter.log(f"epoch {epoch:.2f}  {dev.name}: {show(scores, metric)}")
        if metric not in scores:
            known = ", ".join(scores)
            raise UserError(f"main_metric={metric!r}, expected one of {known}")
        progress.evaluations_since_best += 1
        if step and self._is_better(scores, progress.best):
            whole = on_every_host(params)
            on_leader(lambda: self._save_best(task, jax.device_get(whole), scores))
            progress.best = {"epoch": epoch, "scores": scores}
            progress.evaluations_since_best = 0
        ends = step > 0 and self._ends(step, scores, progress.evaluations_since_best)
        progress.evaluation_seconds += time.perf_counter() - started
        return ends

    def _is_better(self, scores: Scores, best: dict[str, Any] | None) -> bool:
        """Whether the main metric is better than that of ``best``."""
        if best is None:
            return True
        highest = best["scores"][self.main_metric]
        return math.isnan(highest) or scores[self.main_metric] > highest

    def _ends(self, step: int, scores: Scores, since: int) -> bool:
        """Whether the callback or the patience ends the run after an evaluation.

        since: number of evaluations after the best.
        """
        why = ""
        if 0 < self.config.patience <= since:
            why = f"{counted(since, 'evaluation')} without a better {self.main_metric}"
        # The callback gets a copy of the scores, which it may change.
        if self.callback and from_leader(lambda: bool(self.callback(step, {**scores}))):
            why = "the callback returned True"
        if why and step < len(self.batches):
            self.log(f"stopped early after step {step} of {len(self.batches)}: {why}")
        return bool(why)

    def _outputs(self, params: Params, split: Split) -> list[np.ndarray]:
        rows, doing = len(split.rows), f"predicting {split.name}"
        with Progress(doing, total=rows, unit="rows") as progress:
            return run_model(
                self.prepared.forward,
                params,
                split.features,
                batch_size=self.config.eval_batch_size,
                limit=self.checkpoint.config.max_positions,
                pad_id=self.checkpoint.tokenizer.pad_id,
                mesh=self.prepared.mesh,
                done=progress.part(rows),
            )

    def _save_best(self, task: Task, params: Params, scores: dict[str, float]) -> None:
        extra = {"version": VERSION, "family": self.config.family}
        extra |= {"data": to_dict(saved_config(task)), "scores": scores}
        head = task.head
        if self.frozen:
            params = params | {"bert": self.checkpoint.params["bert"]}
        if "bilstm" in params:
            extra["features"] = to_dict(self.config.features)
            head = "features"
        if MODULES in self.checkpoint.extra and head in POOLINGS:
            # Other modules of sentence-transformers, such as Normalize and prompts.
            changed = {"pooling": head, "max_length": task.config.max_length}
            extra[MODULES] = self.checkpoint.extra[MODULES] | changed
        outputs = {"labels": task.labels, "problem_type": task.problem_type}
        outputs["activation_fn"] = ""  # the head learned values without one
        parts = {"params": params, "head": head, "extra": extra}
        best = dataclasses.replace(self.checkpoint, **parts, **outputs)
        start, folder = self.config.init_from, self.folder.local / BEST
        card = f"Fine-tuned with bert_jax from {start}; dev: {show(scores)}."
        save_huggingface(folder, best, card=card, overwrite=True, own=True)

    def _best_params(self) -> Params:
        """The parameters in best/. Process 0 reads them for all devices of the mesh."""

        def read() -> Params:
            scan = self.checkpoint.compute.scan_layers
            return self._params(load(self.folder.local / BEST, scan_layers=scan))

        params, mesh = on_leader(read), self.prepared.mesh
        if jax.process_count() > 1:
            shapes = jax.eval_shape(self.objective.init, jax.random.key(0))
            if self.frozen:
                shapes = shapes | {"bert": self.checkpoint.params["bert"]}
            zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
            params = multihost_utils.broadcast_one_to_all(params or zeros)
        shardings = tree_shardings(params, mesh, fsdp=self.config.mesh.fsdp)
        return jax.device_put(params, shardings)

    def results(self, progress: RunProgress) -> dict[str, Any]:
        """Scores the best parameters on every split and writes the predictions."""
        best, seconds = progress.best, progress.evaluation_seconds
        task, params = tuned(self.task, best["scores"]), self._best_params()
        scores = {}
        for split in self.prepared.splits:
            evaluation = evaluate_split(task, split, self._outputs(params, split))
            if evaluation.scores:
                scores[split.name] = evaluation.scores
                shown = show(evaluation.scores, self.main_metric)
                self.log(f"{split.name}: {shown}")
            on_leader(functools.partial(self._write, task, split, evaluation))
        stopped = {}
        if progress.stopped_at is not None:
            stopped["stopped_at"] = progress.stopped_at
        return stopped | {
            "main_metric": self.main_metric,
            "best_epoch": round(best["epoch"], 3),
            "steps": len(self.batches),
            "padding_share": 1 - progress.tokens / progress.computed_tokens,
            "train_sequences": len(self.prepared.train.features.input_ids),
            "shapes": progress.shapes,
            "scores": scores,
            "train_seconds": round(progress.seconds - seconds, 2),
            "evaluation_seconds": round(seconds, 2),
        }

    def _write(self, task: Task, split: Split, evaluation: Evaluation) -> None:
        """Writes the predictions and mistakes of a split, in process 0."""
        folder = self.folder.local / PREDICTIONS
        content = split.rows, evaluation.predictions
        write_answers(task, *content, split.name, folder)
        if self.keep_answers:
            write_json(folder / ANSWERS.format(split.name), evaluation.predictions)
        self.log(f"predictions of {split.name}: {folder}")
        if evaluation.scores:
            write_mistakes(folder, task, split.name, *content)
            warning = majority_warning(confusion(task, *content)[1])
            if task.problem_type == REGRESSION:
                labels = [row.label for row in split.rows]
                values = [answer["value"] for answer in evaluation.predictions]
                baseline, warning = mean_baseline(labels, values)
                self.log(f"{split.name}: {baseline}")
            if warning:
                self.log(f"warning: {split.name}: {warning}")


def balanced(counts: np.ndarray) -> np.ndarray:
    """scikit-learn's weights: all examples / (classes * examples of the class).

    A class without examples is not counted, and its weight is 0.
    """
    shares = counts * np.count_nonzero(counts) / np.sum(counts)
    return np.divide(1, shares, out=np.zeros(len(counts)), where=counts > 0)


def first_layers(count: int) -> str:
    """The pattern of the embeddings and the first layers; "" for a negative count."""
    numbers = "|".join(map(str, range(count)))
    layers = rf"|encoder/layer_({numbers})(?!\d)" if count > 0 else ""
    return f"^bert/(embeddings/{layers})" if count >= 0 else ""


def is_evaluated(step: int, steps: int, evaluations: int) -> bool:
    """Whether dev is scored after a step.

    Each epoch has ``evaluations`` evaluations at equal distances. The last one follows the
    last step. step: number of the step over all epochs, from 1. Step 0 has no evaluation.
    steps: number of steps of an epoch.
    """
    return step * evaluations // steps > (step - 1) * evaluations // steps >= 0


def show(scores: dict[str, float], first: str = "") -> str:
    """Scores in one line. first: name of the score that comes first, if it is there."""
    names = sorted(scores, key=lambda name: name != first)
    return "  ".join(f"{name} {scores[name]:.2f}" for name in names)
