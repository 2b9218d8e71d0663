"""BertModel, and BertForPreTraining with its two heads.

A Flax module has no parameters of its own: ``init`` makes them, and ``apply`` takes them.

    >>> model = BertModel(BertConfig.base())
    >>> inputs = input_ids_BL, token_type_ids_BL, attention_mask_BL
    >>> variables = model.init(jax.random.key(0), *inputs, deterministic=True)
    >>> output = model.apply(variables, *inputs, deterministic=True)

Names of arrays end in their shape, such as x_BLD for (B, L, D). model/config.py explains
the letters. ``split(x_BLD, "BLD")`` sets how an array is split over devices. It changes no
values, and does nothing without a mesh.
"""

import functools
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.encoder import Encoder, pooled_positions, unchanged
from bert_jax.model.kernels.device import activation_dtype
from bert_jax.model.layers import (
    Dropout,
    activation,
    dense,
    for_product,
    layer_norm,
    product,
    sinusoids,
    split,
    table,
)
from bert_jax.model.tokens import Tokens, take_positions

# Logit of the rows of the word table that belong to no token; see BertConfig.word_rows.
PADDING_LOGIT = -1e9


@flax.struct.dataclass
class EncoderOutput:
    """The output of BertModel, in the dtype of the activations; pooled_BD is float32.

    sequence_BLD: output of the last layer, (B, Q, D) if positions_BQ is given.
    pooled_BD: tanh of a dense layer on [CLS], on the last token of a causal model, or on
      the mean of all tokens (config.pooling). None if pool is False. Its shape is (B, S, D)
      if ``encode`` returns it: a vector for each sequence.
    hidden_states: the embeddings and the output of each layer. Empty by default.
    """

    sequence_BLD: jax.Array
    pooled_BD: jax.Array | None
    hidden_states: list[jax.Array]


class PreTrainingOutput(NamedTuple):
    """float32 logits of masked LM and of next sentence prediction.

    mlm_logits_BMW: one logit for each row of the word table. The rows that pad the table
      have PADDING_LOGIT, so their probability is 0. Losses keep these rows, because a
      smaller array would be a copy.
    nsp_logits_B2: class 0 is IsNext, class 1 is NotNext. The shape is (B, S, 2) if
      ``BertForPreTraining.logits`` returns them: two logits for each pair.
    """

    mlm_logits_BMW: jax.Array
    nsp_logits_B2: jax.Array


class Embeddings(nn.Module):
    """Word + token type + position embeddings, LayerNorm, dropout."""

    config: BertConfig
    compute: ComputeConfig

    def setup(self):
        config, compute = self.config, self.compute
        self.word = table(config, config.vocab_size, config.word_rows)
        self.segment = table(config, config.type_vocab_size)
        if config.positions == "learned":
            self.position = table(config, config.max_positions)
        elif config.positions == "sinusoidal":
            self.position = functools.partial(jnp.take, sinusoids(config), axis=0)
        else:
            self.position = _no_vectors
        self.norm = unchanged if config.pre_norm else layer_norm(config, compute)
        self.dropout = Dropout(config.hidden_dropout, compute.dropout_impl)

    def __call__(self, tokens: Tokens, *, deterministic: bool) -> jax.Array:
        """The sum of the three vectors, normalised: (B, L, D) in the compute dtype."""
        x_BLD = self.word(tokens.input_ids) + self.segment(tokens.token_type_ids)
        x_BLD += self.position(tokens.positions)
        # Cast after the lookups, so that gradients of the tables are summed in float32.
        x_BLD = self.norm(x_BLD.astype(activation_dtype(self.compute.dtype)))
        return self.dropout(x_BLD, deterministic)


def _no_vectors(positions_BL: jax.Array) -> jax.Array:
    """Zeros in place of position vectors, (B, L, 1)."""
    return jnp.zeros((*positions_BL.shape, 1))


class BertModel(nn.Module):
    """The encoder: embeddings, layers, pooler (modeling.py, BertModel)."""

    config: BertConfig
    compute: ComputeConfig = ComputeConfig()

    def setup(self):
        config, compute = self.config, self.compute
        if config.encoder != "transformer":
            raise UserError(
                f"model.encoder={config.encoder} has another class; see "
                "bert_jax.objectives.networks.encoder_class"
            )
        self.embeddings = Embeddings(config, compute)
        self.encoder = Encoder(config, compute)
        self.pooler = dense(config, compute, config.hidden_size, is_head=True)

    @staticmethod
    def width(config: BertConfig) -> int:
        """The width of a token's vector after the encoder."""
        return config.hidden_size

    def __call__(
        self,
        input_ids_BL: jax.Array,
        token_type_ids_BL: jax.Array,
        attention_mask_BL: jax.Array,
        **options: Any,
    ) -> EncoderOutput:
        """Encodes rows with one sequence in each row. options: see :meth:`encode`.

        attention_mask_BL: 1 for tokens, 0 for padding.
        """
        tokens = Tokens.of_mask(input_ids_BL, token_type_ids_BL, attention_mask_BL)
        encoded = self.encode(tokens, **options)
        if encoded.pooled_BD is None:
            return encoded
        return encoded.replace(pooled_BD=encoded.pooled_BD[:, 0])

    def encode(
        self,
        tokens: Tokens,
        *,
        deterministic: bool,
        positions_BQ: jax.Array | None = None,
        pool: bool = True,
        hidden_states: bool = False,
    ) -> EncoderOutput:
        """Encodes rows that may pack several sequences.

        deterministic: True for no dropout. False needs ``rngs={"dropout": key}``.
        positions_BQ: positions of the returned output. The last layer is computed only at
          these positions and at the pooled tokens. None for all positions.
        pool: whether to compute pooled_BD. ``init`` with pool=False makes no parameters of
          the pooler.
        hidden_states: whether to return the output of every layer.
        """
        config = self.config
        computed_BQ = positions_BQ
        if pool and positions_BQ is not None:
            pooled_BS = pooled_positions(config, tokens)
            computed_BQ = jnp.concatenate([pooled_BS, positions_BQ], axis=1)
            if config.pooling == "mean":  # of all tokens
                computed_BQ = None
        x_BLD, states = self.encoder(
            self.embeddings(tokens, deterministic=deterministic),
            tokens,
            computed_BQ,
            deterministic=deterministic,
            hidden_states=hidden_states,
        )
        if not pool:
            return EncoderOutput(x_BLD, None, states)
        if computed_BQ is not None:
            vectors_BSD, x_BQD = jnp.split(x_BLD, [tokens.starts.shape[1]], axis=1)
        elif config.pooling == "mean":
            vectors_BSD = tokens.mean(x_BLD).astype(x_BLD.dtype)
            x_BQD = take_positions(x_BLD, positions_BQ)
        else:
            vectors_BSD = take_positions(x_BLD, pooled_positions(config, tokens))
            x_BQD = x_BLD
        pooled_BSD = split(self.pooler(split(vectors_BSD, "BSD")), "BSD")
        return EncoderOutput(x_BQD, jnp.tanh(pooled_BSD), states)


class MlmHead(nn.Module):
    """Dense layer, activation, LayerNorm, product with the word table, and bias."""

    config: BertConfig
    compute: ComputeConfig

    @nn.compact
    def __call__(self, x_BMD: jax.Array, words: nn.Embed) -> jax.Array:
        config, compute = self.config, self.compute
        transform = dense(config, compute, config.hidden_size, name="transform")
        x_BMD = split(transform(split(x_BMD, "BMD")), "BMD")
        x_BMD = layer_norm(config, compute, "norm")(activation(config)(x_BMD))
        bias_V = self.param("output_bias", nn.initializers.zeros, (config.vocab_size,))
        padding = config.word_rows - config.vocab_size
        bias_W = jnp.pad(bias_V, (0, padding), constant_values=PADDING_LOGIT)
        logits_BMW = product(compute, jnp.float32)(
            x_BMD, for_product(words.embedding, compute), (((2,), (1,)), ((), ()))
        )
        return logits_BMW + bias_W[None, None, :]


class BertForPreTraining(nn.Module):
    """BERT with the heads of MLM and NSP (run_pretraining.py)."""

    config: BertConfig
    compute: ComputeConfig = ComputeConfig()

    def setup(self):
        self.bert = BertModel(self.config, self.compute)
        self.mlm = MlmHead(self.config, self.compute)
        self.nsp = dense(self.config, self.compute, 2, is_head=True)

    def __call__(
        self,
        input_ids_BL: jax.Array,
        token_type_ids_BL: jax.Array,
        attention_mask_BL: jax.Array,
        mlm_positions_BM: jax.Array,
        *,
        deterministic: bool,
    ) -> PreTrainingOutput:
        """:meth:`logits` of rows with one sequence each. Arguments: see BertModel."""
        tokens = Tokens.of_mask(input_ids_BL, token_type_ids_BL, attention_mask_BL)
        output = self.logits(tokens, mlm_positions_BM, deterministic=deterministic)
        return output._replace(nsp_logits_B2=output.nsp_logits_B2[:, 0])

    def logits(
        self, tokens: Tokens, mlm_positions_BM: jax.Array, *, deterministic: bool
    ) -> PreTrainingOutput:
        """MLM logits at ``mlm_positions_BM`` of each row, and NSP logits of each pair."""
        encoded = self.bert.encode(
            tokens, positions_BQ=mlm_positions_BM, deterministic=deterministic
        )
        return PreTrainingOutput(
            mlm_logits_BMW=self.mlm(encoded.sequence_BLD, self.bert.embeddings.word),
            nsp_logits_B2=self.nsp(encoded.pooled_BD),
        )

    def lm_logits(
        self, tokens: Tokens, positions_BQ: jax.Array, *, deterministic: bool
    ) -> jax.Array:
        """Predictions of the tokens at ``positions_BQ``, float32 logits (B, Q, W).

        A causal model predicts a token from the tokens before it. Ignore its logits of the
        first token of a sequence, which has no token before it. Any other model predicts
        from all tokens. The pooler and the NSP head may be absent.
        """
        x_BQD = self.lm_vectors(tokens, positions_BQ, deterministic=deterministic)
        return self.lm_head(x_BQD)

    def lm_vectors(
        self, tokens: Tokens, positions_BQ: jax.Array, *, deterministic: bool
    ) -> jax.Array:
        """The vectors (B, Q, D) from which :meth:`lm_logits` predicts."""
        before_BQ = jnp.maximum(positions_BQ - int(self.config.causal), 0)
        encoded = self.bert.encode(
            tokens, positions_BQ=before_BQ, pool=False, deterministic=deterministic
        )
        return encoded.sequence_BLD

    def lm_head(self, x_BQD: jax.Array) -> jax.Array:
        """float32 logits (B, Q, W) of vectors."""
        return self.mlm(x_BQD, self.bert.embeddings.word)
