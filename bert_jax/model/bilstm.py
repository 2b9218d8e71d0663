"""LSTMs (Hochreiter and Schmidhuber, 1997, with forget gates), and a BiLSTM as a head.

A row may pack several sequences. An LSTM starts again at the first token of each sequence
that it reads, so the sequences of a row do not depend on each other.
"""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.model.bert import BertModel
from bert_jax.model.config import BertConfig, ComputeConfig, FeatureConfig
from bert_jax.model.heads import side_by_side
from bert_jax.model.layers import Dropout
from bert_jax.model.tokens import Tokens, take_positions

FORWARD, BACKWARD = "forward", "backward"
DIRECTIONS = (FORWARD, BACKWARD)

# Products with float32 sums and results, even for bfloat16 inputs.
_Dense = functools.partial(
    nn.Dense,
    dot_general=functools.partial(
        jax.lax.dot_general, preferred_element_type=jnp.float32
    ),
)


class Cell(nn.Module):
    """One step of an LSTM, for nn.scan. Projects the output if ``projection`` > 0.

    ``dtype`` is the dtype of the products. States are float32.
    """

    width: int
    projection: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(
        self,
        carry: tuple[jax.Array, jax.Array],
        gates_BG: jax.Array,
        first_B: jax.Array,
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        """Returns the state and output after a token, and the output again.

        carry: state and output before the token. gates_BG: the input, multiplied by the
        kernel of the gates i, f, g and o. first_B: whether the token is the first one of a
        sequence, at which the state is reset to 0.
        """
        dense = functools.partial(_Dense, use_bias=False, dtype=self.dtype)
        c_BH, h_BP = (jnp.where(first_B[:, None], 0.0, x) for x in carry)
        gates_BG += dense(4 * self.width, name="state")(h_BP)
        i, f, g, o = jnp.split(gates_BG, 4, axis=-1)
        c_BH = nn.sigmoid(f) * c_BH + nn.sigmoid(i) * jnp.tanh(g)
        h_BP = nn.sigmoid(o) * jnp.tanh(c_BH)
        if self.projection:
            h_BP = dense(self.projection, name="project")(h_BP)
        return (c_BH, h_BP), h_BP


def lstm(
    name: str,
    x_BLF: jax.Array,
    segment_ids_BL: jax.Array,
    width: int,
    projection: int = 0,
    *,
    reverse: bool,
    dtype: jnp.dtype = jnp.float32,
    forget_bias: float = 0.0,
) -> jax.Array:
    """One direction of one layer, in a compact method: float32 (B, L, projection or width).

    name: name of the parameters. segment_ids_BL: see Tokens. projection: width of the
    output; 0: ``width``. reverse: whether the LSTM reads from right to left. dtype: dtype
    of the products. forget_bias: initial bias of the forget gates.
    """

    def bias_init(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype):
        del key
        return jnp.zeros(shape, dtype).at[width : 2 * width].set(forget_bias)

    inputs = _Dense(4 * width, dtype=dtype, bias_init=bias_init, name=f"{name}_inputs")
    changes_BL = segment_ids_BL[:, 1:] != segment_ids_BL[:, :-1]
    ends = ((0, 0), (0, 1)) if reverse else ((0, 0), (1, 0))
    first_BL = jnp.pad(changes_BL, ends, constant_values=True)
    steps = nn.scan(
        Cell,
        variable_broadcast="params",
        split_rngs={"params": False},
        in_axes=1,
        out_axes=1,
        reverse=reverse,
    )
    rows = len(x_BLF)
    zeros = jnp.zeros((rows, width)), jnp.zeros((rows, projection or width))
    cell = steps(width, projection, dtype, name=name)
    return cell(zeros, inputs(x_BLF), first_BL)[1]


def last_states(x_BLF: jax.Array, tokens: Tokens) -> jax.Array:
    """The states of both LSTMs at the end of each sequence: (B, S, F).

    The end is the last token for the forward LSTM and the first for the backward LSTM.
    x_BLF: states of the forward LSTM, then states of the backward LSTM.
    """
    forward, backward = jnp.split(x_BLF, 2, axis=-1)
    ends = (
        take_positions(forward, tokens.lasts),
        take_positions(backward, tokens.starts),
    )
    return jnp.concatenate(ends, axis=-1)


class BiLstm(nn.Module):
    """Logits of ``outputs`` labels from features of tokens, all float32.

    by_token: whether each token has logits, (B, L, outputs). Otherwise each sequence has
    logits, (B, S, outputs), from the last state of each direction.
    """

    config: FeatureConfig
    outputs: int
    by_token: bool = True
    dropout_impl: str = "auto"

    @nn.compact
    def __call__(
        self, features_BLF: jax.Array, tokens: Tokens, *, deterministic: bool
    ) -> jax.Array:
        dropout = Dropout(self.config.dropout, self.dropout_impl)
        x_BLF = dropout(jnp.asarray(features_BLF, jnp.float32), deterministic)
        for i in range(self.config.lstm_layers):
            name, width = f"layer_{i}", self.config.width
            states = [
                lstm(
                    f"{name}_{direction}",
                    x_BLF,
                    tokens.segment_ids,
                    width,
                    reverse=direction == BACKWARD,
                )
                for direction in DIRECTIONS
            ]
            x_BLF = dropout(jnp.concatenate(states, axis=-1), deterministic)
        if not self.by_token:
            x_BLF = last_states(x_BLF, tokens)
        return nn.Dense(self.outputs, name="classifier")(x_BLF)


class BertWithBiLstm(nn.Module):
    """A BiLSTM on the encoder with a dense layer, instead of any other head.

    With feature_config.layers it reads hidden states of a frozen encoder (paper, section
    5.3: the last four layers of BASE are best). A frozen encoder has no dropout and no
    gradient, so :meth:`features` can be computed once for :meth:`tag` in all epochs.
    Without feature_config.layers the encoder is fine-tuned as well (table 5).

    by_token: whether each token has logits, or each sequence; see BiLstm. encoder: class of
    the encoder; see heads.py.
    """

    config: BertConfig
    outputs: int
    feature_config: FeatureConfig
    compute: ComputeConfig = ComputeConfig()
    by_token: bool = True
    encoder: type[nn.Module] = BertModel

    def setup(self):
        self.bert = self.encoder(self.config, self.compute)
        self.bilstm = BiLstm(
            self.feature_config,
            self.outputs,
            self.by_token,
            self.compute.dropout_impl,
        )

    @property
    def width(self) -> int:
        """F: features of a token."""
        return max(len(self.feature_config.layers), 1) * self.encoder.width(self.config)

    def __call__(self, tokens: Tokens, *, deterministic: bool) -> jax.Array:
        """float32 logits, (B, L, outputs) or (B, S, outputs)."""
        if self.feature_config.layers:
            x_BLF = self.features(tokens)
        else:
            encoded = self.bert.encode(tokens, deterministic=deterministic, pool=False)
            x_BLF = encoded.sequence_BLD
        return self.tag(x_BLF, tokens, deterministic=deterministic)

    def features(self, tokens: Tokens) -> jax.Array:
        """float32 (B, L, width) of the frozen encoder."""
        encoded = self.bert.encode(
            tokens, deterministic=True, pool=False, hidden_states=True
        )
        layers = self.feature_config.layers
        return jax.lax.stop_gradient(side_by_side(encoded.hidden_states, layers))

    def tag(
        self, features_BLF: jax.Array, tokens: Tokens, *, deterministic: bool
    ) -> jax.Array:
        """Logits from the output of :meth:`features`."""
        return self.bilstm(features_BLF, tokens, deterministic=deterministic)
