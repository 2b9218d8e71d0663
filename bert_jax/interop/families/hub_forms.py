"""Forms of config.json that belong to the authors' own code, in files on the Hub."""

from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError

# Keys of Nomic BERT by key of transformers.
_NOMIC_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "hidden_dropout_prob": "resid_pdrop",
    "attention_probs_dropout_prob": "attn_pdrop",
    "layer_norm_eps": "layer_norm_epsilon",
}


def known_form(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config.json with the names that transformers has for its model.

    Nomic BERT has the keys of GPT-2, and Alibaba-NLP/new-impl the model_type "new" for GTE.
    """
    values = dict(values)
    if values.get("model_type") == "nomic_bert":
        for key, old_key in _NOMIC_KEYS.items():
            if old_key in values:
                values.setdefault(key, values[old_key])
    if values.get("model_type") != "new":
        return values
    names = values.get("architectures") or ()
    names = [name.replace("New", "Gte", 1) for name in names]
    defaults = {"rope_theta": 10_000.0, "max_position_embeddings": 2048}
    return {**defaults, **values, "model_type": "gte", "architectures": names}


def check_values(values: Mapping[str, Any], only: Mapping[str, Any]) -> None:
    """Raises UserError for a model that its authors' code computes in another way.

    values: the content of config.json. only: the supported value of each key. A missing key
    and None mean this value as well.
    """
    for key, expected in only.items():
        if values.get(key, expected) not in (expected, None):
            raise UserError(f"{key}={values[key]!r}, expected {expected!r}")
