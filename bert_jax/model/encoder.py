"""The stack of post-LN Transformer layers (modeling.py, transformer_model)."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bert_jax.model.attention import SelfAttention
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.kernels.dropout import Dropout
from bert_jax.model.layers import activation, dense, layer_norm


class Layer(nn.Module):
    """Attention and feed-forward, each with dropout, residual and LayerNorm after."""

    config: BertConfig
    compute: ComputeConfig
    deterministic: bool
    packed: bool = False

    @nn.compact
    def __call__(
        self,
        x_BLD: jax.Array,
        attention_mask_BL: jax.Array,
        positions_BQ: jax.Array | None = None,
    ) -> jax.Array:
        """The output at ``positions_BQ``, (B, Q, D), or at all positions.

        With ``packed`` the mask numbers a row's sequences, which do not see each other.
        """
        config, compute = self.config, self.compute
        dropout = Dropout(config.hidden_dropout)
        x_BQD = take_positions(x_BLD, positions_BQ)
        numbers_BQ = None
        if self.packed:
            numbers_BQ = take_positions(attention_mask_BL, positions_BQ)
        attn_BQD = SelfAttention(config, compute, name="attention")(
            x_BQD, x_BLD, attention_mask_BL, numbers_BQ, self.deterministic
        )
        x_BQD = layer_norm(config, compute, "attention_norm")(
            x_BQD + dropout(attn_BQD, self.deterministic)
        )
        h_BQF = dense(config, compute, config.intermediate_size, "intermediate")(x_BQD)
        h_BQF = activation(config)(h_BQF)
        h_BQD = dense(config, compute, config.hidden_size, "feed_forward_output")(h_BQF)
        return layer_norm(config, compute, "feed_forward_norm")(
            x_BQD + dropout(h_BQD, self.deterministic)
        )


class _ScanLayer(Layer):
    """A layer with the carry and the per-layer output that nn.scan wants."""

    def __call__(self, x_BLD: jax.Array, attention_mask_BL: jax.Array):
        return super().__call__(x_BLD, attention_mask_BL), None


def take_positions(x_BL: jax.Array, positions_BQ: jax.Array | None) -> jax.Array:
    """``x_BL``, (B, L, ...), at the positions of each row, (B, Q, ...); all for None."""
    if positions_BQ is None:
        return x_BL
    rest = range(2, x_BL.ndim)
    return jnp.take_along_axis(x_BL, jnp.expand_dims(positions_BQ, rest), axis=1)


class Encoder(nn.Module):
    """num_layers layers: ``layer_0``, ``layer_1``, ... or, scanned, ``layers``."""

    config: BertConfig
    compute: ComputeConfig

    @nn.compact
    def __call__(
        self,
        x_BLD: jax.Array,
        attention_mask_BL: jax.Array,
        deterministic: bool,
        positions_BQ: jax.Array | None = None,
        *,
        packed: bool = False,
    ) -> jax.Array:
        """The last layer's output at ``positions_BQ``, (B, Q, D), or at all positions.

        What the last layer's other positions would give is then not computed, unless
        the layers are scanned, which makes them all alike.
        """
        config, compute = self.config, self.compute
        if compute.scan_layers:
            layer = (
                nn.remat(_ScanLayer, prevent_cse=False) if compute.remat else _ScanLayer
            )
            layers = nn.scan(
                layer,
                variable_axes={"params": 0, "intermediates": 0},
                split_rngs={"params": True, "dropout": True},
                in_axes=nn.broadcast,
                length=config.num_layers,
            )
            x_BLD, _ = layers(config, compute, deterministic, packed, name="layers")(
                x_BLD, attention_mask_BL
            )
            return take_positions(x_BLD, positions_BQ)
        layer = nn.remat(Layer) if compute.remat else Layer
        for i in range(config.num_layers):
            last = i == config.num_layers - 1
            x_BLD = layer(config, compute, deterministic, packed, name=f"layer_{i}")(
                x_BLD, attention_mask_BL, positions_BQ if last else None
            )
        return x_BLD


def stack_layers(encoder_params: dict[str, Any]) -> dict[str, Any]:
    """``layer_0``, ``layer_1``, ... to one ``layers`` with a leading layer dimension."""
    layers = [encoder_params[f"layer_{i}"] for i in range(len(encoder_params))]
    on_host = isinstance(jax.tree.leaves(layers)[0], np.ndarray)
    stack = np.stack if on_host else jnp.stack
    return {"layers": jax.tree.map(lambda *leaves: stack(leaves), *layers)}


def unstack_layers(encoder_params: dict[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`stack_layers`."""
    stacked = encoder_params["layers"]
    count = jax.tree.leaves(stacked)[0].shape[0]
    return {
        f"layer_{i}": jax.tree.map(lambda leaf, i=i: leaf[i], stacked)
        for i in range(count)
    }


def with_scan(params: Mapping[str, Any], scan: bool) -> dict[str, Any]:
    """The parameters of a BERT with its layers stacked for ``scan_layers``, or not.

    Takes the tree with the key "bert". Of numpy arrays it makes numpy arrays.
    """
    bert = dict(params["bert"])
    if scan != ("layers" in bert["encoder"]):
        change = stack_layers if scan else unstack_layers
        bert["encoder"] = change(bert["encoder"])
    return {**params, "bert": bert}
