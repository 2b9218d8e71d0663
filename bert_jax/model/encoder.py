"""Self-attention, and the stack of post-LN Transformer layers (modeling.py)."""

import jax
from flax import linen as nn

from bert_jax.model.attention import attend_plain, probabilities
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.kernels import attention as kernels
from bert_jax.model.kernels.device import is_plain
from bert_jax.model.layers import Dropout, activation, dense, layer_norm, split
from bert_jax.model.tokens import Tokens, take_positions

# What a layer keeps for the backward pass, by ComputeConfig.remat. None: its input. The
# products with kernels are those without batch dimensions, unlike attention's.
REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": None,
}


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
        dropout = {
            "dropout_rate": config.attention_dropout,
            "dropout_key": None,
            "dropout_impl": compute.dropout_impl,
        }
        if config.attention_dropout and not deterministic:
            dropout["dropout_key"] = self.make_rng("dropout")
        if is_plain(compute.attention_impl):
            attends_BQL = tokens.attends(positions_BQ, config.causal)
            context_BQNH = attend_plain(q_BQNH, k_BLNH, v_BLNH, attends_BQL, **dropout)
        else:
            context_BQNH = kernels.attend(
                *(q_BQNH, k_BLNH, v_BLNH, tokens, positions_BQ),
                causal=config.causal,
                implementation=compute.attention_impl,
                # If a kernel does not fit, training fails and inference replaces it.
                required=not deterministic,
                **dropout,
            )
        D = config.hidden_size
        return dense(config, compute, D, axis=(-2, -1), name="output")(context_BQNH)


class Block(nn.Module):
    """The parts of a layer. A subclass defines in which order they are applied."""

    config: BertConfig
    compute: ComputeConfig
    deterministic: bool

    def setup(self):
        config, compute = self.config, self.compute
        self.attention = SelfAttention(config, compute)
        self.attention_norm = layer_norm(config, compute)
        self.intermediate = dense(config, compute, config.intermediate_size)
        self.activation = activation(config)
        self.feed_forward_output = dense(config, compute, config.hidden_size)
        self.feed_forward_norm = layer_norm(config, compute)
        self.dropout = Dropout(config.hidden_dropout, compute.dropout_impl)

    def attend(
        self, x_BLD: jax.Array, tokens: Tokens, positions_BQ: jax.Array | None
    ) -> jax.Array:
        """Attention and dropout: (B, Q, D)."""
        attn_BQD = self.attention(
            x_BLD, tokens, positions_BQ, deterministic=self.deterministic
        )
        return self.dropout(attn_BQD, self.deterministic)

    def feed_forward(self, x_BQD: jax.Array) -> jax.Array:
        """The feed-forward layer and dropout: (B, Q, D)."""
        h_BQF = self.activation(self.intermediate(x_BQD))
        return self.dropout(self.feed_forward_output(h_BQF), self.deterministic)


class PostNormBlock(Block):
    """LayerNorm after each residual sum, as in the paper."""

    def __call__(
        self, x_BLD: jax.Array, tokens: Tokens, positions_BQ: jax.Array | None = None
    ) -> jax.Array:
        """The layer's output at ``positions_BQ``, None for all positions: (B, Q, D)."""
        x_BLD = split(x_BLD, "BLD")
        attn_BQD = self.attend(x_BLD, tokens, positions_BQ)
        x_BQD = take_positions(x_BLD, positions_BQ)
        x_BQD = self.attention_norm(x_BQD + attn_BQD)
        x_BQD = self.feed_forward_norm(x_BQD + self.feed_forward(x_BQD))
        return split(x_BQD, "BQD")


class PreNormBlock(Block):
    """LayerNorm before attention and feed-forward, as in MegatronBert."""

    def __call__(
        self, x_BLD: jax.Array, tokens: Tokens, positions_BQ: jax.Array | None = None
    ) -> jax.Array:
        """The layer's output at ``positions_BQ``, None for all positions: (B, Q, D)."""
        x_BLD = split(x_BLD, "BLD")
        attn_BQD = self.attend(self.attention_norm(x_BLD), tokens, positions_BQ)
        x_BQD = take_positions(x_BLD, positions_BQ)
        x_BQD += attn_BQD
        x_BQD += self.feed_forward(self.feed_forward_norm(x_BQD))
        return split(x_BQD, "BQD")


class Encoder(nn.Module):
    """All layers, with parameters ``layer_0``, ``layer_1``, ..., or stacked, ``layers``."""

    config: BertConfig
    compute: ComputeConfig

    def setup(self):
        if self.config.pre_norm:
            self.block = PreNormBlock
            self.final_norm = layer_norm(self.config, self.compute)
        else:
            self.block = PostNormBlock
            self.final_norm = unchanged

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
        block = self.block
        if compute.remat != "none":
            block = nn.remat(
                block,
                prevent_cse=not compute.scan_layers,
                policy=REMAT_POLICIES[compute.remat],
            )
        states = [x_BLD]
        if compute.scan_layers:

            def step(layer: nn.Module, x_BLD: jax.Array, tokens: Tokens):
                x_BLD = layer(x_BLD, tokens)
                return x_BLD, x_BLD if hidden_states else None

            scan = nn.scan(
                step,
                variable_axes={"params": 0, "intermediates": 0, "attention": 0},
                split_rngs={"params": True, "dropout": True},
                in_axes=nn.broadcast,
                length=config.num_layers,
            )
            layer = block(config, compute, deterministic, name="layers")
            x_BLD, stacked = scan(layer, x_BLD, tokens)
            if hidden_states:
                states += [*stacked]
            x_BQD = take_positions(x_BLD, positions_BQ)
        else:
            last = config.num_layers - 1
            for i in range(last):
                layer = block(config, compute, deterministic, name=f"layer_{i}")
                states.append(layer(states[-1], tokens))
            layer = block(config, compute, deterministic, name=f"layer_{last}")
            x_BQD = layer(states[-1], tokens, positions_BQ)
            states.append(x_BQD)
        if not hidden_states:
            return self.final_norm(x_BQD), []
        return self.final_norm(x_BQD), [*states[:-1], self.final_norm(states[-1])]


def unchanged(x: jax.Array) -> jax.Array:
    """``x``, in place of a LayerNorm that a model does not have."""
    return x


def pooled_positions(config: BertConfig, tokens: Tokens) -> jax.Array:
    """The position of the token of each sequence that the pooler reads, (B, S).

    It is [CLS], or in a causal model the last token, which attends to all other tokens.
    """
    return tokens.lasts if config.causal else tokens.starts
