"""Seconds of a pretraining step of ours; pretraining.py runs it beside its peer.

MLM and NSP on random tokens without padding, clipping, Adam. The last line printed is
JSON: seconds_per_step, one for each repeat; start_seconds, from the start of the process
to the end of the first step, first_step_seconds of it the step with its compilation;
model_flops of a step (BertConfig.step_flops); peak_flops of the device by its data
sheet, or on a CPU as measured; peak_bytes of the device's memory, or of the process's.

usage:
  python benchmarks/pretraining_step.py --size base --batch 8 --length 128
    --predictions 20 [--dropout 0.1] [--attention_dropout 0] [--dtype bfloat16]
    [--attention auto] [--steps 5] [--repeats 3]
"""

import argparse
import json
import time

import jax
import numpy as np
from workers import SIZES, process_bytes, process_seconds, step_parser

from bert_jax import cli
from bert_jax.data.pipeline import Phase
from bert_jax.interop.config_json import config_from_dict, config_to_dict
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import DTYPES, BertConfig, ComputeConfig
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.parallel.mesh import MeshConfig, make_mesh, put_batch, steps_ahead
from bert_jax.training.config import DataConfig, TrainConfig
from bert_jax.training.metrics import peak_flops
from bert_jax.training.optimizer import (
    OptimizerConfig,
    bert_optimizer,
    make_schedule,
)
from bert_jax.training.state import abstract_state, init_state
from bert_jax.training.step import compile_step


def train_config(options: argparse.Namespace) -> TrainConfig:
    """The run of the flags; its text is never read."""
    changes = dict(
        hidden_dropout=options.dropout,
        attention_dropout=options.attention_dropout,
    )
    return TrainConfig(
        model=config_from_dict(
            config_to_dict(BertConfig.base()) | SIZES[options.size], **changes
        ),
        compute=ComputeConfig(dtype=options.dtype, attention_impl=options.attention),
        data=DataConfig(),
        optimizer=OptimizerConfig(1e-4, warmup_steps=10),
        phases=(Phase(1000, options.batch, options.length, options.predictions),),
    )


def random_batch(config: TrainConfig) -> dict[str, np.ndarray]:
    """Tokens to be predicted at the positions after [CLS]; two segments of one length."""
    rng = np.random.default_rng(0)
    phase, vocabulary = config.phases[0], config.model.vocab_size
    B, L, M = phase.batch_size, phase.sequence_length, phase.max_predictions
    rows = np.ones((B, 1), np.int32)
    return {
        "input_ids": rng.integers(vocabulary, size=(B, L), dtype=np.int32),
        "token_type_ids": rows * (np.arange(L, dtype=np.int32) >= L // 2),
        "attention_mask": np.ones((B, L), np.int32),
        "mlm_positions": rows * np.arange(1, M + 1, dtype=np.int32),
        "mlm_ids": rng.integers(vocabulary, size=(B, M), dtype=np.int32),
        "mlm_weights": np.ones((B, M), np.float32),
        "nsp_labels": rng.integers(2, size=B, dtype=np.int32),
    }


def measure(options: argparse.Namespace) -> dict:
    """The results as a dictionary for JSON."""
    jax.config.update("jax_enable_compilation_cache", False)  # it is measured
    cli.start()
    config = train_config(options)
    mesh = make_mesh(MeshConfig())
    objective = MlmNsp(BertForPreTraining(config.model, config.compute))
    optimizer = bert_optimizer(config.optimizer)
    abstract = abstract_state(objective, optimizer, mesh)
    step = compile_step(objective, config.optimizer, abstract)
    state = init_state(objective, optimizer, abstract, seed=0)
    schedule = make_schedule(config.optimizer, config.total_steps)
    batch = put_batch(random_batch(config), mesh)
    ahead = steps_ahead(mesh)

    def seconds(steps: int) -> float:
        nonlocal state, sums
        begin = time.perf_counter()
        for _ in range(steps):
            state, sums = step(state, batch, schedule)
            # As the training loop does, which draws a batch while buffers are freed.
            if not ahead:
                jax.block_until_ready(state)
        jax.block_until_ready(sums)
        return time.perf_counter() - begin

    sums = None
    first = seconds(1)
    start = process_seconds()
    seconds(2)
    timed = [seconds(options.steps) / options.steps for _ in range(options.repeats)]
    device = jax.devices()[0]
    memory = device.memory_stats() or {}
    phase = config.phases[0]
    return {
        **vars(options),
        "seconds_per_step": timed,
        "first_step_seconds": first,
        "start_seconds": start,
        "model_flops": config.model.step_flops(
            phase.sequence_length, phase.max_predictions, phase.batch_size
        ),
        "peak_flops": peak_flops(options.dtype),
        "peak_bytes": memory.get("peak_bytes_in_use", process_bytes()),
        "loss": float(sums["step_loss"]) / float(sums["steps"]),
        "device": device.device_kind,
        "versions": {"jax": jax.__version__},
    }


if __name__ == "__main__":
    print(json.dumps(measure(step_parser(__doc__, DTYPES, "auto").parse_args())))
