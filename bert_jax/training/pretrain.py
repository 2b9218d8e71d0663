"""A pretraining run from its config: text, batches and objective for the engine."""

import bisect
import collections
import dataclasses
import functools
import importlib
import itertools
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh

from bert_jax.data.checksums import Check
from bert_jax.data.corpus import read_documents
from bert_jax.data.corpus_formats import Reading
from bert_jax.data.pipeline import (
    TrainingBatches,
    drawn_ahead,
    eval_batches,
    split_documents,
)
from bert_jax.data.preparation import prepare
from bert_jax.data.store import TokenStore
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.data.vocabulary_training import train_vocabulary
from bert_jax.errors import DivergenceError, UserError, naming
from bert_jax.inference.evaluation import OnDevices, collected, rows_of
from bert_jax.inference.pretrained import FillMaskOptions, fill_mask
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.load import load
from bert_jax.interop.surgery import stretched, with_new_words
from bert_jax.interop.train_state import newest_step
from bert_jax.model.bert import BertForPreTraining
from bert_jax.objectives.heads import jit_whole
from bert_jax.objectives.objective import (
    Params,
    PretrainingObjective,
    eval_metrics,
    eval_summary,
)
from bert_jax.parallel.mesh import (
    batch_divisor,
    check_batch_size,
    make_mesh,
    process_rows,
    put_batch,
    steps_ahead,
)
from bert_jax.parallel.processes import from_all, on_every_host, on_leader
from bert_jax.progress import Log, Progress, print_line
from bert_jax.remote import local_copy
from bert_jax.settings import to_dict
from bert_jax.training.config import DataConfig, Phase, TrainConfig
from bert_jax.training.hooks import evaluation
from bert_jax.training.metrics import Reporter
from bert_jax.training.run import Job, run
from bert_jax.training.workdir import RunFolder, draw_run, is_drawn, open_workdir

# What a process knows about the files of its text.
_READING, _UNDAMAGED, _DAMAGED = range(3)


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
    with open_workdir(workdir, log) as (folder, log):
        return _pretrain(config, mesh, folder, log, change_settings)


def _pretrain(
    config: TrainConfig, mesh: Mesh, folder: RunFolder, log: Log, change_settings: bool
) -> dict[str, float] | None:
    store, tokenizer = open_text(config.data, folder, log, config.init_from)
    config = _fitted(config, tokenizer.vocab_size, log)
    pretraining = _Pretraining(config, mesh, store, tokenizer, log)
    job = pretraining.job(folder, change_settings)
    with Check(store, jax.process_index() / jax.process_count()) as check:
        job = replace(job, check_data=_in_all_processes(check, log))
        state, _, first = run(job, folder, log)
    finished = first == config.total_steps
    if finished:
        log(f"finished before, after {config.total_steps:,} steps")
    pretraining.fill_prompts(state.params)

    def draw() -> None:
        if not finished or not is_drawn(folder):
            draw_run(folder, log)

    on_leader(draw)
    return pretraining.last_evaluation


def _fitted(config: TrainConfig, vocab_size: int, log: Log) -> TrainConfig:
    """The config for a text whose vocabulary has ``vocab_size`` tokens.

    A small text may give a smaller vocabulary than ``data.vocabulary_size``. Raises
    UserError if the model does not fit the text.
    """
    model, data = config.model, config.data
    trained = data.corpus and not config.init_from
    if trained and vocab_size < model.vocab_size == data.vocabulary_size:
        log(f"the text gives a vocabulary of {vocab_size:,} tokens only")
        config = replace(config, model=replace(model, vocab_size=vocab_size))
    elif vocab_size != model.vocab_size:
        expected = f"{vocab_size}, the number of tokens in the vocabulary of the text"
        raise UserError(f"model.vocab_size={model.vocab_size}, expected {expected}")
    if data.examples.next_sentence and model.type_vocab_size < 2:
        expected = "2 for pairs of sentences, or data.examples.next_sentence=False"
        raise UserError(f"model.type_vocab_size=1, expected {expected}")
    return config


@dataclasses.dataclass(eq=False)
class _Pretraining:
    """A pretraining run: its Job for the engine, and its evaluations.

    last_evaluation: metrics; None before an evaluation.
    """

    config: TrainConfig
    mesh: Mesh
    store: TokenStore
    tokenizer: Tokenizer
    log: Log
    last_evaluation: dict[str, float] | None = None

    def __post_init__(self):
        config, documents = self.config, self.store.info.documents
        training, self.held_out = split_documents(documents, config.data.holdout)
        if config.eval_every and not len(self.held_out):
            raise UserError(
                f"data.holdout={config.data.holdout} of {documents} documents leaves none "
                "for evaluation; use more documents, or set eval_every=0"
            )
        self.objective = pretraining_objective(config)
        self.batches = TrainingBatches(
            self.store,
            self.tokenizer,
            config.phases,
            config.data.examples,
            seed=config.seed,
            documents=training,
            rows=functools.partial(process_rows, self.mesh),
            packing=batch_divisor(self.mesh)
            * config.accumulation
            * config.data.packing,
        )
        self.eval_sums = jit_whole(self.mesh, self.objective.eval_sums)
        # The batches of a phase are kept, because each plan reads all lengths.
        self.eval_batches: dict[Phase, TrainingBatches] = {}
        steps = [phase.steps for phase in config.phases]
        self.ends = list(itertools.accumulate(steps))  # the last step of each phase

    def job(self, folder: RunFolder, change_settings: bool) -> Job:
        """The run for the engine."""
        config = self.config
        self.log(_description(config, self.objective, self.store))
        text = self._text()
        params = None
        # A resumed run has its own parameters.
        if config.init_from and not newest_step(folder.checkpoints):
            params = _initial_params(config, self.tokenizer, self.log)
        return Job(
            config=config,
            objective=self.objective,
            batches=self.batches,
            mesh=self.mesh,
            identity=to_dict(config) | {"text": text},
            hooks=[evaluation(self._is_evaluated, self._evaluate)],
            change_settings=change_settings,
            tokenizer=self.tokenizer,
            initial_params=params,
            keep_checkpoints=config.keep_checkpoints,
            keep_checkpoints_every=config.keep_checkpoints_every,
            threads=config.data.threads,
            prefetch=config.data.prefetch,
        )

    def _text(self) -> dict[str, Any]:
        """The text as config.json records it. Warns of a text without checksums."""
        info, directory = self.store.info, self.store.directory
        text = {
            "documents": info.documents,
            "tokens": info.tokens,
            "vocabulary": info.vocabulary_fingerprint,
        }
        if content := info.fingerprint():
            text["content"] = content
        else:
            add = f"bert_jax inspect {directory} --checksums adds them"
            warning = f"{directory} has no checksums: damage is not noticed; {add}"
            self.log(f"warning: {warning}")
        return text

    def _is_evaluated(self, step: int) -> bool:
        every = self.config.eval_every
        return bool(every) and (step % every == 0 or step in self.ends)

    def _evaluate(self, step: int, params: Params, reporter: Reporter) -> None:
        # The end of a phase is evaluated at the lengths of this phase and of the next.
        ends = self.ends[:-1]
        for i in sorted({bisect.bisect(ends, near) for near in (step - 1, step)}):
            phase = replace(self.config.phases[i], steps=self.config.eval_batches)
            metrics = self._metrics(phase, params)
            if not math.isfinite(metrics["loss"]):
                loss = f"the loss of the evaluation after step {step}"
                raise DivergenceError(f"{loss} is {metrics['loss']}")
            self.last_evaluation = metrics
            length = phase.sequence_length
            reporter.write(step, "eval", {"sequence_length": length, **metrics})
            summary = f"eval at {length} tokens: {eval_summary(metrics)}"
            reporter.log(f"step {step}  {summary}")
        reporter.progress.evaluation = metrics  # for the baselines in reports

    def _metrics(self, phase: Phase, params: Params) -> dict[str, float]:
        """The metrics of batches of held-out documents."""
        config = self.config
        if phase not in self.eval_batches:
            self.eval_batches[phase] = eval_batches(
                self.batches, phase, self.held_out, config.eval_mask_rate
            )
        ahead = drawn_ahead(
            self.eval_batches[phase],
            threads=config.data.threads,
            prefetch=config.data.prefetch,
            timeout=config.data_timeout,
        )
        bar = Progress("evaluating", ahead, total=phase.steps, unit="batches")
        sums, in_flight = [], collections.deque()
        with bar:
            for batch in bar:
                in_flight.append(self.eval_sums(params, put_batch(batch, self.mesh)))
                if len(in_flight) > steps_ahead(self.mesh):
                    sums.append(jax.device_get(in_flight.popleft()))
        sums += jax.device_get(list(in_flight))
        return eval_metrics(self.objective, sums)

    def fill_prompts(self, params: Params) -> None:
        """Logs the prompts of the config with the most probable tokens."""
        model = getattr(self.objective, "model", None)
        if not self.config.prompts or not isinstance(model, BertForPreTraining):
            return
        params = on_every_host(params)
        try:
            for line in _filled(self.config, model, params, self.tokenizer):
                self.log(line)
        except UserError as error:  # the training is finished and saved
            self.log(f"prompts: {error}")


def _in_all_processes(check: Check, log: Log) -> Callable[..., bool]:
    """The function Job.check_data, which raises in all processes if one finds damage."""
    unfinished = True

    def check_data(*, wait: bool) -> bool:
        nonlocal unfinished
        if not unfinished:
            return False
        error = None
        state = _READING
        try:
            if wait and not check.finished():
                log("the first save waits until the text is checked")
            if check.finished(wait):
                state = _UNDAMAGED
        except UserError as found:
            state, error = _DAMAGED, found
        states = from_all(state)
        if error is not None:
            raise error
        if others := np.flatnonzero(states == _DAMAGED).tolist():
            names = ", ".join(map(str, others))
            raise UserError(f"process {names} found a damaged file and prints its name")
        unfinished = (states == _READING).any()
        return wait

    return check_data


def pretraining_objective(config: TrainConfig) -> PretrainingObjective:
    """The objective that a config names, with its model.

    Raises UserError if there is no such module.
    """
    name = config.objective
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"objective={name!r}: {error}; expected bert_jax.objectives.mlm_nsp, .causal, "
            ".electra or .two_way, or a module of your own in a folder of PYTHONPATH"
        ) from error
    return module.pretraining(config.model, config.compute, config.data.examples)


def open_text(
    config: DataConfig, folder: RunFolder, log: Log, init_from: str = ""
) -> tuple[TokenStore, Tokenizer]:
    """Opens config.path, or config.corpus, prepared once into the workdir's text/.

    init_from: a checkpoint whose vocabulary the corpus is prepared with. Without one the
    vocabulary is trained on the corpus.

    Process 0 prepares the text. All processes must call this function.
    """
    config.check_text()
    if config.path:
        directory = local_copy(config.path)
    else:
        directory = folder.prepared(
            "text",
            last="index.json",
            make=lambda directory: prepare_corpus(config, directory, log, init_from),
        )
    store = TokenStore(directory)
    tokenizer = load_tokenizer(directory)
    if not tokenizer.has_fingerprint(store.info.vocabulary_fingerprint):
        raise UserError(
            f"{directory} was prepared with another vocabulary than it has; prepare the "
            "text again"
        )
    settings = store.info.settings
    inputs, language = tuple(settings.get("inputs", ())), settings.get("language", "en")
    before = inputs, language, tokenizer.lower_case
    lower_case = tokenizer.lower_case if init_from else config.lower_case
    expected = config.corpus, config.language, lower_case
    if before != expected and not config.path:
        raise UserError(
            f"{directory} was prepared with (data.corpus, language, lower_case)={before}, "
            f"expected {expected}; use another workdir, or delete this folder"
        )
    return store, tokenizer


def prepare_corpus(
    config: DataConfig, directory: Path, log: Log, init_from: str = ""
) -> None:
    """Writes vocabulary and store of config.corpus. init_from: see :func:`open_text`."""
    log(f"preparing {', '.join(config.corpus)} in {directory}")
    if init_from:
        tokenizer = load(init_from, weights=False).tokenizer
        if tokenizer is None:
            needed = "put its vocab.txt beside its config.json"
            raise UserError(f"{init_from} has no vocabulary for data.corpus; {needed}")
    else:
        documents = read_documents(config.corpus, Reading(language=config.language))
        tokenizer = train_vocabulary(
            itertools.chain.from_iterable(documents),
            config.vocabulary_size,
            lower_case=config.lower_case,
            keep_accents=config.keep_accents,
        )
    report = prepare(config.corpus, tokenizer, directory, language=config.language)
    log(f"{directory}: {report}")


# Settings that a run may choose. The checkpoint decides all others.
_FREE = ("hidden_dropout", "attention_dropout", "initializer_range", "pooling")


def _initial_params(config: TrainConfig, tokenizer: Tokenizer, log: Log) -> Params:
    """The parameters of ``init_from``.

    Raises UserError if the sizes of the checkpoint and the config differ, or if the
    vocabulary of the text neither equals nor extends the vocabulary of the checkpoint.
    """
    path, changes = config.init_from, {"scan_layers": config.compute.scan_layers}
    if config.model.activation == "gelu_tanh":
        known = load(path, weights=False).config
        if known.activation == "gelu":  # Google's files have "gelu" for both forms
            changes["activation"] = "gelu_tanh"
    checkpoint = load(path, **changes)
    if known := checkpoint.tokenizer:
        with naming(path):
            checkpoint = with_new_words(checkpoint, tokenizer)
        if count := tokenizer.vocab_size - known.vocab_size:
            log(f"{count:,} new words start as the mean of their former tokens")
    before, positions = checkpoint.config.max_positions, config.model.max_positions
    if positions > before:
        log(f"{path}: its table of {before} positions is stretched to {positions}")
        checkpoint = stretched(checkpoint, positions, path)
    for name, expected in vars(checkpoint.config).items():
        value = getattr(config.model, name)
        if name not in _FREE and value != expected:
            change = f"set model.{name}={expected}"
            raise UserError(
                f"model.{name}={value!r}, but {path} has {expected!r}; {change}"
            )
    log(f"starts with the parameters of {path}")
    return checkpoint.params


def _description(
    config: TrainConfig, objective: PretrainingObjective, store: TokenStore
) -> str:
    phases = ", ".join(
        f"{p.steps:,} steps of {p.batch_size} x {p.sequence_length}"
        for p in config.phases
    )
    params = jax.eval_shape(objective.init, jax.random.key(0))
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    info, devices = store.info, jax.devices()
    return (
        f"BERT with {config.model.num_layers} layers, width {config.model.hidden_size}, "
        f"{count:,} parameters; {phases}; {info.tokens:,} tokens in {info.documents:,} "
        f"documents; {len(devices)} x {devices[0].device_kind}"
    )


def _filled(
    config: TrainConfig, model: nn.Module, params: Params, tokenizer: Tokenizer
) -> Iterator[str]:
    """The prompts of the config, with the most probable tokens of each blank."""
    checkpoint = Checkpoint(
        model.config, params, tokenizer, "pretraining", compute=model.compute
    )
    length = config.phases[-1].sequence_length
    options = FillMaskOptions(max_length=length, top=3, show_progress=False)
    rows = rows_of([*config.prompts], tabs=False)
    for answer in collected(fill_mask(OnDevices(checkpoint), rows, options)):
        guesses = [
            ", ".join(f"{guess['token']} {guess['probability']:.0%}" for guess in blank)
            for blank in answer["blanks"]
        ]
        yield f"{answer['text']}  ->  {' | '.join(guesses)}"
