"""BertModel, and BertForPreTraining with its two heads."""

import flax.struct
import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.encoder import Encoder
from bert_jax.model.kernels.dropout import Dropout
from bert_jax.model.kernels.products import product
from bert_jax.model.layers import (
    activation,
    dense,
    first_rows,
    kernel_init,
    layer_norm,
)

NO_TOKEN = -1e9  # the logit of a row of the word table beyond the vocabulary


@flax.struct.dataclass
class EncoderOutput:
    """sequence_BLD: the last layer; with positions given, at those alone.

    pooled_BD: tanh of a dense layer on [CLS], or None; (B, S, D) of packed rows.
    """

    sequence_BLD: jax.Array
    pooled_BD: jax.Array | None


@flax.struct.dataclass
class PreTrainingOutput:
    """float32 logits: of the tokens at the masked positions, of IsNext / NotNext.

    mlm_logits_BMW: of the word table's rows; those that are no token have NO_TOKEN, which
    softmax makes 0. A loss takes them as they are, for cutting them off is a copy.
    """

    mlm_logits_BMW: jax.Array
    nsp_logits_B2: jax.Array
    vocab_size: int = flax.struct.field(pytree_node=False)

    @property
    def mlm_logits_BMV(self) -> jax.Array:
        """Of the tokens alone."""
        return self.mlm_logits_BMW[..., : self.vocab_size]


class Embeddings(nn.Module):
    """Word + segment + learned position embeddings, LayerNorm, dropout."""

    config: BertConfig
    compute: ComputeConfig = ComputeConfig()

    def setup(self):
        config = self.config

        def table(rows: int, used: int | None = None) -> nn.Embed:
            return nn.Embed(
                rows,
                config.hidden_size,
                dtype=jnp.dtype(self.compute.dtype),
                embedding_init=first_rows(kernel_init(config), used or rows),
            )

        self.word = table(config.word_rows, config.vocab_size)
        self.position = table(config.max_positions)
        self.segment = table(config.type_vocab_size)
        self.norm = layer_norm(config, self.compute, None)
        self.dropout = Dropout(config.hidden_dropout)

    def __call__(
        self,
        input_ids_BL: jax.Array,
        token_type_ids_BL: jax.Array,
        starts_BL: jax.Array | None,
        deterministic: bool,
    ) -> jax.Array:
        """starts_BL: where the sequence begins that a token is of; None: at 0."""
        positions_1L = jnp.arange(input_ids_BL.shape[1])[None]
        positions_BL = positions_1L if starts_BL is None else positions_1L - starts_BL
        x_BLD = self.word(input_ids_BL) + self.segment(token_type_ids_BL)
        x_BLD = self.norm(x_BLD + self.position(positions_BL))
        return self.dropout(x_BLD, deterministic)


class BertModel(nn.Module):
    """The encoder: embeddings, layers, pooler (modeling.py, BertModel)."""

    config: BertConfig
    compute: ComputeConfig = ComputeConfig()

    def setup(self):
        self.embeddings = Embeddings(self.config, self.compute)
        self.encoder = Encoder(self.config, self.compute)
        self.pooler = dense(self.config, self.compute, self.config.hidden_size, None)

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
    ) -> EncoderOutput:
        """Encodes; attention_mask_BL is 1 for tokens and 0 for padding.

        Without ``deterministic`` it needs the "dropout" rng. Where ``pool`` is never
        asked for, the parameters hold no pooler. positions_BQ: see Encoder; the first
        one is [CLS], 0, where the pooler is wanted.

        segment_ids_BL, starts_BS: of rows that pack several sequences. To which of them,
        counted from 1, a token belongs (0: padding), and where each begins; each is
        encoded as if it were alone. The pooler wants positions_BQ to begin with
        them, and gives (B, S, D).
        """
        own_BL = None
        if starts_BS is not None:
            attention_mask_BL = segment_ids_BL
            numbers_BL = jnp.maximum(segment_ids_BL - 1, 0)
            own_BL = jnp.take_along_axis(starts_BS, numbers_BL, axis=1)
        x_BLD = self.embeddings(input_ids_BL, token_type_ids_BL, own_BL, deterministic)
        x_BLD = self.encoder(
            x_BLD,
            attention_mask_BL,
            deterministic,
            positions_BQ,
            packed=starts_BS is not None,
        )
        if not pool:
            return EncoderOutput(x_BLD, None)
        cls = x_BLD[:, 0] if starts_BS is None else x_BLD[:, : starts_BS.shape[1]]
        return EncoderOutput(x_BLD, self.pooled(cls))

    def pooled(self, cls: jax.Array) -> jax.Array:
        """What the pooler makes of the last layer's [CLS], (..., D)."""
        return jnp.tanh(self.pooler(cls))

    def attend_to_words(self, x_BMD: jax.Array) -> jax.Array:
        """Products with the word table, the MLM head's tied weights: (B, M, W)."""
        table_WD = self.embeddings.word.embedding.astype(x_BMD.dtype)
        return product(x_BMD, table_WD, ((2,), (1,)), jnp.float32)


class MlmHead(nn.Module):
    """Dense, activation and LayerNorm before the word table, a bias after it."""

    config: BertConfig
    compute: ComputeConfig = ComputeConfig()

    @nn.compact
    def __call__(self, x_BMD: jax.Array, bert: BertModel) -> jax.Array:
        x_BMD = dense(self.config, self.compute, self.config.hidden_size, "transform")(
            x_BMD
        )
        x_BMD = layer_norm(self.config, self.compute, "norm")(
            activation(self.config)(x_BMD)
        )
        bias_V = self.param(
            "output_bias", nn.initializers.zeros, (self.config.vocab_size,)
        )
        rest = self.config.word_rows - self.config.vocab_size
        bias_W = jnp.pad(bias_V, (0, rest), constant_values=NO_TOKEN)
        return bert.attend_to_words(x_BMD) + bias_W[None, None, :]


class BertForPreTraining(nn.Module):
    """BERT with the MLM and the NSP head (run_pretraining.py)."""

    config: BertConfig
    compute: ComputeConfig = ComputeConfig()

    def setup(self):
        self.bert = BertModel(self.config, self.compute)
        self.mlm = MlmHead(self.config, self.compute)
        self.nsp = dense(self.config, self.compute, 2, None)

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

        Class 0 of nsp_logits_B2 is IsNext. Nothing but [CLS] and these positions is read
        of the last layer, so it computes no others; the vocabulary product, of a seventh
        of the positions, would else cost six times as much. starts_BS: of packed rows,
        see BertModel; the NSP logits are then (B, S, 2).
        """
        cls_BS = starts_BS
        if starts_BS is None:
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
