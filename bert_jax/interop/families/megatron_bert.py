"""MegatronBert: BERT with pre-LN layers (Shoeybi et al., 2019)."""

import dataclasses

from bert_jax.interop.families.bert import BERT

MEGATRON_BERT = dataclasses.replace(
    BERT,
    model_types={"megatron-bert": "MegatronBert"},
    classes={"ForCausalLM": ("pretraining", ("mlm",)), **BERT.classes},
    names={
        **BERT.names,
        "attention_norm": "attention.ln",
        "feed_forward_norm": "ln",
        "bert/encoder/final_norm": "bert.encoder.ln",
    },
    options={"pre_norm": True},
)
