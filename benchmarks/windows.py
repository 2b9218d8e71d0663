"""Seconds of attention, and of a whole layer, with a window and to all tokens.

A row is a kernel (compute.attention_impl) at one length. "window, s" and "all, s" are
medians of a forward and a backward pass. They are measured in turns in one process, so that
a slow phase of the machine slows down both. "ratio" is the first divided by the second. The
layer is ModernBERT's with the sizes of Ettin 17M: width 256, 4 heads, a gated feed-forward
layer of width 384, and a window of 64 tokens on either side. "attention" leaves out the
products before and after it.

usage:
  python benchmarks/windows.py [--kernels xla,plain] [--rows 4] [--length 1024]
    [--dtype float32] [--repeats 20] [--output FILE.json] [--result windows]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from common import SIZES, make_parser, markdown, names, publish, write_report

from bert_jax.commands import cli
from bert_jax.interop.config_json import config_from_dict
from bert_jax.model.bert import PreNormBlock, attend_plain
from bert_jax.model.config import ComputeConfig
from bert_jax.model.kernels.attention import attend as attend_by_kernel
from bert_jax.model.tokens import Tokens
from bert_jax.model.window import attend_in_blocks

# Places of the two kinds of layers in Ettin: every third attends to all tokens.
LAYERS = {"all": 3, "window": 4}


def attention(kernel: str, window: int, tokens: Tokens) -> Callable:
    """A function of queries, keys and values."""
    if kernel != "plain":
        attend = partial(attend_by_kernel, implementation=kernel, window=window)
        return lambda *q_k_v: attend(*q_k_v, tokens)
    if window:
        attend = partial(attend_in_blocks, attend_plain, window=window)
        return lambda *q_k_v: attend(*q_k_v, tokens)
    return lambda *q_k_v: attend_plain(*q_k_v, tokens.attends())


def step(call: Callable, *arrays: object) -> Callable:
    """A compiled forward and backward pass without arguments."""

    def total(*arrays):
        return jnp.sum(call(*arrays))

    gradient = jax.jit(jax.grad(total, argnums=tuple(range(len(arrays)))))
    return partial(gradient, *arrays)


def median_seconds(steps: dict[str, Callable], repeats: int) -> dict[str, float]:
    """The median of each step. The steps take turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for run in steps.values():
        jax.block_until_ready(run())  # compiles
    for _ in range(repeats):
        for name, run in steps.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def measure(kernel: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The medians of attention and of a layer."""
    config = config_from_dict(
        SIZES["ettin_17m"], hidden_dropout=0.0, attention_dropout=0.0
    )
    compute = ComputeConfig(dtype=options.dtype, attention_impl=kernel)
    dtype = jnp.dtype(options.dtype)
    rows, length = options.rows, options.length
    ids_BL = jnp.ones((rows, length), jnp.int32)
    tokens = Tokens.of_mask(ids_BL, ids_BL, ids_BL)
    keys = jax.random.split(jax.random.key(0), 5)
    heads = (rows, length, config.num_heads, config.head_size)
    q_k_v = [jax.random.normal(key, heads, dtype) for key in keys[:3]]
    x_BLD = jax.random.normal(keys[3], (rows, length, config.hidden_size), dtype)
    attentions, layers = {}, {}
    for name, index in LAYERS.items():
        pattern = config.pattern(index)
        attentions[name] = step(attention(kernel, pattern.window, tokens), *q_k_v)
        layer = PreNormBlock(config, compute, False, pattern)
        params = layer.init(keys[4], x_BLD, tokens)

        def call(params, x_BLD, layer=layer):
            return layer.apply(params, x_BLD, tokens)

        layers[name] = step(call, params, x_BLD)
    steps = {"attention": attentions, "layer": layers}
    return {name: median_seconds(own, options.repeats) for name, own in steps.items()}


def main() -> None:
    """Measures every kernel and prints the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--kernels", type=names, default="xla,plain")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    cli.start()
    table = []
    for kernel in options.kernels:
        for what, seconds in measure(kernel, options).items():
            ratio = seconds["window"] / seconds["all"]
            table.append(
                {
                    "what": what,
                    "kernel": kernel,
                    "window, s": seconds["window"],
                    "all, s": seconds["all"],
                    "ratio": ratio,
                }
            )
            publish(
                options.result,
                what,
                kernel,
                what=f"{what} with a window of 64, {kernel}, length {options.length}",
                value=seconds["window"],
                unit="s",
                peer="to all tokens",
                peer_value=seconds["all"],
                ratio=seconds["all"] / seconds["window"],
            )
        write_report(options.output, rows=table)
    print(markdown(table))


if __name__ == "__main__":
    main()
