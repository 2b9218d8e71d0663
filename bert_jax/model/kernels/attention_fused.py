"""Attention that does not write its scores to memory: splash (TPU) and cuDNN (GPU).

Both lack the paper's dropout of probabilities. Splash has no dropout, and JAX's cuDNN
attention uses the same mask at every step.
"""

import math

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from bert_jax.errors import UserError
from bert_jax.model.device import (
    ROW_AXES,
    capability,
    has_own_rows,
    is_plain,
    platform,
)
from bert_jax.unstable import splash_attention

LANES = 128  # blocks of queries and keys of splash are multiples of this number
_BLOCK = 512  # the largest block


def choose_attention(
    implementation: str,
    *,
    length: int,
    dtype: str,
    dropout_rate: float,
    causal: bool,
    required: bool = True,
) -> str:
    """The implementation for ``length`` keys on these devices.

    "plain" and "xla" run on all devices. "auto" is "xla" on CPUs and "plain" on other
    devices. "xla" replaces a kernel that does not support ``length`` keys.

    required: whether to raise UserError if the kernel does not fit the device or the model.
      Otherwise "xla" replaces it, so any device can evaluate any run.
    """
    kind, kernel = platform(), implementation
    if kernel == "auto":
        return "plain" if is_plain(kernel) else "xla"
    if kernel in ("plain", "xla"):
        return kernel
    needs = {
        "splash": (
            (kind in ("tpu", "cpu"), "a TPU"),
            (not causal, "model.causal=False"),
        ),
        "cudnn": (
            (kind == "gpu" and capability() >= 8, "an NVIDIA GPU from Ampere on"),
            (dtype == "bfloat16", "compute.dtype=bfloat16"),
        ),
    }[kernel]
    without_dropout = (not dropout_rate, "model.attention_dropout=0")
    unmet = [need for met, need in (*needs, without_dropout) if not met]
    if unmet and required:
        name = "compute.attention_impl"
        raise UserError(f"{name}={implementation} needs {unmet[0]}; or set {name}=auto")
    takes_length = length % {"splash": LANES, "cudnn": 2}[kernel] == 0
    return kernel if takes_length and not unmet else "xla"


def attend_splash(
    q_BQNH: jax.Array,
    k_BLNH: jax.Array,
    v_BLNH: jax.Array,
    query_ids_BQ: jax.Array,
    key_ids_BL: jax.Array,
    *,
    window: int = 0,
) -> jax.Array:
    """See bert.attend_plain. A query attends to the keys with its id.

    L must be a multiple of LANES. window: see LayerPattern. With a window Q must be L, and
    the kernel skips the blocks of keys outside the windows of a block of queries. A CPU
    interprets the kernel, for tests. With a mesh (parallel.mesh.traced_on) each device
    computes its rows and heads.
    """
    splash = splash_attention()
    Q, H = q_BQNH.shape[1], q_BQNH.shape[-1]
    L = k_BLNH.shape[1]
    # Splash returns NaN for a query without keys. A row may be only padding, and padding
    # may be far from the first sequence.
    key_ids_BL = jnp.where(key_ids_BL.any(axis=1, keepdims=True), key_ids_BL, 1)
    if window:
        query_ids_BQ = key_ids_BL
    fill = -Q % LANES
    if fill:  # the outputs of these queries are removed below
        q_BQNH = jnp.pad(q_BQNH, ((0, 0), (0, fill), (0, 0), (0, 0)))
        query_ids_BQ = jnp.pad(query_ids_BQ, ((0, 0), (0, fill)), constant_values=1)
    # For heads of 64 this is a power of two, so the queries lose no bits.
    q_BQNH = q_BQNH * jnp.asarray(H**-0.5, q_BQNH.dtype)
    mask = splash.FullMask((Q + fill, L))
    if window:
        mask = splash.LocalMask((L, L), (window, window), 0)

    def local(q_BQNH, k_BLNH, v_BLNH, query_ids_BQ, key_ids_BL):
        blocks = {"q": math.gcd(Q + fill, _BLOCK), "kv": math.gcd(L, _BLOCK)}
        sizes = {
            f"block_{name}{of}": size
            for name, size in blocks.items()
            for of in ("", "_dkv", "_dq")  # the output and the two gradients
        }
        kernel = splash.make_splash_mha_single_device(
            splash.MultiHeadMask([mask] * q_BQNH.shape[2]),
            block_sizes=splash.BlockSizes(**sizes),
            interpret=platform() == "cpu",
        )
        q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q_BQNH, k_BLNH, v_BLNH))
        ids = splash.SegmentIds(query_ids_BQ, key_ids_BL)
        return jnp.swapaxes(jax.vmap(kernel)(q, k, v, ids), 1, 2)

    rows, heads = P(ROW_AXES), P(ROW_AXES, None, "model")
    axes = {*ROW_AXES, "model"}
    if has_own_rows():
        rows, heads, axes = P(), P(None, None, "model"), {"model"}
    if not jax.sharding.get_abstract_mesh().empty:
        local = jax.shard_map(
            local,
            in_specs=(heads, heads, heads, rows, rows),
            out_specs=heads,
            axis_names=axes,
            check_vma=False,
        )
    out_BQNH = local(q_BQNH, k_BLNH, v_BLNH, query_ids_BQ, key_ids_BL)
    return out_BQNH[:, :Q]


def attend_cudnn(
    q_BQNH: jax.Array, k_BLNH: jax.Array, v_BLNH: jax.Array, attends_BQL: jax.Array
) -> jax.Array:
    """See bert.attend_plain.

    bfloat16, L even. The mask is a bias that all heads of a row share.
    """
    Q = q_BQNH.shape[1]
    odd = Q % 2  # the gradient needs an even number of queries
    if odd:
        q_BQNH = jnp.pad(q_BQNH, ((0, 0), (0, 1), (0, 0), (0, 0)))
        attends_BQL = jnp.pad(
            attends_BQL, ((0, 0), (0, 1), (0, 0)), constant_values=True
        )
    out_BQNH = jax.nn.dot_product_attention(
        q_BQNH, k_BLNH, v_BLNH, mask=attends_BQL[:, None], implementation="cudnn"
    )
    return out_BQNH[:, :Q]
