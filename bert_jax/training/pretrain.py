"""A pretraining run from its config: data, mesh, state and files, then the loop."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from bert_jax.data.pipeline import (
    TrainingBatches,
    eval_batches,
    split_documents,
    training_iterator,
)
from bert_jax.data.store import TokenStore
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.model.bert import BertForPreTraining
from bert_jax.parallel.mesh import batch_divisor, check_batch_size, make_mesh
from bert_jax.training import loop
from bert_jax.training.checkpoint import CheckpointStore
from bert_jax.training.config import TrainConfig, resume_differences
from bert_jax.training.fill_mask import fill_mask
from bert_jax.training.initial import begin_from
from bert_jax.training.metric_writer import MetricWriter
from bert_jax.training.optimizer import bert_adam, learning_rate
from bert_jax.training.settings import to_dict
from bert_jax.training.state import abstract_state, init_state
from bert_jax.training.step import METRICS
from bert_jax.training.text import open_text


def pretrain(
    config: TrainConfig, workdir: Path, say: Callable[[str], None] = print
) -> dict[str, float] | None:
    """Runs ``config`` in ``workdir`` to its last step, from its newest checkpoint.

    Returns the last evaluation, or None without one. ``say`` takes lines for people.
    """
    mesh = make_mesh(config.mesh)
    for i, phase in enumerate(config.phases):
        check_batch_size(phase.batch_size, mesh, f"phases[{i}].batch_size")
        parts = batch_divisor(mesh) * config.accumulation
        if phase.batch_size % parts:
            raise UserError(
                f"phases[{i}].batch_size={phase.batch_size} is not a multiple of "
                f"{parts}, the devices that share a batch times accumulation; set "
                "--config.accumulation"
            )
    workdir.mkdir(parents=True, exist_ok=True)
    store, tokenizer = open_text(config.data, workdir, say)
    if tokenizer.vocab_size != config.model.vocab_size:
        raise UserError(
            f"model.vocab_size={config.model.vocab_size}, but the vocabulary of the "
            f"text has {tokenizer.vocab_size} pieces; set "
            f"--config.model.vocab_size={tokenizer.vocab_size}"
        )
    saved_config = _claim_workdir(config, store, tokenizer, workdir)

    model = BertForPreTraining(config.model)
    optimizer = bert_adam(config.optimizer)
    training, held_out = split_documents(store.info.documents, config.data.holdout)
    if config.eval_every and not len(held_out):
        raise UserError(
            f"no document of {store.info.documents} is held out for evaluation; set "
            "--config.data.holdout (it takes two documents), or --config.eval_every=0"
        )
    slices = dict(process_index=jax.process_index(), process_count=jax.process_count())
    examples = config.data.examples
    data = training_iterator(
        TrainingBatches(
            store,
            tokenizer,
            config.phases,
            examples,
            seed=config.seed,
            documents=training,
            **slices,
        ),
        threads=config.data.threads,
        prefetch=config.data.prefetch,
    )
    # The last phase's lengths, so that evaluations of all phases compare.
    eval_phase = dataclasses.replace(config.phases[-1], steps=config.eval_batches)
    checkpoints = CheckpointStore(workdir / "checkpoints", config.keep_checkpoints)
    abstract = abstract_state(model, optimizer, mesh, METRICS)
    step = checkpoints.latest_step or 0
    say(_description(config, abstract.params, store, step))
    if step:
        state = checkpoints.restore(abstract, data)
    else:
        state = init_state(model, optimizer, mesh, METRICS, config.seed)
        if config.init_from:
            state = begin_from(config.init_from, config.model, tokenizer, state, say)

    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    train_fn, eval_fn = loop.jit_steps(config, model, optimizer, shardings)
    writer = MetricWriter(workdir, step)
    try:
        state, evaluation = loop.run(
            config,
            state=state,
            train_fn=train_fn,
            eval_fn=eval_fn,
            data=data,
            eval_batches=lambda: eval_batches(
                store, tokenizer, eval_phase, examples, documents=held_out, **slices
            ),
            mesh=mesh,
            checkpoints=checkpoints,
            reporter=loop.Reporter(
                config, writer, learning_rate(config.optimizer), say
            ),
            saved_config=saved_config,
        )
    finally:
        checkpoints.close()
        writer.close()
    _show_blanks(config, model, state.params, tokenizer, say)
    return evaluation


def _claim_workdir(
    config: TrainConfig, store: TokenStore, tokenizer: Tokenizer, workdir: Path
) -> dict[str, Any]:
    """Writes config.json and the vocabulary, or checks that they are this run's."""
    new = to_dict(config) | {
        "text": {
            "documents": store.info.documents,
            "tokens": store.info.tokens,
            "vocabulary": store.info.vocabulary_fingerprint,
        }
    }
    path = workdir / "config.json"
    if path.exists():
        differences = resume_differences(json.loads(path.read_text()), new)
        if differences:
            raise UserError(
                f"{workdir} holds another run ({'; '.join(differences)}); use "
                "that config, or another --workdir"
            )
    else:
        tokenizer.save(workdir)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(new, indent=2) + "\n")
    temporary.replace(path)
    return new


def _description(config: TrainConfig, params: Any, store: TokenStore, step: int) -> str:
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    model = config.model
    phases = ", ".join(
        f"{p.steps:,} steps of {p.batch_size} x {p.sequence_length}"
        for p in config.phases
    )
    device = jax.devices()[0]
    return (
        f"BERT with {model.num_layers} layers, width {model.hidden_size}, "
        f"{size:,} parameters; {phases}; {store.info.tokens:,} tokens in "
        f"{store.info.documents:,} documents; {jax.device_count()} x "
        f"{device.device_kind}" + (f"; resuming at step {step:,}" if step else "")
    )


def _show_blanks(
    config: TrainConfig,
    model: BertForPreTraining,
    params: Any,
    tokenizer: Tokenizer,
    say: Callable[[str], None],
) -> None:
    if not config.prompts:
        return
    length = config.phases[-1].sequence_length
    answers = fill_mask(model, params, tokenizer, config.prompts, length=length)
    for text, blanks in zip(config.prompts, answers, strict=True):
        guesses = " | ".join(
            ", ".join(f"{piece} {p:.0%}" for piece, p in pieces) for pieces in blanks
        )
        say(f"{text}  ->  {guesses}")
