"""Nomic BERT (Nussbaum et al., 2024). Its files on the Hub have the keys of GPT-2."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.interop.families.bert import BERT, encoder_names
from bert_jax.interop.families.gte import GTE
from bert_jax.interop.families.hub_forms import check_values
from bert_jax.interop.families.rope import read_rope, write_rope
from bert_jax.schema import check

# Rules that files on the Hub may change.
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
    check_values(values, _OLD_RULES)
    theta = values.get("rotary_emb_base", 1000.0)
    check(theta, float, "rotary_emb_base")
    fields = read_rope(values, theta)
    fields["attention_bias"] = False
    if values.get("qkv_proj_bias") is not None:
        fields["attention_bias"] = values["qkv_proj_bias"]
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
    BERT,
    model_types={"nomic_bert": "NomicBert"},
    classes=GTE.classes,
    keys=GTE.keys,
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
        "max_positions": 2048,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    },
    read=_read,
    write=write_rope,
)
