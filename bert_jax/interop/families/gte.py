"""GTE (Zhang et al., 2024): multilingual GTE, and Arctic Embed 2, which has its form."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.interop.families.bert import BERT
from bert_jax.interop.families.rope import read_theta
from bert_jax.model.config import BertConfig
from bert_jax.schema import check

THETA = 160_000.0


def _read(values: Mapping[str, Any]) -> dict[str, float]:
    theta = values.get("rope_theta", THETA)
    check(theta, float, "rope_theta")
    theta = read_theta(values.get("rope_parameters"), "rope_parameters", theta)
    return {"rope_theta": read_theta(values.get("rope_scaling"), "rope_scaling", theta)}


def write_theta(config: BertConfig) -> dict[str, Any]:
    """The base of rotary positions, in the forms of transformers 4 and 5."""
    rope = {"rope_type": "default", "rope_theta": config.rope_theta}
    return {"rope_theta": config.rope_theta, "rope_parameters": rope}


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
    write=write_theta,
)
