"""The worker of pretraining.py that times bert_jax."""

import time
from types import SimpleNamespace

import jax
import numpy as np
from common import SIZES, answer, process_bytes

from bert_jax.commands import cli
from bert_jax.interop.config_json import (
    config_from_dict,
    config_to_dict,
    learns_from_pairs,
)
from bert_jax.model import flops
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.parallel.mesh import MeshConfig, make_mesh, put_batch, steps_ahead
from bert_jax.training.metrics import peak_flops
from bert_jax.training.optimizer import (
    OptimizerConfig,
    bert_optimizer,
    make_schedule,
)
from bert_jax.training.state import abstract_state, init_state
from bert_jax.training.step import compile_step


def random_batch(options: SimpleNamespace, vocab_size: int) -> dict[str, np.ndarray]:
    """Masked tokens follow [CLS]. The two segments have the same length."""
    rng = np.random.default_rng(0)
    B, L, M = options.batch, options.length, options.predictions
    rows = np.ones((B, 1), np.int32)
    return {
        "input_ids": rng.integers(vocab_size, size=(B, L), dtype=np.int32),
        "token_type_ids": rows * (np.arange(L, dtype=np.int32) >= L // 2),
        "attention_mask": np.ones((B, L), np.int32),
        "mlm_positions": rows * np.arange(1, M + 1, dtype=np.int32),
        "mlm_ids": rng.integers(vocab_size, size=(B, M), dtype=np.int32),
        "mlm_weights": np.ones((B, M), np.float32),
        "nsp_labels": rng.integers(2, size=B, dtype=np.int32),
    }


def measure(options: SimpleNamespace) -> dict:
    """Seconds of a step for each repeat, seconds of the first step, FLOPs, memory.

    The first step includes its compilation.
    """
    cli.start()
    sizes = SIZES[options.size]
    if "model_type" not in sizes:
        sizes = config_to_dict(BertConfig.base()) | sizes
    model_config = config_from_dict(
        sizes,
        hidden_dropout=options.dropout,
        attention_dropout=options.attention_dropout,
    )
    optimizer_config = OptimizerConfig(1e-4, warmup_steps=10)
    mesh = make_mesh(MeshConfig())
    compute = ComputeConfig(dtype=options.dtype, attention_impl=options.kernel)
    objective = MlmNsp(
        BertForPreTraining(model_config, compute),
        next_sentence=learns_from_pairs(model_config),
    )
    optimizer = bert_optimizer(optimizer_config)
    abstract = abstract_state(objective, optimizer, mesh)
    step = compile_step(objective, optimizer_config, abstract)
    state = init_state(objective, optimizer, abstract, seed=0)
    schedule = make_schedule(optimizer_config, 1000)
    batch = put_batch(random_batch(options, model_config.vocab_size), mesh)
    ahead = steps_ahead(mesh)
    sums = None

    def seconds(steps: int) -> float:
        nonlocal state, sums
        start = time.perf_counter()
        for _ in range(steps):
            state, sums = step(state, batch, schedule)
            if not ahead:  # the training loop waits in the same way
                jax.block_until_ready(state)
        jax.block_until_ready(sums)
        return time.perf_counter() - start

    first = seconds(1)
    seconds(2)
    times = [seconds(options.steps) / options.steps for _ in range(options.repeats)]
    device = jax.devices()[0]
    memory = device.memory_stats() or {}
    return {
        **vars(options),
        "seconds_per_step": times,
        "first_seconds": first,
        "model_flops": flops.step(
            model_config,
            ComputeConfig(),
            options.batch,
            options.length,
            predictions=options.predictions,
            sequences=1,
        ),
        "peak_flops": peak_flops(jax.devices()),
        "peak_bytes": memory.get("peak_bytes_in_use", process_bytes()),
        "loss": float(sums["step_loss"]) / float(sums["steps"]),
        "device": device.device_kind,
        "versions": {"jax": jax.__version__},
    }


if __name__ == "__main__":
    answer(measure)
