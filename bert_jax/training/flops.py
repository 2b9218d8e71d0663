"""Analytic floating-point operations of a step, and the peaks of known devices.

Counted by hand because XLA's cost analysis counts the body of a scan once.
"""

import timeit

import jax
import jax.numpy as jnp

from bert_jax.model.config import BertConfig

# Dense bfloat16 FLOP/s of what JAX calls one device, from the vendors' data sheets.
# TPU v2, v3 and v7x show each chip as two devices.
PEAK_FLOPS = {
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "TPU7x": 1153.5e12,
    "Tesla V100": 125e12,
    "Tesla T4": 65e12,
    "NVIDIA A100": 312e12,
    "NVIDIA L4": 121e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA B200": 2250e12,
}


def step_flops(
    config: BertConfig,
    length: int,
    predictions: int,
    rows: int,
    sequences: int = 1,
    *,
    scan_layers: bool = False,
) -> int:
    """Multiply-adds, as two operations each, of a step on rows of ``length`` tokens.

    The matrices of the layers, both attention products over all pairs of positions, the
    pooler, the MLM head on ``predictions`` positions of a row, and the NSP head of its
    ``sequences``. The last layer, where it is not scanned with the others, is of [CLS] and
    those positions alone: what is not computed is not counted, though the paper's
    implementation computes it.
    """
    D, F, V = config.hidden_size, config.intermediate_size, config.vocab_size

    def layer(queries: int) -> int:
        """Of a layer whose output is computed at so many positions."""
        own = queries * (2 * D * D + 2 * D * F)
        return own + length * 2 * D * D + 2 * queries * length * D

    read = length if scan_layers else predictions + sequences
    layers = (config.num_layers - 1) * layer(length) + layer(read)
    heads = predictions * (D * D + D * V) + sequences * (D * D + 2 * D)
    # The backward pass costs twice the forward pass.
    return 3 * 2 * rows * (layers + heads)


def peak_flops() -> float | None:
    """Peak FLOP/s of all devices together: by data sheet, on CPUs by measurement.

    None for an accelerator that the table does not know; its MFU is then not reported.
    """
    devices = jax.devices()
    if devices[0].platform == "cpu":  # one process's devices share the same cores
        return _measured_matmul_flops() * jax.process_count()
    # The longest match, so that "TPU v5 lite" is not read as "TPU v5".
    kind = devices[0].device_kind
    names = [name for name in PEAK_FLOPS if kind.startswith(name)]
    return PEAK_FLOPS[max(names, key=len)] * len(devices) if names else None


def _measured_matmul_flops(size: int = 1024) -> float:
    """FLOP/s of a float32 matrix product over all cores: the best of five runs."""
    x = jnp.ones((size, size), jnp.float32)
    product = jax.jit(jnp.matmul).lower(x, x).compile()
    seconds = timeit.repeat(lambda: product(x, x).block_until_ready(), number=1)
    return 2 * size**3 / min(seconds)
