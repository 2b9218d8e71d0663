"""Rotary positions in config.json."""

from typing import TypedDict

from bert_jax.errors import UserError
from bert_jax.schema import check

# Kinds of layers: without and with a window.
FULL, SLIDING = "full_attention", "sliding_attention"


class Rope(TypedDict, total=False):
    """The form of rope_parameters, and of rope_scaling in files of transformers 4."""

    rope_theta: float
    rope_type: str
    type: str


def read_theta(rope: Rope | None, name: str, default: float) -> float:
    """The base of rotary positions. Raises UserError for scaled positions.

    rope: the object ``name`` of config.json. None: positions have the base ``default``.
    """
    check(rope, Rope | None, name)
    rope = rope or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise UserError(
            f"{name}.rope_type={kind!r}; expected 'default' (rotary positions are not "
            "scaled here)"
        )
    return rope.get("rope_theta", default)
