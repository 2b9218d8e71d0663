"""The paper's feature-based approach: a BiLSTM tagger on a frozen encoder.

Paper, section 5.3: "we apply the feature-based approach by extracting the activations from
one or more layers without fine-tuning any parameters of BERT. These contextual embeddings
are used as input to a randomly initialized two-layer 768-dimensional BiLSTM before the
classification layer." Best there: the last four layers, concatenated.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.model.bert import BertModel
from bert_jax.model.config import BertConfig, ComputeConfig, FeatureConfig
from bert_jax.model.kernels.dropout import Dropout


class _Cell(nn.Module):
    """An LSTM cell that gets its inputs already multiplied, with biases: (B, 4 H).

    Flax's cells multiply the inputs at each position. Multiplying all positions at once
    is about twice as fast, forward and backward.
    """

    features: int
    num_feature_axes = 1  # of what nn.RNN gives a cell at a time

    @nn.compact
    def __call__(
        self, carry: tuple[jax.Array, jax.Array], inputs: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        c_BH, h_BH = carry
        gates = nn.Dense(4 * self.features, use_bias=False, name="state")
        i_BH, f_BH, g_BH, o_BH = jnp.split(inputs + gates(h_BH), 4, axis=-1)
        c_BH = nn.sigmoid(f_BH) * c_BH + nn.sigmoid(i_BH) * jnp.tanh(g_BH)
        h_BH = nn.sigmoid(o_BH) * jnp.tanh(c_BH)
        return (c_BH, h_BH), h_BH


class BiLstm(nn.Module):
    """Features of tokens to logits of ``outputs`` labels; float32 throughout.

    features_BLF: F features a token. attention_mask_BL: 1 for tokens, 0 for padding, which
    is at the end of a row. The backward direction begins at a row's last token, so
    padding changes no token's logits. Returns float32 (B, L, outputs). Needs a "dropout"
    rng unless ``deterministic``.
    """

    config: FeatureConfig
    outputs: int

    @nn.compact
    def __call__(
        self,
        features_BLF: jax.Array,
        attention_mask_BL: jax.Array,
        *,
        deterministic: bool,
    ) -> jax.Array:
        dropout = Dropout(self.config.dropout)
        lengths_B = jnp.sum(attention_mask_BL != 0, axis=1)
        x_BLF = dropout(jnp.asarray(features_BLF, jnp.float32), deterministic)
        H = self.config.width
        zeros_BH = jnp.zeros((len(x_BLF), H))
        for i in range(self.config.lstm_layers):
            outputs = []
            for direction in ("forward", "backward"):
                name = f"layer_{i}_{direction}"
                rnn = nn.RNN(
                    _Cell(H, name=name),
                    reverse=direction == "backward",
                    keep_order=True,
                )
                gates = nn.Dense(4 * H, name=f"{name}_inputs")(x_BLF)
                carry = zeros_BH, zeros_BH
                outputs.append(rnn(gates, initial_carry=carry, seq_lengths=lengths_B))
            x_BLF = dropout(jnp.concatenate(outputs, axis=-1), deterministic)
        return nn.Dense(self.outputs, name="classifier")(x_BLF)


class FeatureTagger(nn.Module):
    """Hidden states of a frozen encoder, concatenated, under a BiLSTM.

    The encoder has no dropout and gets no gradient, so its features may be computed once,
    with :meth:`features`, and be given to :meth:`tag` in each epoch.
    """

    config: BertConfig
    outputs: int
    feature_config: FeatureConfig
    compute: ComputeConfig = ComputeConfig()

    def setup(self):
        self.bert = BertModel(self.config, self.compute)
        self.bilstm = BiLstm(self.feature_config, self.outputs)

    @property
    def width(self) -> int:
        """F: features of a token."""
        return len(self.feature_config.layers) * self.config.hidden_size

    def __call__(self, *tokens_BL: jax.Array, deterministic: bool) -> jax.Array:
        """Logits (B, L, outputs) of tokens, which are given as to BertModel."""
        x_BLF = self.features(*tokens_BL)
        return self.tag(x_BLF, tokens_BL[2], deterministic=deterministic)

    def features(self, *tokens_BL: jax.Array, **packed: jax.Array) -> jax.Array:
        """float32 (B, L, width). See BertModel for the arguments."""
        encoded = self.bert(
            *tokens_BL, **packed, deterministic=True, pool=False, hidden_states=True
        )
        return jax.lax.stop_gradient(encoded.side_by_side(self.feature_config.layers))

    def tag(
        self,
        features_BLF: jax.Array,
        attention_mask_BL: jax.Array,
        *,
        deterministic: bool,
    ) -> jax.Array:
        """Logits (B, L, outputs) of what :meth:`features` gave."""
        return self.bilstm(features_BLF, attention_mask_BL, deterministic=deterministic)
