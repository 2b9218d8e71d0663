"""A fine-tuning run: updates, evaluations, and the best model in a folder."""

import collections
import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh

from bert_jax.data.batching import EpochBatches
from bert_jax.errors import DivergenceError
from bert_jax.inference.evaluation import (
    Evaluation,
    Split,
    evaluate,
    evaluate_tuned,
    put_rows,
    run_model,
)
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.interop.initial import initial_params, make_model
from bert_jax.model.tagger import FeatureTagger
from bert_jax.objectives.heads import jit_forward
from bert_jax.parallel.mesh import (
    batch_divisor,
    check_batch_size,
    make_mesh,
    steps_ahead,
)
from bert_jax.parallel.sharding import tree_shardings
from bert_jax.settings import to_dict
from bert_jax.tasks.task import Task
from bert_jax.training import finetune_step as step_lib
from bert_jax.training.finetune_config import FineTuneConfig, FineTuneOptimizer
from bert_jax.training.finetune_data import Prepared
from bert_jax.training.metric_writer import MetricWriter
from bert_jax.training.optimizer import OptimizerConfig, bert_direction

BEST = "best"  # the folder of the best model, as bert_jax.load finds it
RESULTS = "results.json"
PREDICTIONS = "predictions"  # the folder of answers in the task's official form


@functools.cache
def compiled_update(
    model: nn.Module,
    head: str,
    optimizer: OptimizerConfig,
    accumulation: int,
    layout: step_lib.Layout,
) -> step_lib.TrainStep:
    """The update, which runs of a sweep share; a shape compiles at its first batch."""
    return step_lib.jit_train_step(
        layout,
        model=model,
        head=head,
        optimizer=bert_direction(optimizer),
        accumulation=accumulation,
    )


@functools.cache
def compiled_forward(mesh: Mesh, model: nn.Module) -> Callable:
    """The forward pass of evaluations, shared like the update."""
    return jit_forward(mesh, model)


def finetune(
    config: FineTuneConfig,
    prepared: Prepared,
    workdir: Path,
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Trains, keeps the best model on dev in ``workdir``/best, returns results.json.

    Files: config.json, metrics.jsonl, tensorboard/, best/ (a Hugging Face folder),
    predictions/ (in the task's official form) and results.json, written last.
    """
    run = _Run(config, prepared, workdir, log)
    writer = MetricWriter(workdir, 0)
    try:
        best = run.train(writer)
    finally:
        writer.close()
    results = run.results(best)
    write_json(workdir / RESULTS, results)
    return results


@dataclasses.dataclass
class _Best:
    """The parameters with the highest main metric on dev so far, on the host.

    task: with the thresholds that were tuned on dev.
    """

    epoch: float
    task: Task
    dev: Evaluation
    params: Any


class _Run:
    def __init__(
        self,
        config: FineTuneConfig,
        prepared: Prepared,
        workdir: Path,
        log: Callable[[str], None],
    ):
        self.config, self.prepared, self.log = config, prepared, log
        self.workdir = workdir
        self.task, self.checkpoint = prepared.task, prepared.checkpoint
        self.mesh = make_mesh(config.mesh)
        for name in ("batch_size", "eval_batch_size"):
            check_batch_size(getattr(config, name), self.mesh, name)
        self.batches = training_batches(config, prepared, self.mesh)
        self.updates = len(self.batches)
        self.real_tokens = 0
        self.shapes: collections.Counter[tuple[int, ...]] = collections.Counter()
        self.seconds = {"train_seconds": 0.0, "evaluation_seconds": 0.0}
        self.model = make_model(
            self.checkpoint.config,
            self.task.head,
            self.task.outputs,
            config.features,
            self.checkpoint.compute,
        )
        self.features = isinstance(self.model, FeatureTagger)

    def train(self, writer: MetricWriter) -> _Best:
        """Runs every update; returns the best parameters on the first dev split."""
        config = self.config
        state = self._initial_state()
        update = compiled_update(
            self.model,
            self.task.head,
            optimizer_config(config.optimizer),
            config.accumulation,
            step_lib.Layout.of(state),
        )
        rate = learning_rate(config, self.updates)
        best, step = None, 0
        ahead = steps_ahead(self.mesh)
        started = time.perf_counter()
        window: list[dict[str, jax.Array]] = []
        steps = self.batches.steps_per_epoch
        stops = evaluation_stops(steps, config.evaluations)
        for epoch in range(config.epochs):
            for i in range(1, steps + 1):
                arrays = self.batches[step]
                mask = arrays["attention_mask"]
                self.real_tokens += np.count_nonzero(mask)
                self.shapes[mask.shape] += 1
                arrays = put_rows(arrays, self.mesh)
                state, sums = update(state, arrays, np.float32(rate(step)))
                step += 1
                window.append(sums)
                if len(window) > ahead:  # the host is never far ahead of the device
                    jax.block_until_ready(window[-1 - ahead])
                if step % config.log_every == 0 or i in stops:
                    self._report(writer, step, epoch + i / steps, window, rate)
                    window = []
                if i in stops:
                    self.seconds["train_seconds"] += time.perf_counter() - started
                    best = self._evaluate(writer, step, epoch + i / steps, state, best)
                    started = time.perf_counter()
        return best

    def results(self, best: _Best) -> dict[str, Any]:
        """Scores the best parameters on every split and writes the predictions."""
        computed = sum(math.prod(s) * count for s, count in self.shapes.items())
        results: dict[str, Any] = {
            "main_metric": self.task.main_metric,
            "best_epoch": round(best.epoch, 3),
            "updates": self.updates,
            "padding_share": 1 - float(self.real_tokens / computed),
            "train_sequences": len(self.prepared.train.features.input_ids),
            "shapes": sorted(map(list, self.shapes)),
            "scores": {},
        }
        params = self._to_mesh(best.params)
        for i, split in enumerate(self.prepared.splits):
            evaluation = best.dev
            if i > 0:
                evaluation = evaluate(best.task, split, self._outputs(params, split))
            if evaluation.scores:
                results["scores"][split.name] = evaluation.scores
                self.log(f"{split.name}: {show(evaluation.scores)}")
            if jax.process_index() == 0:
                folder = self.workdir / PREDICTIONS
                for path in self.task.write(
                    split.rows, evaluation.predictions, split.name, folder
                ):
                    self.log(f"predictions of {split.name}: {path}")
        return results | {k: round(v, 2) for k, v in self.seconds.items()}

    def _initial_state(self) -> step_lib.FineTuneState:
        head_key, run_key = jax.random.split(jax.random.key(self.config.seed))
        params, fresh = initial_params(
            self.checkpoint,
            self.model,
            self.task.head,
            self.task.labels,
            head_key,
            fresh_head=self.config.fresh_head,
        )
        if fresh:
            self.log(f"made anew: {', '.join(fresh)}")
        if self.features:  # the encoder is frozen, its work done
            params = {"bilstm": params["bilstm"]}
        optimizer = bert_direction(optimizer_config(self.config.optimizer))
        return step_lib.init_state(
            params, optimizer, run_key, self.mesh, fsdp=self.config.mesh.fsdp
        )

    def _to_mesh(self, params: Any) -> Any:
        shardings = tree_shardings(params, self.mesh, fsdp=self.config.mesh.fsdp)
        return jax.device_put(params, shardings)

    def _outputs(self, params: Any, split: Split) -> list[np.ndarray]:
        return run_model(
            compiled_forward(self.mesh, self.model),
            params,
            split.features,
            batch_size=self.config.eval_batch_size,
            limit=self.checkpoint.config.max_positions,
            pad_id=self.checkpoint.tokenizer.pad_id,
            mesh=self.mesh,
            hidden=split.hidden,
        )

    def _evaluate(
        self,
        writer: MetricWriter,
        step: int,
        epoch: float,
        state: Any,
        best: _Best | None,
    ) -> _Best:
        """Scores dev, and keeps the parameters where they are the best so far."""
        started = time.perf_counter()
        split = self.prepared.splits[0]
        outputs = self._outputs(state.params, split)
        task, evaluation = evaluate_tuned(self.task, split, outputs)
        scores = evaluation.scores
        writer.write(step, split.name, scores)
        self.log(f"epoch {epoch:.2f}  {split.name}: {show(scores)}")
        metric = self.task.main_metric
        if best is None or scores[metric] > best.dev.scores[metric]:
            best = _Best(epoch, task, evaluation, jax.device_get(state.params))
            self._save(best)
        self.seconds["evaluation_seconds"] += time.perf_counter() - started
        return best

    def _save(self, best: _Best) -> None:
        if jax.process_index() != 0:
            return
        task, params, extra = best.task, best.params, {}
        head = task.head
        if self.features:
            params = params | {"bert": self.checkpoint.params["bert"]}
            extra = {"features": to_dict(self.config.features)}
            head = "features"
        save_huggingface(
            self.workdir / BEST,
            self.checkpoint.config,
            params,
            self.checkpoint.tokenizer,
            head=head,
            labels=task.labels,
            problem_type="regression"
            if task.outputs == 1 and task.head == "sequence"
            else None,
            extra=extra
            | {
                "family": self.config.family,
                "data": to_dict(task.saved_config()),
                "scores": best.dev.scores,
            },
            card=f"Fine-tuned with bert_jax from {self.config.init_from}; "
            f"dev: {show(best.dev.scores)}.",
            overwrite=True,
        )

    def _report(
        self,
        writer: MetricWriter,
        step: int,
        epoch: float,
        window: list[dict[str, jax.Array]],
        rate: Callable[[int], float],
    ) -> None:
        """Writes the means since the last report; refuses a loss that is not finite."""
        sums = jax.device_get(window)
        weight = max(sum(float(s["weight"]) for s in sums), 1.0)
        metrics = {
            "loss": sum(float(s["loss_sum"]) for s in sums) / weight,
            "grad_norm": sum(float(s["grad_norm"]) for s in sums) / len(sums),
            "learning_rate": rate(step - 1),
        }
        for name in ("loss", "grad_norm"):
            if not math.isfinite(metrics[name]):
                raise DivergenceError(
                    f"the {name} became {metrics[name]} in the updates before step {step}; "
                    "lower --config.optimizer.learning_rate"
                )
        writer.write(step, "train", metrics)
        self.log(
            f"step {step}/{self.updates}  epoch {epoch:.2f}  loss {metrics['loss']:.4f}"
        )


def training_batches(
    config: FineTuneConfig, prepared: Prepared, mesh: Mesh
) -> EpochBatches:
    """The batches of the run."""
    return EpochBatches(
        prepared.train.features,
        batch_size=config.batch_size,
        epochs=config.epochs,
        seed=config.seed,
        pad_id=prepared.checkpoint.tokenizer.pad_id,
        buckets=config.buckets,
        limit=prepared.checkpoint.config.max_positions,
        multiple=batch_divisor(mesh) * config.accumulation,
        accumulation=config.accumulation,
        hidden=prepared.train.hidden,
    )


def learning_rate(config: FineTuneConfig, updates: int) -> Callable[[int], float]:
    """The rate of each update from 0: linear warmup, then linear decay (paper, A.3).

    The decay begins at update 0, as in pretraining.
    """
    peak = config.optimizer.learning_rate
    warmup = int(updates * config.optimizer.warmup)

    def rate(step: int) -> float:
        return peak * (step / warmup if step < warmup else 1 - step / updates)

    return rate


def evaluation_stops(updates: int, evaluations: int) -> set[int]:
    """After which of an epoch's updates, from 1, dev is scored: evenly, and at the end."""
    return {-(-updates * (i + 1) // evaluations) for i in range(evaluations)}


def optimizer_config(settings: FineTuneOptimizer) -> OptimizerConfig:
    """The part that does not change from update to update; the rate comes with each."""
    kept = dataclasses.asdict(settings)
    del kept["warmup"]
    return OptimizerConfig(
        **kept | {"learning_rate": 1.0}, warmup_steps=0, total_steps=1
    )


def show(scores: dict[str, float]) -> str:
    """Scores in one line."""
    return "  ".join(f"{name} {value:.2f}" for name, value in scores.items())


def write_json(path: Path, content: Any) -> None:
    """Writes a file whole or not at all."""
    if jax.process_index() != 0:
        return
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    temporary.replace(path)
