"""LSTMs (Hochreiter and Schmidhuber, 1997, with forget gates) on rows of sequences.

The two-way encoder of ELMo (Peters et al., 2018, sections 3.1 to 3.3), and the BiLSTM that
is put on an encoder.
"""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.model.config import BertConfig, ComputeConfig, FeatureConfig
from bert_jax.model.kernels.device import activation_dtype
from bert_jax.model.kernels.dropout import Dropout
from bert_jax.model.pooling import last_states

DIRECTIONS = ("forward", "backward")


class _Cell(nn.Module):
    """A step of an LSTM, whose inputs are multiplied already: (B, 4 H).

    Flax's cells multiply the inputs at each position. Multiplying all positions at once
    is about twice as fast, forward and backward. projection: the width of the output, 0
    for H. dtype: of the products; states are float32.
    """

    width: int
    projection: int = 0
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(
        self, carry: tuple[jax.Array, jax.Array], inputs: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        gates_BG, first_B1 = inputs
        c_BH, h_BH = (jnp.where(first_B1, 0.0, state) for state in carry)
        dense = functools.partial(nn.Dense, use_bias=False, dtype=self.dtype)
        gates_BG += dense(4 * self.width, name="state")(h_BH)
        i_BH, f_BH, g_BH, o_BH = jnp.split(gates_BG, 4, axis=-1)
        c_BH = nn.sigmoid(f_BH) * c_BH + nn.sigmoid(i_BH) * jnp.tanh(g_BH)
        h_BH = nn.sigmoid(o_BH) * jnp.tanh(c_BH)
        if self.projection:
            h_BH = dense(self.projection, name="project")(h_BH).astype(jnp.float32)
        return (c_BH, h_BH), h_BH


def lstm(
    name: str,
    x_BLF: jax.Array,
    ids_BL: jax.Array,
    width: int,
    projection: int = 0,
    *,
    dtype: jnp.dtype = jnp.float32,
    forget_bias: float = 0.0,
) -> jax.Array:
    """One direction of one layer, in a compact method: float32 (B, L, width).

    name: of its parameters; one that ends in "backward" reads from right to left. ids_BL:
    which sequence a token belongs to; each begins with a state of zeros. projection,
    dtype: see _Cell. forget_bias: with which the forget gates begin.
    """

    def bias(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
        return jnp.zeros(shape, dtype).at[width : 2 * width].set(forget_bias)

    backward = name.endswith(DIRECTIONS[1])
    first_BL = jnp.ones_like(ids_BL[:, :1], bool)
    other_BL = ids_BL[:, 1:] != ids_BL[:, :-1]
    order = (other_BL, first_BL) if backward else (first_BL, other_BL)
    first_BL1 = jnp.concatenate(order, axis=1)[..., None]
    inputs = nn.Dense(4 * width, dtype=dtype, bias_init=bias, name=f"{name}_inputs")
    gates_BLG = inputs(x_BLF).astype(jnp.float32)
    cells = nn.scan(
        _Cell,
        variable_broadcast="params",
        split_rngs={"params": False},
        in_axes=1,
        out_axes=1,
        reverse=backward,
    )
    zeros = [jnp.zeros((len(x_BLF), size)) for size in (width, projection or width)]
    cell = cells(width, projection, dtype, name=name)
    return cell(tuple(zeros), (gates_BLG, first_BL1))[1]


class TwoWayLstm(nn.Module):
    """An LSTM of several layers in each direction; neither reads the other (ELMo).

    Layers are projected to D, and from the second on added to what they read.
    """

    config: BertConfig
    compute: ComputeConfig

    @nn.compact
    def __call__(
        self, x_BLD: jax.Array, ids_BL: jax.Array, *, deterministic: bool
    ) -> list[jax.Array]:
        """``x_BLD`` twice, then each layer's forward and backward states: (B, L, 2 D).

        ids_BL: which sequence of the row a token belongs to, 0 for padding.
        """
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
                    ids_BL,
                    config.intermediate_size,
                    config.hidden_size,
                    dtype=dtype,
                    forget_bias=1.0,
                )
                h_BLD = dropout(h_BLD.astype(dtype), deterministic)
                ways[way] = ways[way] + h_BLD if i else h_BLD
            states.append(jnp.concatenate(ways, axis=-1))
        return states


class LayerMix(nn.Module):
    """gamma times a mean of layers, whose weights are a softmax (ELMo, formula 1).

    Both are learnt in fine-tuning. Before, all layers weigh the same.
    """

    @nn.compact
    def __call__(self, states: list[jax.Array]) -> jax.Array:
        weights_N = self.param("weights", nn.initializers.zeros, (len(states),))
        gamma = self.param("gamma", nn.initializers.ones, ())
        shares_N = gamma * jax.nn.softmax(weights_N)
        mixed = sum(share * x for share, x in zip(shares_N, states, strict=True))
        return mixed.astype(states[0].dtype)


class BiLstm(nn.Module):
    """Features of tokens to logits of ``outputs`` labels; float32 throughout.

    features_BLF: F features a token. ids_BL: which sequence of the row a token belongs to,
    0 for padding; an attention mask where there is one. No sequence sees another, or
    padding. ends_BS: where each sequence begins and ends, for its logits, float32 (B, S,
    outputs), from the last state of each direction. Without them those of every token,
    (B, L, outputs). Needs a "dropout" rng unless ``deterministic``.
    """

    config: FeatureConfig
    outputs: int

    @nn.compact
    def __call__(
        self,
        features_BLF: jax.Array,
        ids_BL: jax.Array,
        ends_BS: tuple[jax.Array, jax.Array] | None = None,
        *,
        deterministic: bool,
    ) -> jax.Array:
        dropout = Dropout(self.config.dropout)
        x_BLF = dropout(jnp.asarray(features_BLF, jnp.float32), deterministic)
        for i in range(self.config.lstm_layers):
            states = [
                lstm(f"layer_{i}_{direction}", x_BLF, ids_BL, self.config.width)
                for direction in DIRECTIONS
            ]
            x_BLF = dropout(jnp.concatenate(states, axis=-1), deterministic)
        if ends_BS is not None:
            x_BLF = last_states(x_BLF, *ends_BS)
        return nn.Dense(self.outputs, name="classifier")(x_BLF)
