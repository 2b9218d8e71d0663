"""LSTMs (Hochreiter and Schmidhuber, 1997, with forget gates) on rows of sequences.

The two-way encoder of ELMo (Peters et al., 2018, sections 3.1 to 3.3), and the BiLSTM that
is put on an encoder.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.nn.initializers import Initializer

from bert_jax.model.config import BertConfig, ComputeConfig, FeatureConfig
from bert_jax.model.kernels.device import activation_dtype
from bert_jax.model.kernels.dropout import Dropout
from bert_jax.model.pooling import last_states

DIRECTIONS = ("forward", "backward")


class _Parameters(nn.Module):
    """The kernel of a dense layer and, with ``bias_init``, its bias."""

    shape: tuple[int, int]
    bias_init: Initializer | None = None

    @nn.compact
    def __call__(self) -> list[jax.Array]:
        init = nn.linear.default_kernel_init
        parameters = [self.param("kernel", init, self.shape, jnp.float32)]
        if self.bias_init is not None:
            parameters.append(self.param("bias", self.bias_init, self.shape[1:]))
        return parameters


class _Recurrence(nn.Module):
    """The steps of an LSTM from one position to the next.

    projection: the width of the output, 0 for ``width``. dtype: of the products; states
    are float32.
    """

    width: int
    projection: int
    dtype: jnp.dtype
    backward: bool

    @nn.compact
    def __call__(self, gates_BLG: jax.Array, first_BL: jax.Array) -> jax.Array:
        """The outputs, float32 (B, L, P).

        gates_BLG: for each position its input times the kernel of inputs, with the biases,
          for the gates i, f, g, o; G = 4 H.
        first_BL: True where a sequence starts, with a state of zeros.
        """
        H, P = self.width, self.projection or self.width
        state_PG, *project = _Parameters((P, 4 * H), name="state")()
        if self.projection:
            project = _Parameters((H, P), name="project")()

        def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
            # The cast is within the scan, so that it adds up gradients in float32.
            kernel = kernel.astype(self.dtype)
            x = x.astype(self.dtype)
            return jnp.dot(x, kernel, preferred_element_type=jnp.float32)

        def step(carry, inputs):
            gates_BG, first_B1 = inputs
            c_BH, h_BP = (jnp.where(first_B1, 0.0, state) for state in carry)
            i, f, g, o = jnp.split(gates_BG + product(h_BP, state_PG), 4, axis=-1)
            c_BH = nn.sigmoid(f) * c_BH + nn.sigmoid(i) * jnp.tanh(g)
            h_BP = nn.sigmoid(o) * jnp.tanh(c_BH)
            if self.projection:
                h_BP = product(h_BP, *project)
            return (c_BH, h_BP), h_BP

        B = len(gates_BLG)
        # Positions first: a scan goes along the first axis.
        inputs = gates_BLG.swapaxes(0, 1), first_BL.T[..., None]
        zeros = jnp.zeros((B, H)), jnp.zeros((B, P))
        _, h_LBP = jax.lax.scan(step, zeros, inputs, reverse=self.backward)
        return h_LBP.swapaxes(0, 1)


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
    which sequence a token belongs to; each begins with a state of zeros. projection: the
    width of the output, 0 for ``width``. dtype: of the products; states are float32.
    forget_bias: with which the forget gates begin.
    """

    def bias(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        del key
        return jnp.zeros(shape).at[width : 2 * width].set(forget_bias)

    backward = name.endswith(DIRECTIONS[1])
    first_BL = jnp.ones_like(ids_BL[:, :1], bool)
    other_BL = ids_BL[:, 1:] != ids_BL[:, :-1]
    order = (other_BL, first_BL) if backward else (first_BL, other_BL)
    first_BL = jnp.concatenate(order, axis=1)
    # The inputs of all positions are one product.
    shape = (x_BLF.shape[-1], 4 * width)
    kernel_FG, bias_G = _Parameters(shape, bias, name=f"{name}_inputs")()
    gates_BLG = jnp.dot(x_BLF.astype(dtype), kernel_FG.astype(dtype))
    # In float32, so that the bias's gradient is a float32 sum over all positions.
    gates_BLG = gates_BLG.astype(jnp.float32) + bias_G[None, None]
    recurrence = _Recurrence(width, projection, dtype, backward, name=name)
    return recurrence(gates_BLG, first_BL)


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
