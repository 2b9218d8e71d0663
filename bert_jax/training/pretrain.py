"""A pretraining run from its config: text, batches and objective for the engine."""

import dataclasses
import functools
import importlib
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax.data.mixture import BLOCK, Text
from bert_jax.data.pipeline import (
    TrainingBatches,
    split_documents,
)
from bert_jax.data.store import TokenStore
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError, counted
from bert_jax.inference.pretrained import filled_prompts
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.train_state import newest_step
from bert_jax.model.bert import BertForPreTraining
from bert_jax.objectives.causal_phases import with_causal_phases
from bert_jax.objectives.objective import (
    Params,
    PretrainingObjective,
)
from bert_jax.parallel.mesh import (
    batch_divisor,
    check_batch_size,
    make_mesh,
    process_rows,
)
from bert_jax.parallel.processes import on_every_host, on_leader
from bert_jax.progress import Log, print_line
from bert_jax.settings import to_dict
from bert_jax.training.config import TrainConfig
from bert_jax.training.hooks import evaluation
from bert_jax.training.pretrain_data import (
    check_start,
    checked,
    checkpoint_of_run,
    initial_params,
    open_text,
    recorded_text,
    with_vocabulary,
)
from bert_jax.training.pretrain_evaluation import Evaluations
from bert_jax.training.run import Job, run
from bert_jax.training.workdir import RunFolder, draw_run, is_drawn, open_workdir


def pretrain(
    config: TrainConfig,
    workdir: str | os.PathLike,
    log: Log = print_line,
    *,
    change_settings: bool = False,
) -> dict[str, float] | None:
    """Pretrains in ``workdir`` to the last step of ``config``, from the newest checkpoint.

    config: ``bert_jax.training.config.train_config`` makes it from a dictionary of the
      settings of docs/settings.md, as ``get_config`` of a config file returns it.
    log: function that receives each line of the report.
    change_settings: resume an unfinished run with other settings than before.

    Returns the last evaluation, or None without one. In a job of several processes, only
    process 0 writes and logs.
    """
    mesh = make_mesh(config.mesh)
    for i, phase in enumerate(config.phases):
        setting = f"phases[{i}].batch_size"
        check_batch_size(phase.batch_size, mesh, setting, config.accumulation)
    # Checked here, so that a wrong name is an error before the text is prepared.
    pretraining_objective(config)
    with open_workdir(workdir, log) as (folder, log):
        return _pretrain(config, mesh, folder, log, change_settings)


def _pretrain(
    config: TrainConfig, mesh: Mesh, folder: RunFolder, log: Log, change_settings: bool
) -> dict[str, float] | None:
    done = newest_step(folder.checkpoints)
    # A resumed run has its own parameters.
    if config.init_from and not done:
        check_start(config)
    if done != config.total_steps:
        on_leader(config.tracker_library)
    stores, tokenizer = open_text(config.data, folder, log, config.init_from)
    config = with_vocabulary(config, tokenizer.vocab_size, log)
    pretraining = _Pretraining(config, mesh, stores, tokenizer, log)
    job = pretraining.job(folder, change_settings)
    with checked(stores, log) as check_data:
        job = replace(job, check_data=check_data)
        state, progress, first = run(job, folder, log)
    finished = first == config.total_steps
    if finished:
        log(f"already finished ({counted(config.total_steps, 'step')})")
    pretraining.fill_prompts(state.params)

    def draw() -> None:
        if not finished or not is_drawn(folder):
            draw_run(folder, log)

    on_leader(draw)
    return progress.evaluation or None


@dataclasses.dataclass(eq=False)
class _Pretraining:
    """A pretraining run: its Job for the engine, and its prompts."""

    config: TrainConfig
    mesh: Mesh
    stores: Sequence[TokenStore]
    tokenizer: Tokenizer
    log: Log

    def __post_init__(self):
        config = self.config
        training, held_out = self._texts()
        self.objective = pretraining_objective(config)
        packing = 0  # not packed
        if config.data.packing:
            packing = batch_divisor(self.mesh) * config.accumulation
        self.batches = TrainingBatches(
            training,
            self.tokenizer,
            config.phases,
            config.data.examples,
            seed=config.seed,
            rows=functools.partial(process_rows, self.mesh),
            packing=packing,
        )
        mesh, objective, batches = self.mesh, self.objective, self.batches
        self.evaluations = Evaluations(config, mesh, objective, batches, held_out)

    def _texts(self) -> tuple[list[Text], list[Text]]:
        """The texts with their training documents, and with their held-out documents."""
        config = self.config
        training, held_out = [], []
        weights = config.data.weights or (1.0,)
        for store, weight in zip(self.stores, weights, strict=True):
            documents = store.info.documents
            used, rest = split_documents(documents, config.data.holdout)
            if config.eval_every and not len(rest):
                whole = counted(documents, "document")
                if len(self.stores) > 1:
                    whole += f" in {store.directory}"
                raise UserError(
                    f"data.holdout={config.data.holdout} of {whole} leaves none "
                    "for evaluation; use more documents, or set eval_every=0"
                )
            training.append(Text(store, used, weight))
            held_out.append(Text(store, rest, weight))
        return training, held_out

    def job(self, folder: RunFolder, change_settings: bool) -> Job:
        """The run for the engine."""
        config, evaluations = self.config, self.evaluations
        self.log(_description(config, self.objective, self.stores))
        self._log_shares()
        text = self._text()
        params = start_state = None
        is_new = not newest_step(folder.checkpoints)  # a resumed run has its own state
        if is_new and config.init_state:
            start_state = checkpoint_of_run(config.init_from)
        elif is_new and config.init_from:
            params = initial_params(config, self.tokenizer, self.log)
        hooks = [evaluation(evaluations.is_due, evaluations.evaluate)]
        if config.eval_average:
            # First, so that the last evaluation of the run is the evaluation of its
            # parameters.
            of_average = evaluations.evaluate_average
            hooks.insert(0, evaluation(evaluations.is_due, of_average, average=True))
        return Job(
            config=config,
            objective=self.objective,
            batches=self.batches,
            mesh=self.mesh,
            identity=to_dict(config) | {"text": text},
            hooks=hooks,
            change_settings=change_settings,
            tokenizer=self.tokenizer,
            initial_params=params,
            start_state=start_state,
            average=config.average,
            keep_checkpoints=config.keep_checkpoints,
            keep_checkpoints_every=config.keep_checkpoints_every,
            threads=config.data.threads,
            prefetch=config.data.prefetch,
        )

    def _text(self) -> dict[str, Any]:
        """The text as config.json records it. Warns of a text without checksums."""
        for store in self.stores:
            if not store.info.checksums:
                directory = store.directory
                add = f"bert_jax inspect {directory} --checksums adds them"
                warning = (
                    f"{directory} has no checksums: damage would not be noticed; {add}"
                )
                self.log(f"warning: {warning}")
        return recorded_text([store.info for store in self.stores])

    def _log_shares(self) -> None:
        """Logs the share of each text of a mixture, and how often the run reads it."""
        if len(self.stores) == 1:
            return
        sources = self.batches.sources
        for i, store in enumerate(self.stores):
            passes = 0.0
            for phase, mixture in zip(self.config.phases, sources, strict=True):
                share = mixture.counts[i] / BLOCK
                samples = share * phase.steps * phase.batch_size
                passes += samples / mixture.sources[i].epoch_size
            share = f"{share:.1%} of the sequences"
            self.log(f"{store.directory}: {share}, {passes:.3g} passes")

    def fill_prompts(self, params: Params) -> None:
        """Logs the prompts of the config with the most probable tokens."""
        model = getattr(self.objective, "model", None)
        if not self.config.prompts or not isinstance(model, BertForPreTraining):
            return
        whole = on_every_host(params)
        parts = whole, self.tokenizer, "pretraining"
        checkpoint = Checkpoint(model.config, *parts, compute=model.compute)
        length = self.config.phases[-1].sequence_length
        try:
            for line in filled_prompts(
                checkpoint, self.config.prompts, length, self.mesh
            ):
                self.log(line)
        except UserError as error:  # the training is finished and saved
            self.log(f"prompts: {error}")


# Members of an objective that a run reads.
_MEMBERS = (
    *("init", "weights", "sums", "sum_names", "metrics", "summary"),
    *("eval_sums", "flops", "rules", "frozen"),
)


def pretraining_objective(config: TrainConfig) -> PretrainingObjective:
    """The objective that a config names, with its model.

    Raises UserError if there is no such module, or if it has no function ``pretraining``
    that returns an objective.
    """
    name = config.objective
    pretraining = _pretraining_function(name)
    configs = config.model, config.compute, config.data.examples
    needed, options = "expected pretraining(model, compute, examples)", {}
    if config.z_loss:
        options["z_loss"] = config.z_loss
        needed = "z_loss needs pretraining(model, compute, examples, z_loss)"
    try:
        inspect.signature(pretraining).bind(*configs, **options)
    except TypeError as error:
        actual = f"objective={name!r}: its function pretraining takes other arguments"
        raise UserError(f"{actual} ({error}); {needed}") from error
    objective = pretraining(*configs, **options)
    # An objective may be of any class that has the members.
    for member in _MEMBERS:
        # Statically, because a property such as sum_names traces the objective.
        if inspect.getattr_static(objective, member, None) is None:
            kind = type(objective).__name__
            actual = f"objective={name!r}: pretraining returned {kind} without {member}"
            raise UserError(f"{actual}; expected a PretrainingObjective")
    if any(phase.causal for phase in config.phases):
        last = config.phases[-1]
        return with_causal_phases(
            objective, config.data.examples, ends_causal=last.causal
        )
    return objective


def _pretraining_function(name: str) -> Callable[..., Any]:
    """The function ``pretraining`` of the module of an objective."""
    expected = (
        "expected bert_jax.objectives.mlm_nsp, .causal, .electra or .two_way, or a module "
        "of your own in a folder of PYTHONPATH"
    )
    if not all(part.isidentifier() for part in name.split(".")):
        raise UserError(f"objective={name!r} is not the name of a module; {expected}")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not f"{name}.".startswith(f"{missing}."):  # an import in the module
            actual = f"objective={name!r} imports {missing}: {error}"
            raise UserError(f"{actual}; install it or correct the import") from error
        raise UserError(f"objective={name!r}: {error}; {expected}") from error
    pretraining = getattr(module, "pretraining", None)
    if not callable(pretraining):
        actual = f"objective={name!r} has no function pretraining"
        raise UserError(f"{actual}; {expected}")
    return pretraining


def _description(
    config: TrainConfig, objective: PretrainingObjective, stores: Sequence[TokenStore]
) -> str:
    phases = []
    for phase in config.phases:
        size = f"{phase.batch_size} x {phase.sequence_length}"
        text = f"{counted(phase.steps, 'step')} of {size}"
        if phase.causal:
            text += " left to right"
        phases.append(text)
    params = jax.eval_shape(objective.init, jax.random.key(0))
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    tokens = sum(store.info.tokens for store in stores)
    layers = counted(config.model.num_layers, "layer")
    documents = sum(store.info.documents for store in stores)
    model = (
        f"{config.model.model_type} with {layers}, width {config.model.hidden_size}, "
        f"{count:,} parameters"
    )
    text = f"{tokens:,} tokens in {counted(documents, 'document')}"
    devices = jax.devices()
    hardware = f"{len(devices)} x {devices[0].device_kind}"
    return "; ".join([model, ", ".join(phases), text, hardware])
