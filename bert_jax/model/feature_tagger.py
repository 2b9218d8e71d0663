"""The feature-based approach (paper, section 5.3): a BiLSTM on a frozen encoder."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.hidden_states import hidden_states
from bert_jax.model.tagger import BiLstmConfig, BiLstmTagger


@dataclasses.dataclass(frozen=True)
class FeatureTagger:
    """Hidden states ``layers`` of an encoder, concatenated, under a BiLSTM.

    layers: 0 is the embeddings', -1 the last layer's. ``init`` and ``apply`` take and
    give what those of a Flax module do, with the parameters {"bert", "bilstm"}; the
    encoder has no dropout and gets no gradient.
    """

    config: BertConfig
    layers: tuple[int, ...]
    bilstm: BiLstmConfig
    compute: ComputeConfig = ComputeConfig()

    @property
    def width(self) -> int:
        """Features of a token."""
        return len(self.layers) * self.config.hidden_size

    def init(self, key: jax.Array) -> Any:
        """Parameters of the BiLSTM: {"bilstm": ...}."""
        features_BLF = jnp.zeros((1, 2, self.width))
        mask_BL = jnp.ones((1, 2), jnp.int32)
        variables = BiLstmTagger(self.bilstm).init(
            key, features_BLF, mask_BL, deterministic=True
        )
        return {"bilstm": variables["params"]}

    def features(
        self,
        bert_params: Any,
        input_ids_BL: jax.Array,
        token_type_ids_BL: jax.Array,
        attention_mask_BL: jax.Array,
    ) -> jax.Array:
        """float32 (B, L, width)."""
        states = hidden_states(
            self.config,
            self.compute,
            bert_params,
            input_ids_BL,
            token_type_ids_BL,
            attention_mask_BL,
        )
        x_BLF = jnp.concatenate([states.layers[i] for i in self.layers], axis=-1)
        return jax.lax.stop_gradient(x_BLF)

    def tag(
        self,
        params: Any,
        features_BLF: jax.Array,
        attention_mask_BL: jax.Array,
        **settings: Any,
    ) -> jax.Array:
        """Logits (B, L, labels) from what :meth:`features` gave."""
        return BiLstmTagger(self.bilstm).apply(
            {"params": params["bilstm"]}, features_BLF, attention_mask_BL, **settings
        )

    def apply(
        self,
        variables: Any,
        input_ids_BL: jax.Array,
        token_type_ids_BL: jax.Array,
        attention_mask_BL: jax.Array,
        **settings: Any,
    ) -> jax.Array:
        """Logits (B, L, labels) from tokens."""
        params = variables["params"]
        features_BLF = self.features(
            params["bert"], input_ids_BL, token_type_ids_BL, attention_mask_BL
        )
        return self.tag(params, features_BLF, attention_mask_BL, **settings)
