"""BERT with the heads of the paper's fine-tuning tasks (section 4, figure 4).

The field ``encoder`` of a head is the class of its encoder: BertModel, or a module with the
same fields and methods.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.model.bert import BertModel
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.layers import Dropout, dense
from bert_jax.model.tokens import Tokens, take_positions


class BertForSequence(nn.Module):
    """Dropout and one dense layer on the pooled [CLS] (run_classifier.py).

    outputs: number of classes. 1 for regression and multiple choice, where each choice is a
    sequence with one score.
    """

    config: BertConfig
    outputs: int
    compute: ComputeConfig = ComputeConfig()
    encoder: type[nn.Module] = BertModel

    @nn.compact
    def __call__(self, tokens: Tokens, *, deterministic: bool) -> jax.Array:
        """float32 logits (B, S, outputs)."""
        config, compute = self.config, self.compute
        encoded = self.encoder(config, compute, name="bert").encode(
            tokens,
            deterministic=deterministic,
            positions_BQ=tokens.input_ids[:, :0],  # empty. Pooling adds [CLS]
        )
        dropout = Dropout(config.hidden_dropout, compute.dropout_impl, name="dropout")
        classifier = dense(
            config, compute, self.outputs, name="classifier", is_head=True
        )
        return classifier(dropout(encoded.pooled_BD, deterministic))


class BertForTokens(nn.Module):
    """Dropout and one dense layer on every token, for tags (paper, section 5.3)."""

    config: BertConfig
    outputs: int
    compute: ComputeConfig = ComputeConfig()
    encoder: type[nn.Module] = BertModel

    @nn.compact
    def __call__(self, tokens: Tokens, *, deterministic: bool) -> jax.Array:
        """float32 logits (B, L, outputs)."""
        config, compute = self.config, self.compute
        bert = self.encoder(config, compute, name="bert")
        encoded = bert.encode(tokens, deterministic=deterministic, pool=False)
        x_BLD = bert.token_transform(encoded.sequence_BLD)
        dropout = Dropout(config.hidden_dropout, compute.dropout_impl, name="dropout")
        classifier = dense(
            config, compute, self.outputs, name="classifier", is_head=True
        )
        return classifier(dropout(x_BLD, deterministic))


class BertForSpans(nn.Module):
    """A start score and an end score for every token, without dropout (run_squad.py)."""

    config: BertConfig
    compute: ComputeConfig = ComputeConfig()
    encoder: type[nn.Module] = BertModel

    @nn.compact
    def __call__(self, tokens: Tokens, *, deterministic: bool) -> jax.Array:
        """float32 logits (B, L, 2): start, end."""
        bert = self.encoder(self.config, self.compute, name="bert")
        encoded = bert.encode(tokens, deterministic=deterministic, pool=False)
        qa_outputs = dense(
            self.config, self.compute, 2, name="qa_outputs", is_head=True
        )
        return qa_outputs(bert.token_transform(encoded.sequence_BLD))


class BertForVectors(nn.Module):
    """A vector of length 1 for each sequence (Reimers and Gurevych, 2019, section 3).

    pooling: "mean" or "cls".
    """

    config: BertConfig
    pooling: str
    compute: ComputeConfig = ComputeConfig()
    encoder: type[nn.Module] = BertModel

    @nn.compact
    def __call__(self, tokens: Tokens, *, deterministic: bool) -> jax.Array:
        """float32 (B, S, W)."""
        bert = self.encoder(self.config, self.compute, name="bert")
        encoded = bert.encode(tokens, deterministic=deterministic, pool=False)
        x_BLW = encoded.sequence_BLD.astype(jnp.float32)
        return normalized(pool_tokens(self.pooling, x_BLW, tokens))


def side_by_side(
    hidden_states: Sequence[jax.Array], layers: Sequence[int]
) -> jax.Array:
    """The concatenated hidden states of ``layers``, float32 (B, L, W)."""
    states_BLD = [hidden_states[i].astype(jnp.float32) for i in layers]
    return jnp.concatenate(states_BLD, axis=-1)


def pool_tokens(pooling: str, x_BLD: jax.Array, tokens: Tokens) -> jax.Array:
    """A vector of each sequence, (B, S, D): the "mean" of its tokens, or "cls"."""
    if pooling == "cls":
        return take_positions(x_BLD, tokens.starts)
    return tokens.mean(x_BLD)


def normalized(x_BSD: jax.Array) -> jax.Array:
    """Vectors scaled to length 1. Zero vectors of padding stay zero."""
    squares = jnp.sum(jnp.square(x_BSD), axis=-1, keepdims=True)
    # The gradient of a norm is not defined at 0.
    return x_BSD * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))
