"""Bidirectional multi-head self-attention (paper, section 3; modeling.py)."""

import functools
import logging

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.kernels.attention_fused import (
    LANES,
    attend_cudnn,
    attend_splash,
    mesh_platform,
)
from bert_jax.model.kernels.attention_xla import attend_xla
from bert_jax.model.layers import FlatDense, kernel_init

_logger = logging.getLogger(__name__)


def attend(
    q_BQNH: jax.Array,
    k_BLNH: jax.Array,
    v_BLNH: jax.Array,
    attention_mask_BL: jax.Array,
    *,
    query_numbers_BQ: jax.Array | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    implementation: str = "auto",
) -> jax.Array:
    """Each query's mean of the values, weighted by softmax(q k / sqrt(H)): (B, Q, N, H).

    attention_mask_BL: 0 where a key is padding. In packed rows it numbers the sequences;
    with query_numbers_BQ a query reads the keys that have its number. Dropout falls on
    the probabilities; without ``dropout_key`` there is none. implementation: see
    choose_attention.
    """
    rate = dropout_rate if dropout_key is not None else 0.0
    chosen = choose_attention(
        implementation,
        keys=k_BLNH.shape[1],
        dtype=v_BLNH.dtype.name,
        dropout_rate=rate,
    )
    _log_once(chosen, k_BLNH.shape[1], rate)
    if chosen == "splash":
        numbers = _numbers(q_BQNH, attention_mask_BL, query_numbers_BQ)
        return attend_splash(q_BQNH, k_BLNH, v_BLNH, *numbers)
    if query_numbers_BQ is None:
        read_BQL = attention_mask_BL[:, None, :] != 0
    else:
        read_BQL = attention_mask_BL[:, None, :] == query_numbers_BQ[:, :, None]
    if chosen == "cudnn":
        return attend_cudnn(q_BQNH, k_BLNH, v_BLNH, read_BQL)
    return attend_xla(
        q_BQNH,
        k_BLNH,
        v_BLNH,
        read_BQL,
        dropout_rate=rate,
        dropout_key=dropout_key,
    )


def _numbers(
    q_BQNH: jax.Array, attention_mask_BL: jax.Array, query_numbers_BQ: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Queries, (B, Q), read the keys, (B, L), of the same number."""
    if query_numbers_BQ is not None:
        return query_numbers_BQ, attention_mask_BL
    read_BL = attention_mask_BL != 0
    # A row that only fills the batch up reads all it has, rather than nothing.
    read_BL |= ~read_BL.any(axis=1, keepdims=True)
    return jnp.ones(q_BQNH.shape[:2], jnp.int32), read_BL.astype(jnp.int32)


def choose_attention(
    implementation: str, *, keys: int, dtype: str, dropout_rate: float
) -> str:
    """The implementation of ``keys`` positions on the devices at hand.

    "xla": plain products, for all devices, with dropout. "splash": a TPU's kernel, of
    multiples of 128 positions. "cudnn": a GPU's of compute capability 8 or more, in
    bfloat16. Neither has dropout. "auto": splash from 512 positions and cudnn where they
    can be had, else xla. Raises UserError where what is asked for cannot be had.
    """
    if implementation in ("plain", "xla"):
        return implementation
    platform = mesh_platform()
    needs = {
        "splash": (
            (platform in ("tpu", "cpu"), "a TPU"),
            (keys % LANES == 0, f"sequences of a multiple of {LANES} tokens"),
        ),
        "cudnn": (
            (platform == "gpu" and _capability() >= 8, "an NVIDIA GPU from Ampere on"),
            (dtype == "bfloat16", "--config.compute.dtype=bfloat16"),
            (keys % 2 == 0, "sequences of an even number of tokens"),
        ),
    }
    if implementation == "auto":
        fused = {"tpu": "splash", "gpu": "cudnn"}.get(platform)
        if fused is None or dropout_rate or (fused == "splash" and keys < 512):
            return "xla"
        return fused if all(met for met, _ in needs[fused]) else "xla"
    for met, need in (
        *needs[implementation],
        (not dropout_rate, "--config.model.attention_dropout=0"),
    ):
        if not met:
            raise UserError(
                f"attention_impl={implementation!r} needs {need}; change that, or set "
                "--config.compute.attention_impl=auto"
            )
    return implementation


def _capability() -> float:
    """An NVIDIA GPU's compute capability, 0 of others'."""
    try:
        return float(getattr(jax.devices()[0], "compute_capability", 0))
    except ValueError:  # AMD's are names
        return 0.0


@functools.cache
def _log_once(chosen: str, keys: int, dropout_rate: float) -> None:
    _logger.info(
        "attention over %d positions, dropout %g: %s", keys, dropout_rate, chosen
    )


class SelfAttention(nn.Module):
    """Projects to queries, keys and values, attends, projects back."""

    config: BertConfig
    compute: ComputeConfig

    @nn.compact
    def __call__(
        self,
        x_BQD: jax.Array,
        x_BLD: jax.Array,
        attention_mask_BL: jax.Array,
        query_numbers_BQ: jax.Array | None,
        deterministic: bool,
    ) -> jax.Array:
        """What the positions ``x_BQD`` read in ``x_BLD``, of which they are some or all.

        attention_mask_BL and query_numbers_BQ: see attend().
        """
        config, compute = self.config, self.compute

        def project(name: str, x_BLD: jax.Array) -> jax.Array:
            # (D, N, H) kernels: a mesh splits them by heads.
            return FlatDense(
                (config.num_heads, config.head_size),
                dtype=jnp.dtype(compute.dtype),
                kernel_init=kernel_init(config),
                name=name,
            )(x_BLD)

        use_dropout = config.attention_dropout > 0 and not deterministic
        context_BQNH = attend(
            project("query", x_BQD),
            project("key", x_BLD),
            project("value", x_BLD),
            attention_mask_BL,
            query_numbers_BQ=query_numbers_BQ,
            dropout_rate=config.attention_dropout,
            dropout_key=self.make_rng("dropout") if use_dropout else None,
            implementation=compute.attention_impl,
        )
        return FlatDense(
            config.hidden_size,
            axis=(-2, -1),
            dtype=jnp.dtype(compute.dtype),
            kernel_init=kernel_init(config),
            name="output",
        )(context_BQNH)
