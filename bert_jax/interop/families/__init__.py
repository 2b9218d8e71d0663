"""The families of encoders in transformers that bert_jax reads and writes.

A family is one file here and an entry in the list below; see docs/design.md.
"""

from bert_jax.errors import UserError
from bert_jax.interop.families.bert import BERT
from bert_jax.interop.families.distilbert import DISTILBERT
from bert_jax.interop.families.electra import ELECTRA
from bert_jax.interop.families.family import Family
from bert_jax.interop.families.gte import GTE
from bert_jax.interop.families.megatron_bert import MEGATRON_BERT
from bert_jax.interop.families.modernbert import MODERNBERT
from bert_jax.interop.families.nomic import NOMIC
from bert_jax.interop.families.roberta import ROBERTA

_ALL = (
    *(BERT, MEGATRON_BERT, ROBERTA, DISTILBERT, ELECTRA),
    *(MODERNBERT, NOMIC, GTE),
)
# By model_type of config.json. If the family of a model does not fit, the model is written
# as the first family that does.
FAMILIES = {kind: family for family in _ALL for kind in family.model_types}


def find_family(model_type: str) -> Family:
    """The family of a model_type. Raises UserError for an unknown one."""
    if model_type not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise UserError(f"model_type={model_type!r} cannot be read; expected {known}")
    return FAMILIES[model_type]
