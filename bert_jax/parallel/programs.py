"""Programs whose result is whole on every device."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.parallel.mesh import traced_on
from bert_jax.unstable import eigen_options

# XLA computes products on CPUs with YNNPACK. For fewer float32 tokens than this Eigen is
# faster, by a tenth on two cores. For more tokens it is faster on some processors and
# slower on others (benchmarks/LOG.md).
FEW_TOKENS = 32


def jit_whole(mesh: Mesh, function: Callable) -> Callable:
    """Compiles a function of (params, batch) whose result is whole on every device.

    On CPUs the program of a batch of few tokens uses other products; see FEW_TOKENS.
    """
    traced, whole = traced_on(mesh, function), NamedSharding(mesh, PartitionSpec())
    many = jax.jit(traced, out_shardings=whole)
    if mesh.devices.flat[0].platform != "cpu":
        return many
    few = jax.jit(traced, out_shardings=whole, compiler_options=eigen_options())

    @functools.wraps(traced)
    def run(params: Any, batch: Mapping[str, Any]) -> Any:
        is_float32 = all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
        if is_float32 and batch["input_ids"].size < FEW_TOKENS:
            return few(params, batch)
        return many(params, batch)

    return run
