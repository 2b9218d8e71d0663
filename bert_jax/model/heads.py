"""BERT with the heads of the paper's fine-tuning tasks (section 4, figure 4)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.model.bert import BertModel
from bert_jax.model.config import BertConfig, ComputeConfig, FeatureConfig
from bert_jax.model.kernels.dropout import Dropout
from bert_jax.model.layers import dense
from bert_jax.model.lstm import BiLstm
from bert_jax.model.tokens import Tokens, take_positions


class BertForSequence(nn.Module):
    """Dropout and one dense layer on the pooled [CLS] (run_classifier.py).

    outputs: number of classes. 1 for regression and multiple choice, where each choice is a
    sequence with one score.
    """

    config: BertConfig
    outputs: int
    compute: ComputeConfig = ComputeConfig()

    @nn.compact
    def __call__(self, tokens: Tokens, *, deterministic: bool) -> jax.Array:
        """float32 logits (B, S, outputs)."""
        config, compute = self.config, self.compute
        encoded = BertModel(config, compute, name="bert").encode(
            tokens,
            deterministic=deterministic,
            positions_BQ=tokens.input_ids[:, :0],  # empty. Pooling adds [CLS]
        )
        dropout = Dropout(config.hidden_dropout, name="dropout")
        classifier = dense(
            config, compute, self.outputs, name="classifier", is_head=True
        )
        return classifier(dropout(encoded.pooled_BD, deterministic))


class BertForTokens(nn.Module):
    """Dropout and one dense layer on every token, for tags (paper, section 5.3)."""

    config: BertConfig
    outputs: int
    compute: ComputeConfig = ComputeConfig()

    @nn.compact
    def __call__(self, tokens: Tokens, *, deterministic: bool) -> jax.Array:
        """float32 logits (B, L, outputs)."""
        config, compute = self.config, self.compute
        bert = BertModel(config, compute, name="bert")
        encoded = bert.encode(tokens, deterministic=deterministic, pool=False)
        dropout = Dropout(config.hidden_dropout, name="dropout")
        classifier = dense(
            config, compute, self.outputs, name="classifier", is_head=True
        )
        return classifier(dropout(encoded.sequence_BLD, deterministic))


class BertForSpans(nn.Module):
    """A start score and an end score for every token, without dropout (run_squad.py)."""

    config: BertConfig
    compute: ComputeConfig = ComputeConfig()

    @nn.compact
    def __call__(self, tokens: Tokens, *, deterministic: bool) -> jax.Array:
        """float32 logits (B, L, 2): start, end."""
        bert = BertModel(self.config, self.compute, name="bert")
        encoded = bert.encode(tokens, deterministic=deterministic, pool=False)
        qa_outputs = dense(
            self.config, self.compute, 2, name="qa_outputs", is_head=True
        )
        return qa_outputs(encoded.sequence_BLD)


class BertForVectors(nn.Module):
    """A vector of length 1 for each sequence (Reimers and Gurevych, 2019, section 3).

    pooling: "mean" or "cls".
    """

    config: BertConfig
    pooling: str
    compute: ComputeConfig = ComputeConfig()

    @nn.compact
    def __call__(self, tokens: Tokens, *, deterministic: bool) -> jax.Array:
        """float32 (B, S, W)."""
        bert = BertModel(self.config, self.compute, name="bert")
        encoded = bert.encode(tokens, deterministic=deterministic, pool=False)
        x_BLW = encoded.sequence_BLD.astype(jnp.float32)
        return normalized(pool_tokens(self.pooling, x_BLW, tokens))


def side_by_side(
    hidden_states: Sequence[jax.Array], layers: Sequence[int]
) -> jax.Array:
    """The concatenated hidden states of some layers, float32 (B, L, W)."""
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


class BertWithBiLstm(nn.Module):
    """A BiLSTM on the encoder with a dense layer, instead of any other head.

    With feature_config.layers it reads hidden states of a frozen encoder (paper, section
    5.3: the last four layers of BASE are best). A frozen encoder has no dropout and no
    gradient, so :meth:`features` may be computed once for the :meth:`tag` of all epochs.
    Without feature_config.layers the encoder is also fine-tuned (table 5).

    by_token: whether there are logits of every token, (B, L, outputs), or of each sequence.
    """

    config: BertConfig
    outputs: int
    feature_config: FeatureConfig
    compute: ComputeConfig = ComputeConfig()
    by_token: bool = True

    def setup(self):
        self.bert = BertModel(self.config, self.compute)
        self.bilstm = BiLstm(self.feature_config, self.outputs, self.by_token)

    @property
    def width(self) -> int:
        """F: features of a token."""
        return max(len(self.feature_config.layers), 1) * self.config.output_size

    def __call__(self, tokens: Tokens, *, deterministic: bool) -> jax.Array:
        """float32 logits of one sequence a row."""
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


def packs(model: nn.Module) -> bool:
    """Whether a row of ``model`` may have several sequences. LSTMs need one sequence."""
    return model.config.kind.attends and not isinstance(model, BertWithBiLstm)


def make_model(
    config: BertConfig,
    head: str,
    outputs: int,
    features: FeatureConfig,
    compute: ComputeConfig = ComputeConfig(),
) -> nn.Module:
    """The module of a head: "sequence", "choice", "token", "span", "mean" or "cls".

    features: whether there is a BiLSTM, and which hidden states it reads.
    """
    bilstm = bool(features.layers) or features.bilstm
    if head in ("mean", "cls"):
        if bilstm:
            raise UserError("a BiLSTM gives no vectors of texts; leave features out")
        if head == "cls" and config.reads != "both sides":
            raise UserError(
                "[CLS] needs a model that reads both sides; set data.pooling=mean"
            )
        return BertForVectors(config, head, compute)
    if features.layers:
        if head != "token":
            raise UserError("features.layers is for tagging; use features.bilstm=True")
        config.check_layers(features.layers, "features.layers")
    if bilstm:
        by_token = head in ("token", "span")
        return BertWithBiLstm(config, outputs, features, compute, by_token)
    if head == "span":
        return BertForSpans(config, compute)
    head_module = BertForTokens if head == "token" else BertForSequence
    return head_module(config, outputs, compute)
