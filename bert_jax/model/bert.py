"""BertModel, and BertForPreTraining with its two heads."""

import functools
from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.encoder import Encoder, take_positions
from bert_jax.model.kernels.device import activation_dtype
from bert_jax.model.kernels.dropout import Dropout
from bert_jax.model.layers import Dense, Embed, activation, layer_norm, split
from bert_jax.model.lstm import LayerMix, TwoWayLstm, check_one_sequence
from bert_jax.model.pooling import mean_tokens, sequence_ends

# Vaswani et al. scale word vectors to the size of the sinusoids; here the sinusoids have
# that of new word vectors.
SINUSOID_SCALE = 0.02
PADDING_LOGIT = -1e9  # of the rows of the word table beyond the vocabulary


@flax.struct.dataclass
class EncoderOutput:
    """The output of BertModel, in the dtype of the activations.

    sequence_BLD: the last layer; the weighted mean of all layers of an LSTM, (B, L, 2 D).
      With positions_BQ it is (B, Q, D).
    pooled_BD: tanh of a dense layer on [CLS], or on the last token of a causal model,
      which alone has seen all others, or on what config.pooling says; (B, S, D) of packed
      rows; None without pool.
    hidden_states: the embeddings and the output of each layer; empty by default.
    sides: vectors (B, Q, D) from which the MLM head predicts the token at each position.
      A Transformer has one. A two-way LSTM has the state before and the state after.
    """

    sequence_BLD: jax.Array
    pooled_BD: jax.Array | None
    hidden_states: list[jax.Array]
    sides: list[jax.Array]

    def side_by_side(self, layers: Sequence[int]) -> jax.Array:
        """The hidden states of some layers concatenated, float32 (B, L, W)."""
        states_BLD = [self.hidden_states[i].astype(jnp.float32) for i in layers]
        return jnp.concatenate(states_BLD, axis=-1)


@flax.struct.dataclass
class PreTrainingOutput:
    """float32 logits of the masked tokens, and of IsNext and NotNext.

    mlm_logits_BMW: one for each row of the word table. The rows that pad the vocabulary
      have PADDING_LOGIT, so their probability is 0. A loss takes the logits with this
      padding, because cutting it off is a copy.
    nsp_logits_B2: (B, S, 2) of packed rows.
    """

    mlm_logits_BMW: jax.Array
    nsp_logits_B2: jax.Array
    vocab_size: int = flax.struct.field(pytree_node=False)

    @property
    def mlm_logits_BMV(self) -> jax.Array:
        """The logits of the vocabulary alone."""
        return self.mlm_logits_BMW[..., : self.vocab_size]


def sinusoids(config: BertConfig) -> np.ndarray:
    """float32 (positions, D): sin(p / 10000^(2i/D)), cos of the same, alternating."""
    D = config.hidden_size
    rates = 10_000.0 ** (-np.arange(0, D, 2) / D)
    angles = np.arange(config.max_positions)[:, None] * rates
    table = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    return np.float32(SINUSOID_SCALE * table.reshape(len(angles), -1)[:, :D])


class Embeddings(nn.Module):
    """Word + token type + position embeddings, LayerNorm, dropout."""

    config: BertConfig
    compute: ComputeConfig

    def setup(self):
        config, compute = self.config, self.compute
        self.word = Embed(config, compute, config.vocab_size, config.word_rows)
        if config.positions == "learned":
            self.position = Embed(config, compute, config.max_positions)
        self.segment = Embed(config, compute, config.type_vocab_size)
        if not config.pre_norm:
            self.norm = layer_norm(config, compute)
        self.dropout = Dropout(config.hidden_dropout)

    def __call__(
        self,
        input_ids_BL: jax.Array,
        token_type_ids_BL: jax.Array,
        positions_BL: jax.Array,
        *,
        deterministic: bool,
    ) -> jax.Array:
        """The sum of the three vectors, normalised: (B, L, D) in the compute dtype.

        positions_BL: the place of each token in its own sequence; (1, L) if all rows
          have the same places.
        """
        x_BLD = self.word(input_ids_BL) + self.segment(token_type_ids_BL)
        if self.config.positions == "learned":
            x_BLD += self.position(positions_BL)
        elif self.config.positions == "sinusoidal":
            x_BLD += jnp.take(sinusoids(self.config), positions_BL, axis=0)
        # The sum is cast only here, so that its gradient reaches the tables in float32.
        x_BLD = x_BLD.astype(activation_dtype(self.compute.dtype))
        if not self.config.pre_norm:
            x_BLD = self.norm(x_BLD)
        return self.dropout(x_BLD, deterministic)


class BertModel(nn.Module):
    """The encoder: embeddings, layers, pooler (modeling.py, BertModel)."""

    config: BertConfig
    compute: ComputeConfig = ComputeConfig()

    def setup(self):
        config, compute = self.config, self.compute
        self.embeddings = Embeddings(config, compute)
        if config.encoder == "lstm":
            self.mix = LayerMix()
            self.encoder = TwoWayLstm(config, compute, self.mix)
        else:
            self.encoder = Encoder(config, compute)
        self.pooler = Dense(config, compute, (config.hidden_size,))

    def __call__(
        self,
        input_ids_BL: jax.Array,
        token_type_ids_BL: jax.Array,
        attention_mask_BL: jax.Array,
        *,
        deterministic: bool,
        segment_ids_BL: jax.Array | None = None,
        starts_BS: jax.Array | None = None,
        positions_BQ: jax.Array | None = None,
        pool: bool = True,
        hidden_states: bool = False,
    ) -> EncoderOutput:
        """Encodes the tokens whose attention_mask_BL is 1; 0 is padding.

        deterministic: no dropout. Otherwise the "dropout" rng is needed.
        segment_ids_BL, starts_BS: for packed rows of up to S sequences. segment_ids_BL is
          the sequence that a token belongs to, from 1 (0 is padding); starts_BS is where
          each sequence starts. A packed sequence is encoded as if it were alone. LSTMs
          read one sequence a row, with its padding on the right.
        positions_BQ: return the last layer at these positions only. The last layer is
          then computed only there and at each token that is pooled.
        pool: whether to compute pooled_BD. Parameters initialised with pool=False have
          no pooler.
        hidden_states: whether to return the output of every layer.
        """
        config = self.config
        if not config.kind.attends:
            check_one_sequence(starts_BS)
        ends_BS = sequence_ends(attention_mask_BL, segment_ids_BL, starts_BS)
        pooled_BS = ends_BS[int(config.causal)]  # a causal model's last token saw all
        read_BQ = None  # where the last layer is computed; all positions
        pools_one = config.pooling == "token" and config.kind.attends
        if positions_BQ is not None and pools_one:
            read_BQ = jnp.concatenate([pooled_BS, positions_BQ], axis=1)
        x_BLD = self.embed(
            input_ids_BL,
            token_type_ids_BL,
            deterministic=deterministic,
            segment_ids_BL=segment_ids_BL,
            starts_BS=starts_BS,
        )
        ids_BL = attention_mask_BL if segment_ids_BL is None else segment_ids_BL
        x_BLD, states = self.encoder(
            x_BLD,
            attention_mask_BL,
            segment_ids_BL,
            read_BQ,
            deterministic=deterministic,
            hidden_states=hidden_states,
        )
        if read_BQ is None:
            pooled_BSD = self._pooled(x_BLD, ids_BL, ends_BS)
            x_BLD = take_positions(x_BLD, positions_BQ)
        else:
            pooled_BSD, x_BLD = jnp.split(x_BLD, [pooled_BS.shape[1]], axis=1)
        sides = self.encoder.sides(x_BLD, states, positions_BQ)
        pooled_BD = None
        if pool:
            pooled_BD = split(self.pooler(split(pooled_BSD, "BSD")), "BSD")
            pooled_BD = jnp.tanh(pooled_BD)
            if segment_ids_BL is None:
                pooled_BD = pooled_BD[:, 0]
        states = states if hidden_states else []
        return EncoderOutput(x_BLD, pooled_BD, states, sides)

    def _pooled(
        self, x_BLD: jax.Array, ids_BL: jax.Array, ends_BS: tuple[jax.Array, jax.Array]
    ) -> jax.Array:
        """The input of the pooler, a vector of each sequence, (B, S, D)."""
        if self.config.pooling == "mean":
            S = ends_BS[0].shape[1]
            return mean_tokens(x_BLD, ids_BL, S).astype(x_BLD.dtype)
        return self.encoder.ends(x_BLD, ends_BS)

    def embed(
        self,
        input_ids_BL: jax.Array,
        token_type_ids_BL: jax.Array,
        *,
        deterministic: bool,
        segment_ids_BL: jax.Array | None = None,
        starts_BS: jax.Array | None = None,
    ) -> jax.Array:
        """What the encoder's first layer reads, (B, L, D); see ``__call__``."""
        positions_BL = jnp.arange(input_ids_BL.shape[1])[None]
        if segment_ids_BL is not None:  # from where each sequence starts
            own_BL = jnp.maximum(segment_ids_BL - 1, 0)
            positions_BL -= jnp.take_along_axis(starts_BS, own_BL, axis=1)
        return self.embeddings(
            input_ids_BL, token_type_ids_BL, positions_BL, deterministic=deterministic
        )


class MlmHead(nn.Module):
    """Dense, activation and LayerNorm; then the word table, transposed, and a bias."""

    config: BertConfig
    compute: ComputeConfig

    @nn.compact
    def __call__(self, x_BMD: jax.Array, words: Embed) -> jax.Array:
        config, compute = self.config, self.compute
        transform = Dense(config, compute, (config.hidden_size,), name="transform")
        x_BMD = split(transform(split(x_BMD, "BMD")), "BMD")
        x_BMD = layer_norm(config, compute, "norm")(activation(config)(x_BMD))
        bias_V = self.param("output_bias", nn.initializers.zeros, (config.vocab_size,))
        padding = config.word_rows - config.vocab_size
        bias_W = jnp.pad(bias_V, (0, padding), constant_values=PADDING_LOGIT)
        return words.attend(x_BMD) + bias_W[None, None, :]


class BertForPreTraining(nn.Module):
    """BERT with the MLM and the NSP head (run_pretraining.py)."""

    config: BertConfig
    compute: ComputeConfig = ComputeConfig()

    def setup(self):
        self.bert = BertModel(self.config, self.compute)
        self.mlm = MlmHead(self.config, self.compute)
        self.nsp = Dense(self.config, self.compute, (2,))

    def __call__(
        self,
        input_ids_BL: jax.Array,
        token_type_ids_BL: jax.Array,
        attention_mask_BL: jax.Array,
        mlm_positions_BM: jax.Array,
        *,
        deterministic: bool,
        segment_ids_BL: jax.Array | None = None,
        starts_BS: jax.Array | None = None,
    ) -> PreTrainingOutput:
        """Logits at ``mlm_positions_BM``, which index L, and of the sentence pair.

        Class 0 of nsp_logits_B2 is IsNext. See BertModel for the other arguments. A
        two-way LSTM adds the logits of its directions.
        """
        encoded = self.bert(
            input_ids_BL,
            token_type_ids_BL,
            attention_mask_BL,
            deterministic=deterministic,
            segment_ids_BL=segment_ids_BL,
            starts_BS=starts_BS,
            positions_BQ=mlm_positions_BM,
        )
        return PreTrainingOutput(
            mlm_logits_BMW=sum(self._logits(encoded)),
            nsp_logits_B2=self.nsp(encoded.pooled_BD).astype(jnp.float32),
            vocab_size=self.config.vocab_size,
        )

    def lm_logits(
        self,
        *tokens_BL: jax.Array,
        positions_BQ: jax.Array,
        deterministic: bool,
        **packed: jax.Array,
    ) -> list[jax.Array]:
        """float32 logits (B, Q, W) of the tokens at some positions, from the tokens before.

        A two-way LSTM has a second array: the logits from the tokens after. The logits of a
        sequence's first token, or last token in the second array, mean nothing.
        """
        before_BQ = jnp.maximum(positions_BQ - int(self.config.causal), 0)
        encoded = self.bert(
            *tokens_BL,
            **packed,
            positions_BQ=before_BQ,
            deterministic=deterministic,
            pool=False,
        )
        return self._logits(encoded)

    def _logits(self, encoded: EncoderOutput) -> list[jax.Array]:
        return [self.mlm(x_BQD, self.bert.embeddings.word) for x_BQD in encoded.sides]


def parameter_count(config: BertConfig, heads: bool = True) -> int:
    """Parameters of BertForPreTraining, or of BertModel if not ``heads``.

    The rows that pad the word table are not counted.
    """
    ids_BL = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    model = BertForPreTraining if heads else BertModel
    init = model(config, ComputeConfig(scan_layers=True)).init
    inputs = [ids_BL] * (4 if heads else 3)
    init = functools.partial(init, deterministic=True)
    shapes = jax.eval_shape(init, jax.random.key(0), *inputs)
    padding = (config.word_rows - config.vocab_size) * config.hidden_size
    return sum(leaf.size for leaf in jax.tree.leaves(shapes)) - padding
