"""Rotary positions in config.json."""

from collections.abc import Mapping
from typing import Any, TypedDict

from bert_jax.errors import UserError
from bert_jax.model.config import BertConfig
from bert_jax.schema import check

# Kinds of layers: without and with a window.
FULL, SLIDING = "full_attention", "sliding_attention"


class Rope(TypedDict, total=False):
    """The form of rope_parameters, and of rope_scaling in files of transformers 4."""

    rope_theta: float
    rope_type: str
    type: str
    factor: float
    mixed_b: float | None


def read_rope(values: Mapping[str, Any], theta: float) -> dict[str, float]:
    """The fields rope_theta and rope_factor of BertConfig from the values of config.json.

    theta: the base if neither rope_parameters nor rope_scaling, which takes precedence, has
    one. The type "ntk" is the fixed scaling of Alibaba-NLP/new-impl (its
    NTKScalingRotaryEmbedding): a larger base, and positions divided by a factor.
    """
    name = "rope_parameters"
    if values.get("rope_scaling"):
        name = "rope_scaling"
    rope, kind = _form(values.get(name), name)
    if kind not in ("default", "linear", "ntk") or rope.get("mixed_b") is not None:
        raise UserError(f"{name}={rope}; expected rope_type default, linear or ntk")
    theta = rope.get("rope_theta", theta)
    if kind == "default":
        return {"rope_theta": theta, "rope_factor": 1.0}
    if "factor" not in rope:
        raise UserError(f"{name}={rope}; expected a factor with rope_type {kind}")
    factor = rope["factor"]
    if kind == "ntk":
        theta *= factor
        head_size = values["hidden_size"] // values["num_attention_heads"]
        factor **= 2 / head_size
    return {"rope_theta": theta, "rope_factor": factor}


def write_rope(config: BertConfig) -> dict[str, Any]:
    """The inverse of :func:`read_rope`, in the forms of transformers 4 and 5."""
    rope = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_factor != 1:
        rope |= {"rope_type": "linear", "factor": config.rope_factor}
    return {"rope_theta": config.rope_theta, "rope_parameters": rope}


def read_theta(rope: Rope | None, name: str, default: float) -> float:
    """The base of rotary positions. Raises UserError for scaled positions.

    rope: the object ``name`` of config.json. None: positions have the base ``default``.
    """
    rope, kind = _form(rope, name)
    if kind != "default":
        raise UserError(
            f"{name}.rope_type={kind!r}; expected 'default' (rotary positions are not "
            "scaled here)"
        )
    return rope.get("rope_theta", default)


def _form(rope: Any, name: str) -> tuple[Rope, str]:
    """The object ``name`` of config.json, and its type in the keys of both versions."""
    check(rope, Rope | None, name)
    rope = rope or {}
    return rope, rope.get("rope_type", rope.get("type", "default"))
