"""A pretraining run from its config: data, mesh, state and files, then the loop."""

import dataclasses
import functools
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
from bert_jax.files import write_json
from bert_jax.inference.fill_mask import fill_mask
from bert_jax.interop.checkpoints import CheckpointStore
from bert_jax.model.bert import BertForPreTraining
from bert_jax.parallel.distributed import (
    StopRequests,
    check_same,
    is_leader,
    on_every_host,
)
from bert_jax.parallel.mesh import (
    batch_divisor,
    check_batch_size,
    make_mesh,
    process_rows,
)
from bert_jax.parallel.remote import RunFolder
from bert_jax.settings import to_dict
from bert_jax.training import loop
from bert_jax.training.config import TrainConfig, resume_differences
from bert_jax.training.initial import begin_from
from bert_jax.training.metric_writer import MetricWriter, NoWriter
from bert_jax.training.optimizer import bert_optimizer, learning_rate
from bert_jax.training.state import abstract_state, init_state
from bert_jax.training.step import METRICS
from bert_jax.training.text import open_text


def pretrain(
    config: TrainConfig, workdir: str | Path, log: Callable[[str], None] = print
) -> dict[str, float] | None:
    """Runs ``config`` in ``workdir`` to its last step, from its newest checkpoint.

    Returns the last evaluation, or None without one. ``log`` takes lines for people. Of
    several processes, which must share ``workdir``, process 0 alone writes and says.
    """
    mesh = make_mesh(config.mesh)
    if not is_leader():
        log = _silence
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
    saved_config = _identity(config, store)
    check_same(saved_config, "config or text; start all with the same command")
    if is_leader():
        _claim_workdir(saved_config, tokenizer, folder.local)
    folder.check_shared("config.json")

    model = BertForPreTraining(config.model, config.compute)
    optimizer = bert_optimizer(config.optimizer)
    training, held_out = split_documents(store.info.documents, config.data.holdout)
    if config.eval_every and not len(held_out):
        raise UserError(
            f"no document of {store.info.documents} is held out for evaluation; set "
            "--config.data.holdout (it takes two documents), or --config.eval_every=0"
        )
    rows = functools.partial(process_rows, mesh)
    examples = config.data.examples
    # The last phase's lengths, so that evaluations of all phases compare.
    eval_phase = dataclasses.replace(config.phases[-1], steps=config.eval_batches)
    checkpoints = CheckpointStore(folder.checkpoints, config.keep_checkpoints)
    fsdp = config.mesh.fsdp
    abstract = abstract_state(model, optimizer, mesh, METRICS, fsdp=fsdp)
    step = checkpoints.latest_step or 0
    log(_description(config, store, step))
    if step:
        state = checkpoints.restore(abstract)
    else:
        state = init_state(model, optimizer, mesh, METRICS, config.seed, fsdp=fsdp)
        if config.init_from:
            state = begin_from(config.init_from, config.model, tokenizer, state, log)

    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    train_fn, eval_fn = loop.jit_steps(config, model, optimizer, shardings)
    data = training_iterator(
        TrainingBatches(
            store,
            tokenizer,
            config.phases,
            examples,
            seed=config.seed,
            documents=training,
            rows=rows,
            packing=batch_divisor(mesh) * config.accumulation * config.data.packing,
        ),
        first=step,
        threads=config.data.threads,
        prefetch=config.data.prefetch,
    )
    writer = MetricWriter(folder.local, step) if is_leader() else NoWriter()
    stop_requests = StopRequests()
    try:
        state, evaluation = loop.run(
            config,
            state=state,
            train_fn=train_fn,
            eval_fn=eval_fn,
            data=data,
            eval_batches=lambda: eval_batches(
                store, tokenizer, eval_phase, examples, documents=held_out, rows=rows
            ),
            mesh=mesh,
            checkpoints=checkpoints,
            reporter=loop.Reporter(
                config, mesh, writer, learning_rate(config.optimizer), log
            ),
            saved_config=saved_config,
            stop_requests=stop_requests,
            upload=folder.upload,
        )
    finally:
        stop_requests.close()
        checkpoints.close()
        writer.close()
        folder.upload()
    if config.prompts:
        params = on_every_host(state.params)
        if is_leader():
            _show_blanks(config, model, params, tokenizer, log)
    return evaluation


def _silence(line: str) -> None:
    pass


def _identity(config: TrainConfig, store: TokenStore) -> dict[str, Any]:
    """What config.json and checkpoints say of a run: its config and its text."""
    return to_dict(config) | {
        "text": {
            "documents": store.info.documents,
            "tokens": store.info.tokens,
            "vocabulary": store.info.vocabulary_fingerprint,
        }
    }


def _claim_workdir(new: dict[str, Any], tokenizer: Tokenizer, workdir: Path) -> None:
    """Writes config.json and the vocabulary; refuses a workdir of another run."""
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
    write_json(path, new)


def _description(config: TrainConfig, store: TokenStore, step: int) -> str:
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
        f"{device.device_kind}" + (f"; resuming at step {step:,}" if step else "")
    )


def _show_blanks(
    config: TrainConfig,
    model: BertForPreTraining,
    params: Any,
    tokenizer: Tokenizer,
    log: Callable[[str], None],
) -> None:
    length = config.phases[-1].sequence_length
    answers = fill_mask(model, params, tokenizer, config.prompts, length=length)
    for text, blanks in zip(config.prompts, answers, strict=True):
        guesses = " | ".join(
            ", ".join(f"{token} {p:.0%}" for token, p in tokens) for tokens in blanks
        )
        log(f"{text}  ->  {guesses}")
