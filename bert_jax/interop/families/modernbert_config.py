"""The values of ModernBERT's config.json that are not fields of BertConfig.

Transformers 4 has global_attn_every_n_layers, global_rope_theta and local_rope_theta in
config.json, and transformers 5 has layer_types and rope_parameters. Both forms are read
and written. transformers applies dropout in other places: attention_dropout is the rate of
attention's output as well, and hidden_dropout is written as embedding_dropout and
mlp_dropout.
"""

from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.interop.families.activations import activation_name
from bert_jax.interop.families.layer_types import EVERY, global_every, layer_types
from bert_jax.interop.families.rope import FULL, SLIDING, read_theta
from bert_jax.model.config import BertConfig
from bert_jax.schema import check

TOKEN_IDS = (
    *("pad_token_id", "bos_token_id", "eos_token_id"),
    *("cls_token_id", "sep_token_id"),
)


def read(values: Mapping[str, Any]) -> dict[str, Any]:
    """Family.read of ModernBERT."""
    activation = values.get("hidden_activation", "gelu")
    head_activation = values.get("classifier_activation", "gelu")
    if head_activation != activation:
        raise UserError(
            f"classifier_activation={head_activation!r}, but hidden_activation="
            f"{activation!r}; both must be the same"
        )
    pooling = values.get("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise UserError(f"classifier_pooling={pooling!r}, expected cls or mean")
    has_bias = values.get("mlp_bias", False)
    check(has_bias, bool, "mlp_bias")
    fields = {"pooling": "token", "feed_forward_bias": "none"}
    if pooling == "mean":
        fields["pooling"] = "mean"
    if has_bias:
        fields["feed_forward_bias"] = "all"
    return fields | _read_attention(values)


def _read_attention(values: Mapping[str, Any]) -> dict[str, Any]:
    """The windows and the bases of rotary positions."""
    full = _read_theta(values, FULL, "global_rope_theta", 160_000.0)
    local = _read_theta(values, SLIDING, "local_rope_theta", 10_000.0)
    every = global_every(values)
    fields = {"rope_theta": full, "global_every": every}
    if every == 1:  # no layer has a window
        return fields
    if local not in (full, None):
        fields["local_rope_theta"] = local
    tokens = values.get("local_attention", 128)
    check(tokens, int, "local_attention")
    if tokens < 2:
        raise UserError(f"local_attention={tokens}, expected at least 2 tokens")
    return fields | {"window": tokens // 2}


def _read_theta(values: Mapping[str, Any], kind: str, key: str, default: float) -> Any:
    """The base of a kind of layers. key: its name in transformers 4."""
    ropes, theta = values.get("rope_parameters"), values.get(key, default)
    check(ropes, dict[str, Any] | None, "rope_parameters")
    check(theta, float | None, key)
    theta = read_theta(values.get("rope_scaling"), "rope_scaling", theta)
    if ropes is None:
        return theta
    return read_theta(ropes.get(kind), f"rope_parameters.{kind}", theta)


def write(config: BertConfig) -> dict[str, Any]:
    """Family.write of ModernBERT."""
    full = config.rope_theta
    local = config.local_rope_theta or full
    values: dict[str, Any] = {
        "classifier_activation": activation_name(config.activation),
        "classifier_pooling": "cls",
        "mlp_bias": config.feed_forward_bias == "all",
        "mlp_dropout": config.hidden_dropout,
        "layer_types": layer_types(config.num_layers, config.global_every),
        EVERY: config.global_every,
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": full},
            SLIDING: {"rope_type": "default", "rope_theta": local},
        },
        "global_rope_theta": full,
        "local_rope_theta": local,
    }
    if config.window:
        values["local_attention"] = 2 * config.window
    if config.pooling == "mean":
        values["classifier_pooling"] = "mean"
    # By default the class has the ids of tokens that small vocabularies do not have.
    return values | dict.fromkeys(TOKEN_IDS)
