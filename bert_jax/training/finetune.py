"""A fine-tuning run from its config: data, batches, objective, evaluation, results."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bert_jax.data.batching import EpochBatches
from bert_jax.errors import DivergenceError, UserError, counted
from bert_jax.files import write_json
from bert_jax.inference.evaluation import (
    Split,
    evaluate_split,
    evaluate_tuned,
    run_model,
)
from bert_jax.objectives.objective import Params
from bert_jax.parallel.mesh import batch_divisor, process_rows
from bert_jax.parallel.processes import from_leader, on_every_host, on_leader
from bert_jax.progress import Log, Progress, print_line
from bert_jax.runs import RESULTS
from bert_jax.tasks.task import (
    Scores,
    tuned,
)
from bert_jax.training.config import FineTuneConfig
from bert_jax.training.finetune_data import Prepared, identity
from bert_jax.training.finetune_loss import finetune_objective
from bert_jax.training.finetune_outputs import (
    best_params,
    majority,
    save_best,
    show,
    write_predictions,
)
from bert_jax.training.hooks import evaluation
from bert_jax.training.metrics import Reporter, RunProgress
from bert_jax.training.run import Job, run
from bert_jax.training.workdir import RunFolder, draw_run

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
    devices = jax.devices()
    log(f"devices: {len(devices)} x {devices[0].device_kind}")
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
        self.objective = finetune_objective(config, prepared, self.log)
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
        fresh_head = self.config.fresh_head
        params = self.prepared.params_of(self.checkpoint, fresh_head=fresh_head)
        if self.config.features.layers:  # the features contain the encoder's vectors
            params = {name: part for name, part in params.items() if name == "bilstm"}
        steps, count = self.batches.steps_per_epoch, self.config.evaluations
        # Own metrics are computed before the first step, so that mistakes show early.
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

    def _evaluate(self, step: int, params: Params, reporter: Reporter) -> bool:
        """Scores dev, and saves the parameters if no earlier score is higher.

        Of equal scores the last is kept, because a small dev set has few different scores,
        and the learning rate falls. Returns whether the run ends. Step 0 is scored, but
        never the best.
        """
        progress = reporter.progress
        dev, metric = self.prepared.splits[0], self.main_metric
        outputs = self._outputs(params, dev)
        if not all(np.isfinite(output).all() for output in outputs):
            name = f"the model's outputs for {dev.name}"
            raise DivergenceError(f"{name} are not finite numbers after step {step}")
        task, evaluation = evaluate_tuned(self.task, dev, outputs)
        # All processes get the scores of process 0, so that they make the same decisions.
        scores = from_leader(lambda: evaluation.scores)
        epoch = step / self.batches.steps_per_epoch
        baseline = {}
        if "accuracy" in scores:
            baseline = majority(self.task, dev.rows)
        reporter.write(step, dev.name, scores | baseline)
        reporter.log(f"epoch {epoch:.2f}  {dev.name}: {show(scores, metric)}")
        if metric not in scores:
            known = ", ".join(scores)
            raise UserError(f"main_metric={metric!r}, expected one of {known}")
        highest = self._highest(progress.best)
        progress.evaluations_since_best += 1
        if step and scores[metric] > highest:
            progress.evaluations_since_best = 0
        if step and (progress.best is None or scores[metric] >= highest):
            whole = on_every_host(params)
            run = self.config, self.prepared, task
            on_leader(
                lambda: save_best(*run, jax.device_get(whole), scores, self.folder)
            )
            progress.best = {"epoch": epoch, "scores": scores}
        return step > 0 and self._ends(step, scores, progress.evaluations_since_best)

    def _highest(self, best: dict[str, Any] | None) -> float:
        """The main metric of ``best``; minus infinity without one."""
        if best is None or math.isnan(best["scores"][self.main_metric]):
            return -math.inf
        return best["scores"][self.main_metric]

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

    def results(self, progress: RunProgress) -> dict[str, Any]:
        """Scores the best parameters on every split and writes the predictions."""
        best, seconds = progress.best, progress.evaluation_seconds
        task = tuned(self.task, best["scores"])
        params = best_params(self.config, self.prepared, self.folder, self.objective)
        write = functools.partial(
            write_predictions,
            task,
            run_folder=self.folder,
            log=self.log,
            keep_answers=self.keep_answers,
        )
        scores = {}
        for split in self.prepared.splits:
            evaluation = evaluate_split(task, split, self._outputs(params, split))
            if evaluation.scores:
                scores[split.name] = evaluation.scores
                shown = show(evaluation.scores, self.main_metric)
                self.log(f"{split.name}: {shown}")
            on_leader(functools.partial(write, split, evaluation))
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


def is_evaluated(step: int, steps: int, evaluations: int) -> bool:
    """Whether dev is scored after a step.

    Each epoch has ``evaluations`` evaluations at equal distances, the last one after its
    last step. step: number of the step over all epochs, from 1. Step 0 has no evaluation.
    steps: number of steps of an epoch.
    """
    return step * evaluations // steps > (step - 1) * evaluations // steps >= 0
