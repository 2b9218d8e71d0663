"""BERT with the heads of the paper's fine-tuning tasks (section 4, figure 4).

All take the arguments of BertModel: input_ids_BL, token_type_ids_BL and attention_mask_BL,
and segment_ids_BL and starts_BS for packed rows. All return logits.
"""

import jax
from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.model.bert import BertModel
from bert_jax.model.config import BertConfig, ComputeConfig, FeatureConfig
from bert_jax.model.kernels.dropout import Dropout
from bert_jax.model.layers import Dense
from bert_jax.model.tagger import FeatureTagger


class BertForSequence(nn.Module):
    """Dropout and one dense layer on the pooled [CLS] (run_classifier.py).

    outputs: classes; or 1 for regression, and for the score of a choice, each of which is
    a row of the batch.
    """

    config: BertConfig
    outputs: int
    compute: ComputeConfig = ComputeConfig()

    @nn.compact
    def __call__(
        self, *tokens_BL: jax.Array, deterministic: bool, **packed: jax.Array
    ) -> jax.Array:
        """Logits (B, outputs), or (B, S, outputs) of packed rows."""
        bert = BertModel(self.config, self.compute, name="bert")
        none_BQ = tokens_BL[0][:, :0]  # no position beside [CLS]
        encoded = bert(
            *tokens_BL, deterministic=deterministic, positions_BQ=none_BQ, **packed
        )
        dropout = Dropout(self.config.hidden_dropout, name="dropout")
        classifier = Dense(
            self.config, self.compute, (self.outputs,), name="classifier"
        )
        return classifier(dropout(encoded.pooled_BD, deterministic))


class BertForTokens(nn.Module):
    """Dropout and one dense layer on every token, for tags (paper, section 5.3)."""

    config: BertConfig
    outputs: int
    compute: ComputeConfig = ComputeConfig()

    @nn.compact
    def __call__(
        self, *tokens_BL: jax.Array, deterministic: bool, **packed: jax.Array
    ) -> jax.Array:
        """Logits (B, L, outputs)."""
        bert = BertModel(self.config, self.compute, name="bert")
        encoded = bert(*tokens_BL, deterministic=deterministic, pool=False, **packed)
        dropout = Dropout(self.config.hidden_dropout, name="dropout")
        classifier = Dense(
            self.config, self.compute, (self.outputs,), name="classifier"
        )
        return classifier(dropout(encoded.sequence_BLD, deterministic))


class BertForSpans(nn.Module):
    """A start and an end score for every token, without dropout (run_squad.py)."""

    config: BertConfig
    compute: ComputeConfig = ComputeConfig()

    @nn.compact
    def __call__(
        self, *tokens_BL: jax.Array, deterministic: bool, **packed: jax.Array
    ) -> jax.Array:
        """Logits (B, L, 2): start, end."""
        bert = BertModel(self.config, self.compute, name="bert")
        encoded = bert(*tokens_BL, deterministic=deterministic, pool=False, **packed)
        qa_outputs = Dense(self.config, self.compute, (2,), name="qa_outputs")
        return qa_outputs(encoded.sequence_BLD)


def make_model(
    config: BertConfig,
    head: str,
    outputs: int,
    features: FeatureConfig,
    compute: ComputeConfig = ComputeConfig(),
) -> nn.Module:
    """The module of a head: "sequence", "choice", "token" or "span".

    With layers in ``features`` that of the feature-based approach, for head "token".
    """
    if features.layers:
        if head != "token":
            raise UserError(
                "features.layers is for tagging; leave --config.features.layers empty"
            )
        config.check_layers(features.layers, "--config.features.layers")
        return FeatureTagger(config, outputs, features, compute)
    if head == "span":
        return BertForSpans(config, compute)
    if head == "token":
        return BertForTokens(config, outputs, compute)
    return BertForSequence(config, outputs, compute)
