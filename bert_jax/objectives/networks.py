"""The module of a config: BERT, or the LSTMs of two_way.py, with a head."""

from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.model.bert import BertForPreTraining, BertModel
from bert_jax.model.bilstm import BertWithBiLstm
from bert_jax.model.config import BertConfig, ComputeConfig, FeatureConfig
from bert_jax.model.heads import (
    BertForSequence,
    BertForSpans,
    BertForTokens,
    BertForVectors,
)
from bert_jax.objectives.two_way import TwoWayForPreTraining, TwoWayModel


def encoder_class(config: BertConfig) -> type[BertModel]:
    """The class of the encoder."""
    if config.encoder == "lstm":
        return TwoWayModel
    return BertModel


def pretraining_class(config: BertConfig) -> type[BertForPreTraining]:
    """The class of the encoder with the pretraining heads."""
    if config.encoder == "lstm":
        return TwoWayForPreTraining
    return BertForPreTraining


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
    encoder = encoder_class(config)
    if head in ("mean", "cls"):
        if bilstm:
            raise UserError("a BiLSTM computes no text embeddings; leave features out")
        if head == "cls" and not config.reads_both_sides:
            raise UserError(
                "[CLS] needs a model that reads both sides; set data.pooling=mean"
            )
        return BertForVectors(config, head, compute, encoder)
    if features.layers:
        if head != "token":
            raise UserError("features.layers is for tagging; use features.bilstm=True")
        config.check_layers(features.layers, "features.layers")
    if bilstm:
        by_token = head in ("token", "span")
        return BertWithBiLstm(config, outputs, features, compute, by_token, encoder)
    if head == "span":
        return BertForSpans(config, compute, encoder)
    head_module = BertForTokens if head == "token" else BertForSequence
    return head_module(config, outputs, compute, encoder)
