"""BERT with the heads of the paper's fine-tuning tasks (section 4, figure 4)."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.model.bert import BertModel
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.kernels.dropout import Dropout
from bert_jax.model.layers import Dense


class BertForSequence(nn.Module):
    """One dense layer on the pooled [CLS]: classes, or one number (run_classifier.py).

    With one output it also scores the choices of multiple choice, each a row of the
    batch.
    """

    config: BertConfig
    outputs: int
    compute: ComputeConfig = ComputeConfig()

    def setup(self):
        self.bert = BertModel(self.config, self.compute)
        self.dropout = Dropout(self.config.hidden_dropout)
        self.classifier = Dense(self.config, self.compute, (self.outputs,))

    def __call__(
        self,
        input_ids_BL: jax.Array,
        token_type_ids_BL: jax.Array,
        attention_mask_BL: jax.Array,
        *,
        deterministic: bool,
        segment_ids_BL: jax.Array | None = None,
        starts_BS: jax.Array | None = None,
    ) -> jax.Array:
        """Logits (B, outputs); of packed rows, see BertModel, (B, S, outputs)."""
        # [CLS] is all that the pooler reads.
        cls_BS = jnp.zeros_like(input_ids_BL[:, :1]) if starts_BS is None else starts_BS
        encoded = self.bert(
            input_ids_BL,
            token_type_ids_BL,
            attention_mask_BL,
            deterministic=deterministic,
            positions_BQ=cls_BS,
            segment_ids_BL=segment_ids_BL,
            starts_BS=starts_BS,
        )
        x_BD = self.dropout(encoded.pooled_BD, deterministic)
        return self.classifier(x_BD)


class BertForTokens(nn.Module):
    """One dense layer on every token: tags (paper, section 5.3)."""

    config: BertConfig
    outputs: int
    compute: ComputeConfig = ComputeConfig()

    def setup(self):
        self.bert = BertModel(self.config, self.compute)
        self.dropout = Dropout(self.config.hidden_dropout)
        self.classifier = Dense(self.config, self.compute, (self.outputs,))

    def __call__(
        self,
        input_ids_BL: jax.Array,
        token_type_ids_BL: jax.Array,
        attention_mask_BL: jax.Array,
        *,
        deterministic: bool,
        **packed: jax.Array,
    ) -> jax.Array:
        """Logits (B, L, outputs); ``packed``: segment_ids_BL and starts_BS."""
        encoded = self.bert(
            input_ids_BL,
            token_type_ids_BL,
            attention_mask_BL,
            deterministic=deterministic,
            pool=False,
            **packed,
        )
        x_BLD = self.dropout(encoded.sequence_BLD, deterministic)
        return self.classifier(x_BLD)


class BertForSpans(nn.Module):
    """A start and an end score for every token, without dropout (run_squad.py)."""

    config: BertConfig
    compute: ComputeConfig = ComputeConfig()

    def setup(self):
        self.bert = BertModel(self.config, self.compute)
        self.qa_outputs = Dense(self.config, self.compute, (2,))

    def __call__(
        self,
        input_ids_BL: jax.Array,
        token_type_ids_BL: jax.Array,
        attention_mask_BL: jax.Array,
        *,
        deterministic: bool,
        **packed: jax.Array,
    ) -> jax.Array:
        """Logits (B, L, 2): start, end; ``packed``: segment_ids_BL and starts_BS."""
        encoded = self.bert(
            input_ids_BL,
            token_type_ids_BL,
            attention_mask_BL,
            deterministic=deterministic,
            pool=False,
            **packed,
        )
        return self.qa_outputs(encoded.sequence_BLD)
