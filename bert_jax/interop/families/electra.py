"""The discriminator of ELECTRA (Clark et al., 2020), without its own head."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.interop.families.bert import TASKS, encoder_names
from bert_jax.interop.families.roberta import ROBERTA
from bert_jax.model.config import BertConfig

# The settings of ElectraForMultipleChoice, with the values that a pooler computes.
_SUMMARY = {
    "summary_type": ("first",),
    "summary_use_proj": (True,),
    "summary_activation": ("gelu", "tanh", "relu"),
}


def _read(values: Mapping[str, Any]) -> dict[str, Any]:
    embedding_size, width = values.get("embedding_size", 128), values["hidden_size"]
    if embedding_size != width:
        raise UserError(
            f"embedding_size={embedding_size}, but hidden_size={width}; both must be "
            "equal, as in google/electra-base-discriminator"
        )
    if "ElectraForMultipleChoice" not in (values.get("architectures") or ()):
        return {}
    for key, known in _SUMMARY.items():
        if values.get(key, known[0]) not in known:
            raise UserError(f"{key}={values[key]!r}, expected one of {[*known]}")
    return {"pooler": values.get("summary_activation", "gelu")}


def _write(config: BertConfig) -> dict[str, Any]:
    values: dict[str, Any] = {"embedding_size": config.hidden_size}
    if config.pooler in _SUMMARY["summary_activation"]:
        values["summary_activation"] = config.pooler
    return values


_NAMES = encoder_names("electra.")
del _NAMES["bert/pooler"]  # only models with a classifier of texts have one
_CHOICE = {"bert/pooler": "sequence_summary.summary"}

ELECTRA = dataclasses.replace(
    ROBERTA,
    model_types={"electra": "Electra"},
    classes={"Model": ("none", ()), "ForPreTraining": ("none", ()), **TASKS},
    prefix="electra.",
    layer="electra.encoder.layer.{}.",
    names=_NAMES,
    head_names={**ROBERTA.head_names, "choice": _CHOICE},
    decoder="",
    options={"pooler": "gelu"},
    read=_read,
    write=_write,
    kept=(*ROBERTA.kept, "summary_last_dropout"),
)
