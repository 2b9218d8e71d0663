"""Attention in one kernel, its scores never in memory: splash (TPU) and cuDNN (GPU).

Neither drops probabilities as the paper does: splash has no dropout, and JAX's cuDNN
attention draws the same mask at every step.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import (
    BlockSizes,
    FullMask,
    MultiHeadMask,
    SegmentIds,
    make_splash_mha_single_device,
)
from jax.sharding import PartitionSpec as P

LANES = 128  # queries and keys come in blocks of a multiple of it
_LARGEST_BLOCK = 512


def attend_splash(
    q_BQNH: jax.Array,
    k_BLNH: jax.Array,
    v_BLNH: jax.Array,
    query_numbers_BQ: jax.Array,
    key_numbers_BL: jax.Array,
) -> jax.Array:
    """See attention.attend; a query reads the keys that have its number.

    L must be a multiple of LANES. On a CPU the kernel is interpreted, for tests. Under a
    mesh (parallel.mesh.traced_on) each device computes its rows and heads.
    """
    _, Q, _, H = q_BQNH.shape
    L = k_BLNH.shape[1]
    fill = -Q % LANES
    if fill:  # what queries of no sequence read is cut off again
        q_BQNH = jnp.pad(q_BQNH, ((0, 0), (0, fill), (0, 0), (0, 0)))
        query_numbers_BQ = jnp.pad(query_numbers_BQ, ((0, 0), (0, fill)))
    # A power of two, which leaves the bits of the numbers as they are, for heads of 64.
    q_BQNH = q_BQNH * jnp.asarray(H**-0.5, q_BQNH.dtype)

    def local(q_BQNH, k_BLNH, v_BLNH, query_numbers_BQ, key_numbers_BL):
        kernel = _splash_kernel(q_BQNH.shape[2], Q + fill, L)
        q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q_BQNH, k_BLNH, v_BLNH))
        numbers = SegmentIds(query_numbers_BQ, key_numbers_BL)
        return jnp.swapaxes(jax.vmap(kernel)(q, k, v, numbers), 1, 2)

    rows = P(("replica", "data"))
    heads = P(("replica", "data"), None, "model")
    if not jax.sharding.get_abstract_mesh().empty:
        local = jax.shard_map(
            local,
            in_specs=(heads, heads, heads, rows, rows),
            out_specs=heads,
            check_vma=False,
        )
    out_BQNH = local(q_BQNH, k_BLNH, v_BLNH, query_numbers_BQ, key_numbers_BL)
    return out_BQNH[:, :Q]


def _splash_kernel(heads: int, queries: int, keys: int):
    """The kernel of one row on one device."""
    q, k = _block(queries), _block(keys)
    sizes = BlockSizes(
        block_q=q,
        block_kv=k,
        block_q_dkv=q,
        block_kv_dkv=k,
        block_q_dq=q,
        block_kv_dq=k,
    )
    return make_splash_mha_single_device(
        MultiHeadMask([FullMask((queries, keys))] * heads),
        block_sizes=sizes,
        interpret=mesh_platform() == "cpu",
    )


def _block(size: int) -> int:
    """The largest block up to _LARGEST_BLOCK that divides ``size``, a multiple of LANES."""
    return max(
        block for block in range(LANES, _LARGEST_BLOCK + 1, LANES) if size % block == 0
    )


def attend_cudnn(
    q_BQNH: jax.Array, k_BLNH: jax.Array, v_BLNH: jax.Array, read_BQL: jax.Array
) -> jax.Array:
    """See attention.attend; ``read_BQL``, or (B, 1, L), is True where a key is read.

    bfloat16, L even. The mask goes in as a bias of a row's heads, which holds for packed
    rows and for padding wherever it lies.
    """
    Q, L = q_BQNH.shape[1], k_BLNH.shape[1]
    read_BQL = jnp.broadcast_to(read_BQL, (len(read_BQL), Q, L))
    odd = Q % 2  # the gradient wants an even number of queries
    if odd:
        q_BQNH = jnp.pad(q_BQNH, ((0, 0), (0, 1), (0, 0), (0, 0)))
        read_BQL = jnp.pad(read_BQL, ((0, 0), (0, 1), (0, 0)), constant_values=True)
    out_BQNH = jax.nn.dot_product_attention(
        q_BQNH, k_BLNH, v_BLNH, mask=read_BQL[:, None], implementation="cudnn"
    )
    return out_BQNH[:, :Q]


def mesh_platform() -> str:
    """cpu, gpu or tpu: of the mesh in use, or of the devices at hand."""
    mesh = jax.sharding.get_abstract_mesh()
    return jax.default_backend() if mesh.empty else mesh.abstract_device.platform
