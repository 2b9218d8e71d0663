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
from bert_jax.model.layers import Dense, activation, layer_norm, split


class Layer(nn.Module):
    """Attention and feed-forward, each with dropout, residual and LayerNorm after.

    With config.pre_norm LayerNorm is of what each of them reads.
    """

    config: BertConfig
    compute: ComputeConfig
    deterministic: bool

    @nn.compact
    def __call__(
        self,
        x_BLD: jax.Array,
        query_ids_BQ: jax.Array,
        key_ids_BL: jax.Array,
        positions_BQ: jax.Array | None = None,
    ) -> jax.Array:
        """The layer's output at ``positions_BQ``, (B, Q, D), or at all positions.

        query_ids_BQ, key_ids_BL: which tokens attend to which, see attend_plain.
        """
        config, compute = self.config, self.compute
        D, F = config.hidden_size, config.intermediate_size
        attention = SelfAttention(config, compute, name="attention")
        intermediate = Dense(config, compute, (F,), name="intermediate")
        output = Dense(config, compute, (D,), name="feed_forward_output")
        dropout = Dropout(config.hidden_dropout)
        attention_norm = layer_norm(config, compute, "attention_norm")
        feed_forward_norm = layer_norm(config, compute, "feed_forward_norm")

        x_BLD = split(x_BLD, "BLD")
        read_BLD = attention_norm(x_BLD) if config.pre_norm else x_BLD
        x_BQD = take_positions(x_BLD, positions_BQ)
        places_BQ = None
        if config.causal:
            all_BL = jnp.arange(x_BLD.shape[1])[None]
            places_BQ = all_BL if positions_BQ is None else positions_BQ
        attn_BQD = attention(
            take_positions(read_BLD, positions_BQ),
            read_BLD,
            query_ids_BQ,
            key_ids_BL,
            places_BQ,
            deterministic=self.deterministic,
        )
        x_BQD += dropout(attn_BQD, self.deterministic)
        if not config.pre_norm:
            x_BQD = attention_norm(x_BQD)
        read_BQD = feed_forward_norm(x_BQD) if config.pre_norm else x_BQD
        h_BQF = activation(config)(intermediate(read_BQD))
        x_BQD += dropout(output(h_BQF), self.deterministic)
        x_BQD = x_BQD if config.pre_norm else feed_forward_norm(x_BQD)
        return split(x_BQD, "BQD")


class _ScanLayer(Layer):
    """A layer with the signature of nn.scan: returns the carry and what is stacked."""

    stack: bool = False

    def __call__(self, x_BLD: jax.Array, *ids: jax.Array):
        x_BLD = super().__call__(x_BLD, *ids)
        return x_BLD, x_BLD if self.stack else None


def take_positions(x_BL: jax.Array, positions_BQ: jax.Array | None) -> jax.Array:
    """``x_BL``, (B, L, ...), at the positions of each row, (B, Q, ...); all for None."""
    if positions_BQ is None:
        return x_BL
    rest = range(2, x_BL.ndim)
    return jnp.take_along_axis(x_BL, jnp.expand_dims(positions_BQ, rest), axis=1)


class Encoder(nn.Module):
    """num_layers layers: ``layer_0``, ``layer_1``, ... or, scanned, ``layers``.

    BertModel calls the module, ``ends`` and ``sides``; another encoder needs the same.
    """

    config: BertConfig
    compute: ComputeConfig

    @nn.compact
    def __call__(
        self,
        x_BLD: jax.Array,
        attention_mask_BL: jax.Array,
        segment_ids_BL: jax.Array | None = None,
        positions_BQ: jax.Array | None = None,
        *,
        deterministic: bool,
        hidden_states: bool = False,
    ) -> tuple[jax.Array, list[jax.Array]]:
        """Returns the last layer and, if ``hidden_states``, its input and every layer.

        segment_ids_BL: tokens attend to the tokens of their own segment. Without it, all
        attend to those whose attention_mask_BL is 1.
        positions_BQ: return the last layer at these positions only, (B, Q, D). A scan
        computes all positions of it all the same, since its layers are all alike.
        """
        config, compute = self.config, self.compute
        if segment_ids_BL is None:
            key_ids_BL = attention_mask_BL
            query_ids_BQ = last_ids_BQ = jnp.ones_like(attention_mask_BL[:, :1])
        else:
            key_ids_BL = query_ids_BQ = segment_ids_BL
            last_ids_BQ = take_positions(segment_ids_BL, positions_BQ)
        if compute.scan_layers:
            layer = _ScanLayer
            if compute.remat:
                layer = nn.remat(layer, prevent_cse=False)
            layers = nn.scan(
                layer,
                variable_axes={"params": 0, "intermediates": 0, "attention": 0},
                split_rngs={"params": True, "dropout": True},
                in_axes=nn.broadcast,
                length=config.num_layers,
            )(config, compute, deterministic, hidden_states, name="layers")
            y_BLD, stacked = layers(x_BLD, query_ids_BQ, key_ids_BL)
            states = [x_BLD, *stacked] if hidden_states else []
            x_BLD = take_positions(y_BLD, positions_BQ)
            return self._normed(x_BLD, states)
        layer = nn.remat(Layer) if compute.remat else Layer
        states = [x_BLD]
        for i in range(config.num_layers):
            apply = layer(config, compute, deterministic, name=f"layer_{i}")
            if i < config.num_layers - 1:
                x_BLD = apply(x_BLD, query_ids_BQ, key_ids_BL)
            else:
                x_BLD = apply(x_BLD, last_ids_BQ, key_ids_BL, positions_BQ)
            states.append(x_BLD)
        return self._normed(x_BLD, states if hidden_states else [])

    @nn.nowrap
    def ends(self, x_BLD: jax.Array, ends_BS: tuple[jax.Array, jax.Array]) -> jax.Array:
        """The vector of each sequence for a classifier, (B, S, D).

        ends_BS: the positions of each sequence's first and last token. Only the last token
        of a causal model attends to all others.
        """
        return take_positions(x_BLD, ends_BS[int(self.config.causal)])

    @nn.nowrap
    def sides(self, x_BQD: jax.Array, *_: Any) -> list[jax.Array]:
        """The vectors from which the MLM head predicts tokens: the output itself."""
        return [x_BQD]

    def _normed(
        self, x_BLD: jax.Array, states: list[jax.Array]
    ) -> tuple[jax.Array, list[jax.Array]]:
        """The last layer, after the norm that pre-LN layers leave to the end."""
        if self.config.pre_norm:
            norm = layer_norm(self.config, self.compute, "final_norm")
            x_BLD, states = norm(x_BLD), [*states[:-1], *map(norm, states[-1:])]
        return x_BLD, states


def stack_layers(encoder_params: dict[str, Any]) -> dict[str, Any]:
    """``layer_0``, ``layer_1``, ... as one ``layers`` with a leading layer dimension."""
    rest = dict(encoder_params)  # a norm after the last layer
    count = sum(name.startswith("layer_") for name in rest)
    layers = [rest.pop(f"layer_{i}") for i in range(count)]
    on_host = isinstance(jax.tree.leaves(layers)[0], np.ndarray)
    stack = np.stack if on_host else jnp.stack
    return {"layers": jax.tree.map(lambda *leaves: stack(leaves), *layers)} | rest


def unstack_layers(encoder_params: dict[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`stack_layers`."""
    rest = dict(encoder_params)
    leaves, structure = jax.tree.flatten(rest.pop("layers"))
    layers = enumerate(zip(*leaves, strict=True))
    layers = {f"layer_{i}": jax.tree.unflatten(structure, layer) for i, layer in layers}
    return layers | rest


def with_scan(params: Mapping[str, Any], scan: bool) -> dict[str, Any]:
    """Parameters with the key "bert", its layers stacked for ``scan_layers`` or not.

    numpy arrays stay numpy arrays. LSTMs have no layers to stack.
    """
    bert = dict(params["bert"])
    if "layers" in bert["encoder"] if not scan else "layer_0" in bert["encoder"]:
        change = stack_layers if scan else unstack_layers
        bert["encoder"] = change(bert["encoder"])
    return {**params, "bert": bert}
