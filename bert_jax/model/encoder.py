"""Self-attention, and the stack of post-LN Transformer layers (modeling.py)."""

import jax
from flax import linen as nn

from bert_jax.model.attention import probabilities
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.kernels.attention import attend
from bert_jax.model.kernels.dropout import Dropout
from bert_jax.model.layers import activation, dense, layer_norm, split
from bert_jax.model.tokens import Tokens, take_positions


class SelfAttention(nn.Module):
    """Projects to queries, keys and values, attends, and projects back."""

    config: BertConfig
    compute: ComputeConfig

    @nn.compact
    def __call__(
        self,
        x_BLD: jax.Array,
        tokens: Tokens,
        positions_BQ: jax.Array | None = None,
        *,
        deterministic: bool,
    ) -> jax.Array:
        """Attention of the tokens at ``positions_BQ``, None for all tokens: (B, Q, D).

        ``apply(..., mutable=["attention"])`` also returns the probabilities before dropout,
        (B, N, Q, L).
        """
        config, compute = self.config, self.compute
        heads = (config.num_heads, config.head_size)
        x_BQD = take_positions(x_BLD, positions_BQ)
        q_BQNH = dense(config, compute, heads, name="query")(x_BQD)
        k_BLNH = dense(config, compute, heads, name="key")(x_BLD)
        v_BLNH = dense(config, compute, heads, name="value")(x_BLD)
        if self.is_mutable_collection("attention") and not self.is_initializing():
            attends_BQL = tokens.attends(positions_BQ, config.causal)
            probs_BNQL = probabilities(q_BQNH, k_BLNH, attends_BQL)
            self.sow("attention", "probabilities", probs_BNQL)
        use_dropout = config.attention_dropout > 0 and not deterministic
        # Parameters are initialised on a row that is too short for the kernels.
        is_short = self.is_initializing()
        context_BQNH = attend(
            q_BQNH,
            k_BLNH,
            v_BLNH,
            tokens,
            positions_BQ,
            causal=config.causal,
            dropout_rate=config.attention_dropout,
            dropout_key=self.make_rng("dropout") if use_dropout else None,
            implementation="plain" if is_short else compute.attention_impl,
            # If the kernel does not fit, training fails and inference uses another one.
            required=not deterministic,
        )
        D = config.hidden_size
        return dense(config, compute, D, axis=(-2, -1), name="output")(context_BQNH)


class Layer(nn.Module):
    """Attention, then feed-forward. Each is followed by dropout, residual and LayerNorm.

    With config.pre_norm the LayerNorm precedes attention and feed-forward.
    """

    config: BertConfig
    compute: ComputeConfig
    deterministic: bool

    @nn.compact
    def __call__(
        self, x_BLD: jax.Array, tokens: Tokens, positions_BQ: jax.Array | None = None
    ) -> jax.Array:
        """The layer's output at ``positions_BQ``, None for all positions: (B, Q, D)."""
        config, compute = self.config, self.compute
        D, F = config.hidden_size, config.intermediate_size
        attention = SelfAttention(config, compute, name="attention")
        intermediate = dense(config, compute, F, name="intermediate")
        output = dense(config, compute, D, name="feed_forward_output")
        dropout = Dropout(config.hidden_dropout)
        attention_norm = layer_norm(config, compute, "attention_norm")
        feed_forward_norm = layer_norm(config, compute, "feed_forward_norm")

        x_BLD = split(x_BLD, "BLD")
        input_BLD = attention_norm(x_BLD) if config.pre_norm else x_BLD
        attn_BQD = attention(
            input_BLD, tokens, positions_BQ, deterministic=self.deterministic
        )
        x_BQD = take_positions(x_BLD, positions_BQ)
        x_BQD += dropout(attn_BQD, self.deterministic)
        if not config.pre_norm:
            x_BQD = attention_norm(x_BQD)
        input_BQD = feed_forward_norm(x_BQD) if config.pre_norm else x_BQD
        h_BQF = activation(config)(intermediate(input_BQD))
        x_BQD += dropout(output(h_BQF), self.deterministic)
        x_BQD = x_BQD if config.pre_norm else feed_forward_norm(x_BQD)
        return split(x_BQD, "BQD")


class _ScanLayer(Layer):
    """A layer for nn.scan. Returns its output, and again to stack it, or None."""

    stack: bool = False  # whether to stack the outputs of all layers

    def __call__(self, x_BLD: jax.Array, tokens: Tokens):
        x_BLD = super().__call__(x_BLD, tokens)
        return x_BLD, x_BLD if self.stack else None


class Encoder(nn.Module):
    """All layers, with parameters ``layer_0``, ``layer_1``, ..., or stacked, ``layers``."""

    config: BertConfig
    compute: ComputeConfig

    @nn.compact
    def __call__(
        self,
        x_BLD: jax.Array,
        tokens: Tokens,
        positions_BQ: jax.Array | None = None,
        *,
        deterministic: bool,
        hidden_states: bool = False,
    ) -> tuple[jax.Array, list[jax.Array]]:
        """Returns the output of the last layer, and the hidden states or [].

        The hidden states are ``x_BLD`` and the output of every layer.
        positions_BQ: positions of the returned output of the last layer, (B, Q, D).
        Scanned layers are computed at all positions, because they share one program.
        """
        config, compute = self.config, self.compute
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
            y_BLD, stacked = layers(x_BLD, tokens)
            states = [x_BLD, *stacked] if hidden_states else []
            x_BLD = take_positions(y_BLD, positions_BQ)
        else:
            layer = nn.remat(Layer) if compute.remat else Layer
            states = [x_BLD]
            for i in range(config.num_layers):
                apply = layer(config, compute, deterministic, name=f"layer_{i}")
                last = i == config.num_layers - 1
                x_BLD = apply(x_BLD, tokens, positions_BQ if last else None)
                states.append(x_BLD)
            states = states if hidden_states else []
        if config.pre_norm:  # the last hidden state is normalised too
            norm = layer_norm(config, compute, "final_norm")
            x_BLD, states = norm(x_BLD), [*states[:-1], *map(norm, states[-1:])]
        return x_BLD, states


def pooled_positions(config: BertConfig, tokens: Tokens) -> jax.Array:
    """The position of the token of each sequence that the pooler reads, (B, S).

    It is [CLS], or in a causal model the last token, which attends to all other tokens.
    """
    return tokens.lasts if config.causal else tokens.starts
