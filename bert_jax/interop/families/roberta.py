"""RoBERTa (Liu et al., 2019), XLM-R and CamemBERT, which differ only in their names."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.interop.families.bert import BERT, TASKS, encoder_names
from bert_jax.model.config import BertConfig
from bert_jax.schema import check


def _read(values: Mapping[str, Any]) -> dict[str, int]:
    """Padding has row pad_token_id of the position table, the first token the next row."""
    padding = values.get("pad_token_id", 1)
    check(padding, int, "pad_token_id")
    rows = values.get("max_position_embeddings", BertConfig.max_positions)
    if not 0 <= padding < rows - 1:
        raise UserError(
            f"pad_token_id={padding} and max_position_embeddings={rows}; the position "
            "table must have rows after row pad_token_id"
        )
    return {"position_offset": padding + 1, "max_positions": rows - padding - 1}


def _write(config: BertConfig) -> dict[str, int]:
    # An offset of 0, which no RoBERTa has, is not restored by _read.
    padding = max(config.position_offset - 1, 0)
    rows = config.max_positions + padding + 1
    return {"max_position_embeddings": rows, "pad_token_id": padding}


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
        **TASKS,
    },
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
    mlm_activations=("gelu",),
    decoder="lm_head.decoder",
    read=_read,
    write=_write,
)
