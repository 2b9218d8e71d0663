"""ModernBERT (Warner et al., 2024), and Ettin and mmBERT, which have other sizes.

Every classifier reads the dense layer, activation and LayerNorm of the MLM head.
"""

from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.interop.families.family import Family
from bert_jax.interop.families.modernbert_config import TOKEN_IDS, read, write

_HEAD = {"bert/pooler/transform": "head.dense", "bert/pooler/norm": "head.norm"}


def _read(values: Mapping[str, Any]) -> dict[str, Any]:
    has_mlm = "ModernBertForMaskedLM" in (values.get("architectures") or ())
    if has_mlm and not values.get("decoder_bias", True):
        raise UserError("decoder_bias=False, expected true: the MLM head has a bias")
    return read(values)


MODERNBERT = Family(
    model_types={"modernbert": "ModernBert"},
    classes={
        "ForMaskedLM": ("pretraining", ("mlm",)),
        "Model": ("none", ()),
        "ForSequenceClassification": ("sequence", ("pooler", "classifier")),
        "ForMultipleChoice": ("choice", ("pooler", "classifier")),
        "ForTokenClassification": ("token", ("pooler", "classifier")),
        "ForQuestionAnswering": ("span", ("pooler", "qa_outputs")),
    },
    prefix="model.",
    layer="model.layers.{}.",
    names={
        "bert/embeddings/word": "model.embeddings.tok_embeddings",
        "bert/embeddings/norm": "model.embeddings.norm",
        "attention/query": "attn.query",
        "attention/key": "attn.key",
        "attention/value": "attn.value",
        "attention/output": "attn.Wo",
        "attention_norm": "attn_norm",
        "intermediate": "mlp.activated",
        "gate": "mlp.gate",
        "feed_forward_output": "mlp.Wo",
        "feed_forward_norm": "mlp_norm",
        "bert/encoder/final_norm": "model.final_norm",
        "mlm/transform": "head.dense",
        "mlm/norm": "head.norm",
        "mlm": "decoder",
        "classifier": "classifier",
    },
    head_names={
        "sequence": _HEAD,
        "choice": _HEAD,
        "token": _HEAD,
        "span": _HEAD | {"qa_outputs": "classifier"},
    },
    split={
        "attn.Wqkv": ("attn.query", "attn.key", "attn.value"),
        "mlp.Wi": ("mlp.activated", "mlp.gate"),
    },
    decoder="decoder",
    keys={
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "intermediate_size": "intermediate_size",
        "max_positions": "max_position_embeddings",
        "norm_bias": "norm_bias",
        "attention_bias": "attention_bias",
        "head_bias": "classifier_bias",
        "hidden_dropout": "embedding_dropout",
        "attention_dropout": "attention_dropout",
        "activation": "hidden_activation",
        "layer_norm_epsilon": "norm_eps",
        "initializer_range": "initializer_range",
    },
    kept=("classifier_dropout", "mlp_dropout", *TOKEN_IDS),
    options={
        "type_vocab_size": 0,
        "positions": "rotary",
        "pre_norm": True,
        "embedding_norm": True,
        "gated": True,
        "pooler": "transform",
        "norm_bias": False,
        "attention_bias": False,
        "head_bias": False,
        "max_positions": 8192,
        "layer_norm_epsilon": 1e-5,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    },
    read=_read,
    write=write,
)
