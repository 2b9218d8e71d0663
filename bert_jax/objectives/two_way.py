"""Language modelling in two separate directions: the comparison with ELMo.

Two LSTMs (``model.encoder="lstm"``) predict each token, one from the tokens before it and
one from the tokens after it (Peters et al., 2018, section 3.1). The loss is the mean of
both losses over all tokens. The directions share the embeddings and the output layer, which
is the head of masked LM. ELMo reads characters, whereas this model reads tokens of the
vocabulary. Fine-tuning learns a weight for each layer (section 3.2).
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.data.examples import ExampleConfig
from bert_jax.model import flops
from bert_jax.model.bert import (
    BertForPreTraining,
    BertModel,
    Embeddings,
    EncoderOutput,
    MlmHead,
    PreTrainingOutput,
)
from bert_jax.model.bilstm import BACKWARD, DIRECTIONS, last_states, lstm
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.device import activation_dtype
from bert_jax.model.layers import POOLER_ACTIVATIONS, Dropout, dense, unchanged
from bert_jax.model.tokens import Tokens, take_positions
from bert_jax.objectives.causal import Causal
from bert_jax.objectives.objective import Batch, check_model


class TwoWayLstm(nn.Module):
    """An LSTM of several layers in each direction, independent of the other direction.

    A layer has config.intermediate_size cells. Its output is projected to D. From the
    second layer on, the layer's input is added.
    """

    config: BertConfig
    compute: ComputeConfig

    @nn.compact
    def __call__(
        self, x_BLD: jax.Array, tokens: Tokens, *, deterministic: bool
    ) -> list[jax.Array]:
        """Returns the states, each (B, L, 2 D).

        The first state is ``x_BLD`` twice. Each further state is the forward and the
        backward output of a layer.
        """
        config = self.config
        dtype = activation_dtype(self.compute.dtype)
        dropout = Dropout(config.hidden_dropout, self.compute.dropout_impl)
        ways = [x_BLD] * len(DIRECTIONS)
        states = [jnp.concatenate(ways, axis=-1)]
        for i in range(config.num_layers):
            for way, direction in enumerate(DIRECTIONS):
                h_BLD = lstm(
                    f"layer_{i}_{direction}",
                    ways[way],
                    tokens.segment_ids,
                    config.intermediate_size,
                    config.hidden_size,
                    reverse=direction == BACKWARD,
                    dtype=dtype,
                    forget_bias=1.0,
                )
                h_BLD = dropout(h_BLD.astype(dtype), deterministic)
                ways[way] = ways[way] + h_BLD if i else h_BLD
            states.append(jnp.concatenate(ways, axis=-1))
        return states


class LayerMix(nn.Module):
    """gamma times a mean of layers, weighted by a softmax (ELMo, formula 1).

    Fine-tuning learns gamma and the weights. All layers start with the same weight.
    """

    @nn.compact
    def __call__(self, states: list[jax.Array]) -> jax.Array:
        weights = self.param("weights", nn.initializers.zeros, (len(states),))
        gamma = self.param("gamma", nn.initializers.ones, ())
        shares = gamma * jax.nn.softmax(weights)
        mixed = sum(share * x for share, x in zip(shares, states, strict=True))
        return mixed.astype(states[0].dtype)


class TwoWayModel(BertModel):
    """LSTMs in place of BERT's layers, with BERT's embeddings and pooler.

    The output of a token is the mix of all layers. The pooler reads the last states of both
    directions, or with config.pooling "mean" the mean of all tokens.
    """

    def setup(self):
        config, compute = self.config, self.compute
        self.embeddings = Embeddings(config, compute)
        self.mix = LayerMix()
        self.encoder = TwoWayLstm(config, compute)
        self.pooler = self.token_transform = unchanged
        if config.pooler != "none":
            options = {"is_head": True, "has_bias": config.head_bias}
            self.pooler = dense(config, compute, config.hidden_size, **options)
        self.pooler_activation = POOLER_ACTIVATIONS[config.pooler]

    @staticmethod
    def width(config: BertConfig) -> int:
        """2 D: both directions."""
        return len(DIRECTIONS) * config.hidden_size

    def encode(
        self,
        tokens: Tokens,
        *,
        deterministic: bool,
        positions_BQ: jax.Array | None = None,
        pool: bool = True,
        hidden_states: bool = False,
    ) -> EncoderOutput:
        """See BertModel. The vectors of tokens have the width 2 D."""
        x_BLD = self.embeddings(tokens, deterministic=deterministic)
        states = self.encoder(x_BLD, tokens, deterministic=deterministic)
        mixed_BLE = self.mix(states)
        pooled_BSD = None
        if pool:
            ends_BSE = last_states(mixed_BLE, tokens)
            if self.config.pooling == "mean":
                ends_BSE = tokens.mean(mixed_BLE).astype(mixed_BLE.dtype)
            pooled_BSD = self.pooler_activation(self.pooler(ends_BSE))
        mixed_BQE = take_positions(mixed_BLE, positions_BQ)
        return EncoderOutput(mixed_BQE, pooled_BSD, states if hidden_states else [])


class TwoWayForPreTraining(BertForPreTraining):
    """The LSTMs with the MLM head, which predicts a token in each direction.

    It has an NSP head, as the checkpoints of earlier versions do. No objective trains it.
    """

    def setup(self):
        self.bert = TwoWayModel(self.config, self.compute)
        self.mlm = MlmHead(self.config, self.compute)
        self.nsp = dense(self.config, self.compute, 2, is_head=True)

    def logits(
        self, tokens: Tokens, mlm_positions_BM: jax.Array, *, deterministic: bool
    ) -> PreTrainingOutput:
        """The logits of both heads. The logits of tokens are :meth:`lm_logits`."""
        encoded = self.bert.encode(tokens, deterministic=deterministic)
        logits_BPW = self.lm_logits(
            tokens, mlm_positions_BM, deterministic=deterministic
        )
        return PreTrainingOutput(logits_BPW, self.nsp(encoded.pooled_BD))

    def lm_vectors(
        self, tokens: Tokens, positions_BQ: jax.Array, *, deterministic: bool
    ) -> jax.Array:
        """The vectors (B, 2 Q, D) from which the tokens at ``positions_BQ`` are predicted.

        The first Q vectors are computed from the tokens before, and the last Q from the
        tokens after. Ignore the former for a sequence's first token, and the latter for its
        last token.
        """
        encoded = self.bert.encode(
            tokens, deterministic=deterministic, pool=False, hidden_states=True
        )
        forward, backward = jnp.split(encoded.hidden_states[-1], 2, axis=-1)
        before_BQ = jnp.maximum(positions_BQ - 1, 0)
        after_BQ = jnp.minimum(positions_BQ + 1, forward.shape[1] - 1)
        states = take_positions(forward, before_BQ), take_positions(backward, after_BQ)
        return jnp.concatenate(states, axis=1)


@dataclasses.dataclass(frozen=True)
class TwoWay(Causal):
    """Mean loss of all tokens but the first of each sequence, and of all but the last."""

    model: TwoWayForPreTraining
    adds_rows: ClassVar[bool] = True

    def prediction_weights(self, batch: Batch) -> jax.Array:
        """float32 (B, 2 L), for the predictions of TwoWayForPreTraining.lm_vectors."""
        from_before_BL = super().prediction_weights(batch)
        # If a token is predicted from the token before it, that token is predicted from it.
        from_after_BL = jnp.pad(from_before_BL[:, 1:], ((0, 0), (0, 1)))
        return jnp.concatenate([from_before_BL, from_after_BL], axis=1)

    def targets(self, batch: Batch) -> jax.Array:
        """The tokens, int32 (B, 2 L): once for each direction."""
        ids_BL = super().targets(batch)
        return jnp.concatenate([ids_BL, ids_BL], axis=1)

    def flops(self, batch: Batch) -> float:
        rows, length = batch["input_ids"].shape
        return flops.step(
            self.model.config, self.model.compute, rows, length, predictions=2 * length
        )


def pretraining(
    model: BertConfig, compute: ComputeConfig, examples: ExampleConfig
) -> TwoWay:
    """The objective of a run with these configs."""
    check_model(__name__, model, encoder="lstm", pairs=examples.next_sentence)
    compute.check_lstm()
    return TwoWay(TwoWayForPreTraining(model, compute))
