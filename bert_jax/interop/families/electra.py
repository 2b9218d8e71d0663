"""The discriminator of ELECTRA (Clark et al., 2020), without its own head."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.interop.families.bert import BERT, encoder_names
from bert_jax.model.config import BertConfig


def _read(values: Mapping[str, Any]) -> dict[str, Any]:
    embedding_size, width = values.get("embedding_size", 128), values["hidden_size"]
    if embedding_size != width:
        raise UserError(
            f"embedding_size={embedding_size}, but hidden_size={width}; expected equal "
            "sizes, as in google/electra-base-discriminator"
        )
    return {}


def _write(config: BertConfig) -> dict[str, int]:
    return {"embedding_size": config.hidden_size}


_NAMES = encoder_names("electra.")
del _NAMES["bert/pooler"]  # only models with a classifier of texts have one

ELECTRA = dataclasses.replace(
    BERT,
    model_types={"electra": "Electra"},
    classes={
        "Model": ("none", ()),
        "ForPreTraining": ("none", ()),
        "ForSequenceClassification": ("sequence", ("pooler", "classifier")),
        "ForMultipleChoice": ("choice", ("pooler", "classifier")),
        "ForTokenClassification": ("token", ("classifier",)),
        "ForQuestionAnswering": ("span", ("qa_outputs",)),
    },
    causal="",
    prefix="electra.",
    layer="electra.encoder.layer.{}.",
    names=_NAMES,
    head_names={
        "sequence": {
            "bert/pooler": "classifier.dense",
            "classifier": "classifier.out_proj",
        },
        "choice": {"bert/pooler": "sequence_summary.summary"},
    },
    decoder="",
    options={"pooler": "gelu"},
    read=_read,
    write=_write,
)
