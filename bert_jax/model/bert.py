"""BertModel, and BertForPreTraining with its two heads."""

import flax.struct
import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.encoder import Encoder, take_positions
from bert_jax.model.kernels.dropout import Dropout
from bert_jax.model.kernels.products import product
from bert_jax.model.layers import (
    Dense,
    activation,
    embedding,
    for_product,
    layer_norm,
)

PADDING_LOGIT = -1e9  # of the word table's rows beyond the vocabulary


@flax.struct.dataclass
class EncoderOutput:
    """What BertModel gives, in the dtype of the activations.

    sequence_BLD: the last layer; with positions given, at those alone.
    pooled_BD: tanh of a dense layer on [CLS], or None; (B, S, D) of packed rows.
    hidden_states: of the embeddings and of each layer, (B, L, D); empty unless asked for.
    """

    sequence_BLD: jax.Array
    pooled_BD: jax.Array | None
    hidden_states: list[jax.Array]


@flax.struct.dataclass
class PreTrainingOutput:
    """float32 logits: of the tokens at the masked positions, of IsNext / NotNext.

    mlm_logits_BMW: of the word table's rows. The rows that pad the vocabulary have
    PADDING_LOGIT, which the softmax makes 0. A loss takes the logits with this padding,
    because cutting it off is a copy. nsp_logits_B2: (B, S, 2) of packed rows.
    """

    mlm_logits_BMW: jax.Array
    nsp_logits_B2: jax.Array
    vocab_size: int = flax.struct.field(pytree_node=False)

    @property
    def mlm_logits_BMV(self) -> jax.Array:
        """Of the tokens of the vocabulary alone."""
        return self.mlm_logits_BMW[..., : self.vocab_size]


class Embeddings(nn.Module):
    """Word + token type + learned position embeddings, LayerNorm, dropout."""

    config: BertConfig
    compute: ComputeConfig

    def setup(self):
        config, compute = self.config, self.compute
        self.word = embedding(config, compute, config.word_rows, config.vocab_size)
        self.position = embedding(config, compute, config.max_positions)
        self.segment = embedding(config, compute, config.type_vocab_size)
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
        """positions_BL, or (1, L): where a token is in its own sequence."""
        words_BLD, types_BLD, positions_BLD = (
            table(ids).astype(self.compute.dtype)
            for table, ids in (
                (self.word, input_ids_BL),
                (self.segment, token_type_ids_BL),
                (self.position, positions_BL),
            )
        )
        x_BLD = self.norm(words_BLD + types_BLD + positions_BLD)
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
        pool: bool = True,
        positions_BQ: jax.Array | None = None,
        segment_ids_BL: jax.Array | None = None,
        starts_BS: jax.Array | None = None,
        hidden_states: bool = False,
    ) -> EncoderOutput:
        """Encodes the tokens whose attention_mask_BL is 1; 0 is padding.

        deterministic: no dropout; else the "dropout" rng is needed. pool: whether to
          compute pooled_BD; parameters initialised without it hold no pooler.
        positions_BQ: compute the last layer at these positions alone. The pooler then
          expects [CLS] first: position 0, or the S starts of a packed row.
        segment_ids_BL, starts_BS: for rows that pack up to S sequences, each of which is
          encoded as if it were alone: which sequence a token belongs to, from 1 (0 is
          padding), and where each sequence begins.
        hidden_states: whether to return the output of each layer.
        """
        positions_BL = jnp.arange(input_ids_BL.shape[1])[None]
        if segment_ids_BL is not None:
            own_BL = jnp.maximum(segment_ids_BL - 1, 0)
            positions_BL -= jnp.take_along_axis(starts_BS, own_BL, axis=1)
        x_BLD = self.embeddings(
            input_ids_BL, token_type_ids_BL, positions_BL, deterministic=deterministic
        )
        y_BLD, states = self.encoder(
            x_BLD,
            attention_mask_BL,
            segment_ids_BL,
            positions_BQ,
            deterministic=deterministic,
            hidden_states=hidden_states,
        )
        return EncoderOutput(
            sequence_BLD=y_BLD,
            pooled_BD=(self._pooled(y_BLD, positions_BQ, starts_BS) if pool else None),
            hidden_states=[x_BLD, *states] if hidden_states else [],
        )

    def _pooled(
        self,
        x_BLD: jax.Array,
        positions_BQ: jax.Array | None,
        starts_BS: jax.Array | None,
    ) -> jax.Array:
        if starts_BS is None:
            cls = x_BLD[:, 0]
        elif positions_BQ is None:
            cls = take_positions(x_BLD, starts_BS)
        else:
            cls = x_BLD[:, : starts_BS.shape[1]]
        return jnp.tanh(self.pooler(cls))

    def attend_to_words(self, x_BMD: jax.Array) -> jax.Array:
        """Products with the word table, the MLM head's tied weights: (B, M, W)."""
        table_WD = for_product(self.embeddings.word.embedding, self.compute)
        return product(x_BMD, table_WD, ((2,), (1,)), jnp.float32)


class MlmHead(nn.Module):
    """Dense, activation and LayerNorm before the word table, a bias after it."""

    config: BertConfig
    compute: ComputeConfig

    @nn.compact
    def __call__(self, x_BMD: jax.Array, bert: BertModel) -> jax.Array:
        config, compute = self.config, self.compute
        x_BMD = Dense(config, compute, (config.hidden_size,), name="transform")(x_BMD)
        x_BMD = layer_norm(config, compute, "norm")(activation(config)(x_BMD))
        bias_V = self.param("output_bias", nn.initializers.zeros, (config.vocab_size,))
        padding = config.word_rows - config.vocab_size
        bias_W = jnp.pad(bias_V, (0, padding), constant_values=PADDING_LOGIT)
        return bert.attend_to_words(x_BMD) + bias_W[None, None, :]


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
        """Logits at ``mlm_positions_BM`` (indices into L) and for the sentence pair.

        Class 0 of nsp_logits_B2 is IsNext. segment_ids_BL, starts_BS: for packed rows,
        see BertModel. The last layer computes [CLS] and the masked positions alone,
        since the heads read no others.
        """
        cls_BS = starts_BS
        if cls_BS is None:
            cls_BS = jnp.zeros_like(mlm_positions_BM[:, :1])
        encoded = self.bert(
            input_ids_BL,
            token_type_ids_BL,
            attention_mask_BL,
            deterministic=deterministic,
            positions_BQ=jnp.concatenate([cls_BS, mlm_positions_BM], axis=1),
            segment_ids_BL=segment_ids_BL,
            starts_BS=starts_BS,
        )
        mlm_BMD = encoded.sequence_BLD[:, cls_BS.shape[1] :]
        return PreTrainingOutput(
            mlm_logits_BMW=self.mlm(mlm_BMD, self.bert),
            nsp_logits_B2=self.nsp(encoded.pooled_BD).astype(jnp.float32),
            vocab_size=self.config.vocab_size,
        )
