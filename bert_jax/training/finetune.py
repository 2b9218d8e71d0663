"""A fine-tuning run from its config: data, batches, objective, evaluation, results."""

import dataclasses
import functools
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath
from flax import linen as nn
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from bert_jax.data.batching import EpochBatches
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError, counted, listed
from bert_jax.files import write_json
from bert_jax.inference.evaluation import (
    Evaluation,
    Split,
    evaluate,
    evaluate_tuned,
    run_model,
    with_hidden,
)
from bert_jax.inference.mistakes import confusion, majority_warning, write_mistakes
from bert_jax.interop.checkpoint import (
    Checkpoint,
    check_length,
    check_types,
    check_vocabulary,
)
from bert_jax.interop.find import check_checkpoint
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.interop.load import load
from bert_jax.interop.modules import EXTRA as MODULES
from bert_jax.interop.modules import vector_settings
from bert_jax.interop.surgery import head_params
from bert_jax.model.heads import make_model, packs
from bert_jax.objectives.heads import ENCODER, HEADS, FrozenTagging, Head, jit_forward
from bert_jax.objectives.objective import Params
from bert_jax.parallel.mesh import batch_divisor, make_mesh, process_rows
from bert_jax.parallel.processes import on_every_host, on_leader
from bert_jax.parallel.sharding import tree_shardings
from bert_jax.progress import Progress, print_line, unwatched
from bert_jax.runs import RESULTS
from bert_jax.settings import to_dict
from bert_jax.tasks.families import FAMILIES
from bert_jax.tasks.task import Task
from bert_jax.tasks.text_vectors import POOLINGS
from bert_jax.training.config import FineTuneConfig
from bert_jax.training.metrics import Reporter
from bert_jax.training.run import Job, Log, draw_run, run
from bert_jax.training.workdir import RunFolder

BEST = "best"  # the folder of the best model, as bert_jax.load finds it
PREDICTIONS = "predictions"  # the folder of answers in the task's official form
_FEW = 5  # rows: a score of fewer is warned of
FEATURES = "features"  # the folder of a frozen encoder's vectors; gone after the run


@dataclasses.dataclass(frozen=True)
class Prepared:
    """What the runs of a sweep share.

    forward: of evaluations, compiled once for all runs. splits: those that are scored, the
    first of which picks the best model; then those that are predicted only.
    """

    checkpoint: Checkpoint
    task: Task
    mesh: Mesh
    model: nn.Module
    forward: Callable
    train: Split
    splits: tuple[Split, ...]


def prepare(
    config: FineTuneConfig, workdir: Path, log: Log, task: Task | None = None
) -> Prepared:
    """Loads ``config.init_from`` and reads and tokenises every split of the task.

    task: that of ``config.data``, if it has rows of its own. In the feature-based approach
    the frozen encoder's vectors are written to ``workdir``/features.
    """
    check_checkpoint(config.init_from, "init_from")
    compute = dataclasses.asdict(config.compute)
    checkpoint = load(config.init_from, **config.model.changes(), **compute)
    check_vocabulary(checkpoint, config.init_from)
    task = task or FAMILIES[config.family](config.data)
    positions = checkpoint.config.max_positions
    modules = vector_settings(checkpoint.head, checkpoint.extra, positions) or {}
    task = task.fitted(positions, modules.get("pooling", "mean"))
    if (length := task.config.max_length) != config.data.max_length:
        log(
            f"max_length is {length}, the position table of the checkpoint; the default "
            f"is {config.data.max_length}"
        )
    check_length(length, checkpoint, "data.max_length")
    if task.whole_batch and config.accumulation > 1:
        raise UserError(
            f"accumulation={config.accumulation}, but the contrastive loss compares all "
            "texts of a batch; set accumulation=1"
        )
    train, *splits = [
        _split(task, name, checkpoint.tokenizer, config, log)
        for name in ("train", *task.source.eval_splits, *task.source.predict_splits)
    ]
    for split in (train, *splits):
        check_types(split.features.token_type_ids, checkpoint.config)
    mesh = make_mesh(config.mesh)
    model = make_model(
        checkpoint.config,
        task.head,
        task.outputs,
        config.features,
        checkpoint.compute,
    )
    if config.features.layers:
        train, *splits = [
            with_hidden(
                split,
                model,
                checkpoint,
                workdir / FEATURES,
                batch_size=config.eval_batch_size,
                mesh=mesh,
                log=log,
            )
            for split in (train, *splits)
        ]
    forward = jit_forward(mesh, model)
    return Prepared(checkpoint, task, mesh, model, forward, train, tuple(splits))


@unwatched()  # a task reports no progress of reading and tokenising
def _split(
    task: Task, name: str, tokenizer: Tokenizer, config: FineTuneConfig, log: Log
) -> Split:
    rows: Any = task.read(name)
    if not rows:
        raise UserError(
            f"{task.config.dir}: the {name} split has no rows; expected at least one"
        )
    if name == "train" and config.train_rows:
        rows = rows[: config.train_rows]
    features = task.encode(rows, tokenizer)
    sequences = len(features.input_ids)
    cut = f", {features.truncated:,} of them truncated" if features.truncated else ""
    log(
        f"{name}: {counted(len(rows), 'row')}{cut}, {counted(sequences, 'sequence')}, "
        f"{sum(map(len, features.input_ids)) / max(sequences, 1):.1f} tokens on average"
    )
    if name == "train" and (labels := task.label_counts(features)):
        log(f"labels: {shown_labels(labels)}")
    for warning in task.warnings(features, tokenizer) if name == "train" else ():
        log(f"warning: {name}: {warning}")
    return Split(name, rows, features)


def finetune(
    config: FineTuneConfig,
    prepared: Prepared,
    folder: RunFolder,
    log: Log = print_line,
    change_settings: bool = False,
) -> dict[str, Any]:
    """Trains, keeps the best model on dev in the workdir's best/, returns results.json.

    Files: config.json, metrics.jsonl, tensorboard/, best/ (a Hugging Face folder),
    predictions/ (in the task's official form) and results.json, written last. Checkpoints
    are there until then.
    """
    fine_tuning = _FineTuning(config, prepared, folder, log)
    job = dataclasses.replace(fine_tuning.job(), change_settings=change_settings)
    _, progress, _ = run(job, folder, log)
    results = fine_tuning.results(progress)

    def write_results() -> None:
        draw_run(folder, log)
        write_json(folder.local / RESULTS, results)
        folder.upload()

    on_leader(write_results)
    delete_checkpoints(folder)
    return results


def delete_checkpoints(folder: RunFolder) -> None:
    """Deletes the checkpoints of a finished run, which does not need its optimizer."""
    on_leader(lambda: epath.Path(folder.checkpoints).rmtree(missing_ok=True))


class _FineTuning:
    """What the engine asks of a fine-tuning run, and its results.

    The best model so far lies in best/; ``progress["best"]`` has its epoch and its scores
    on dev.
    """

    def __init__(
        self, config: FineTuneConfig, prepared: Prepared, folder: RunFolder, log: Log
    ):
        self.config, self.folder, self.log = config, folder, log
        self.prepared, self.task, self.model = prepared, prepared.task, prepared.model
        self.checkpoint, self.mesh = prepared.checkpoint, prepared.mesh
        self.frozen = bool(config.features.layers)
        kind = FrozenTagging if self.frozen else HEADS[self.task.head]
        self.objective: Head = kind(self.model, ENCODER if config.freeze else "")
        self.batches = EpochBatches(
            prepared.train.features,
            batch_size=config.batch_size,
            epochs=config.epochs,
            seed=config.seed,
            pad_id=self.checkpoint.tokenizer.pad_id,
            buckets=config.buckets,
            limit=self.checkpoint.config.max_positions,
            multiple=batch_divisor(self.mesh) * config.accumulation,
            accumulation=config.accumulation,
            rows=functools.partial(process_rows, self.mesh),
            packed=packs(self.model),
        )

    def job(self) -> Job:
        """The run for the engine."""
        given = self._params(self.checkpoint, fresh_head=self.config.fresh_head)
        if self.frozen:  # the encoder's work is done
            given = {name: part for name, part in given.items() if name == "bilstm"}
        return Job(
            config=self.config,
            objective=self.objective,
            batches=self.batches,
            mesh=self.mesh,
            identity=to_dict(self.config) | {"rows": self._checksum()},
            given=given,
            texts={"examples": self._examples()},
            evaluates=self._evaluates,
            evaluate=self._evaluate,
            one_program=False,  # there are many shapes
        )

    def _checksum(self) -> int:
        """A checksum of the tokens and labels of train and of the labelled splits."""
        scored = self.task.source.eval_splits
        checksum = 0
        for split in (self.prepared.train, *self.prepared.splits):
            if split.name in ("train", *scored):
                features = split.features
                for values in (features.input_ids, *features.targets.values()):
                    for value in values:
                        checksum = zlib.crc32(np.asarray(value).tobytes(), checksum)
        return checksum

    def _examples(self, count: int = 4) -> list[str]:
        """The first sequences that the model learns from, as it reads them."""
        tokens = self.checkpoint.tokenizer.tokens
        sequences = self.prepared.train.features.input_ids[:count]
        return [" ".join(tokens[t] for t in ids) for ids in sequences]

    def _params(self, checkpoint: Checkpoint, *, fresh_head: bool = False) -> Params:
        """What a checkpoint gives the model."""
        task = self.task
        return head_params(
            checkpoint, self.model, task.head, task.labels, fresh_head=fresh_head
        )[0]

    def results(self, progress: dict[str, Any]) -> dict[str, Any]:
        """Scores the best parameters on every split and writes the predictions."""
        best = progress["best"]
        results: dict[str, Any] = {
            "main_metric": self.task.main_metric,
            "best_epoch": round(best["epoch"], 3),
            "steps": len(self.batches),
            "padding_share": 1 - progress["tokens"] / progress["computed_tokens"],
            "train_sequences": len(self.prepared.train.features.input_ids),
            "shapes": progress["shapes"],
            "scores": {},
        }
        task, params = self.task.tuned(best["scores"]), self._best_params()
        for split in self.prepared.splits:
            evaluation = evaluate(task, split, self._outputs(params, split))
            if evaluation.scores:
                results["scores"][split.name] = evaluation.scores
                self.log(f"{split.name}: {show(evaluation.scores)}")
            on_leader(functools.partial(self._write, task, split, evaluation))
        seconds = progress["evaluation_seconds"]
        return results | {
            "train_seconds": round(progress["seconds"] - seconds, 2),
            "evaluation_seconds": round(seconds, 2),
        }

    def _write(self, task: Task, split: Split, evaluation: Evaluation) -> None:
        """Writes the predictions and mistakes of a split; only for process 0."""
        folder = self.folder.local / PREDICTIONS
        content = split.rows, evaluation.predictions
        for path in task.write(*content, split.name, folder):
            self.log(f"predictions of {split.name}: {path}")
        if evaluation.scores:
            for path in write_mistakes(folder, task, split.name, *content):
                what = "confusion" if "confusion" in path.name else "errors"
                self.log(f"{what} of {split.name}: {path}")
            warn = majority_warning(confusion(task, *content)[1])
            if len(split.rows) < _FEW:
                few = counted(len(split.rows), "row")
                warn = f"the scores of {few} mean nothing; give more rows"
            if warn:
                self.log(f"warning: {split.name}: {warn}")

    def _evaluates(self, step: int) -> bool:
        """Whether dev is scored after a step."""
        steps = self.batches.steps_per_epoch
        evaluated = evaluation_steps(steps, self.config.evaluations)
        return step > 0 and (step - 1) % steps + 1 in evaluated

    def _evaluate(self, step: int, params: Params, reporter: Reporter) -> None:
        """Scores dev, and keeps the parameters where they are the best so far."""
        started, progress = time.perf_counter(), reporter.progress
        split = self.prepared.splits[0]
        task, evaluation = evaluate_tuned(
            self.task, split, self._outputs(params, split)
        )
        scores, metric = evaluation.scores, self.task.main_metric
        epoch = step / self.batches.steps_per_epoch
        reporter.write(step, split.name, scores)
        reporter.log(f"epoch {epoch:.2f}  {split.name}: {show(scores)}")
        best = progress.get("best")
        if best is None or scores[metric] > best["scores"][metric]:
            whole = on_every_host(params)
            on_leader(lambda: self._save_best(task, jax.device_get(whole), scores))
            progress["best"] = {"epoch": epoch, "scores": scores}
        progress["evaluation_seconds"] = (
            progress.get("evaluation_seconds", 0.0) + time.perf_counter() - started
        )

    def _save_best(self, task: Task, params: Params, scores: dict[str, float]) -> None:
        extra = {
            "family": self.config.family,
            "data": to_dict(task.saved_config()),
            "scores": scores,
        }
        head = task.head
        if self.frozen:
            params = params | {"bert": self.checkpoint.params["bert"]}
        if "bilstm" in params:
            extra["features"] = to_dict(self.config.features)
            head = "features"
        if MODULES in self.checkpoint.extra and head in POOLINGS:
            # Such as Normalize and prompts.
            length = self.task.config.max_length
            own = {"pooling": head, "max_length": length}
            extra[MODULES] = self.checkpoint.extra[MODULES] | own
        best = dataclasses.replace(
            self.checkpoint,
            params=params,
            head=head,
            labels=task.labels,
            problem_type=task.problem_type,
            extra=extra,
        )
        card = f"Fine-tuned with bert_jax from {self.config.init_from}; "
        card += f"dev: {show(scores)}."
        folder = self.folder.local / BEST
        save_huggingface(folder, best, card=card, overwrite=True, own=True)

    def _best_params(self) -> Params:
        """The parameters in best/, which process 0 has, on the mesh."""

        def read() -> Params:
            scan = self.checkpoint.compute.scan_layers
            return self._params(load(self.folder.local / BEST, scan_layers=scan))

        params = on_leader(read)
        if jax.process_count() > 1:
            shapes = jax.eval_shape(self.objective.init, jax.random.key(0))
            if self.frozen:
                shapes = shapes | {"bert": self.checkpoint.params["bert"]}
            zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
            params = multihost_utils.broadcast_one_to_all(params or zeros)
        shardings = tree_shardings(params, self.mesh, fsdp=self.config.mesh.fsdp)
        return jax.device_put(params, shardings)

    def _outputs(self, params: Params, split: Split) -> list[np.ndarray]:
        rows = len(split.rows)
        with Progress(f"predicting {split.name}", total=rows, unit="rows") as progress:
            return run_model(
                self.prepared.forward,
                params,
                split.features,
                batch_size=self.config.eval_batch_size,
                limit=self.checkpoint.config.max_positions,
                pad_id=self.checkpoint.tokenizer.pad_id,
                mesh=self.mesh,
                packed=packs(self.model),
                done=progress.part(rows),
            )


def evaluation_steps(steps: int, evaluations: int) -> set[int]:
    """After which of an epoch's steps, from 1, dev is scored: evenly, and at the end."""
    return {-(-steps * (i + 1) // evaluations) for i in range(evaluations)}


def shown_labels(counts: Mapping[str, int]) -> str:
    """Labels with their counts in one line; quoted where blanks would not show."""
    names = (name if name == name.strip() != "" else repr(name) for name in counts)
    pairs = zip(names, counts.values(), strict=True)
    return listed([f"{name} ({count:,})" for name, count in pairs], most=10)


def show(scores: dict[str, float]) -> str:
    """Scores in one line."""
    return "  ".join(f"{name} {value:.2f}" for name, value in scores.items())
