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


class _Kernel(nn.Module):
    """A kernel alone, under the name that a dense layer would give it."""

    shape: tuple[int, int]

    @nn.compact
    def __call__(self) -> jax.Array:
        init = nn.linear.default_kernel_init
        return self.param("kernel", init, self.shape, jnp.float32)


class _Recurrence(nn.Module):
    """What an LSTM does one position after the other; see :func:`_recurrence`.

    projection: the width of the output, 0 for ``width``.
    """

    width: int
    projection: int
    dtype: jnp.dtype
    backward: bool

    @nn.compact
    def __call__(self, gates_BLG: jax.Array, first_BL: jax.Array) -> jax.Array:
        state = (self.projection or self.width, 4 * self.width)
        kernels = [_Kernel(state, name="state")()]
        if self.projection:
            kernels.append(_Kernel((self.width, self.projection), name="project")())
        # Positions first: a scan goes along the first axis.
        gates_LBG, first_LB1 = gates_BLG.swapaxes(0, 1), first_BL.T[..., None]
        how = self.dtype, self.backward
        return _recurrence(gates_LBG, first_LB1, kernels, *how).swapaxes(0, 1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _recurrence(
    gates_LBG: jax.Array,
    first_LB1: jax.Array,
    kernels: list[jax.Array],
    dtype: jnp.dtype,
    backward: bool,
) -> jax.Array:
    """The outputs of an LSTM, float32 (L, B, P).

    gates_LBG: of each position its input times the kernel of inputs, with the biases, for
    the gates i, f, g, o; G = 4 H. first_LB1: where a sequence begins, with a state of
    zeros. kernels: of the state (P, G), and where outputs are projected (H, P). dtype: of
    the products; states are float32.

    Its gradient is written by hand because that of a scan adds to the kernels' gradients
    at each position. Here they are one product of all positions, which makes forward and
    backward together 1.3 to 1.5 times as fast on a CPU (docs/log.md).
    """
    return _recurrence_forward(gates_LBG, first_LB1, kernels, dtype, backward)[0]


def _product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jnp.dot(x.astype(kernel.dtype), kernel, preferred_element_type=jnp.float32)


def _recurrence_forward(gates_LBG, first_LB1, kernels, dtype, backward):
    state_PG, *project = (kernel.astype(dtype) for kernel in kernels)

    def step(carry, inputs):
        gates_BG, first_B1 = inputs
        c_BH, h_BP = (jnp.where(first_B1, 0.0, state) for state in carry)
        i, f, g, o = jnp.split(gates_BG + _product(h_BP, state_PG), 4, axis=-1)
        i, f, g, o = nn.sigmoid(i), nn.sigmoid(f), jnp.tanh(g), nn.sigmoid(o)
        new_c_BH = f * c_BH + i * g
        u_BH = o * jnp.tanh(new_c_BH)
        new_h_BP = _product(u_BH, *project) if project else u_BH
        gates_BG = jnp.concatenate([i, f, g, o], axis=-1).astype(dtype)
        kept = gates_BG, c_BH, new_c_BH, h_BP.astype(dtype)
        return (new_c_BH, new_h_BP), (new_h_BP, kept)

    B, H, P = gates_LBG.shape[1], gates_LBG.shape[2] // 4, len(state_PG)
    zeros = jnp.zeros((B, H)), jnp.zeros((B, P))
    inputs = gates_LBG, first_LB1
    _, (h_LBP, kept) = jax.lax.scan(step, zeros, inputs, reverse=backward)
    return h_LBP, (kept, first_LB1, state_PG, project)


def _recurrence_backward(dtype, backward, saved, dh_LBP):
    (gates_LBG, c_LBH, new_c_LBH, h_LBP), first_LB1, state_PG, project = saved
    state_GP, back = state_PG.T, [kernel.T for kernel in project]

    def step(carry, inputs):
        dc_BH, dh_BP = carry
        own_dh_BP, gates_BG, c_BH, new_c_BH, first_B1 = inputs
        dh_BP += own_dh_BP
        du_BH = _product(dh_BP, *back) if back else dh_BP
        i, f, g, o = jnp.split(gates_BG.astype(jnp.float32), 4, axis=-1)
        tanh_BH = jnp.tanh(new_c_BH)
        dc_BH += du_BH * o * (1 - tanh_BH**2)
        di, df, dg, do = dc_BH * g, dc_BH * c_BH, dc_BH * i, du_BH * tanh_BH
        # Of what the gates' functions read: sigmoid, sigmoid, tanh, sigmoid.
        parts = di * i * (1 - i), df * f * (1 - f), dg * (1 - g**2), do * o * (1 - o)
        dgates_BG = jnp.concatenate(parts, axis=-1)
        before = dc_BH * f, _product(dgates_BG, state_GP)
        before = tuple(jnp.where(first_B1, 0.0, state) for state in before)
        return before, (dgates_BG, dh_BP.astype(dtype))

    zeros = jnp.zeros_like(c_LBH[0]), jnp.zeros_like(dh_LBP[0])
    inputs = dh_LBP, gates_LBG, c_LBH, new_c_LBH, first_LB1
    _, outputs = jax.lax.scan(step, zeros, inputs, reverse=not backward)
    dgates_LBG, dh_LBP = outputs
    dkernels = [_kernel_gradient(h_LBP, dgates_LBG)]
    if project:
        o_LBH = jnp.split(gates_LBG, 4, axis=-1)[3]
        u_LBH = o_LBH.astype(jnp.float32) * jnp.tanh(new_c_LBH)
        dkernels.append(_kernel_gradient(u_LBH.astype(dtype), dh_LBP))
    return dgates_LBG, None, dkernels


_recurrence.defvjp(_recurrence_forward, _recurrence_backward)


def _kernel_gradient(x_LBI: jax.Array, dy_LBO: jax.Array) -> jax.Array:
    """float32 (I, O), summed over all positions."""
    axes = ((0, 1), (0, 1)), ((), ())
    return jax.lax.dot_general(
        x_LBI, dy_LBO.astype(x_LBI.dtype), axes, preferred_element_type=jnp.float32
    )


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

    def bias(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
        return jnp.zeros(shape, dtype).at[width : 2 * width].set(forget_bias)

    backward = name.endswith(DIRECTIONS[1])
    first_BL = jnp.ones_like(ids_BL[:, :1], bool)
    other_BL = ids_BL[:, 1:] != ids_BL[:, :-1]
    order = (other_BL, first_BL) if backward else (first_BL, other_BL)
    first_BL = jnp.concatenate(order, axis=1)
    # The inputs of all positions are one product.
    inputs = nn.Dense(4 * width, dtype=dtype, bias_init=bias, name=f"{name}_inputs")
    gates_BLG = inputs(x_BLF).astype(jnp.float32)
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
