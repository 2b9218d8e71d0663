"""LSTMs (Hochreiter and Schmidhuber, 1997, with forget gates).

TwoWayLstm is the encoder of ELMo (Peters et al., 2018, sections 3.1 to 3.3). BiLstm is the
layer between an encoder and its output. Both read rows of one sequence, with the padding
on the right.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.model.config import BertConfig, ComputeConfig, FeatureConfig
from bert_jax.model.kernels.device import activation_dtype
from bert_jax.model.kernels.dropout import Dropout
from bert_jax.model.tokens import Tokens, take_positions

DIRECTIONS = ("forward", "backward")

# Products with float32 sums and results, also of bfloat16 inputs.
_Dense = functools.partial(
    nn.Dense,
    dot_general=functools.partial(
        jax.lax.dot_general, preferred_element_type=jnp.float32
    ),
)


def check_one_sequence(tokens: Tokens) -> None:
    """Raises UserError for packed rows: states would pass from sequence to sequence."""
    if tokens.starts.shape[1] > 1:
        raise UserError(
            "an LSTM reads one sequence a row; give each sequence its own row"
        )


class Cell(nn.RNNCellBase):
    """One step of an LSTM. Projects the output if ``projection`` > 0.

    The input is already multiplied by the kernel of the gates i, f, g and o. ``dtype`` is
    the dtype of the products. States are float32.
    """

    width: int
    projection: int = 0
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, carry, gates_BG: jax.Array):
        dense = functools.partial(_Dense, use_bias=False, dtype=self.dtype)
        c_BH, h_BP = carry
        gates_BG += dense(4 * self.width, name="state")(h_BP)
        i, f, g, o = jnp.split(gates_BG, 4, axis=-1)
        c_BH = nn.sigmoid(f) * c_BH + nn.sigmoid(i) * jnp.tanh(g)
        h_BP = nn.sigmoid(o) * jnp.tanh(c_BH)
        if self.projection:
            h_BP = dense(self.projection, name="project")(h_BP)
        return (c_BH, h_BP), h_BP

    @nn.nowrap
    def initialize_carry(self, rng: jax.Array, input_shape: tuple[int, ...]):
        del rng
        batch = input_shape[:-1]
        output = self.projection or self.width
        return jnp.zeros((*batch, self.width)), jnp.zeros((*batch, output))

    @property
    def num_feature_axes(self) -> int:
        return 1


def lstm(
    name: str,
    x_BLF: jax.Array,
    mask_BL: jax.Array,
    width: int,
    projection: int = 0,
    *,
    dtype: jnp.dtype = jnp.float32,
    forget_bias: float = 0.0,
) -> jax.Array:
    """One direction of one layer, in a compact method: float32 (B, L, width).

    name: name of the parameters. If it ends in "backward", the LSTM reads from right to
    left. mask_BL: 1 for tokens, 0 for the padding on their right. projection: width of the
    output; 0: ``width``. dtype: dtype of the products. forget_bias: initial bias of the
    forget gates.
    """

    def bias_init(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype):
        del key
        return jnp.zeros(shape, dtype).at[width : 2 * width].set(forget_bias)

    inputs = _Dense(4 * width, dtype=dtype, bias_init=bias_init, name=f"{name}_inputs")
    rnn = nn.RNN(
        Cell(width, projection, dtype, name=name),
        reverse=name.endswith(DIRECTIONS[1]),
        keep_order=True,
    )
    return rnn(inputs(x_BLF), seq_lengths=jnp.sum(mask_BL > 0, axis=1))


class TwoWayLstm(nn.Module):
    """An LSTM of several layers in each direction (ELMo), independent of the other one.

    Each layer's output is projected to D. From the second layer on, the layer's input is
    added. Methods and arguments are the same as in model/encoder.py.
    """

    config: BertConfig
    compute: ComputeConfig
    mix: nn.Module

    @nn.compact
    def __call__(
        self,
        x_BLD: jax.Array,
        tokens: Tokens,
        positions_BQ: jax.Array | None = None,
        *,
        deterministic: bool,
        **_: Any,
    ) -> tuple[jax.Array, list[jax.Array]]:
        """Returns ``mix`` of all states at positions_BQ, and the states, (B, L, 2 D).

        The first state is ``x_BLD`` twice. Each further state is the forward and the
        backward output of a layer.
        """
        check_one_sequence(tokens)
        config = self.config
        dtype = activation_dtype(self.compute.dtype)
        dropout = Dropout(config.hidden_dropout)
        ways = [x_BLD] * len(DIRECTIONS)
        states = [jnp.concatenate(ways, axis=-1)]
        for i in range(config.num_layers):
            for way, direction in enumerate(DIRECTIONS):
                h_BLD = lstm(
                    f"layer_{i}_{direction}",
                    ways[way],
                    tokens.segment_ids,
                    config.intermediate_size,
                    config.hidden_size,
                    dtype=dtype,
                    forget_bias=1.0,
                )
                h_BLD = dropout(h_BLD.astype(dtype), deterministic)
                ways[way] = ways[way] + h_BLD if i else h_BLD
            states.append(jnp.concatenate(ways, axis=-1))
        return take_positions(self.mix(states), positions_BQ), states

    @nn.nowrap
    def ends(self, x_BLD: jax.Array, tokens: Tokens) -> jax.Array:
        """The last state of each direction, side by side: (B, S, 2 D)."""
        return tokens.last_states(x_BLD)

    @nn.nowrap
    def sides(
        self, _: Any, states: list[jax.Array], positions_BQ: jax.Array | None
    ) -> list[jax.Array]:
        """The last forward state before each position, and the backward state after it."""
        forward, backward = jnp.split(states[-1], 2, axis=-1)
        last = forward.shape[1] - 1
        if positions_BQ is None:
            positions_BQ = jnp.arange(last + 1)[None]
        before_BQ = jnp.maximum(positions_BQ - 1, 0)
        after_BQ = jnp.minimum(positions_BQ + 1, last)
        return [take_positions(forward, before_BQ), take_positions(backward, after_BQ)]


class LayerMix(nn.Module):
    """gamma times a mean of layers, weighted by a softmax (ELMo, formula 1).

    Fine-tuning learns gamma and the weights. All layers start with the same weight.
    """

    @nn.compact
    def __call__(self, states: list[jax.Array]) -> jax.Array:
        weights_N = self.param("weights", nn.initializers.zeros, (len(states),))
        gamma = self.param("gamma", nn.initializers.ones, ())
        shares_N = gamma * jax.nn.softmax(weights_N)
        mixed = sum(share * x for share, x in zip(shares_N, states, strict=True))
        return mixed.astype(states[0].dtype)


class BiLstm(nn.Module):
    """Logits of ``outputs`` labels from features of tokens, all float32.

    by_token: whether there are logits for each token, (B, L, outputs). Otherwise there are
    logits for each sequence, (B, S, outputs), from the last state of each direction.
    """

    config: FeatureConfig
    outputs: int
    by_token: bool = True

    @nn.compact
    def __call__(
        self, features_BLF: jax.Array, tokens: Tokens, *, deterministic: bool
    ) -> jax.Array:
        check_one_sequence(tokens)
        dropout = Dropout(self.config.dropout)
        x_BLF = dropout(jnp.asarray(features_BLF, jnp.float32), deterministic)
        for i in range(self.config.lstm_layers):
            name, width = f"layer_{i}", self.config.width
            states = [
                lstm(f"{name}_{direction}", x_BLF, tokens.segment_ids, width)
                for direction in DIRECTIONS
            ]
            x_BLF = dropout(jnp.concatenate(states, axis=-1), deterministic)
        if not self.by_token:
            x_BLF = tokens.last_states(x_BLF)
        return nn.Dense(self.outputs, name="classifier")(x_BLF)
