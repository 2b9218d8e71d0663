"""RoBERTa (Liu et al., 2019), and XLM-R and CamemBERT, which only have other names."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.interop.families.bert import BERT, encoder_names
from bert_jax.model.config import BertConfig
from bert_jax.schema import check


def _read(values: Mapping[str, Any]) -> dict[str, int]:
    """Padding has the row pad_token_id of the position table, the first token the next."""
    padding = values.get("pad_token_id", 1)
    check(padding, int, "pad_token_id")
    rows = values.get("max_position_embeddings", 512)
    return {"position_offset": padding + 1, "max_positions": rows - padding - 1}


def _write(config: BertConfig) -> dict[str, int]:
    return {
        "max_position_embeddings": config.position_rows,
        # An offset of 0, which RoBERTa does not have, is not read again.
        "pad_token_id": max(config.position_offset - 1, 0),
    }


ROBERTA = dataclasses.replace(
    BERT,
    model_types={
        "roberta": "Roberta",
        "xlm-roberta": "XLMRoberta",
        "camembert": "Camembert",
    },
    classes={
        "ForMaskedLM": ("pretraining", ("mlm",)),
        "ForCausalLM": ("pretraining", ("mlm",)),
        "Model": ("none", ("pooler",)),
        "ForSequenceClassification": ("sequence", ("pooler", "classifier")),
        "ForMultipleChoice": ("choice", ("pooler", "classifier")),
        "ForTokenClassification": ("token", ("classifier",)),
        "ForQuestionAnswering": ("span", ("qa_outputs",)),
    },
    causal="ForCausalLM",
    prefix="roberta.",
    layer="roberta.encoder.layer.{}.",
    names={
        **encoder_names("roberta."),
        "mlm/transform": "lm_head.dense",
        "mlm/norm": "lm_head.layer_norm",
        "mlm": "lm_head",
    },
    head_names={
        "sequence": {
            "bert/pooler": "classifier.dense",
            "classifier": "classifier.out_proj",
        }
    },
    decoder="lm_head.decoder",
    read=_read,
    write=_write,
)
