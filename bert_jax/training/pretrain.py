"""A pretraining run from its config: text, batches and objective for the engine."""

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.data.pipeline import TrainingBatches, eval_batches, split_documents
from bert_jax.data.store import TokenStore
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.inference.fill_mask import FillMask
from bert_jax.interop.load import load
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.objectives.objective import Batch, Params
from bert_jax.parallel.distributed import is_leader, on_every_host
from bert_jax.parallel.mesh import (
    batch_divisor,
    check_batch_size,
    make_mesh,
    process_rows,
    put_batch,
    traced_on,
)
from bert_jax.parallel.remote import RunFolder
from bert_jax.settings import to_dict
from bert_jax.training.config import TrainConfig, resume_differences
from bert_jax.training.flops import step_flops
from bert_jax.training.metrics import Reporter
from bert_jax.training.run import Job, run
from bert_jax.training.text import open_text


def pretrain(
    config: TrainConfig, workdir: str | Path, log: Callable[[str], None] = print
) -> dict[str, float] | None:
    """Runs ``config`` in ``workdir`` to its last step, from its newest checkpoint.

    Returns the last evaluation, or None without one. ``log`` takes lines for people. Of
    several processes process 0 alone writes and logs.
    """
    if not is_leader():
        log = _discard
    mesh = make_mesh(config.mesh)
    for i, phase in enumerate(config.phases):
        check_batch_size(
            phase.batch_size, mesh, f"phases[{i}].batch_size", config.accumulation
        )
    folder = RunFolder(workdir)
    folder.fetch()
    store, tokenizer = open_text(config.data, folder, log)
    if tokenizer.vocab_size != config.model.vocab_size:
        raise UserError(
            f"model.vocab_size={config.model.vocab_size}, but the vocabulary of the "
            f"text has {tokenizer.vocab_size} tokens; set "
            f"--config.model.vocab_size={tokenizer.vocab_size}"
        )
    training, held_out = split_documents(store.info.documents, config.data.holdout)
    if config.eval_every and not len(held_out):
        raise UserError(
            f"no document of {store.info.documents} is left for evaluation; set "
            "--config.data.holdout (it takes two documents), or --config.eval_every=0"
        )
    objective = MlmNsp(
        BertForPreTraining(config.model, config.compute),
        config.data.examples.next_sentence,
    )
    batches = TrainingBatches(
        store,
        tokenizer,
        config.phases,
        config.data.examples,
        seed=config.seed,
        documents=training,
        rows=functools.partial(process_rows, mesh),
        packing=batch_divisor(mesh) * config.accumulation * config.data.packing,
    )
    evaluations: list[dict[str, float]] = []
    eval_sums = jax.jit(
        traced_on(mesh, objective.eval_sums),
        out_shardings=NamedSharding(mesh, PartitionSpec()),  # whole in every process
    )

    def evaluate(
        step: int, params: Params, reporter: Reporter, progress: dict[str, Any]
    ) -> None:
        del progress
        # The last phase's lengths, so that evaluations of all phases compare.
        phase = dataclasses.replace(config.phases[-1], steps=config.eval_batches)
        drawn = eval_batches(batches, phase, held_out)
        metrics = objective.eval_metrics(
            [jax.device_get(eval_sums(params, put_batch(b, mesh))) for b in drawn]
        )
        evaluations.append(metrics)
        reporter.writer.write(step, "eval", metrics)
        reporter.log(f"step {step}  eval: {objective.eval_summary(metrics)}")

    log(_description(config, store))
    state, _ = run(
        Job(
            objective=objective,
            optimizer=config.optimizer,
            batches=batches,
            mesh=mesh,
            fsdp=config.mesh.fsdp,
            identity=_identity(config, store),
            differences=resume_differences,
            tokenizer=tokenizer,
            given=_given(config, tokenizer, log) if config.init_from else None,
            evaluates=functools.partial(_evaluates, config),
            evaluate=evaluate,
            flops=functools.partial(_batch_flops, config),
            seed=config.seed,
            accumulation=config.accumulation,
            log_every=config.log_every,
            checkpoint_every=config.checkpoint_every,
            keep_checkpoints=config.keep_checkpoints,
            threads=config.data.threads,
            prefetch=config.data.prefetch,
        ),
        folder,
        log,
    )
    if config.prompts:
        params = on_every_host(state.params)
        if is_leader():
            _log_prompts(config, objective.model, params, tokenizer, log)
    return evaluations[-1] if evaluations else None


def _discard(line: str) -> None:
    pass


def _evaluates(config: TrainConfig, step: int) -> bool:
    every = config.eval_every
    return bool(every) and (step % every == 0 or step == config.total_steps)


def _batch_flops(config: TrainConfig, batch: Batch) -> float:
    rows, length = batch["input_ids"].shape
    return step_flops(
        config.model,
        length,
        batch["mlm_ids"].shape[1],
        rows,
        math.prod(batch["nsp_labels"].shape[1:]),
        scan_layers=config.compute.scan_layers,
    )


def _identity(config: TrainConfig, store: TokenStore) -> dict[str, Any]:
    """What config.json and checkpoints say of a run: its config and its text."""
    return to_dict(config) | {
        "text": {
            "documents": store.info.documents,
            "tokens": store.info.tokens,
            "vocabulary": store.info.vocabulary_fingerprint,
        }
    }


# What a run may choose; the rest of a BertConfig the checkpoint has decided.
_FREE = {
    "hidden_dropout",
    "attention_dropout",
    "initializer_range",
}


def _given(
    config: TrainConfig, tokenizer: Tokenizer, log: Callable[[str], None]
) -> Params:
    """The parameters of ``init_from`` that a pretraining model has; fine-tuned heads go.

    Raises UserError where its sizes are not the config's or its vocabulary is not that
    of the text.
    """
    path = config.init_from
    checkpoint = load(path, scan_layers=config.compute.scan_layers)
    for field in dataclasses.fields(BertConfig):
        name, value = field.name, getattr(checkpoint.config, field.name)
        if name not in _FREE and getattr(config.model, name) != value:
            raise UserError(
                f"model.{name}={getattr(config.model, name)!r}, but {path} has "
                f"{value!r}; set --config.model.{name}={value}"
            )
    if (
        checkpoint.tokenizer is not None
        and checkpoint.tokenizer.fingerprint() != tokenizer.fingerprint()
    ):
        raise UserError(
            f"the vocabulary of {path} is not the one that the text was prepared with; "
            "prepare the text with the checkpoint's vocabulary"
        )
    log(f"begins with {path}")
    return {
        name: part
        for name, part in checkpoint.params.items()
        if name in ("bert", "mlm", "nsp")
    }


def _description(config: TrainConfig, store: TokenStore) -> str:
    model = config.model
    phases = ", ".join(
        f"{p.steps:,} steps of {p.batch_size} x {p.sequence_length}"
        for p in config.phases
    )
    device = jax.devices()[0]
    return (
        f"BERT with {model.num_layers} layers, width {model.hidden_size}, "
        f"{model.parameter_count():,} parameters; {phases}; {store.info.tokens:,} tokens "
        f"in {store.info.documents:,} documents; {jax.device_count()} x "
        f"{device.device_kind}"
    )


def _log_prompts(
    config: TrainConfig,
    model: BertForPreTraining,
    params: Params,
    tokenizer: Tokenizer,
    log: Callable[[str], None],
) -> None:
    length = config.phases[-1].sequence_length
    fill_mask = FillMask(model, params, tokenizer, max_length=length)
    for answer in fill_mask.answers(fill_mask.parse(config.prompts, "config.prompts")):
        guesses = " | ".join(
            ", ".join(f"{guess['token']} {guess['probability']:.0%}" for guess in blank)
            for blank in answer["blanks"]
        )
        log(f"{answer['text']}  ->  {guesses}")
