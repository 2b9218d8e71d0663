"""BertModel, and BertForPreTraining with its two heads."""

from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.encoder import Encoder, take_positions
from bert_jax.model.kernels.dropout import Dropout
from bert_jax.model.layers import Dense, Embed, activation, layer_norm

PADDING_LOGIT = -1e9  # of the rows of the word table beyond the vocabulary


@flax.struct.dataclass
class EncoderOutput:
    """What BertModel returns, in the dtype of the activations.

    sequence_BLD: the last layer; (B, Q, D) where positions_BQ is given.
    pooled_BD: tanh of a dense layer on [CLS], or on the last token of a causal model,
      which alone has seen all others; (B, S, D) of packed rows; None without pool.
    hidden_states: the embeddings and the output of each layer; empty unless asked for.
    """

    sequence_BLD: jax.Array
    pooled_BD: jax.Array | None
    hidden_states: list[jax.Array]

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


class Embeddings(nn.Module):
    """Word + token type + learned position embeddings, LayerNorm, dropout."""

    config: BertConfig
    compute: ComputeConfig

    def setup(self):
        config, compute = self.config, self.compute
        self.word = Embed(config, compute, config.vocab_size, config.word_rows)
        self.position = Embed(config, compute, config.max_positions)
        self.segment = Embed(config, compute, config.type_vocab_size)
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
        """positions_BL: of each token in its own sequence; (1, L) where rows agree."""
        x_BLD = self.word(input_ids_BL) + self.segment(token_type_ids_BL)
        x_BLD = self.norm(x_BLD + self.position(positions_BL))
        return self.dropout(x_BLD, deterministic)


class BertModel(nn.Module):
    """The encoder: embeddings, layers, pooler (modeling.py, BertModel)."""

    config: BertConfig
    compute: ComputeConfig = ComputeConfig()

    def setup(self):
        config, compute = self.config, self.compute
        self.embeddings = Embeddings(config, compute)
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
          each sequence starts. A packed sequence is encoded as if it were alone.
        positions_BQ: return the last layer at these positions only. The last layer is
          then computed only there and at each token that is pooled.
        pool: whether to compute pooled_BD. Parameters initialised with pool=False have
          no pooler.
        hidden_states: whether to return the output of every layer.
        """
        pooled_BS = starts_BS
        if segment_ids_BL is None:
            pooled_BS = jnp.zeros_like(input_ids_BL[:, :1])
        S = pooled_BS.shape[1]
        if self.config.causal:
            ids_BL = attention_mask_BL if segment_ids_BL is None else segment_ids_BL
            own_BSL = ids_BL[:, None] == jnp.arange(1, S + 1)[None, :, None]
            pooled_BS += jnp.maximum(jnp.sum(own_BSL, axis=-1) - 1, 0)
        if positions_BQ is not None:
            positions_BQ = jnp.concatenate([pooled_BS, positions_BQ], axis=1)
        x_BLD = self.embed(
            input_ids_BL,
            token_type_ids_BL,
            deterministic=deterministic,
            segment_ids_BL=segment_ids_BL,
            starts_BS=starts_BS,
        )
        x_BLD, states = self.encoder(
            x_BLD,
            attention_mask_BL,
            segment_ids_BL,
            positions_BQ,
            deterministic=deterministic,
            hidden_states=hidden_states,
        )
        if positions_BQ is None:
            pooled_BSD = take_positions(x_BLD, pooled_BS)
        else:
            pooled_BSD, x_BLD = x_BLD[:, :S], x_BLD[:, S:]
        pooled_BD = None
        if pool:
            pooled_BD = jnp.tanh(self.pooler(pooled_BSD))
            if segment_ids_BL is None:
                pooled_BD = pooled_BD[:, 0]
        return EncoderOutput(x_BLD, pooled_BD, states)

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
        x_BMD = Dense(config, compute, (config.hidden_size,), name="transform")(x_BMD)
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

        Class 0 of nsp_logits_B2 is IsNext. See BertModel for the other arguments.
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
            mlm_logits_BMW=self.mlm(encoded.sequence_BLD, self.bert.embeddings.word),
            nsp_logits_B2=self.nsp(encoded.pooled_BD).astype(jnp.float32),
            vocab_size=self.config.vocab_size,
        )
