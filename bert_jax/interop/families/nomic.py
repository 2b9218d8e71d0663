"""Nomic BERT (Nussbaum et al., 2024). Its files on the Hub have the keys of GPT-2."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.interop.families.bert import encoder_names
from bert_jax.interop.families.gte import GTE
from bert_jax.interop.families.rope import read_theta

# Fields of BertConfig by key in files on the Hub, and the other rules that are read there.
_OLD_KEYS = {
    "n_embd": "hidden_size",
    "n_layer": "num_layers",
    "n_head": "num_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_positions",
    "resid_pdrop": "hidden_dropout",
    "attn_pdrop": "attention_dropout",
    "qkv_proj_bias": "attention_bias",
    "layer_norm_epsilon": "layer_norm_epsilon",
    "rotary_emb_base": "rope_theta",
}
_OLD_RULES = {
    "activation_function": "swiglu",
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "prenorm": False,
    "parallel_block": False,
    "causal": False,
    "use_rms_norm": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "moe_every_n_layers": 0,
}


def _read(values: Mapping[str, Any]) -> dict[str, Any]:
    for key, expected in _OLD_RULES.items():
        if values.get(key, expected) not in (expected, None):
            raise UserError(f"{key}={values[key]!r}, expected {expected!r}")
    rope = values.get("rope_parameters")
    fields = {"rope_theta": read_theta(rope, "rope_parameters", 1000.0)}
    for key, field in _OLD_KEYS.items():
        new_key = GTE.keys.get(field, "rope_parameters")
        if key in values and new_key not in values:
            fields[field] = values[key]
    return fields


_NAMES = {
    **encoder_names("nomic_bert."),
    "bert/embeddings/norm": "nomic_bert.emb_ln",
    "attention/query": "attn.query",
    "attention/key": "attn.key",
    "attention/value": "attn.value",
    "attention/output": "attn.out_proj",
    "attention_norm": "norm1",
    "intermediate": "mlp.fc12",
    "gate": "mlp.fc11",
    "feed_forward_output": "mlp.fc2",
    "feed_forward_norm": "norm2",
    "mlm/transform": "cls.predictions.transform.dense",
    "mlm/norm": "cls.predictions.transform.layer_norm",
    "mlm": "cls.predictions",
}
for _path in ("bert/embeddings/position", "bert/pooler", "qa_outputs"):
    del _NAMES[_path]

NOMIC = dataclasses.replace(
    GTE,
    model_types={"nomic_bert": "NomicBert"},
    prefix="nomic_bert.",
    layer="nomic_bert.encoder.layers.{}.",
    names=_NAMES,
    head_names={"sequence": {"bert/pooler": "nomic_bert.pooler.dense"}},
    split={"attn.Wqkv": ("attn.query", "attn.key", "attn.value")},
    decoder="cls.predictions.decoder",
    options={
        "vocab_size": 30528,
        "hidden_size": 768,
        "num_layers": 12,
        "num_heads": 12,
        "intermediate_size": 3072,
        "positions": "rotary",
        "gated": True,
        "activation": "silu",
        "feed_forward_bias": "none",
        "attention_bias": False,
        "max_positions": 2048,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    },
    needs_types=True,
    read=_read,
)
