"""BERT with the heads of the paper's fine-tuning tasks (section 4, figure 4).

All take the arguments of BertModel: input_ids_BL, token_type_ids_BL and attention_mask_BL,
and segment_ids_BL and starts_BS for packed rows. All return logits.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.errors import UserError
from bert_jax.model.bert import BertModel
from bert_jax.model.config import BertConfig, ComputeConfig, FeatureConfig
from bert_jax.model.kernels.dropout import Dropout
from bert_jax.model.layers import Dense
from bert_jax.model.lstm import BiLstm, check_one_sequence
from bert_jax.model.pooling import normalized, pool_tokens, sequence_ends


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


class BertForVectors(nn.Module):
    """One vector of length 1 for a sequence (Reimers and Gurevych, 2019, section 3).

    pooling: see pool_tokens.
    """

    config: BertConfig
    pooling: str
    compute: ComputeConfig = ComputeConfig()

    @nn.compact
    def __call__(
        self, *tokens_BL: jax.Array, deterministic: bool, **packed: jax.Array
    ) -> jax.Array:
        """float32 (B, W), or (B, S, W) of packed rows."""
        bert = BertModel(self.config, self.compute, name="bert")
        encoded = bert(*tokens_BL, deterministic=deterministic, pool=False, **packed)
        x_BLW = encoded.sequence_BLD.astype(jnp.float32)
        x_BSW = normalized(pool_tokens(self.pooling, x_BLW, tokens_BL[2], **packed))
        return x_BSW if packed else x_BSW[:, 0]


class BertWithBiLstm(nn.Module):
    """A BiLSTM on the encoder, and its dense layer in the place of any head.

    With feature_config.layers it reads those hidden states of a frozen encoder (paper,
    section 5.3: the last four of BASE are best), which has no dropout and gets no gradient,
    so its features may be computed once, with :meth:`features`, and be given to :meth:`tag`
    in each epoch. Without, it is fine-tuned with the encoder (table 5).

    by_token: logits of every token, (B, L, outputs); otherwise of each sequence.
    """

    config: BertConfig
    outputs: int
    feature_config: FeatureConfig
    compute: ComputeConfig = ComputeConfig()
    by_token: bool = True

    def setup(self):
        self.bert = BertModel(self.config, self.compute)
        self.bilstm = BiLstm(self.feature_config, self.outputs)

    @property
    def width(self) -> int:
        """F: features of a token."""
        return max(len(self.feature_config.layers), 1) * self.config.output_size

    def __call__(
        self, *tokens_BL: jax.Array, deterministic: bool, **packed: jax.Array
    ) -> jax.Array:
        """Logits of one sequence a row. See BertModel for the arguments."""
        check_one_sequence(packed.get("starts_BS"))
        if self.feature_config.layers:
            x_BLF = self.features(*tokens_BL, **packed)
        else:
            settings = {"deterministic": deterministic, "pool": False}
            x_BLF = self.bert(*tokens_BL, **packed, **settings).sequence_BLD
        mask_BL = tokens_BL[2]
        if self.by_token:
            return self.tag(x_BLF, mask_BL, deterministic=deterministic)
        ends_BS = sequence_ends(tokens_BL[2], **packed)
        logits_BSC = self.bilstm(x_BLF, mask_BL, ends_BS, deterministic=deterministic)
        return logits_BSC if packed else logits_BSC[:, 0]

    def features(self, *tokens_BL: jax.Array, **packed: jax.Array) -> jax.Array:
        """float32 (B, L, width) of the frozen encoder. See BertModel for the arguments."""
        encoded = self.bert(
            *tokens_BL, **packed, deterministic=True, pool=False, hidden_states=True
        )
        return jax.lax.stop_gradient(encoded.side_by_side(self.feature_config.layers))

    def tag(
        self, features_BLF: jax.Array, mask_BL: jax.Array, *, deterministic: bool
    ) -> jax.Array:
        """Logits (B, L, outputs) of the output of :meth:`features`."""
        return self.bilstm(features_BLF, mask_BL, deterministic=deterministic)


def packs(model: nn.Module) -> bool:
    """Whether ``model`` takes rows of several sequences. LSTMs read one sequence a row."""
    return model.config.kind.attends and not isinstance(model, BertWithBiLstm)


def make_model(
    config: BertConfig,
    head: str,
    outputs: int,
    features: FeatureConfig,
    compute: ComputeConfig = ComputeConfig(),
) -> nn.Module:
    """The module of a head: "sequence", "choice", "token", "span", "mean" or "cls".

    features: whether there is a BiLSTM, and on what.
    """
    if head in ("mean", "cls"):
        if features.layers or features.bilstm:
            raise UserError("a BiLSTM gives no vectors of texts; leave features out")
        if head == "cls" and config.reads != "both sides":
            raise UserError(
                f"the model reads {config.reads}, and its [CLS] has seen nothing; set "
                "data.pooling=mean"
            )
        return BertForVectors(config, head, compute)
    if features.layers:
        if head != "token":
            raise UserError(
                "features.layers is for tagging; leave features.layers empty "
                "(features.bilstm=True is for any head)"
            )
        config.check_layers(features.layers, "features.layers")
    if features.layers or features.bilstm:
        by_token = head in ("token", "span")
        return BertWithBiLstm(config, outputs, features, compute, by_token)
    if head == "span":
        return BertForSpans(config, compute)
    if head == "token":
        return BertForTokens(config, outputs, compute)
    return BertForSequence(config, outputs, compute)
