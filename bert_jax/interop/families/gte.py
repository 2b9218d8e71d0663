"""GTE (Zhang et al., 2024): GTE v1.5, multilingual GTE, and Arctic Embed 2.

Files of Alibaba have the names of their own code, Alibaba-NLP/new-impl.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.interop.families.bert import BERT
from bert_jax.interop.families.hub_forms import check_values
from bert_jax.interop.families.rope import read_rope, write_rope
from bert_jax.schema import check

# Rules that files with the code of Alibaba-NLP/new-impl may change.
_RULES = {
    "position_embedding_type": "rope",
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
}


def _read(values: Mapping[str, Any]) -> dict[str, float]:
    check_values(values, _RULES)
    theta = values.get("rope_theta", 160_000.0)
    check(theta, float, "rope_theta")
    return read_rope(values, theta)


_KEYS = dict(BERT.keys)
del _KEYS["causal"]

GTE = dataclasses.replace(
    BERT,
    model_types={"gte": "Gte"},
    classes={
        "ForMaskedLM": ("pretraining", ("mlm",)),
        "Model": ("none", ()),
        "ForSequenceClassification": ("sequence", ("pooler", "classifier")),
        "ForTokenClassification": ("token", ("classifier",)),
    },
    prefix="gte.",
    old_prefix="new.",
    layer="gte.encoder.layer.{}.",
    names={
        "bert/embeddings/word": "gte.embeddings.word_embeddings",
        "bert/embeddings/segment": "gte.embeddings.token_type_embeddings",
        "bert/embeddings/norm": "gte.embeddings.LayerNorm",
        "attention/query": "attention.query",
        "attention/key": "attention.key",
        "attention/value": "attention.value",
        "attention/output": "attention.o_proj",
        "attention_norm": "attn_ln",
        "intermediate": "mlp.activated",
        "gate": "mlp.gate",
        "feed_forward_output": "mlp.down_proj",
        "feed_forward_norm": "mlp_ln",
        "mlm/transform": "lm_head.dense",
        "mlm/norm": "lm_head.norm",
        "mlm": "lm_head.decoder",
        "classifier": "classifier",
    },
    head_names={"sequence": {"bert/pooler": "gte.pooler.dense"}},
    split={
        "attention.qkv_proj": ("attention.query", "attention.key", "attention.value"),
        "mlp.up_gate_proj": ("mlp.gate", "mlp.activated"),
    },
    mlm_activations=("gelu",),
    decoder="lm_head.decoder",
    keys=_KEYS,
    options={
        "positions": "rotary",
        "gated": True,
        "feed_forward_bias": "down",
        "type_vocab_size": 1,
        "max_positions": 8192,
        "attention_dropout": 0.0,
    },
    needs_types=False,
    read=_read,
    write=write_rope,
)
